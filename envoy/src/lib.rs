//! Finds, configures and runs Envoy for Penstock.
//!
//! - [`find`]: finds an Envoy binary, or downloads one.
//! - [`bootstrap`]: generates the configuration that puts Penstock's filter in front of the pools.
//! - [`certificate`]: writes the file that names the certificate for clients.
//! - [`folder`]: writes the part of the configuration that changes while Envoy runs, in files that Envoy watches.
//! - [`gateway_resources`]: generates the same for the Envoys of a Kubernetes gateway.
//! - [`ports`]: reserves the ports that Envoy and the companion will listen on.
//! - [`run`]: runs one Envoy process.
//! - [`child`]: starts child processes that never outlive this process.
//! - [`yaml`]: writes configurations as YAML.
//!
//! The crate knows neither queues nor policies: the filter's configuration is a JSON value to it. It doesn't read
//! Penstock's configuration file; its callers turn that into [`bootstrap::Settings`].

pub mod bootstrap;
pub mod certificate;
pub mod child;
mod config_source;
pub mod find;
pub mod folder;
pub mod gateway_resources;
pub mod limits;
pub mod ports;
pub mod run;
pub mod yaml;
