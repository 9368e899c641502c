//! What model servers say of themselves: health and metrics.

pub(crate) mod endpoint_tasks;
pub mod health;
pub mod scrape;
