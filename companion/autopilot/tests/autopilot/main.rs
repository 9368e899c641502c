//! Tests of the autopilot alone, at endpoints of known parameters.

mod demand;
mod edge_cases;
mod harness;
mod kept;
mod learning;
mod probing;
