//! Whether a store can be read and written, for the log and the metrics. The log has one line when a store fails and one
//! when it works again.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};

use super::StoreMetrics;

/// Operations on a store that fail independently of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    /// Writing the models and the usage of this companion.
    Write,
    /// Reading the usage of the other companions.
    Read,
}

#[derive(Debug)]
pub(super) struct Health {
    /// The store's name in log lines, without a password.
    place: String,
    metrics: Option<StoreMetrics>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// An operation has succeeded at least once.
    used: bool,
    failing: BTreeSet<Operation>,
    pools: BTreeSet<String>,
}

impl Health {
    pub(super) fn new(place: String, metrics: Option<StoreMetrics>) -> Arc<Self> {
        Arc::new(Self { place, metrics, state: Mutex::default() })
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    pub(super) fn succeeded(&self, operation: Operation) {
        self.change(|state| {
            let was_failing = state.failing.remove(&operation);
            state.used = true;
            if was_failing && state.failing.is_empty() {
                tracing::info!("usage.store: {} works again", self.place);
            }
        });
    }

    pub(super) fn failed(&self, operation: Operation, why: &dyn Display) {
        self.change(|state| {
            if state.failing.is_empty() {
                tracing::warn!(
                    "usage.store: {} failed: {why}; the companion continues from memory and writes new models and usage \
                     when the store works again",
                    self.place
                );
            } else {
                tracing::debug!("usage.store: {}: {why}", self.place);
            }
            state.failing.insert(operation);
        });
    }

    /// Counts one write for each distinct pool of `pools`.
    pub(super) fn count_writes<'a>(&self, pools: impl IntoIterator<Item = &'a str>) {
        let pools: BTreeSet<&str> = pools.into_iter().collect();
        if let Some(metrics) = &self.metrics {
            for pool in pools {
                metrics.writes.with_label_values(&[pool]).inc();
            }
        }
    }

    /// A pool is kept in this store from now on.
    pub(super) fn add_pool(&self, pool: &str) {
        self.change(|state| {
            state.pools.insert(pool.to_owned());
        });
    }

    /// A pool is no longer kept in this store.
    pub(super) fn remove_pool(&self, pool: &str) {
        self.change(|state| {
            state.pools.remove(pool);
        });
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        let up = state.used && state.failing.is_empty();
        for pool in &state.pools {
            if let Some(metrics) = &self.metrics {
                metrics.up.with_label_values(&[pool]).set(up.into());
            }
        }
    }
}
