//! Tests of the autopilot alone, at endpoints of known parameters.

mod credit;
mod demand;
mod edge_cases;
mod harness;
mod kept;
mod learning;
mod probing;
mod unstreamed;
