//! What model servers say of themselves: health, metrics, and the list of their models.

pub(crate) mod endpoint_tasks;
pub(crate) mod health;
pub(crate) mod model_lists;
pub(crate) mod scrape;
mod server_client;
#[cfg_attr(not(feature = "tls"), path = "checks/server_without_tls.rs")]
mod server_tls;
