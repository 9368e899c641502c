//! A pool's endpoints: where they are, how they are checked, and how one is chosen for a request.

use std::collections::BTreeMap;
use std::path::PathBuf;

use penstock_engine::policy::Scorers;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::millis;
use crate::value::{Count, ExactDecimal, Factor, List, Port, PositiveDuration, TextOr, Weight, WholeNumber};

/// Sends requests for a model with another model's name.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rewrite {
    /// A glob of the models that clients request.
    #[schemars(length(min = 1))]
    pub(crate) model: String,
    /// The models that requests are sent with, in proportion to their weights. A retried request keeps its target.
    #[schemars(length(min = 1))]
    pub(crate) targets: Vec<RewriteTarget>,
}

/// A model that the model servers serve.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RewriteTarget {
    /// The model's name.
    #[schemars(length(min = 1, max = 256))]
    pub(crate) name: String,
    /// The target's share of the requests, relative to the weights of the other targets.
    #[serde(default = "default_target_weight")]
    pub(crate) weight: Weight,
}

const fn default_target_weight() -> Weight {
    Weight(1.0)
}

/// The model servers: exactly one of these keys.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("oneOf" = [
    {"required": ["static"], "properties": {"static": {"type": "array"}}},
    {"required": ["dns"], "properties": {"dns": {"type": "object"}}},
    {"required": ["file"], "properties": {"file": {"type": "string"}}},
    {"required": ["kubernetes"], "properties": {"kubernetes": {"type": "object"}}},
]))]
pub(crate) struct Endpoints {
    /// A list of endpoints. Each is an address, `"ip:port"`, or a mapping with more keys.
    #[serde(rename = "static")]
    pub(crate) listed: Option<Vec<EndpointEntry>>,
    /// All addresses of a DNS name, looked up regularly.
    pub(crate) dns: Option<Dns>,
    /// The path of a file with a list like that of `static`. It is read again when it changes.
    pub(crate) file: Option<PathBuf>,
    /// The ready pods of an InferencePool.
    pub(crate) kubernetes: Option<Kubernetes>,
    /// The values of every endpoint that doesn't have its own.
    pub(crate) defaults: EndpointDefaults,
}

/// The values of every endpoint of `static`, `dns`, `file` and `kubernetes` that doesn't have its own.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct EndpointDefaults {
    /// Endpoints of one variant have the same accelerator, model and flags. They share one performance model, and replicas are
    /// counted by variant.
    #[schemars(regex(pattern = r"^[A-Za-z0-9._-]{1,63}$"))]
    pub(crate) variant: String,
    /// The most requests that an endpoint runs in one batch; vLLM's `--max-num-seqs`.
    pub(crate) max_batch: Count,
    /// The most tokens that an endpoint computes in one iteration; vLLM's `--max-num-batched-tokens`. Null: unknown. A class's
    /// `prefill_busy_threshold_frac` needs it.
    pub(crate) max_batched_tokens: Option<Count>,
}

impl Default for EndpointDefaults {
    fn default() -> Self {
        Self {
            variant: "default".into(),
            // vLLM's default.
            max_batch: Count(256),
            max_batched_tokens: None,
        }
    }
}

/// All addresses of a DNS name.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Dns {
    /// The DNS name.
    #[schemars(length(min = 1, max = 253))]
    pub(crate) name: String,
    /// The port of every endpoint.
    pub(crate) port: Port,
    /// The time between two lookups.
    #[serde(default = "default_refresh")]
    pub(crate) refresh: PositiveDuration,
}

const fn default_refresh() -> PositiveDuration {
    millis(30_000)
}

/// The ready pods of an InferencePool, or the ready endpoints of a Service. Exactly one of `inference_pool` and `service`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Kubernetes {
    /// The name of the InferencePool.
    #[serde(default)]
    #[schemars(length(min = 1, max = 253))]
    pub(crate) inference_pool: Option<String>,
    /// The name of the Service.
    #[serde(default)]
    #[schemars(length(min = 1, max = 63))]
    pub(crate) service: Option<String>,
    /// The name of the Service's port. Null: it has one port.
    #[serde(default)]
    #[schemars(length(min = 1, max = 63))]
    pub(crate) port: Option<String>,
    /// The namespace of the object. Null: that of the companion's pod, or of the context in `KUBECONFIG`.
    #[serde(default)]
    #[schemars(length(min = 1, max = 63))]
    pub(crate) namespace: Option<String>,
    /// The pod labels or annotations that describe a model server, so that mixed accelerators of one pool are learned apart.
    #[serde(default)]
    pub(crate) labels: PodLabels,
}

/// The names of labels of pods, or of annotations. A pod without the label has the value of `endpoints.defaults`.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PodLabels {
    /// The label with the variant. Null: none.
    #[schemars(length(min = 1, max = 317))]
    pub(crate) variant: Option<String>,
    /// The label with the batch size. Null: none.
    #[schemars(length(min = 1, max = 317))]
    pub(crate) max_batch: Option<String>,
    /// The label with the batched tokens. Null: none.
    #[schemars(length(min = 1, max = 317))]
    pub(crate) max_batched_tokens: Option<String>,
}

/// An endpoint, written as a mapping or as its address alone.
#[derive(Clone, Debug)]
pub(crate) struct EndpointEntry(pub(crate) Endpoint);

/// A model server.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Endpoint {
    /// The endpoint's address, `ip:port`.
    pub(crate) address: String,
    /// The endpoint's variant. Null means that of `defaults`.
    #[serde(default)]
    #[schemars(regex(pattern = r"^[A-Za-z0-9._-]{1,63}$"))]
    pub(crate) variant: Option<String>,
    /// The most requests that the endpoint runs in one batch. Null means that of `defaults`.
    #[serde(default)]
    pub(crate) max_batch: Option<Count>,
    /// The most tokens that the endpoint computes in one iteration. Null means that of `defaults`.
    #[serde(default)]
    pub(crate) max_batched_tokens: Option<Count>,
    /// Scales the endpoint's bounds. Under `watermark_per_backend: auto` it scales `auto_initial` only.
    #[serde(default = "default_weight")]
    #[schemars(transform = above_zero)]
    pub(crate) weight: ExactDecimal,
    /// Labels for people, shown in the endpoint's status.
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
    /// The endpoint takes only requests that tolerate all of these, by the header `x-penstock-tolerate` of a trusted client.
    #[serde(default)]
    pub(crate) taints: List<String>,
}

/// An endpoint that takes no requests isn't listed, so 0 isn't allowed.
fn above_zero(schema: &mut Schema) {
    schema.remove("minimum");
    schema.insert("exclusiveMinimum".into(), 0.into());
}

const fn default_weight() -> ExactDecimal {
    ExactDecimal(penstock_engine::units::Decimal::whole(1))
}

impl From<String> for Endpoint {
    fn from(address: String) -> Self {
        Self {
            address,
            variant: None,
            max_batch: None,
            max_batched_tokens: None,
            weight: default_weight(),
            labels: BTreeMap::new(),
            taints: List::default(),
        }
    }
}

impl<'de> Deserialize<'de> for EndpointEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let form = TextOr::<Endpoint>::new("an address like \"127.0.0.1:8001\", or {address: ...}");
        deserializer.deserialize_any(form).map(Self)
    }
}

impl Serialize for EndpointEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
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

/// Health checks of the endpoints.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Health {
    /// The path that is requested with GET. A server without the path, which answers 404, 405 or 501, counts as healthy. Null
    /// turns the checks off, and endpoints count as healthy.
    #[schemars(regex(pattern = "^/"))]
    pub(crate) path: Option<String>,
    /// The time between two checks of an endpoint.
    pub(crate) interval: PositiveDuration,
    /// Failed checks in a row after which the endpoint is not ready.
    pub(crate) unhealthy_after: Count,
}

impl Default for Health {
    fn default() -> Self {
        Self { path: Some("/health".into()), interval: millis(5_000), unhealthy_after: Count(3) }
    }
}

/// How long an endpoint is marked down, so that it gets no requests, after two requests to it failed within ten seconds. The
/// time doubles whenever that happens again before the endpoint has served a request. The last ready endpoint is never marked
/// down.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Down {
    /// The first time that the endpoint is marked down; at most `max`.
    pub(crate) first: PositiveDuration,
    /// The longest time.
    pub(crate) max: PositiveDuration,
}

impl Default for Down {
    fn default() -> Self {
        Self { first: millis(1_000), max: millis(30_000) }
    }
}

/// Reading of the endpoints' metrics, in Prometheus' text format under the names of vLLM, SGLang or TGI.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Scrape {
    /// The path of the metrics. Null: metrics are not read.
    #[schemars(regex(pattern = "^/"))]
    pub(crate) path: Option<String>,
    /// The time between two reads of an endpoint.
    pub(crate) interval: PositiveDuration,
    /// The age from which values no longer count; at least `interval`. The default is 5s, or twice the interval if that is
    /// longer.
    pub(crate) stale_after: Option<PositiveDuration>,
}

impl Default for Scrape {
    fn default() -> Self {
        Self { path: Some("/metrics".into()), interval: millis(1_000), stale_after: None }
    }
}

/// Weights of the scorers that choose among the endpoints with room. 0 turns a scorer off.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Scheduler {
    /// The free fraction of the endpoint's bound.
    pub(crate) stock: Factor,
    /// Requests that wait in the endpoint's own queue. Fewer score higher.
    pub(crate) queue: Factor,
    /// The free fraction of the endpoint's KV cache.
    pub(crate) kv_cache: Factor,
    /// The fraction of the prompt that was sent to the endpoint before.
    pub(crate) prefix: Factor,
    /// Whether the endpoint has the model's LoRA adapter in memory.
    pub(crate) lora: Factor,
    /// Where the scorer `prefix` is in use, prompts of fewer tokens may be admitted by credit (`queue.credits`), which chooses their
    /// endpoint without it. Longer ones ask the companion.
    pub(crate) prefix_min_tokens: WholeNumber,
}

impl Default for Scheduler {
    fn default() -> Self {
        let Scorers { stock, queue, kv_cache, prefix, lora } = Scorers::default();
        Self {
            stock: Factor(stock),
            queue: Factor(queue),
            kv_cache: Factor(kv_cache),
            prefix: Factor(prefix),
            lora: Factor(lora),
            prefix_min_tokens: WholeNumber(256),
        }
    }
}
