//! What happens to requests when their session closes.
//!
//! A session that closes without `Bye` may come back. Until the grace period ends, its running requests keep their place in
//! stock, because they still occupy the endpoints. Its waiting requests keep their place in the queue, and can't be granted,
//! because no grant could reach them. When the session returns, its Hello continues both. When the grace period ends, or the
//! session sends `Bye`, both are released.

use core::time::Duration;

use penstock_engine::Instant;
use penstock_wire as wire;
use wire::command::Kind;

use super::Control;
use crate::event::Output;
use crate::ids::{ConnId, Epoch, Route};
use crate::observation::SessionNews;
use crate::pool::PoolInput;
use crate::session::Stage;
use crate::timers::Timer;

impl Control {
    /// Handles the end of a stream. Does nothing if its Hello was never complete, or if a later stream of the same root
    /// context has replaced it.
    pub(super) fn disconnect(&mut self, now: Instant, conn: ConnId, reason: &'static str) {
        let Some(session) = self.sessions.remove(&conn) else {
            return;
        };
        let Stage::Established(epoch) = session.stage else {
            return;
        };
        self.observe_session(conn, SessionNews::Closed(reason));
        let Some(context) = self.contexts.get_mut(&epoch) else {
            return;
        };
        if context.conn != Some(conn) {
            return;
        }
        context.conn = None;
        context.orphaned_since = Some(now);
        let total = context.requests.len();
        self.timers.set(now.after(wire::limits::SESSION_GRACE), Timer::Grace(epoch));
        self.suspend_credits(now, epoch);
        let waiting = self.waiting_routes(epoch);
        self.observe_session(
            conn,
            SessionNews::Orphaned { waiting: waiting.len(), running: total.saturating_sub(waiting.len()) },
        );
        // Newest first: otherwise the engine would consider the next request of the session, which is suspended next.
        for route in waiting.into_iter().rev() {
            self.drive_pool(now, route.pool, PoolInput::Suspend(route.id));
        }
    }

    /// Checks a stream that may have been silent for too long.
    pub(super) fn check_silence(&mut self, now: Instant, conn: ConnId) {
        let Some(session) = self.sessions.get(&conn) else {
            return;
        };
        let deadline = session.last_frame_at.after(wire::limits::SILENCE);
        if now < deadline {
            self.timers.set(deadline, Timer::Silence(conn));
        } else {
            self.close(now, conn, "no frame for 10s");
        }
    }

    /// Checks whether the grace period of a root context is over.
    pub(super) fn check_grace(&mut self, now: Instant, epoch: Epoch) {
        let context = self.contexts.get(&epoch);
        let Some(since) = context.and_then(|context| context.orphaned_since) else {
            return;
        };
        let deadline = since.after(wire::limits::SESSION_GRACE);
        if now < deadline {
            self.timers.set(deadline, Timer::Grace(epoch));
        } else {
            self.release(now, epoch);
        }
    }

    /// Excludes a time during which this process was suspended from all silence and grace periods.
    pub(super) fn compensate_suspend(&mut self, duration: Duration) {
        for session in self.sessions.values_mut() {
            session.last_frame_at = session.last_frame_at.after(duration);
        }
        for context in self.contexts.values_mut() {
            context.orphaned_since = context.orphaned_since.map(|since| since.after(duration));
        }
    }

    /// Releases everything that a lost root context holds: waiting requests are cancelled, running requests are settled at
    /// their estimated cost, because their usage will never be reported.
    pub(super) fn release(&mut self, now: Instant, epoch: Epoch) {
        // Newest first: a place that a cancelled request frees must not go to a request that is cancelled next.
        for route in self.waiting_routes(epoch).into_iter().rev() {
            if self.is_waiting(route) {
                self.drive_pool(now, route.pool, PoolInput::Cancel(route.id));
            }
        }
        for route in self.routes(epoch) {
            self.drive_pool(now, route.pool, PoolInput::Release(route.id));
        }
        self.end_credits(now, epoch);
        if let Some(context) = self.contexts.remove(&epoch) {
            self.remove_envoy_context(now, context.envoy, epoch, context.origin);
        }
        // The filter may come back and report on a request that lives on under a key of another session.
        self.aliases.retain(epoch, |aliases, _, id| aliases.is_open(id));
        self.announce_all();
    }

    /// Another companion takes over. The filters keep their waiting requests for it, and report to it what runs.
    pub(super) fn hand_over(&mut self) {
        self.is_handed_over = true;
        let mut conns: Vec<ConnId> = self.sessions.keys().copied().collect();
        conns.sort_unstable();
        for conn in conns {
            let Some(mut session) = self.sessions.remove(&conn) else {
                continue;
            };
            session.push(Kind::Bye(wire::Bye {}));
            if let Some(frame) = session.next_frame(self.last_event_at) {
                self.outputs.push_back(Output::Send(conn, Box::new(frame)));
            }
            let why = "this companion ends";
            self.observe_session(conn, SessionNews::Closed(why));
            self.outputs.push_back(Output::Close(conn, why));
        }
    }

    /// The requests of a root context, in the order in which they came.
    fn routes(&self, epoch: Epoch) -> Vec<Route> {
        let context = self.contexts.get(&epoch);
        context.map_or_else(Vec::new, crate::root_context::RootContext::routes)
    }

    fn waiting_routes(&self, epoch: Epoch) -> Vec<Route> {
        let mut routes = self.routes(epoch);
        routes.retain(|route| self.is_waiting(*route));
        routes
    }
}
