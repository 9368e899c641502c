//! Whether a store is read and written, as the log and the metrics say it: once when it stops, once when it is back.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};

use crate::metrics::Metrics;

/// What is done with a store, each by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Side {
    /// What was learned and used here is written.
    Writing,
    /// What others used is read.
    Reading,
}

/// Of one store.
#[derive(Debug)]
pub(super) struct Health {
    /// What it is called, without a password.
    place: String,
    metrics: Option<Arc<Metrics>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// It was used at least once.
    known: bool,
    failing: BTreeSet<Side>,
    pools: BTreeSet<String>,
}

impl Health {
    pub(super) fn new(place: String, metrics: Option<Arc<Metrics>>) -> Arc<Self> {
        Arc::new(Self {
            place,
            metrics,
            state: Mutex::default(),
        })
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// It works.
    pub(super) fn works(&self, side: Side) {
        self.change(|state| {
            let was_failing = state.failing.remove(&side);
            state.known = true;
            if was_failing && state.failing.is_empty() {
                tracing::info!("usage.store: {} is used again", self.place);
            }
        });
    }

    /// It doesn't.
    pub(super) fn fails(&self, side: Side, why: &dyn Display) {
        self.change(|state| {
            if state.failing.is_empty() {
                tracing::warn!(
                    "usage.store: {}: {why}: all goes on from memory; what is learned and used meanwhile is written when \
                     that is mended",
                    self.place
                );
            } else {
                tracing::debug!("usage.store: {}: {why}", self.place);
            }
            state.failing.insert(side);
        });
    }

    /// Something of these pools was written.
    pub(super) fn wrote<'a>(&self, pools: impl IntoIterator<Item = &'a str>) {
        let pools: BTreeSet<&str> = pools.into_iter().collect();
        if let Some(metrics) = &self.metrics {
            for pool in pools {
                metrics.store_writes.with_label_values(&[pool]).inc();
            }
        }
    }

    /// A pool is kept there.
    pub(super) fn follow(&self, pool: &str) {
        self.change(|state| {
            state.pools.insert(pool.to_owned());
        });
    }

    /// It isn't any more.
    pub(super) fn leave(&self, pool: &str) {
        self.change(|state| {
            state.pools.remove(pool);
        });
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        let up = state.known && state.failing.is_empty();
        for pool in &state.pools {
            if let Some(metrics) = &self.metrics {
                metrics.store_up.with_label_values(&[pool]).set(up.into());
            }
        }
    }
}
