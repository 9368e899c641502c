//! What model servers say of themselves: health and metrics.

pub(crate) mod endpoint_tasks;
pub(crate) mod health;
pub(crate) mod scrape;
mod server_client;
#[cfg_attr(not(feature = "tls"), path = "checks/server_without_tls.rs")]
mod server_tls;
