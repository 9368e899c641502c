//! The configuration: its page, changes of it, and endpoints that are found.

mod config;
mod discovery;
mod dns;
mod envoy_endpoints;
mod reload;
