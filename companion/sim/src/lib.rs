//! Whole worlds around filters, control, engines and model servers, in virtual time.
//!
//! Pure: time is an argument, randomness is seeded, and nothing waits or does I/O.

pub mod world;
