//! The task that decides, and what it counts, logs and remembers of its decisions.

pub mod control_settings;
pub(crate) mod decision_runtime;
pub(crate) mod driver;
pub(crate) mod ended_requests;
pub(crate) mod incoming_frames;
#[cfg(feature = "injected-defect")]
pub(crate) mod injected_defect;
pub(crate) mod observe;
pub(crate) mod recent_stats;
pub(crate) mod reports;
pub(crate) mod usage_forwarding;
pub(crate) mod utc_watch;
