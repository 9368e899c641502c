//! The description of a closed loop: servers, gate, traffic, and when the run ends.

use std::sync::Arc;
use std::time::Duration;

use penstock_autopilot::Kept;
use penstock_engine::Policy;
use penstock_engine::input::Role;
use penstock_engine::units::Decimal;
use penstock_model::slo::Policy as SloPolicy;
use penstock_model_server::Hardware;

use super::traffic::Arrivals;

/// One server.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerSpec {
    /// Servers of the same variant share one set of learned parameters.
    pub variant: Arc<str>,
    /// The server's speed and capacity.
    pub hardware: Hardware,
    /// Scales the bounds of a gate that isn't learned.
    pub weight: Decimal,
    /// See [`penstock_model_server::Server::with_request_noise`].
    pub request_noise: f64,
    /// What it computes of a request.
    pub role: Role,
}

/// What limits the requests in flight at a server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GateBy {
    /// A fixed number of requests per endpoint, above 0.
    Watermark(f64),
    /// Allowances from the true parameters.
    Truth,
    /// Allowances from the parameters that the autopilot learns.
    Learned,
    /// No limit.
    Unlimited,
    /// The gate of `policy`, as it is. The engine gets the servers' metrics for its choice of an endpoint, as in a companion.
    Policy,
}

/// What chooses a request's server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// The engine.
    #[default]
    Engine,
    /// Each server in turn, by order of arrival, as a load balancer without knowledge of the load does.
    RoundRobin,
}

/// Prompts that begin alike, and what the servers make of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedPrefix {
    /// The part of each prompt that all have in common, from 0 to 1.
    pub part: f64,
    /// Servers compute it once and keep it.
    pub is_cached: bool,
    /// Servers report the cached tokens of each response.
    pub is_reported: bool,
}

/// A change during the run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// Multiplies every server's alpha once.
    Alpha {
        /// Number of served requests after which alpha changes.
        served: usize,
        /// The factor, above 0.
        times: f64,
    },
}

/// The description of a closed loop.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// At least one.
    pub servers: Vec<ServerSpec>,
    /// Latency targets.
    pub slo: SloPolicy,
    /// What limits the requests in flight.
    pub gate: GateBy,
    /// The pool's policy; its gate is replaced by `gate`, unless that is [`GateBy::Policy`].
    pub policy: Policy,
    /// Which requests arrive, and when.
    pub arrivals: Arrivals,
    /// What chooses a request's server.
    pub placement: Placement,
    /// The batch that the autopilot is told; `None`: that of the hardware.
    pub max_batch: Option<u64>,
    /// The autopilot reads the servers' metrics.
    pub has_metrics: bool,
    /// Answers are streamed token by token.
    pub is_streamed: bool,
    /// `None`: no two prompts begin alike, and the engine gets no hashes of them.
    pub shared_prefix: Option<SharedPrefix>,
    /// A change during the run.
    pub change: Option<Change>,
    /// Length of the autopilot's windows.
    pub window: Duration,
    /// For so long after the start, servers aren't representative; see [`penstock_autopilot::AutopilotSettings::transient`].
    pub transient: Duration,
    /// A sample is recorded for each window.
    pub is_sampled: bool,
    /// The length of a part of the record's load; zero: the load is not recorded.
    pub load_part: Duration,
    /// Parameters that an earlier autopilot has learned, by variant.
    pub kept: Vec<(String, Kept)>,
    /// The run ends after this many served requests; `None`: `duration` or the end of listed arrivals ends it.
    pub served_max: Option<usize>,
    /// The run ends at this time; `None`: `served_max` or the end of listed arrivals ends it.
    pub duration: Option<Duration>,
    /// Before this time only samples are recorded.
    pub warmup: Duration,
    /// Equal seeds give equal runs.
    pub seed: u64,
}

impl Scenario {
    /// A scenario without an end: set `served_max` or `duration`.
    #[must_use]
    pub fn new(servers: Vec<ServerSpec>, gate: GateBy, arrivals: Arrivals) -> Self {
        Self {
            servers,
            slo: SloPolicy::default(),
            gate,
            policy: Policy::default(),
            arrivals,
            placement: Placement::Engine,
            max_batch: None,
            has_metrics: true,
            is_streamed: true,
            shared_prefix: None,
            change: None,
            window: Duration::from_secs(10),
            transient: Duration::from_secs(120),
            is_sampled: true,
            load_part: Duration::ZERO,
            kept: Vec::new(),
            served_max: None,
            duration: None,
            warmup: Duration::ZERO,
            seed: 1,
        }
    }

    /// Ends the run after this many served requests.
    #[must_use]
    pub fn until_served(mut self, requests: usize) -> Self {
        self.served_max = Some(requests);
        self
    }
}
