//! Penstock's session protocol: messages, limits, and the names and codes that filter and companion share. No behaviour but a digest.
//!
//! `proto/penstock.v1.proto` is the source of `generated.rs`, which is checked in; a test keeps it current.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::arithmetic_side_effects
)]

mod code;
mod digest;
pub mod limits;
pub mod names;

#[expect(missing_docs, clippy::large_enum_variant, reason = "generated code")]
#[rustfmt::skip]
mod generated;

pub use self::code::Code;
pub use self::digest::endpoints_digest;
pub use self::generated::*;

/// Full name of the gRPC service.
pub const SERVICE: &str = "penstock.v1.Arbiter";
/// Name of its method.
pub const METHOD: &str = "Session";
