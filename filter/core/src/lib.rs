//! The filter's logic: what one Envoy worker knows of its HTTP streams and of the companion.
//!
//! Everything here is pure: events come in as calls, with the time as an argument, and decisions go out as data. There is
//! no host, no clock and no panic; the crate `penstock-filter` turns Envoy's callbacks into these calls and the decisions
//! into host calls, the simulator does the same in virtual time.
//!
//! The tests also run as what Envoy runs, wasm, but for the property tests:
//!
//! ```text
//! cargo install wasm-bindgen-cli --version 0.2.130
//! CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUNNER=wasm-bindgen-test-runner \
//!     cargo test -p penstock-filter-core --target wasm32-unknown-unknown
//! ```

#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::arithmetic_side_effects
    )
)]

pub mod body;
pub mod compiled_policy;
pub mod config;
pub mod effect;
mod end_reason;
mod exchange;
mod fallback_deadlines;
pub mod header_sanitizer;
pub mod headers;
pub mod identity;
mod in_flight;
mod json;
pub mod limits;
pub mod local_reply;
mod metadata;
mod prefix_hashes;
pub mod process_identity;
mod registration;
mod requeue_token;
pub mod response;
pub mod rewrite;
pub mod session;
pub mod shared_data;
pub mod time;
pub mod trust;
pub mod usage;
pub mod worker;

pub use json::SyntaxError;
