//! How much a server takes within its targets: n*, lambda*, and how many of it a load needs.

use crate::closed_form::{Parameters, Traffic};

/// Targets of the mean, in milliseconds; `None`: unconstrained.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Targets {
    /// Time to the first token; above 0.
    pub ttft_ms: Option<f64>,
    /// Time between tokens; above 0.
    pub itl_ms: Option<f64>,
}

/// What limits a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// The target for the first token.
    Ttft,
    /// The target between tokens.
    Itl,
    /// Both alike.
    Both,
    /// The largest batch.
    MaxBatch,
    /// Nothing.
    None,
}

/// What a server takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizing {
    /// Requests in flight at the limit; `None`: nothing limits them.
    pub n_star: Option<f64>,
    /// Requests per second at the limit.
    pub lambda_star: f64,
    /// Share of the capacity that is asked for at the limit.
    pub rho: f64,
    /// What limits it; of an infeasible one, what can't be met.
    pub binding: Binding,
    /// Some request can be served within the targets.
    pub feasible: bool,
}

/// What a server of these parameters takes of such requests (`traffic.rate` plays no part). `max_batch`: requests in
/// one batch, at least 1; `ttft_bias`: observed over predicted time to the first token, above 0; 1 if it isn't known.
#[must_use]
pub fn size(
    _parameters: &Parameters,
    _traffic: &Traffic,
    _targets: &Targets,
    _max_batch: Option<f64>,
    _ttft_bias: f64,
) -> Sizing {
    Sizing {
        n_star: None,
        lambda_star: 0.0,
        rho: 0.0,
        binding: Binding::None,
        feasible: false,
    }
}

/// Replicas that a load of `rate` needs if one serves `lambda_star`; `None` if either is 0.
#[must_use]
pub fn required_replicas(_rate: f64, _lambda_star: f64) -> Option<u64> {
    None
}
