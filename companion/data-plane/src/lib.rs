//! What a configuration means to Envoy and to the filter in it: Envoy's settings, and the filter's policy.

pub mod policy;
pub mod settings;
pub mod traces;
