//! The queueing model of a model server, and what learns its parameters: pure functions and pure state machines.
//!
//! Milliseconds, requests per second and tokens, as `f64`; a moment is milliseconds of any clock that doesn't go back.
//! Nothing here reads a clock, does input or output, or knows the engine.

pub mod analysis;
pub mod bootstrap;
pub mod closed_form;
mod first_token;
pub mod fit;
pub mod kalman;
pub mod learner;
pub mod ledger;
pub mod limits;
pub mod overlap;
pub mod reservoir;
pub mod sizing;
pub mod slo;
pub mod windows;
pub mod workload;

pub use closed_form::{Operation, Parameters, Traffic};
pub use sizing::{Binding, Sizing, Targets};
