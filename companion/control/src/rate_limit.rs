//! The rest of a flow's budget, for the headers of a response.

use core::time::Duration;

use penstock_engine::Instant;
use penstock_engine::policy::CostUnit;
use penstock_engine::snapshot::BudgetWindowSnapshot;

/// What is left in the window of which the smallest part is left. The request that is answered counts, if it was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RateLimit {
    pub(crate) unit: CostUnit,
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    /// Until the whole limit is left again, if nothing more is used.
    pub(crate) resets_in: Duration,
}

impl RateLimit {
    pub(crate) fn of(window: &BudgetWindowSnapshot, now: Instant) -> Self {
        Self {
            unit: window.unit,
            limit: window.limit,
            remaining: window.remaining,
            resets_in: window.resets_at.since(now),
        }
    }
}
