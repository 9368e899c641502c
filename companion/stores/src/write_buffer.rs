//! Usage that waits for the next write of a store: summed up when costs are settled, taken when the store is written; and
//! what runs, for a store that companions share.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_engine::input::{Band, BudgetReset, BudgetRunning, BudgetUsage, PastUsage, RunningUsage};
use penstock_engine::units::Tokens;
use tokio::time::Instant;

use super::budget_buffer::{self, BudgetBuffer, OwnReset};
use super::{BUFFERED_KEYS_MAX, RUNNING_MAX};

/// The identity that used tokens, and the model it used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct UsageKey {
    pub(super) band: Band,
    pub(super) class: Box<str>,
    pub(super) flow: Box<str>,
    pub(super) model: Box<str>,
}

impl UsageKey {
    /// The engine's record that this identity used `cost` at a time `ago` before now.
    pub(super) fn used(self, cost: u64, ago: Duration) -> PastUsage {
        PastUsage {
            band: self.band,
            class: self.class,
            flow: self.flow,
            model: self.model,
            cost: Tokens(cost),
            ago,
        }
    }

    /// The engine's record that this identity runs estimates of this sum elsewhere.
    pub(super) fn runs(self, running: u64) -> RunningUsage {
        RunningUsage {
            band: self.band,
            class: self.class,
            flow: self.flow,
            model: self.model,
            running: Tokens(running),
        }
    }
}

/// The usage of one pool's flows since the last [`WriteBuffer::take`], and the usage that they run.
#[derive(Debug, Default)]
pub(super) struct WriteBuffer(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    costs: HashMap<UsageKey, u64>,
    /// Entries dropped because the buffer was full.
    dropped: u64,
    /// The sums of the estimates of running requests; keys beyond the limit are left out.
    running: HashMap<UsageKey, u64>,
    budgets: BudgetBuffer,
    /// What runs has changed since the last [`WriteBuffer::take`].
    has_changed: bool,
}

/// The contents of a write buffer.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) used: Vec<(UsageKey, u64)>,
    /// Entries dropped because the buffer was full.
    pub(super) dropped: u64,
    /// Resets of budgets here.
    pub(super) budget_resets: Vec<OwnReset>,
    /// Flows of which no usage of budgets counts that was taken before, with the number of the last reset at another companion.
    pub(super) forgotten: HashMap<Box<str>, Option<u64>>,
    /// What was used of budgets after that, as of now.
    pub(super) budgets: Vec<BudgetUsage>,
    /// What runs; `None`: the same as the last time.
    pub(super) running: Option<RunningLists>,
}

/// What runs at a companion, the largest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RunningLists {
    /// Of pools with usage windows.
    pub(super) usage: Vec<(UsageKey, u64)>,
    /// Of flows with budgets.
    pub(super) budgets: Vec<budget_buffer::Running>,
}

impl State {
    fn is_empty(&self) -> bool {
        self.costs.is_empty() && self.budgets.is_empty()
    }
}

impl WriteBuffer {
    /// Adds to the sum of its key, and returns whether the buffer was empty before.
    pub(super) fn add(&self, used: PastUsage) -> bool {
        let key = UsageKey { band: used.band, class: used.class, flow: used.flow, model: used.model };
        let mut state = self.state();
        let is_first = state.is_empty();
        if state.costs.len() < BUFFERED_KEYS_MAX || state.costs.contains_key(&key) {
            let cost = state.costs.entry(key).or_default();
            *cost = cost.saturating_add(used.cost.0);
        } else {
            state.dropped += 1;
        }
        is_first
    }

    /// Replaces the sum of running requests, and returns whether that is the first change since the last [`Self::take`].
    pub(super) fn set_running(&self, changed: RunningUsage) -> bool {
        let key =
            UsageKey { band: changed.band, class: changed.class, flow: changed.flow, model: changed.model };
        let mut state = self.state();
        if changed.running.0 == 0 {
            state.running.remove(&key);
        } else if state.running.len() < BUFFERED_KEYS_MAX || state.running.contains_key(&key) {
            state.running.insert(key, changed.running.0);
        }
        !std::mem::replace(&mut state.has_changed, true)
    }

    /// Adds usage of a budget, and returns whether the buffer was empty before.
    pub(super) fn add_budget(&self, used: BudgetUsage) -> bool {
        let mut state = self.state();
        let is_first = state.is_empty();
        if !state.budgets.add(used, Instant::now()) {
            state.dropped += 1;
        }
        is_first
    }

    /// Adds a reset of a budget. What was added of the flow before isn't taken any more.
    pub(super) fn reset_budget(&self, flow: &str, number: u64) {
        let mut state = self.state();
        if !state.budgets.reset(flow, number) {
            state.dropped += 1;
        }
    }

    /// What was added of the flow's budget before isn't taken any more, because of the reset of this number at another companion.
    pub(super) fn forget_budget(&self, flow: &str, number: u64) {
        self.state().budgets.forget(flow, Some(number));
    }

    /// [`Self::set_running`] of a flow with a budget.
    pub(super) fn set_budget_running(&self, changed: BudgetRunning) -> bool {
        let mut state = self.state();
        state.budgets.set_running(changed);
        !std::mem::replace(&mut state.has_changed, true)
    }

    /// Whether anything runs.
    pub(super) fn runs_any(&self) -> bool {
        let state = self.state();
        !state.running.is_empty() || state.budgets.runs_any()
    }

    /// Empties the buffer, apart from what runs. `refresh`: returns what runs even if it hasn't changed.
    pub(super) fn take(&self, refresh: bool) -> Contents {
        let mut state = self.state();
        let costs = std::mem::take(&mut state.costs);
        let has_changed = std::mem::take(&mut state.has_changed);
        let running = (has_changed || refresh).then(|| {
            let mut running: Vec<_> = state.running.iter().collect();
            running.sort_unstable_by_key(|&(_, sum)| Reverse(*sum));
            let most = running.into_iter().take(RUNNING_MAX);
            RunningLists {
                usage: most.map(|(key, sum)| (key.clone(), *sum)).collect(),
                budgets: state.budgets.running(),
            }
        });
        let now = Instant::now();
        Contents {
            used: costs.into_iter().collect(),
            dropped: std::mem::take(&mut state.dropped),
            budget_resets: state.budgets.take_resets(),
            forgotten: state.budgets.take_forgotten(),
            budgets: state.budgets.take_used(now),
            running,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Usage of a pool's flows at other companions.
#[derive(Debug)]
pub struct SharedUsage {
    /// The pool's name.
    pub pool: Arc<str>,
    /// Settled costs.
    pub settled: Vec<PastUsage>,
    /// What runs there, where that has changed.
    pub running: Vec<RunningUsage>,
    /// Resets of budgets in the order in which all companions read them, before all of the following.
    pub budget_resets: Vec<BudgetReset>,
    /// Usage of budgets from before this companion's start.
    pub past_budgets: Vec<BudgetUsage>,
    /// Settled usage of budgets, and top-ups.
    pub budgets: Vec<BudgetUsage>,
    /// What flows with budgets run there, where that has changed.
    pub budgets_running: Vec<BudgetRunning>,
}

impl SharedUsage {
    /// No usage of this pool.
    pub(super) const fn none(pool: Arc<str>) -> Self {
        Self {
            pool,
            settled: Vec::new(),
            running: Vec::new(),
            budget_resets: Vec::new(),
            past_budgets: Vec::new(),
            budgets: Vec::new(),
            budgets_running: Vec::new(),
        }
    }

    /// This usage changes nothing.
    pub(super) const fn is_empty(&self) -> bool {
        self.settled.is_empty()
            && self.running.is_empty()
            && self.budget_resets.is_empty()
            && self.past_budgets.is_empty()
            && self.budgets.is_empty()
            && self.budgets_running.is_empty()
    }
}

/// Usage of one pool, taken from its buffer at one time.
#[derive(Clone, Debug)]
pub(super) struct UsageBatch {
    /// Consecutive within one store and one run of the companion.
    pub(super) number: u64,
    pub(super) pool: Arc<str>,
    /// `None`: the pool has no usage windows.
    pub(super) window: Option<Duration>,
    pub(super) taken: Instant,
    pub(super) used: Arc<[(UsageKey, u64)]>,
    /// Resets of budgets here. The usage of these flows in this batch is later.
    pub(super) budget_resets: Arc<[OwnReset]>,
    /// The numbers of these resets for all companions in the last attempt to write the batch.
    pub(super) reset_numbers: Vec<(Box<str>, u64)>,
    /// What was used of budgets, as of `taken`.
    pub(super) budgets: Arc<[BudgetUsage]>,
    /// What runs; `None`: the same as in the batch before.
    pub(super) running: Option<Arc<RunningLists>>,
}

impl UsageBatch {
    /// Whether the batch changes anything at other companions, or for the next one.
    pub(super) fn is_needed(&self) -> bool {
        let is_within = self.window.is_some_and(|window| self.taken.elapsed() < window);
        let has_budgets = !self.budgets.is_empty() || !self.budget_resets.is_empty();
        self.running.is_some() || has_budgets || (is_within && !self.used.is_empty())
    }

    /// The batch's usage, in entries.
    pub(super) fn len(&self) -> usize {
        self.used.len() + self.budgets.len() + self.budget_resets.len()
    }

    /// Drops all usage, and keeps resets, and what runs. Returns how many entries that were.
    pub(super) fn drop_usage(&mut self) -> usize {
        let (used, budgets) = (std::mem::take(&mut self.used), std::mem::take(&mut self.budgets));
        used.len() + budgets.len()
    }

    /// Drops the resets of flows for which `is_kept` is false.
    pub(super) fn retain_resets(&mut self, is_kept: impl Fn(&str) -> bool) {
        if !self.budget_resets.iter().all(|reset| is_kept(&reset.flow)) {
            self.budget_resets =
                self.budget_resets.iter().filter(|reset| is_kept(&reset.flow)).cloned().collect();
        }
    }

    /// Drops the usage of budgets for which `is_kept` is false.
    pub(super) fn retain_budgets(&mut self, is_kept: impl Fn(&BudgetUsage) -> bool) {
        if !self.budgets.iter().all(&is_kept) {
            self.budgets = self.budgets.iter().filter(|usage| is_kept(usage)).cloned().collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(flow: &str, cost: u64) -> PastUsage {
        PastUsage {
            band: Band::Default,
            class: "".into(),
            flow: flow.into(),
            model: "m".into(),
            cost: Tokens(cost),
            ago: Duration::ZERO,
        }
    }

    #[test]
    fn usage_of_one_flow_is_summed_until_it_is_taken() {
        let buffer = WriteBuffer::default();
        assert!(buffer.add(used("a", 1)));
        assert!(!buffer.add(used("a", 2)));
        assert!(!buffer.add(used("b", u64::MAX)) && !buffer.add(used("b", 5)));
        let mut taken = buffer.take(false);
        taken.used.sort_by_key(|(_, cost)| *cost);
        let costs: Vec<_> = taken.used.iter().map(|(key, cost)| (&*key.flow, *cost)).collect();
        assert_eq!((costs, taken.dropped), (vec![("a", 3), ("b", u64::MAX)], 0));
        assert!(buffer.take(false).used.is_empty() && buffer.add(used("a", 1)));
    }

    fn runs(flow: &str, running: u64) -> RunningUsage {
        RunningUsage {
            band: Band::Default,
            class: "".into(),
            flow: flow.into(),
            model: "m".into(),
            running: Tokens(running),
        }
    }

    fn running(buffer: &WriteBuffer, refresh: bool) -> Option<Vec<(String, u64)>> {
        let running = buffer.take(refresh).running?.usage.into_iter();
        Some(running.map(|(key, sum)| (key.flow.into(), sum)).collect())
    }

    #[test]
    fn what_runs_is_taken_when_it_has_changed_or_is_refreshed() {
        let buffer = WriteBuffer::default();
        assert_eq!(running(&buffer, false), None);
        assert!(buffer.set_running(runs("a", 5)) && !buffer.set_running(runs("b", 7)));
        assert!(!buffer.set_running(runs("a", 6)));
        let both = vec![("b".to_owned(), 7), ("a".to_owned(), 6)];
        assert_eq!(running(&buffer, false), Some(both.clone()), "the largest first");
        assert_eq!(running(&buffer, false), None);
        assert_eq!(running(&buffer, true), Some(both));
        assert!(buffer.runs_any() && buffer.set_running(runs("a", 0)));
        buffer.set_running(runs("b", 0));
        assert!(!buffer.runs_any());
        assert_eq!(running(&buffer, false), Some(Vec::new()));
    }

    #[test]
    fn of_too_many_running_flows_the_largest_are_taken() {
        let buffer = WriteBuffer::default();
        for number in 1..=RUNNING_MAX + 10 {
            buffer.set_running(runs(&number.to_string(), number as u64));
        }
        let taken = running(&buffer, false).expect("it has changed");
        let least = taken.iter().map(|(_, sum)| *sum).min();
        assert_eq!((taken.len(), least), (RUNNING_MAX, Some(11)));
    }

    #[test]
    fn a_full_buffer_counts_dropped_entries() {
        let buffer = WriteBuffer::default();
        for flow in 0..BUFFERED_KEYS_MAX + 3 {
            buffer.add(used(&flow.to_string(), 1));
        }
        buffer.add(used("0", 1));
        let taken = buffer.take(false);
        assert_eq!((taken.used.len(), taken.dropped), (BUFFERED_KEYS_MAX, 3));
    }
}
