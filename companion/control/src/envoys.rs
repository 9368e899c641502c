//! The Envoys behind the sessions: how many there are, and which endpoints each of them passes over.
//!
//! An Envoy has one session per worker and plugin configuration. It is known by the number that its filters draw once
//! for the process; a filter that doesn't say it counts as an Envoy of its own.

use hashbrown::HashMap;
use penstock_engine::Instant;
use penstock_engine::input::EndpointId;

use crate::limits::AVOIDED_FOR;
use crate::session::Epoch;

/// Which Envoy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Envoy {
    /// As its filters name it.
    Named(u64),
    /// One root context that says nothing of it.
    Unnamed(Epoch),
}

impl Envoy {
    /// As a Hello says.
    pub(crate) const fn of(named: u64, epoch: Epoch) -> Self {
        match named {
            0 => Self::Unnamed(epoch),
            named => Self::Named(named),
        }
    }
}

/// All Envoys that have a root context here, orphaned ones included.
#[derive(Debug, Default)]
pub(crate) struct Envoys(HashMap<Envoy, Seen>);

#[derive(Debug, Default)]
struct Seen {
    contexts: usize,
    /// By pool and endpoint: until when it isn't granted to this Envoy.
    avoided: HashMap<(usize, EndpointId), Instant>,
}

impl Envoys {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// It has a root context more.
    pub(crate) fn joined(&mut self, envoy: Envoy) {
        self.0.entry(envoy).or_default().contexts += 1;
    }

    /// It has a root context less; with the last one it is forgotten.
    pub(crate) fn left(&mut self, envoy: Envoy) {
        if let Some(seen) = self.0.get_mut(&envoy) {
            seen.contexts -= 1;
            if seen.contexts == 0 {
                self.0.remove(&envoy);
            }
        }
    }

    /// It was granted this endpoint and passed it over: its cluster doesn't have it.
    pub(crate) fn avoid(&mut self, now: Instant, envoy: Envoy, pool: usize, endpoint: EndpointId) {
        if let Some(seen) = self.0.get_mut(&envoy) {
            seen.avoided.insert((pool, endpoint), now.after(AVOIDED_FOR));
        }
    }

    /// It has sent a request to this endpoint.
    pub(crate) fn uses(&mut self, envoy: Envoy, pool: usize, endpoint: EndpointId) {
        if let Some(seen) = self.0.get_mut(&envoy) {
            seen.avoided.remove(&(pool, endpoint));
        }
    }

    /// This Envoy passes over some endpoint of the pool.
    pub(crate) fn avoids_any(&self, now: Instant, envoy: Envoy, pool: usize) -> bool {
        self.0.get(&envoy).is_some_and(|seen| {
            seen.avoided
                .iter()
                .any(|(&(of, _), &until)| of == pool && now < until)
        })
    }

    /// This Envoy passes over this endpoint.
    pub(crate) fn avoids(&self, now: Instant, envoy: Envoy, pool: usize, endpoint: EndpointId) -> bool {
        let seen = self.0.get(&envoy);
        seen.and_then(|seen| seen.avoided.get(&(pool, endpoint)))
            .is_some_and(|&until| now < until)
    }

    /// The pool that was at `n` is at `places[n]`; nobody speaks of one that isn't anywhere.
    pub(crate) fn move_pools(&mut self, places: &[usize]) {
        for seen in self.0.values_mut() {
            let avoided = core::mem::take(&mut seen.avoided).into_iter();
            let moved = avoided.filter_map(|((pool, endpoint), until)| {
                let place = places.get(pool).copied().filter(|it| *it != usize::MAX)?;
                Some(((place, endpoint), until))
            });
            seen.avoided = moved.collect();
        }
    }

    /// Those endpoints of a pool are no more.
    pub(crate) fn forget(&mut self, pool: usize, endpoints: &[EndpointId]) {
        for seen in self.0.values_mut() {
            seen.avoided
                .retain(|&(of, endpoint), _| of != pool || !endpoints.contains(&endpoint));
        }
    }

    /// How many root contexts an Envoy is known by.
    pub(crate) fn contexts_of(&self, envoy: Envoy) -> usize {
        self.0.get(&envoy).map_or(0, |seen| seen.contexts)
    }
}
