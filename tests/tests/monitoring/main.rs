//! Metrics and traces.

mod metrics;
mod traces;
