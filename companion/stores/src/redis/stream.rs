//! A pool's stream as this companion has read it: where it goes on reading, and what it has found and not delivered.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use penstock_engine::input::{BudgetReset, BudgetRunning, BudgetUsage, PastUsage, RunningUsage};
use tokio::sync::oneshot;

use super::elsewhere::Elsewhere;
use super::entry::{self, DuplicateFilter, Entry, Position, Reset};
use crate::budget_buffer::{RunningKey, running_of};
use crate::message::Windows;
use crate::write_buffer::{SharedUsage, UsageKey};

/// A pool's stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) key: String,
    pub(super) windows: Windows,
    pub(super) writer_id: Arc<str>,
    /// The last entry that was read.
    pub(super) last_read: Option<Position>,
    pub(super) duplicates: DuplicateFilter,
    /// Receives the usage that is in the stream already.
    pub(super) past_usage: Option<oneshot::Sender<Vec<PastUsage>>>,
    pub(super) found: Vec<PastUsage>,
    pub(super) elsewhere: Elsewhere<UsageKey>,
    /// Changes of the usage that runs elsewhere, waiting for delivery.
    pub(super) changed: Vec<RunningUsage>,
    pub(super) budgets: Budgets,
    /// The log has a line about an entry that can't be parsed.
    pub(super) warned: bool,
}

/// What the stream has of the pool's budgets.
#[derive(Debug, Default)]
pub(super) struct Budgets {
    /// Entries after this one count; `None`: what was used before isn't known yet.
    pub(super) from: Option<Position>,
    pub(super) duplicates: DuplicateFilter,
    /// Resets, and what was used after them.
    pub(super) resets: Vec<BudgetReset>,
    /// Flows with resets in entries that count, which were used before them; `None`: what was used before these entries is delivered.
    pub(super) reset_flows: Option<HashSet<Box<str>>>,
    pub(super) found: Vec<BudgetUsage>,
    pub(super) elsewhere: Elsewhere<RunningKey>,
    pub(super) changed: Vec<BudgetRunning>,
}

impl Budgets {
    /// Adds the resets and the usage of an entry, which is later than everything so far. `now` is the server's time in milliseconds.
    ///
    /// The stream's order alone decides what was used before a reset. No companion writes usage after a reset from before it has heard of it.
    fn add(&mut self, entry: &mut Entry, is_own: bool, now: u64) {
        for Reset { flow, number, own_number } in std::mem::take(&mut entry.resets) {
            self.found.retain(|usage| usage.flow != flow);
            if let Some(reset_flows) = &mut self.reset_flows {
                reset_flows.insert(flow.clone());
            }
            self.resets.push(match is_own {
                true => BudgetReset::Here { flow, number: own_number },
                false => BudgetReset::Elsewhere { flow, number },
            });
        }
        if !is_own {
            let used = std::mem::take(&mut entry.budgets).into_iter();
            self.found.extend(used.map(|counted| counted.exact_usage(now)));
        }
    }

    /// Sums of what others run have changed.
    pub(super) fn change(&mut self, changed: Vec<(RunningKey, u64)>) {
        let flows: BTreeSet<Box<str>> = changed.into_iter().map(|((flow, _), _)| flow).collect();
        for flow in flows {
            self.changed.push(running_of(flow, |key| self.elsewhere.sum(key)));
        }
    }
}

impl Stream {
    /// Sums of what others run have changed.
    pub(super) fn change(&mut self, changed: Vec<(UsageKey, u64)>) {
        self.changed.extend(changed.into_iter().map(|(key, sum)| key.runs(sum)));
    }

    /// Everything found since the last call; `None`: nothing.
    pub(super) fn take_found(&mut self, pool: &Arc<str>) -> Option<SharedUsage> {
        let settled = std::mem::take(&mut self.found);
        let running = std::mem::take(&mut self.changed);
        let budgets = self.take_budgets(pool);
        let usage =
            SharedUsage { settled, running, ..budgets.unwrap_or_else(|| SharedUsage::none(pool.clone())) };
        (!usage.is_empty()).then_some(usage)
    }

    /// The part of it about budgets.
    pub(super) fn take_budgets(&mut self, pool: &Arc<str>) -> Option<SharedUsage> {
        let usage = SharedUsage {
            budget_resets: std::mem::take(&mut self.budgets.resets),
            budgets: std::mem::take(&mut self.budgets.found),
            budgets_running: std::mem::take(&mut self.budgets.changed),
            ..SharedUsage::none(pool.clone())
        };
        (!usage.is_empty()).then_some(usage)
    }

    /// The changes of what runs elsewhere; `None`: there are none.
    pub(super) fn take_changed(&mut self, pool: &Arc<str>) -> Option<SharedUsage> {
        let usage = SharedUsage {
            running: std::mem::take(&mut self.changed),
            budgets_running: std::mem::take(&mut self.budgets.changed),
            ..SharedUsage::none(pool.clone())
        };
        (!usage.is_empty()).then_some(usage)
    }

    /// What was used of budgets up to this entry is known.
    pub(super) fn count_budgets_from(&mut self, position: Position) {
        self.budgets.from = Some(position);
        self.budgets.reset_flows = Some(HashSet::new());
        self.budgets.duplicates = DuplicateFilter::default();
        self.budgets.resets.clear();
        self.budgets.found.clear();
        // Usage windows that aren't read yet begin later than the hashes end, if there is an entry in between.
        if self.last_read.is_some() || self.windows.usage.is_none() {
            self.last_read = Some(self.last_read.map_or(position, |last_read| last_read.min(position)));
        }
    }

    pub(super) fn add(&mut self, id: &::redis::streams::StreamId, (pool, companion): (&str, &str), now: u64) {
        let position = entry::parse_position(&id.id);
        self.last_read = self.last_read.max(position);
        match entry::parse(id) {
            Some(mut entry) => {
                let is_own = entry.companion.as_deref() == Some(companion);
                let is_later = self.budgets.from.is_some_and(|from| position > Some(from));
                if is_later && self.budgets.duplicates.is_new(&entry) {
                    self.budgets.add(&mut entry, is_own, now);
                }
                if self.duplicates.is_new(&entry) && entry.writer_id != *self.writer_id {
                    self.found.extend(entry.past_usage(now));
                }
            }
            None if !self.warned => {
                self.warned = true;
                tracing::warn!(
                    pool,
                    key = self.key,
                    "entries of the stream ignored: a program other than this version of Penstock wrote them"
                );
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use penstock_engine::policy::BudgetPeriod;

    use super::*;
    use crate::budget::{Counted, Counter};

    fn entry(companion: &str, time: u64, resets: &[(&str, u64)], used: &[(&str, u64)]) -> Entry {
        let counted = used.iter().map(|&(flow, amount)| Counted {
            flow: flow.into(),
            counter: Counter::Tokens,
            period: BudgetPeriod::Day.into(),
            bucket: 0,
            amount,
        });
        Entry {
            writer_id: companion.into(),
            number: 1,
            time,
            used: Vec::new(),
            companion: Some(companion.into()),
            resets: resets
                .iter()
                .map(|&(flow, number)| Reset { flow: flow.into(), number, own_number: 3 })
                .collect(),
            budgets: counted.collect(),
        }
    }

    #[test]
    fn usage_that_comes_before_a_reset_in_the_stream_is_forgotten() {
        let mut budgets = Budgets::default();
        budgets.add(&mut entry("a", 900, &[], &[("f", 1), ("g", 2)]), false, 1_000);
        budgets.add(&mut entry("b", 950, &[("f", 940)], &[("f", 3)]), false, 1_000);
        // By the server's clock it was taken before the reset. But its companion had heard of the reset.
        budgets.add(&mut entry("a", 930, &[], &[("f", 4)]), false, 1_000);
        let found = |budgets: &Budgets| -> Vec<(Box<str>, u64)> {
            budgets.found.iter().map(|usage| (usage.flow.clone(), usage.amount)).collect()
        };
        assert_eq!(found(&budgets), [("g".into(), 2), ("f".into(), 3), ("f".into(), 4)]);
        // Its own usage is no news to this companion's engine.
        budgets.add(&mut entry("own", 990, &[("f", 980)], &[("f", 5)]), true, 1_000);
        assert_eq!(found(&budgets), [("g".into(), 2)]);
        let resets = [
            BudgetReset::Elsewhere { flow: "f".into(), number: 940 },
            BudgetReset::Here { flow: "f".into(), number: 3 },
        ];
        assert_eq!(budgets.resets, resets);
        assert_eq!(budgets.reset_flows, None, "what was used before is delivered");
    }
}
