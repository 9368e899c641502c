//! Finds, configures and runs Envoy for Penstock.
//!
//! - [`find`]: where the Envoy binary is, or how it is got.
//! - [`bootstrap`]: the configuration that puts Penstock's filter in front of the pools.
//! - [`folder`]: what changes in it while Envoy runs, in files that it watches.
//! - [`run`]: one Envoy process, from start to stop.
//! - [`child`]: child processes that never outlive us.
//!
//! It knows nothing of queues and policies: what the filter is told comes in as a JSON value. It reads no
//! configuration file either; the `penstock` crate turns its own into [`bootstrap::Settings`].

pub mod bootstrap;
pub mod child;
pub mod find;
pub mod folder;
pub mod limits;
pub mod run;
