//! The configuration's effect on Envoy and its filter: Envoy's settings, and the filter's policy.

pub mod filter_policy;
pub mod settings;
pub mod traces;
