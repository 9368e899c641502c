//! `queue`: limits of the queue.

use std::borrow::Cow;
use std::fmt;

use penstock_engine::policy::{Admit, Overflow};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::millis;
use crate::value::{Bytes, Count, PositiveDuration, Rate, WholeNumber};

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
    /// How often a request returns to its place in the queue after an endpoint refused it, or cut the connection before
    /// the first byte of an answer. While no other endpoint is ready, the pause before the next attempt grows from 100 ms
    /// to 1 s.
    pub(crate) requeues: Requeues,
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
            requeues: Requeues::UntilTtl,
            overflow: Overflow::Displace,
            admit: Admit::All,
        }
    }
}

/// The most requeues that a whole number allows.
const REQUEUES_MAX: u64 = 1_000;

/// `requeues`: `until_ttl`, or a whole number from 0 to 1000.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requeues {
    UntilTtl,
    AtMost(u64),
}

impl Requeues {
    /// The number of requeues; `None`: until the ttl.
    pub(crate) fn limit(self) -> Option<u32> {
        match self {
            Self::UntilTtl => None,
            Self::AtMost(count) => Some(u32::try_from(count).unwrap_or(u32::MAX)),
        }
    }
}

impl<'de> Deserialize<'de> for Requeues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RequeuesVisitor)
    }
}

struct RequeuesVisitor;

impl Visitor<'_> for RequeuesVisitor {
    type Value = Requeues;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("until_ttl, or a whole number from 0 to 1000")
    }

    fn visit_u64<E: de::Error>(self, count: u64) -> Result<Requeues, E> {
        match count {
            0..=REQUEUES_MAX => Ok(Requeues::AtMost(count)),
            _ => Err(E::invalid_value(Unexpected::Unsigned(count), &self)),
        }
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Requeues, E> {
        match text {
            "until_ttl" => Ok(Requeues::UntilTtl),
            other => Err(E::invalid_value(Unexpected::Str(other), &self)),
        }
    }
}

impl Serialize for Requeues {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::UntilTtl => serializer.serialize_str("until_ttl"),
            Self::AtMost(count) => serializer.serialize_u64(*count),
        }
    }
}

impl JsonSchema for Requeues {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Requeues".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"enum": ["until_ttl"]}, {"type": "integer", "minimum": 0, "maximum": 1000}]})
    }
}
