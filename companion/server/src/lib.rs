//! The companion as a service: `penstock serve`.

pub mod admin;
pub mod advice;
mod budgets;
pub mod clock;
pub mod control_settings;
pub mod decision_runtime;
pub mod discovery;
pub mod driver;
pub mod ended_requests;
mod endpoint_tasks;
pub mod envoy_endpoints;
pub mod envoy_pools;
mod essential;
pub mod found;
pub mod grpc;
pub mod health;
pub mod history;
pub mod http;
mod incoming_frames;
#[cfg(feature = "injected-defect")]
mod injected_defect;
pub mod listener;
pub mod metrics;
pub mod observe;
pub mod phase;
#[cfg_attr(not(feature = "kubernetes"), path = "without_pool_events.rs")]
mod pool_events;
pub mod recent_stats;
pub mod reload;
pub mod replicas;
pub mod reports;
pub mod role;
pub mod role_publisher;
pub mod scrape;
pub mod serve;
pub mod status;
#[cfg_attr(
    not(all(feature = "redb", feature = "redis")),
    expect(dead_code, reason = "used by the stores that are features")
)]
pub mod stores;
#[cfg_attr(not(feature = "tls"), path = "without_tls.rs")]
pub mod tls;
#[cfg_attr(not(feature = "otlp"), expect(dead_code, reason = "used by the exporter, which is a feature"))]
pub mod trace;
pub mod usage_forwarding;
mod utc_watch;
pub mod visibility;
mod watched_file;
