//! The document as it is written: one struct a mapping, unknown keys are errors, defaults are the contract's.
//!
//! Nothing here decides; `super` turns it into types that fit together. What is written about a key here is what the
//! schema and the reference page say of it. A document with its defaults is what is shown at run time, so each is the
//! value itself; none is left to somebody else to know.

mod arbitration;
mod identity;
mod in_force;
mod queue;
mod servers;

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(super) use self::arbitration::*;
pub(super) use self::identity::*;
pub(super) use self::in_force::WATERMARK;
pub(super) use self::queue::*;
pub(super) use self::servers::*;
use super::value::{Bytes, CapacityStatus, Count, FlowCount, List, Span};

/// Penstock's configuration. A pool's name and its endpoints are enough; all else has a default.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = needs_pools)]
pub(super) struct Document {
    /// Where everything listens. It can't change at run time.
    pub(super) listen: Listen,
    /// Mutual TLS on `listen.grpc`; off loopback and unix sockets it is needed. It can't change at run time.
    pub(super) tls: Option<Tls>,
    /// Who may change something over HTTP.
    pub(super) admin: Admin,
    /// Where a request's identity is read, and whose claims count.
    pub(super) identity: Identity,
    /// Servers of the same models behind one queue each: a request goes to the first pool that serves its model. A pool
    /// is known by its name.
    #[schemars(length(min = 1))]
    pub(super) pools: Vec<Pool>,
    /// What SIGTERM does.
    pub(super) shutdown: Shutdown,
    /// How long a new companion waits at most for all of Envoy's workers to say what they have, before it lets anything
    /// go.
    pub(super) startup_wait: Span,
    /// How much is kept.
    pub(super) limits: Limits,
    /// What is shown at `/metrics`.
    pub(super) metrics: Metrics,
}

impl Default for Document {
    fn default() -> Self {
        Self {
            listen: Listen::default(),
            tls: None,
            admin: Admin::default(),
            identity: Identity::default(),
            pools: Vec::new(),
            shutdown: Shutdown::default(),
            startup_wait: Span(penstock_wire::limits::STARTUP_WAIT),
            limits: Limits::default(),
            metrics: Metrics::default(),
        }
    }
}

/// There is no default for what must be there.
fn needs_pools(schema: &mut schemars::Schema) {
    schema.insert("required".into(), serde_json::json!(["pools"]));
    schema.remove("default");
    if let Some(pools) = schema
        .pointer_mut("/properties/pools")
        .and_then(|it| it.as_object_mut())
    {
        pools.remove("default");
    }
}

/// Addresses.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Listen {
    /// Envoy's listener for clients, `ip:port`. Off loopback `identity.trust` must be given.
    pub(super) gateway: String,
    /// Envoy's admin interface, `ip:port` on loopback: nothing protects it.
    pub(super) envoy_admin: String,
    /// The companion's gRPC side, `ip:port` or `unix:/path`.
    pub(super) grpc: String,
    /// The companion's HTTP side, `ip:port` or `unix:/path`.
    pub(super) http: String,
}

impl Default for Listen {
    fn default() -> Self {
        Self {
            gateway: "127.0.0.1:8080".into(),
            envoy_admin: "127.0.0.1:9901".into(),
            grpc: "127.0.0.1:9190".into(),
            http: "127.0.0.1:9191".into(),
        }
    }
}

/// PEM files; all three are needed.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Tls {
    /// The certificate of both ends, and what leads to its authority.
    pub(super) cert: PathBuf,
    /// Its private key.
    pub(super) key: PathBuf,
    /// The authority that signed the certificates that are let in.
    pub(super) client_ca: PathBuf,
}

/// Who may change something over HTTP.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Admin {
    /// A file with a token of at least 8 visible characters. With it, whatever changes something needs `Authorization:
    /// Bearer TOKEN`, from anywhere; without it, changes are taken from loopback and unix sockets only.
    pub(super) token_file: Option<PathBuf>,
    /// Names under which the HTTP side may be asked, besides `localhost` and any address.
    pub(super) hosts: List<String>,
}

/// Servers of the same models behind one queue.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Pool {
    /// Unique: 1 to 63 letters, digits, `-`, `_` or `.`.
    #[schemars(regex(pattern = r"^[A-Za-z0-9._-]{1,63}$"))]
    pub(super) name: String,
    /// The models it serves, as globs; empty: every model.
    #[serde(default)]
    pub(super) models: List<String>,
    /// Which models the servers are asked for instead of the one that was asked for; the first that matches.
    #[serde(default)]
    pub(super) rewrite: List<Rewrite>,
    /// The model servers: `static`, `dns`, `file` or `kubernetes`, one of them.
    pub(super) endpoints: Endpoints,
    /// How a server's health is asked.
    #[serde(default)]
    pub(super) health: Health,
    /// How long a server that failed requests is left alone.
    #[serde(default)]
    pub(super) down: Down,
    /// How a server's metrics are read.
    #[serde(default)]
    pub(super) scrape: Scrape,
    /// What may wait, and how long.
    #[serde(default)]
    pub(super) queue: Queue,
    /// How much the servers work on at a time.
    #[serde(default)]
    pub(super) stock: Stock,
    /// Who goes next.
    #[serde(default)]
    pub(super) arbitration: Arbitration,
    /// What a token costs, and what is kept.
    #[serde(default)]
    pub(super) usage: Usage,
    /// What the servers owe; both targets or neither.
    #[serde(default)]
    pub(super) slo: Slo,
    /// How much each scorer counts in the choice of a server.
    #[serde(default)]
    pub(super) scheduler: Scheduler,
    /// What Envoy does while no companion answers.
    #[serde(default)]
    pub(super) companion_down: CompanionDown,
    /// A request that would miss its deadline, as the queue's pace and the model predict it, is answered 429 at once.
    #[serde(default)]
    pub(super) reject_unmeetable: bool,
    /// The status of full queues and expired waits.
    #[serde(default = "unavailable")]
    pub(super) capacity_status: CapacityStatus,
}

const fn unavailable() -> CapacityStatus {
    CapacityStatus(503)
}

/// What Envoy does while no companion answers.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct CompanionDown {
    /// How long requests wait in Envoy, counted from the companion's loss, those that come later too.
    pub(super) hold: Span,
    /// What becomes of them after that.
    pub(super) then: Then,
}

impl Default for CompanionDown {
    fn default() -> Self {
        Self {
            hold: span(5_000),
            then: Then::Closed,
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(super) enum Then {
    /// They go, as many at a time as this Envoy's part of the last known bounds; above that they are answered 503.
    Open,
    /// They are answered 503 with `Retry-After`.
    Closed,
}

/// What SIGTERM does.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Shutdown {
    /// What becomes of what waits.
    pub(super) queued: Queued,
    /// How long what runs may take to finish.
    pub(super) drain: Span,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self {
            queued: Queued::Reject,
            drain: span(30_000),
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(super) enum Queued {
    /// It is answered 503, and what runs may finish.
    Reject,
    /// The companion ends at once, and what waits or runs is left to the next one, which has `companion_down.hold` to
    /// come.
    HandOver,
}

/// How much is kept.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Limits {
    /// Identities with an account of their own in a pool; new ones past it share 64.
    pub(super) flows: FlowCount,
    /// Bytes of a request's body, above 0; a larger one is answered 413.
    pub(super) body_bytes: Bytes,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            flows: FlowCount(penstock_engine::limits::FLOWS_MAX as u64),
            body_bytes: Bytes(32 << 20),
        }
    }
}

/// What is shown at `/metrics`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Metrics {
    /// Other systems' names under which some metrics are shown too.
    pub(super) aliases: List<Alias>,
    /// Values of the label `flow`, and of every other label; what comes later counts as `other`.
    pub(super) flows: Count,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            aliases: List::default(),
            flows: Count(1_000),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(super) enum Alias {
    /// `nexus_queue_depth`: what waits in all pools.
    Nexus,
}

pub(super) const fn span(millis: u64) -> Span {
    Span(std::time::Duration::from_millis(millis))
}
