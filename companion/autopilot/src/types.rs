//! The inputs and results of an autopilot, as plain data.

use core::time::Duration;

use penstock_engine::input::EndpointId;
use penstock_engine::policy::ExtraPlaces;
use penstock_model::Parameters;
use penstock_model::learner::State;
use penstock_model::slo::{Policy as SloPolicy, Slo};

/// The settings of an autopilot.
#[derive(Clone, Debug)]
pub struct AutopilotSettings {
    /// The pool's endpoints.
    pub endpoints: Vec<AutopilotEndpoint>,
    /// Servers that exist and are no endpoints yet.
    pub pending: Vec<PendingServers>,
    /// The pool's targets.
    pub slo: SloPolicy,
    /// The engine gates by allowances. Otherwise no endpoint is probed.
    pub gates: bool,
    /// The engine's places above the bounds.
    pub extra_places: ExtraPlaces,
    /// The longest wait in the queue, and so the time in which a backlog has to be served.
    pub ttl: Duration,
    /// The length of a window, over which everything is averaged; above 0.
    pub window: Duration,
    /// For so long after it has become ready, an endpoint isn't representative: its caches are cold, and kernels are compiled.
    /// If its variant has another endpoint, nothing is learned from it meanwhile.
    pub transient: Duration,
    /// Parameters that were learned before this start, by variant.
    pub kept: Vec<(String, Kept)>,
}

/// One endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct AutopilotEndpoint {
    /// The endpoint's number in the engine.
    pub id: EndpointId,
    /// Endpoints of one variant share their parameters.
    pub variant: String,
    /// Requests in one batch.
    pub max_batch: u64,
    /// The engine's bound while the endpoint has no allowance, in sequences; at least 1.
    pub bound_initial: u64,
}

/// Servers that exist and are no endpoints yet, because they aren't ready.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PendingServers {
    /// The variant of all of them.
    pub variant: String,
    /// Requests in one batch of each.
    pub max_batch: u64,
    /// The number of servers; at least 1.
    pub servers: u64,
}

/// The parameters of a variant that outlive the process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kept {
    /// The last known parameters.
    pub parameters: Parameters,
    /// Observed divided by predicted time to the first token.
    pub ttft_bias: f64,
}

/// What a granted request is expected to use, and where.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpectedUsage {
    /// The first choice of the grant.
    pub endpoint: EndpointId,
    /// Prompt tokens, known or estimated.
    pub prompt: u64,
    /// Prompt tokens that the endpoint holds in its cache.
    pub cached: u64,
    /// Expected output tokens, of all sequences together.
    pub output: u64,
    /// Sequences that the server computes at the same time; 0 counts as 1.
    pub sequences: u64,
    /// The answer will be streamed, so its beginning will be [reported](crate::Autopilot::first_token).
    pub is_streamed: bool,
    /// It runs above the bound of its endpoint.
    pub is_extra: bool,
}

/// How a granted request was served.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Served {
    /// From the grant to the first byte of the response.
    pub first: Option<Duration>,
    /// From the grant to the last byte.
    pub last: Option<Duration>,
    /// The response was streamed token by token.
    pub streamed: bool,
    /// Prompt tokens, as the model server counted.
    pub prompt: Option<u64>,
    /// Prompt tokens that were found in the cache.
    pub cached: Option<u64>,
    /// Output tokens; `None` if they weren't counted.
    pub output: Option<u64>,
}

/// The metrics of a model server.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scraped {
    /// Running requests, including those that the companion didn't grant.
    pub running: Option<u64>,
    /// Requests that wait in the model server's queue.
    pub waiting: Option<u64>,
    /// The used fraction of its KV cache, from 0 to 1.
    pub kv_used: Option<f64>,
    /// The size of its KV cache in tokens.
    pub kv_tokens: Option<u64>,
    /// Totals since its start.
    pub totals: Option<Totals>,
    /// The engine sleeps: it answers no request until an operator wakes it up. `None`: the server doesn't report it.
    pub is_asleep: Option<bool>,
    /// When its process started, in seconds since 1970.
    pub started_s: Option<f64>,
    /// The time from the request for these metrics to their arrival.
    pub asked_ago: Duration,
}

/// A model server's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Requests that got a first token.
    pub requests: u64,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Seconds to all first tokens.
    pub ttft_s: f64,
    /// Number of times between tokens.
    pub itl_count: u64,
    /// Their sum in seconds.
    pub itl_s: f64,
}

/// The requests that wait in the pool's queue for room at endpoints, not for limits of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Their number.
    pub requests: u64,
    /// They wait because no ready endpoint takes another request, not because of limits of their own.
    pub is_full: bool,
}

/// The replicas that a variant needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Desired {
    /// Ready replicas that its part of the demand needs.
    pub replicas: u64,
    /// The origin of the number.
    pub source: DesiredSource,
}

/// The origin of a number of replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DesiredSource {
    /// Demand divided by lambda* of the learned model.
    Model,
    /// Demand divided by lambda* of parameters from one window, before a model is learned. At least the replicas that are
    /// ready, and at most twice as many.
    Bootstrap,
    /// A steady overload before a model is learned: the ready replicas times offered divided by served requests.
    Saturation,
    /// Requests wait, and there is no server: the first one is needed.
    Waiting,
}

impl DesiredSource {
    /// The name in metrics and responses.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Bootstrap => "bootstrap",
            Self::Saturation => "saturation",
            Self::Waiting => "waiting",
        }
    }
}

/// A variant at this moment.
#[derive(Clone, Debug, PartialEq)]
pub struct VariantStatus {
    /// The variant's name.
    pub name: String,
    /// The state of its model.
    pub state: State,
    /// The parameters in use. While none are known and the variant is learning, the best guess at them; `None` without one.
    pub parameters: Option<Parameters>,
    /// Observed divided by predicted time to the first token.
    pub ttft_bias: f64,
    /// Normalised innovation squared of the last window; `None` before the first.
    pub nis: Option<f64>,
    /// Condition number of the observations.
    pub condition: Option<f64>,
    /// n* of one endpoint.
    pub n_star: Option<f64>,
    /// lambda* of one endpoint, in requests per second; `None` if the variant can't be analysed.
    pub lambda_star: Option<f64>,
    /// lambda* of all ready endpoints together; 0 if the variant can't be analysed.
    pub capacity: f64,
    /// The variant's part of the demand, in requests per second.
    pub demand: f64,
    /// demand / capacity; 0 if the variant can't be analysed.
    pub utilization: f64,
    /// Replicas that the demand needs; `None` if there is no decision.
    pub desired: Option<Desired>,
    /// Ready replicas.
    pub current: u64,
    /// Listed replicas that aren't ready, and servers that are no endpoints yet.
    pub pending: u64,
}

impl VariantStatus {
    /// A variant that never had a server.
    fn without_servers(name: String) -> Self {
        Self {
            name,
            state: State::NoTraffic,
            parameters: None,
            ttft_bias: 1.0,
            nis: None,
            condition: None,
            n_star: None,
            lambda_star: None,
            capacity: 0.0,
            demand: 0.0,
            utilization: 0.0,
            desired: None,
            current: 0,
            pending: 0,
        }
    }
}

impl AutopilotStatus {
    /// A pool without variants has `default`, the variant of its next server. Where requests wait (`has_waiting`) and no server exists, not
    /// even one that isn't ready, that variant, or the first, needs one.
    #[must_use]
    pub fn with_first_server(mut self, default: &str, has_waiting: bool) -> Self {
        if self.variants.is_empty() {
            self.variants.push(VariantStatus::without_servers(default.to_owned()));
        }
        let exists = self.variants.iter().any(|variant| variant.current + variant.pending > 0);
        let is_asked =
            self.variants.iter().any(|variant| variant.desired.is_some_and(|desired| desired.replicas > 0));
        if has_waiting && !exists && !is_asked {
            let index = self.variants.iter().position(|variant| variant.name == default).unwrap_or(0);
            if let Some(variant) = self.variants.get_mut(index) {
                variant.desired = Some(Desired { replicas: 1, source: DesiredSource::Waiting });
            }
        }
        self
    }
}

/// What sets the bounds of endpoints, from the least certain to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GateSource {
    /// Bounds rise while requests wait and none wait inside the servers.
    Exploring,
    /// More than the bound was tried, and was too much.
    Measured,
    /// The learned model predicts what the servers need or allow.
    Model,
}

impl GateSource {
    /// The name in the status.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exploring => "exploring",
            Self::Measured => "measured",
            Self::Model => "model",
        }
    }
}

/// What sets the bounds of endpoints, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateStatus {
    /// That of the endpoint of which the least is known.
    pub source: GateSource,
    /// A sentence for people.
    pub reason: String,
}

/// An autopilot at this moment.
#[derive(Clone, Debug, PartialEq)]
pub struct AutopilotStatus {
    /// What sets the bounds; `None`: the engine doesn't gate by allowances.
    pub gate: Option<GateStatus>,
    /// The targets in force.
    pub slo: Slo,
    /// By name.
    pub variants: Vec<VariantStatus>,
    /// lambda* of all variants together.
    pub capacity: f64,
    /// Offered requests per second, including the share of the backlog.
    pub demand: f64,
}
