//! A window that moves one step at a time, and counts from a list of amounts. The reference model of the engine's tests uses it too.

use alloc::vec::Vec;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Own,
    Paid,
}

#[derive(Clone)]
pub(super) struct Slow {
    limit: u64,
    kept: i64,
    pub(super) now: i64,
    /// What fills the window: the step, how it came there, and the amount.
    amounts: Vec<(i64, Kind, u64)>,
    /// Estimates of what runs, by the step of the dispatch.
    reserved: Vec<(i64, u64)>,
    pub(super) debt: u64,
    pub(super) elsewhere: u64,
    /// Of top-ups: what is left, what requests took, what has paid debts, since when, and until when.
    extra: u64,
    extra_taken: u64,
    extra_paid: u64,
    extra_since: i64,
    extra_until: i64,
}

impl Slow {
    pub(super) const fn new(limit: u64, kept: i64, now: i64) -> Self {
        Self {
            limit,
            kept,
            now,
            amounts: Vec::new(),
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
        self.amounts.iter().map(|amount| amount.2).sum()
    }

    pub(super) fn room(&self) -> u64 {
        match self.debt {
            0 => (self.limit + self.extra).saturating_sub(self.filled() + self.elsewhere),
            _ => 0,
        }
    }

    pub(super) fn used(&self) -> u64 {
        let reserved: u64 = self.reserved.iter().map(|entry| entry.1).sum();
        (self.filled() + self.extra_taken + self.extra_paid + self.debt).saturating_sub(reserved)
    }

    pub(super) fn step(&mut self) {
        self.now += 1;
        let oldest = self.now - self.kept;
        self.amounts.retain(|amount| amount.0 > oldest);
        self.reserved.retain(|entry| entry.0 > oldest);
        if self.now >= self.extra_until {
            (self.extra, self.extra_taken, self.extra_paid) = (0, 0, 0);
        }
        self.pay();
    }

    fn pay(&mut self) {
        let paid = self.debt.min(self.limit.saturating_sub(self.filled()));
        if paid > 0 {
            self.amounts.push((self.now, Kind::Paid, paid));
            self.debt -= paid;
        }
    }

    /// `amount` is used in `step`: of a top-up, of the room, as debt. Returns the first part.
    pub(super) fn take(&mut self, step: i64, amount: u64) -> u64 {
        let from_extra = self.extra.min(amount);
        self.extra -= from_extra;
        self.extra_taken += from_extra;
        let filled = (amount - from_extra).min(self.limit.saturating_sub(self.filled()));
        self.amounts.push((step, Kind::Own, filled));
        self.debt += amount - from_extra - filled;
        from_extra
    }

    fn pay_by_extra(&mut self) {
        while self.debt > 0 && self.extra > 0 {
            self.debt -= 1;
            self.extra -= 1;
            self.extra_paid += 1;
        }
    }

    pub(super) fn give_back(&mut self, step: i64, amount: u64) {
        for _ in 0..amount {
            let paid = self.amounts.iter().enumerate();
            let paid = paid.filter(|(_, amount)| amount.1 == Kind::Paid && amount.2 > 0);
            let newest = paid.max_by_key(|(_, amount)| amount.0).map(|(index, _)| index);
            let own = |amount: &(i64, Kind, u64)| amount.0 == step && amount.1 == Kind::Own && amount.2 > 0;
            if self.debt > 0 {
                self.debt -= 1;
            } else if let Some(index) = newest {
                self.amounts[index].2 -= 1;
            } else if self.extra_paid > 0 {
                self.extra_paid -= 1;
                self.extra += 1;
            } else if let Some(index) = self.amounts.iter().position(own) {
                self.amounts[index].2 -= 1;
            }
        }
        self.pay();
    }

    /// A request is dispatched. Returns what it takes of top-ups.
    pub(super) fn reserve(&mut self, estimate: u64) -> u64 {
        self.reserved.push((self.now, estimate));
        self.take(self.now, estimate)
    }

    /// A request that was dispatched in `step`, and took `of_extra` of top-ups, has really used `real`.
    pub(super) fn settle(&mut self, step: i64, estimate: u64, of_extra: u64, real: u64) {
        let entry = self.reserved.iter().position(|&entry| entry == (step, estimate));
        if let Some(entry) = entry {
            self.reserved.swap_remove(entry);
        }
        if real > estimate {
            let left = step + self.kept <= self.now;
            self.take(if left { self.now } else { step }, real - estimate);
        } else {
            let own = (estimate - real).min(estimate - of_extra);
            self.give_back(step, own);
            if step >= self.extra_since {
                let back = (estimate - real - own).min(self.extra_taken);
                self.extra_taken -= back;
                self.extra += back;
                self.pay_by_extra();
            }
        }
    }

    pub(super) fn add_used(&mut self, step: i64, amount: u64) {
        if step + self.kept > self.now {
            self.take(step.min(self.now), amount);
        }
    }

    pub(super) fn add_debt(&mut self, amount: u64) {
        self.debt += amount;
        self.pay_by_extra();
        self.pay();
    }

    pub(super) fn top_up(&mut self, step: i64, amount: u64) {
        if step + self.kept <= self.now {
            return;
        }
        if self.now >= self.extra_until {
            self.extra_since = self.now;
        }
        self.extra += amount;
        self.extra_until = self.extra_until.max(step.min(self.now) + self.kept);
        self.pay_by_extra();
    }

    pub(super) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
        self.pay();
    }

    pub(super) fn reset(&mut self) {
        *self = Self { elsewhere: self.elsewhere, ..Self::new(self.limit, self.kept, self.now) };
    }

    /// The first step that `is` accepts, if nothing happens until then.
    fn first(&self, is: impl Fn(&Self) -> bool) -> Option<i64> {
        let mut later = self.clone();
        let enough = self.kept * (3 + (self.debt / self.limit) as i64);
        for _ in 0..=enough {
            if is(&later) {
                return Some(later.now);
            }
            later.step();
        }
        None
    }

    pub(super) fn has_room_in(&self) -> Option<i64> {
        // The room of a top-up that ends meanwhile doesn't matter: there is room as long as any of it is left.
        self.first(|later| later.room() > 0)
    }

    pub(super) fn is_empty_in(&self) -> i64 {
        let counts = |later: &Self| later.debt > 0 || later.filled() > 0;
        self.first(|later| !counts(later)).expect("everything leaves")
    }
}
