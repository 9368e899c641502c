//! Admission credit at one endpoint: requests that filters may run there without asking. They count as if they ran.

use super::Endpoint;
use crate::gate::counts_tokens;
use crate::policy::Gate;

impl Endpoint {
    /// The credit, as far as it counts in the stock under this gate.
    pub(crate) const fn credit_in(&self, gate: Gate) -> u64 {
        if counts_tokens(gate) { 0 } else { self.credit }
    }

    /// The credit here may stay. While clients leave early, a filter may fill each of its places once more before the companion
    /// learns of it.
    pub(crate) fn keeps_credit(&self) -> bool {
        let limits = self.limits();
        let again = if self.abandoned.len() > 0 { self.credit } else { 0 };
        self.ready
            // Its places are for prompts, and for whole requests that have no other.
            && !self.prefills_for_others()
            && limits.ramp.is_none()
            && limits.pushback.is_none()
            && self.within().saturating_add(again) <= self.bound
    }

    /// How many requests more filters may run here without asking, in a gate that counts requests: up to half of the bound besides one
    /// request that runs, with a place left for others, and none while the endpoint starts slowly or refuses requests.
    pub(crate) fn credit_room(&self) -> u64 {
        if !self.has_room() || !self.keeps_credit() {
            return 0;
        }
        let within = self.within();
        let left = self.bound.saturating_sub(within).saturating_sub(1);
        half(self.bound).saturating_sub(within.saturating_sub(1)).min(left)
    }
}

/// Half of a bound; an unlimited bound stays unlimited.
pub(crate) const fn half(bound: u64) -> u64 {
    if bound == u64::MAX { bound } else { bound / 2 }
}
