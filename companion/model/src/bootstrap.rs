//! Initial parameters from a single window, and the defaults if that fails.

use crate::closed_form::Parameters;
use crate::workload::Observed;

/// Parameters to start from when nothing is known.
pub const DEFAULTS: Parameters = Parameters { alpha_ms: 5.0, beta_ms: 0.05, gamma_ms: 0.000_05 };

/// Parameters that explain this window. `None` if one of them would not be positive, or if rho would be 0.95 or more
/// under the very load of the window.
///
/// Several endpoints count as identical ones that share the load equally. The two measurements can't determine three
/// parameters, so an iteration is assumed to be 90 % alpha. For a loaded server that is too much, hence the limit of
/// rho.
#[must_use]
pub fn bootstrap(window: &Observed) -> Option<Parameters> {
    let traffic = &window.per_server();
    let (i, o) = (traffic.input, traffic.output);
    let alpha_ms = ALPHA_OF_ITL * window.itl_ms;
    let per_token_ms = (window.ttft_ms - alpha_ms) / i;
    let gamma_ms = ((window.itl_ms - alpha_ms) - per_token_ms) / (i + (o + 1.0) / 2.0 - 1.0);
    let parameters = Parameters { alpha_ms, beta_ms: per_token_ms - gamma_ms, gamma_ms };
    let positive = parameters.is_valid() && parameters.beta_ms > 0.0 && parameters.gamma_ms > 0.0;
    (positive && parameters.solve(traffic).rho < RHO_MAX).then_some(parameters)
}

/// The part of the time between tokens that is assumed to be alpha.
const ALPHA_OF_ITL: f64 = 0.9;
/// Utilisation under the window's own load from which the result is rejected.
const RHO_MAX: f64 = 0.95;
