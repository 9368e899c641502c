//! Whether an endpoint takes a request in the place of one that runs there.

use super::Endpoint;
use crate::load::Load;
use crate::policy::{Gate, StockUnit};

impl Endpoint {
    /// A request with the load `more` fits here once one with the load `less` has ended, which runs here within the bound.
    pub(crate) fn takes_in_place(&self, more: &Load, less: &Load, gate: Gate) -> bool {
        let within = self.within().saturating_sub(less.in_unit(self.unit));
        let freed = if self.unit == StockUnit::Sequences { less.sequences } else { 1 };
        let counted = self.counted().saturating_sub(freed);
        let limit = self.starting_limit().into_iter().chain(self.pushback.limit()).min();
        // A place for prompts is of no use.
        let bound = if self.prefills_for_others() { self.whole_places } else { self.bound };
        let has_room = self.ready && within < bound && limit.is_none_or(|limit| counted < limit);
        let takes = self.unit != StockUnit::Sequences
            || within == 0
            || within.saturating_add(more.sequences) <= bound
                && limit.is_none_or(|limit| counted.saturating_add(more.sequences) <= limit);
        has_room && takes && self.allows_in_place(more, less, gate)
    }

    /// The allowance lets `more` go in the place of `less`, or there is none.
    fn allows_in_place(&self, more: &Load, less: &Load, gate: Gate) -> bool {
        let Some(allowance) = self.allowance_in(gate) else {
            return true;
        };
        let mut there = self.in_flight();
        there.requests = there.requests.saturating_sub(1);
        there.sequences = there.sequences.saturating_sub(less.sequences);
        there.within = there.within.saturating_sub(less.sequences);
        there.load -= *less;
        allowance.rank(&there, more, self.tie).is_some()
    }
}
