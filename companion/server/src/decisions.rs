//! The task that decides, and what it counts, logs and remembers of its decisions.

pub mod control_settings;
pub mod decision_runtime;
pub mod driver;
pub mod ended_requests;
pub(crate) mod incoming_frames;
#[cfg(feature = "injected-defect")]
pub(crate) mod injected_defect;
pub mod observe;
pub mod recent_stats;
pub mod reports;
pub mod usage_forwarding;
pub(crate) mod utc_watch;
