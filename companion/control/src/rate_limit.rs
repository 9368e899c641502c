//! The rest of a flow's budget, for the headers of a response.

use core::time::Duration;

use penstock_engine::policy::CostUnit;

/// What is left in the window of which the smallest part is left. The request that is answered counts, if it was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RateLimit {
    pub(crate) unit: CostUnit,
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    /// Until the whole limit is left again, if nothing more is used.
    pub(crate) resets_in: Duration,
}
