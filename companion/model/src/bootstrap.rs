//! First parameters from one window, and the defaults where that fails.

use crate::closed_form::Parameters;
use crate::workload::Observed;

/// Where nothing is known.
pub const DEFAULTS: Parameters = Parameters {
    alpha_ms: 5.0,
    beta_ms: 0.05,
    gamma_ms: 0.000_05,
};

/// Parameters that explain this window; `None` if there are none, or they aren't stable under the very load they come
/// from.
///
/// Several endpoints together are taken as one of them, each with the same part of the load. Two numbers can't give three, so an iteration is taken to be nearly all alpha. Of a loaded server that is too much,
/// which is why its own load has to be stable under what comes out.
#[must_use]
pub fn bootstrap(window: &Observed) -> Option<Parameters> {
    let traffic = &window.per_server();
    let (i, o) = (traffic.input, traffic.output);
    let alpha_ms = ALPHA_OF_ITL * window.itl_ms;
    let per_token_ms = (window.ttft_ms - alpha_ms) / i;
    let gamma_ms = ((window.itl_ms - alpha_ms) - per_token_ms) / (i + (o + 1.0) / 2.0 - 1.0);
    let found = Parameters {
        alpha_ms,
        beta_ms: per_token_ms - gamma_ms,
        gamma_ms,
    };
    let positive = found.is_valid() && found.beta_ms > 0.0 && found.gamma_ms > 0.0;
    (positive && found.solve(traffic).rho < RHO_MAX).then_some(found)
}

const ALPHA_OF_ITL: f64 = 0.9;
const RHO_MAX: f64 = 0.95;
