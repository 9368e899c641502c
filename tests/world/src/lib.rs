//! A world in virtual time: clients, Envoys with filter cores, a network, one companion or several with a lease store, model
//! servers, and faults. One seed determines everything in the world, so every failure can be reproduced.
//!
//! The filters, the control and the engines are the real ones. Everything else is simulated with as little detail as
//! the invariants need. `invariants` checks them: every request ends exactly once; no request is granted twice or
//! after its end; no server exceeds its bound, except for adopted requests; each flow keeps its order; and no state is
//! left over when the world is idle. `budgets` keeps accounts of what flows use, and compares them with the engines'.

mod budgets;
mod clients;
mod companion;
mod envoy;
mod event;
mod event_queue;
mod faults;
mod headers;
mod hello_groups;
mod http;
mod invariants;
mod lease_store;
mod network;
mod partitions;
mod pushback;
mod reloads;
mod report;
mod rng;
mod scenario;
mod servers;
mod time;
mod waits;

use std::collections::{BTreeMap, VecDeque};

use self::clients::Client;
use self::companion::Companion;
use self::envoy::{Envoy, Root};
use self::event::SimEvent;
use self::event_queue::EventQueue;
use self::http::HttpStream;
use self::lease_store::LeaseStore;
use self::network::Stream;
use self::partitions::Cuts;
use self::reloads::Overrides;
pub use self::report::{Failure, Summary};
use self::rng::Rng;
use self::scenario::Scenario;
use self::servers::{Job, Mode, Server};
use self::time::{Nanos, SECOND};
use self::waits::Waits;

/// Lines of a trace that are kept.
const TRACE_LINES_MAX: usize = 4_000;
/// The world's start. Far enough from zero for simulated clocks to jump back.
const START: Nanos = 1_000 * SECOND;
/// How long a world without faults may take until every request has ended.
const DRAIN_TIME_MAX: Nanos = 600 * SECOND;
/// How long the world then runs idle before the final checks.
const QUIET_TIME: Nanos = 40 * SECOND;
/// [`QUIET_TIME`] with several companions: a new leader may wait for half a minute, and filters may then have to find it.
const QUIET_TIME_REPLICATED: Nanos = 90 * SECOND;

/// The most events without a time between them.
const EVENTS_AT_ONCE_MAX: u64 = 100_000;

#[derive(Debug)]
struct World {
    scenario: Scenario,
    rng: Rng,
    now: Nanos,
    event_queue: EventQueue,
    /// Events since time has passed.
    events_at_once: u64,
    companions: Vec<Companion>,
    /// Processes of all companions so far.
    generations: u64,
    /// Tenures of all companions so far.
    tenures: u64,
    lease_store: LeaseStore,
    cuts: Cuts,
    /// For each pool, the term and the tenure of the last leader that granted.
    granting: Vec<(u64, u64)>,
    envoys: Vec<Envoy>,
    roots: BTreeMap<u64, Root>,
    roots_created: u64,
    /// Session epochs of all root contexts, removed ones included.
    epochs: BTreeMap<u64, u128>,
    streams: BTreeMap<u64, Stream>,
    /// The root context of every stream, closed streams included.
    stream_roots: BTreeMap<u64, u64>,
    streams_opened: u64,
    http_streams: BTreeMap<u64, HttpStream>,
    http_streams_opened: u64,
    servers: Vec<Server>,
    jobs: BTreeMap<u64, Job>,
    jobs_started: u64,
    clients: Vec<Client>,
    /// UTC at the world's start, in seconds since 1970 began.
    utc_at_start: u64,
    /// For each client, the prompt and output tokens of the last answer that a server has completed.
    counted_usage: BTreeMap<u64, (u64, u64)>,
    /// Version of the current policy.
    policy_version: u64,
    /// Differences between the current configuration and the scenario's.
    overrides: Overrides,
    /// For each pool, the largest fallback bound that an Envoy ever received; `None`: no bound.
    fallback_bounds: Vec<Option<u64>>,
    /// Tenure and term of the companion whose message a root context is processing.
    message_source: Option<(u64, u64)>,
    waits: Waits,
    /// Whether any clock jumped.
    clock_jumped: bool,
    /// Sum of all backward jumps. A deadline can be late by this much.
    clock_set_back: Nanos,
    /// Whether the phase with faults is over.
    faults_over: bool,
    summary: Summary,
    traced: bool,
    trace: VecDeque<String>,
    failure: Option<String>,
}

/// Runs the world of this seed to its end.
///
/// # Errors
/// The violated invariant and the events before the violation. The trace comes from a second run of the same seed.
pub fn run(seed: u64) -> Result<Summary, Box<Failure>> {
    let first = match World::new(seed, false).run_to_end() {
        Ok(summary) => return Ok(summary),
        Err(violation) => violation,
    };
    let mut traced = World::new(seed, true);
    let violation = match traced.run_to_end() {
        Err(second) if second == first => first,
        second => format!("{first}; the second run of the same seed ended with {second:?}"),
    };
    Err(Box::new(Failure { seed, violation, trace: traced.trace.into() }))
}

impl World {
    fn new(seed: u64, traced: bool) -> Self {
        let mut rng = Rng::new(seed);
        let scenario = Scenario::draw(seed, &mut rng);
        let servers = scenario.pools.iter().enumerate().flat_map(|(index, pool)| {
            pool.servers.iter().map(move |address| Server {
                address: address.clone(),
                pool: index,
                mode: Mode::Healthy,
                ready: true,
            })
        });
        let rate = scenario.clock_rate(&mut rng);
        let companions = (0..scenario.companions).map(|_| Companion::default());
        let envoys = (0..scenario.envoys).map(|_| Envoy::new(scenario.workers));
        let waits = Waits::new(scenario.pools.len(), START);
        Self {
            servers: servers.collect(),
            envoys: envoys.collect(),
            cuts: Cuts::new(scenario.companions, scenario.envoys),
            granting: vec![(0, 0); scenario.pools.len()],
            fallback_bounds: scenario.pools.iter().map(|pool| pool.pool_bound).collect(),
            scenario,
            rng,
            now: START,
            event_queue: EventQueue::default(),
            events_at_once: 0,
            companions: companions.collect(),
            generations: 0,
            tenures: 0,
            lease_store: LeaseStore::new(rate),
            roots: BTreeMap::new(),
            roots_created: 0,
            epochs: BTreeMap::new(),
            streams: BTreeMap::new(),
            stream_roots: BTreeMap::new(),
            streams_opened: 0,
            http_streams: BTreeMap::new(),
            http_streams_opened: 0,
            jobs: BTreeMap::new(),
            jobs_started: 0,
            clients: Vec::new(),
            utc_at_start: Self::draw_utc(seed),
            counted_usage: BTreeMap::new(),
            policy_version: 1,
            overrides: Overrides::default(),
            message_source: None,
            waits,
            clock_jumped: false,
            clock_set_back: 0,
            faults_over: false,
            summary: Summary::default(),
            traced,
            trace: VecDeque::new(),
            failure: None,
        }
    }

    /// Runs all phases: with faults, without faults until every request has ended, and idle.
    fn run_to_end(&mut self) -> Result<Summary, String> {
        self.note(|| "start".to_owned());
        if self.traced {
            let scenario = format!("{:?}", self.scenario);
            self.note(|| scenario);
        }
        self.start();
        self.run_until(|world| world.clients.len() as u64 >= world.scenario.requests, None)?;
        self.repair_all();
        let drained = self.now + DRAIN_TIME_MAX + self.clock_set_back;
        self.run_until(Self::all_ended, Some(drained))?;
        let quiet_time = if self.scenario.lease > 0 { QUIET_TIME_REPLICATED } else { QUIET_TIME };
        let quiet = self.now + quiet_time + self.clock_set_back;
        self.run_until(|world| world.now >= quiet, Some(quiet))?;
        self.check_quiescence();
        for index in 0..self.companions.len() {
            self.end_accounts(index);
        }
        self.summary.worlds = 1;
        self.summary.replicated = u64::from(self.scenario.lease > 0);
        match self.failure.take() {
            Some(violation) => Err(violation),
            None => Ok(core::mem::take(&mut self.summary)),
        }
    }

    fn start(&mut self) {
        for index in 0..self.companions.len() {
            let companion_is_late = self.rng.percent(20);
            if companion_is_late {
                let wait = self.rng.exponential(3 * SECOND);
                self.event_queue.schedule(self.now + wait, SimEvent::CompanionStarts(index));
            } else {
                self.start_companion(index, false);
            }
        }
        for envoy in 0..self.envoys.len() {
            self.start_envoy(envoy);
        }
        self.event_queue.schedule(self.now, SimEvent::ClientArrives);
        self.schedule_wall_clock_jumps();
        let mean = self.scenario.fault_interval;
        let wait = self.rng.exponential(mean);
        self.event_queue.schedule(self.now + wait, SimEvent::NextFault);
    }

    /// Handles events until `finished` or until an invariant is violated. Not finishing by `deadline` is a violation.
    fn run_until(&mut self, finished: impl Fn(&Self) -> bool, deadline: Option<Nanos>) -> Result<(), String> {
        while !finished(self) {
            let Some((time, event)) = self.event_queue.pop() else {
                return Err("the event queue is empty".to_owned());
            };
            self.events_at_once = if time > self.now { 0 } else { self.events_at_once + 1 };
            self.now = time;
            if self.events_at_once > EVENTS_AT_ONCE_MAX {
                return Err(format!("time stands still: {event:?}"));
            }
            if deadline.is_some_and(|deadline| time > deadline) && !finished(self) {
                self.check_quiescence();
                let violation =
                    self.failure.take().unwrap_or_else(|| "the world doesn't become idle".to_owned());
                self.note(|| violation.clone());
                return Err(violation);
            }
            self.summary.events += 1;
            self.note_readiness();
            self.handle(event);
            if let Some(violation) = self.failure.take() {
                return Err(violation);
            }
        }
        Ok(())
    }

    fn handle(&mut self, event: SimEvent) {
        match event {
            SimEvent::ClientArrives => self.next_client(),
            SimEvent::BodyArrives(http) => self.receive_body(http),
            SimEvent::ClientLeaves(client) => self.client_leaves(client),
            SimEvent::LocalReply(http) => self.send_local_reply(http),
            SimEvent::TryNextHost(http) => self.try_next_host(http),
            SimEvent::AttemptFailed(http, error) => self.attempt_failed(http, error),
            SimEvent::AttemptPushedBack(http) => self.attempt_pushed_back(http),
            SimEvent::JobStep(job) => self.advance_job(job),
            SimEvent::ClientGivesUp(http) => self.client_gives_up(http),
            SimEvent::Tick(root, timer) => self.handle_tick_event(root, timer),
            SimEvent::AtCompanion(stream, message) => self.arrive_at_companion(stream, message),
            SimEvent::AtFilter(stream, message) => self.arrive_at_filter(stream, message),
            SimEvent::CompanionInbox(generation) => self.process_inbox(generation),
            SimEvent::CompanionTimer(generation, number) => self.handle_companion_timer(generation, number),
            SimEvent::CompanionStarts(index) => self.start_companion(index, false),
            SimEvent::CompanionExit(generation) => self.finish_companion(generation),
            SimEvent::CompanionThaws(generation) => self.thaw_companion(generation),
            SimEvent::KeepalivesFail(_)
            | SimEvent::KeepaliveFails(_)
            | SimEvent::AtStore(..)
            | SimEvent::StoreAnswers(..)
            | SimEvent::StoreView(..)
            | SimEvent::StoreConnects(_)
            | SimEvent::Claim(..)
            | SimEvent::LeaseExpires
            | SimEvent::StoreStarts
            | SimEvent::CandidateTimer(..)
            | SimEvent::CandidateInbox(_) => self.handle_among_companions(event),
            SimEvent::WallClockJumps(index, seconds) => self.jump_wall_clock(index, seconds),
            SimEvent::VmReloads(envoy, vm) => self.reload_vm(envoy as usize, vm),
            SimEvent::EnvoyRestarts(envoy) => self.start_envoy(envoy as usize),
            SimEvent::RootRetires(root) => self.retire_root(root),
            SimEvent::NextFault => self.next_fault(),
            SimEvent::Repair(repair) => self.repair(repair),
        }
    }

    /// Handles an event that occurs only with several companions.
    fn handle_among_companions(&mut self, event: SimEvent) {
        match event {
            SimEvent::KeepalivesFail(generation) => self.fail_keepalives(generation),
            SimEvent::KeepaliveFails(stream) => self.fail_keepalive(stream),
            SimEvent::AtStore(generation, sequence, request) => {
                self.handle_store_request(generation, sequence, &request);
            }
            SimEvent::StoreAnswers(generation, sequence, answer) => {
                self.handle_store_answer(generation, sequence, answer);
            }
            SimEvent::StoreView(generation, view) => self.handle_store_view(generation, view),
            SimEvent::StoreConnects(generation) => self.connect_to_store(generation),
            SimEvent::Claim(generation, from) => self.handle_claim(generation, from),
            SimEvent::LeaseExpires => self.expire_lease(),
            SimEvent::StoreStarts => self.start_store(),
            SimEvent::CandidateTimer(generation, number) => self.handle_candidate_timer(generation, number),
            SimEvent::CandidateInbox(generation) => self.process_election_inbox(generation),
            _ => {}
        }
    }

    /// Adds a line to the trace, if this run is traced.
    fn note(&mut self, line: impl FnOnce() -> String) {
        if self.traced {
            let line = line();
            if self.trace.len() >= TRACE_LINES_MAX {
                self.trace.pop_front();
            }
            let micros = (self.now - START) / 1_000;
            self.trace.push_back(format!("{:>6}.{:06} {line}", micros / 1_000_000, micros % 1_000_000));
        }
    }
}
