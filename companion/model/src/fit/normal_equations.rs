//! The weighted normal equations of the fit, with scaled columns: their non-negative solution and its covariance.

use nalgebra::{Matrix3, Vector3};

use super::{DEVIATION_MIN, Solution, regressors, sample_weight};
use crate::reservoir::Sample;

/// Samples beyond this number don't narrow the interval: errors that the model leaves out don't average out.
const EVIDENCE_MAX: f64 = 2_000.0;
/// Added to the diagonal: far below any noise, and enough to share parameters out that the samples can't tell apart.
const RIDGE: f64 = 1e-10;

/// The samples of a fit, with the time between tokens expected of each, their weights, and the parameters `theta` that
/// these expectations come from.
#[derive(Clone, Copy)]
pub(super) struct Weighted<'a> {
    pub(super) samples: &'a [Sample],
    pub(super) expected: &'a [f64],
    pub(super) weights: &'a [f64],
    pub(super) theta: &'a Vector3<f64>,
}

impl Weighted<'_> {
    /// Each sample with its expected time between tokens and its weight.
    fn rows(&self) -> impl Iterator<Item = (&Sample, f64, f64)> {
        let values = self.expected.iter().zip(self.weights);
        let rows = self.samples.iter().zip(values);
        rows.map(|(sample, (expected, weight))| (sample, *expected, *weight))
    }
}

/// The normal equations; each column is scaled to length 1.
pub(super) struct NormalEquations {
    matrix: Matrix3<f64>,
    right: Vector3<f64>,
    /// Lengths of the columns.
    scale: Vector3<f64>,
}

impl NormalEquations {
    pub(super) fn new(weighted: &Weighted<'_>) -> Self {
        let mut matrix = Matrix3::zeros();
        let mut right = Vector3::zeros();
        for (sample, expected, weight) in weighted.rows() {
            let row = regressors(sample, expected, weighted.theta) / expected;
            matrix += row * row.transpose() * weight;
            right += row * (sample.decode.itl_ms / expected * weight);
        }
        let scale = matrix.diagonal().map(|square| {
            let length = square.max(0.0).sqrt();
            if length > 0.0 && length.is_finite() { length } else { 1.0 }
        });
        Self { matrix: unscaled(matrix, &scale), right: right.component_div(&scale), scale }
    }

    /// The best non-negative parameters: of all sets of parameters held at 0, the one with the least residual.
    pub(super) fn solve(&self) -> Option<Vector3<f64>> {
        let mut best: Option<(f64, Vector3<f64>)> = None;
        for subset in 1_u8..8 {
            let free = Vector3::new(subset & 1 != 0, subset & 2 != 0, subset & 4 != 0);
            let Some(inverse) = self.inverse(&free) else {
                continue;
            };
            let theta = inverse * self.right;
            if theta.iter().any(|value| !value.is_finite() || *value < 0.0) {
                continue;
            }
            let residual = (theta.transpose() * self.matrix * theta)[0] - 2.0 * theta.dot(&self.right);
            if best.is_none_or(|(least, _)| residual < least) {
                best = Some((residual, theta));
            }
        }
        best.map(|(_, theta)| theta.component_div(&self.scale))
    }

    /// The inverse over the rows and columns that are `free`; all other elements are 0.
    fn inverse(&self, free: &Vector3<bool>) -> Option<Matrix3<f64>> {
        let mut matrix = self.matrix;
        for row in 0..3 {
            for column in 0..3 {
                if !(free[row] && free[column]) {
                    matrix[(row, column)] = 0.0;
                }
            }
            matrix[(row, row)] = if free[row] { matrix[(row, row)] + RIDGE } else { 1.0 };
        }
        let mut inverse = matrix.cholesky()?.inverse();
        for index in (0..3).filter(|index| !free[*index]) {
            inverse[(index, index)] = 0.0;
        }
        Some(inverse)
    }

    /// The solution with its covariance. `deviation` is the standard deviation of the relative residuals.
    pub(super) fn solution(&self, weighted: &Weighted<'_>, deviation: f64) -> Option<Solution> {
        // Over all parameters: one held at 0 is only as certain as the samples make it, because a single operating
        // point can't separate the parameters.
        let inverse = self.inverse(&Vector3::repeat(true))?;
        let covariance = self.covariance(weighted, &inverse);
        let finite = covariance.iter().chain(weighted.theta.iter()).all(|value| value.is_finite());
        finite.then(|| Solution {
            theta: *weighted.theta,
            covariance,
            pace_error: self.pace_error(weighted, &inverse, deviation),
            spread: spread(weighted.samples),
            deviation,
            condition: self.condition(),
        })
    }

    /// Condition number; infinite if the equations are singular.
    fn condition(&self) -> f64 {
        let eigenvalues = self.matrix.symmetric_eigenvalues();
        let (least, most) = (eigenvalues.min(), eigenvalues.max());
        if least > 0.0 { (most / least).sqrt() } else { f64::INFINITY }
    }

    /// The sandwich estimator: it holds for any distribution of the residuals.
    fn covariance(&self, weighted: &Weighted<'_>, inverse: &Matrix3<f64>) -> Matrix3<f64> {
        let mut meat = Matrix3::zeros();
        for (sample, expected, weight) in weighted.rows() {
            let row = regressors(sample, expected, weighted.theta).component_div(&self.scale) / expected;
            let residual = sample.decode.itl_ms / expected - 1.0;
            let least = DEVIATION_MIN.powi(2) / sample_weight(sample);
            meat += row * row.transpose() * (weight.powi(2) * residual.powi(2).max(least));
        }
        let count = weighted.samples.len() as f64;
        let correction = (count / (count - 3.0)).max(count / EVIDENCE_MAX);
        unscaled(inverse * meat * inverse * correction, &self.scale)
    }

    /// See [`Solution::pace_error`].
    fn pace_error(&self, weighted: &Weighted<'_>, inverse: &Matrix3<f64>, deviation: f64) -> Vector3<f64> {
        let excess_prompts: f64 = weighted
            .rows()
            .map(|(sample, _, weight)| {
                weight * sample.decode.prompts / sample.decode.itl_ms * deviation.powi(2)
            })
            .sum();
        Vector3::from_fn(|row, _| excess_prompts * inverse[(row, 1)] / (self.scale[row] * self.scale[1]))
    }
}

/// `matrix` with each element divided by the scales of its row and column.
fn unscaled(mut matrix: Matrix3<f64>, scale: &Vector3<f64>) -> Matrix3<f64> {
    for row in 0..3 {
        for column in 0..3 {
            matrix[(row, column)] /= scale[row] * scale[column];
        }
    }
    matrix
}

/// Standard deviation of the logarithm of the number of decodes in flight.
fn spread(samples: &[Sample]) -> f64 {
    let count = samples.len() as f64;
    let logarithm = |sample: &Sample| (sample.decode.batch - sample.decode.prompts).max(1e-9).ln();
    let mean = samples.iter().map(logarithm).sum::<f64>() / count;
    let squares = samples.iter().map(|sample| (logarithm(sample) - mean).powi(2));
    (squares.sum::<f64>() / count).sqrt()
}
