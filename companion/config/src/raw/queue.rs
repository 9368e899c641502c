//! `queue`: limits of the queue.

use penstock_engine::policy::{Admit, Overflow};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::millis;
use crate::value::{Attempts, Bytes, Count, PositiveDuration, Rate, WholeNumber};

/// Limits of the queue.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Queue {
    /// When false, a request that can't be granted at once is rejected.
    pub(crate) enabled: bool,
    /// Requests that may wait in the pool.
    pub(crate) total_capacity: WholeNumber,
    /// Total size of the request bodies that may wait in the pool.
    pub(crate) total_bytes: Bytes,
    /// Requests of one flow that may wait.
    pub(crate) flow_capacity: Count,
    /// The longest time that a request may wait.
    pub(crate) ttl: PositiveDuration,
    /// The longest time that a request may wait while no endpoint is ready.
    pub(crate) no_endpoint_ttl: PositiveDuration,
    /// Grants per second, however much room the endpoints have. Bursts are limited to one second's grants, and to at least
    /// one request.
    pub(crate) max_rate: Option<Rate>,
    /// How often a request returns to its place in the queue after every endpoint of its list refused it, or cut the
    /// connection before the first byte of an answer.
    pub(crate) requeues: Attempts,
    /// What a full queue does with a request that is more critical than a waiting one.
    pub(crate) overflow: Overflow,
    /// The requests that may wait.
    pub(crate) admit: Admit,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            enabled: true,
            total_capacity: WholeNumber(1_000),
            total_bytes: Bytes(256 << 20),
            flow_capacity: Count(100),
            ttl: millis(30_000),
            no_endpoint_ttl: millis(60_000),
            max_rate: None,
            requeues: Attempts(3),
            overflow: Overflow::Displace,
            admit: Admit::All,
        }
    }
}
