//! Streams end: what they spoke for is orphaned for a while, then released; or it is another companion's.
//!
//! What an orphaned session has running stays in stock; what it has queued keeps its place but can't go, for nobody
//! could be told. Its next Hello continues it, the end of the grace or a Bye ends it.

use core::time::Duration;

use penstock_engine::Instant;
use penstock_engine::input::Input;
use penstock_wire as wire;
use wire::command::Kind;

use crate::control::Control;
use crate::course::AT_ESTIMATE;
use crate::event::{ConnId, Observation, Output};
use crate::session::{Epoch, Stage as SessionStage};
use crate::timers::Timer;

impl Control {
    /// A stream is over. What it spoke for is orphaned, unless another stream speaks for it already.
    pub(crate) fn closed(&mut self, now: Instant, conn: ConnId, why: &'static str) {
        let Some(session) = self.sessions.remove(&conn) else {
            return;
        };
        let SessionStage::Established(epoch) = session.stage else {
            return;
        };
        self.observe(Observation::SessionClosed { conn, why });
        let Some(context) = self.requests.contexts.get_mut(&epoch) else {
            return;
        };
        if context.conn != Some(conn) {
            return;
        }
        context.conn = None;
        context.orphaned = Some(now);
        self.timers
            .set(now.after(wire::limits::SESSION_GRACE), Timer::Grace(epoch));
        let held = self.requests.of(epoch).len();
        let waiting = self.requests.waiting_of(epoch);
        self.observe(Observation::SessionOrphaned {
            conn,
            waiting: waiting.len(),
            running: held.saturating_sub(waiting.len()),
        });
        // The last first: one that is held back lets nothing go that is held back as well.
        for id in waiting.into_iter().rev() {
            if let Some(entry) = self.requests.get(id) {
                let pool = entry.pool;
                self.decide(now, pool, Input::Suspend(id));
            }
        }
    }

    /// A stream that may be silent for too long.
    pub(crate) fn silence(&mut self, now: Instant, conn: ConnId) {
        let Some(session) = self.sessions.get(&conn) else {
            return;
        };
        let due = session.last_seen.after(wire::limits::SILENCE);
        if due > now {
            self.timers.set(due, Timer::Silence(conn));
        } else {
            self.end(now, conn, "no frame for 10s");
        }
    }

    /// A root context that may be orphaned for too long.
    pub(crate) fn grace(&mut self, now: Instant, epoch: Epoch) {
        let context = self.requests.contexts.get(&epoch);
        let Some(since) = context.and_then(|context| context.orphaned) else {
            return;
        };
        let due = since.after(wire::limits::SESSION_GRACE);
        if due > now {
            self.timers.set(due, Timer::Grace(epoch));
        } else {
            self.release(now, epoch);
        }
    }

    /// Time that counts for nobody's silence.
    pub(crate) fn slept(&mut self, time: Duration) {
        for session in self.sessions.values_mut() {
            session.last_seen = session.last_seen.after(time);
        }
        for context in self.requests.contexts.values_mut() {
            context.orphaned = context.orphaned.map(|since| since.after(time));
        }
    }

    /// A root context has gone for good: what it had queued is cancelled, what it had running is settled.
    pub(crate) fn release(&mut self, now: Instant, epoch: Epoch) {
        // What waits goes first, the last before the others: what leaves lets nothing go that leaves as well.
        for id in self.requests.waiting_of(epoch).into_iter().rev() {
            if let Some(entry) = self.requests.get(id)
                && entry.waits()
            {
                let pool = entry.pool;
                self.decide(now, pool, Input::Cancel(id));
            }
        }
        for id in self.requests.of(epoch) {
            self.settle(now, id, AT_ESTIMATE);
        }
        if let Some(context) = self.requests.contexts.remove(&epoch) {
            self.envoys.left(context.envoy);
        }
        // It may come back and speak of what lives on by another name.
        self.requests
            .forget_moved(epoch, |requests, _, id| requests.get(id).is_some());
        self.tell_endpoints(None);
    }

    /// Another companion takes over: the filters hold what waits for it, and tell it what runs.
    pub(crate) fn hand_over(&mut self) {
        self.handed_over = true;
        let mut conns: Vec<ConnId> = self.sessions.keys().copied().collect();
        conns.sort_unstable();
        for conn in conns {
            let Some(mut session) = self.sessions.remove(&conn) else {
                continue;
            };
            session.push(Kind::Bye(wire::Bye {}));
            if let Some(frame) = session.frame() {
                self.outputs.push_back(Output::Send(conn, Box::new(frame)));
            }
            let why = "this companion ends";
            self.observe(Observation::SessionClosed { conn, why });
            self.outputs.push_back(Output::Close(conn, why));
        }
    }
}
