//! `usage`, `model` and `slo`: the cost of tokens, the storage of usage, the performance model, and latency targets.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use penstock_model::{Targets, slo};
use schemars::{JsonSchema, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Unexpected, Visitor};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::millis;
use crate::error::Violation;
use crate::redis_url::{self, RedisUrl};
use crate::value::{LatencyTarget, Multiplier, PositiveDuration, TokenWeight, inline_schema};
use crate::{Store, compiled};

/// The cost of tokens, and the storage of usage.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Usage {
    /// The period over which the discipline `usage` counts.
    pub(crate) window: PositiveDuration,
    /// The cost of a prompt token. The two weights can't both be 0. The cost of a request is rounded to a whole number, and is at
    /// least 1. Only the ratio of the two weights counts for shares: for 0.001 and 0.002 write 1 and 2.
    pub(crate) input_token_weight: TokenWeight,
    /// The cost of a generated token. The two weights can't both be 0.
    pub(crate) output_token_weight: TokenWeight,
    /// Whether Envoy asks servers for token counts in streams of `/v1/chat/completions` and `/v1/completions`: it adds
    /// `stream_options: {include_usage: true}` to requests without `stream_options`, and hides the event with the counts from their
    /// clients.
    pub(crate) include: bool,
    /// Where the companion keeps learned performance models, the windows of the discipline `usage`, and what flows have used of
    /// their budgets. `memory`: nowhere, so a restart begins without them. `{redb: PATH}`: in a file, which pools may share.
    /// `{redis: URL}`: in a redis server, where companions share the usage and the budgets of pools with the same name.
    pub(crate) store: Stored,
}

impl Default for Usage {
    fn default() -> Self {
        Self {
            window: millis(300_000),
            input_token_weight: TokenWeight(1.0),
            output_token_weight: TokenWeight(2.0),
            include: false,
            store: Stored::default(),
        }
    }
}

/// The performance model.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Model {
    /// How long an endpoint that has become ready teaches the model nothing, because its caches are cold. If its variant has no
    /// other endpoint, the model learns from it all the same.
    pub(crate) transient: PositiveDuration,
}

impl Default for Model {
    fn default() -> Self {
        Self { transient: millis(120_000) }
    }
}

/// `memory`, `{redb: PATH}` or `{redis: URL}`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stored(pub(crate) Option<Store>);

impl<'de> Deserialize<'de> for Stored {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StoreVisitor)
    }
}

struct StoreVisitor;

impl<'de> Visitor<'de> for StoreVisitor {
    type Value = Stored;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("memory, {redb: PATH}, or {redis: URL}")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Stored, E> {
        match text {
            "memory" => Ok(Stored(None)),
            // The error doesn't repeat a URL, which may contain a password.
            other if other.contains("://") => Err(E::custom("write a URL as {redis: URL}")),
            other => Err(E::invalid_value(Unexpected::Str(other), &self)),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Stored, A::Error> {
        let keys = StoreKeys::deserialize(MapAccessDeserializer::new(map))?;
        match (keys.redb, keys.redis) {
            (Some(path), None) if !path.as_os_str().is_empty() => Ok(Stored(Some(Store::Redb(path)))),
            (None, Some(url)) => match RedisUrl::parse(&url) {
                Some(url) => Ok(Stored(Some(Store::Redis(url)))),
                None => Err(de::Error::custom(format!(
                    "redis: this is not the URL of a redis server; allowed is {}",
                    redis_url::ALLOWED
                ))),
            },
            _ => Err(de::Error::invalid_type(Unexpected::Map, &self)),
        }
    }
}

impl Serialize for Stored {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            None => serializer.serialize_str("memory"),
            Some(Store::Redb(path)) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("redb", path)?;
                map.end()
            }
            Some(Store::Redis(url)) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("redis", url.with_password())?;
                map.end()
            }
        }
    }
}

inline_schema!(Stored, |_| json_schema!({"anyOf": [
    {"const": "memory"},
    {
        "type": "object",
        "properties": {"redb": {"type": "string", "minLength": 1}},
        "required": ["redb"],
        "additionalProperties": false,
    },
    {
        "type": "object",
        "properties": {"redis": {"type": "string", "pattern": "^rediss?://"}},
        "required": ["redis"],
        "additionalProperties": false,
    },
]}));

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct StoreKeys {
    redb: Option<PathBuf>,
    redis: Option<String>,
}

/// Latency targets. Set both targets or neither.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Slo {
    /// Without targets: the longest iteration of a model server, as a multiple of its shortest (the model's alpha). 0 means 3. By 3
    /// replicas are sized and no gate is limited, because it would cost throughput; any other number also limits `watermark_per_backend:
    /// auto`.
    pub(crate) slo_multiplier: Multiplier,
    /// The target for the mean time to the first token: a duration, or milliseconds.
    pub(crate) target_ttft: Option<LatencyTarget>,
    /// The target for the mean time between two tokens: a duration, or milliseconds.
    pub(crate) target_itl: Option<LatencyTarget>,
}

impl Default for Slo {
    fn default() -> Self {
        Self { slo_multiplier: Multiplier(slo::MULTIPLIER), target_ttft: None, target_itl: None }
    }
}

impl Stored {
    /// Checks that this binary can open the store; `key` is that of `store`.
    pub(super) fn checked(self, key: &str) -> Result<Option<Store>, Violation> {
        match &self.0 {
            None => {}
            Some(Store::Redb(_)) => {
                compiled::require("redb", cfg!(feature = "redb"), &format!("{key}.redb"))?
            }
            Some(Store::Redis(_)) => {
                compiled::require("redis", cfg!(feature = "redis"), &format!("{key}.redis"))?;
            }
        }
        Ok(self.0)
    }
}

/// Checks `slo`; `path` is the pool's.
pub(crate) fn slo(raw: &Slo, path: &str) -> Result<slo::Policy, Violation> {
    let millis = |duration: Duration| duration.as_secs_f64() * 1_000.0;
    let explicit = match (raw.target_ttft, raw.target_itl) {
        (None, None) => None,
        (Some(ttft), Some(itl)) => {
            Some(Targets { ttft_ms: Some(millis(ttft.0)), itl_ms: Some(millis(itl.0)) })
        }
        (ttft, _) => {
            let given = if ttft.is_some() { "target_ttft" } else { "target_itl" };
            return Err(Violation::new(
                format!("{path}.slo.{given}"),
                "give target_ttft and target_itl both, or neither",
            ));
        }
    };
    Ok(slo::Policy {
        multiplier: Some(raw.slo_multiplier.0).filter(|given| *given != 0.0 && *given != slo::MULTIPLIER),
        explicit,
    })
}
