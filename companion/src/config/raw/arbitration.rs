//! The document's part on who goes next: `arbitration`, and `usage` and `slo` which it leans on.
//!
//! `classes` has the keys of Dynamo's router policy file at its root, so that such a file reads as it is; those of its
//! sections that choose a worker are taken and have no effect.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, IgnoredAny, MapAccess};
use serde::{Deserialize, Deserializer};

use crate::config::value::{
    Count, Factor, Fraction, Multiplier, OneOrMany, Pairs, Share, Span, Target, Weight,
};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct Arbitration {
    pub(in crate::config) per_model: bool,
    pub(in crate::config) bands: Bands,
    pub(in crate::config) classes: Classes,
    pub(in crate::config) flows: Flows,
    pub(in crate::config) order: Order,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct Bands {
    pub(in crate::config) mode: BandMode,
    pub(in crate::config) weights: Option<BandWeights>,
    pub(in crate::config) ceiling: Ceilings,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::config) enum BandMode {
    #[default]
    Strict,
    Weighted,
}

/// A band that isn't named weighs nothing.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct BandWeights {
    pub(in crate::config) critical: Factor,
    pub(in crate::config) default: Factor,
    pub(in crate::config) sheddable: Factor,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct Ceilings {
    pub(in crate::config) critical: Option<Share>,
    pub(in crate::config) default: Option<Share>,
    pub(in crate::config) sheddable: Option<Share>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct Classes {
    pub(in crate::config) mode: ClassMode,
    pub(in crate::config) default_policy_family: Option<String>,
    pub(in crate::config) uncached_isl_buckets: Option<Vec<Bucket>>,
    pub(in crate::config) policy_classes: Option<Vec<Class>>,
    pub(in crate::config) models: Pairs<ClassSet>,
    pub(in crate::config) router: Option<IgnoredAny>,
    pub(in crate::config) worker_selection: Option<IgnoredAny>,
    pub(in crate::config) request_classifier: Option<IgnoredAny>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::config) enum ClassMode {
    #[default]
    Exact,
    Dynamo,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct ClassSet {
    pub(in crate::config) default_policy_family: Option<String>,
    pub(in crate::config) uncached_isl_buckets: Option<Vec<Bucket>>,
    pub(in crate::config) policy_classes: Option<Vec<Class>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Bucket {
    pub(in crate::config) min_tokens: u64,
    pub(in crate::config) bucket: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Class {
    pub(in crate::config) name: String,
    #[serde(default)]
    pub(in crate::config) policy_family: Option<String>,
    #[serde(default)]
    pub(in crate::config) cache_bucket: Option<String>,
    pub(in crate::config) quantum: Count,
    #[serde(default)]
    pub(in crate::config) queue_policy: Option<QueuePolicy>,
    #[serde(default)]
    pub(in crate::config) prefill_busy_threshold: Option<u64>,
    #[serde(default)]
    pub(in crate::config) prefill_busy_threshold_frac: Option<Fraction>,
    #[serde(default)]
    pub(in crate::config) request_queue_limit_per_worker: Option<u64>,
    #[serde(default)]
    pub(in crate::config) raw_isl_token_queue_limit_per_worker: Option<u64>,
    #[serde(default)]
    pub(in crate::config) cached_token_queue_limit_per_worker: Option<u64>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::config) enum QueuePolicy {
    Fcfs,
    Wspt,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct Flows {
    pub(in crate::config) discipline: Discipline,
    pub(in crate::config) key: OneOrMany<FlowKey>,
    pub(in crate::config) cost: Cost,
    pub(in crate::config) weights: BTreeMap<String, Weight>,
    pub(in crate::config) default_weight: Weight,
    pub(in crate::config) capacities: BTreeMap<String, Count>,
    pub(in crate::config) max_in_flight: Option<Count>,
    pub(in crate::config) max_in_flight_per_endpoint: Option<Count>,
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

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::config) enum Discipline {
    Wfq,
    Usage,
    Vtc,
    Drr,
    RoundRobin,
    Fifo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::config) enum FlowKey {
    FairnessId,
    User,
    Model,
    TargetModel,
    None,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::config) enum Cost {
    Tokens,
    Requests,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::config) enum Order {
    #[default]
    Fcfs,
    Wspt,
    Edf,
    SloDeadline,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct Usage {
    pub(in crate::config) window: Span,
    pub(in crate::config) input_token_weight: Factor,
    pub(in crate::config) output_token_weight: Factor,
    pub(in crate::config) store: Store,
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

/// `memory`, or `{redb: PATH}`.
#[derive(Clone, Debug, Default)]
pub(in crate::config) enum Store {
    #[default]
    Memory,
    Redb(PathBuf),
}

impl<'de> Deserialize<'de> for Store {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Stores;
        impl<'de> serde::de::Visitor<'de> for Stores {
            type Value = Store;
            fn expecting(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                to.write_str("memory, or {redb: PATH}; this version keeps nothing in redis")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Store, E> {
                match text {
                    "memory" => Ok(Store::Memory),
                    other => Err(E::invalid_value(serde::de::Unexpected::Str(other), &self)),
                }
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Store, A::Error> {
                let file = StoreFile::deserialize(MapAccessDeserializer::new(map))?;
                match file.redb {
                    Some(path) if file.redis.is_none() && !path.as_os_str().is_empty() => {
                        Ok(Store::Redb(path))
                    }
                    _ => Err(A::Error::invalid_type(serde::de::Unexpected::Map, &self)),
                }
            }
        }
        deserializer.deserialize_any(Stores)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct StoreFile {
    redb: Option<PathBuf>,
    redis: Option<IgnoredAny>,
}

/// What the model servers owe; both targets or neither.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::config) struct Slo {
    pub(in crate::config) slo_multiplier: Multiplier,
    pub(in crate::config) target_ttft: Option<Target>,
    pub(in crate::config) target_itl: Option<Target>,
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
