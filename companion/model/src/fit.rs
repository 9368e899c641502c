//! Fits alpha, beta and gamma to single requests by relative, robust, non-negative least squares, with a covariance.
//!
//! The residuals are relative, because the disturbance of a request's time between tokens grows with that time. The
//! weights are robust, because some requests are slow for reasons outside the model. The parameters are not negative,
//! because no hardware has negative costs. The covariance comes from the sandwich estimator, so it holds for any
//! distribution of the disturbances, and it is never below that of a small misfit of the model itself.

mod normal_equations;

use nalgebra::{Matrix3, Vector3};

use self::normal_equations::{NormalEquations, Weighted};
use crate::closed_form::Parameters;
use crate::reservoir::Sample;

/// Rounds of reweighting; later ones change nothing that matters.
const ROUNDS: usize = 12;
/// Rounds with Huber's weights, before Tukey's.
const HUBER_ROUNDS: usize = 3;
/// Cutoff of Huber's weights, in standard deviations: 95 % as efficient as least squares.
const HUBER_CUTOFF: f64 = 1.345;
/// Cutoff of Tukey's biweight, in standard deviations: 95 % as efficient as least squares.
const TUKEY_CUTOFF: f64 = 4.685;
/// The smallest relative deviation of a single request.
const DEVIATION_MIN: f64 = 0.02;
/// The largest part of an iteration that may count as time spent on prompts.
const PROMPTS_MAX: f64 = 0.9;
/// The part of the possible pace error that counts. Simulated servers show a tenth, and all of it if all requests are
/// alike and the end of one starts the next.
const PACE_ERROR_PART: f64 = 0.25;
/// With a spread of the number in flight no larger than this, the variation of C and M is of the size of the overlap
/// tracker's errors, and the interval is at least doubled.
const SPREAD_MIN: f64 = 0.12;
/// Number of gaps between tokens at which the error of the load equals the disturbance of the request itself.
const GAPS_HALF_WEIGHT: f64 = 16.0;

/// Fitted parameters and their precision.
#[derive(Clone, Copy, Debug)]
pub struct Solution {
    /// alpha, beta, gamma.
    pub theta: Vector3<f64>,
    /// Their covariance, as if none was held at 0.
    pub covariance: Matrix3<f64>,
    /// Error of the parameters if requests that are slow for reasons outside the model overlapped none of the additional
    /// prompts that their longer time lets them expect.
    pub pace_error: Vector3<f64>,
    /// Standard deviation of the logarithm of the number of decodes in flight.
    pub spread: f64,
    /// Robust standard deviation of the relative residual of a request.
    pub deviation: f64,
    /// Condition number of the observations, each column scaled to length 1; infinite if they are singular.
    pub condition: f64,
}

impl Solution {
    /// The parameters; `None` if alpha is 0.
    #[must_use]
    pub fn parameters(&self) -> Option<Parameters> {
        let [alpha_ms, beta_ms, gamma_ms] = [self.theta[0], self.theta[1], self.theta[2]];
        (alpha_ms > 0.0).then_some(Parameters { alpha_ms, beta_ms, gamma_ms })
    }

    /// Half of the 95 % interval, relative to `value`, of a quantity with this `gradient` by alpha, beta and gamma.
    /// Infinite if the interval is not finite.
    #[must_use]
    pub fn half_width(&self, value: f64, gradient: &Vector3<f64>) -> f64 {
        let variance = (gradient.transpose() * self.covariance * gradient)[0];
        let pace_error = PACE_ERROR_PART * gradient.dot(&self.pace_error);
        let relative = (1.96 * variance.max(0.0).sqrt()).hypot(pace_error) / value.abs();
        let half_width = relative * (1.0 + (SPREAD_MIN / self.spread).powi(2));
        if variance.is_finite() && value.is_finite() && half_width.is_finite() {
            half_width
        } else {
            f64::INFINITY
        }
    }

    /// C that the request would have seen at its expected speed.
    #[must_use]
    pub fn load(&self, sample: &Sample) -> f64 {
        regressors(sample, expected_itl_ms(sample, &self.theta), &self.theta)[1]
    }

    /// Logarithmic deviation of one sample from its expected time between tokens, in standard deviations of a new
    /// sample. `deviation_min` is the smallest relative deviation that is assumed.
    #[must_use]
    pub fn surprise(&self, sample: &Sample, deviation_min: f64) -> f64 {
        let expected = expected_itl_ms(sample, &self.theta);
        let row = regressors(sample, expected, &self.theta);
        let parameter_variance =
            (row.transpose() * self.covariance * row)[0].max(0.0) / (expected * expected);
        let sample_variance = self.deviation.max(deviation_min).powi(2) / sample_weight(sample);
        let surprise = (sample.decode.itl_ms / expected).ln() / (sample_variance + parameter_variance).sqrt();
        if surprise.is_finite() { surprise } else { 0.0 }
    }
}

/// The expected time between tokens: `itl = alpha + beta * (decodes + prompts per ms * itl) + gamma * M`.
///
/// Prompts arrive by the clock. A request that is slow for reasons outside the model overlaps more prompts for each of
/// its tokens, and its measured C would wrongly explain its slowness.
fn expected_itl_ms(sample: &Sample, theta: &Vector3<f64>) -> f64 {
    let prompts_part = (theta[1] * sample.decode.prompts / sample.decode.itl_ms).min(PROMPTS_MAX);
    let (decodes, resident) = iteration_means(sample, theta);
    (theta[0] + theta[1] * decodes + theta[2] * resident) / (1.0 - prompts_part)
}

/// The factors of alpha, beta and gamma for `sample`, if its time between tokens were `expected`.
fn regressors(sample: &Sample, expected: f64, theta: &Vector3<f64>) -> Vector3<f64> {
    let (decodes, resident) = iteration_means(sample, theta);
    let prompts = sample.decode.prompts * (expected / sample.decode.itl_ms);
    Vector3::new(1.0, decodes + prompts, resident)
}

/// Decodes in flight and resident tokens in the mean over iterations.
///
/// The overlap tracker's means are over time, and an iteration with more neighbours takes longer. The covariance of the
/// neighbours corrects for this.
fn iteration_means(sample: &Sample, theta: &Vector3<f64>) -> (f64, f64) {
    let decode = &sample.decode;
    let (decodes, resident) = (decode.batch - decode.prompts, decode.resident);
    let [count_variance, count_resident, resident_variance] = decode.neighbor_covariance;
    let iteration_ms = theta[0] + theta[1] * decodes + theta[2] * resident;
    let corrected = |covariance_ms: f64, mean: f64| {
        let excess = covariance_ms / iteration_ms;
        if excess.is_finite() { mean - excess.min(mean / 2.0) } else { mean }
    };
    (
        corrected(theta[1] * count_variance + theta[2] * count_resident, decodes),
        corrected(theta[1] * count_resident + theta[2] * resident_variance, resident),
    )
}

/// Weight of a sample relative to that of a long request: the load is known to about one iteration at either end.
fn sample_weight(sample: &Sample) -> f64 {
    sample.gaps / (sample.gaps + GAPS_HALF_WEIGHT)
}

/// Fits all `samples`; `None` if there are fewer than four, or the result is not finite.
#[must_use]
pub fn solve(samples: &[Sample]) -> Option<Solution> {
    if samples.len() < 4 {
        return None;
    }
    let mut expected: Vec<f64> = samples.iter().map(|sample| sample.decode.itl_ms).collect();
    let mut weights: Vec<f64> = samples.iter().map(sample_weight).collect();
    let mut theta = Vector3::zeros();
    let mut deviation = DEVIATION_MIN;
    let mut sizes = Vec::with_capacity(samples.len());
    for round in 0..ROUNDS {
        let previous = theta;
        theta = NormalEquations::new(&Weighted {
            samples,
            expected: &expected,
            weights: &weights,
            theta: &theta,
        })
        .solve()?;
        for (expected, sample) in expected.iter_mut().zip(samples) {
            *expected = expected_itl_ms(sample, &theta);
            if !(*expected > 0.0 && expected.is_finite()) {
                return None;
            }
        }
        let unchanged = (theta - previous).norm() <= 1e-7 * theta.norm();
        if unchanged && round > HUBER_ROUNDS {
            break;
        }
        sizes.clear();
        sizes.extend(residuals(samples, &expected).map(f64::abs));
        // 1.4826 times the median absolute deviation estimates the standard deviation.
        deviation = (1.4826 * median(&mut sizes)).max(DEVIATION_MIN / 4.0);
        for ((weight, residual), sample) in weights.iter_mut().zip(residuals(samples, &expected)).zip(samples)
        {
            *weight = sample_weight(sample) * robust_weight(round, residual / deviation);
        }
    }
    let weighted = Weighted { samples, expected: &expected, weights: &weights, theta: &theta };
    NormalEquations::new(&weighted).solution(&weighted, deviation)
}

/// Relative residuals, each scaled by the square root of its sample's weight.
fn residuals<'a>(samples: &'a [Sample], expected: &'a [f64]) -> impl Iterator<Item = f64> + 'a {
    samples
        .iter()
        .zip(expected)
        .map(|(sample, expected)| (sample.decode.itl_ms / expected - 1.0) * sample_weight(sample).sqrt())
}

/// Weight of a residual, in standard deviations. Huber's weights converge from any start; Tukey's then exclude outliers.
fn robust_weight(round: usize, residual: f64) -> f64 {
    if round < HUBER_ROUNDS {
        (HUBER_CUTOFF / residual.abs()).min(1.0)
    } else {
        (1.0 - (residual / TUKEY_CUTOFF).powi(2)).max(0.0).powi(2)
    }
}

fn median(values: &mut [f64]) -> f64 {
    let middle = values.len() / 2;
    if values.is_empty() {
        return 0.0;
    }
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}
