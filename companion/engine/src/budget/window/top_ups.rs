//! What may be used of a window beyond its limit for a while.

use super::StepNumber;

/// The top-ups of a window. They end together, with the latest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TopUps {
    left: u64,
    /// Taken by requests.
    taken: u64,
    /// Debts that they have paid.
    paid: u64,
    /// The step in which the first of them came. What was taken before came from top-ups that have ended.
    since: StepNumber,
    /// The step in which they end.
    until: StepNumber,
}

impl TopUps {
    pub(super) const fn none(now: StepNumber) -> Self {
        Self { left: 0, taken: 0, paid: 0, since: now, until: now }
    }

    /// Adds others, and what was used of them.
    pub(super) fn add_later(&mut self, later: &Self) {
        if later.is_empty() {
            return;
        }
        if self.is_empty() {
            *self = *later;
            return;
        }
        self.left = self.left.saturating_add(later.left);
        self.taken = self.taken.saturating_add(later.taken);
        self.paid = self.paid.saturating_add(later.paid);
        self.since = self.since.min(later.since);
        self.until = self.until.max(later.until);
    }

    /// What may still be used.
    pub(super) const fn left(&self) -> u64 {
        self.left
    }

    /// What may still be used in `step`, which is the present one or a later one, if nothing is used before.
    pub(super) const fn left_in(&self, step: StepNumber) -> u64 {
        if step < self.until { self.left } else { 0 }
    }

    /// What was used of them, also to pay debts.
    pub(super) const fn used(&self) -> u64 {
        self.taken.saturating_add(self.paid)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.left == 0 && self.taken == 0 && self.paid == 0
    }

    /// The present step becomes `now`.
    pub(super) const fn advance(&mut self, now: StepNumber) {
        if now >= self.until {
            (self.left, self.taken, self.paid) = (0, 0, 0);
        }
    }

    /// See [`super::Window::shift`].
    pub(super) const fn shift(&mut self, steps: i64) {
        self.since = self.since.saturating_add(steps);
        self.until = self.until.saturating_add(steps);
    }

    /// A further one, in the step `now`.
    pub(super) fn add(&mut self, amount: u64, now: StepNumber, until: StepNumber) {
        if now >= self.until {
            self.since = now;
        }
        self.left = self.left.saturating_add(amount);
        self.until = self.until.max(until);
    }

    /// A request takes as much of `amount` as is left. Returns that.
    pub(super) fn take(&mut self, amount: u64) -> u64 {
        let taken = self.left.min(amount);
        self.left -= taken;
        self.taken = self.taken.saturating_add(taken);
        taken
    }

    /// Pays as much of a debt as is left. Returns that.
    pub(super) fn pay(&mut self, debt: u64) -> u64 {
        let paid = self.left.min(debt);
        self.left -= paid;
        self.paid = self.paid.saturating_add(paid);
        paid
    }

    /// `amount` that a request of `step` took was not used after all.
    pub(super) fn give_back(&mut self, step: StepNumber, amount: u64) {
        if step >= self.since {
            let back = self.taken.min(amount);
            self.taken -= back;
            self.left = self.left.saturating_add(back);
        }
    }

    /// As much of `amount` as has paid debts was not owed after all.
    pub(super) fn give_back_paid(&mut self, amount: u64) {
        let back = self.paid.min(amount);
        self.paid -= back;
        self.left = self.left.saturating_add(back);
    }
}
