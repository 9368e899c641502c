//! How precisely a fit determines n*, the number of requests in flight at the targets.

use nalgebra::Vector3;

use crate::closed_form::{Parameters, Traffic};
use crate::fit::Solution;
use crate::sizing::Targets;

/// Precision of n*.
pub(crate) struct NStarInterval {
    /// Half of the 95 % interval, relative to n*. If no load meets the targets, it is the half width of alpha over the
    /// work of a request instead.
    pub(crate) half_width: f64,
    /// Some load meets the targets.
    pub(crate) feasible: bool,
}

/// The precision of n* at `targets`. Without a target, n* is taken at twice alpha, which gives the same relative interval
/// as any other multiple.
pub(crate) fn n_star_interval(
    solution: &Solution,
    parameters: &Parameters,
    traffic: &Traffic,
    targets: &Targets,
) -> NStarInterval {
    let feasible = n_star(parameters, traffic, targets) > 0.0;
    let value = |candidate: &Parameters| {
        if feasible {
            n_star(candidate, traffic, targets)
        } else {
            candidate.alpha_ms / candidate.delta_ms(traffic)
        }
    };
    let base = value(parameters);
    let slope = |change: fn(&mut Parameters, f64), scale: f64| {
        let step = scale.max(parameters.alpha_ms * 1e-9) * 1e-4;
        let mut changed = *parameters;
        change(&mut changed, step);
        (value(&changed) - base) / step
    };
    let gradient = Vector3::new(
        slope(|changed, step| changed.alpha_ms += step, parameters.alpha_ms),
        slope(|changed, step| changed.beta_ms += step, parameters.beta_ms),
        slope(|changed, step| changed.gamma_ms += step, parameters.gamma_ms),
    );
    NStarInterval { half_width: solution.half_width(base, &gradient), feasible }
}

fn n_star(parameters: &Parameters, traffic: &Traffic, targets: &Targets) -> f64 {
    let (input, output) = (traffic.input, traffic.output);
    let (beta_ms, gamma_ms) = (parameters.beta_ms, parameters.gamma_ms);
    let by_ttft = targets.ttft_ms.map(|ms| ms - (beta_ms + gamma_ms) * input);
    let by_itl = targets.itl_ms.map(|ms| ms - beta_ms - gamma_ms * (input + f64::midpoint(output, 1.0)));
    let longest_ms = [by_ttft, by_itl].into_iter().flatten().fold(f64::INFINITY, f64::min);
    let slack_ms =
        if longest_ms.is_finite() { longest_ms - parameters.alpha_ms } else { parameters.alpha_ms };
    slack_ms / parameters.delta_ms(traffic)
}
