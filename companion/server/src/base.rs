//! What every other part of the service stands on: time, tasks, files, addresses and access.

pub(crate) mod admin;
pub(crate) mod check_failures;
pub(crate) mod early_reads;
pub(crate) mod found;
pub(crate) mod listener;
pub(crate) mod liveness;
pub(crate) mod phase;
pub(crate) mod role;
pub(crate) mod secret_files;
#[cfg_attr(not(feature = "tls"), path = "base/without_tls.rs")]
pub(crate) mod tls;
pub(crate) mod watched_file;

pub(crate) use penstock_base::{clock, essential};
