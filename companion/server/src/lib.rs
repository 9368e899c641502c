//! The companion as a service: `penstock serve`.
//!
//! The modules are rooms above each other; a room imports only those below it. From the bottom:
//!
//! - `base`: time, tasks, files, addresses and access, on which everything stands
//! - `metrics`: metrics and spans
//! - `decisions`: the task that decides, and what it counts, logs and remembers
//! - `election`: which of several companions leads
//! - `checks`: what model servers say of themselves
//! - `active`: the configuration in force, and the endpoints that Envoy has
//! - `discovery`: which endpoints exist
//! - `surface`: what filters, operators and tools reach
//! - `serve`: puts the rooms together

mod active;
mod base;
mod checks;
mod decisions;
mod discovery;
pub mod election;
mod metrics;
pub mod serve;
mod surface;

pub use penstock_base::clock::Clock;

pub use self::decisions::control_settings;
pub use self::decisions::driver::Gone;
pub use self::decisions::observe::Observer;
pub use self::decisions::reports::Reporter;
pub use self::metrics::Metrics;
