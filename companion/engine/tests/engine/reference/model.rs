//! A slow and obvious implementation of the engine's rules: one list of requests; everything else is counted from it
//! or done one step at a time.
//!
//! The engine makes two random choices: among the least loaded endpoints, and the jitter of retry-after. The model
//! reads them from the engine's effects after checking that they are allowed. The model learns nothing, so prompts
//! come with a token count and outputs with an expectation. It supports changes of policy that leave
//! classes, and the trees of models, as they are.

#![expect(unreachable_pub, reason = "a module of one test")]

mod above_bounds;
mod ahead;
mod allowances;
mod arrival;
mod budgets;
mod completion;
mod dispatch;
mod drr_ring;
mod endpoints;
mod engine_effects;
mod limits;
mod policy_change;
mod queries;
mod scores;
mod virtual_time;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use penstock_engine::input::{Band, EndpointState, Relisted};
use penstock_engine::policy::{Class, CostUnit, Discipline, Gate};
use penstock_engine::{Allowance, Effect, EndpointId, Input, Instant, Outcome, Policy, RequestId};

use self::budgets::Budgets;
use self::drr_ring::{DrrRing, Taken};
pub use self::engine_effects::EngineEffects;
use self::scores::ScorerInputs;
use self::virtual_time::VirtualTime;

const BANDS: [Level; 4] = [Level::Critical, Level::Default, Level::Sheddable, Level::Demoted];

/// A band of the tree: a request's, or the one below all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Critical,
    Default,
    Sheddable,
    Demoted,
}

impl Level {
    pub const fn shown(self) -> Band {
        match self {
            Self::Critical => Band::Critical,
            Self::Default => Band::Default,
            Self::Sheddable | Self::Demoted => Band::Sheddable,
        }
    }
}

impl From<Band> for Level {
    fn from(band: Band) -> Self {
        match band {
            Band::Critical => Self::Critical,
            Band::Default => Self::Default,
            Band::Sheddable => Self::Sheddable,
        }
    }
}

/// The node that divides service among classes: a band and, with a tree per model, a model.
type Tree = (Level, Box<str>);
/// The node that divides service among flows: a tree and a class.
type Leaf = (Tree, usize);

/// A request, waiting or running.
#[derive(Clone, Debug)]
pub struct Item {
    pub id: RequestId,
    pub band: Level,
    /// The fairness identity.
    pub name: Box<str>,
    pub model: Box<str>,
    /// The model that the endpoint runs.
    target: Box<str>,
    class: usize,
    pub arrived: Instant,
    pub sequence: u64,
    prompt: u64,
    cached: u64,
    output: u64,
    sequences: u64,
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

impl Item {
    /// Where it runs.
    fn endpoint(&self) -> Option<EndpointId> {
        self.running.map(|running| running.endpoint)
    }
}

/// The state of a running request.
#[derive(Clone, Copy, Debug)]
pub struct Running {
    endpoint: EndpointId,
    cost: u64,
    weight: f64,
    unit: CostUnit,
    outcome: Outcome,
    /// The real cost, once settled.
    settled: Option<u64>,
    /// Total tokens in the stock; `output` and `prefill` are parts of them.
    tokens: u64,
    output: u64,
    prefill: u64,
    /// The answer has begun, so the prompt is no longer in prefill.
    is_answering: bool,
    /// It runs above the bound.
    is_extra: bool,
    /// If it bypassed while no flow waited: the period of the flows, and the cost then.
    uncontested: Option<(u32, u64)>,
    /// Deficit taken from the rings of bands, models, classes and flows.
    taken: [Taken; 4],
}

/// A listed endpoint.
#[derive(Clone, Copy, Debug)]
struct Server {
    state: EndpointState,
    /// Healthy and not marked down.
    ready: bool,
    /// The endpoint has a slow start when it becomes ready again.
    slowly: bool,
    /// Slow start: the current limit, and the requests served since it was reached.
    ramp: Option<(u64, u64)>,
    foreign: u64,
    /// When the last report was requested.
    asked_at: Instant,
    /// Its last report has the number of sequences that it runs.
    reports: bool,
    /// Since when, by its reports, only requests of clients that have left run there, and it has generated as many tokens.
    alone: Option<(Instant, Option<u64>)>,
    /// The most requests that it takes because it refused more.
    pushback: Option<u64>,
    allowance: Option<Allowance>,
    down: Option<Instant>,
    /// Returned after being marked down, with no request served since.
    probed: bool,
    /// Times marked down since a request was last served.
    times: u32,
}

/// Usage of one model by one flow.
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
    /// Requests whose clients have left, the oldest first: their endpoints may still run them.
    left: Vec<(Instant, Item)>,
    classes: Vec<Class>,
    band_ring: Option<DrrRing<Level>>,
    model_rings: BTreeMap<Level, DrrRing<Box<str>>>,
    class_rings: BTreeMap<Tree, DrrRing<usize>>,
    flow_rings: BTreeMap<Leaf, DrrRing<Box<str>>>,
    virtual_times: BTreeMap<Leaf, VirtualTime>,
    used: Vec<Used>,
    /// The estimated cost of the requests that run at other engines, by leaf, identity and model.
    elsewhere: BTreeMap<(Leaf, Box<str>, Box<str>), u64>,
    /// Flows that the engine keeps state for.
    nodes: BTreeSet<(Leaf, Box<str>)>,
    /// For displacement: when each identity was last preempted, present or not, and its last order of creation.
    preemption_order: BTreeMap<(Level, Box<str>), (u64, u64)>,
    endpoints: BTreeMap<EndpointId, Server>,
    /// Requests that filters may run there without asking; above 0.
    places: BTreeMap<EndpointId, u64>,
    scorer_inputs: ScorerInputs,
    /// Failures at ready, unprobed endpoints since they were last marked down.
    failed: Vec<(EndpointId, RequestId, Instant)>,
    first_listed: Option<Instant>,
    ready_since: Option<Instant>,
    /// Level of the `max_rate` bucket in 1e-18 requests, and the time it was computed.
    rate: (u128, Instant),
    sequence: u64,
    flows_created: u64,
    preemptions: u64,
    pub arrivals: u64,
    pub outcomes: BTreeMap<(Band, Outcome), u64>,
    saturated: u64,
    completions: Vec<u64>,
    /// Endpoints set aside for a large request that doesn't fit there yet.
    aside: BTreeSet<EndpointId>,
    /// Classes blocked in this step.
    blocked_classes: Vec<Box<str>>,
    budgets: Budgets,
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
            left: Vec::new(),
            classes,
            band_ring: None,
            model_rings: BTreeMap::new(),
            class_rings: BTreeMap::new(),
            flow_rings: BTreeMap::new(),
            virtual_times: BTreeMap::new(),
            used: Vec::new(),
            elsewhere: BTreeMap::new(),
            nodes: BTreeSet::new(),
            preemption_order: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            places: BTreeMap::new(),
            scorer_inputs: ScorerInputs::default(),
            failed: Vec::new(),
            first_listed: None,
            ready_since: None,
            rate: (0, now),
            sequence: 0,
            flows_created: 0,
            preemptions: 0,
            arrivals: 0,
            outcomes: BTreeMap::new(),
            saturated: 0,
            completions: Vec::new(),
            aside: BTreeSet::new(),
            blocked_classes: Vec::new(),
            budgets: Budgets::new(now),
            policy,
        };
        model.band_ring = model.new_band_ring();
        model.rate.0 = model.rate_capacity();
        model
    }

    pub fn step(&mut self, now: Instant, input: Option<Input>, effects: &mut EngineEffects) {
        let now = now.max(self.now);
        if self.is_saturated() {
            self.saturated += now.as_nanos() - self.now.as_nanos();
        }
        let was_saturated = self.is_saturated();
        self.now = now;
        self.expire_usage();
        self.end_ejections();
        self.release_left();
        self.refresh_backlogs();
        self.advance_budgets();
        let is_manual = |model: &Self| model.policy.gate == Gate::Manual;
        if !is_manual(self) || input.is_none() {
            self.expire(effects);
        }
        if let Some(input) = input {
            self.apply(input, was_saturated, effects);
            if !is_manual(self) {
                self.expire(effects);
            }
        }
        if !is_manual(self) {
            self.dispatch_all(effects);
        }
    }

    pub(super) fn dispatch_all(&mut self, effects: &mut EngineEffects) {
        self.dispatch_within(effects);
        while self.dispatch_above(effects) {
            self.dispatch_within(effects);
        }
    }

    fn dispatch_within(&mut self, effects: &mut EngineEffects) {
        if self.fits_each() {
            self.dispatch_fitting(effects);
            return;
        }
        while self.may_dispatch() && self.has_rate() {
            let Some(id) = self.next() else { break };
            if self.admits_next(id, effects) {
                self.dispatch(id, effects);
            }
        }
    }

    fn apply(&mut self, input: Input, was_saturated: bool, effects: &mut EngineEffects) {
        match input {
            Input::Register(request) => self.register(request, effects),
            Input::Resume(request) => {
                if let Some(item) = self.arrive(request, effects) {
                    self.wait(item);
                }
            }
            Input::Adopt { request, endpoint } => self.adopt(request, endpoint),
            Input::AdmittedByCredit { request, place, endpoint } => {
                self.admitted_by_credit(request, place, endpoint)
            }
            Input::ModelRemoved(id) => {
                if self.find(id).is_some_and(|item| item.running.is_none()) {
                    self.reject_waiting(id, Outcome::RejectedInvalid, effects);
                }
            }
            Input::Amend(amended) => {
                self.amend(&amended, effects);
                self.refresh_backlogs();
            }
            Input::FirstToken(id) => {
                if let Some(running) = self.running_mut(id) {
                    running.is_answering = true;
                }
                self.refresh_backlogs();
            }
            // The policies of these worlds have no evictions.
            Input::Begun(_) => {}
            Input::Completed { id, service } => self.complete(id, service, was_saturated, effects),
            Input::Left { id, service } => self.leave(id, service, was_saturated, effects),
            Input::Settle { id, service } if self.policy.gate == Gate::Manual => {
                self.complete(id, service, was_saturated, effects);
            }
            Input::Settle { id, service } => self.settle(id, service),
            Input::Requeue(id) => self.requeue(id, effects),
            Input::Retry(_) | Input::Refused { .. } => unreachable!("the worlds have no failed requests"),
            Input::Prefills { .. } => unreachable!("the worlds have no roles"),
            Input::Suspend(id) => self.suspend(id, true),
            Input::Continue(id) => self.suspend(id, false),
            Input::PastUsage(past) => self.add_past_usage(past),
            Input::SharedUsage { settled, running } => {
                self.add_past_usage(settled);
                self.set_running_elsewhere(running);
            }
            Input::Ready => {
                self.ready = true;
                self.ready_since.get_or_insert(self.now);
            }
            Input::Hold => self.ready = false,
            Input::Cancel(id) => self.cancel(id, effects),
            Input::Dispatch { blocked } => self.dispatch_manually(blocked, effects),
            input @ (Input::Utc(_)
            | Input::BudgetUsage { .. }
            | Input::BudgetHistory(_)
            | Input::BudgetResets(_)
            | Input::TopUp { .. }
            | Input::ResetBudget(_)) => {
                self.apply_to_budgets(input);
            }
            Input::Policy(policy) => self.change_policy(*policy),
            Input::Drain(draining) => self.drain(draining, effects),
            input @ (Input::Relist(_)
            | Input::Sent { .. }
            | Input::Endpoint { .. }
            | Input::EndpointRemoved(_)
            | Input::Failed { .. }
            | Input::GiveCredit { .. }
            | Input::TakeBack { .. }
            | Input::PushedBack { .. }
            | Input::Answered(_)
            | Input::ServerStats { .. }
            | Input::Restarted(_)
            | Input::Load { .. }
            | Input::Allowance { .. }) => self.apply_to_endpoints(input, effects),
        }
    }

    /// Applies an input about endpoints.
    fn apply_to_endpoints(&mut self, input: Input, effects: &mut EngineEffects) {
        match input {
            Input::Relist(relisted) => self.relist(&relisted, effects),
            Input::Sent { id, endpoint } => {
                let runs = self.running_mut(id).filter(|running| running.endpoint != endpoint);
                if let Some(running) = runs {
                    running.endpoint = endpoint;
                    self.record_prefix(id, endpoint);
                }
                self.refresh_backlogs();
            }
            Input::Endpoint { id, state } => {
                self.list(id, state);
                self.discard_lost_state();
                self.probe_early();
            }
            Input::EndpointRemoved(id) => {
                self.remove_endpoint(id);
                self.probe_early();
            }
            Input::Failed { id, endpoint } => {
                self.fail(id, endpoint);
                self.discard_lost_state();
                self.forget_cache(endpoint);
            }
            Input::Restarted(endpoint) => self.forget_cache(endpoint),
            Input::PushedBack { id, endpoint } => self.push_back(id, endpoint),
            // Under these policies no answer keeps an endpoint away.
            Input::Answered(_) => {}
            Input::GiveCredit { endpoint, requests } => self.give_credit(endpoint, requests),
            Input::TakeBack { endpoint, requests } => self.take_back(endpoint, requests),
            Input::ServerStats { id, stats } => {
                if self.endpoints.contains_key(&id) {
                    self.scorer_inputs.stats.insert(id, stats);
                }
            }
            Input::Load { id, running } => self.report(id, running),
            Input::Allowance { id, allowance } => {
                if let Some(server) = self.endpoints.get_mut(&id) {
                    server.allowance = allowance;
                }
                self.end_slow_starts();
            }
            _ => unreachable!("only inputs about endpoints come here"),
        }
    }

    fn relist(&mut self, relisted: &Relisted, effects: &mut EngineEffects) {
        for id in &relisted.removed {
            self.remove_endpoint(*id);
        }
        for (id, state) in &relisted.listed {
            self.list(*id, *state);
            self.discard_lost_state();
        }
        self.probe_early();
        for amended in &relisted.amended {
            self.amend(amended, effects);
        }
        self.refresh_backlogs();
    }

    fn remove_endpoint(&mut self, id: EndpointId) {
        self.endpoints.remove(&id);
        self.left.retain(|(_, item)| item.endpoint() != Some(id));
        self.discard_lost_state();
        self.failed.retain(|failed| failed.0 != id);
    }

    fn cancel(&mut self, id: RequestId, effects: &mut EngineEffects) {
        if let Some(item) = self.find(id).filter(|item| item.running.is_none()).cloned() {
            self.remove_waiting(id);
            self.count(item.band.shown(), Outcome::Cancelled);
            effects.expect_next(Effect::Cancelled { id, waited: self.now.since(item.arrived) });
        }
    }

    /// Under a manual gate: dispatches the next request that is not of a blocked class.
    fn dispatch_manually(&mut self, blocked: Vec<Box<str>>, effects: &mut EngineEffects) {
        if self.policy.gate == Gate::Manual && self.ready {
            self.blocked_classes = blocked;
            while let Some(id) = self.next() {
                if self.admits_next(id, effects) {
                    self.dispatch(id, effects);
                    break;
                }
            }
            self.blocked_classes.clear();
        }
    }

    fn drain(&mut self, draining: bool, effects: &mut EngineEffects) {
        self.draining = draining;
        let mut waiting: Vec<Item> = self.waiting().cloned().collect();
        waiting.sort_by_key(|item| (item.arrived, item.sequence));
        for item in waiting.into_iter().filter(|_| draining) {
            self.reject_waiting(item.id, Outcome::ShuttingDown, effects);
        }
    }

    fn discipline(&self) -> Discipline {
        self.policy.flows.discipline
    }
}
