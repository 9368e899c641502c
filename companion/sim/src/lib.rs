//! Simulated model servers, and a whole world around the filters, the control and the engines, in virtual time.
//!
//! Pure: time is an argument, randomness is seeded, nothing here waits or does input and output. The mock server
//! drives the same [`Server`] by a real clock.

pub mod closed_loop;
pub mod limits;
pub mod server;
pub mod world;

pub use server::{Event, Gauges, Hardware, HardwareError, Job, JobId, Kind, Refused, Server, Totals};
