//! The autopilot of one pool: learns the performance model of the pool's model servers from grants and completions, and
//! derives the engine's allowances and the replica counts from it.
//!
//! Pure: it speaks the engine's types and the model's, no protocol, and time is an argument. Every owner of an engine can
//! run one beside it.

mod allowances;
mod autopilot;
mod bound_search;
mod endpoint;
mod moving_mean;
mod pace;
mod prediction_error;
mod saturation;
mod streamed_share;
mod types;
mod variant;
mod window_stats;

pub use self::autopilot::Autopilot;
pub use self::types::{
    AutopilotEndpoint, AutopilotSettings, AutopilotStatus, Backlog, Desired, DesiredSource, ExpectedUsage,
    GateSource, GateStatus, Kept, PendingServers, Scraped, Served, Totals, VariantStatus,
};
