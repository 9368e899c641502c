//! The decisions of Penstock: who goes next, to which endpoint, and who is refused.
//!
//! One [`Engine`] per pool. It is pure and deterministic: time, randomness and input are arguments; what it
//! decides comes out as [`Effect`]s. It knows no protocol, no clock and no operating system.
#![no_std]

extern crate alloc;

pub mod effect;
pub mod input;
pub mod limits;
pub mod policy;
pub mod time;
pub mod units;

pub use effect::{Effect, Outcome};
pub use input::{EndpointId, Input, Request, RequestId};
pub use policy::Policy;
pub use time::Instant;
