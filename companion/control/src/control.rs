//! The control itself: one event in, everything that follows from it done, outputs to take.
//!
//! Whatever a filter says becomes an engine's input here; what an engine decides is in `decisions`. What a
//! Hello means for the requests on both sides is in `resync`.

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use penstock_engine::input::{Input, Service, Usage};
use penstock_engine::{Instant, Outcome};
use penstock_wire as wire;
use wire::command::Kind;
use wire::filter_frame::Event as Said;

use crate::answer;
use crate::convert;
use crate::decisions::reject;
use crate::event::{ConnId, Event, Labels, Observation, Output};
use crate::pool::Pool;
use crate::register::{Entry, Requests, Stage};
use crate::session::{Epoch, Session, Stage as SessionStage, Violation};
use crate::settings::Settings;
use crate::status::{PoolStatus, SessionStatus, Status};
use crate::timers::{Timer, Timers};

/// Sessions, requests and engines of one companion.
#[derive(Debug)]
pub struct Control {
    pub(crate) settings: Settings,
    pub(crate) pools: Vec<Pool>,
    pub(crate) requests: Requests,
    pub(crate) sessions: HashMap<ConnId, Session>,
    pub(crate) timers: Timers,
    no_pool: Arc<str>,
    outputs: VecDeque<Output>,
    dirty: VecDeque<ConnId>,
    started: bool,
    draining: bool,
}

impl Control {
    /// A control without sessions; dispatch begins when those it expects have said Hello.
    #[must_use]
    pub fn new(settings: Settings, now: Instant) -> Self {
        let pools = (0..)
            .zip(&settings.pools)
            .map(|(number, pool)| Pool::new(pool, settings.seed.wrapping_add(number), now))
            .collect();
        let mut timers = Timers::default();
        timers.set(now.after(settings.startup_wait), Timer::Startup);
        Self {
            pools,
            timers,
            settings,
            requests: Requests::default(),
            sessions: HashMap::new(),
            no_pool: "none".into(),
            outputs: VecDeque::new(),
            dirty: VecDeque::new(),
            started: false,
            draining: false,
        }
    }

    /// Takes one event and does all that follows from it.
    pub fn handle(&mut self, now: Instant, event: Event) {
        match event {
            Event::Opened(conn) => {
                self.sessions.insert(conn, Session::new(now));
                self.timers
                    .set(now.after(wire::limits::SILENCE), Timer::Silence(conn));
            }
            Event::Frame(conn, frame) => self.frame(now, conn, *frame),
            Event::Closed(conn) => self.closed(now, conn, "the stream ended"),
            Event::HandOver => {}
            Event::EndpointReady { pool, address, ready } => self.endpoint_ready(now, pool, &address, ready),
            Event::Drain(on) => {
                self.draining = on;
                for pool in 0..self.pools.len() {
                    self.decide(now, pool, Input::Drain(on));
                }
            }
        }
    }

    /// When [`Control::handle_timeout`] is due; `None`: never, as things stand.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.pools
            .iter()
            .filter_map(|pool| pool.engine.poll_timeout())
            .chain(self.timers.next())
            .min()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(timer) = self.timers.pop(now) {
            match timer {
                Timer::Startup => self.start(now),
                Timer::Silence(conn) => self.silence(now, conn),
                Timer::Grace(epoch) => self.grace(now, epoch),
            }
        }
        for pool in 0..self.pools.len() {
            self.pools[pool].engine.handle_timeout(now);
            self.effects(now, pool);
        }
    }

    /// The next thing to do for the shell. Frames come last, so that all that was decided in between shares one.
    pub fn poll_output(&mut self) -> Option<Output> {
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        while let Some(conn) = self.dirty.pop_front() {
            if let Some(frame) = self.sessions.get_mut(&conn).and_then(Session::frame) {
                return Some(Output::Send(conn, Box::new(frame)));
            }
        }
        None
    }

    /// Nothing waits and nothing runs.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.requests.len() == 0
    }

    /// A look at the whole.
    #[must_use]
    pub fn status(&self, now: Instant) -> Status {
        let mut sessions: Vec<SessionStatus> = self
            .requests
            .contexts
            .iter()
            .map(|(epoch, context)| {
                let waiting = context
                    .requests
                    .values()
                    .filter(|id| {
                        matches!(
                            self.requests.get(**id),
                            Some(Entry {
                                stage: Stage::Waiting,
                                ..
                            })
                        )
                    })
                    .count();
                let seen = context
                    .conn
                    .and_then(|conn| self.sessions.get(&conn))
                    .map(|it| it.last_seen);
                SessionStatus {
                    id: format!("{:016x}", epoch.0 >> 64),
                    node: context.node.clone(),
                    open: context.conn.is_some(),
                    waiting,
                    running: context.requests.len() - waiting,
                    last_seen: now.since(seen.or(context.orphaned).unwrap_or(now)),
                }
            })
            .collect();
        sessions.sort_by(|a, b| (&a.node, &a.id).cmp(&(&b.node, &b.id)));
        let pools = self
            .pools
            .iter()
            .map(|pool| PoolStatus {
                name: pool.name.clone(),
                addresses: pool.addresses(),
                public_flows: pool.public_flows.clone(),
                discipline: pool.policy.flows.discipline,
                snapshot: pool.engine.snapshot(),
            })
            .collect();
        Status {
            sessions,
            pools,
            started: self.started,
            draining: self.draining,
            requests: self.requests.len(),
        }
    }

    fn frame(&mut self, now: Instant, conn: ConnId, frame: wire::FilterFrame) {
        let Some(session) = self.sessions.get_mut(&conn) else {
            return;
        };
        if matches!(session.stage, SessionStage::Over) {
            return;
        }
        if let Err(violation) = session.number(now, frame.seq) {
            return self.violated(now, conn, violation);
        }
        let Some(said) = frame.event else {
            return self.violated(now, conn, Violation::Empty);
        };
        match (&session.stage, said) {
            (SessionStage::Greeting(_), Said::Hello(hello)) => self.hello(now, conn, hello),
            (SessionStage::Greeting(_), _) => self.violated(now, conn, Violation::NoHello),
            (SessionStage::Established(_), Said::Hello(_)) => self.violated(now, conn, Violation::Parts),
            (SessionStage::Established(epoch), said) => {
                let epoch = *epoch;
                self.said(now, conn, epoch, said);
            }
            (SessionStage::Over, _) => {}
        }
    }

    fn said(&mut self, now: Instant, conn: ConnId, epoch: Epoch, said: Said) {
        let acknowledge = match said {
            Said::Hello(_) => false,
            Said::Register(register) => {
                self.register(now, epoch, &register, Arrival::New);
                false
            }
            Said::Cancel(cancel) => {
                self.cancel(now, epoch, cancel.sequence);
                false
            }
            Said::Started(started) => {
                self.sent(now, epoch, started.sequence, &started.endpoint);
                false
            }
            Said::Completed(completed) => {
                self.completed(now, epoch, &completed);
                false
            }
            Said::Refused(refused) => {
                self.refused(now, epoch, &refused);
                false
            }
            Said::Beat(_) => {
                self.release_absent(now, epoch);
                true
            }
            Said::Bye(_) => {
                self.end(now, conn, "bye");
                self.release(now, epoch);
                false
            }
        };
        if let Some(session) = self.sessions.get_mut(&conn)
            && (acknowledge || session.owes_ack())
            && session.acknowledge()
        {
            self.dirty.push_back(conn);
        }
    }

    /// A request asks to go.
    pub(crate) fn register(&mut self, now: Instant, epoch: Epoch, from: &wire::Register, how: Arrival) {
        if self.requests.find(epoch, from.sequence).is_some() {
            return;
        }
        let Some(pool) = self.pools.iter().position(|pool| pool.serves(&from.model)) else {
            return self.no_pool(epoch, from);
        };
        let is_new = matches!(how, Arrival::New);
        let (stage, runs_at) = match how {
            Arrival::New | Arrival::Waiting => (Stage::Waiting, None),
            Arrival::Running { grant, age } => {
                let address = grant.endpoints.first().map_or("", String::as_str);
                let Some(endpoint) = self.pools[pool].endpoint(address) else {
                    // It runs where nothing of ours is: nothing to count.
                    return;
                };
                let at = now.before(age);
                (Stage::Granted { grant, at }, Some(endpoint))
            }
        };
        let (flow, private) = convert::flow(&self.pools[pool].flow_key, from);
        if !private {
            self.pools[pool].show(&flow, self.settings.flows_shown);
        }
        let band = convert::band(&from.priority, &self.settings.objectives);
        let labels = Arc::new(Labels {
            pool: self.pools[pool].name.clone(),
            model: from.model.as_str().into(),
            flow: flow.as_ref().into(),
            private,
            band,
            request_id: from.request_id.as_str().into(),
        });
        let id = self.requests.name();
        let request = convert::request(id, now, from, &self.pools[pool], &flow, band);
        let arrived = request.arrived;
        self.observe(Observation::Arrived(labels.clone()));
        if convert::bad_deadline(from, &self.pools[pool]) {
            self.observe(Observation::BadDeadline(labels.clone()));
        }
        self.requests.insert(
            id,
            Entry {
                epoch,
                sequence: from.sequence,
                pool,
                labels: labels.clone(),
                arrived,
                stage,
            },
        );
        let input = match runs_at {
            Some(endpoint) => {
                let address = self.pools[pool].address(endpoint).to_owned();
                self.decided(&labels, Outcome::Dispatched, "", Duration::ZERO, &address);
                Input::Adopt { request, endpoint }
            }
            None if is_new => Input::Register(request),
            None => Input::Resume(request),
        };
        self.decide(now, pool, input);
    }

    fn no_pool(&mut self, epoch: Epoch, from: &wire::Register) {
        let labels = Arc::new(Labels {
            pool: self.no_pool.clone(),
            model: from.model.as_str().into(),
            flow: from.fairness_id.as_str().into(),
            private: from.fairness_id_private,
            band: convert::band(&from.priority, &self.settings.objectives),
            request_id: from.request_id.as_str().into(),
        });
        let answer = answer::unknown_model(&from.model);
        // Asked again, because the answer was lost, it is answered again.
        if self.requests.count(epoch, from.sequence) {
            self.observe(Observation::Arrived(labels.clone()));
            self.decided(&labels, Outcome::RejectedInvalid, answer.code, Duration::ZERO, "");
        }
        let reject = reject(
            from.sequence,
            answer,
            Outcome::RejectedInvalid,
            Duration::ZERO,
            None,
            0,
        );
        self.say(epoch, Kind::Reject(reject));
    }

    fn cancel(&mut self, now: Instant, epoch: Epoch, sequence: u64) {
        let Some(id) = self.requests.find(epoch, sequence) else {
            return;
        };
        let Some(entry) = self.requests.get(id) else {
            return;
        };
        let (pool, waiting) = (entry.pool, matches!(entry.stage, Stage::Waiting));
        if waiting {
            self.decide(now, pool, Input::Cancel(id));
        } else {
            // The grant crossed the cancel: it was never sent.
            self.requests.remove(id);
            self.decide(
                now,
                pool,
                Input::Completed {
                    id,
                    service: Service::Nothing,
                },
            );
        }
    }

    fn sent(&mut self, now: Instant, epoch: Epoch, sequence: u64, address: &str) {
        let Some(id) = self.requests.find(epoch, sequence) else {
            return;
        };
        let Some(Entry {
            pool,
            labels,
            stage: Stage::Granted { grant, .. },
            ..
        }) = self.requests.get(id)
        else {
            return;
        };
        let pool = *pool;
        let misrouted = !address.is_empty() && !grant.endpoints.iter().any(|granted| granted == address);
        if misrouted {
            let labels = labels.clone();
            self.observe(Observation::Misrouted {
                labels,
                endpoint: address.into(),
            });
        }
        if let Some(endpoint) = self.pools[pool].endpoint(address) {
            self.decide(now, pool, Input::Sent { id, endpoint });
        }
    }

    fn completed(&mut self, now: Instant, epoch: Epoch, from: &wire::Completed) {
        self.sent(now, epoch, from.sequence, &from.endpoint);
        let Some(id) = self.requests.find(epoch, from.sequence) else {
            return;
        };
        let Some(entry) = self.requests.remove(id) else {
            return;
        };
        if matches!(entry.stage, Stage::Waiting) {
            // It was granted by nobody we know of; what it waits for here is over.
            return self.decide(now, entry.pool, Input::Cancel(id));
        }
        let output_tokens = convert::output_tokens(from);
        let ttft = from.first_byte_us.and_then(|first| entry.since_arrival(first));
        let itl = match (from.first_byte_us, from.last_byte_us, output_tokens) {
            (Some(first), Some(last), Some(tokens)) if tokens > 1 && last > first => {
                Some(Duration::from_micros((last - first) / (tokens - 1)))
            }
            _ => None,
        };
        self.observe(Observation::Completed {
            labels: entry.labels.clone(),
            endpoint: from.endpoint.as_str().into(),
            status: u16::try_from(from.status).unwrap_or(0),
            ttft,
            itl,
            duration: now.since(entry.arrived),
            prompt_tokens: from.prompt_tokens,
            output_tokens,
        });
        self.decide(
            now,
            entry.pool,
            Input::Completed {
                id,
                service: convert::service(from),
            },
        );
    }

    /// The filter answered by itself.
    fn refused(&mut self, now: Instant, epoch: Epoch, from: &wire::Refused) {
        if self.requests.find(epoch, from.sequence).is_some() {
            // It leaves our queue: counted there, as cancelled, or as granted before.
            self.cancel(now, epoch, from.sequence);
            self.requests.count(epoch, from.sequence);
            return;
        }
        if !self.requests.count(epoch, from.sequence) {
            return;
        }
        let pool = match from.model.as_str() {
            "" => None,
            model => self.pools.iter().find(|pool| pool.serves(model)),
        };
        let labels = Arc::new(Labels {
            pool: pool.map_or(&self.no_pool, |pool| &pool.name).clone(),
            model: from.model.as_str().into(),
            flow: "".into(),
            private: false,
            band: penstock_engine::input::Band::Default,
            request_id: from.request_id.as_str().into(),
        });
        self.observe(Observation::Arrived(labels.clone()));
        self.observe(Observation::Refused {
            labels,
            outcome: from.outcome.as_str().into(),
            code: from.code.as_str().into(),
        });
    }

    fn endpoint_ready(&mut self, now: Instant, pool: usize, address: &str, ready: bool) {
        let Some(of) = self.pools.get_mut(pool) else {
            return;
        };
        if !of.set_ready(now, address, ready) {
            return;
        }
        let command = Kind::Endpoints(wire::Endpoints {
            pool: of.name.to_string(),
            ready: of.ready(),
            open_bound: None,
        });
        self.effects(now, pool);
        let mut open: Vec<Epoch> = self.requests.contexts.keys().copied().collect();
        open.sort_unstable();
        for epoch in open {
            self.say(epoch, command.clone());
        }
    }

    /// Dispatch begins.
    pub(crate) fn start(&mut self, now: Instant) {
        if self.started {
            return;
        }
        self.started = true;
        for pool in 0..self.pools.len() {
            self.decide(now, pool, Input::Ready);
        }
    }

    /// Tells an engine, and does what it decides.
    pub(crate) fn decide(&mut self, now: Instant, pool: usize, input: Input) {
        self.pools[pool].engine.handle(now, input);
        self.effects(now, pool);
    }

    /// Queues a command for the stream that speaks for this context; without one it is lost, and resync mends that.
    pub(crate) fn say(&mut self, epoch: Epoch, kind: Kind) {
        let Some(conn) = self.requests.contexts.get(&epoch).and_then(|it| it.conn) else {
            return;
        };
        if self
            .sessions
            .get_mut(&conn)
            .is_some_and(|session| session.push(kind))
        {
            self.dirty.push_back(conn);
        }
    }

    pub(crate) fn observe(&mut self, observation: Observation) {
        self.outputs.push_back(Output::Observe(observation));
    }

    /// Closes a stream; what it has queued goes out first.
    pub(crate) fn end(&mut self, now: Instant, conn: ConnId, why: &'static str) {
        if let Some(frame) = self.sessions.get_mut(&conn).and_then(Session::frame) {
            self.outputs.push_back(Output::Send(conn, Box::new(frame)));
        }
        self.closed(now, conn, why);
        self.outputs.push_back(Output::Close(conn, why));
    }

    fn violated(&mut self, now: Instant, conn: ConnId, violation: Violation) {
        self.end(now, conn, violation.as_str());
    }
}

/// How a request comes in.
pub(crate) enum Arrival {
    /// It has just arrived.
    New,
    /// It waited at a filter, for another companion or over another stream.
    Waiting,
    /// It runs already, granted by another companion.
    Running {
        /// As that companion must have said it.
        grant: Box<wire::Grant>,
        /// Since it was granted.
        age: Duration,
    },
}

/// Served, and nobody counted.
pub(crate) const AT_ESTIMATE: Service = Service::Served(Usage {
    prompt: None,
    cached: None,
    output: None,
});
