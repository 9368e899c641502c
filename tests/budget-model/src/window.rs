//! One window of one flow, as the documentation of budgets describes it, step by step.

use std::collections::BTreeMap;

/// The steps of a window of this length: their width in nanoseconds, and how many of them count. The window begins inside the oldest one,
/// and that counts as a whole.
#[must_use]
pub fn steps(length: u64) -> (u64, i64) {
    let width = length.div_ceil(60);
    let count = length.div_ceil(width) + 1;
    (width, i64::try_from(count).unwrap_or(i64::MAX))
}

/// How a request counts that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Settled {
    /// Whether its usage beyond the estimate counts now, because its step has left the window.
    pub has_left: bool,
    /// If its step has left: what of the window is still filled or owed because of its estimate.
    pub still_counted: u64,
}

/// A window of a budget that moves one step at a time, and keeps every amount by its step.
#[derive(Clone, Debug)]
pub struct Window {
    /// What may be used within the window.
    pub limit: u64,
    /// How many steps it has; 1 for a day or a month.
    length: i64,
    /// The present step.
    pub now: i64,
    /// Usage within the limit by the step in which its request was dispatched.
    used: BTreeMap<i64, u64>,
    /// Debt that was paid, by the step that paid it.
    paid: BTreeMap<i64, u64>,
    /// Estimates of running requests, with the step of their dispatch.
    reserved: Vec<(i64, u64)>,
    /// What was used beyond the limit.
    pub debt: u64,
    /// What other engines run.
    pub elsewhere: u64,
    /// Of top-ups: what is left, what requests took, what has paid debts, since when, and until when.
    extra: u64,
    extra_taken: u64,
    extra_paid: u64,
    extra_since: i64,
    extra_until: i64,
}

impl Window {
    /// An empty window of `length` steps.
    #[must_use]
    pub const fn new(limit: u64, length: i64, now: i64) -> Self {
        Self {
            limit,
            length,
            now,
            used: BTreeMap::new(),
            paid: BTreeMap::new(),
            reserved: Vec::new(),
            debt: 0,
            elsewhere: 0,
            extra: 0,
            extra_taken: 0,
            extra_paid: 0,
            extra_since: now,
            extra_until: now,
        }
    }

    fn filled(&self) -> u64 {
        self.used.values().chain(self.paid.values()).sum()
    }

    /// What a request may still use.
    #[must_use]
    pub fn room(&self) -> u64 {
        match self.debt {
            0 => (self.limit + self.extra).saturating_sub(self.filled() + self.elsewhere),
            _ => 0,
        }
    }

    /// The estimates of what runs.
    #[must_use]
    pub fn reserved(&self) -> u64 {
        self.reserved.iter().map(|entry| entry.1).sum()
    }

    /// Everything that counts, reserved or not.
    #[must_use]
    pub fn counted(&self) -> u64 {
        self.filled() + self.extra_taken + self.extra_paid + self.debt
    }

    /// What counts and isn't reserved. A refund that comes after its step has left lowers what other requests owe, and may leave less than
    /// they reserve.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.counted().saturating_sub(self.reserved())
    }

    /// Time passes until this step.
    pub fn advance(&mut self, step: i64) {
        while self.now < step {
            if self.reserved.is_empty() && self.debt == 0 && self.filled() == 0 {
                self.now = step - 1;
            }
            self.step();
        }
    }

    fn step(&mut self) {
        self.now += 1;
        let first = self.now - self.length + 1;
        for steps in [&mut self.used, &mut self.paid] {
            *steps = steps.split_off(&first);
        }
        self.reserved.retain(|entry| entry.0 >= first);
        if self.now >= self.extra_until {
            (self.extra, self.extra_taken, self.extra_paid) = (0, 0, 0);
        }
        self.pay();
    }

    /// The room that there is pays the debt.
    fn pay(&mut self) {
        let paid = self.debt.min(self.limit.saturating_sub(self.filled()));
        if paid > 0 {
            *self.paid.entry(self.now).or_default() += paid;
            self.debt -= paid;
        }
    }

    fn pay_by_extra(&mut self) {
        let paid = self.debt.min(self.extra);
        self.debt -= paid;
        self.extra -= paid;
        self.extra_paid += paid;
    }

    /// `amount` is used in `step`: of a top-up, of the room, as debt. Returns the first part.
    fn take(&mut self, step: i64, amount: u64) -> u64 {
        let from_extra = self.extra.min(amount);
        self.extra -= from_extra;
        self.extra_taken += from_extra;
        let within = (amount - from_extra).min(self.limit.saturating_sub(self.filled()));
        *self.used.entry(step).or_default() += within;
        self.debt += amount - from_extra - within;
        from_extra
    }

    /// A request is dispatched in the present step. Returns what it takes of top-ups.
    pub fn reserve(&mut self, estimate: u64) -> u64 {
        self.reserved.push((self.now, estimate));
        self.take(self.now, estimate)
    }

    /// A request that was dispatched in `step`, and took `of_extra` of top-ups, has used `real`. `running`: the estimates of the flow's other
    /// requests that run.
    pub fn settle(&mut self, step: i64, estimate: u64, of_extra: u64, real: u64, running: u64) -> Settled {
        if let Some(entry) = self.reserved.iter().position(|&entry| entry == (step, estimate)) {
            self.reserved.swap_remove(entry);
        }
        let has_left = step + self.length <= self.now;
        if real <= estimate {
            let own = (estimate - real).min(estimate - of_extra);
            self.give_back(step, own);
            if step >= self.extra_since {
                let back = (estimate - real - own).min(self.extra_taken);
                self.extra_taken -= back;
                self.extra += back;
                self.pay_by_extra();
            }
        }
        // What would go with its estimate if the others had used nothing, beyond what would go with theirs.
        let owed = self.debt + self.paid.values().sum::<u64>();
        let still_counted = owed.min(running + estimate.min(real)) - owed.min(running);
        if real > estimate {
            self.take(if has_left { self.now } else { step }, real - estimate);
        }
        Settled { has_left, still_counted }
    }

    /// What wasn't used leaves the request's own step first, then the debt, then what was paid of it, the latest first, then what top-ups
    /// have paid. The room pays the debt that is left.
    fn give_back(&mut self, step: i64, mut amount: u64) {
        let mut take_from = |counted: &mut u64| {
            let back = amount.min(*counted);
            *counted -= back;
            amount -= back;
            back
        };
        if let Some(used) = self.used.get_mut(&step) {
            take_from(used);
        }
        take_from(&mut self.debt);
        for paid in self.paid.values_mut().rev() {
            take_from(paid);
        }
        self.extra += take_from(&mut self.extra_paid);
        self.pay();
    }

    /// `amount` was used in `step` at another engine, or before this one started.
    pub fn add_used(&mut self, step: i64, amount: u64) {
        if step + self.length > self.now {
            self.take(step.min(self.now), amount);
        }
    }

    /// `amount` was used beyond the limit.
    pub fn add_debt(&mut self, amount: u64) {
        self.debt += amount;
        self.pay_by_extra();
        self.pay();
    }

    /// So much more may be used than the limit, since `step`.
    pub fn top_up(&mut self, step: i64, amount: u64) {
        if step + self.length <= self.now {
            return;
        }
        if self.now >= self.extra_until {
            self.extra_since = self.now;
        }
        self.extra += amount;
        self.extra_until = self.extra_until.max(step.min(self.now) + self.length);
        self.pay_by_extra();
    }

    /// The limit is another one from now on.
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
        self.pay();
    }

    /// Nothing counts any longer but what runs elsewhere.
    pub fn reset(&mut self) {
        *self = Self { elsewhere: self.elsewhere, ..Self::new(self.limit, self.length, self.now) };
    }

    /// The first step that `is` accepts, if nothing happens until then.
    fn first(&self, is: impl Fn(&Self) -> bool) -> Option<i64> {
        let mut later = self.clone();
        let steps = self.length.unsigned_abs() * (3 + self.debt / self.limit);
        for _ in 0..=steps {
            if is(&later) {
                return Some(later.now);
            }
            later.step();
        }
        None
    }

    /// The first step with room.
    #[must_use]
    pub fn has_room_in(&self) -> Option<i64> {
        // The room of a top-up that ends meanwhile doesn't matter: there is room as long as any of it is left.
        self.first(|later| later.room() > 0)
    }

    /// The first step in which nothing counts.
    ///
    /// # Panics
    /// When something never leaves, which is a defect.
    #[must_use]
    pub fn is_empty_in(&self) -> i64 {
        let counts = |later: &Self| later.debt > 0 || later.filled() > 0;
        self.first(|later| !counts(later)).expect("everything leaves")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debt_is_paid_by_the_room_that_time_frees() {
        let mut window = Window::new(10, 2, 0);
        window.reserve(25);
        window.settle(0, 25, 0, 25, 0);
        assert_eq!((window.counted(), window.debt), (25, 15));
        window.advance(2);
        assert_eq!((window.room(), window.debt), (0, 5));
        window.advance(4);
        assert_eq!((window.room(), window.debt), (5, 0));
        window.advance(6);
        assert_eq!(window.room(), 10);
    }
}
