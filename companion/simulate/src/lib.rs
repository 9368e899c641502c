//! A policy on a trace: the engine and the autopilot in front of simulated model servers, in virtual time.
//!
//! Pure: time is an argument, randomness is seeded, and nothing waits or does I/O.

pub mod closed_loop;
pub mod goal;
pub mod limits;
pub mod results;
pub mod scenarios;
pub mod simulation;
pub mod tenants;
pub mod trace;
