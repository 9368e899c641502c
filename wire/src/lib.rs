//! The session protocol of Penstock: messages, limits and the names both sides say. No behaviour.
//!
//! `proto/penstock.v1.proto` is the source; `generated.rs` is made from it and checked in, a test holds it current.

pub mod limits;
pub mod names;

#[expect(missing_docs, clippy::large_enum_variant, reason = "generated code")]
#[rustfmt::skip]
mod generated;

pub use generated::*;

/// Full name of the gRPC service.
pub const SERVICE: &str = "penstock.v1.Arbiter";
/// Its one method.
pub const METHOD: &str = "Session";
