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
#[must_use]
pub fn bootstrap(_window: &Observed) -> Option<Parameters> {
    None
}
