//! The capacity of a server within its targets, n* and lambda*, and the replicas that a load needs.

use crate::closed_form::{Parameters, Traffic};

/// Targets for mean latencies, in milliseconds; `None`: unconstrained.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Targets {
    /// Time to the first token; above 0.
    pub ttft_ms: Option<f64>,
    /// Time between tokens; above 0.
    pub itl_ms: Option<f64>,
}

/// The constraint that limits a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// The target of the time to the first token.
    Ttft,
    /// The target of the time between tokens.
    Itl,
    /// Both targets equally.
    Both,
    /// The largest batch the server runs.
    MaxBatch,
    /// No constraint.
    None,
}

impl Binding {
    /// Name in responses.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ttft => "ttft",
            Self::Itl => "itl",
            Self::Both => "both",
            Self::MaxBatch => "max_batch",
            Self::None => "none",
        }
    }
}

/// The capacity of a server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizing {
    /// n*, the requests in flight at the limit; `None` if unlimited.
    pub n_star: Option<f64>,
    /// lambda*, the requests per second at the limit.
    pub lambda_star: f64,
    /// rho at the limit.
    pub rho: f64,
    /// The binding constraint; for an infeasible server, the constraint that can't be met.
    pub binding: Binding,
    /// At least one request can be served within the targets.
    pub feasible: bool,
}

/// Capacity of a server with these parameters for such requests; `traffic.rate` is ignored. `max_batch` is the number
/// of requests in one batch, at least 1. `ttft_bias` is the ratio of observed to predicted time to the first token; 1
/// replaces a value that is not above 0.
///
/// A target of 0 constrains nothing. Without any constraint, n* is unlimited and lambda* is the rate at which rho
/// reaches 1. For requests without any work, lambda* is infinite.
#[must_use]
pub fn size(
    parameters: &Parameters,
    traffic: &Traffic,
    targets: &Targets,
    max_batch: Option<f64>,
    ttft_bias: f64,
) -> Sizing {
    let alpha_ms = parameters.alpha_ms;
    let delta_ms = parameters.delta_ms(traffic);
    let bias = if ttft_bias.is_finite() && ttft_bias > 0.0 { ttft_bias } else { 1.0 };
    let (iteration_ms_max, binding) = longest_iteration(parameters, traffic, targets, bias);
    if let Some(longest) = iteration_ms_max
        && longest <= alpha_ms
    {
        return Sizing { n_star: Some(0.0), lambda_star: 0.0, rho: 0.0, binding, feasible: false };
    }
    let by_targets =
        iteration_ms_max.filter(|_| delta_ms > 0.0).map(|longest| (longest - alpha_ms) / delta_ms);
    let (n_star, binding) = match (by_targets, max_batch) {
        (Some(n), Some(cap)) if cap < n => (Some(cap), Binding::MaxBatch),
        (Some(n), _) => (Some(n), binding),
        (None, Some(cap)) => (Some(cap), Binding::MaxBatch),
        (None, None) => (None, Binding::None),
    };
    let iterations = traffic.output + 1.0;
    let (lambda_star, rho) = match n_star {
        Some(n) => {
            let iteration_ms = alpha_ms + n * delta_ms;
            (1_000.0 * n / (iterations * iteration_ms), n * delta_ms / iteration_ms)
        }
        None if delta_ms > 0.0 => (1_000.0 / (iterations * delta_ms), 1.0),
        None => (f64::INFINITY, 0.0),
    };
    Sizing { n_star, lambda_star, rho, binding, feasible: true }
}

/// Tmax, the longest iteration within the targets, and the target that sets it. If targets can't be met, the binding
/// is those that can't.
fn longest_iteration(
    parameters: &Parameters,
    traffic: &Traffic,
    targets: &Targets,
    ttft_bias: f64,
) -> (Option<f64>, Binding) {
    let constrains = |target: &f64| *target > 0.0;
    let ttft = targets.ttft_ms.filter(constrains);
    let itl = targets.itl_ms.filter(constrains);
    let by_ttft = ttft.map(|target| target / ttft_bias - parameters.own_prefill_ms(traffic));
    let by_itl = itl.map(|target| target - parameters.own_decode_ms(traffic));
    let alpha_ms = parameters.alpha_ms;
    match (by_ttft, by_itl) {
        (None, None) => (None, Binding::None),
        (Some(first), None) => (Some(first), Binding::Ttft),
        (None, Some(between)) => (Some(between), Binding::Itl),
        (Some(first), Some(between)) => {
            let scale = ttft.unwrap_or(0.0).max(itl.unwrap_or(0.0));
            let equal = (first - between).abs() <= EQUAL * scale;
            let neither_met = first <= alpha_ms && between <= alpha_ms;
            let binding = if equal || neither_met {
                Binding::Both
            } else if first < between {
                Binding::Ttft
            } else {
                Binding::Itl
            };
            (Some(first.min(between)), binding)
        }
    }
}

/// Replicas that a load of `rate` needs if one replica serves `lambda_star`; `None` if either is 0 or not a number.
#[must_use]
pub fn required_replicas(rate: f64, lambda_star: f64) -> Option<u64> {
    let known = rate > 0.0 && rate.is_finite() && lambda_star > 0.0;
    known.then(|| ((rate / lambda_star * (1.0 - EQUAL)).ceil() as u64).max(1))
}

/// Relative difference below which two computed numbers count as equal.
const EQUAL: f64 = 1e-9;
