//! The parameters that explain single requests best: relative, robust, non-negative least squares, and how sure they
//! are.
//!
//! Relative, because what disturbs a request's time between tokens grows with it; robust, because some requests are
//! late for reasons of their own; not negative, because no hardware is. The covariance is the sandwich's, so it holds
//! whatever the disturbances are distributed like, and is never less than what a small misfit of the model itself
//! would do.

use nalgebra::{Matrix3, Vector3};

use crate::closed_form::Parameters;
use crate::reservoir::Sample;

/// Rounds of reweighting; later ones change nothing that matters.
const ROUNDS: usize = 12;
/// Where Tukey's biweight stops listening, in standard deviations: 95 % as efficient as least squares.
const DEAF: f64 = 4.685;
/// The least relative deviation that is believed of one request.
const DEVIATION_MIN: f64 = 0.02;
/// The largest part of an iteration that is believed to compute prompts.
const BUSY_MAX: f64 = 0.9;
/// How much of that is taken for possible: servers that were simulated show a tenth, and all of it where every request is
/// alike and their ends trigger one another.
const SUSPECTED: f64 = 0.25;
/// Where the number in flight spreads no more than this, C and M vary by what arrives when, and the ledger's own errors
/// are of that size: the interval counts twice.
const SPREAD: f64 = 0.12;
/// Requests beyond which more of them don't make it surer: what the model leaves out doesn't average out.
const EVIDENCE_MAX: f64 = 2_000.0;
/// Times between tokens at which the error of the load equals the request's own disturbance.
const GAPS: f64 = 16.0;

/// What was fitted.
#[derive(Clone, Copy, Debug)]
pub struct Solution {
    /// alpha, beta, gamma.
    pub theta: Vector3<f64>,
    /// Their covariance, as if none was held at 0.
    pub covariance: Matrix3<f64>,
    /// By how much they would be off if requests that are slow for reasons of their own saw none of the prompts that the
    /// clock lets them expect, rather than all.
    pub suspicion: Vector3<f64>,
    /// By how much the others in flight differed in number: standard deviation of the logarithm.
    pub spread: f64,
    /// Standard deviation of a request's relative residual, robustly.
    pub deviation: f64,
    /// Of what was observed, each column scaled to length 1; infinite: it is singular.
    pub condition: f64,
}

impl Solution {
    /// The parameters, unless alpha is 0.
    #[must_use]
    pub fn parameters(&self) -> Option<Parameters> {
        let [alpha_ms, beta_ms, gamma_ms] = [self.theta[0], self.theta[1], self.theta[2]];
        (alpha_ms > 0.0).then_some(Parameters {
            alpha_ms,
            beta_ms,
            gamma_ms,
        })
    }

    /// Half of the 95 % interval of the quantity whose value is `value` and whose gradient by alpha, beta and gamma is
    /// `gradient`, relative to it. Infinite, if that can't be said.
    #[must_use]
    pub fn half_width(&self, value: f64, gradient: &Vector3<f64>) -> f64 {
        let variance = (gradient.transpose() * self.covariance * gradient)[0];
        let suspected = SUSPECTED * gradient.dot(&self.suspicion);
        let half = (1.96 * variance.max(0.0).sqrt()).hypot(suspected) / value.abs();
        let half = half * (1.0 + (SPREAD / self.spread).powi(2));
        if variance.is_finite() && value.is_finite() && half.is_finite() {
            half
        } else {
            f64::INFINITY
        }
    }

    /// C, if the request had been as fast as is expected: without what disturbed it.
    #[must_use]
    pub fn load(&self, sample: &Sample) -> f64 {
        regressors(sample, expectation(sample, &self.theta), &self.theta)[1]
    }

    /// How far one observation is from what is expected, in standard deviations of one that is new.
    #[must_use]
    pub fn surprise(&self, sample: &Sample, deviation_min: f64) -> f64 {
        let expected = expectation(sample, &self.theta);
        let x = regressors(sample, expected, &self.theta);
        let unsure = (x.transpose() * self.covariance * x)[0].max(0.0) / (expected * expected);
        let deviation = self.deviation.max(deviation_min).powi(2) / weight_of(sample);
        let z = (sample.decode.itl_ms / expected).ln() / (deviation + unsure).sqrt();
        if z.is_finite() { z } else { 0.0 }
    }
}

/// The time between tokens that `theta` expects: `itl = alpha + beta * (decodes + prompts per ms * itl) + gamma * M`.
/// Prompt tokens arrive by the clock: a request that is slow for reasons of its own sees more of them for each of its
/// tokens, and C taken at its word would explain its slowness.
fn expectation(sample: &Sample, theta: &Vector3<f64>) -> f64 {
    let busy = (theta[1] * sample.decode.prompts / sample.decode.itl_ms).min(BUSY_MAX);
    let (decodes, resident) = beside(sample, theta);
    (theta[0] + theta[1] * decodes + theta[2] * resident) / (1.0 - busy)
}

/// What the parameters are multiplied with, if it had the time between tokens that is `expected` with `theta`.
fn regressors(sample: &Sample, expected: f64, theta: &Vector3<f64>) -> Vector3<f64> {
    let (decodes, resident) = beside(sample, theta);
    let prompts = sample.decode.prompts * (expected / sample.decode.itl_ms);
    Vector3::new(1.0, decodes + prompts, resident)
}

/// Decodes and resident tokens in the mean of its iterations. The ledger's means are over time, and where others came
/// and went the iterations beside them were longer.
fn beside(sample: &Sample, theta: &Vector3<f64>) -> (f64, f64) {
    let decode = &sample.decode;
    let (decodes, resident) = (decode.batch - decode.prompts, decode.resident);
    let [cc, cm, mm] = decode.uneven;
    let iteration_ms = theta[0] + theta[1] * decodes + theta[2] * resident;
    let by = |covariance_ms: f64, mean: f64| {
        let over = covariance_ms / iteration_ms;
        if over.is_finite() {
            mean - over.min(mean / 2.0)
        } else {
            mean
        }
    };
    (
        by(theta[1] * cc + theta[2] * cm, decodes),
        by(theta[1] * cm + theta[2] * mm, resident),
    )
}

/// What a sample counts beside a long one: the edges of its load are known to an iteration or so.
fn weight_of(sample: &Sample) -> f64 {
    sample.gaps / (sample.gaps + GAPS)
}

/// The fit to all of `samples`; `None`: there are fewer than four, or nothing finite came of it.
#[must_use]
pub fn solve(samples: &[Sample]) -> Option<Solution> {
    if samples.len() < 4 {
        return None;
    }
    let mut expected: Vec<f64> = samples.iter().map(|s| s.decode.itl_ms).collect();
    let mut weights: Vec<f64> = samples.iter().map(weight_of).collect();
    let mut theta = Vector3::zeros();
    let mut deviation = DEVIATION_MIN;
    let mut sizes = Vec::with_capacity(samples.len());
    for round in 0..ROUNDS {
        let normal = Normal::new(samples, &expected, &weights, &theta);
        let before = theta;
        theta = normal.solve()?;
        for (expected, sample) in expected.iter_mut().zip(samples) {
            *expected = expectation(sample, &theta);
            if !(*expected > 0.0 && expected.is_finite()) {
                return None;
            }
        }
        let still = (theta - before).norm() <= 1e-7 * theta.norm();
        if still && round > 3 {
            break;
        }
        sizes.clear();
        sizes.extend(residuals(samples, &expected).map(f64::abs));
        deviation = (1.4826 * median(&mut sizes)).max(DEVIATION_MIN / 4.0);
        for ((weight, residual), sample) in weights.iter_mut().zip(residuals(samples, &expected)).zip(samples)
        {
            *weight = weight_of(sample) * listening(round, residual / deviation);
        }
    }
    Normal::new(samples, &expected, &weights, &theta).judged(samples, &expected, &weights, &theta, deviation)
}

/// Relative, and by as much smaller as a sample counts less.
fn residuals<'a>(samples: &'a [Sample], expected: &'a [f64]) -> impl Iterator<Item = f64> + 'a {
    samples
        .iter()
        .zip(expected)
        .map(|(sample, expected)| (sample.decode.itl_ms / expected - 1.0) * weight_of(sample).sqrt())
}

/// Huber's weights to come near, whatever it began with; then Tukey's.
fn listening(round: usize, z: f64) -> f64 {
    if round < 3 {
        (1.345 / z.abs()).min(1.0)
    } else {
        (1.0 - (z / DEAF).powi(2)).max(0.0).powi(2)
    }
}

fn median(values: &mut [f64]) -> f64 {
    let middle = values.len() / 2;
    if values.is_empty() {
        return 0.0;
    }
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}

/// The normal equations of the scaled columns.
struct Normal {
    matrix: Matrix3<f64>,
    right: Vector3<f64>,
    /// A column's length.
    scale: Vector3<f64>,
}

impl Normal {
    fn new(samples: &[Sample], expected: &[f64], weights: &[f64], theta: &Vector3<f64>) -> Self {
        let mut matrix = Matrix3::zeros();
        let mut right = Vector3::zeros();
        for ((sample, expected), weight) in samples.iter().zip(expected).zip(weights) {
            let x = regressors(sample, *expected, theta) / *expected;
            matrix += x * x.transpose() * *weight;
            right += x * (sample.decode.itl_ms / expected * weight);
        }
        let scale = matrix.diagonal().map(|square| {
            let length = square.max(0.0).sqrt();
            if length > 0.0 && length.is_finite() {
                length
            } else {
                1.0
            }
        });
        for row in 0..3 {
            for column in 0..3 {
                matrix[(row, column)] /= scale[row] * scale[column];
            }
        }
        Self {
            matrix,
            right: right.component_div(&scale),
            scale,
        }
    }

    /// The best that isn't negative: of all sets of parameters held at 0, the one that leaves least.
    fn solve(&self) -> Option<Vector3<f64>> {
        let mut best: Option<(f64, Vector3<f64>)> = None;
        for free in 1_u8..8 {
            let free = Vector3::new(free & 1 != 0, free & 2 != 0, free & 4 != 0);
            let Some(inverse) = self.inverse(&free) else {
                continue;
            };
            let theta = inverse * self.right;
            if theta.iter().any(|value| !value.is_finite() || *value < 0.0) {
                continue;
            }
            let left = (theta.transpose() * self.matrix * theta)[0] - 2.0 * theta.dot(&self.right);
            if best.is_none_or(|(least, _)| left < least) {
                best = Some((left, theta));
            }
        }
        best.map(|(_, theta)| theta.component_div(&self.scale))
    }

    /// Of the rows and columns that are free; the others are 0.
    fn inverse(&self, free: &Vector3<bool>) -> Option<Matrix3<f64>> {
        let mut matrix = self.matrix;
        for row in 0..3 {
            for column in 0..3 {
                if !(free[row] && free[column]) {
                    matrix[(row, column)] = 0.0;
                }
            }
            // A ridge far below any noise, so that what was never varied is shared out rather than singular.
            matrix[(row, row)] = if free[row] {
                matrix[(row, row)] + 1e-10
            } else {
                1.0
            };
        }
        let mut inverse = matrix.cholesky()?.inverse();
        for at in (0..3).filter(|at| !free[*at]) {
            inverse[(at, at)] = 0.0;
        }
        Some(inverse)
    }

    fn judged(
        &self,
        samples: &[Sample],
        expected: &[f64],
        weights: &[f64],
        theta: &Vector3<f64>,
        deviation: f64,
    ) -> Option<Solution> {
        let eigenvalues = self.matrix.symmetric_eigenvalues();
        let (least, most) = (eigenvalues.min(), eigenvalues.max());
        let condition = if least > 0.0 {
            (most / least).sqrt()
        } else {
            f64::INFINITY
        };
        // One that is held at 0 is no surer than what was seen makes it: one operating point can't tell it from others.
        let inverse = self.inverse(&Vector3::repeat(true))?;
        let mut meat = Matrix3::zeros();
        for ((sample, expected), weight) in samples.iter().zip(expected).zip(weights) {
            let x = regressors(sample, *expected, theta).component_div(&self.scale) / *expected;
            let residual = sample.decode.itl_ms / expected - 1.0;
            let least = DEVIATION_MIN.powi(2) / weight_of(sample);
            meat += x * x.transpose() * (weight.powi(2) * residual.powi(2).max(least));
        }
        let count = samples.len() as f64;
        let few = (count / (count - 3.0)).max(count / EVIDENCE_MAX);
        let mut covariance = inverse * meat * inverse * few;
        for row in 0..3 {
            for column in 0..3 {
                covariance[(row, column)] /= self.scale[row] * self.scale[column];
            }
        }
        let paced = |(sample, weight): (&Sample, &f64)| {
            weight * sample.decode.prompts / sample.decode.itl_ms * deviation.powi(2)
        };
        let pace: f64 = samples.iter().zip(weights).map(paced).sum();
        let beside = |sample: &Sample| (sample.decode.batch - sample.decode.prompts).max(1e-9).ln();
        let mean = samples.iter().map(beside).sum::<f64>() / count;
        let spread = samples.iter().map(|it| (beside(it) - mean).powi(2)).sum::<f64>() / count;
        let suspicion =
            Vector3::from_fn(|row, _| pace * inverse[(row, 1)] / (self.scale[row] * self.scale[1]));
        let finite = covariance
            .iter()
            .chain(theta.iter())
            .all(|value| value.is_finite());
        finite.then_some(Solution {
            theta: *theta,
            covariance,
            suspicion,
            spread: spread.sqrt(),
            deviation,
            condition,
        })
    }
}
