//! What is in force: the active configuration, and the endpoints that Envoy has.

pub mod envoy_pools;
pub mod reload;
