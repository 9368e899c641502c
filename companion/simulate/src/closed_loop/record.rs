//! The results of a closed loop.

use std::sync::Arc;
use std::time::Duration;

use penstock_autopilot::AutopilotStatus;
use penstock_engine::Outcome;
use penstock_model::workload::Observed;

use super::load_series::LoadSeries;

/// A served request. Times count from the start of the run.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// Name of the request's kind, or of its tenant.
    pub kind: Arc<str>,
    /// Index of the server.
    pub server: usize,
    /// Arrival.
    pub arrived: Duration,
    /// Grant, which is also the arrival at the server.
    pub granted: Duration,
    /// First token.
    pub first: Duration,
    /// Last token.
    pub last: Duration,
    /// Prompt tokens.
    pub input: u64,
    /// Output tokens; at least 1.
    pub output: u64,
}

impl Finished {
    /// Mean time between tokens.
    #[must_use]
    pub fn itl_ms(&self) -> f64 {
        (self.last - self.first).as_secs_f64() * 1e3 / self.output.saturating_sub(1).max(1) as f64
    }

    /// Time from the arrival at the server to the first token.
    #[must_use]
    pub fn ttft_ms(&self) -> f64 {
        (self.first - self.granted).as_secs_f64() * 1e3
    }
}

/// A request that wasn't served.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused {
    /// Name of the request's kind, or of its tenant.
    pub kind: Arc<str>,
    /// The request's arrival, from the start of the run.
    pub arrived: Duration,
    /// From its arrival to its refusal.
    pub waited: Duration,
    /// The engine's reason; `None`: the model server refused it.
    pub outcome: Option<Outcome>,
}

/// The state at the end of one of the autopilot's windows.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Time from the start of the run.
    pub time: Duration,
    /// Requests served by then.
    pub served: usize,
    /// By server, the traffic and latencies of the window.
    pub observed: Vec<Observed>,
    /// By server, the requests in flight.
    pub in_flight: Vec<usize>,
    /// Requests that wait.
    pub waiting: usize,
    /// The autopilot's status.
    pub status: AutopilotStatus,
}

/// The replicas that the autopilot asks for, over all variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicasDesired {
    /// Time from the start of the run.
    pub time: Duration,
    /// 0: the autopilot has no answer.
    pub replicas: u64,
}

impl ReplicasDesired {
    pub(super) fn new(time: Duration, status: &AutopilotStatus) -> Self {
        let desired = status.variants.iter().filter_map(|variant| variant.desired);
        let replicas = desired.map(|desired| desired.replicas).sum();
        Self { time, replicas }
    }
}

/// A whole run.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// Requests served after the warm-up, in order of their ends.
    pub finished: Vec<Finished>,
    /// One sample per window.
    pub samples: Vec<Sample>,
    /// Requests that weren't served, warm-up included, in order of their refusals.
    pub refused: Vec<Refused>,
    /// Requests that arrived.
    pub arrived: usize,
    /// Requests that were served, warm-up included.
    pub served: usize,
    /// Requests that were rejected or expired.
    pub rejected: usize,
    /// By server, the time in which it computed.
    pub busy: Vec<Duration>,
    /// Requests whose prompt was computed by a server of its own.
    pub prefilled_elsewhere: usize,
    /// By server, the most requests that it has had, prompts of others included.
    pub peaks: Vec<usize>,
    /// The load over time, if the scenario asks for it.
    pub load: LoadSeries,
    /// The replicas that the autopilot asked for, at the end of each window.
    pub replicas_desired: Vec<ReplicasDesired>,
    /// Length of the run.
    pub duration: Duration,
    /// Length of the run without the warm-up.
    pub recorded: Duration,
}
