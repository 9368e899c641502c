//! The share of failed answers in a window of time.

use core::time::Duration;

use crate::time::Instant;

/// Flows of failures that are remembered.
const FLOWS: usize = 8;

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    served: u32,
    failed: u32,
    /// The sum of the probabilities of these failures elsewhere.
    expected: f64,
}

/// Two halves of a window: the present one and the one before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
    since: Option<Instant>,
    /// The flows of the last failures, in a ring.
    flows: [u64; FLOWS],
    next: usize,
    present: Counts,
    last: Counts,
}

impl Window {
    pub(super) fn served(&mut self, now: Instant, length: Duration) {
        self.advance(now, length);
        self.present.served = self.present.served.saturating_add(1);
    }

    /// The flows of the last failures.
    pub(super) const fn flows(&self) -> &[u64] {
        &self.flows
    }

    /// `probability`: of such a failure elsewhere.
    pub(super) fn failed(&mut self, now: Instant, length: Duration, flow: u64, probability: f64) {
        self.advance(now, length);
        self.flows[self.next] = flow;
        self.next = (self.next + 1) % FLOWS;
        self.present.failed = self.present.failed.saturating_add(1);
        self.present.expected += probability;
    }

    fn advance(&mut self, now: Instant, length: Duration) {
        let since = *self.since.get_or_insert(now);
        let elapsed = now.since(since);
        if elapsed < length / 2 {
            return;
        }
        self.last = if elapsed < length { self.present } else { Counts::default() };
        self.present = Counts::default();
        self.since = Some(now);
    }

    fn sum(&self) -> Counts {
        Counts {
            served: self.present.served.saturating_add(self.last.served),
            failed: self.present.failed.saturating_add(self.last.failed),
            expected: self.present.expected + self.last.expected,
        }
    }

    /// Failures, and all answers.
    pub(super) fn counts(&self) -> (u32, u32) {
        let Counts { served, failed, .. } = self.sum();
        (failed, failed.saturating_add(served))
    }

    /// At least `ratio` of the answers failed, and chance doesn't explain it: the logarithm of the likelihood ratio of the share here to the
    /// share elsewhere is at least `needed`.
    pub(super) fn stands_out(&self, ratio: f64, needed: f64) -> bool {
        let Counts { served, failed, expected } = self.sum();
        let (served, failed) = (f64::from(served), f64::from(failed));
        let share = failed / (failed + served);
        if failed < 1.0 || share < ratio {
            return false;
        }
        let elsewhere = expected / failed;
        let of_served =
            if served > 0.0 { served * libm::log((1.0 - share) / (1.0 - elsewhere)) } else { 0.0 };
        share > elsewhere && failed * libm::log(share / elsewhere) + of_served >= needed
    }
}
