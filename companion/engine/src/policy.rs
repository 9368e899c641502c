//! The policy of one pool.
//!
//! The configuration's parser checks ranges. A range stated here is a precondition. [`Default`] gives the documented
//! defaults, but no places above the bounds.

mod budget;
mod claims;
mod credit;
mod discipline;
mod extra_places;
mod flow_glob;
mod flow_key;
mod rewrite;
mod token_weights;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

pub use self::budget::{Budget, BudgetCalendar, BudgetPeriod, BudgetWindow, Over};
pub use self::claims::MaxPriority;
pub use self::discipline::Discipline;
pub use self::extra_places::ExtraPlaces;
pub use self::flow_glob::FlowGlob;
pub use self::flow_key::{FlowKey, join_flow_parts};
pub use self::rewrite::Rewrite;
pub use self::token_weights::TokenWeights;
use crate::limits::FLOWS_MAX;
use crate::units::Decimal;

/// The policy of one pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Limits on waiting requests.
    pub queue: Queue,
    /// The rule that bounds stock.
    pub gate: Gate,
    /// Sharing between bands.
    pub bands: Bands,
    /// Below each band every model has classes and flows of its own, and models share by deficit round robin.
    pub per_model: bool,
    /// Sharing between the classes of one model.
    pub class_mode: ClassMode,
    /// Policy classes by model. [`crate::Request::class_set`] names a request's set. An empty list, or a set without
    /// classes, counts as one class.
    pub classes: Vec<ClassSet>,
    /// Sharing between flows.
    pub flows: Flows,
    /// The order within a flow, for classes without their own.
    pub order: Order,
    /// Weights of tokens in a cost.
    pub weights: TokenWeights,
    /// The window of [`Discipline::Usage`]; above 0.
    pub usage_window: Duration,
    /// For how long an endpoint with failed requests is marked down.
    pub outlier_ejection: OutlierEjection,
    /// `None`: no answer keeps an endpoint away.
    pub failing: Option<Failing>,
    /// For how long a request counts at its endpoint, at most, after its client has left before the end of the answer: the
    /// server may compute on. Where the server reports what it runs, the request counts until the report shows its end.
    /// `None`: nothing else ends it there, and it doesn't count where the server reports nothing. Above 0.
    pub release_after: Option<Duration>,
    /// Places above the bound of an endpoint for flows with nothing running.
    pub extra_for_idle_flows: ExtraPlaces,
    /// How long a critical request waits for room before a running sheddable request is asked to end for it, one whose answer hasn't begun.
    /// `None`: none is. Above 0.
    pub eviction: Option<Duration>,
    /// A newcomer that is predicted to miss its deadline is rejected at once.
    pub reject_unmeetable: bool,
    /// Weights of the scorers that choose among endpoints with room.
    pub scheduler: Scorers,
    /// A request that is granted to an endpoint of [`Role::Decode`](crate::input::Role::Decode), and has at least so many prompt tokens that
    /// aren't cached there, has its prompt computed by an endpoint of [`Role::Prefill`](crate::input::Role::Prefill) that has room. `None`:
    /// no request has.
    pub min_uncached_tokens: Option<u64>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            queue: Queue::default(),
            gate: Gate::default(),
            bands: Bands::default(),
            per_model: false,
            class_mode: ClassMode::Exact,
            classes: Vec::new(),
            flows: Flows::default(),
            order: Order::Fcfs,
            weights: TokenWeights::default(),
            usage_window: Duration::from_secs(300),
            outlier_ejection: OutlierEjection::default(),
            failing: Some(Failing::default()),
            release_after: None,
            extra_for_idle_flows: ExtraPlaces::NONE,
            eviction: None,
            reject_unmeetable: false,
            scheduler: Scorers::default(),
            min_uncached_tokens: None,
        }
    }
}

impl Policy {
    /// Whether the beginnings of answers matter: a class has a prefill threshold ([`crate::Input::FirstToken`]), bounds are found by
    /// measurement, or prompts are computed by endpoints of their own.
    #[must_use]
    pub fn counts_first_tokens(&self) -> bool {
        matches!(self.gate, Gate::Auto { .. })
            || self.min_uncached_tokens.is_some()
            || self.has_prefill_thresholds()
    }

    /// A class has a prefill threshold.
    fn has_prefill_thresholds(&self) -> bool {
        let mut classes = self.classes.iter().flat_map(|set| &set.classes);
        classes.any(|class| class.busy_tokens.is_some() || class.busy_fraction.is_some())
    }

    /// Whether a decision depends on the cached part of a prompt: policy classes, an order by cost, a cost or a budget in
    /// prompt tokens, or prefill by endpoints of its own.
    #[must_use]
    pub fn counts_cached_tokens(&self) -> bool {
        let has_classes = self.classes.iter().any(|set| !set.classes.is_empty());
        let counts_tokens = self.flows.cost == CostUnit::Tokens || self.flows.has_token_budget();
        let costs_input = counts_tokens && self.weights.input > 0.0;
        has_classes || costs_input || self.order == Order::Wspt || self.min_uncached_tokens.is_some()
    }
}

/// Weights of the scorers' votes on an endpoint; finite, at least 0. Where only the stock's scorer has data, the least
/// stock is the best.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scorers {
    /// The free part of its bound.
    pub stock: f64,
    /// Requests in the server's own queue; fewer are better.
    pub queue: f64,
    /// The free part of the server's KV cache.
    pub kv_cache: f64,
    /// The part of the prompt that the server computed before.
    pub prefix: f64,
    /// The server has the model's adapter in memory.
    pub lora: f64,
}

impl Default for Scorers {
    fn default() -> Self {
        Self { stock: 1.0, queue: 2.0, kv_cache: 2.0, prefix: 3.0, lora: 1.0 }
    }
}

/// For how long an endpoint with failed requests is marked down: `first`, then twice as long each time, at most `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutlierEjection {
    /// Above 0.
    pub first: Duration,
    /// Not below `first`.
    pub max: Duration,
}

impl Default for OutlierEjection {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), max: Duration::from_secs(30) }
    }
}

/// When an endpoint is failing, and how often it is probed then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Failing {
    /// So many different requests in a row; above 0.
    pub consecutive: u32,
    /// Or this share of the answers in a window; above 0, at most 1.
    pub ratio: f64,
    /// The window.
    pub window: Duration,
    /// The time between two probes.
    pub probe_every: Duration,
}

impl Default for Failing {
    fn default() -> Self {
        Self {
            consecutive: 5,
            ratio: 0.5,
            window: Duration::from_secs(30),
            probe_every: Duration::from_secs(5),
        }
    }
}

/// Limits on waiting requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Queue {
    /// `false`: a request that may not bypass is rejected.
    pub enabled: bool,
    /// Waiting requests of the pool.
    pub total_capacity: u64,
    /// Bytes of the bodies of waiting requests.
    pub total_bytes: u64,
    /// Waiting requests of one flow in one band; at least 1.
    pub flow_capacity: u64,
    /// Time from the first arrival to the rejection while an endpoint is ready; above 0.
    pub ttl: Duration,
    /// The `ttl` while no endpoint is ready, if it is longer; above 0.
    pub no_endpoint_ttl: Duration,
    /// What a full queue does.
    pub overflow: Overflow,
    /// Which requests may wait.
    pub admit: Admit,
    /// Dispatches per second, bypasses included, by a token bucket of one second (at least one token); finite and above
    /// 0. `None`: unlimited.
    pub max_rate: Option<f64>,
}

impl Queue {
    /// The longest time that a request may wait: the one while no endpoint is ready.
    #[must_use]
    pub fn longest_wait(&self) -> Duration {
        self.ttl.max(self.no_endpoint_ttl)
    }
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            enabled: true,
            total_capacity: 1_000,
            total_bytes: 256 << 20,
            flow_capacity: 100,
            ttl: Duration::from_secs(30),
            no_endpoint_ttl: Duration::from_secs(60),
            overflow: Overflow::Displace,
            admit: Admit::All,
            max_rate: None,
        }
    }
}

/// What a full queue does with a request that is more critical than a waiting one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize), serde(rename_all = "snake_case"))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema), schemars(inline))]
pub enum Overflow {
    /// The request takes the place of the least critical waiting request.
    Displace,
    /// The request is rejected.
    Reject,
}

/// The requests that may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize), serde(rename_all = "snake_case"))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema), schemars(inline))]
pub enum Admit {
    /// Every request.
    All,
    /// Critical requests. Others are granted at once or rejected.
    CriticalOnly,
}

/// The rule that bounds stock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// No bound: nothing waits.
    Open,
    /// Requests are dispatched only by [`crate::Input::Dispatch`], without a bound, and expire only in
    /// [`crate::Engine::handle_timeout`]. For scripts.
    Manual,
    /// The predicted iteration of each endpoint, by its [`crate::Allowance`]; `initial` requests while it has none.
    Auto {
        /// Requests of an endpoint of weight 1 without an allowance; at least 1.
        initial: Decimal,
    },
    /// Per ready endpoint of weight 1; `lower <= upper`.
    Bounded {
        /// The unit of stock.
        unit: StockUnit,
        /// While stock is below the sum of these, waiting requests are dispatched.
        lower: Decimal,
        /// While stock is below the sum of these, a newcomer bypasses.
        upper: Decimal,
        /// Between both; shown, without effect.
        watermark: Decimal,
    },
}

impl Gate {
    /// `bound` requests of each ready endpoint of weight 1, from the queue and past it alike.
    #[must_use]
    pub const fn requests(bound: Decimal) -> Self {
        Self::Bounded { unit: StockUnit::Requests, lower: bound, upper: bound, watermark: bound }
    }

    /// What stock and bounds count. Under `Auto` these are sequences, because an iteration computes a token of each.
    #[must_use]
    pub const fn unit(self) -> StockUnit {
        match self {
            Self::Open | Self::Manual => StockUnit::Requests,
            Self::Auto { .. } => StockUnit::Sequences,
            Self::Bounded { unit, .. } => unit,
        }
    }

    /// A request may be too large for the room that an endpoint has left.
    pub(crate) const fn fits_each(self) -> bool {
        matches!(self.unit(), StockUnit::Sequences)
    }
}

impl Default for Gate {
    fn default() -> Self {
        let tenths = |tenths: u128| Decimal::from_billionths(tenths * Decimal::ONE / 10);
        Self::Bounded {
            unit: StockUnit::Requests,
            lower: tenths(18),
            upper: tenths(22),
            watermark: Decimal::whole(2),
        }
    }
}

/// The unit of stock and its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize), serde(rename_all = "snake_case"))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema), schemars(inline))]
pub enum StockUnit {
    /// Running requests.
    Requests,
    /// Prompt and expected output tokens of running requests. Needs a watermark that is a number of tokens.
    Tokens,
    /// Sequences of running requests: each prompt of a request, and each of its choices. A request that doesn't fit beside
    /// what runs at an endpoint waits until it does; one of more sequences than a bound runs alone there.
    Sequences,
}

impl StockUnit {
    /// The name in the configuration, for people too.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
            Self::Sequences => "sequences",
        }
    }
}

/// Sharing between bands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bands {
    /// The order of the bands.
    pub mode: BandMode,
    /// By band, most critical first: the band dispatches while stock is below this part of the bound; above 0, at most
    /// 1. `None`: the whole bound.
    pub ceilings: [Option<Decimal>; 3],
}

/// The order of the bands.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum BandMode {
    /// The more critical band first.
    #[default]
    Strict,
    /// Deficit round robin, by weight, most critical first; finite, at least 0, not all 0. A band of weight 0 comes after
    /// all others.
    Weighted([f64; 3]),
}

/// The rule by which the classes of one tree share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize), serde(rename_all = "snake_case"))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema), schemars(inline))]
pub enum ClassMode {
    /// Every class gets the share of its quantum.
    #[default]
    Exact,
    /// As the router of Dynamo 1.6.1, which is unfair to classes whose first requests differ in size.
    Dynamo,
}

/// The policy classes of some models.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClassSet {
    /// The family of requests that name none, or an unknown one. `None`: the first class's.
    pub default_family: Option<Box<str>>,
    /// A request is in the bucket with the largest `min_tokens` that isn't above its uncached prompt tokens.
    pub buckets: Vec<Bucket>,
    /// In the order of the ring; names are unique over all sets.
    pub classes: Vec<Class>,
}

/// A range of uncached prompt tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The bucket's least tokens.
    pub min_tokens: u64,
    /// The bucket's name.
    pub name: Box<str>,
}

/// A policy class.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// The class's name.
    pub name: Box<str>,
    /// The family that the class's requests name.
    pub family: Box<str>,
    /// The bucket that they are in; `None`: any that no other class of the family names.
    pub bucket: Option<Box<str>>,
    /// Tokens granted by a visit; at least 1.
    pub quantum: u64,
    /// The order within its flows; `None`: the pool's.
    pub order: Option<Order>,
    /// The uncached prompt tokens in prefill, from dispatch to the first byte of the answer, above which an endpoint takes
    /// nothing of this class.
    pub busy_tokens: Option<u64>,
    /// `busy_tokens` as a part of the endpoint's `batched_tokens_max`; ineffective where that is unknown.
    pub busy_fraction: Option<f64>,
    /// The class's waiting requests, per ready endpoint of the pool.
    pub requests_per_endpoint: Option<u64>,
    /// Prompt tokens of its waiting requests, per eligible endpoint.
    pub prompt_tokens_per_endpoint: Option<u64>,
    /// Cached prompt tokens of its waiting requests, per eligible endpoint.
    pub cached_tokens_per_endpoint: Option<u64>,
}

impl Class {
    /// A class without limits, for the family of its own name in every bucket.
    #[must_use]
    pub fn new(name: &str, quantum: u64) -> Self {
        Self {
            name: name.into(),
            family: name.into(),
            bucket: None,
            quantum,
            order: None,
            busy_tokens: None,
            busy_fraction: None,
            requests_per_endpoint: None,
            prompt_tokens_per_endpoint: None,
            cached_tokens_per_endpoint: None,
        }
    }
}

/// Sharing between flows.
#[derive(Clone, Debug, PartialEq)]
pub struct Flows {
    /// The rule.
    pub discipline: Discipline,
    /// The unit of a request's cost to its flow and its band.
    pub cost: CostUnit,
    /// Weight of a flow by identity; finite and above 0.
    pub weights: BTreeMap<Box<str>, f64>,
    /// Weight of every other flow; finite and above 0.
    pub default_weight: f64,
    /// `flow_capacity` by identity; at least 1.
    pub capacities: BTreeMap<Box<str>, u64>,
    /// Running requests of one identity; at least 1.
    pub max_in_flight: Option<u64>,
    /// Running requests of one identity at one endpoint; at least 1.
    pub max_in_flight_per_endpoint: Option<u64>,
    /// What flows may use in windows of time: for each flow the first that matches; at most
    /// [`crate::limits::BUDGETS_MAX`].
    pub budgets: Vec<Budget>,
    /// Identities with their own state, beside those that the policy [names](Self::names); at least 1, at most [`FLOWS_MAX`].
    pub identities_max: usize,
}

impl Default for Flows {
    fn default() -> Self {
        Self {
            discipline: Discipline::Wfq,
            cost: CostUnit::Tokens,
            weights: BTreeMap::new(),
            default_weight: 1.0,
            capacities: BTreeMap::new(),
            max_in_flight: None,
            max_in_flight_per_endpoint: None,
            budgets: Vec::new(),
            identities_max: FLOWS_MAX,
        }
    }
}

impl Flows {
    /// The weight of the flow of this identity.
    #[must_use]
    pub fn weight_of(&self, name: &str) -> f64 {
        self.weights.get(name).copied().unwrap_or(self.default_weight)
    }

    /// Whether the policy names this identity: in a weight, a capacity or a budget whose glob is no pattern. Such an identity always
    /// has state of its own.
    #[must_use]
    pub fn names(&self, name: &str) -> bool {
        let has_budget = || self.budget_names().any(|other| other == name);
        self.weights.contains_key(name) || self.capacities.contains_key(name) || has_budget()
    }

    /// The identities that the policy [names](Self::names); some several times.
    pub(crate) fn all_names(&self) -> impl Iterator<Item = &str> {
        let names = self.weights.keys().chain(self.capacities.keys());
        names.map(|name| &**name).chain(self.budget_names())
    }

    fn budget_names(&self) -> impl Iterator<Item = &str> {
        self.budgets.iter().filter_map(|budget| budget.flows.literal())
    }
}

/// The unit in which flows share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize), serde(rename_all = "snake_case"))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema), schemars(inline))]
pub enum CostUnit {
    /// Tokens, weighted by `usage`.
    Tokens,
    /// Requests.
    Requests,
}

impl CostUnit {
    /// The name in the configuration and in `/status`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Requests => "requests",
        }
    }
}

/// The order within a flow and a strict tier; ties by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// First arrival, less the head start.
    Fcfs,
    /// Shortest class cost, divided by 1 + the seconds of head start.
    Wspt,
    /// The client's deadline; requests without one are last.
    Edf,
    /// Arrival plus the target for the first token: the request's own, else this. Requests without one are last.
    SloDeadline {
        /// The pool's target.
        target: Option<Duration>,
    },
}
