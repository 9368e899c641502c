//! What every other part of the service stands on: time, tasks, files, addresses and access.

pub mod admin;
pub mod clock;
pub(crate) mod essential;
pub mod found;
pub mod listener;
pub mod phase;
pub mod role;
#[cfg_attr(not(feature = "tls"), path = "base/without_tls.rs")]
pub mod tls;
pub(crate) mod watched_file;
