//! What a Hello means for the requests on both sides.
//!
//! | the filter says | not known here | queued here | granted here |
//! |---|---|---|---|
//! | waiting | enqueue at its first arrival | keep | the grant was lost: say it again, or requeue if its endpoint has gone |
//! | running | adopt | adopt | keep |
//! | absent | | cancel | release, unless its end is repeated before the next beat |
//!
//! What was refused here and still waits there is refused again; if it runs there, it is adopted, and has its outcome. What is moved is another's by now: it is left alone.

use core::time::Duration;

use hashbrown::{HashMap, HashSet};
use penstock_engine::input::{Input, RequestId};
use penstock_engine::{Instant, Outcome};
use penstock_wire as wire;
use prost::Message;
use wire::command::Kind;

use crate::control::Control;
use crate::convert;
use crate::counted::Counted;
use crate::course::AT_ESTIMATE;
use crate::envoys::Envoy;
use crate::event::{ConnId, Observation};
use crate::intake::Arrival;
use crate::limits::{CONTEXTS_MAX, NODE_CHARS_MAX};
use crate::register::{Name, Stage};
use crate::session::{Context, Epoch, Greeting, Stage as SessionStage};
use crate::trust;

/// A filter's place has been taken by a later stream of its own.
const LATER: &str = "a later stream speaks for this filter";

impl Control {
    /// Takes a part of a Hello; with the last one the session is established.
    pub(crate) fn hello(&mut self, now: Instant, conn: ConnId, mut hello: wire::Hello) {
        let bytes = hello.encoded_len();
        let Some(session) = self.sessions.get_mut(&conn) else {
            return;
        };
        match session.part(&mut hello, bytes) {
            Err(violation) => return self.end(now, conn, violation.as_str()),
            Ok(false) => return,
            Ok(true) => {}
        }
        let Some(version) = common_version(&hello) else {
            session.push(Kind::HelloAck(wire::HelloAck {
                version: 0,
                term: self.settings.term,
            }));
            return self.end(now, conn, "no version of the protocol is common");
        };
        let epoch = Epoch::new(hello.epoch_hi, hello.epoch_lo);
        match self.requests.contexts.get(&epoch) {
            Some(context) if context.stream >= hello.stream => return self.end(now, conn, LATER),
            Some(_) => {}
            None if self.requests.contexts.len() >= CONTEXTS_MAX => {
                return self.end(now, conn, "there are more sessions than a companion may have");
            }
            None => {}
        }
        let Some(session) = self.sessions.get_mut(&conn) else {
            return;
        };
        let greeting = match core::mem::replace(&mut session.stage, SessionStage::Established(epoch)) {
            SessionStage::Greeting(greeting) => greeting,
            SessionStage::Established(_) => return,
        };
        self.speak_for(now, conn, epoch, version, &hello);
        self.observe(Observation::SessionOpened {
            conn,
            node: hello.node.as_str().into(),
            waiting: greeting.waiting.len(),
            running: greeting.running.len(),
        });
        self.greet(epoch, version, &hello.policy_digest);
        self.resync(now, epoch, *greeting);
        self.begin_if_gathered(now);
    }

    /// Dispatch begins if all sessions are there that are expected.
    pub(crate) fn begin_if_gathered(&mut self, now: Instant) {
        let open = self.requests.contexts.values();
        let open = open.filter(|it| it.conn.is_some()).count();
        let expected = self.settings.sessions_expected;
        if expected.is_some_and(|expected| open >= expected) {
            self.gathered = true;
            self.start(now);
        }
    }

    /// The stream speaks for the root context from now on, and none before it.
    fn speak_for(&mut self, now: Instant, conn: ConnId, epoch: Epoch, version: u32, hello: &wire::Hello) {
        let envoy = Envoy::of(hello.envoy, epoch);
        let node: String = hello.node.chars().take(NODE_CHARS_MAX).collect();
        self.envoys.joined(envoy);
        let context = self.requests.contexts.entry(epoch).or_insert_with(|| {
            self.envoys.joined(envoy);
            Context {
                conn: None,
                stream: 0,
                version,
                node: node.as_str().into(),
                envoy,
                orphaned: None,
                requests: HashMap::new(),
                absent: Vec::new(),
                counted: Counted::default(),
            }
        });
        // Each counts once: it has just joined as what it says it is now.
        self.envoys.left(core::mem::replace(&mut context.envoy, envoy));
        context.counted.restart();
        context.stream = hello.stream;
        context.version = version;
        context.orphaned = None;
        // What it said the last time is overtaken.
        context.absent.clear();
        let older = context.conn.replace(conn);
        if let Some(older) = older {
            self.end(now, older, LATER);
        }
    }

    /// What every session is told first.
    fn greet(&mut self, epoch: Epoch, version: u32, digest: &str) {
        let term = self.settings.term;
        self.say(epoch, Kind::HelloAck(wire::HelloAck { version, term }));
        if digest != self.settings.policy.digest {
            self.say(epoch, Kind::Policy(self.settings.policy.clone()));
        }
        self.tell_endpoints(Some(epoch));
    }

    fn resync(&mut self, now: Instant, epoch: Epoch, greeting: Greeting) {
        let Greeting { waiting, running, .. } = greeting;
        let runs = running.iter().filter_map(|it| it.register.as_ref());
        let running_names: HashSet<u64> = runs.map(|it| it.sequence).collect();
        let waiting_names: HashSet<u64> = waiting.iter().map(|it| it.sequence).collect();
        // What waits isn't moved, whatever was thought of it.
        self.requests
            .forget_moved(epoch, |_, sequence, _| running_names.contains(&sequence));
        self.settle_absent(now, epoch, |sequence| {
            running_names.contains(&sequence) || waiting_names.contains(&sequence)
        });
        for running in running {
            let Some(register) = &running.register else {
                continue;
            };
            self.still_runs(now, epoch, register, &running);
        }
        for register in waiting {
            let sequence = register.sequence;
            match self.requests.find(Name { epoch, sequence }) {
                None => self.register(now, epoch, &register, Arrival::Waiting),
                Some(id) => self.still_waits(now, epoch, id),
            }
        }
    }

    /// What the filter no longer knows: queued ones left, granted ones have ended and their end may be repeated.
    fn settle_absent(&mut self, now: Instant, epoch: Epoch, is_named: impl Fn(u64) -> bool) {
        // The last first: what leaves lets nothing go that leaves as well.
        for id in self.requests.of(epoch).into_iter().rev() {
            let Some(entry) = self.requests.get(id) else {
                continue;
            };
            if is_named(entry.name.sequence) {
                continue;
            }
            if entry.waits() {
                let pool = entry.pool;
                self.decide(now, pool, Input::Cancel(id));
            } else if let Some(context) = self.requests.contexts.get_mut(&epoch) {
                context.absent.push(id);
            }
        }
    }

    fn still_runs(&mut self, now: Instant, epoch: Epoch, register: &wire::Register, running: &wire::Running) {
        let name = Name {
            epoch,
            sequence: register.sequence,
        };
        if self.requests.moved(name).is_some() {
            if let Some(origin) = &register.requeued_from {
                self.link_through(now, name, origin.into());
            }
            return;
        }
        let grant = Box::new(wire::Grant {
            sequence: register.sequence,
            endpoints: vec![running.endpoint.clone()],
            outcome: Outcome::Dispatched.as_str().to_owned(),
            ..Default::default()
        });
        let age = Duration::from_micros(running.age_us);
        let Some(id) = self.requests.find(name) else {
            return self.register(now, epoch, register, Arrival::Running { grant, age });
        };
        let Some(entry) = self.requests.get(id) else {
            return;
        };
        if entry.waits() {
            return self.adopt_waiting(now, id, register, grant, age);
        }
        // Where it runs may have been said on a stream that was lost.
        let pool = entry.pool;
        if let Some(endpoint) = self.pools[pool].endpoint(&running.endpoint) {
            self.decide(now, pool, Input::Sent { id, endpoint });
        }
    }

    /// Granted by another companion while it was queued here: it leaves the queue and runs, as the same request.
    pub(crate) fn adopt_waiting(
        &mut self,
        now: Instant,
        id: RequestId,
        register: &wire::Register,
        grant: Box<wire::Grant>,
        age: Duration,
    ) {
        let address = grant.endpoints.first().cloned().unwrap_or_default();
        let Some(entry) = self.requests.get_mut(id) else {
            return;
        };
        let (pool, labels) = (entry.pool, entry.labels.clone());
        let first_time = entry.admitted.replace(Outcome::Dispatched).is_none();
        let endpoint = self.pools[pool].endpoint(&address);
        if endpoint.is_some() {
            entry.stage = Stage::adopted(grant, &labels.pool, now.before(age));
            entry.requeues = register.requeues;
            entry.rewritten |= !register.target_model.is_empty();
        }
        let waited = now.before(age).since(entry.arrived);
        let epoch = entry.name.epoch;
        if first_time {
            let address = self.pools[pool].shared_address(&address);
            self.decided(&labels, Outcome::Dispatched, "", waited, address);
        }
        let Some(endpoint) = endpoint else {
            // It runs where nothing of ours is: it only leaves.
            return self.decide(now, pool, Input::Cancel(id));
        };
        let version = self.requests.contexts.get(&epoch).map_or(0, |it| it.version);
        let (from, _) = trust::counted(register, version, &self.settings.policy);
        let request = convert::request(id, now, &from, &self.pools[pool], &labels);
        self.decide(now, pool, Input::Adopt { request, endpoint });
    }

    fn still_waits(&mut self, now: Instant, epoch: Epoch, id: RequestId) {
        let Some(entry) = self.requests.get(id) else {
            return;
        };
        let pool = entry.pool;
        let Stage::Granted { grant, .. } = &entry.stage else {
            return self.decide(now, pool, Input::Continue(id));
        };
        let listed = |address: &String| self.pools[pool].listed(address).is_some();
        if grant.endpoints.iter().any(listed) {
            let grant = entry.whole(grant);
            self.say(epoch, Kind::Grant(grant));
        } else {
            let Some(entry) = self.requests.get_mut(id) else {
                return;
            };
            entry.stage = Stage::Waiting;
            let labels = entry.labels.clone();
            self.observe(Observation::Requeued(labels));
            self.requeue(now, pool, id);
        }
    }

    /// The repeats that follow a Hello are in: what wasn't among them is settled at its estimate.
    pub(crate) fn release_absent(&mut self, now: Instant, epoch: Epoch) {
        let Some(context) = self.requests.contexts.get_mut(&epoch) else {
            return;
        };
        for id in core::mem::take(&mut context.absent) {
            self.settle(now, id, AT_ESTIMATE);
        }
    }
}

/// The newest version that both sides speak.
fn common_version(hello: &wire::Hello) -> Option<u32> {
    let version = hello.version_max.min(wire::limits::VERSION_MAX);
    (version >= hello.version_min.max(wire::limits::VERSION_MIN)).then_some(version)
}
