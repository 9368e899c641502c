//! The worker from outside: calls in, decisions out, with a clock and a companion that are the test's.

mod bodies;
mod exchange;
mod fail_open;
mod harness;
#[cfg(not(target_arch = "wasm32"))]
mod places;
#[cfg(not(target_arch = "wasm32"))]
mod repeats;
mod requeue;
mod rewrite;
mod session;
mod shared_data;
mod told;
mod trust;
