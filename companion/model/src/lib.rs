//! The queueing model of a model server and the estimators of its parameters: pure functions and pure state machines.
//!
//! Times are in milliseconds, rates in requests per second, sizes in tokens, all as `f64`. A timestamp is
//! milliseconds of any monotonic clock. This crate reads no clock, does no input or output, and does not depend on
//! the engine.

pub mod analysis;
pub mod bootstrap;
mod change_detector;
pub mod closed_form;
mod first_token;
pub mod fit;
pub mod kalman;
pub mod learner;
pub mod limits;
mod n_star_interval;
pub mod observation;
pub mod overlap;
pub mod overlap_tracker;
pub mod reservoir;
pub mod sizing;
pub mod slo;
mod ttft_bias;
pub mod window_estimator;
pub mod workload;

pub use self::closed_form::{Operation, Parameters, Traffic};
pub use self::sizing::{Binding, Sizing, Targets};
