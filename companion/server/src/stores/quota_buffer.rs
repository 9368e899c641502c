//! Usage of budgets that waits for the next write of a store, and what runs of flows with budgets.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use penstock_engine::input::{QuotaRunning, QuotaUsage, UsedAt};
use penstock_engine::policy::CostUnit;
use penstock_engine::units::Tokens;
use tokio::time::Instant;

use super::quota::{PeriodCode, unit_from_number, unit_number};
use super::{BUFFERED_KEYS_MAX, RUNNING_MAX};

/// Usage of one bucket of the engine's window is summed up in so many parts, so that its time stays nearly exact.
const PARTS: u64 = 10;

/// When something was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum When {
    /// In the part of this number since the buffer was made. Requests that were dispatched before it count in the first one.
    Part(u64),
    /// In the day or month that began with this second since 1970 began.
    Since(i64),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    flow: Box<str>,
    unit: u8,
    period: PeriodCode,
    when: When,
}

/// What a flow runs: tokens as estimated, and requests.
pub(super) type Running = (Box<str>, u64, u64);

/// The usage of one pool's budgets since it was last taken, and what runs.
#[derive(Debug)]
pub(super) struct QuotaBuffer {
    origin: Instant,
    used: HashMap<Key, u64>,
    /// Flows beyond the limit are left out.
    running: HashMap<Box<str>, (u64, u64)>,
}

impl Default for QuotaBuffer {
    fn default() -> Self {
        Self {
            origin: Instant::now(),
            used: HashMap::new(),
            running: HashMap::new(),
        }
    }
}

fn part_width(period: PeriodCode) -> u64 {
    period.width() / PARTS
}

impl QuotaBuffer {
    pub(super) fn is_empty(&self) -> bool {
        self.used.is_empty()
    }

    pub(super) fn runs_any(&self) -> bool {
        !self.running.is_empty()
    }

    /// Adds to the sum of its key what was used as of now. Returns `false` if there is no place for it.
    pub(super) fn add(&mut self, usage: QuotaUsage, now: Instant) -> bool {
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
        let key = Key {
            flow: usage.flow,
            unit: unit_number(usage.unit),
            period,
            when,
        };
        if self.used.len() >= BUFFERED_KEYS_MAX && !self.used.contains_key(&key) {
            return false;
        }
        let sum = self.used.entry(key).or_default();
        *sum = sum.saturating_add(usage.amount);
        true
    }

    /// Replaces what a flow runs.
    pub(super) fn set_running(&mut self, running: QuotaRunning) {
        let (flow, sums) = (running.flow, (running.tokens.0, running.requests));
        if sums == (0, 0) {
            self.running.remove(&flow);
        } else if self.running.len() < BUFFERED_KEYS_MAX || self.running.contains_key(&flow) {
            self.running.insert(flow, sums);
        }
    }

    /// Takes what was used, as of now.
    pub(super) fn take_used(&mut self, now: Instant) -> Vec<QuotaUsage> {
        let now = now.saturating_duration_since(self.origin);
        let used = std::mem::take(&mut self.used).into_iter();
        let usages = used.filter_map(|(key, amount)| {
            let used_at = match key.when {
                When::Part(part) => {
                    let began = Duration::from_millis(part.saturating_mul(part_width(key.period)));
                    UsedAt::Ago(now.saturating_sub(began))
                }
                When::Since(seconds) => UsedAt::Since(seconds),
            };
            Some(QuotaUsage {
                flow: key.flow,
                unit: unit_from_number(key.unit)?,
                period: key.period.period(),
                used_at,
                amount,
            })
        });
        usages.collect()
    }

    /// What runs, the flows with most tokens first.
    pub(super) fn running(&self) -> Vec<Running> {
        let mut running: Vec<_> = self.running.iter().collect();
        running.sort_unstable_by_key(|&(_, sums)| Reverse(*sums));
        let most = running.into_iter().take(RUNNING_MAX);
        most.map(|(flow, &(tokens, requests))| (flow.clone(), tokens, requests))
            .collect()
    }
}

/// What a flow runs of one unit, as a key of sums over companions.
pub(super) type RunningKey = (Box<str>, u8);

/// The sums of a list, by key.
pub(super) fn running_sums(running: Vec<Running>) -> Vec<(RunningKey, u64)> {
    let sums = running.into_iter().flat_map(|(flow, tokens, requests)| {
        [
            ((flow.clone(), unit_number(CostUnit::Tokens)), tokens),
            ((flow, unit_number(CostUnit::Requests)), requests),
        ]
    });
    sums.filter(|(_, sum)| *sum > 0).collect()
}

/// The engine's record of what the flow runs, from the sums of both units.
pub(super) fn running_of(flow: Box<str>, sum: impl Fn(&RunningKey) -> u64) -> QuotaRunning {
    let sum_of = |unit| sum(&(flow.clone(), unit_number(unit)));
    QuotaRunning {
        tokens: Tokens(sum_of(CostUnit::Tokens)),
        requests: sum_of(CostUnit::Requests),
        flow,
    }
}

#[cfg(test)]
mod tests {
    use penstock_engine::policy::QuotaPeriod;

    use super::*;

    fn used(flow: &str, used_at: UsedAt, amount: u64) -> QuotaUsage {
        let period = match used_at {
            UsedAt::Since(_) => QuotaPeriod::Day,
            UsedAt::Ago(_) | UsedAt::Debt => QuotaPeriod::Sliding(Duration::from_secs(600)),
        };
        QuotaUsage {
            flow: flow.into(),
            unit: CostUnit::Tokens,
            period,
            used_at,
            amount,
        }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn usage_is_summed_by_the_time_of_its_dispatch() {
        let mut buffer = QuotaBuffer::default();
        let now = buffer.origin + seconds(100);
        for (ago, amount) in [(0, 1), (10, 2), (10, 3), (1_000, 4)] {
            assert!(buffer.add(used("a", UsedAt::Ago(seconds(ago)), amount), now));
        }
        assert!(buffer.add(used("a", UsedAt::Since(86_400), 5), now));
        assert!(buffer.add(used("a", UsedAt::Since(86_400), u64::MAX), now));
        let mut taken = buffer.take_used(now + seconds(7));
        taken.sort_by_key(|usage| usage.amount);
        let expected = [
            used("a", UsedAt::Ago(seconds(7)), 1),
            used("a", UsedAt::Ago(seconds(107)), 4),
            used("a", UsedAt::Ago(seconds(17)), 5),
            used("a", UsedAt::Since(86_400), u64::MAX),
        ];
        assert_eq!(taken, expected);
        assert!(buffer.is_empty());
    }

    #[test]
    fn a_full_buffer_takes_only_more_of_what_it_has() {
        let mut buffer = QuotaBuffer::default();
        let (day, now) = (UsedAt::Since(0), Instant::now());
        for flow in 0..BUFFERED_KEYS_MAX {
            assert!(buffer.add(used(&flow.to_string(), day, 1), now));
        }
        assert!(!buffer.add(used("one more", day, 1), now));
        assert!(buffer.add(used("0", day, 1), now));
    }

    #[test]
    fn what_runs_is_listed_until_it_ends() {
        let runs = |flow: &str, tokens, requests| QuotaRunning {
            flow: flow.into(),
            tokens: Tokens(tokens),
            requests,
        };
        let mut buffer = QuotaBuffer::default();
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
