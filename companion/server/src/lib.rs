//! The companion as a service: `penstock serve`.

pub mod advice;
pub mod clock;
pub mod data_path;
pub mod discovery;
pub mod driver;
pub mod envoy_pools;
pub mod grpc;
pub mod health;
pub mod history;
pub mod http;
pub mod listener;
pub mod metrics;
pub mod observe;
pub mod recent;
pub mod reload;
pub mod scrape;
pub mod serve;
pub mod status;
pub mod store;
mod tasks;
pub mod tls;
pub mod trace;
