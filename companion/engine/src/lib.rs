//! The decisions of Penstock: who goes next, to which endpoint, and who is refused.
//!
//! One [`Engine`] per pool. It is pure and deterministic: time, randomness and input are arguments; what it
//! decides comes out as [`Effect`]s. It knows no protocol, no clock and no operating system.
#![no_std]

extern crate alloc;

mod admission;
pub mod audit;
mod budget;
mod cost;
pub mod counters;
mod dirty_set;
mod drain_rate;
pub mod effect;
mod endpoint;
mod endpoints;
mod engine;
mod expiry;
mod gate;
pub mod input;
mod job;
mod lifecycle;
pub mod limits;
mod load;
mod outlier_ejection;
mod pairing_heap;
pub mod policy;
mod prefixes;
pub mod queue_position;
mod ranks;
mod rate;
mod reconfigure;
mod rng;
mod room;
mod scores;
mod slab;
pub mod snapshot;
pub mod time;
mod token_history;
mod tree;
pub mod units;

pub use audit::AuditError;
pub use budget::Budget;
pub use effect::{Effect, Outcome};
pub use engine::Engine;
pub use input::{EndpointId, Input, Request, RequestId};
pub use policy::Policy;
pub use snapshot::Snapshot;
pub use time::Instant;
