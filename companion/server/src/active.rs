//! What is in force: the active configuration, and the endpoints that Envoy has.

pub(crate) mod envoy_pools;
pub(crate) mod reload;
