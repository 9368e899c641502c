//! The companion of Penstock's filter, and every command of the `penstock` binary.

pub mod cli;
pub mod clock;
pub mod config;
pub mod demo;
pub mod driver;
pub mod envoy_config;
pub mod filter_module;
pub mod grpc;
pub mod health;
pub mod http;
pub mod http_filters;
mod jsonl;
pub mod listener;
pub mod metrics;
pub mod mock_server;
pub mod model_cli;
pub mod observe;
pub mod policy;
pub mod reload;
pub mod replay;
pub mod scrape;
pub mod serve;
pub mod status;
pub mod store;
mod tasks;
pub mod tls;
pub mod up;
