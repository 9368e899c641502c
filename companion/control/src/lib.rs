//! What stands between the wire and the engines: sessions, their resync and grace, and who is answered what.
//!
//! Pure: the shell hands in events with the time, and takes out frames, closures and observations. It has no
//! socket, no clock and no runtime; one task owns it, so nothing in it is shared or locked.

mod answer;
mod audit;
mod autopilot;
mod constraints;
mod control;
mod convert;
mod counted;
mod course;
mod decisions;
mod envoys;
mod event;
mod intake;
mod limits;
mod listing;
mod look;
mod orphans;
mod pool;
mod register;
mod reload;
mod requeue;
mod resync;
mod rewrite;
mod session;
mod settings;
mod shown;
mod status;
mod timers;
mod trust;

pub use answer::code_of;
pub use audit::AuditError;
pub use autopilot::{
    Autopilot, AutopilotEndpoint, AutopilotSettings, AutopilotStatus, Granted, Kept, Scraped, Served, Totals,
    VariantStatus,
};
pub use control::Control;
pub use event::{ConnId, Event, Labels, Observation, Output};
pub use look::{RequestState, RequestStatus};
pub use settings::{EndpointSettings, FlowKey, MaxPriority, PoolSettings, Rewrite, Settings};
pub use status::{PoolStatus, ServerStatus, SessionStatus, Status};
