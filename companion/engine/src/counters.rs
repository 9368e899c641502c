//! Totals of what has happened.

use crate::input::Band;
use crate::outcome::Outcome;

/// Totals since the engine started. At every moment arrivals = the sum of outcomes + waiting.
///
/// A request that is requeued waits again, so its outcome is taken back until it leaves again: one request, one
/// outcome. An exporter whose counters must only grow exports the highest value so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests that were registered, adopted or resumed.
    pub arrivals: u64,
    /// Grants that were taken back.
    pub requeues: u64,
    /// Requests that filters admitted by credit, also those that were requeued since. Their outcome is taken back, this isn't.
    pub admitted_by_credit: u64,
    /// Picks from the queue while the gate was open.
    pub dequeue_attempts: u64,
    /// Picks that found a request to dispatch.
    pub dequeue_successes: u64,
    /// Calls with a time before that of an earlier call.
    pub clock_backwards: u64,
    outcomes: [[u64; Outcome::ALL.len()]; 3],
}

impl Counters {
    /// Requests of `band` that left the queue, or never entered it, with `outcome`.
    #[must_use]
    pub const fn outcome_in(&self, band: Band, outcome: Outcome) -> u64 {
        self.outcomes[band as usize][outcome as usize]
    }

    /// Requests of all bands with `outcome`.
    #[must_use]
    pub fn outcome(&self, outcome: Outcome) -> u64 {
        self.outcomes.iter().map(|band| band[outcome as usize]).sum()
    }

    /// Requests of all bands with any outcome.
    #[must_use]
    pub fn outcomes_total(&self) -> u64 {
        self.outcomes.iter().flatten().sum()
    }

    pub(crate) const fn count(&mut self, band: Band, outcome: Outcome) {
        self.outcomes[band as usize][outcome as usize] += 1;
        if matches!(outcome, Outcome::Leased) {
            self.admitted_by_credit += 1;
        }
    }

    pub(crate) const fn take_back(&mut self, band: Band, outcome: Outcome) {
        self.outcomes[band as usize][outcome as usize] -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admission_by_credit_stays_counted_when_its_request_is_requeued() {
        let mut counters = Counters::default();
        counters.count(Band::Default, Outcome::Leased);
        counters.count(Band::Default, Outcome::Bypassed);
        counters.take_back(Band::Default, Outcome::Leased);
        assert_eq!(counters.outcome(Outcome::Leased), 0);
        assert_eq!(counters.admitted_by_credit, 1);
    }

    #[test]
    fn outcomes_are_numbered_in_the_order_of_all() {
        for (index, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, index);
        }
    }
}
