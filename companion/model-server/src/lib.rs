//! A simulated model server with iteration-level batching, in virtual time.
//!
//! Pure: time is an argument, randomness is seeded, and nothing waits or does I/O. The mock server drives a [`Server`]
//! with a real clock, the simulated world with a virtual one.

mod hardware;
pub mod limits;
pub mod server;

pub use self::hardware::{Hardware, HardwareError};
pub use self::server::{Event, Gauges, Job, JobId, JobProgress, Server, SubmitError, Totals};
