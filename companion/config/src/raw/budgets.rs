//! `arbitration.flows.budgets`: what flows may use in windows of time.

use std::borrow::Cow;
use std::fmt;

use penstock_engine::policy::Over;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use crate::value::{Count, PositiveDuration};

/// What each of some flows may use in windows of time.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Budget {
    /// A glob of flows' identities, as `key` defines them. `"*"` matches every flow.
    #[serde(rename = "match")]
    #[schemars(length(min = 1, max = 256))]
    pub(crate) flows: String,
    /// The windows, each unit and period once. A request goes while anything is left in all of them; what it takes beyond is paid
    /// back before the next one goes.
    #[schemars(length(min = 1, max = 8))]
    pub(crate) windows: Vec<BudgetWindow>,
    /// The way of requests for which nothing is left.
    #[serde(default)]
    pub(crate) over: Over,
    /// Decides nothing, and counts what it would have decided.
    #[serde(default)]
    pub(crate) shadow: bool,
}

/// A window of time: exactly one of `tokens` and `requests`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("oneOf" = [
    {"required": ["tokens"], "properties": {"tokens": {"type": "integer"}}},
    {"required": ["requests"], "properties": {"requests": {"type": "integer"}}},
]))]
pub(crate) struct BudgetWindow {
    /// Tokens, weighted by `usage.input_token_weight` and `usage.output_token_weight`. Cached prompt tokens cost nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tokens: Option<Count>,
    /// Requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) requests: Option<Count>,
    /// The last so much time, at least `1s`, counted in steps of a 60th; or the calendar's day or month, in UTC.
    pub(crate) per: Period,
}

/// The time of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Period {
    Sliding(PositiveDuration),
    Day,
    Month,
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PeriodVisitor;
        impl Visitor<'_> for PeriodVisitor {
            type Value = Period;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("day, month, or a duration of at least 1s with its unit, like 1m or 1h")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Period, E> {
                match text {
                    "day" => Ok(Period::Day),
                    "month" => Ok(Period::Month),
                    text => PositiveDuration::parse(text)
                        .filter(|duration| duration.0.as_secs() >= 1)
                        .map(Period::Sliding)
                        .ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(PeriodVisitor)
    }
}

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Sliding(duration) => duration.serialize(serializer),
            Self::Day => serializer.serialize_str("day"),
            Self::Month => serializer.serialize_str("month"),
        }
    }
}

impl JsonSchema for Period {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Period".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"enum": ["day", "month"]}, PositiveDuration::json_schema(generator)]})
    }
}
