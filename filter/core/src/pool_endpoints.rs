//! The ready endpoints of the pools, as a companion sent them last.

use std::collections::BTreeMap;

use penstock_wire::{Endpoints, endpoints_digest};

#[derive(Debug, Default)]
pub(crate) struct PoolEndpoints {
    pub(crate) ready: Vec<String>,
    /// How much this Envoy may have in flight while the companion is down; `None`: the companion sent no bound.
    pub(crate) fallback_bound: Option<u64>,
    digest: u64,
}

/// Stores the endpoints of a pool.
pub(crate) fn update(pools: &mut BTreeMap<String, PoolEndpoints>, message: Endpoints) {
    let Endpoints { pool, ready, fallback_bound, keep_ready } = message;
    let known = pools.entry(pool.clone()).or_default();
    if !keep_ready {
        known.ready = ready;
    }
    known.fallback_bound = fallback_bound;
    known.digest = endpoints_digest(&pool, known.ready.iter().map(String::as_str), fallback_bound);
}

/// The digest of the endpoints of the pools for which `is_own` returns true.
pub(crate) fn digest(pools: &BTreeMap<String, PoolEndpoints>, is_own: impl Fn(&str) -> bool) -> u64 {
    let own = pools.iter().filter(|(name, _)| is_own(name));
    let digests = own.map(|(_, pool)| pool.digest);
    digests.fold(0, u64::wrapping_add)
}
