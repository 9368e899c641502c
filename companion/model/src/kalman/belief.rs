//! The state of the filter: the logarithms of alpha, beta and gamma, with a covariance.

use nalgebra::{Matrix3, SymmetricEigen, Vector3};

use crate::closed_form::{Parameters, Traffic};

/// Variance of a new belief.
const INITIAL_VARIANCE: f64 = 0.25;
/// Variance added from one window to the next, because servers change.
const DRIFT_VARIANCE: f64 = 0.002_5;
/// Largest variance in any direction. Beyond e^±4 nothing is known.
const VARIANCE_MAX: f64 = 4.0;
/// Factor of the covariance after a rejected window.
const REJECTED_FACTOR: f64 = 4.0;
/// Variance added to beta and gamma when they made the observed load unstable.
const UNDEFINED_VARIANCE: f64 = 0.25;
/// The rho that such beta and gamma are scaled down to.
const RHO_STABLE: f64 = 0.979_999;
/// The smallest parameter, in milliseconds.
const PARAMETER_MIN_MS: f64 = 1e-12;

/// Estimated parameters and their covariance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Belief {
    pub(super) logarithms: Vector3<f64>,
    pub(super) covariance: Matrix3<f64>,
}

impl Belief {
    /// `parameters` with the initial variance. Parameters that aren't above 0 are replaced by a tiny value.
    #[must_use]
    pub fn new(parameters: &Parameters) -> Self {
        let logarithm = |value: f64| value.max(PARAMETER_MIN_MS).ln();
        Self {
            logarithms: Vector3::new(
                logarithm(parameters.alpha_ms),
                logarithm(parameters.beta_ms),
                logarithm(parameters.gamma_ms),
            ),
            covariance: Matrix3::from_diagonal_element(INITIAL_VARIANCE),
        }
    }

    /// The estimated parameters.
    #[must_use]
    pub fn parameters(&self) -> Parameters {
        exponentials(&self.logarithms)
    }

    /// Standard deviation of ln n* at targets inferred for such traffic, where n* is alpha over the work of a request.
    #[must_use]
    pub fn n_star_deviation(&self, traffic: &Traffic) -> f64 {
        let parameters = self.parameters();
        let beta_only = Parameters { gamma_ms: 0.0, ..parameters };
        let beta_part = beta_only.delta_ms(traffic) / parameters.delta_ms(traffic);
        let slope = Vector3::new(1.0, -beta_part, beta_part - 1.0);
        slope.dot(&(self.covariance * slope)).sqrt()
    }

    /// The prior of the next window: with the drift of one window added.
    pub(super) fn drifted(&self) -> Self {
        self.with_added_variance(DRIFT_VARIANCE)
    }

    /// These parameters with four times the covariance: a filter that rejects every window becomes less certain.
    #[must_use]
    pub fn widened(&self) -> Self {
        Self { covariance: limited(self.covariance * REJECTED_FACTOR), ..*self }
    }

    /// These parameters with the initial variance added.
    #[must_use]
    pub fn loosened(&self) -> Self {
        self.with_added_variance(INITIAL_VARIANCE)
    }

    fn with_added_variance(&self, variance: f64) -> Self {
        Self { covariance: limited(self.covariance + Matrix3::from_diagonal_element(variance)), ..*self }
    }

    /// The nearest belief under which the load is stable: beta and gamma scaled down, with more variance. A belief under
    /// which the load is stable is returned unchanged.
    #[must_use]
    pub fn stable_under(&self, traffic: &Traffic) -> Self {
        if self.parameters().solve(traffic).rho < 1.0 {
            return *self;
        }
        let mut covariance = self.covariance;
        for index in [1, 2] {
            covariance[(index, index)] += UNDEFINED_VARIANCE;
        }
        Self { logarithms: self.scaled_to_rho(RHO_STABLE, traffic), covariance: limited(covariance) }
    }

    /// The logarithms with beta and gamma scaled down together until the load's rho is at most `rho_max`.
    pub(super) fn scaled_to_rho(&self, rho_max: f64, traffic: &Traffic) -> Vector3<f64> {
        let rho = self.parameters().solve(traffic).rho;
        let mut logarithms = self.logarithms;
        if rho.is_finite() && rho > rho_max {
            // rho is linear in beta and gamma together.
            let shift = (rho_max / rho).ln();
            logarithms[1] += shift;
            logarithms[2] += shift;
        }
        logarithms
    }
}

/// The parameters with these logarithms.
pub(super) fn exponentials(logarithms: &Vector3<f64>) -> Parameters {
    Parameters { alpha_ms: logarithms[0].exp(), beta_ms: logarithms[1].exp(), gamma_ms: logarithms[2].exp() }
}

/// `covariance`, limited to [`VARIANCE_MAX`] in every direction.
fn limited(covariance: Matrix3<f64>) -> Matrix3<f64> {
    if covariance.trace() <= VARIANCE_MAX {
        return covariance;
    }
    let mut eigen = SymmetricEigen::new(covariance);
    for value in eigen.eigenvalues.iter_mut() {
        *value = value.min(VARIANCE_MAX);
    }
    let covariance = eigen.recompose();
    (covariance + covariance.transpose()) * 0.5
}
