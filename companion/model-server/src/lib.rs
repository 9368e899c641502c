//! A simulated model server with iteration-level batching, in virtual time.
//!
//! Pure: time is an argument, randomness is seeded, nothing here waits or does input and output. The mock server
//! drives a [`Server`] by a real clock, the simulated world by a virtual one.

pub mod limits;
pub mod server;

pub use server::{Event, Gauges, Hardware, HardwareError, Job, JobId, Kind, Refused, Server, Totals};
