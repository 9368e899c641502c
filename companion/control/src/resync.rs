//! Sessions begin and end: what a Hello means for the requests on both sides, and what becomes of the requests of
//! a session that ended.
//!
//! | the filter says | not known here | queued here | granted here |
//! |---|---|---|---|
//! | waiting | enqueue at its first arrival | keep | the grant was lost: say it again, or requeue if its endpoint has gone |
//! | running | adopt | adopt | keep |
//! | absent | | cancel | release, unless its end is repeated before the next beat |

use core::time::Duration;

use hashbrown::{HashMap, HashSet};
use penstock_engine::Instant;
use penstock_engine::input::{Input, RequestId};
use penstock_wire as wire;
use wire::command::Kind;

use crate::control::{AT_ESTIMATE, Arrival, Control};
use crate::counted::Counted;
use crate::event::{ConnId, Observation};
use crate::register::{Entry, Stage};
use crate::session::{Context, Epoch, Stage as SessionStage};
use crate::timers::Timer;

impl Control {
    /// Takes a part of a Hello; with the last one the session is established.
    pub(crate) fn hello(&mut self, now: Instant, conn: ConnId, mut hello: wire::Hello) {
        let Some(session) = self.sessions.get_mut(&conn) else {
            return;
        };
        match session.part(&mut hello) {
            Err(violation) => return self.end(now, conn, violation.as_str()),
            Ok(false) => return,
            Ok(true) => {}
        }
        let version = hello.version_max.min(wire::limits::VERSION_MAX);
        if version < hello.version_min.max(wire::limits::VERSION_MIN) {
            session.push(Kind::HelloAck(wire::HelloAck {
                version: 0,
                term: self.settings.term,
            }));
            return self.end(now, conn, "no version of the protocol is common");
        }
        let epoch = Epoch(u128::from(hello.epoch_hi) << 64 | u128::from(hello.epoch_lo));
        let greeting = match core::mem::replace(&mut session.stage, SessionStage::Established(epoch)) {
            SessionStage::Greeting(greeting) => greeting,
            SessionStage::Established(_) | SessionStage::Over => return,
        };
        let older = match self.requests.contexts.get(&epoch) {
            Some(context) if context.stream >= hello.stream => {
                session.stage = SessionStage::Over;
                return self.end(now, conn, "a later stream speaks for this filter");
            }
            Some(context) => context.conn,
            None => None,
        };
        if let Some(older) = older {
            self.end(now, older, "a later stream speaks for this filter");
        }
        let context = self.requests.contexts.entry(epoch).or_insert_with(|| Context {
            conn: None,
            stream: 0,
            node: hello.node.as_str().into(),
            orphaned: None,
            requests: HashMap::new(),
            absent: Vec::new(),
            counted: Counted::default(),
        });
        context.conn = Some(conn);
        context.stream = hello.stream;
        context.orphaned = None;
        self.observe(Observation::SessionOpened {
            conn,
            node: hello.node.as_str().into(),
            waiting: greeting.waiting.len(),
            running: greeting.running.len(),
        });
        self.greet(epoch, version, &hello.policy_digest);
        self.resync(now, epoch, greeting.waiting, greeting.running);
        let open = self
            .requests
            .contexts
            .values()
            .filter(|it| it.conn.is_some())
            .count();
        if self
            .settings
            .sessions_expected
            .is_some_and(|expected| open >= expected)
        {
            self.start(now);
        }
    }

    /// What every session is told first.
    fn greet(&mut self, epoch: Epoch, version: u32, digest: &str) {
        self.say(
            epoch,
            Kind::HelloAck(wire::HelloAck {
                version,
                term: self.settings.term,
            }),
        );
        if digest != self.settings.policy.digest {
            self.say(epoch, Kind::Policy(self.settings.policy.clone()));
        }
        for pool in 0..self.pools.len() {
            let of = &self.pools[pool];
            let endpoints = wire::Endpoints {
                pool: of.name.to_string(),
                ready: of.ready(),
                open_bound: None,
            };
            self.say(epoch, Kind::Endpoints(endpoints));
        }
    }

    fn resync(
        &mut self,
        now: Instant,
        epoch: Epoch,
        waiting: Vec<wire::Register>,
        running: Vec<wire::Running>,
    ) {
        let named: HashSet<u64> = waiting
            .iter()
            .map(|it| it.sequence)
            .chain(
                running
                    .iter()
                    .filter_map(|it| it.register.as_ref())
                    .map(|it| it.sequence),
            )
            .collect();
        self.settle_absent(now, epoch, &named);
        for running in running {
            let Some(register) = &running.register else {
                continue;
            };
            self.still_runs(now, epoch, register, &running);
        }
        for register in waiting {
            match self.requests.find(epoch, register.sequence) {
                None => self.register(now, epoch, &register, Arrival::Waiting),
                Some(id) => self.still_waits(now, epoch, id),
            }
        }
    }

    /// What the filter no longer knows: queued ones left, granted ones have ended and their end may be repeated.
    fn settle_absent(&mut self, now: Instant, epoch: Epoch, named: &HashSet<u64>) {
        for id in self.requests.of(epoch) {
            let Some(Entry {
                sequence,
                pool,
                stage,
                ..
            }) = self.requests.get(id)
            else {
                continue;
            };
            if named.contains(sequence) {
                continue;
            }
            match stage {
                Stage::Waiting => {
                    let pool = *pool;
                    self.decide(now, pool, Input::Cancel(id));
                }
                Stage::Granted { .. } => {
                    if let Some(context) = self.requests.contexts.get_mut(&epoch) {
                        context.absent.push(id);
                    }
                }
            }
        }
    }

    fn still_runs(&mut self, now: Instant, epoch: Epoch, register: &wire::Register, running: &wire::Running) {
        if let Some(id) = self.requests.find(epoch, register.sequence) {
            match self.requests.get(id) {
                Some(Entry {
                    stage: Stage::Granted { .. },
                    ..
                }) => return,
                // Granted by another companion while it was queued here: it leaves this queue and is adopted.
                Some(Entry { pool, .. }) => {
                    let pool = *pool;
                    self.decide(now, pool, Input::Cancel(id));
                }
                None => return,
            }
        }
        let grant = Box::new(wire::Grant {
            sequence: register.sequence,
            pool: running.pool.clone(),
            endpoints: vec![running.endpoint.clone()],
            outcome: penstock_engine::Outcome::Dispatched.as_str().to_owned(),
            ..Default::default()
        });
        let age = Duration::from_micros(running.age_us);
        self.register(now, epoch, register, Arrival::Running { grant, age });
    }

    fn still_waits(&mut self, now: Instant, epoch: Epoch, id: RequestId) {
        let Some(Entry {
            pool,
            stage: Stage::Granted { grant, .. },
            ..
        }) = self.requests.get(id)
        else {
            return;
        };
        let pool = *pool;
        let there = grant
            .endpoints
            .iter()
            .any(|address| self.pools[pool].endpoint(address).is_some());
        if there {
            let grant = grant.as_ref().clone();
            self.say(epoch, Kind::Grant(grant));
        } else {
            if let Some(entry) = self.requests.get_mut(id) {
                entry.stage = Stage::Waiting;
            }
            self.decide(now, pool, Input::Requeue(id));
        }
    }

    /// The repeats that follow a Hello are in: what wasn't among them is settled at its estimate.
    pub(crate) fn release_absent(&mut self, now: Instant, epoch: Epoch) {
        let Some(context) = self.requests.contexts.get_mut(&epoch) else {
            return;
        };
        for id in core::mem::take(&mut context.absent) {
            if let Some(entry) = self.requests.close(id) {
                self.decide(
                    now,
                    entry.pool,
                    Input::Completed {
                        id,
                        service: AT_ESTIMATE,
                    },
                );
            }
        }
    }

    /// A stream is over. What it spoke for is orphaned, unless another stream speaks for it already.
    pub(crate) fn closed(&mut self, now: Instant, conn: ConnId, why: &'static str) {
        let Some(session) = self.sessions.remove(&conn) else {
            return;
        };
        let SessionStage::Established(epoch) = session.stage else {
            return;
        };
        let Some(context) = self.requests.contexts.get_mut(&epoch) else {
            return;
        };
        if context.conn == Some(conn) {
            context.conn = None;
            context.orphaned = Some(now);
            self.timers
                .set(now.after(wire::limits::SESSION_GRACE), Timer::Grace(epoch));
        }
        self.observe(Observation::SessionClosed { conn, why });
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
        let over = self
            .requests
            .contexts
            .get(&epoch)
            .and_then(|context| context.orphaned)
            .is_some_and(|since| since.after(wire::limits::SESSION_GRACE) <= now);
        if over {
            self.release(now, epoch);
        }
    }

    /// A root context has gone for good: what it had queued is cancelled, what it had running is settled.
    pub(crate) fn release(&mut self, now: Instant, epoch: Epoch) {
        for id in self.requests.of(epoch) {
            let Some(Entry { pool, stage, .. }) = self.requests.get(id) else {
                continue;
            };
            let pool = *pool;
            match stage {
                Stage::Waiting => self.decide(now, pool, Input::Cancel(id)),
                Stage::Granted { .. } => {
                    self.requests.remove(id);
                    self.decide(
                        now,
                        pool,
                        Input::Completed {
                            id,
                            service: AT_ESTIMATE,
                        },
                    );
                }
            }
        }
        self.requests.contexts.remove(&epoch);
    }
}
