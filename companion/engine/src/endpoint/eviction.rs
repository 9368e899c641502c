//! Whether an endpoint takes a request in the place of one that runs there, and whether its server would answer it.

use super::Endpoint;
use crate::limits::MISSED_ANSWERS_MAX;
use crate::load::Load;
use crate::policy::{Gate, StockUnit};

impl Endpoint {
    /// A request is asked to end here. `answers`: those that the pool has begun.
    pub(crate) fn note_eviction(&mut self, answers: u64) {
        self.answers_at_eviction.get_or_insert(answers);
    }

    /// The endpoint's server has begun an answer.
    pub(crate) fn note_answer(&mut self) {
        self.answers_at_eviction = None;
    }

    /// The first request starts here. It can't be blamed for the time before.
    pub(crate) fn restart_missed(&mut self, answers: u64) {
        if let Some(at_eviction) = &mut self.answers_at_eviction {
            *at_eviction = answers;
        }
    }

    /// A request was asked to end here, and the endpoint has missed too many answers since then. `answers`: those that the pool has begun;
    /// `running`: requests that run in the pool. No clock tells a server that hangs from one that takes long for each request: the pool's other
    /// servers do.
    pub(crate) fn misses_answers(&self, answers: u64, running: u64) -> bool {
        self.answers_at_eviction.is_some_and(|at_eviction| {
            let missed = answers.saturating_sub(at_eviction).saturating_mul(self.requests);
            missed > MISSED_ANSWERS_MAX.saturating_mul(running)
        })
    }

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
