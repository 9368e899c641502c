//! The queueing model of a model server: pure functions of three hardware parameters and the traffic.
//!
//! Milliseconds, requests per second and tokens. What learns the parameters, and what sets the gate by them, builds
//! on the closed forms here.

pub mod closed_form;

pub use closed_form::{Operation, Parameters, Traffic};
