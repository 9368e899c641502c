//! Whether a policy allows admission credit.

use super::{Admit, Gate, Policy, StockUnit};

impl Policy {
    /// Whether filters may run requests without asking while nothing waits: stock is counted in requests or sequences, no limit could
    /// decide otherwise as long as there is much room, and a request for which there is no room until credit has come back can wait for
    /// it.
    #[must_use]
    pub fn allows_credit(&self) -> bool {
        // A place is for a request of one sequence.
        let counts_places = match self.gate {
            Gate::Open => true,
            Gate::Bounded { unit, .. } => unit != StockUnit::Tokens,
            Gate::Auto { .. } | Gate::Manual => false,
        };
        let has_limits = self.bands.ceilings.iter().any(Option::is_some)
            || self.flows.max_in_flight.is_some()
            || self.flows.max_in_flight_per_endpoint.is_some()
            || self.flows.budgets.iter().any(|budget| !budget.shadow)
            || self.queue.max_rate.is_some()
            || self.has_prefill_thresholds();
        // Which bucket a request is in depends on the endpoint that has its prefix cached.
        let has_buckets = self.classes.iter().any(|set| !set.buckets.is_empty());
        let queue = &self.queue;
        let may_wait = queue.enabled && queue.total_capacity > 0 && queue.admit == Admit::All;
        counts_places && may_wait && !has_limits && !has_buckets
    }
}
