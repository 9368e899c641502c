//! Tests of the worker through its public interface. The tests provide the clock and the companion.

mod api_keys;
mod bodies;
mod body_callbacks;
#[cfg(not(target_arch = "wasm32"))]
mod credit_model;
mod credit_reports;
mod credit_returns;
mod credits;
mod eviction;
mod exchange;
mod fail_open;
mod harness;
mod held_responses;
mod kept_alive;
mod long_responses;
#[cfg(not(target_arch = "wasm32"))]
mod places;
mod recovery;
mod refused_attempts;
#[cfg(not(target_arch = "wasm32"))]
mod repeats;
mod reported_endpoint;
mod requeue;
mod restarts;
mod rewrite;
mod roles;
mod session;
mod sessions;
mod shared_data;
mod silent_servers;
mod trust;
