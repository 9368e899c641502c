//! The decisions of Penstock: which request is dispatched next, to which endpoint, and which request is rejected.
//!
//! One [`Engine`] per pool. It is pure and deterministic: time, randomness and events are arguments, and decisions are
//! returned as [`Effect`]s. It contains no protocol, no clock and no operating system.
#![no_std]

extern crate alloc;

mod allowance;
mod arrival;
pub mod audit;
mod band;
mod budget;
mod cost;
pub mod counters;
mod dirty_set;
mod drain_rate;
pub mod effect;
mod endpoint;
mod endpoints;
mod engine;
mod eviction;
mod expiry;
mod gate;
mod hashed_name;
mod health;
mod ids;
mod indexed_heap;
pub mod input;
mod job;
mod jobs;
pub mod limits;
mod load;
pub mod outcome;
mod pairing_heap;
pub mod policy;
mod prefixes;
pub mod queue_position;
mod rate_limiter;
mod retry;
mod rng;
mod scores;
mod slab;
pub mod snapshot;
pub mod time;
mod token_history;
mod tree;
pub mod units;

pub use self::allowance::Allowance;
pub use self::audit::AuditError;
pub use self::effect::{BudgetReport, Effect};
pub use self::engine::{Engine, Prepared};
pub use self::health::{HealthReason, HealthState};
pub use self::input::{EndpointId, Input, ModelName, Request, RequestId};
pub use self::outcome::Outcome;
pub use self::policy::Policy;
pub use self::snapshot::Snapshot;
pub use self::time::Instant;
