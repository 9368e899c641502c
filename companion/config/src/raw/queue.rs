//! The document's part on what waits and what runs: `queue` and `stock`.

use std::borrow::Cow;

use penstock_engine::units::Decimal;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::span;
use crate::value::{Attempts, Bytes, Count, Exact, Number, Rate, Span};

/// What may wait, and how long.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Queue {
    /// Off: what can't go at once is refused.
    pub(crate) enabled: bool,
    /// Requests that may wait in the pool.
    pub(crate) total_capacity: Number,
    /// Bytes of bodies that may wait in the pool.
    pub(crate) total_bytes: Bytes,
    /// Requests of one flow that may wait.
    pub(crate) flow_capacity: Count,
    /// How long a request may wait.
    pub(crate) ttl: Span,
    /// How long a request may wait while no endpoint is ready.
    pub(crate) no_endpoint_ttl: Span,
    /// The most that goes in a second, whatever room there is: a bucket of one second, at least one request.
    pub(crate) max_rate: Option<Rate>,
    /// How often a request goes back to its place after every server of its list refused it, or cut the connection
    /// before a byte of an answer.
    pub(crate) requeues: Attempts,
    /// What a full queue does with a request that is more critical than one that waits.
    pub(crate) overflow: Overflow,
    /// Which requests may wait.
    pub(crate) admit: Admit,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            enabled: true,
            total_capacity: Number(1_000),
            total_bytes: Bytes(256 << 20),
            flow_capacity: Count(100),
            ttl: span(30_000),
            no_endpoint_ttl: span(60_000),
            max_rate: None,
            requeues: Attempts(3),
            overflow: Overflow::Displace,
            admit: Admit::All,
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum Overflow {
    /// It takes the place of the least critical one.
    Displace,
    /// It is refused.
    Reject,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum Admit {
    /// Every one.
    All,
    /// Critical ones; others go at once, or are refused.
    CriticalOnly,
}

/// How much the servers work on at a time. What waits goes while the stock is below the lower bound, a newcomer goes past
/// the queue below the upper one.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Stock {
    /// What is counted.
    pub(crate) unit: StockUnit,
    /// How much a server works on at a time: a number; `auto`: as much as it can within its targets, as its learned
    /// model predicts it; `none`: no gate, nothing waits. In requests 2 if nothing is said.
    pub(crate) watermark_per_backend: Option<Watermark>,
    /// The two bounds are (1 - deviation) and (1 + deviation) times the watermark: above 0, below 1.
    pub(crate) deviation: Deviation,
    /// The lower bound itself, at most the watermark; not with `auto`.
    pub(crate) lower_bound_per_backend: Option<Exact>,
    /// The upper bound itself, at least the watermark; not with `auto`.
    pub(crate) upper_bound_per_backend: Option<Exact>,
    /// Under `auto`: requests of a server of which nothing is known yet.
    pub(crate) auto_initial: Count,
}

impl Default for Stock {
    fn default() -> Self {
        Self {
            unit: StockUnit::Requests,
            watermark_per_backend: None,
            deviation: Deviation(Exact(Decimal::from_billionths(Decimal::ONE / 10))),
            lower_bound_per_backend: None,
            upper_bound_per_backend: None,
            auto_initial: Count(8),
        }
    }
}

/// Above 0, below 1; `convert` holds the range.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(transparent)]
pub(crate) struct Deviation(pub(crate) Exact);

impl JsonSchema for Deviation {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Deviation".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1})
    }
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum StockUnit {
    /// Requests.
    Requests,
    /// Prompt and expected output of what runs; needs a watermark that is a number of tokens.
    Tokens,
}

/// `watermark_per_backend`: a whole number of at least 1, `auto`, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watermark {
    Fixed(u64),
    Auto,
    None,
}

impl<'de> Deserialize<'de> for Watermark {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Watermarks;
        impl serde::de::Visitor<'_> for Watermarks {
            type Value = Watermark;
            fn expecting(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                to.write_str("a whole number of at least 1, auto, or none")
            }
            fn visit_u64<E: serde::de::Error>(self, watermark: u64) -> Result<Watermark, E> {
                match watermark {
                    0 => Err(E::invalid_value(serde::de::Unexpected::Unsigned(0), &self)),
                    watermark => Ok(Watermark::Fixed(watermark)),
                }
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Watermark, E> {
                match text {
                    "auto" => Ok(Watermark::Auto),
                    "none" => Ok(Watermark::None),
                    other => Err(E::invalid_value(serde::de::Unexpected::Str(other), &self)),
                }
            }
        }
        deserializer.deserialize_any(Watermarks)
    }
}

impl Serialize for Watermark {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fixed(watermark) => to.serialize_u64(*watermark),
            Self::Auto => to.serialize_str("auto"),
            Self::None => to.serialize_str("none"),
        }
    }
}

impl JsonSchema for Watermark {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Watermark".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"type": "integer", "minimum": 1}, {"enum": ["auto", "none"]}]})
    }
}
