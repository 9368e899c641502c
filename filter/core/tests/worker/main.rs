//! The worker from outside: calls in, decisions out, with a clock and a companion that are the test's.

mod bodies;
mod commons;
mod exchange;
mod harness;
mod open;
#[cfg(not(target_arch = "wasm32"))]
mod places;
#[cfg(not(target_arch = "wasm32"))]
mod repeats;
mod requeue;
mod rewrite;
mod session;
mod told;
mod trust;
