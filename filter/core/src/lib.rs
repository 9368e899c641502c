//! The filter's logic, without a host: the HTTP streams of one Envoy worker, and its session with the companion.
//!
//! Events are method calls with the time as an argument, and decisions are returned as data (see [`effect`]). The crate has
//! no host, no clock, and no panics. The crate `penstock-filter` connects it to Envoy's callbacks and host calls; the
//! simulator does the same in virtual time. [`worker::Worker`] is the entry point.
//!
//! All tests except the property tests also run as wasm, which is what Envoy runs:
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

mod alive_endpoints;
mod api_keys;
pub mod body;
pub mod compiled_policy;
pub mod config;
mod credits;
pub mod effect;
mod end_reason;
mod endpoint_choice;
mod exchange;
pub mod failed_attempts;
mod fallback_deadlines;
pub mod header_sanitizer;
pub mod headers;
mod hex;
pub mod identity;
mod in_flight;
mod json;
pub mod limits;
pub mod local_reply;
mod metadata;
mod model_list;
pub mod paths;
mod pool_endpoints;
mod prefix_hashes;
pub mod process_identity;
pub mod properties;
pub mod rate_limit;
mod registration;
pub mod reported_error;
mod requeue_on;
mod requeue_token;
pub mod response;
mod retry_advice;
pub mod rewrite;
mod served_models;
pub mod session;
pub mod shared_data;
pub mod stream_action;
pub mod time;
pub mod trust;
pub mod usage;
mod usage_request;
pub mod worker;

pub use self::json::SyntaxError;
