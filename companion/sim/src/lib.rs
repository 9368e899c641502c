//! A whole world around the filters, the control and the engines, in virtual time.
//!
//! Pure: time is an argument, randomness is seeded, nothing here waits or does input and output.

pub mod closed_loop;
pub mod world;
