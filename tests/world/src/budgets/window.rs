//! One window of one flow, as the documentation of budgets describes it, step by step.

use std::collections::BTreeMap;

/// The steps of a window of this length: their width in nanoseconds, and how many of them count. The window begins inside the oldest one,
/// and that counts as a whole.
pub(super) fn steps(length: u64) -> (u64, i64) {
    let width = length.div_ceil(60);
    let count = length.div_ceil(width) + 1;
    (width, i64::try_from(count).unwrap_or(i64::MAX))
}

/// How a request counts that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settled {
    /// Whether its usage beyond the estimate counts now, because its step has left the window.
    pub(super) has_left: bool,
    /// If its step has left: what of the window is still filled or owed because of its estimate.
    pub(super) still_counted: u64,
}

/// A window.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) limit: u64,
    /// How many steps it has; 1 for a day or a month.
    pub(super) length: i64,
    now: i64,
    /// Usage within the limit by the step in which its request was dispatched.
    used: BTreeMap<i64, u64>,
    /// Debt that was paid, by the step that paid it.
    paid: BTreeMap<i64, u64>,
    /// Estimates of running requests by the step of their dispatch.
    reserved: BTreeMap<i64, u64>,
    pub(super) debt: u64,
}

impl Window {
    pub(super) const fn new(limit: u64, length: i64, now: i64) -> Self {
        Self {
            limit,
            length,
            now,
            used: BTreeMap::new(),
            paid: BTreeMap::new(),
            reserved: BTreeMap::new(),
            debt: 0,
        }
    }

    fn filled(&self) -> u64 {
        self.used.values().chain(self.paid.values()).sum()
    }

    pub(super) fn remaining(&self) -> u64 {
        match self.debt {
            0 => self.limit.saturating_sub(self.filled()),
            _ => 0,
        }
    }

    pub(super) fn reserved(&self) -> u64 {
        self.reserved.values().sum()
    }

    /// Everything that counts, reserved or not.
    pub(super) fn counted(&self) -> u64 {
        self.filled() + self.debt
    }

    /// Time passes until this step.
    pub(super) fn advance(&mut self, step: i64) {
        while self.now < step {
            let is_empty = self.used.is_empty() && self.paid.is_empty() && self.reserved.is_empty();
            if is_empty && self.debt == 0 {
                self.now = step;
                return;
            }
            self.now += 1;
            let first = self.now - self.length + 1;
            for steps in [&mut self.used, &mut self.paid, &mut self.reserved] {
                *steps = steps.split_off(&first);
            }
            self.pay();
        }
    }

    /// The room that there is pays the debt.
    fn pay(&mut self) {
        let paid = self.debt.min(self.limit.saturating_sub(self.filled()));
        if paid > 0 {
            *self.paid.entry(self.now).or_default() += paid;
            self.debt -= paid;
        }
    }

    fn take(&mut self, step: i64, amount: u64) {
        let within = amount.min(self.limit.saturating_sub(self.filled()));
        *self.used.entry(step).or_default() += within;
        self.debt += amount - within;
    }

    /// A request is dispatched in the present step.
    pub(super) fn reserve(&mut self, estimate: u64) {
        self.take(self.now, estimate);
        *self.reserved.entry(self.now).or_default() += estimate;
    }

    pub(super) const fn has_left(&self, step: i64) -> bool {
        step + self.length <= self.now
    }

    /// A request that was dispatched in `step` has used `real`. `running`: the estimates of the flow's other requests that run.
    pub(super) fn settle(&mut self, step: i64, estimate: u64, real: u64, running: u64) -> Settled {
        if let Some(reserved) = self.reserved.get_mut(&step) {
            *reserved -= estimate;
        }
        let has_left = self.has_left(step);
        if real <= estimate {
            self.give_back(step, estimate - real);
        }
        // What would go with its estimate if the others had used nothing, beyond what would go with theirs.
        let owed = self.debt + self.paid.values().sum::<u64>();
        let still_counted = owed.min(running + estimate.min(real)) - owed.min(running);
        if real > estimate {
            self.take(if has_left { self.now } else { step }, real - estimate);
        }
        Settled { has_left, still_counted }
    }

    /// What wasn't used lowers the debt first, then what was paid of it, the latest first, then the request's own step.
    fn give_back(&mut self, step: i64, mut amount: u64) {
        let mut take_from = |counted: &mut u64| {
            let back = amount.min(*counted);
            *counted -= back;
            amount -= back;
        };
        take_from(&mut self.debt);
        self.paid.values_mut().rev().for_each(&mut take_from);
        self.used.get_mut(&step).into_iter().for_each(take_from);
        self.pay();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debt_is_paid_by_the_room_that_time_frees() {
        let mut window = Window::new(10, 2, 0);
        window.reserve(25);
        window.settle(0, 25, 25, 0);
        assert_eq!((window.counted(), window.debt), (25, 15));
        window.advance(2);
        assert_eq!((window.remaining(), window.debt), (0, 5));
        window.advance(4);
        assert_eq!((window.remaining(), window.debt), (5, 0));
        window.advance(6);
        assert_eq!(window.remaining(), 10);
    }
}
