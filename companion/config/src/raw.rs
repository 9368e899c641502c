//! The document as it is written: one struct for each mapping, one field for each key, with its default.
//!
//! Unknown keys are errors. Nothing is decided here; `convert` turns these types into those that the program uses. The doc
//! comments are the descriptions in the JSON Schema and in `docs/reference.md`, so they address operators. Each default is the
//! value itself, because documents are shown with all their values at run time.

mod arbitration;
mod budgets;
mod classes;
mod effective_defaults;
mod identity;
mod queue;
mod replicas;
mod servers;
mod stock;
mod usage;

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(super) use self::arbitration::*;
pub(super) use self::budgets::*;
pub(super) use self::classes::*;
pub(super) use self::effective_defaults::WATERMARK;
pub(super) use self::identity::*;
pub(super) use self::queue::*;
pub(super) use self::replicas::*;
pub(super) use self::servers::*;
pub(super) use self::stock::*;
pub(super) use self::usage::*;
use super::value::{Bytes, CapacityStatus, Count, FlowCount, List, PositiveDuration};
use super::{Alias, Queued, Then};

/// Penstock's configuration. Only the names of the pools and their endpoints are required; every other key has a default.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = require_pools)]
pub(super) struct Document {
    /// The addresses to listen on. They can't change at run time.
    pub(super) listen: Listen,
    /// Mutual TLS on `listen.grpc`. Required unless `listen.grpc` is a loopback address or a unix socket. It can't change at
    /// run time.
    pub(super) tls: Option<Tls>,
    /// Several companions for one gateway, of which one is the leader. Null: there is one companion. It can't change at run
    /// time.
    pub(super) replicas: Option<Replicas>,
    /// Protection of the HTTP API.
    pub(super) admin: Admin,
    /// The sources of a request's identity, and the trusted clients.
    pub(super) identity: Identity,
    /// Each pool has one queue in front of model servers that serve the same models. A request goes to the first pool that
    /// serves its model. A change of the configuration finds a pool by its name.
    #[schemars(length(min = 1))]
    pub(super) pools: Vec<Pool>,
    /// The effects of SIGTERM.
    pub(super) shutdown: Shutdown,
    /// The longest time that a starting companion waits until all Envoy workers have reported their requests. Until then it
    /// grants nothing.
    pub(super) startup_wait: PositiveDuration,
    /// Limits of memory.
    pub(super) limits: Limits,
    /// The metrics at `/metrics`.
    pub(super) metrics: Metrics,
}

impl Default for Document {
    fn default() -> Self {
        Self {
            listen: Listen::default(),
            tls: None,
            replicas: None,
            admin: Admin::default(),
            identity: Identity::default(),
            pools: Vec::new(),
            shutdown: Shutdown::default(),
            startup_wait: PositiveDuration(penstock_wire::limits::STARTUP_WAIT),
            limits: Limits::default(),
            metrics: Metrics::default(),
        }
    }
}

/// Serde has a default for `pools` so that `convert` can report the missing key; the schema must not show it.
fn require_pools(schema: &mut schemars::Schema) {
    schema.insert("required".into(), serde_json::json!(["pools"]));
    schema.remove("default");
    if let Some(pools) = schema.pointer_mut("/properties/pools").and_then(|pools| pools.as_object_mut()) {
        pools.remove("default");
    }
}

/// The addresses to listen on.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Listen {
    /// Envoy's listener for clients, `ip:port`. An address off loopback requires `identity.trust`.
    pub(super) gateway: String,
    /// Envoy's admin interface, `ip:port`. It has no authentication, so only loopback addresses are allowed.
    pub(super) envoy_admin: String,
    /// The companion's gRPC server, which the filter connects to: `ip:port` or `unix:/path`.
    pub(super) grpc: String,
    /// The companion's HTTP server, with the API, the dashboard and the metrics: `ip:port` or `unix:/path`.
    pub(super) http: String,
    /// The file of Envoy's access log, one line of JSON for each request; `/dev/stdout` for Envoy's output. `null`: no log.
    pub(super) access_log: Option<PathBuf>,
    /// TLS for clients: HTTP/2 and HTTP/1.1, by ALPN. `null`: clients connect without TLS.
    pub(super) tls: Option<ListenTls>,
}

/// The PEM files of the certificate that Envoy shows to clients. Envoy reads them again when a file in the folder of `cert` is replaced.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListenTls {
    /// The certificate, followed by its intermediate certificates.
    pub(super) cert: PathBuf,
    /// The certificate's private key.
    pub(super) key: PathBuf,
}

impl Default for Listen {
    fn default() -> Self {
        Self {
            gateway: "127.0.0.1:8080".into(),
            envoy_admin: "127.0.0.1:9901".into(),
            grpc: "127.0.0.1:9190".into(),
            http: "127.0.0.1:9191".into(),
            access_log: None,
            tls: None,
        }
    }
}

/// The PEM files of mutual TLS. All three are required.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Tls {
    /// The certificate that both ends show, followed by its intermediate certificates.
    pub(super) cert: PathBuf,
    /// The certificate's private key.
    pub(super) key: PathBuf,
    /// The authority that must have signed a peer's certificate.
    pub(super) client_ca: PathBuf,
}

/// Protection of the HTTP API.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Admin {
    /// A file with a token of at least 8 visible characters. With a token, every request that changes something needs
    /// `Authorization: Bearer TOKEN`, and may come from anywhere. Without a token, such requests are accepted from loopback
    /// and unix sockets only.
    pub(super) token_file: Option<PathBuf>,
    /// Host names that HTTP requests may address, besides `localhost` and IP addresses.
    pub(super) hosts: List<String>,
}

/// A queue in front of model servers that serve the same models.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Pool {
    /// The pool's unique name: 1 to 63 letters, digits, `-`, `_` or `.`.
    #[schemars(regex(pattern = r"^[A-Za-z0-9._-]{1,63}$"))]
    pub(super) name: String,
    /// Globs of the models that the pool serves. An empty list means every model.
    #[serde(default)]
    pub(super) models: List<String>,
    /// Replaces the model of a request before the request is sent to a model server. The first entry that matches counts.
    #[serde(default)]
    pub(super) rewrite: List<Rewrite>,
    /// The model servers: exactly one of `static`, `dns`, `file` and `kubernetes`.
    pub(super) endpoints: Endpoints,
    /// Health checks of the endpoints.
    #[serde(default)]
    pub(super) health: Health,
    /// How long an endpoint gets no requests after requests to it have failed.
    #[serde(default)]
    pub(super) down: Down,
    /// Reading of the endpoints' metrics.
    #[serde(default)]
    pub(super) scrape: Scrape,
    /// Limits of the queue.
    #[serde(default)]
    pub(super) queue: Queue,
    /// Limits of the work that runs at the endpoints.
    #[serde(default)]
    pub(super) stock: Stock,
    /// The order in which queued requests are granted.
    #[serde(default)]
    pub(super) arbitration: Arbitration,
    /// The cost of tokens, and the storage of usage.
    #[serde(default)]
    pub(super) usage: Usage,
    /// Latency targets. Set both targets or neither.
    #[serde(default)]
    pub(super) slo: Slo,
    /// The performance model.
    #[serde(default)]
    pub(super) model: Model,
    /// Weights of the scorers that choose an endpoint for a request.
    #[serde(default)]
    pub(super) scheduler: Scheduler,
    /// Envoy's behaviour while no companion answers.
    #[serde(default)]
    pub(super) companion_down: CompanionDown,
    /// Answers a request 429 at once if it is predicted to miss its deadline, by the queue's pace and the performance model.
    #[serde(default)]
    pub(super) reject_unmeetable: bool,
    /// The status of answers when the queue is full or a request has waited for too long.
    #[serde(default = "service_unavailable")]
    pub(super) capacity_status: CapacityStatus,
}

const fn service_unavailable() -> CapacityStatus {
    CapacityStatus(503)
}

/// Envoy's behaviour while no companion answers.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct CompanionDown {
    /// How long Envoy holds requests, counted from the loss of the companion, also for requests that arrive later.
    pub(super) hold: PositiveDuration,
    /// What happens to held requests after `hold`.
    pub(super) then: Then,
}

impl Default for CompanionDown {
    fn default() -> Self {
        Self { hold: millis(5_000), then: Then::Closed }
    }
}

/// The effects of SIGTERM.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Shutdown {
    /// What happens to queued requests.
    pub(super) queued: Queued,
    /// The time that running requests have to finish.
    pub(super) drain: PositiveDuration,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { queued: Queued::Reject, drain: millis(30_000) }
    }
}

/// Limits of memory.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Limits {
    /// Identities with an account of their own in a pool, beside those that the pool's weights, capacities and budgets name. Further
    /// identities share 64 accounts.
    pub(super) flows: FlowCount,
    /// The largest body of a request, above 0. A larger body is answered 413.
    pub(super) body_bytes: Bytes,
}

impl Default for Limits {
    fn default() -> Self {
        Self { flows: FlowCount(penstock_engine::limits::FLOWS_MAX as u64), body_bytes: Bytes(32 << 20) }
    }
}

/// The metrics at `/metrics`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Metrics {
    /// Exports some metrics also under the names of these systems.
    pub(super) aliases: List<Alias>,
    /// Distinct values of the label `flow`, and of every other label whose values clients choose. Later values are counted as
    /// `other`.
    pub(super) flows: Count,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { aliases: List::default(), flows: Count(1_000) }
    }
}

const fn millis(millis: u64) -> PositiveDuration {
    PositiveDuration(std::time::Duration::from_millis(millis))
}
