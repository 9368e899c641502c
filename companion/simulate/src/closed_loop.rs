//! A closed loop in virtual time: clients, an engine, the autopilot that learns the engine's allowances, and model servers
//! with known parameters.
//!
//! The autopilot sees the same data as in a companion: bytes of prompts, times of the first and last tokens, and token
//! counts from servers. The gate's decisions determine what the autopilot can learn, and the learned parameters
//! determine the gate's decisions; the closed loop tests both together. There is no Envoy and no network: a granted
//! request reaches its server at once.

mod arrival_plan;
mod event_loop;
mod load_series;
mod prefixes;
mod record;
mod scenario;
mod server_timers;
mod settings;
mod traffic;
mod window_sums;

pub use self::event_loop::{run, run_watched};
pub use self::load_series::{Load, LoadSeries};
pub use self::record::{Finished, Record, Refused, ReplicasDesired, Sample};
pub use self::scenario::{Change, GateBy, Placement, Scenario, ServerSpec, SharedPrefix};
pub use self::settings::parameters;
pub use self::traffic::{Arrivals, Mix, Phase, Planned, RequestKind, Tenant};

#[cfg(test)]
mod tests;
