//! What model servers say of themselves: health and metrics.

pub(crate) mod endpoint_tasks;
pub(crate) mod health;
pub(crate) mod scrape;
