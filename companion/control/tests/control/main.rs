//! Tests of a control by its exact outputs for each event.

mod autopilot;
mod cached;
mod controls;
mod credit_edges;
mod credit_reports;
mod credits;
mod envoys;
mod failures;
mod flows;
mod harness;
mod leadership;
mod limits;
mod outcome_counts;
mod placement;
mod pushback;
mod random;
mod reload;
mod request_status;
mod requeue;
mod requeue_restart;
mod resync;
mod scraped;
mod session_loss;
mod sessions;
mod trust;
mod versions;
