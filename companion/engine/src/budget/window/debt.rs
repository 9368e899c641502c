//! How a window fills, and how what doesn't fit is paid back.

use alloc::vec::Vec;

use super::{Step, StepNumber, Window};

impl Window {
    /// `amount` is used in `step`, which is in the window. Returns how much of it is taken from top-ups.
    pub(super) fn use_in(&mut self, step: StepNumber, amount: u64) -> u64 {
        let of_top_ups = self.top_ups.take(amount);
        let rest = amount - of_top_ups;
        let filled = rest.min(self.limit.saturating_sub(self.filled));
        if filled > 0 {
            self.step_mut(step).own += filled;
            self.filled += filled;
        }
        self.debt = self.debt.saturating_add(rest - filled);
        of_top_ups
    }

    /// Pays as much of the debt as is left of top-ups.
    pub(super) fn pay_by_top_ups(&mut self) {
        self.debt -= self.top_ups.pay(self.debt);
    }

    /// `amount` that a request of `step` had taken from top-ups was not used after all.
    pub(super) fn return_to_top_ups(&mut self, step: StepNumber, amount: u64) {
        self.top_ups.give_back(step, amount);
        self.pay_by_top_ups();
    }

    /// `amount` that a request of `step` had taken from the window was not used after all. It goes back from the step, and the room that
    /// this frees pays the debt in the present step: others have used that since then, so it must not leave with `step`. What exceeds
    /// the step's part was owed, or is paid by now: it goes back from there.
    pub(super) fn take_back(&mut self, step: StepNumber, amount: u64) {
        let mut left = amount;
        if let Ok(position) = self.steps.binary_search_by_key(&step, |step| step.number) {
            let own = &mut self.steps[position].own;
            let back = (*own).min(left);
            *own -= back;
            self.filled -= back;
            left -= back;
        }
        let of_debt = self.debt.min(left);
        self.debt -= of_debt;
        left -= of_debt;
        for paying in self.steps.iter_mut().rev() {
            let back = paying.paid.min(left);
            paying.paid -= back;
            self.filled -= back;
            left -= back;
        }
        self.top_ups.give_back_paid(left);
        self.pay(self.now);
    }

    /// What is owed, and what has paid debts in the window, because of a request whose step has left: at most `amount`, and `excess` in
    /// the present step. What the refund of a request would take back last counts first for the estimates of others that still run,
    /// `running`. By step, oldest first.
    pub(super) fn still_counted(&self, running: u64, amount: u64, excess: u64) -> Vec<(StepNumber, u64)> {
        let (mut of_others, mut left) = (running, amount);
        let mut take = |counted: u64| {
            let others = counted.min(of_others);
            of_others -= others;
            let taken = (counted - others).min(left);
            left -= taken;
            taken
        };
        let now = (self.now, take(self.debt) + excess);
        let paid = self.steps.iter().rev().map(|step| (step.number, take(step.paid)));
        let mut counted: Vec<_> =
            core::iter::once(now).chain(paid).filter(|(_, amount)| *amount > 0).collect();
        counted.reverse();
        counted
    }

    /// Pays as much of the debt in `step` as the window has room for.
    pub(super) fn pay(&mut self, step: StepNumber) {
        let paid = self.debt.min(self.limit.saturating_sub(self.filled));
        if paid > 0 {
            self.step_mut(step).paid += paid;
            self.filled += paid;
            self.debt -= paid;
        }
    }

    /// How often, within `steps` after the oldest step leaves, all that is in the window leaves and is filled again by debt.
    pub(super) fn turns_of_debt(&self, steps: i64) -> u64 {
        if self.filled != self.limit {
            return 0;
        }
        let by_time = u64::try_from(steps / self.kept).unwrap_or(0);
        by_time.min(self.debt / self.limit)
    }

    /// Lets this many turns pass at once: each one pays as much as the limit, in the same steps of its time.
    pub(super) fn skip(&mut self, turns: u64) {
        self.debt -= turns * self.limit;
        let steps = self.turns_as_steps(turns);
        for step in &mut self.steps {
            *step =
                Step { number: step.number.saturating_add(steps), own: 0, paid: step.counted(), reserved: 0 };
        }
        self.steps.retain(|step| step.paid > 0);
    }

    fn turns_as_steps(&self, turns: u64) -> i64 {
        i64::try_from(turns).unwrap_or(i64::MAX).saturating_mul(self.kept)
    }

    /// The first step in which a request may go if nothing more is used; the present one if there is room now. While other gateways run
    /// requests it may be too early: then it has to be asked for again in that step. `None`: what they run fills the window alone.
    pub(crate) fn has_room_in(&self) -> Option<StepNumber> {
        if self.room() > 0 {
            return Some(self.now);
        }
        if let Some(later) = self.once_within_limit() {
            return later.has_room_in();
        }
        let most_in = |step| u128::from(self.limit) + u128::from(self.top_ups.left_in(step));
        if u128::from(self.elsewhere) >= most_in(self.now) {
            return None;
        }
        let (turns, rest) = self.debt_in_turns();
        let counted = u128::from(self.filled) + u128::from(rest) + u128::from(self.elsewhere);
        let mut left = 0;
        for step in &self.steps {
            left += u128::from(step.counted());
            let leaves = self.leaves_after(turns, step);
            if counted - left < most_in(leaves) {
                return Some(leaves);
            }
        }
        self.steps.back().map(|newest| self.leaves_after(turns, newest))
    }

    /// The first step in which nothing of what was used counts any more, if nothing more is used.
    pub(crate) fn is_empty_in(&self) -> StepNumber {
        if let Some(later) = self.once_within_limit() {
            return later.is_empty_in();
        }
        let Some(newest) = self.steps.iter().rfind(|step| step.counted() > 0) else {
            return self.now;
        };
        let (turns, rest) = self.debt_in_turns();
        if rest == 0 {
            return self.leaves_after(turns, newest);
        }
        let mut left = 0;
        let last_paid = self.steps.iter().find(|step| {
            left += step.counted();
            left >= rest
        });
        self.leaves_after(turns, last_paid.unwrap_or(newest)).saturating_add(self.kept)
    }

    /// The window at the step in which it falls to its limit, if a lower limit has left it above, in debt.
    fn once_within_limit(&self) -> Option<Self> {
        if self.debt == 0 || self.filled <= self.limit {
            return None;
        }
        let mut filled = self.filled;
        let falls = self.steps.iter().find(|step| {
            filled -= step.counted();
            filled <= self.limit
        })?;
        let mut later = self.clone();
        later.advance(self.leaves_after(0, falls));
        Some(later)
    }

    /// The debt as whole turns of a full window, and the rest.
    const fn debt_in_turns(&self) -> (u64, u64) {
        if self.filled == self.limit {
            (self.debt / self.limit, self.debt % self.limit)
        } else {
            (0, self.debt)
        }
    }

    fn leaves_after(&self, turns: u64, step: &Step) -> StepNumber {
        let later = self.turns_as_steps(turns).saturating_add(self.kept);
        step.number.saturating_add(later)
    }
}
