//! The closed forms in logarithms, with their slopes.

use nalgebra::{Matrix2x3, Vector2, Vector3};

use super::belief::{Belief, exponentials};
use crate::closed_form::{Parameters, Traffic};

/// ln TTFT and ln ITL.
pub(super) struct Prediction {
    pub(super) value: Vector2<f64>,
    /// Slopes by ln alpha, ln beta and ln gamma; one row for TTFT and one for ITL.
    pub(super) slope: Matrix2x3<f64>,
}

/// The slopes of ln TTFT and ln ITL, as rows, by ln alpha, ln beta and ln gamma; `None` if there is no steady state.
#[must_use]
pub(crate) fn slopes(parameters: &Parameters, traffic: &Traffic) -> Option<Matrix2x3<f64>> {
    predict(&Belief::new(parameters).logarithms, traffic).map(|prediction| prediction.slope)
}

/// Predicts ln TTFT and ln ITL; `None` if there is no steady state or a value is not finite.
pub(super) fn predict(logarithms: &Vector3<f64>, traffic: &Traffic) -> Option<Prediction> {
    let parameters = exponentials(logarithms);
    let solved = parameters.solve(traffic);
    let steady = solved.steady?;
    let (i, o) = (traffic.input, traffic.output);
    let Parameters { alpha_ms, beta_ms, gamma_ms } = parameters;
    // T = alpha / (1 - rho), so dT/drho = T / (1 - rho); rho is linear in beta and gamma.
    let iterations_per_ms = traffic.rate / 1_000.0 * (o + 1.0);
    let by_rho = steady.iteration_ms / (1.0 - solved.rho);
    let by_beta = by_rho * iterations_per_ms * (i + o) / (o + 1.0);
    let by_gamma = by_rho * iterations_per_ms * (i + o / 2.0);
    let by_alpha = steady.iteration_ms / alpha_ms;
    let slope = Matrix2x3::new(
        by_alpha * alpha_ms / steady.ttft_ms,
        (by_beta + i) * beta_ms / steady.ttft_ms,
        (by_gamma + i) * gamma_ms / steady.ttft_ms,
        by_alpha * alpha_ms / steady.itl_ms,
        (by_beta + 1.0) * beta_ms / steady.itl_ms,
        (by_gamma + i + (o + 1.0) / 2.0) * gamma_ms / steady.itl_ms,
    );
    let value = Vector2::new(steady.ttft_ms.ln(), steady.itl_ms.ln());
    let finite = value.iter().chain(slope.iter()).all(|number| number.is_finite());
    finite.then_some(Prediction { value, slope })
}
