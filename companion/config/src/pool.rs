//! A pool: endpoints that serve the same models, and the policy of their queue.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use penstock_autopilot::PendingServers;
use penstock_engine::input::{Band, Role};
use penstock_engine::policy::{Class, FlowKey, Policy, Rewrite};
use penstock_engine::units::Decimal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::redis_url::RedisUrl;
use super::upstream::{Upstream, UpstreamTls};

/// A pool.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Unique.
    pub name: String,
    /// Globs of the models that the pool serves. Empty: every model.
    pub models: Vec<String>,
    /// Requests that name no model belong to this pool.
    pub is_default: bool,
    /// The port at which gateways ask the endpoint picker about requests of this pool alone; `None`: there is none.
    pub picker_port: Option<u16>,
    /// The endpoints that the document lists, with unique addresses. At least one, unless `discovery` finds them.
    pub endpoints: Vec<Endpoint>,
    /// The way to find endpoints. `None`: the document lists them.
    pub discovery: Option<Discovery>,
    /// Servers that `discovery` has found and that aren't ready to be endpoints; none in a document.
    pub pending: Vec<PendingServers>,
    /// Bands by the name of an objective that `discovery` has found; none in a document.
    pub objectives: BTreeMap<String, Band>,
    /// The values of endpoints that `discovery` finds without their own.
    pub endpoint_defaults: EndpointDefaults,
    /// The rules that replace the model of a request before it reaches an endpoint: those of the document, then those that `discovery`
    /// has found. The first that matches counts.
    pub rewrite: Vec<Rewrite>,
    /// The way to the model servers.
    pub upstream: Upstream,
    /// `None`: endpoints are not checked, and count as healthy.
    pub health: Option<Health>,
    /// `None`: the endpoints' metrics are not read.
    pub scrape: Option<Scrape>,
    /// The engine's policy.
    pub policy: Policy,
    /// The latency targets.
    pub slo: penstock_model::slo::Policy,
    /// For so long after it has become ready, the performance model doesn't learn from an endpoint.
    pub transient: Duration,
    /// The parts of a flow's identity, in order. Empty: all requests are one flow.
    pub flow_key: Vec<FlowKey>,
    /// The globs of models that have class sets of their own, in the order of the policy's class sets after the first. The
    /// first match counts.
    pub class_globs: Vec<String>,
    /// How often a request may be queued again after an endpoint has failed it. `None`: until its ttl ends.
    pub requeues: Option<u32>,
    /// How often a request goes elsewhere after a server cut its connection.
    pub resets: u32,
    /// The failures of an endpoint after which a request is sent again.
    pub requeue_on: RequeueOn,
    /// Filters may admit requests by themselves while the pool has much room.
    pub gives_credit: bool,
    /// Where prompts choose their endpoint by their prefix, those of at least as many tokens aren't admitted by credit.
    pub prefix_min_tokens: u64,
    /// Filters ask servers for token counts in streams.
    pub include_usage: bool,
    /// How long servers may be silent.
    pub timeouts: Timeouts,
    /// The time until a waiting stream's client gets comments, and between two of them; `None`: it waits silently.
    pub keep_alive: Option<Duration>,
    /// Where usage and learned models are kept across restarts. `None`: nowhere.
    pub store: Option<Store>,
    /// How long Envoy holds requests while no companion answers.
    pub hold: Duration,
    /// The end of held requests after `hold`.
    pub then: Then,
    /// The status of answers for full queues and expired requests: 503 or 429.
    pub capacity_status: u16,
}

/// How long a server may be silent before the gateway ends the attempt. `None`: for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// From sending a request to the first byte of its answer's body.
    pub first_byte: Option<Duration>,
    /// Between two bytes after the first.
    pub idle: Option<Duration>,
}

/// Where usage and learned models are kept across restarts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Store {
    /// A redb file of this companion.
    Redb(PathBuf),
    /// A redis server, which other companions may share.
    Redis(RedisUrl),
}

/// What an endpoint may do before the first byte of its answer for the request to be sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequeueOn {
    /// It refuses the connection, or doesn't accept in time.
    pub connect: bool,
    /// It cuts the connection. Envoy can't tell that from `connect`, which this includes.
    pub reset: bool,
    /// It answers with one of these statuses, in rising order: 429, 500, 502, 503, 504.
    pub statuses: Vec<u16>,
}

/// The end of held requests when no companion has answered for `companion_down.hold`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Then {
    /// Requests go to the model servers, as many at a time as this Envoy's share of the last known bounds. The rest is
    /// answered 503.
    Open,
    /// Requests are answered 503 with `Retry-After`.
    Closed,
}

/// A model server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `ip:port`
    pub address: SocketAddr,
    /// Scales the endpoint's bounds.
    pub weight: Decimal,
    /// Endpoints of one variant share their performance model.
    pub variant: String,
    /// Requests in one batch; at least 1.
    pub max_batch: u64,
    /// Tokens that the endpoint computes in one iteration; at least 1. `None`: unknown.
    pub max_batched_tokens: Option<u64>,
    /// Labels for people, and for clients that select endpoints.
    pub labels: BTreeMap<String, String>,
    /// The endpoint takes only requests that tolerate all of these.
    pub taints: Vec<String>,
    /// What it computes of a request, in a pool that separates prefill from decoding.
    pub role: Role,
    /// The address was written with `https://`.
    pub is_https: bool,
}

/// All that a discovery has found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Discovered {
    /// Servers that requests can go to.
    pub endpoints: Vec<Endpoint>,
    /// Servers that aren't ready, each variant and batch size once.
    pub pending: Vec<PendingServers>,
    /// The servers speak HTTP/2.
    pub http2: bool,
    /// Bands by the name of an objective.
    pub objectives: BTreeMap<String, Band>,
    /// Rules that replace the model of a request, in the order in which they count.
    pub rewrites: Vec<Rewrite>,
}

/// The values of endpoints that don't have their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointDefaults {
    /// As in [`Endpoint`].
    pub variant: String,
    /// As in [`Endpoint`].
    pub max_batch: u64,
    /// As in [`Endpoint`].
    pub max_batched_tokens: Option<u64>,
    /// As in [`Endpoint`].
    pub role: Role,
}

impl Default for EndpointDefaults {
    fn default() -> Self {
        Self { variant: "default".into(), max_batch: 256, max_batched_tokens: None, role: Role::Both }
    }
}

impl EndpointDefaults {
    /// An endpoint of which only the address is known.
    #[must_use]
    pub fn endpoint(&self, address: SocketAddr) -> Endpoint {
        Endpoint {
            address,
            weight: Decimal::whole(1),
            variant: self.variant.clone(),
            max_batch: self.max_batch,
            max_batched_tokens: self.max_batched_tokens,
            labels: BTreeMap::new(),
            taints: Vec::new(),
            role: self.role,
            is_https: false,
        }
    }
}

impl Pool {
    /// Whether a class has a prefill threshold only as a fraction of an endpoint's batched tokens.
    #[must_use]
    pub fn needs_batched_tokens(&self) -> bool {
        let sets = self.policy.classes.iter();
        sets.flat_map(|set| &set.classes).any(has_only_fraction)
    }

    /// Adds discovered endpoints and rewrites after the configured ones, which keep their settings and come first, and sets the servers
    /// that aren't ready. The pool is as the document has it.
    pub fn add_discovered(&mut self, discovered: &Discovered) {
        self.rewrite.extend_from_slice(&discovered.rewrites);
        self.pending.clone_from(&discovered.pending);
        self.objectives.clone_from(&discovered.objectives);
        self.upstream.http2 |= discovered.http2;
        if self.upstream.tls.is_none() && discovered.endpoints.iter().any(|endpoint| endpoint.is_https) {
            // The list was read only if the system has authorities.
            self.upstream.tls = UpstreamTls::of_system().ok();
        }
        let configured = self.endpoints.len();
        for endpoint in &discovered.endpoints {
            let is_configured =
                self.endpoints.iter().take(configured).any(|other| other.address == endpoint.address);
            if !is_configured {
                self.endpoints.push(endpoint.clone());
            }
        }
    }
}

/// The class's prefill threshold is only a fraction of an endpoint's batched tokens.
pub(crate) const fn has_only_fraction(class: &Class) -> bool {
    class.busy_fraction.is_some() && class.busy_tokens.is_none()
}

/// A way to find a pool's endpoints, and to follow their changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Discovery {
    /// All addresses of a DNS name.
    Dns {
        /// The name.
        name: String,
        /// The port of every endpoint.
        port: u16,
        /// The time between two lookups.
        refresh: Duration,
        /// The name servers to ask. Empty: those of the system, with its search domains and its file of hosts.
        resolver: Vec<SocketAddr>,
    },
    /// A file with a list of endpoints, in the form of `static`. It is read again when it changes.
    File(PathBuf),
    /// An object of Kubernetes.
    Kubernetes {
        /// The object.
        object: KubernetesObject,
        /// The object's namespace; `None`: that of the companion's pod, or of the context in `KUBECONFIG`.
        namespace: Option<String>,
        /// Where pods say what their model servers are.
        labels: PodLabels,
        /// Which pods are endpoints.
        selector: PodSelector,
        /// The InferenceObjectives of the InferencePool give the priority of requests that name one.
        objectives: bool,
        /// The InferenceModelRewrites of the InferencePool replace the models of requests.
        rewrites: bool,
    },
}

/// Which of the pods that an InferencePool selects are endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSelector {
    /// A pod has each of these labels with one of the values.
    pub match_labels: BTreeMap<String, Vec<String>>,
    /// A pod has none of these labels with one of the values, unless a selector names label and value.
    pub exclude_labels: BTreeMap<String, Vec<String>>,
}

/// An object of Kubernetes that names model servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubernetesObject {
    /// The ready pods of the InferencePool with this name.
    InferencePool(String),
    /// The ready endpoints of a Service.
    Service {
        /// The Service's name.
        name: String,
        /// The name of its port; `None`: it has one.
        port: Option<String>,
    },
}

/// The names of labels of pods, or of annotations. A pod without the label has the value of `endpoints.defaults`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PodLabels {
    /// The label with the variant. Null: none.
    #[schemars(length(min = 1, max = 317))]
    pub variant: Option<String>,
    /// The label with the batch size. Null: none.
    #[schemars(length(min = 1, max = 317))]
    pub max_batch: Option<String>,
    /// The label with the batched tokens. Null: none.
    #[schemars(length(min = 1, max = 317))]
    pub max_batched_tokens: Option<String>,
    /// The label with the role, under `disaggregation`: `prefill`, `decode`, or anything else for both. Null: `llm-d.ai/role`.
    #[schemars(length(min = 1, max = 317))]
    pub role: Option<String>,
}

/// Health checks of endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// The path to request.
    pub path: String,
    /// The time between two checks.
    pub interval: Duration,
    /// Failed checks in a row after which an endpoint is not ready.
    pub unhealthy_after: u64,
}

/// Reading of endpoints' metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scrape {
    /// The path of the metrics.
    pub path: String,
    /// The time between two reads.
    pub interval: Duration,
    /// The age from which values no longer count; at least `interval`.
    pub stale_after: Duration,
    /// The port of the page; `None`: that of the endpoint.
    pub port: Option<u16>,
    /// The file with the bearer token of the page.
    pub token_file: Option<PathBuf>,
    /// TLS to the page; `None`: as the pool's requests on the endpoint's port, plain text on another one.
    pub tls: Option<UpstreamTls>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn rewrites_of_the_document_come_before_those_that_are_discovered() {
        let text =
            "pools: [{name: a, endpoints: {file: f}, rewrite: [{model: chat, targets: [{name: written}]}]}]";
        let mut config = Config::parse(text, "f.yaml").expect("valid");
        let found = |model: &str| Rewrite { model: model.into(), targets: vec![("found".into(), 1.0)] };
        let discovered = Discovered { rewrites: vec![found("chat"), found("code")], ..Discovered::default() };
        config.pools[0].add_discovered(&discovered);
        let rules = config.pools[0].rewrite.iter();
        let rules: Vec<_> = rules.map(|rule| (&*rule.model, &*rule.targets[0].0)).collect();
        assert_eq!(rules, [("chat", "written"), ("chat", "found"), ("code", "found")]);
    }
}
