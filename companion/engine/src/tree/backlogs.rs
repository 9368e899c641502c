//! What waits of the children of one level, arranged so that the part of it that goes within some turns is found in constant
//! time, however many children there are.
//!
//! A child's backlog lasts for its cost divided by its weight: that many units of cost per weight go by until it is served.
//! Children whose backlogs last about equally long, within a quarter, share a group, which keeps sums. Within a number of turns
//! all of a short backlog goes, and of a long one as much as the child's weight allows; a group on the border counts as if it
//! were one child. The sums are whole numbers, so children leave no trace.

use alloc::collections::BTreeMap;

/// What waits of a child.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Backlog {
    pub(super) requests: u64,
    pub(super) cost: u64,
    pub(super) weight: f64,
}

/// Requests and their costs. Parts of requests count.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Amount {
    pub(super) requests: f64,
    pub(super) cost: f64,
}

impl Amount {
    pub(super) fn plus(self, other: Self) -> Self {
        Self { requests: self.requests + other.requests, cost: self.cost + other.cost }
    }
}

/// A sum over children.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Group {
    requests: u128,
    cost: u128,
    /// In units of 1/[`ONE`].
    weight: u128,
    /// Requests per unit of cost per weight, in units of 1/[`ONE`].
    rate: u128,
}

/// The unit of sums of fractions: each fits in 63 bits, which a processor converts in one step.
const ONE: f64 = (1_u64 << 38) as f64;

/// A fraction in units of 1/[`ONE`], at most 2^25.
const fn fixed(fraction: f64) -> u128 {
    (fraction * ONE) as i64 as u128
}

impl Backlog {
    const fn group(self) -> Group {
        Group {
            requests: self.requests as u128,
            cost: self.cost as u128,
            weight: fixed(self.weight),
            rate: fixed(self.requests as f64 * self.weight / self.cost_or_one()),
        }
    }

    const fn cost_or_one(self) -> f64 {
        if self.cost == 0 { 1.0 } else { self.cost as f64 }
    }

    /// The backlogs that last about as long: the exponent and two more bits of the quotient.
    const fn key(self) -> u64 {
        (self.cost as f64 / self.weight).to_bits() >> 50
    }

    /// What goes of it within `turns`, in units of cost per weight.
    pub(super) fn within(self, turns: f64) -> Amount {
        self.group().within(turns)
    }
}

impl Group {
    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.cost += other.cost;
        self.weight += other.weight;
        self.rate += other.rate;
    }

    fn subtract(&mut self, other: Self) {
        self.requests -= other.requests;
        self.cost -= other.cost;
        self.weight -= other.weight;
        self.rate -= other.rate;
    }

    fn within(self, turns: f64) -> Amount {
        Amount {
            requests: (self.requests as f64).min(self.rate as f64 / ONE * turns),
            cost: (self.cost as f64).min(self.weight as f64 / ONE * turns),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Backlogs(BTreeMap<u64, Group>);

impl Backlogs {
    /// A child's backlog was `before`, and is `after`.
    pub(super) fn change(&mut self, before: Backlog, after: Backlog) {
        let (old, new) = (before.key(), after.key());
        // Most changes of a long backlog.
        if old == new && before.requests > 0 && after.requests > 0 {
            if let Some(group) = self.0.get_mut(&old) {
                group.subtract(before.group());
                group.add(after.group());
            }
            return;
        }
        if before.requests > 0 {
            self.remove(before);
        }
        if after.requests > 0 {
            self.0.entry(new).or_default().add(after.group());
        }
    }

    fn remove(&mut self, backlog: Backlog) {
        let key = backlog.key();
        if let Some(group) = self.0.get_mut(&key) {
            group.subtract(backlog.group());
            if *group == Group::default() {
                self.0.remove(&key);
            }
        }
    }

    /// What goes within `turns` of all children but the one whose backlog is `own`.
    pub(super) fn of_others(&self, own: Backlog, turns: f64) -> Amount {
        let own_key = (own.requests > 0).then(|| own.key());
        let others = self.0.iter().map(|(key, group)| {
            let mut group = *group;
            if Some(*key) == own_key {
                group.subtract(own.group());
            }
            group.within(turns)
        });
        others.fold(Amount::default(), Amount::plus)
    }

    /// Whether these are exactly the `backlogs` of the children.
    pub(super) fn consist_of(&self, backlogs: impl Iterator<Item = Backlog>) -> bool {
        let mut sums = Self::default();
        for backlog in backlogs {
            sums.change(Backlog::default(), backlog);
        }
        sums.0 == self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backlog(requests: u64, cost: u64, weight: f64) -> Backlog {
        Backlog { requests, cost, weight }
    }

    #[test]
    fn a_short_backlog_goes_whole_and_a_long_one_by_its_weight() {
        let mut backlogs = Backlogs::default();
        let all = [backlog(10_000, 1_000_000, 1.0), backlog(3, 30, 1.0), backlog(50, 5_000, 4.0)];
        for child in all {
            backlogs.change(Backlog::default(), child);
        }
        let others = |own, turns| backlogs.of_others(own, turns);
        let rounded = |amount: Amount| {
            let thousandths = |number: f64| libm::rint(number * 1e3) / 1e3;
            (thousandths(amount.requests), thousandths(amount.cost))
        };
        // 1 of the first, all of the second, 4 of the third.
        assert_eq!(rounded(others(Backlog::default(), 100.0)), (8.0, 530.0));
        assert_eq!(rounded(others(all[0], 100.0)), (7.0, 430.0));
        assert_eq!(rounded(others(all[1], 100.0)), (5.0, 500.0));
        assert_eq!(rounded(others(all[2], f64::INFINITY)), (10_003.0, 1_000_030.0));
        assert_eq!(rounded(others(Backlog::default(), 0.0)), (0.0, 0.0));
    }

    #[test]
    fn children_leave_no_trace() {
        let mut backlogs = Backlogs::default();
        let weights = [0.1, 0.3, 1e-300, 1e300, 7.0];
        let child = |step: u64, weight| backlog(step, step * 77, weight);
        for step in 0..40 {
            for weight in weights {
                backlogs.change(child(step, weight), child(step + 1, weight));
            }
        }
        assert!(backlogs.consist_of(weights.into_iter().map(|weight| child(40, weight))));
        for weight in weights {
            backlogs.change(child(40, weight), Backlog::default());
        }
        assert!(backlogs.0.is_empty());
    }
}
