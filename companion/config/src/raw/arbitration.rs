//! The document's part on who goes next: `arbitration`, and `usage` and `slo` which it leans on.
//!
//! `classes` has the keys of Dynamo's router policy file at its root, so that such a file reads as it is; those of its
//! sections that choose a worker are taken and have no effect.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::redis_url::{self, RedisUrl};
use crate::value::{
    Count, Factor, Fraction, Ignored, List, Multiplier, Number, OneOrMany, Pairs, Share, Span, Target, Weight,
};

/// Who goes next: by band, then by class, then by flow, then by the order inside the flow.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Arbitration {
    /// Every model of the pool has its own turn, and its own classes and flows, below the bands.
    pub(crate) per_model: bool,
    /// How critical a request says it is.
    pub(crate) bands: Bands,
    /// Policy classes, which share uncached prompt tokens by deficit round robin. The content of Dynamo's router policy
    /// file stands here as it is.
    pub(crate) classes: Classes,
    /// Whose share a request takes.
    pub(crate) flows: Flows,
    /// Which request of a flow goes first, under its strict tier.
    pub(crate) order: Order,
}

/// How critical a request says it is.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Bands {
    /// How the bands share.
    pub(crate) mode: BandMode,
    /// Their weights under `weighted`, not all 0; a band that isn't named has 0, and goes when no other can.
    pub(crate) weights: BandWeights,
    /// A band goes only while the stock is below this part of the bound.
    pub(crate) ceiling: Ceilings,
}

impl Default for Bands {
    fn default() -> Self {
        Self {
            mode: BandMode::Strict,
            weights: BandWeights {
                critical: Factor(70.0),
                default: Factor(20.0),
                sheddable: Factor(10.0),
            },
            ceiling: Ceilings::default(),
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum BandMode {
    /// Critical before default before sheddable.
    Strict,
    /// By their weights.
    Weighted,
}

/// A band that isn't named weighs nothing.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct BandWeights {
    /// Of critical requests.
    pub(crate) critical: Factor,
    /// Of default ones.
    pub(crate) default: Factor,
    /// Of sheddable ones.
    pub(crate) sheddable: Factor,
}

/// Parts of the bound; null: all of it.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Ceilings {
    /// Of critical requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) critical: Option<Share>,
    /// Of default ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) default: Option<Share>,
    /// Of sheddable ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sheddable: Option<Share>,
}

/// Policy classes.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Classes {
    /// How turns are taken.
    pub(crate) mode: ClassMode,
    /// The family of requests that ask for none; null: the first class's.
    pub(crate) default_policy_family: Option<String>,
    /// Buckets by the uncached tokens of a prompt; the first begins at 0, and each next one above the one before it.
    pub(crate) uncached_isl_buckets: List<Bucket>,
    /// The classes; each family has one for every bucket.
    pub(crate) policy_classes: List<Class>,
    /// Other classes for some models: by glob, the first that matches.
    pub(crate) models: Pairs<ClassSet>,
    /// Of Dynamo's file; it chooses workers, and has no effect here.
    #[serde(skip_serializing)]
    pub(crate) router: Ignored,
    /// Of Dynamo's file; it chooses workers, and has no effect here.
    #[serde(skip_serializing)]
    pub(crate) worker_selection: Ignored,
    /// Of Dynamo's file; it chooses workers, and has no effect here.
    #[serde(skip_serializing)]
    pub(crate) request_classifier: Ignored,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum ClassMode {
    /// Every class gets the share of its quantum.
    #[default]
    Exact,
    /// As the router of Dynamo 1.6.1 does, with its unfairness to classes whose heads differ in size.
    Dynamo,
}

/// Classes for some models.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ClassSet {
    /// The family of requests that ask for none; null: the first class's.
    pub(crate) default_policy_family: Option<String>,
    /// Buckets by the uncached tokens of a prompt.
    pub(crate) uncached_isl_buckets: List<Bucket>,
    /// The classes; at least one.
    pub(crate) policy_classes: List<Class>,
}

/// A range of prompts.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Bucket {
    /// Uncached tokens from which on it counts.
    pub(crate) min_tokens: Number,
    /// Its name.
    #[schemars(regex(pattern = r"^[A-Za-z0-9_.-]{1,256}$"))]
    pub(crate) bucket: String,
}

/// A class: it names a family and a bucket, or neither.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Class {
    /// Unique; a class of no family is asked for by it.
    #[schemars(regex(pattern = r"^[A-Za-z0-9_.-]{1,256}$"))]
    pub(crate) name: String,
    /// What requests ask for.
    #[serde(default)]
    #[schemars(regex(pattern = r"^[A-Za-z0-9_.-]{1,256}$"))]
    pub(crate) policy_family: Option<String>,
    /// One of `uncached_isl_buckets`.
    #[serde(default)]
    pub(crate) cache_bucket: Option<String>,
    /// Uncached prompt tokens that one turn grants.
    pub(crate) quantum: Count,
    /// The order inside its flows; null: the pool's.
    #[serde(default)]
    pub(crate) queue_policy: Option<QueuePolicy>,
    /// It goes while one of its endpoints has fewer uncached prompt tokens in flight; 0: only where there are none.
    #[serde(default)]
    pub(crate) prefill_busy_threshold: Option<Number>,
    /// The same as a part of the endpoint's batched tokens.
    #[serde(default)]
    pub(crate) prefill_busy_threshold_frac: Option<Fraction>,
    /// Requests that wait in it, times its endpoints; the one that crosses the limit is still taken.
    #[serde(default)]
    pub(crate) request_queue_limit_per_worker: Option<Number>,
    /// The same in prompt tokens.
    #[serde(default)]
    pub(crate) raw_isl_token_queue_limit_per_worker: Option<Number>,
    /// The same in cached prompt tokens.
    #[serde(default)]
    pub(crate) cached_token_queue_limit_per_worker: Option<Number>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum QueuePolicy {
    /// The earliest arrival.
    Fcfs,
    /// The least uncached prompt.
    Wspt,
}

/// Whose share a request takes.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Flows {
    /// How flows share.
    pub(crate) discipline: Discipline,
    /// What makes a flow: one of these, or a list of them whose parts are joined, as in `acme/qwen-7b`.
    pub(crate) key: OneOrMany<FlowKey>,
    /// What is shared.
    pub(crate) cost: Cost,
    /// Shares by identity, as `key` makes it.
    pub(crate) weights: BTreeMap<String, Weight>,
    /// The share of everybody else.
    pub(crate) default_weight: Weight,
    /// `queue.flow_capacity` by identity.
    pub(crate) capacities: BTreeMap<String, Count>,
    /// What one identity may have at the servers.
    pub(crate) max_in_flight: Option<Count>,
    /// What one identity may have at each server.
    pub(crate) max_in_flight_per_endpoint: Option<Count>,
}

impl Default for Flows {
    fn default() -> Self {
        Self {
            discipline: Discipline::Wfq,
            key: OneOrMany(vec![FlowKey::FairnessId]),
            cost: Cost::Tokens,
            weights: BTreeMap::new(),
            default_weight: Weight(1.0),
            capacities: BTreeMap::new(),
            max_in_flight: None,
            max_in_flight_per_endpoint: None,
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum Discipline {
    /// Weighted fair queueing, corrected by the tokens that were really used.
    Wfq,
    /// Who used least in the last `usage.window`, per weight, goes first; those without an identity last.
    Usage,
    /// The same tally without a window; who was idle is lifted to the least of those that wait.
    Vtc,
    /// Deficit round robin, quantum 1024 tokens (or 1 request) per weight.
    Drr,
    /// One request each.
    RoundRobin,
    /// First come, first served over all flows.
    Fifo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum FlowKey {
    /// The fairness id.
    FairnessId,
    /// The user.
    User,
    /// The model that was asked for.
    Model,
    /// The model that the server is asked for.
    TargetModel,
    /// One flow for all; it stands alone.
    None,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum Cost {
    /// Tokens, by `usage`'s weights.
    Tokens,
    /// Requests.
    Requests,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum Order {
    /// The earliest arrival, less the head start.
    #[default]
    Fcfs,
    /// The least uncached prompt, divided by 1 + the seconds of head start.
    Wspt,
    /// The earliest `x-penstock-deadline-ms`; who has none last.
    Edf,
    /// The earliest arrival + target for the first token: the request's own `x-slo-ttft-ms`, else `slo.target_ttft`.
    SloDeadline,
}

/// What a token costs, and what is kept.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Usage {
    /// How far back the discipline `usage` looks.
    pub(crate) window: Span,
    /// What a token of a prompt costs; not both 0.
    pub(crate) input_token_weight: Factor,
    /// What a token of an answer costs; not both 0.
    pub(crate) output_token_weight: Factor,
    /// What outlives the companion: `memory`: nothing; `{redb: PATH}`: what was learned of the servers, and the windows
    /// of the discipline `usage`, in that file, which pools may share; `{redis: URL}`: the same in a redis, where all
    /// companions that name it share what they know of a pool of the same name.
    pub(crate) store: Store,
}

impl Default for Usage {
    fn default() -> Self {
        Self {
            window: super::span(300_000),
            input_token_weight: Factor(1.0),
            output_token_weight: Factor(2.0),
            store: Store::Memory,
        }
    }
}

/// `memory`, `{redb: PATH}`, or `{redis: URL}`.
#[derive(Clone, Debug, Default)]
pub(crate) enum Store {
    #[default]
    Memory,
    Redb(PathBuf),
    Redis(RedisUrl),
}

impl<'de> Deserialize<'de> for Store {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Stores;
        impl<'de> serde::de::Visitor<'de> for Stores {
            type Value = Store;
            fn expecting(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                to.write_str("memory, {redb: PATH}, or {redis: URL}")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Store, E> {
                match text {
                    "memory" => Ok(Store::Memory),
                    // A password may be in it.
                    other if other.contains("://") => Err(E::custom("a URL is written as {redis: URL}")),
                    other => Err(E::invalid_value(serde::de::Unexpected::Str(other), &self)),
                }
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Store, A::Error> {
                let file = StoreFile::deserialize(MapAccessDeserializer::new(map))?;
                match (file.redb, file.redis) {
                    (Some(path), None) if !path.as_os_str().is_empty() => Ok(Store::Redb(path)),
                    (None, Some(url)) => match RedisUrl::parse(&url) {
                        Some(url) => Ok(Store::Redis(url)),
                        None => Err(A::Error::custom(format!(
                            "redis: this is no URL of a redis; allowed is {}",
                            redis_url::ALLOWED
                        ))),
                    },
                    _ => Err(A::Error::invalid_type(serde::de::Unexpected::Map, &self)),
                }
            }
        }
        deserializer.deserialize_any(Stores)
    }
}

impl Serialize for Store {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Memory => to.serialize_str("memory"),
            Self::Redb(path) => {
                let mut map = to.serialize_map(Some(1))?;
                map.serialize_entry("redb", path)?;
                map.end()
            }
            Self::Redis(url) => {
                let mut map = to.serialize_map(Some(1))?;
                map.serialize_entry("redis", url.exposed())?;
                map.end()
            }
        }
    }
}

impl JsonSchema for Store {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Store".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [
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
        ]})
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct StoreFile {
    redb: Option<PathBuf>,
    redis: Option<String>,
}

/// What the model servers owe; both targets or neither.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Slo {
    /// Without targets an iteration may take so many times alpha; 0: 3.
    pub(crate) slo_multiplier: Multiplier,
    /// What the mean time to the first token may be: a duration, or milliseconds.
    pub(crate) target_ttft: Option<Target>,
    /// What the mean time between two tokens may be: a duration, or milliseconds.
    pub(crate) target_itl: Option<Target>,
}

impl Default for Slo {
    fn default() -> Self {
        Self {
            slo_multiplier: Multiplier(penstock_model::slo::Policy::default().multiplier),
            target_ttft: None,
            target_itl: None,
        }
    }
}
