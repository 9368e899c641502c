//! The load that this worker has in flight, by pool, and the pools in which it has published a record.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use crate::exchange::{Granted, Upstream};
use crate::in_flight::{Bound, InFlightStore, Load};
use crate::time::Instant;

/// What a pool has in flight.
#[derive(Debug)]
struct PoolCount {
    load: Load,
    /// From grant to end, the moving mean over the last requests; zero before the first end.
    mean_run: Duration,
}

#[derive(Debug)]
pub(super) struct InFlightCounts {
    pools: BTreeMap<String, PoolCount>,
    /// The pools in which shared data has a record of this worker.
    published: BTreeSet<String>,
    /// When the records are renewed.
    pub(super) publish_at: Instant,
    /// Whether the companion was down at the last renewal.
    pub(super) was_down: bool,
}

impl InFlightCounts {
    pub(super) const fn new(now: Instant) -> Self {
        Self { pools: BTreeMap::new(), published: BTreeSet::new(), publish_at: now, was_down: false }
    }

    pub(super) fn add(&mut self, granted: &Granted) {
        match self.pools.get_mut(&granted.pool) {
            Some(count) => count.load = count.load.plus(granted.load),
            None => {
                let count = PoolCount { load: granted.load, mean_run: Duration::ZERO };
                self.pools.insert(granted.pool.clone(), count);
            }
        }
    }

    /// A granted request has ended.
    pub(super) fn remove(&mut self, now: Instant, granted: &Granted) {
        if let Some(count) = self.pools.get_mut(&granted.pool) {
            count.load = count.load.minus(granted.load);
            // How long a server took to fail says nothing about how soon there is room.
            if !matches!(granted.upstream, Upstream::Requeued { .. }) {
                count.mean_run = moving_mean(count.mean_run, now.since(granted.granted_at));
            }
        }
    }

    /// How soon one of the pool's requests is expected to end.
    pub(super) fn time_to_room(&self, pool: &str) -> Duration {
        let Some(PoolCount { load, mean_run }) = self.pools.get(pool) else {
            return Duration::ZERO;
        };
        let requests = u32::try_from(load.requests).unwrap_or(u32::MAX);
        mean_run.checked_div(requests.max(1)).unwrap_or_default()
    }

    /// Removes the entries of pools in which nothing is in flight.
    pub(super) fn remove_idle_pools(&mut self) {
        self.pools.retain(|_, count| !count.load.is_zero());
    }

    fn load(&self, pool: &str) -> Load {
        self.pools.get(pool).map(|count| count.load).unwrap_or_default()
    }

    /// Publishes the load in flight in a pool. Without load, only a published record is removed.
    pub(super) fn publish(&mut self, pool: &str, store: InFlightStore<'_>) {
        let load = self.load(pool);
        if !load.is_zero() {
            self.published.insert(pool.to_owned());
        } else if !self.published.remove(pool) {
            return;
        }
        store.publish(pool, load);
    }

    /// Reserves room for a request over all workers of this Envoy. Returns whether there was room.
    pub(super) fn reserve(&mut self, pool: &str, load: Load, bound: Bound, store: InFlightStore<'_>) -> bool {
        let has_room = store.reserve(pool, self.load(pool), load, bound);
        if has_room {
            self.published.insert(pool.to_owned());
        }
        has_room
    }
}

/// The mean with one more value, which counts an eighth; the value itself, if it is the first.
fn moving_mean(mean: Duration, value: Duration) -> Duration {
    if mean.is_zero() {
        return value;
    }
    let sum = mean.saturating_mul(7).saturating_add(value);
    sum.checked_div(8).unwrap_or(mean)
}
