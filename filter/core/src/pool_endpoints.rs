//! The ready endpoints of a pool, as the companion sent them last.

use penstock_wire::Endpoints;

#[derive(Debug)]
pub(crate) struct PoolEndpoints {
    pub(crate) ready: Vec<String>,
    /// How much this Envoy may have in flight while the companion is down; `None`: the companion sent no bound.
    pub(crate) fallback_bound: Option<u64>,
}

impl PoolEndpoints {
    /// Parses the message into the pool's name and its endpoints.
    pub(crate) fn parse(message: Endpoints) -> (String, Self) {
        let endpoints = Self {
            ready: message.ready,
            fallback_bound: message.fallback_bound,
        };
        (message.pool, endpoints)
    }
}
