//! What the engine holds to: one pool's policy, made only of values that can't be wrong.
//!
//! Ranges are checked where the configuration is parsed; what is said here of a value is its precondition.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::time::Duration;

use crate::units::Decimal;

/// The policy of one pool.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Who may wait, and how long.
    pub queue: Queue,
    /// How much the servers work on at a time.
    pub gate: Gate,
    /// In which order what waits goes.
    pub flows: Flows,
    /// What a token weighs.
    pub weights: TokenWeights,
}

/// Limits of what waits.
#[derive(Clone, Debug)]
pub struct Queue {
    /// `false`: who may not bypass is refused.
    pub enabled: bool,
    /// Requests that wait in the pool.
    pub total_capacity: u64,
    /// Bytes of their bodies.
    pub total_bytes: u64,
    /// Requests that wait in one flow and band; at least 1.
    pub flow_capacity: u64,
    /// From first arrival to the refusal; above 0.
    pub ttl: Duration,
    /// The same while no endpoint is ready; above 0.
    pub no_endpoint_ttl: Duration,
    /// What happens to the least critical when the queue is full.
    pub overflow: Overflow,
    /// Who is let in when it may not bypass.
    pub admit: Admit,
}

/// A full queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// A newcomer takes the place of something strictly less critical.
    Displace,
    /// A newcomer is refused.
    Reject,
}

/// Who may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admit {
    /// Everybody.
    All,
    /// Only the critical band.
    CriticalOnly,
}

/// How much the servers work on at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Nothing waits.
    Open,
    /// In requests, per ready endpoint of weight 1; `lower <= upper`.
    Requests {
        /// Below the sum of these, what waits is dispatched.
        lower: Decimal,
        /// Below the sum of these, a newcomer bypasses.
        upper: Decimal,
        /// Between both; shown, and gates nothing.
        watermark: Decimal,
    },
}

/// Sharing between flows.
#[derive(Clone, Debug)]
pub struct Flows {
    /// What a request costs its flow.
    pub cost: CostUnit,
    /// Weight of a flow by identity; finite and above 0.
    pub weights: BTreeMap<Box<str>, f64>,
    /// Weight of every other flow; finite and above 0.
    pub default_weight: f64,
    /// `flow_capacity` by identity; at least 1.
    pub capacities: BTreeMap<Box<str>, u64>,
}

impl Flows {
    /// The weight of the flow of this identity.
    #[must_use]
    pub fn weight_of(&self, name: &str) -> f64 {
        self.weights.get(name).copied().unwrap_or(self.default_weight)
    }
}

/// What a request costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostUnit {
    /// Weighted tokens.
    Tokens,
    /// One.
    Requests,
}

/// What a token weighs in a cost; finite and not negative, not both 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenWeights {
    /// Of the prompt, not cached.
    pub input: f64,
    /// Of the output.
    pub output: f64,
}
