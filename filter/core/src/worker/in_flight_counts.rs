//! The load that this worker has in flight, by pool, and the pools in which it has published a record.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    exchange::Granted,
    in_flight::{Bound, InFlightStore, Load},
    time::Instant,
};

#[derive(Debug)]
pub(super) struct InFlightCounts {
    pools: BTreeMap<String, Load>,
    /// The pools in which shared data has a record of this worker.
    published: BTreeSet<String>,
    /// When the records are renewed.
    pub(super) publish_at: Instant,
    /// Whether the companion was down at the last renewal.
    pub(super) was_down: bool,
}

impl InFlightCounts {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            pools: BTreeMap::new(),
            published: BTreeSet::new(),
            publish_at: now,
            was_down: false,
        }
    }

    pub(super) fn add(&mut self, granted: &Granted) {
        match self.pools.get_mut(&granted.pool) {
            Some(load) => *load = load.plus(granted.load),
            None => drop(self.pools.insert(granted.pool.clone(), granted.load)),
        }
    }

    pub(super) fn remove(&mut self, granted: &Granted) {
        if let Some(load) = self.pools.get_mut(&granted.pool) {
            *load = load.minus(granted.load);
        }
    }

    /// Removes the entries of pools in which nothing is in flight.
    pub(super) fn remove_idle_pools(&mut self) {
        self.pools.retain(|_, load| !load.is_zero());
    }

    fn load(&self, pool: &str) -> Load {
        self.pools.get(pool).copied().unwrap_or_default()
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
