//! One step of an extended Kalman filter over ln alpha, ln beta and ln gamma, as a pure function.
//!
//! The filter observes the logarithms of a window's mean TTFT and ITL. Parameters therefore stay above 0, and errors are
//! relative. The observation model is the closed forms alone, so the parameters absorb the effects that those leave out.
//! A step rejects a window that the prior can't explain; [`window_estimator`](crate::window_estimator) decides how the
//! filter goes on.

mod belief;
mod prediction;

use nalgebra::{Matrix2, Vector2, Vector3};

pub use self::belief::Belief;
pub(crate) use self::prediction::slopes;
use self::prediction::{Prediction, predict};
use crate::closed_form::Traffic;

/// 97.5 % point of chi squared with two degrees of freedom: the gate for TTFT and ITL together.
const NIS_MAX_BOTH: f64 = 7.378;
/// 97.5 % point of chi squared with one degree of freedom: the gate for one of them alone.
const NIS_MAX_ONE: f64 = 5.024;
/// Values of rho that the search for the most likely state also starts from: near rho = 1 the tangents of the closed
/// forms lead it astray.
const OTHER_START_RHOS: [f64; 2] = [0.5, 0.1];
/// Iterations of one update.
const ITERATIONS_MAX: usize = 20;
/// Halvings of one step.
const HALVINGS_MAX: usize = 20;
/// The update has converged when no logarithm changes by more than this.
const CONVERGED_CHANGE: f64 = 1e-10;

/// The measurements of one server in one window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measurement {
    /// The server's traffic; rate, input and output are finite and 0 or more.
    pub traffic: Traffic,
    /// Mean time to the first token, finite and above 0; `None` if not measured.
    pub ttft_ms: Option<f64>,
    /// Mean time between tokens, finite and above 0; `None` if not measured.
    pub itl_ms: Option<f64>,
}

/// Relative variances of the measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    /// Variance of the time to the first token.
    pub ttft: f64,
    /// Variance of the time between tokens.
    pub itl: f64,
}

impl Default for Noise {
    /// 95 % of the measurements are within 5 % of the mean.
    fn default() -> Self {
        let variance = (0.05_f64 / 1.96).powi(2);
        Self { ttft: variance, itl: variance }
    }
}

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// The prior explains the window.
    Accepted {
        /// The updated belief.
        posterior: Belief,
        /// Normalised innovation squared.
        nis: f64,
        /// The noise of this window alone.
        noise: Noise,
    },
    /// The window lies too far from the prior.
    Rejected {
        /// Normalised innovation squared.
        nis: f64,
    },
    /// The prior makes the load unstable, so it predicts nothing.
    Undefined,
}

/// Updates the belief `before` with one window.
///
/// The normalised innovation squared is that of the iterated update: the part of the window that the most likely state
/// leaves unexplained, plus the distance of that state from the prior. Where the closed forms are linear this is the
/// textbook's value. Near rho = 1 they are not linear, and a filter that measures along the tangent would reject windows
/// that it could explain, forever.
#[must_use]
pub fn step(before: &Belief, measurement: &Measurement, noise: &Noise) -> Step {
    let prior = before.drifted();
    let traffic = &measurement.traffic;
    let Some(expected) = predict(&prior.logarithms, traffic) else {
        return Step::Undefined;
    };
    let measured = Measured::new(measurement, noise);
    let limit = if measurement.ttft_ms.is_some() && measurement.itl_ms.is_some() {
        NIS_MAX_BOTH
    } else {
        NIS_MAX_ONE
    };
    let mut best = update(&prior, prior.logarithms, expected, &measured);
    for rho in OTHER_START_RHOS {
        if best.is_some_and(|(_, nis)| nis < limit) {
            break;
        }
        let start = prior.scaled_to_rho(rho, traffic);
        let candidate =
            predict(&start, traffic).and_then(|expected| update(&prior, start, expected, &measured));
        best = match (best, candidate) {
            (Some(current), Some(candidate)) if candidate.1 < current.1 => Some(candidate),
            (current, candidate) => current.or(candidate),
        };
    }
    match best {
        None => Step::Undefined,
        Some((posterior, nis)) if nis < limit => {
            Step::Accepted { noise: window_noise(&posterior, &measured, noise), posterior, nis }
        }
        Some((_, nis)) => Step::Rejected { nis },
    }
}

/// A measurement in logarithms. The information is 0 for a value that was not measured.
struct Measured {
    traffic: Traffic,
    value: Vector2<f64>,
    information: Vector2<f64>,
}

impl Measured {
    fn new(measurement: &Measurement, noise: &Noise) -> Self {
        let Measurement { traffic, ttft_ms, itl_ms } = *measurement;
        Self {
            traffic,
            value: Vector2::new(ttft_ms.map_or(0.0, f64::ln), itl_ms.map_or(0.0, f64::ln)),
            information: Vector2::new(
                ttft_ms.map_or(0.0, |_| 1.0 / noise.ttft),
                itl_ms.map_or(0.0, |_| 1.0 / noise.itl),
            ),
        }
    }
}

/// The noise of one window: the residual that the posterior leaves, plus the uncertainty that the posterior keeps. Their
/// sum is the noise on average. The residuals of the prior would not do, because the prior may be far off.
fn window_noise(posterior: &Belief, measured: &Measured, noise: &Noise) -> Noise {
    let Some(prediction) = predict(&posterior.logarithms, &measured.traffic) else {
        return *noise;
    };
    let residual = measured.value - prediction.value;
    let uncertainty = prediction.slope * posterior.covariance * prediction.slope.transpose();
    let variance = |index: usize, unmeasured: f64| {
        if measured.information[index] > 0.0 {
            residual[index] * residual[index] + uncertainty[(index, index)]
        } else {
            unmeasured
        }
    };
    Noise { ttft: variance(0, noise.ttft), itl: variance(1, noise.itl) }
}

/// The iterated update: Gauss-Newton steps to the most likely state, each halved until it doesn't increase the cost.
/// Returns the posterior and its cost; `None` if a matrix is singular or a value is not finite.
fn update(
    prior: &Belief,
    start: Vector3<f64>,
    expected: Prediction,
    measured: &Measured,
) -> Option<(Belief, f64)> {
    let prior_inverse = prior.covariance.try_inverse()?;
    let weights = Matrix2::from_diagonal(&measured.information);
    let cost_at = |logarithms: &Vector3<f64>, prediction: &Prediction| {
        let distance = logarithms - prior.logarithms;
        let residual = measured.value - prediction.value;
        distance.dot(&(prior_inverse * distance)) + residual.dot(&(weights * residual))
    };
    let information =
        |prediction: &Prediction| prior_inverse + prediction.slope.transpose() * weights * prediction.slope;
    let mut logarithms = start;
    let mut prediction = expected;
    let mut cost = cost_at(&logarithms, &prediction);
    for _ in 0..ITERATIONS_MAX {
        let residual = measured.value - prediction.value;
        let gradient = prediction.slope.transpose() * weights * residual
            - prior_inverse * (logarithms - prior.logarithms);
        let mut change = information(&prediction).try_inverse()? * gradient;
        let improved = (0..HALVINGS_MAX).find_map(|_| {
            let candidate = logarithms + change;
            let improved = predict(&candidate, &measured.traffic)
                .map(|prediction| (candidate, cost_at(&candidate, &prediction), prediction))
                .filter(|(_, candidate_cost, _)| *candidate_cost <= cost);
            if improved.is_none() {
                change *= 0.5;
            }
            improved
        });
        let Some(improved) = improved else {
            break;
        };
        (logarithms, cost, prediction) = improved;
        if change.amax() < CONVERGED_CHANGE {
            break;
        }
    }
    let covariance = information(&prediction).try_inverse()?;
    let posterior = Belief { logarithms, covariance: (covariance + covariance.transpose()) * 0.5 };
    cost.is_finite().then_some((posterior, cost))
}
