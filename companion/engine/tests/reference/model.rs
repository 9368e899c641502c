//! The engine's rules once more, slow and obvious: one list of requests, and everything else counted from it, or
//! done one step at a time.
//!
//! It leaves to the engine what is left to chance: which of the least loaded endpoints, and how much jitter. It
//! reads those from the effect in question, having checked that they are allowed. It learns nothing, so prompts
//! come counted and outputs expected. Of a policy it takes on what doesn't build the tree anew.

#![expect(unreachable_pub, reason = "a module of one test")]

mod arriving;
mod budgets;
mod ending;
mod going;
mod limits;
mod looking;
mod ring;
mod said;
mod scores;
mod servers;
mod tags;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use penstock_engine::input::{Band, EndpointState};
use penstock_engine::policy::{BandMode, Class, CostUnit, Discipline, Gate};
use penstock_engine::{Budget, Effect, EndpointId, Input, Instant, Outcome, Policy, RequestId};

use ring::{Ring, Taken};
pub use said::Said;
use scores::Seen;
use tags::Tags;

const BANDS: [Band; 3] = [Band::Critical, Band::Default, Band::Sheddable];

/// Where classes share: a band and, if every model has its own, a model.
type Tree = (Band, Box<str>);
/// Where flows share: a tree and a class.
type Leaf = (Tree, usize);

#[derive(Clone, Debug)]
pub struct Item {
    pub id: RequestId,
    pub band: Band,
    /// The fairness identity.
    pub name: Box<str>,
    pub model: Box<str>,
    /// What its server runs.
    target: Box<str>,
    class: usize,
    pub arrived: Instant,
    pub sequence: u64,
    starts: i128,
    prompt: u64,
    cached: u64,
    output: u64,
    bytes: u64,
    strict: u8,
    jump: Duration,
    ttft_target: Option<Duration>,
    deadline: Option<Instant>,
    eligible: Option<BTreeSet<EndpointId>>,
    prefix: Box<[u64]>,
    suspended: bool,
    pub running: Option<Running>,
}

#[derive(Clone, Copy, Debug)]
pub struct Running {
    endpoint: EndpointId,
    cost: u64,
    weight: f64,
    unit: CostUnit,
    outcome: Outcome,
    /// Its cost, once that is settled.
    settled: Option<u64>,
    /// Tokens of its stock, and of these what is prefilled.
    tokens: u64,
    output: u64,
    prefill: u64,
    /// In the rings of bands, models, classes and flows.
    taken: [Taken; 4],
}

/// A listed endpoint.
#[derive(Clone, Copy, Debug)]
struct Server {
    state: EndpointState,
    /// Healthy, and not marked down.
    ready: bool,
    /// It starts slowly when it is ready again.
    slowly: bool,
    /// Requests at a time, and served since it was so many.
    ramp: Option<(u64, u64)>,
    foreign: u64,
    budget: Option<Budget>,
    down: Option<Instant>,
    /// Back from that, and nothing was served there since.
    probed: bool,
    /// How often that was since something was served there.
    times: u32,
}

/// What one flow used of one model.
#[derive(Clone, Debug)]
struct Used {
    leaf: Leaf,
    name: Box<str>,
    model: Box<str>,
    bucket: i64,
    cost: u64,
}

#[derive(Clone)]
pub struct Model {
    pub policy: Policy,
    pub now: Instant,
    ready: bool,
    draining: bool,
    pub items: Vec<Item>,
    classes: Vec<Class>,
    band_ring: Option<Ring<Band>>,
    model_rings: BTreeMap<Band, Ring<Box<str>>>,
    class_rings: BTreeMap<Tree, Ring<usize>>,
    flow_rings: BTreeMap<Leaf, Ring<Box<str>>>,
    tags: BTreeMap<Leaf, Tags>,
    used: Vec<Used>,
    /// Flows that the engine remembers, and the order in which their identities are preempted.
    nodes: BTreeSet<(Leaf, Box<str>)>,
    turns: BTreeMap<(Band, Box<str>), (u64, u64)>,
    endpoints: BTreeMap<EndpointId, Server>,
    seen: Seen,
    /// What failed where, of those that were ready and not probed, since they were last marked down.
    failed: Vec<(EndpointId, RequestId, Instant)>,
    first_listed: Option<Instant>,
    ready_since: Option<Instant>,
    /// Of the bucket of `max_rate`, in 1e-18, as of when.
    rate: (u128, Instant),
    outages: i128,
    out_since: Option<Instant>,
    sequence: u64,
    born: u64,
    preemptions: u64,
    pub arrivals: u64,
    pub outcomes: BTreeMap<(Band, Outcome), u64>,
    saturated: u64,
    completions: Vec<u64>,
    /// Endpoints where only who doesn't fit there yet goes.
    aside: BTreeSet<EndpointId>,
    /// Classes of which nothing may go in this step.
    held: Vec<Box<str>>,
}

impl Model {
    pub fn new(policy: Policy, now: Instant) -> Self {
        let sets = policy.classes.iter();
        let classes: Vec<Class> = sets.flat_map(|set| set.classes.iter().cloned()).collect();
        let mut model = Self {
            now,
            ready: false,
            draining: false,
            items: Vec::new(),
            classes,
            band_ring: None,
            model_rings: BTreeMap::new(),
            class_rings: BTreeMap::new(),
            flow_rings: BTreeMap::new(),
            tags: BTreeMap::new(),
            used: Vec::new(),
            nodes: BTreeSet::new(),
            turns: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            seen: Seen::default(),
            failed: Vec::new(),
            first_listed: None,
            ready_since: None,
            rate: (0, now),
            outages: 0,
            out_since: Some(now),
            sequence: 0,
            born: 0,
            preemptions: 0,
            arrivals: 0,
            outcomes: BTreeMap::new(),
            saturated: 0,
            completions: Vec::new(),
            aside: BTreeSet::new(),
            held: Vec::new(),
            policy,
        };
        if let BandMode::Weighted(_) = model.policy.bands.mode {
            let bands = BANDS.map(|band| (band, model.band_quantum(band)));
            model.band_ring = Some(Ring::fixed(bands));
        }
        model.rate.0 = model.rate_capacity();
        model
    }

    pub fn step(&mut self, now: Instant, input: Option<Input>, said: &mut Said) {
        let now = now.max(self.now);
        if self.is_saturated() {
            self.saturated += now.as_nanos() - self.now.as_nanos();
        }
        let was_saturated = self.is_saturated();
        self.now = now;
        self.forget_used();
        self.bring_back();
        let manual = |model: &Self| model.policy.gate == Gate::Manual;
        if !manual(self) || input.is_none() {
            self.expire(said);
        }
        if let Some(input) = input {
            self.take(input, was_saturated, said);
            if !manual(self) {
                self.expire(said);
            }
        }
        if !manual(self) {
            self.dispatch_all(said);
        }
    }

    fn dispatch_all(&mut self, said: &mut Said) {
        if self.by_budget() {
            self.dispatch_fitting(said);
            return;
        }
        while self.may_dispatch() && self.has_rate() {
            let Some(id) = self.next() else { break };
            self.dispatch(id, said);
        }
    }

    fn take(&mut self, input: Input, was_saturated: bool, said: &mut Said) {
        match input {
            Input::Register(request) => self.register(request, said),
            Input::Resume(request) => {
                if let Some(item) = self.arrive(request, said) {
                    self.wait(item);
                }
            }
            Input::Adopt { request, endpoint } => self.adopt(request, endpoint),
            Input::Cancel(id) => {
                if let Some(item) = self.find(id).filter(|item| item.running.is_none()).cloned() {
                    self.leave(id);
                    self.count(item.band, Outcome::Cancelled);
                    said.expect(Effect::Cancelled {
                        id,
                        waited: self.now.since(item.arrived),
                    });
                }
            }
            Input::ModelRemoved(id) => {
                if self.find(id).is_some_and(|item| item.running.is_none()) {
                    self.refuse_waiting(id, Outcome::RejectedInvalid, said);
                }
            }
            Input::Amend(amended) => {
                self.amend(&amended, said);
                self.notice();
            }
            Input::Relist(relisted) => {
                for id in &relisted.removed {
                    self.endpoints.remove(id);
                    self.lose();
                    self.failed.retain(|failed| failed.0 != *id);
                }
                for (id, state) in &relisted.listed {
                    self.list(*id, *state);
                    self.lose();
                }
                self.note_outage();
                for amended in &relisted.amended {
                    self.amend(amended, said);
                }
                self.notice();
            }
            Input::Sent { id, endpoint } => {
                let runs = self
                    .running_mut(id)
                    .filter(|running| running.endpoint != endpoint);
                if let Some(running) = runs {
                    running.endpoint = endpoint;
                    self.computes(id, endpoint);
                }
                self.notice();
            }
            Input::Completed { id, service } => self.complete(id, service, was_saturated, said),
            Input::Settle { id, service } if self.policy.gate == Gate::Manual => {
                self.complete(id, service, was_saturated, said);
            }
            Input::Settle { id, service } => self.settle(id, service),
            Input::Dispatch { blocked } => {
                if self.policy.gate == Gate::Manual && self.ready {
                    self.held = blocked;
                    if let Some(id) = self.next() {
                        self.dispatch(id, said);
                    }
                    self.held.clear();
                }
            }
            Input::Requeue(id) => self.requeue(id, said),
            Input::Endpoint { id, state } => {
                self.list(id, state);
                self.lose();
                self.note_outage();
            }
            Input::EndpointRemoved(id) => {
                self.endpoints.remove(&id);
                self.lose();
                self.failed.retain(|failed| failed.0 != id);
                self.note_outage();
            }
            Input::Failed { id, endpoint } => {
                self.fail(id, endpoint);
                self.lose();
            }
            Input::ServerStats { id, stats } => {
                if self.endpoints.contains_key(&id) {
                    self.seen.stats.insert(id, stats);
                }
            }
            Input::Suspend(id) => self.suspend(id, true),
            Input::Continue(id) => self.suspend(id, false),
            Input::Load { id, running } => {
                let stock = self.runs_at(id).count() as u64;
                if let Some(server) = self.endpoints.get_mut(&id) {
                    server.foreign = running.unwrap_or(0).saturating_sub(stock);
                }
            }
            Input::Policy(policy) => {
                self.fill_rate();
                let had_rate = self.policy.queue.max_rate.is_some();
                self.set_free();
                self.policy = *policy;
                let capacity = self.rate_capacity();
                self.rate.0 = if had_rate {
                    self.rate.0.min(capacity)
                } else {
                    capacity
                };
                self.end_slow_starts();
                self.notice();
            }
            Input::Drain(draining) => {
                self.draining = draining;
                let mut waiting: Vec<Item> = self.waiting().cloned().collect();
                waiting.sort_by_key(|item| (item.arrived, item.sequence));
                for item in waiting.into_iter().filter(|_| draining) {
                    self.refuse_waiting(item.id, Outcome::ShuttingDown, said);
                }
            }
            Input::Budget { id, budget } => {
                if let Some(server) = self.endpoints.get_mut(&id) {
                    server.budget = budget;
                }
                self.end_slow_starts();
            }
            Input::PastUsage(past) => self.take_used(past),
            Input::Ready => {
                self.ready = true;
                self.ready_since.get_or_insert(self.now);
            }
        }
    }

    fn discipline(&self) -> Discipline {
        self.policy.flows.discipline
    }
}
