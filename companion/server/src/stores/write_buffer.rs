//! Usage that waits for the next write of a store: summed up when costs are settled, taken when the store is written.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use penstock_engine::input::{Band, PastUsage};
use penstock_engine::units::Tokens;
use tokio::time::Instant;

use super::BUFFERED_KEYS_MAX;

/// The identity that used tokens, and the model it used.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
}

/// The usage of one pool's flows since the last [`WriteBuffer::take`].
#[derive(Debug, Default)]
pub(super) struct WriteBuffer(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    costs: HashMap<UsageKey, u64>,
    /// Entries dropped because the buffer was full.
    dropped: u64,
}

impl WriteBuffer {
    /// Adds to the sum of its key, and returns whether the buffer was empty before.
    pub(super) fn add(&self, used: PastUsage) -> bool {
        let key = UsageKey {
            band: used.band,
            class: used.class,
            flow: used.flow,
            model: used.model,
        };
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = state.costs.is_empty();
        if state.costs.len() < BUFFERED_KEYS_MAX || state.costs.contains_key(&key) {
            let cost = state.costs.entry(key).or_default();
            *cost = cost.saturating_add(used.cost.0);
        } else {
            state.dropped += 1;
        }
        is_first
    }

    /// Empties the buffer. Returns its entries, and how many were dropped.
    pub(super) fn take(&self) -> (Vec<(UsageKey, u64)>, u64) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let State { costs, dropped } = std::mem::take(&mut *state);
        (costs.into_iter().collect(), dropped)
    }
}

/// A pool, and usage of its flows.
pub type PoolUsage = (Arc<str>, Vec<PastUsage>);

/// Usage of one pool, taken from its buffer at one time.
#[derive(Clone, Debug)]
pub(super) struct UsageBatch {
    /// Consecutive within one store and one run of the companion.
    pub(super) number: u64,
    pub(super) pool: Arc<str>,
    pub(super) window: Duration,
    pub(super) taken: Instant,
    pub(super) used: Arc<[(UsageKey, u64)]>,
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
        let (mut taken, dropped) = buffer.take();
        taken.sort_by_key(|(_, cost)| *cost);
        let costs: Vec<_> = taken.iter().map(|(key, cost)| (&*key.flow, *cost)).collect();
        assert_eq!((costs, dropped), (vec![("a", 3), ("b", u64::MAX)], 0));
        assert!(buffer.take().0.is_empty() && buffer.add(used("a", 1)));
    }

    #[test]
    fn a_full_buffer_counts_dropped_entries() {
        let buffer = WriteBuffer::default();
        for flow in 0..BUFFERED_KEYS_MAX + 3 {
            buffer.add(used(&flow.to_string(), 1));
        }
        buffer.add(used("0", 1));
        let (taken, dropped) = buffer.take();
        assert_eq!((taken.len(), dropped), (BUFFERED_KEYS_MAX, 3));
    }
}
