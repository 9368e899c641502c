//! The control itself: one event in, everything that follows from it done, outputs to take.
//!
//! What a filter says becomes an engine's input: a request's arrival in `intake`, its way to its end in `course`, its
//! second arrival in `requeue`. What the engines decide is in `decisions`. What a Hello means for the requests on both
//! sides is in `resync`, and what the end of a stream means in `orphans`.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use penstock_engine::Instant;
use penstock_engine::input::{Input, ServerStats};
use penstock_wire as wire;
use wire::command::Kind;
use wire::filter_frame::Event as Said;

use crate::autopilot::Scraped;
use crate::convert;
use crate::envoys::Envoys;
use crate::event::{ConnId, Event, Observation, Output};
use crate::intake::Arrival;
use crate::limits::{SLEPT_MIN, STREAMS_MAX};
use crate::pool::Pool;
use crate::register::{Name, Requests};
use crate::session::{Epoch, Session, Stage as SessionStage, Violation};
use crate::settings::Settings;
use crate::timers::{Timer, Timers};

/// Sessions, requests and engines of one companion.
#[derive(Debug)]
pub struct Control {
    pub(crate) settings: Settings,
    /// Those of the settings, in their order, and then those that are retired.
    pub(crate) pools: Vec<Pool>,
    /// How many are of the settings.
    pub(crate) in_force: usize,
    /// How many there have been: each has a seed of its own.
    pub(crate) pools_made: u64,
    pub(crate) requests: Requests,
    pub(crate) sessions: HashMap<ConnId, Session>,
    pub(crate) envoys: Envoys,
    pub(crate) timers: Timers,
    /// When it was last told anything.
    awake: Instant,
    /// The pool's name of a request that has none.
    pub(crate) no_pool: Arc<str>,
    pub(crate) outputs: VecDeque<Output>,
    dirty: VecDeque<ConnId>,
    pub(crate) started: bool,
    /// All expected sessions were open at the same time once.
    pub(crate) gathered: bool,
    pub(crate) draining: bool,
    /// Another companion has taken over.
    pub(crate) handed_over: bool,
}

impl Control {
    /// A control without sessions; dispatch begins when those it expects have said Hello.
    #[must_use]
    pub fn new(settings: Settings, now: Instant) -> Self {
        let pools: Vec<Pool> = (0..)
            .zip(&settings.pools)
            .map(|(number, pool)| Pool::new(pool, settings.seed.wrapping_add(number), now))
            .collect();
        let listed: Vec<_> = settings.pools.iter().map(|it| it.endpoints.clone()).collect();
        let mut timers = Timers::default();
        timers.set(now.after(settings.startup_wait), Timer::Startup);
        let mut control = Self {
            in_force: pools.len(),
            pools_made: u64::try_from(pools.len()).unwrap_or(u64::MAX),
            pools,
            timers,
            awake: now,
            settings,
            requests: Requests::default(),
            sessions: HashMap::new(),
            envoys: Envoys::default(),
            no_pool: "none".into(),
            outputs: VecDeque::new(),
            dirty: VecDeque::new(),
            started: false,
            gathered: false,
            draining: false,
            handed_over: false,
        };
        for (pool, endpoints) in listed.iter().enumerate() {
            control.list(now, pool, endpoints);
        }
        control.tell_endpoints(None);
        control
    }

    /// Takes one event and does all that follows from it.
    pub fn handle(&mut self, now: Instant, event: Event) {
        if self.handed_over {
            // Whatever it is, it is the other companion's.
            if let Event::Opened(conn) = event {
                self.outputs.push_back(Output::Close(conn, "this companion ends"));
            }
            return;
        }
        self.wake(now);
        match event {
            Event::Opened(conn) if self.sessions.len() >= STREAMS_MAX => {
                self.outputs.push_back(Output::Close(
                    conn,
                    "there are more streams than a companion may have",
                ));
            }
            Event::Opened(conn) => {
                self.sessions.insert(conn, Session::new(now));
                self.timers
                    .set(now.after(wire::limits::SILENCE), Timer::Silence(conn));
            }
            Event::Frame(conn, frame) => self.frame(now, conn, frame),
            Event::Closed(conn) => self.closed(now, conn, "the stream ended"),
            Event::HandOver => self.hand_over(),
            Event::EndpointReady { pool, address, ready } => self.endpoint_ready(now, &pool, &address, ready),
            Event::Scraped {
                pool,
                address,
                scraped,
                adapters,
            } => self.scraped(now, &pool, &address, scraped, adapters),
            Event::Settings(settings) => self.reload(now, *settings),
            Event::Endpoints { pool, endpoints } => self.relist(now, &pool, &endpoints),
            Event::Used { pool, past } => {
                if let Some(pool) = self.pool_named(&pool) {
                    self.decide(now, pool, Input::PastUsage(past));
                }
            }
            Event::Drain(on) => {
                self.draining = on;
                for pool in 0..self.pools.len() {
                    self.decide(now, pool, Input::Drain(on));
                }
            }
        }
        self.look();
    }

    /// When [`Control::handle_timeout`] is due; `None`: never, as things stand.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.handed_over {
            return None;
        }
        self.pools
            .iter()
            .flat_map(|pool| [pool.engine.poll_timeout(), pool.autopilot.poll_timeout()])
            .flatten()
            .chain(self.timers.next())
            .min()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.handed_over {
            return;
        }
        self.wake(now);
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
            self.steer(now, pool);
        }
        self.look();
    }

    /// Nobody was heard while nothing ran here, so nobody was silent: what is said may wait in the inbox.
    fn wake(&mut self, now: Instant) {
        let awake = self.awake;
        self.awake = awake.max(now);
        if self.timers.next().is_some_and(|due| now.since(due) >= SLEPT_MIN) {
            self.slept(now.since(awake));
        }
    }

    /// Lets a pool's autopilot learn, and tells its engine what follows.
    fn steer(&mut self, now: Instant, pool: usize) {
        let of = &mut self.pools[pool];
        if of.autopilot.poll_timeout().is_none_or(|due| due > now) {
            return;
        }
        let backlog = of.engine.waiting();
        of.autopilot.handle_timeout(now, backlog);
        let (name, learned) = (of.name.clone(), of.autopilot.take_kept());
        for (variant, kept) in learned {
            let pool = name.clone();
            self.observe(Observation::Learned { pool, variant, kept });
        }
        let mut is_new = false;
        while let Some(input) = self.pools[pool].autopilot.poll_input() {
            self.decide(now, pool, input);
            is_new = true;
        }
        if is_new {
            // What the filters may have in flight by themselves follows from it.
            self.tell_endpoints(None);
        }
    }

    /// An endpoint may be marked down, or back, with anything that happens, and what was dropped from the settings may
    /// have seen its last request end.
    fn look(&mut self) {
        self.sweep();
        if !self.pools.iter().all(Pool::is_as_seen) {
            self.tell_endpoints(None);
        }
    }

    /// The next thing to do for the shell. Frames come last, so that all that was decided in between shares one.
    pub fn poll_output(&mut self) -> Option<Output> {
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        while let Some(conn) = self.dirty.pop_front() {
            if let Some(frame) = self.next_frame(conn) {
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

    /// A frame stays where it is until it is done with: it is large, and moved about it costs more than it says.
    fn frame(&mut self, now: Instant, conn: ConnId, mut frame: Box<wire::FilterFrame>) {
        let Some(session) = self.sessions.get_mut(&conn) else {
            return;
        };
        if let Err(violation) = session.number(now, frame.seq, frame.ack) {
            return self.violated(now, conn, violation);
        }
        let Some(said) = &mut frame.event else {
            return self.violated(now, conn, Violation::Empty);
        };
        match (&session.stage, said) {
            (SessionStage::Greeting(_), Said::Hello(hello)) => {
                self.hello(now, conn, core::mem::take(hello));
            }
            (SessionStage::Greeting(_), _) => self.violated(now, conn, Violation::NoHello),
            (SessionStage::Established(_), Said::Hello(_)) => self.violated(now, conn, Violation::Parts),
            (SessionStage::Established(epoch), said) => {
                let epoch = *epoch;
                if let Some(context) = self.requests.contexts.get_mut(&epoch) {
                    context.counted.acknowledged(frame.ack);
                }
                self.said(now, conn, epoch, said);
            }
        }
    }

    fn said(&mut self, now: Instant, conn: ConnId, epoch: Epoch, said: &Said) {
        let named = |sequence| Name { epoch, sequence };
        let mut acknowledge = false;
        match said {
            Said::Hello(_) => {}
            Said::Register(register) => self.register(now, epoch, register, Arrival::New),
            Said::Cancel(cancel) => self.cancel(now, named(cancel.sequence)),
            Said::Started(started) => self.begun(now, named(started.sequence), started),
            Said::Completed(completed) => self.completed(now, named(completed.sequence), completed),
            Said::Refused(refused) => self.refused(now, named(refused.sequence), refused),
            Said::Heartbeat(_) => {
                self.release_absent(now, epoch);
                acknowledge = true;
            }
            Said::Bye(_) => {
                self.release(now, epoch);
                self.end(now, conn, "bye");
            }
        }
        if let Some(session) = self.sessions.get_mut(&conn)
            && (acknowledge || session.owes_ack())
            && session.acknowledge()
        {
            self.dirty.push_back(conn);
        }
    }

    fn endpoint_ready(&mut self, now: Instant, pool: &str, address: &str, ready: bool) {
        let Some(pool) = self.pool_named(pool) else {
            return;
        };
        if self.pools[pool].set_ready(now, address, ready) {
            self.effects(now, pool);
            self.tell_endpoints(None);
        }
    }

    /// The index of a pool of the configuration in force.
    pub(crate) fn pool_named(&self, name: &str) -> Option<usize> {
        self.pools[..self.in_force]
            .iter()
            .position(|pool| &*pool.name == name)
    }

    /// The first pool of the configuration in force that serves the model.
    pub(crate) fn pool_of(&self, model: &str) -> Option<usize> {
        self.pools[..self.in_force]
            .iter()
            .position(|pool| pool.serves(model))
    }

    fn scraped(
        &mut self,
        now: Instant,
        pool: &str,
        address: &str,
        scraped: Option<Scraped>,
        adapters: Option<Box<[Box<str>]>>,
    ) {
        let Some(pool) = self.pool_named(pool) else {
            return;
        };
        let Some(id) = self.pools[pool].take_scraped(now, address, scraped) else {
            return;
        };
        let stats = ServerStats {
            waiting: scraped.and_then(|it| it.waiting),
            kv_used: scraped.and_then(|it| it.kv_used),
            adapters,
        };
        self.decide(now, pool, Input::ServerStats { id, stats });
        let running = scraped.and_then(|it| it.running);
        self.decide(now, pool, Input::Load { id, running });
    }

    /// Tells every session of the endpoints where that has changed, and `newcomer` in any case.
    pub(crate) fn tell_endpoints(&mut self, newcomer: Option<Epoch>) {
        for pool in 0..self.pools.len() {
            let changed = self.pools[pool].look(self.envoys.len());
            for (endpoint, down) in self.pools[pool].take_marked() {
                let of = &self.pools[pool];
                let (pool, endpoint) = (of.name.clone(), of.address(endpoint).into());
                self.observe(if down {
                    Observation::EndpointDown { pool, endpoint }
                } else {
                    Observation::EndpointBack { pool, endpoint }
                });
            }
            let command = || Kind::Endpoints(self.pools[pool].endpoints());
            if changed && pool < self.in_force {
                let command = command();
                for epoch in self.open_epochs() {
                    self.say(epoch, command.clone());
                }
            } else if let Some(newcomer) = newcomer.filter(|_| !changed && pool < self.in_force) {
                let command = command();
                self.say(newcomer, command);
            }
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
        let of = &mut self.pools[pool];
        let adopted = match &input {
            // Where it has been it isn't any more, whatever comes after.
            Input::Requeue(id) | Input::Completed { id, .. } => {
                of.autopilot.dropped(now, *id);
                None
            }
            Input::Sent { id, endpoint } => {
                of.autopilot.moved(now, *id, *endpoint);
                None
            }
            Input::Adopt { request, endpoint } => Some((request.id, *endpoint)),
            Input::Register(_)
            | Input::Resume(_)
            | Input::Cancel(_)
            | Input::Settle { .. }
            | Input::ModelRemoved(_)
            | Input::Amend(_)
            | Input::Relist(_)
            | Input::Dispatch { .. }
            | Input::Failed { .. }
            | Input::Suspend(_)
            | Input::Continue(_)
            | Input::Endpoint { .. }
            | Input::EndpointRemoved(_)
            | Input::Load { .. }
            | Input::ServerStats { .. }
            | Input::PastUsage(_)
            | Input::Budget { .. }
            | Input::Policy(_)
            | Input::Drain(_)
            | Input::Ready => None,
        };
        of.engine.handle(now, input);
        if let Some((id, endpoint)) = adopted
            && let Some(expected) = of.engine.expected(id)
        {
            of.autopilot
                .adopted(now, id, convert::granted(endpoint, &expected));
        }
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
        if let Some(frame) = self.next_frame(conn) {
            self.outputs.push_back(Output::Send(conn, Box::new(frame)));
        }
        self.closed(now, conn, why);
        self.outputs.push_back(Output::Close(conn, why));
    }

    fn next_frame(&mut self, conn: ConnId) -> Option<wire::CompanionFrame> {
        let session = self.sessions.get_mut(&conn)?;
        let frame = session.frame()?;
        if let SessionStage::Established(epoch) = session.stage
            && let Some(context) = self.requests.contexts.get_mut(&epoch)
            && context.conn == Some(conn)
        {
            context.counted.sent(frame.seq);
        }
        Some(frame)
    }

    fn violated(&mut self, now: Instant, conn: ConnId, violation: Violation) {
        self.end(now, conn, violation.as_str());
    }
}
