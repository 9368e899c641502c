//! Clients, an engine, the autopilot that learns its budgets, and model servers whose parameters are known, in one
//! loop in virtual time.
//!
//! The autopilot sees what the companion sees: bytes of prompts, first and last times of answers, tokens as servers
//! count them. What a gate does changes what is learned, and what is learned sets the gate; that is what is tried here.
//! There is no Envoy and no network: a grant is at the server at once.

mod flight;
mod record;
mod setting;
mod traffic;

pub use flight::fly;
pub use record::{Finished, Record, Sample};
pub use setting::{Change, GateBy, ServerSetting, Setting};
pub use traffic::{Arrivals, Kind, Mix, Phase};

#[cfg(test)]
mod tests;
