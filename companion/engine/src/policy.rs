//! What the engine holds to: one pool's policy, made only of values that can't be wrong.
//!
//! Ranges are checked where the configuration is parsed; what is said here of a value is its precondition.
//! [`Default`] is the contract's defaults.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use crate::limits::FLOWS_MAX;
use crate::units::Decimal;

/// The policy of one pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Who may wait, and how long.
    pub queue: Queue,
    /// How much the servers work on at a time.
    pub gate: Gate,
    /// How the bands share.
    pub bands: Bands,
    /// Every model of the pool has a tree of its own below the bands.
    pub per_model: bool,
    /// How the classes of one tree share.
    pub class_mode: ClassMode,
    /// Policy classes by model: a request names its set by [`crate::Request::class_set`]. Empty, or a set without
    /// classes: one class.
    pub classes: Vec<ClassSet>,
    /// In which order what waits goes.
    pub flows: Flows,
    /// Who goes first within a flow, where the class doesn't say.
    pub order: Order,
    /// What a token weighs.
    pub weights: TokenWeights,
    /// How far back [`Discipline::Usage`] looks; above 0.
    pub usage_window: Duration,
    /// For how long an endpoint is marked down that failed requests.
    pub outlier_ejection: OutlierEjection,
    /// A newcomer that is predicted to miss its deadline is refused at once.
    pub reject_unmeetable: bool,
    /// What says which of the endpoints with room is the best.
    pub scheduler: Scorers,
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
            reject_unmeetable: false,
            scheduler: Scorers::default(),
        }
    }
}

/// How much each scorer's vote on an endpoint counts, finite and 0 or more. Where none but the stock's is known, the least
/// stock is the best.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scorers {
    /// The part of its bound that is free.
    pub stock: f64,
    /// Requests that wait in the server's own queue: fewer are better.
    pub queue: f64,
    /// The part of the server's KV cache that is free.
    pub kv_cache: f64,
    /// The part of the prompt that the server has computed before.
    pub prefix: f64,
    /// The server has the model's adapter in memory.
    pub lora: f64,
}

impl Default for Scorers {
    fn default() -> Self {
        Self {
            stock: 1.0,
            queue: 2.0,
            kv_cache: 2.0,
            prefix: 3.0,
            lora: 1.0,
        }
    }
}

/// For how long an endpoint that failed requests is marked down: `first`, then twice as long each time, at most `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutlierEjection {
    /// Above 0.
    pub first: Duration,
    /// Not below `first`.
    pub max: Duration,
}

impl Default for OutlierEjection {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            max: Duration::from_secs(30),
        }
    }
}

/// Limits of what waits.
#[derive(Clone, Debug, PartialEq)]
pub struct Queue {
    /// `false`: who may not bypass is refused.
    pub enabled: bool,
    /// Requests that wait in the pool.
    pub total_capacity: u64,
    /// Bytes of their bodies.
    pub total_bytes: u64,
    /// Requests that wait in one flow and band; at least 1.
    pub flow_capacity: u64,
    /// From first arrival to the refusal; above 0.
    pub ttl: Duration,
    /// The same while no endpoint is ready; above 0.
    pub no_endpoint_ttl: Duration,
    /// What happens to the least critical when the queue is full.
    pub overflow: Overflow,
    /// Who is let in when it may not bypass.
    pub admit: Admit,
    /// Dispatches per second, bypassed ones too, by a token bucket of one second (at least one token); finite and
    /// above 0. `None`: any.
    pub max_rate: Option<f64>,
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

/// A full queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// A newcomer takes the place of something strictly less critical.
    Displace,
    /// A newcomer is refused.
    Reject,
}

/// Who may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admit {
    /// Everybody.
    All,
    /// Only the critical band.
    CriticalOnly,
}

/// How much the servers work on at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Nothing waits.
    Open,
    /// Nothing goes, and nothing expires, by itself: [`crate::Input::Dispatch`] lets one go, whatever its endpoints
    /// work on, and [`crate::Engine::handle_timeout`] expires. For scripts.
    Manual,
    /// The predicted iteration of each endpoint, as its [`crate::Budget`] says; before it has one, `initial` requests.
    Auto {
        /// Requests of an endpoint of weight 1 that has no budget; at least 1.
        initial: Decimal,
    },
    /// Per ready endpoint of weight 1; `lower <= upper`.
    Bounded {
        /// What stock is counted in.
        unit: StockUnit,
        /// Below the sum of these, what waits is dispatched.
        lower: Decimal,
        /// Below the sum of these, a newcomer bypasses.
        upper: Decimal,
        /// Between both; shown, and gates nothing.
        watermark: Decimal,
    },
}

impl Default for Gate {
    fn default() -> Self {
        let tenths = |of: u128| Decimal::from_billionths(of * Decimal::ONE / 10);
        Self::Bounded {
            unit: StockUnit::Requests,
            lower: tenths(18),
            upper: tenths(22),
            watermark: Decimal::whole(2),
        }
    }
}

/// What stock and its bounds are counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StockUnit {
    /// Each counts one.
    Requests,
    /// Prompt and expected output.
    Tokens,
}

/// How the bands share.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bands {
    /// Who goes first.
    pub mode: BandMode,
    /// By band, most critical first: it goes while stock is below this part of the bound; above 0, at most 1.
    /// `None`: no limit but the bound.
    pub ceilings: [Option<Decimal>; 3],
}

/// Who goes first among the bands.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum BandMode {
    /// The more critical.
    #[default]
    Strict,
    /// Deficit round robin, by weight, most critical first; finite, at least 0, not all 0. A band of weight 0 goes
    /// when no other can.
    Weighted([f64; 3]),
}

/// How the classes of one tree share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassMode {
    /// Deficit round robin by visits.
    Exact,
    /// As dynamo-kv-router 1.6.1 does.
    Dynamo,
}

/// The policy classes of some models.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClassSet {
    /// The family of those who name none, or an unknown one. `None`: the first class's.
    pub default_family: Option<Box<str>>,
    /// By uncached prompt tokens: the bucket with the largest `min_tokens` that isn't above them.
    pub buckets: Vec<Bucket>,
    /// In the order of the ring; names are unique over all sets.
    pub classes: Vec<Class>,
}

/// A range of uncached prompt tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Where it begins.
    pub min_tokens: u64,
    /// What classes call it.
    pub name: Box<str>,
}

/// A policy class.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// Its name.
    pub name: Box<str>,
    /// Requests that name this family are its own,
    pub family: Box<str>,
    /// if they are in this bucket; `None`: in any that no other class of the family names.
    pub bucket: Option<Box<str>>,
    /// Tokens granted by a visit; at least 1.
    pub quantum: u64,
    /// Instead of the pool's.
    pub order: Option<Order>,
    /// Uncached prompt tokens in flight at an endpoint, from which on it takes nothing of this class.
    pub busy_tokens: Option<u64>,
    /// The same as a part of the endpoint's `batched_tokens_max`; where that isn't known it holds nobody.
    pub busy_fraction: Option<f64>,
    /// Requests that wait in it, per eligible endpoint.
    pub requests_per_endpoint: Option<u64>,
    /// Prompt tokens of what waits in it, per eligible endpoint.
    pub prompt_tokens_per_endpoint: Option<u64>,
    /// Of these the cached ones, per eligible endpoint.
    pub cached_tokens_per_endpoint: Option<u64>,
}

impl Class {
    /// A class that limits nothing: the family of its own name, in every bucket.
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
    /// By which rule.
    pub discipline: Discipline,
    /// What a request costs its flow and its band.
    pub cost: CostUnit,
    /// Weight of a flow by identity; finite and above 0.
    pub weights: BTreeMap<Box<str>, f64>,
    /// Weight of every other flow; finite and above 0.
    pub default_weight: f64,
    /// `flow_capacity` by identity; at least 1.
    pub capacities: BTreeMap<Box<str>, u64>,
    /// Requests of one identity that are dispatched and not completed; at least 1.
    pub max_in_flight: Option<u64>,
    /// The same at one endpoint; at least 1.
    pub max_in_flight_per_endpoint: Option<u64>,
    /// Identities with state of their own; at least 1, at most [`FLOWS_MAX`].
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
}

/// By which rule flows share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// Weighted fair queueing by virtual finish times, settled.
    Wfq,
    /// Least tokens per weight in the sliding window goes first; `anonymous` last.
    Usage,
    /// Virtual token counters: the same tally without a window, lifted.
    Vtc,
    /// Deficit round robin by visits.
    Drr,
    /// Weighted fair queueing where every request costs one.
    RoundRobin,
    /// By arrival over all flows.
    Fifo,
}

impl Discipline {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Wfq,
        Self::Usage,
        Self::Vtc,
        Self::Drr,
        Self::RoundRobin,
        Self::Fifo,
    ];
}

/// What a request costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostUnit {
    /// Weighted tokens.
    Tokens,
    /// One.
    Requests,
}

/// Who goes first within a flow, under strict tiers; then by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// First arrival less its head start.
    Fcfs,
    /// Shortest class cost, divided by 1 + the seconds of head start.
    Wspt,
    /// The client's own deadline; who has none last.
    Edf,
    /// Arrival and target for the first token: the request's own, else this; who has none last.
    SloDeadline {
        /// The pool's target.
        target: Option<Duration>,
    },
}

/// What a token weighs in a cost; finite and not negative, not both 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenWeights {
    /// Of the prompt, not cached.
    pub input: f64,
    /// Of the output.
    pub output: f64,
}

impl Default for TokenWeights {
    fn default() -> Self {
        Self {
            input: 1.0,
            output: 2.0,
        }
    }
}
