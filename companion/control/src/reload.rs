//! Another configuration under everything that waits and runs: pools come and go, their endpoints too.

use penstock_engine::Instant;

use crate::control::Control;
use crate::settings::{EndpointSettings, Settings};

impl Control {
    /// Holds to other settings from now on.
    pub(crate) fn reload(&mut self, _now: Instant, _settings: Settings) {}

    /// A pool's endpoints are these from now on.
    pub(crate) fn relist(&mut self, _now: Instant, _pool: &str, _endpoints: &[EndpointSettings]) {}
}
