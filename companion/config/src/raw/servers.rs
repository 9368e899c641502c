//! The document's part on a pool's model servers: where they are, what is asked of them, and which is the best.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::path::PathBuf;

use penstock_engine::policy::Scorers;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::span;
use crate::value::{Count, Exact, Factor, List, Port, Span, TextOr, Weight};

/// The servers are asked for one of `targets` instead of a model.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rewrite {
    /// A glob: the models that were asked for.
    #[schemars(length(min = 1))]
    pub(crate) model: String,
    /// One of these, by weight; a request that comes again gets the same.
    #[schemars(length(min = 1))]
    pub(crate) targets: Vec<RewriteTarget>,
}

/// A model that the servers know.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RewriteTarget {
    /// Its name.
    #[schemars(length(min = 1, max = 256))]
    pub(crate) name: String,
    /// Its part of the requests, beside the other targets'.
    #[serde(default = "one")]
    pub(crate) weight: Weight,
}

const fn one() -> Weight {
    Weight(1.0)
}

/// The model servers: exactly one of these.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("oneOf" = [
    {"required": ["static"], "properties": {"static": {"type": "array"}}},
    {"required": ["dns"], "properties": {"dns": {"type": "object"}}},
    {"required": ["file"], "properties": {"file": {"type": "string"}}},
    {"required": ["kubernetes"], "properties": {"kubernetes": {"type": "object"}}},
]))]
pub(crate) struct Endpoints {
    /// A list: `"ip:port"`, or a mapping that says more.
    #[serde(rename = "static")]
    pub(crate) fixed: Option<Vec<EndpointEntry>>,
    /// All addresses of a name, looked up again and again.
    pub(crate) dns: Option<Dns>,
    /// A file with such a list as `static`; it is read again when it changes.
    pub(crate) file: Option<PathBuf>,
    /// The ready pods of an InferencePool.
    pub(crate) kubernetes: Option<Kubernetes>,
}

/// All addresses of a name.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Dns {
    /// The name.
    #[schemars(length(min = 1, max = 253))]
    pub(crate) name: String,
    /// The port of all of them.
    pub(crate) port: Port,
    /// Between two look-ups.
    #[serde(default = "half_a_minute")]
    pub(crate) refresh: Span,
}

const fn half_a_minute() -> Span {
    span(30_000)
}

/// The ready pods of an InferencePool.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Kubernetes {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub(crate) inference_pool: String,
    /// Its namespace.
    #[serde(default = "namespace")]
    #[schemars(length(min = 1, max = 63))]
    pub(crate) namespace: String,
}

fn namespace() -> String {
    "default".into()
}

/// An endpoint, or just its address.
#[derive(Clone, Debug)]
pub(crate) struct EndpointEntry(pub(crate) Endpoint);

/// A model server.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Endpoint {
    /// `ip:port`
    pub(crate) address: String,
    /// Servers of one variant are alike: the same accelerator, the same model, the same flags. They are learned
    /// together and counted together.
    #[serde(default = "variant")]
    #[schemars(regex(pattern = r"^[A-Za-z0-9._-]{1,63}$"))]
    pub(crate) variant: String,
    /// Requests in one batch, vLLM's `--max-num-seqs`.
    #[serde(default = "max_batch")]
    pub(crate) max_batch: Count,
    /// Scales its bounds, above 0; under `auto` only `auto_initial`.
    #[serde(default = "whole")]
    #[schemars(transform = above_nothing)]
    pub(crate) weight: Exact,
    /// What it is called for people.
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
    /// Only requests that tolerate all of these go there (`x-penstock-tolerate`, from trusted clients).
    #[serde(default)]
    pub(crate) taints: List<String>,
}

/// A server that takes nothing isn't listed.
fn above_nothing(schema: &mut Schema) {
    schema.remove("minimum");
    schema.insert("exclusiveMinimum".into(), 0.into());
}

/// The variant of servers that name none.
fn variant() -> String {
    "default".into()
}

/// Requests in one batch of a server that doesn't say, as vLLM has it.
const fn max_batch() -> Count {
    Count(256)
}

const fn whole() -> Exact {
    Exact(penstock_engine::units::Decimal::whole(1))
}

impl From<String> for Endpoint {
    fn from(address: String) -> Self {
        Self {
            address,
            variant: variant(),
            max_batch: max_batch(),
            weight: whole(),
            labels: BTreeMap::new(),
            taints: List::default(),
        }
    }
}

impl<'de> Deserialize<'de> for EndpointEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer
            .deserialize_any(TextOr::<Endpoint>(PhantomData))
            .map(Self)
    }
}

impl Serialize for EndpointEntry {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(to)
    }
}

impl JsonSchema for EndpointEntry {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "EndpointEntry".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"type": "string"}, generator.subschema_for::<Endpoint>()]})
    }
}

/// How a server's health is asked.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Health {
    /// The path that is asked; null: not checked, always healthy.
    #[schemars(regex(pattern = "^/"))]
    pub(crate) path: Option<String>,
    /// Between two.
    pub(crate) interval: Span,
    /// Failures in a row that make it unready.
    pub(crate) unhealthy_after: Count,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            path: Some("/health".into()),
            interval: span(5_000),
            unhealthy_after: Count(3),
        }
    }
}

/// How long a server is left alone that failed two requests within ten seconds: twice as long each time it happens again
/// before something was served there. The last one that is ready is never left alone.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Down {
    /// The first time; at most `max`.
    pub(crate) first: Span,
    /// At most.
    pub(crate) max: Span,
}

impl Default for Down {
    fn default() -> Self {
        Self {
            first: span(1_000),
            max: span(30_000),
        }
    }
}

/// How a server's metrics are read, in Prometheus' text format under the names of vLLM, SGLang or TGI.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Scrape {
    /// The path that is read; null: nothing is.
    #[schemars(regex(pattern = "^/"))]
    pub(crate) path: Option<String>,
    /// Between two.
    pub(crate) interval: Span,
    /// What was read counts so long, at least `interval`. 5s if nothing is said, or twice the interval if that is more.
    pub(crate) stale_after: Option<Span>,
}

impl Default for Scrape {
    fn default() -> Self {
        Self {
            path: Some("/metrics".into()),
            interval: span(1_000),
            stale_after: None,
        }
    }
}

/// How much each scorer's vote counts in the choice among the servers with room; 0: not at all.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Scheduler {
    /// The part of its bound that is free.
    pub(crate) stock: Factor,
    /// Requests that wait in the server's own queue: fewer are better.
    pub(crate) queue: Factor,
    /// The part of the server's KV cache that is free.
    pub(crate) kv_cache: Factor,
    /// The part of the prompt that the server has computed before.
    pub(crate) prefix: Factor,
    /// The server has the model's adapter in memory.
    pub(crate) lora: Factor,
}

impl Default for Scheduler {
    fn default() -> Self {
        let Scorers {
            stock,
            queue,
            kv_cache,
            prefix,
            lora,
        } = Scorers::default();
        Self {
            stock: Factor(stock),
            queue: Factor(queue),
            kv_cache: Factor(kv_cache),
            prefix: Factor(prefix),
            lora: Factor(lora),
        }
    }
}
