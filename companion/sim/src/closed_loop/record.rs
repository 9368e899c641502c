//! What a closed loop was seen to do.

use std::time::Duration;

use penstock_autopilot::AutopilotStatus;
use penstock_model::workload::Observed;

/// A request that was served.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Finished {
    /// Its kind.
    pub kind: &'static str,
    /// By number: where.
    pub server: usize,
    /// It came,
    pub arrived: Duration,
    /// went to its server,
    pub granted: Duration,
    /// had its first token,
    pub first: Duration,
    /// and its last.
    pub last: Duration,
    /// Tokens of its prompt.
    pub input: u64,
    /// Tokens of its answer; at least 2.
    pub output: u64,
}

impl Finished {
    /// Mean time between its tokens.
    #[must_use]
    pub fn itl_ms(&self) -> f64 {
        (self.last - self.first).as_secs_f64() * 1e3 / (self.output - 1) as f64
    }

    /// From the server's first sight of it to its first token.
    #[must_use]
    pub fn ttft_ms(&self) -> f64 {
        (self.first - self.granted).as_secs_f64() * 1e3
    }
}

/// The loop at the end of one of the autopilot's windows.
#[derive(Clone, Debug)]
pub struct Sample {
    /// When.
    pub at: Duration,
    /// Requests served by then.
    pub served: usize,
    /// What each server did in the window.
    pub observed: Vec<Observed>,
    /// Requests at each server.
    pub in_flight: Vec<usize>,
    /// Requests that wait.
    pub waiting: usize,
    /// What the autopilot says.
    pub status: AutopilotStatus,
}

/// A whole run.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// In the order in which they ended, those after it had settled.
    pub finished: Vec<Finished>,
    /// A window each.
    pub samples: Vec<Sample>,
    /// Requests that came.
    pub arrived: usize,
    /// Requests that were served, those while it settled too.
    pub served: usize,
    /// Requests that were refused, or waited too long.
    pub refused: usize,
    /// How long it took.
    pub lasted: Duration,
    /// Of that, recorded.
    pub recorded: Duration,
}
