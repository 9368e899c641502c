//! The filter's logic: what one Envoy worker knows of its HTTP streams and of the companion.
//!
//! Everything here is pure: events come in as calls, with the time as an argument, and decisions go out as data. There is
//! no host, no clock and no panic; the crate `penstock-filter` turns Envoy's callbacks into these calls and the decisions
//! into host calls, the simulator does the same in virtual time.

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

pub mod answer;
pub mod body;
pub mod config;
pub mod ends;
pub mod exchange;
pub mod headers;
pub mod hygiene;
pub mod identity;
mod json;
pub mod limits;
pub mod plan;
pub mod response;
pub mod session;
pub mod time;
pub mod usage;
pub mod worker;

pub use json::Syntax;
