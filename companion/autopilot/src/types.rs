//! What an autopilot is told and what it says, as plain data.

use core::time::Duration;

use penstock_engine::input::EndpointId;
use penstock_model::Parameters;
use penstock_model::learner::State;
use penstock_model::slo::{Policy as SloPolicy, Slo};

/// What an autopilot is made with.
#[derive(Clone, Debug)]
pub struct AutopilotSettings {
    /// The pool's endpoints.
    pub endpoints: Vec<AutopilotEndpoint>,
    /// The pool's targets.
    pub slo: SloPolicy,
    /// The engine gates by budgets: without that nothing is probed.
    pub gates: bool,
    /// How long what waits may wait, which is in how long a backlog has to be served.
    pub ttl: Duration,
    /// A window of everything that is averaged; above 0.
    pub window: Duration,
    /// What earlier lives have learned, by variant.
    pub kept: Vec<(String, Kept)>,
}

/// One endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct AutopilotEndpoint {
    /// Which.
    pub id: EndpointId,
    /// Servers of one variant share their parameters.
    pub variant: String,
    /// Requests in one batch.
    pub max_batch: u64,
}

/// What is kept of a variant across lives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kept {
    /// Its parameters when they were last known.
    pub parameters: Parameters,
    /// Observed over predicted time to the first token.
    pub ttft_bias: f64,
}

/// A request that was granted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Granted {
    /// Where it was sent.
    pub endpoint: EndpointId,
    /// Its prompt, known or estimated,
    pub prompt: u64,
    /// of this, what a server holds already,
    pub cached: u64,
    /// and its output as it is expected.
    pub output: u64,
}

/// How a granted request was served.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Served {
    /// From the grant to the first byte of the answer.
    pub first: Option<Duration>,
    /// From the grant to the last.
    pub last: Option<Duration>,
    /// Its answer came token by token.
    pub streamed: bool,
    /// Prompt tokens, as the server says.
    pub prompt: Option<u64>,
    /// Of these, from its cache.
    pub cached: Option<u64>,
    /// Output tokens; `None`: nobody counted.
    pub output: Option<u64>,
}

/// What a server says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scraped {
    /// Requests that run there, whoever's.
    pub running: Option<u64>,
    /// Requests that wait there.
    pub waiting: Option<u64>,
    /// Part of its cache that is used, 0 to 1.
    pub kv_used: Option<f64>,
    /// Tokens that its cache holds.
    pub kv_tokens: Option<u64>,
    /// Totals since it started, for windows.
    pub totals: Option<Totals>,
}

/// A server's counters.
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
    /// Times between tokens.
    pub itl_count: u64,
    /// Their sum in seconds.
    pub itl_s: f64,
}

/// A variant at this moment.
#[derive(Clone, Debug, PartialEq)]
pub struct VariantStatus {
    /// Its name.
    pub name: String,
    /// How far its model is.
    pub state: State,
    /// The parameters that are acted on; before there are some, while it is learning, the best guess at them. `None`: there
    /// is none.
    pub parameters: Option<Parameters>,
    /// Observed over predicted time to the first token.
    pub ttft_bias: f64,
    /// Normalised innovation squared of the last window; `None`: there was none.
    pub nis: Option<f64>,
    /// Condition number of what was observed.
    pub condition: Option<f64>,
    /// n* of one server.
    pub n_star: Option<f64>,
    /// lambda* of one server, requests per second; `None`: it can't be analysed.
    pub lambda_star: Option<f64>,
    /// lambda* of all that are ready; 0 if it can't be analysed.
    pub capacity: f64,
    /// Requests per second that fall to it.
    pub demand: f64,
    /// demand / capacity; 0 if it can't be analysed.
    pub utilization: f64,
    /// Replicas that its demand needs; `None`: no decision.
    pub desired: Option<u64>,
    /// Those that are ready.
    pub current: u64,
    /// Those that are listed and not ready.
    pub pending: u64,
}

/// An autopilot at this moment.
#[derive(Clone, Debug, PartialEq)]
pub struct AutopilotStatus {
    /// The targets in force.
    pub slo: Slo,
    /// By name.
    pub variants: Vec<VariantStatus>,
    /// lambda* of all variants together.
    pub capacity: f64,
    /// Requests per second that are offered, the backlog's part included.
    pub demand: f64,
}
