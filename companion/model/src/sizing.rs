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

impl Binding {
    /// Its name in answers.
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
///
/// A target of 0 constrains nothing. Where nothing does, n* is unlimited and lambda* is the rate at which rho reaches
/// 1; requests without any work have no limit, and an infinite lambda*.
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
    let bias = if ttft_bias.is_finite() && ttft_bias > 0.0 {
        ttft_bias
    } else {
        1.0
    };
    let (iteration_ms_max, binding) = longest_iteration(parameters, traffic, targets, bias);
    if let Some(longest) = iteration_ms_max
        && longest <= alpha_ms
    {
        return Sizing {
            n_star: Some(0.0),
            lambda_star: 0.0,
            rho: 0.0,
            binding,
            feasible: false,
        };
    }
    let by_targets = iteration_ms_max
        .filter(|_| delta_ms > 0.0)
        .map(|longest| (longest - alpha_ms) / delta_ms);
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
            (
                1_000.0 * n / (iterations * iteration_ms),
                n * delta_ms / iteration_ms,
            )
        }
        None if delta_ms > 0.0 => (1_000.0 / (iterations * delta_ms), 1.0),
        None => (f64::INFINITY, 0.0),
    };
    Sizing {
        n_star,
        lambda_star,
        rho,
        binding,
        feasible: true,
    }
}

/// Tmax: how long an iteration may take within the targets, and which of them says so; of targets that can't be met
/// those that can't.
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
            let alike = (first - between).abs() <= EQUAL * scale;
            let neither_met = first <= alpha_ms && between <= alpha_ms;
            let binding = if alike || neither_met {
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

/// Replicas that a load of `rate` needs if one serves `lambda_star`; `None` if either is 0, or isn't a number.
#[must_use]
pub fn required_replicas(rate: f64, lambda_star: f64) -> Option<u64> {
    let known = rate > 0.0 && rate.is_finite() && lambda_star > 0.0;
    known.then(|| ((rate / lambda_star * (1.0 - EQUAL)).ceil() as u64).max(1))
}

/// Relative difference below which two numbers are the same one, computed twice.
const EQUAL: f64 = 1e-9;
