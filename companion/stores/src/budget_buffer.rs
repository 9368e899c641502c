//! Usage of budgets, and changes by hand, that wait for the next write of a store, and what runs of flows with budgets.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use penstock_engine::input::{BudgetRunning, BudgetUsage, UsedAt};
use penstock_engine::units::Tokens;
use tokio::time::Instant;

use super::budget::{Counter, PeriodCode};
use super::{BUFFERED_KEYS_MAX, RUNNING_MAX};

/// Usage of one bucket of the engine's window is summed up in so many parts, so that its time stays nearly exact.
const PARTS: u64 = 10;

/// When something was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum When {
    /// In the part of this number since the buffer was made. Requests that were dispatched before it count in the first one.
    Part(u64),
    /// In the day, week or month that began with this second since 1970 began.
    Since(i64),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    flow: Box<str>,
    counter: Counter,
    period: PeriodCode,
    when: When,
}

/// A reset of a flow's budget at this companion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnReset {
    pub(super) flow: Box<str>,
    /// The engine's.
    pub(super) number: u64,
}

/// What a flow runs: tokens as estimated, and requests.
pub(super) type Running = (Box<str>, u64, u64);

/// The usage of one pool's budgets since it was last taken, and what runs.
#[derive(Debug)]
pub(super) struct BudgetBuffer {
    origin: Instant,
    used: HashMap<Key, u64>,
    /// The engine's numbers of the flows' last resets here.
    resets: HashMap<Box<str>, u64>,
    /// Flows of which nothing counts that was taken from this buffer before, and the number of the reset at another companion.
    forgotten: HashMap<Box<str>, Option<u64>>,
    /// Flows beyond the limit are left out.
    running: HashMap<Box<str>, (u64, u64)>,
}

impl Default for BudgetBuffer {
    fn default() -> Self {
        Self {
            origin: Instant::now(),
            used: HashMap::new(),
            resets: HashMap::new(),
            forgotten: HashMap::new(),
            running: HashMap::new(),
        }
    }
}

fn part_width(period: PeriodCode) -> u64 {
    period.width() / PARTS
}

impl BudgetBuffer {
    pub(super) fn is_empty(&self) -> bool {
        self.used.is_empty()
    }

    pub(super) fn runs_any(&self) -> bool {
        !self.running.is_empty()
    }

    /// Adds to the sum of its key what was used as of now. Returns `false` if there is no place for it.
    pub(super) fn add(&mut self, usage: BudgetUsage, now: Instant) -> bool {
        let period = PeriodCode::from(usage.period);
        let when = match usage.used_at {
            UsedAt::Ago(ago) => {
                let since_origin = now.saturating_duration_since(self.origin).saturating_sub(ago);
                let millis = u64::try_from(since_origin.as_millis()).unwrap_or(u64::MAX);
                When::Part(millis / part_width(period))
            }
            UsedAt::Since(seconds) => When::Since(seconds),
            // The engine owes this already, and settles nothing of it.
            UsedAt::Debt => return true,
        };
        let key = Key { flow: usage.flow, counter: Counter::of(usage.unit, usage.kind), period, when };
        if self.used.len() >= BUFFERED_KEYS_MAX && !self.used.contains_key(&key) {
            return false;
        }
        let sum = self.used.entry(key).or_default();
        *sum = sum.saturating_add(usage.amount);
        true
    }

    /// The flow is reset: nothing of it that was added before is taken. Returns `false` if there is no place for that.
    pub(super) fn reset(&mut self, flow: &str, number: u64) -> bool {
        self.forget(flow, None);
        let has_place = self.resets.len() < BUFFERED_KEYS_MAX || self.resets.contains_key(flow);
        if has_place {
            self.resets.insert(flow.into(), number);
        }
        has_place
    }

    /// Nothing of the flow that was added before is taken. `number`: of the reset at another companion.
    pub(super) fn forget(&mut self, flow: &str, number: Option<u64>) {
        self.used.retain(|key, _| *key.flow != *flow);
        if self.forgotten.len() < BUFFERED_KEYS_MAX || self.forgotten.contains_key(flow) {
            let last = self.forgotten.entry(flow.into()).or_default();
            *last = number.max(*last);
        }
    }

    pub(super) fn take_resets(&mut self) -> Vec<OwnReset> {
        let resets = std::mem::take(&mut self.resets).into_iter();
        resets.map(|(flow, number)| OwnReset { flow, number }).collect()
    }

    /// Takes the flows of which nothing counts that was taken before, with the number of the last reset at another companion.
    pub(super) fn take_forgotten(&mut self) -> HashMap<Box<str>, Option<u64>> {
        std::mem::take(&mut self.forgotten)
    }

    /// Replaces what a flow runs.
    pub(super) fn set_running(&mut self, running: BudgetRunning) {
        let (flow, sums) = (running.flow, (running.tokens.0, running.requests));
        if sums == (0, 0) {
            self.running.remove(&flow);
        } else if self.running.len() < BUFFERED_KEYS_MAX || self.running.contains_key(&flow) {
            self.running.insert(flow, sums);
        }
    }

    /// Takes what was used, as of now, in the order in which each window counts it.
    pub(super) fn take_used(&mut self, now: Instant) -> Vec<BudgetUsage> {
        let since_origin = now.saturating_duration_since(self.origin);
        let mut used: Vec<_> = std::mem::take(&mut self.used).into_iter().collect();
        used.sort_unstable_by_key(|(key, _)| key.when);
        let usages = used.into_iter().map(|(key, amount)| {
            let used_at = match key.when {
                // At the end of the part, so that no usage leaves its window early, nor lies before a reset in the part.
                When::Part(part) => {
                    let ends = part.saturating_add(1).saturating_mul(part_width(key.period));
                    UsedAt::Ago(since_origin.saturating_sub(Duration::from_millis(ends)))
                }
                When::Since(seconds) => UsedAt::Since(seconds),
            };
            BudgetUsage {
                flow: key.flow,
                unit: key.counter.unit(),
                period: key.period.period(),
                kind: key.counter.kind(),
                used_at,
                amount,
            }
        });
        usages.collect()
    }

    /// What runs, the flows with most tokens first.
    pub(super) fn running(&self) -> Vec<Running> {
        let mut running: Vec<_> = self.running.iter().collect();
        running.sort_unstable_by_key(|&(_, sums)| Reverse(*sums));
        let most = running.into_iter().take(RUNNING_MAX);
        most.map(|(flow, &(tokens, requests))| (flow.clone(), tokens, requests)).collect()
    }
}

/// What a flow runs of one unit, as a key of sums over companions.
pub(super) type RunningKey = (Box<str>, Counter);

/// The sums of a list, by key.
pub(super) fn running_sums(running: Vec<Running>) -> Vec<(RunningKey, u64)> {
    let sums = running.into_iter().flat_map(|(flow, tokens, requests)| {
        [((flow.clone(), Counter::Tokens), tokens), ((flow, Counter::Requests), requests)]
    });
    sums.filter(|(_, sum)| *sum > 0).collect()
}

/// The engine's record of what the flow runs, from the sums of both units.
pub(super) fn running_of(flow: Box<str>, sum: impl Fn(&RunningKey) -> u64) -> BudgetRunning {
    let sum_of = |counter| sum(&(flow.clone(), counter));
    BudgetRunning { tokens: Tokens(sum_of(Counter::Tokens)), requests: sum_of(Counter::Requests), flow }
}

#[cfg(test)]
mod tests {
    use penstock_engine::input::UsageKind;
    use penstock_engine::policy::{BudgetPeriod, CostUnit};

    use super::*;

    fn used(flow: &str, used_at: UsedAt, amount: u64) -> BudgetUsage {
        let period = match used_at {
            UsedAt::Since(_) => BudgetPeriod::Day,
            UsedAt::Ago(_) | UsedAt::Debt => BudgetPeriod::Sliding(Duration::from_secs(600)),
        };
        BudgetUsage {
            flow: flow.into(),
            unit: CostUnit::Tokens,
            period,
            kind: UsageKind::Used,
            used_at,
            amount,
        }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn usage_is_summed_by_the_time_of_its_dispatch() {
        let mut buffer = BudgetBuffer::default();
        let now = buffer.origin + seconds(100);
        for (ago, amount) in [(0, 1), (10, 2), (10, 3), (1_000, 4)] {
            assert!(buffer.add(used("a", UsedAt::Ago(seconds(ago)), amount), now));
        }
        assert!(buffer.add(used("a", UsedAt::Since(86_400), 5), now));
        assert!(buffer.add(used("a", UsedAt::Since(86_400), u64::MAX), now));
        let mut taken = buffer.take_used(now + seconds(7));
        taken.sort_by_key(|usage| usage.amount);
        let expected = [
            used("a", UsedAt::Ago(seconds(6)), 1),
            used("a", UsedAt::Ago(seconds(106)), 4),
            used("a", UsedAt::Ago(seconds(16)), 5),
            used("a", UsedAt::Since(86_400), u64::MAX),
        ];
        assert_eq!(taken, expected);
        assert!(buffer.is_empty());
    }

    #[test]
    fn a_reset_forgets_what_was_added_before_it_and_keeps_what_comes_later() {
        let mut buffer = BudgetBuffer::default();
        let now = buffer.origin + seconds(100);
        let used_at = UsedAt::Ago(Duration::ZERO);
        let topped_up = BudgetUsage { kind: UsageKind::ToppedUp, ..used("a", used_at, 3) };
        for usage in [used("a", used_at, 1), topped_up.clone(), used("b", used_at, 2)] {
            assert!(buffer.add(usage, now));
        }
        assert!(buffer.reset("a", 3) && buffer.reset("a", 4));
        assert!(buffer.add(topped_up.clone(), now));
        buffer.forget("a", Some(7));
        buffer.forget("a", Some(6));
        buffer.forget("c", Some(9));
        assert!(buffer.add(topped_up.clone(), now));
        let mut taken = buffer.take_used(now);
        taken.sort_by_key(|usage| usage.amount);
        assert_eq!(taken, [used("b", used_at, 2), topped_up]);
        assert_eq!(buffer.take_resets(), [OwnReset { flow: "a".into(), number: 4 }]);
        let forgotten = [("a".into(), Some(7)), ("c".into(), Some(9))];
        assert_eq!(buffer.take_forgotten(), forgotten.into());
        assert!(buffer.take_resets().is_empty() && buffer.take_forgotten().is_empty());
    }

    #[test]
    fn usage_in_the_part_of_a_reset_is_not_before_it() {
        let mut buffer = BudgetBuffer::default();
        let reset_at = buffer.origin + Duration::from_millis(100_600);
        assert!(buffer.reset("a", 1));
        let now = reset_at + Duration::from_millis(100);
        for flow in ["a", "b"] {
            assert!(buffer.add(used(flow, UsedAt::Ago(Duration::ZERO), 1), now));
        }
        let mut taken = buffer.take_used(now);
        taken.sort_by(|a, b| a.flow.cmp(&b.flow));
        let used_at = UsedAt::Ago(Duration::ZERO);
        assert_eq!(taken, [used("a", used_at, 1), used("b", used_at, 1)]);
    }

    #[test]
    fn a_full_buffer_takes_only_more_of_what_it_has() {
        let mut buffer = BudgetBuffer::default();
        let (day, now) = (UsedAt::Since(0), Instant::now());
        for flow in 0..BUFFERED_KEYS_MAX {
            assert!(buffer.add(used(&flow.to_string(), day, 1), now));
        }
        assert!(!buffer.add(used("one more", day, 1), now));
        assert!(buffer.add(used("0", day, 1), now));
    }

    #[test]
    fn what_runs_is_listed_until_it_ends() {
        let runs = |flow: &str, tokens, requests| BudgetRunning {
            flow: flow.into(),
            tokens: Tokens(tokens),
            requests,
        };
        let mut buffer = BudgetBuffer::default();
        for running in [runs("a", 5, 1), runs("b", 9, 2), runs("a", 6, 2), runs("c", 1, 1)] {
            buffer.set_running(running);
        }
        buffer.set_running(runs("c", 0, 0));
        let listed = buffer.running();
        assert_eq!(listed, [("b".into(), 9, 2), ("a".into(), 6, 2)]);
        let sums: HashMap<_, _> = running_sums(listed).into_iter().collect();
        let read = running_of("a".into(), |key| sums.get(key).copied().unwrap_or(0));
        assert_eq!(read, runs("a", 6, 2));
    }
}
