//! The configuration file, as a type that can't be wrong.
//!
//! A text becomes a tree (`parse`, `node`), the environment is put over it, and `reader` makes `raw` of it: the document,
//! with `value` for its scalars. [`Config`] is what the rest of the program sees; what fits together across keys is
//! checked on the way there, in `convert`. An error names the file, the line, the key's path and what is allowed there.

mod compiled;
mod convert;
mod document;
mod environment;
mod exposure;
mod nearest;
mod node;
mod parse;
mod patch;
mod raw;
mod reader;
mod redis_url;
mod reference;
mod schema;
#[cfg(test)]
mod tests;
mod value;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use penstock_control::{FlowKey, MaxPriority, Rewrite};
use penstock_engine::input::Band;
use penstock_engine::policy as engine;
use penstock_engine::units::Decimal;
use serde::de::{Deserialize, Deserializer, Error as _};

pub use self::document::{Document, endpoints};
pub use self::redis_url::RedisUrl;
pub use self::reference::reference;
pub use self::schema::schema;

/// Everything that `penstock serve` holds to.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where everything listens.
    pub listen: Listen,
    /// Who may speak gRPC; `None`: whoever reaches it.
    pub tls: Option<Tls>,
    /// Who may change something over HTTP.
    pub admin: Admin,
    /// Where a request's identity is read.
    pub identity: Identity,
    /// At least one; names are unique.
    pub pools: Vec<Pool>,
    /// What becomes of what waits at SIGTERM.
    pub queued: Queued,
    /// How long running requests may take to end after SIGTERM.
    pub drain: Duration,
    /// A starting companion waits at most this long for the sessions it knows of.
    pub startup_wait: Duration,
    /// Bytes of a request's body.
    pub body_bytes: u64,
    /// Flows with state of their own, in a pool.
    pub flows: usize,
    /// Values of the label `flow`.
    pub metric_flows: usize,
    /// Names under which some metrics are shown besides their own.
    pub metric_aliases: Vec<Alias>,
}

/// Another system's names for some metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alias {
    /// `nexus_queue_depth`: what waits in all pools.
    Nexus,
}

/// Addresses.
#[derive(Clone, Debug)]
pub struct Listen {
    /// Envoy's listener for clients.
    pub gateway: SocketAddr,
    /// Envoy's admin interface.
    pub envoy_admin: SocketAddr,
    /// The companion's gRPC side.
    pub grpc: Address,
    /// The companion's HTTP side.
    pub http: Address,
}

/// Mutual TLS on gRPC: PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The certificate of both ends, and what leads to its authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authority that signed the certificates that are let in.
    pub client_ca: PathBuf,
}

/// Who may change something over HTTP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admin {
    /// Holds the token; `None`: whoever is on this machine needs none.
    pub token_file: Option<PathBuf>,
    /// Names that this companion is asked for by, besides localhost and its addresses; in lower case.
    pub hosts: Vec<String>,
}

/// What becomes of what waits at SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queued {
    /// It is answered 503.
    Reject,
    /// Its streams stay paused in Envoy, for the next companion.
    HandOver,
}

/// A TCP address or the path of a unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `ip:port`
    Tcp(SocketAddr),
    /// `unix:/path`
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(to),
            Self::Unix(path) => write!(to, "unix:{}", path.display()),
        }
    }
}

/// Where a request's identity is read; the first source that is present wins.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Who shares.
    pub fairness_id: Vec<Source>,
    /// Who asks.
    pub user: Vec<Source>,
    /// How much it matters.
    pub priority: Vec<Source>,
    /// Which policy class it asks for.
    pub class: Vec<Source>,
    /// Its strict tier.
    pub strict: Vec<Source>,
    /// Seconds of its head start.
    pub jump: Vec<Source>,
    /// Priority by the name of an objective.
    pub objectives: Vec<(String, Band)>,
    /// What a tenant may claim at most.
    pub max_priority: MaxPriority,
    /// Whose claims count.
    pub trust: Trust,
}

/// Whose claims count: clients by their address, as Envoy sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Everybody's.
    All,
    /// Those of clients in one of these networks; none: nobody's.
    Networks(Vec<IpNet>),
}

/// One place to read an identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A request header, in lower case.
    Header(String),
    /// A top-level string of the body.
    Body(String),
    /// Dynamic metadata, `namespace/key/...`.
    Metadata(String),
    /// By the model's name: globs and values, first match.
    Model(Vec<(String, String)>),
}

/// Servers of the same models behind one queue.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Unique.
    pub name: String,
    /// Globs; empty: every model.
    pub models: Vec<String>,
    /// Those that are listed in the document: addresses are unique, and there is at least one unless `discovery` finds them.
    pub endpoints: Vec<Endpoint>,
    /// What finds the endpoints; `None`: they are listed.
    pub discovery: Option<Discovery>,
    /// Which models the servers are asked for instead of the one that was asked for.
    pub rewrite: Vec<Rewrite>,
    /// `None`: not checked, always healthy.
    pub health: Option<Health>,
    /// What is read from their metrics; `None`: nothing.
    pub scrape: Option<Scrape>,
    /// What the engine holds to.
    pub policy: engine::Policy,
    /// What the servers owe.
    pub slo: penstock_model::slo::Policy,
    /// What makes a flow, in order; empty: one flow for all.
    pub flow_key: Vec<FlowKey>,
    /// Models of the policy's class sets after the first: globs, first match.
    pub class_globs: Vec<String>,
    /// How often a request whose servers all failed is queued again.
    pub requeues: u32,
    /// What keeps what is learned and used across restarts; `None`: nothing does.
    pub store: Option<Store>,
    /// How long streams are held while the companion is away.
    pub hold: Duration,
    /// What happens to them after that.
    pub then: Then,
    /// Status of full queues and expired waits: 503 or 429.
    pub capacity_status: u16,
}

/// What outlives a companion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Store {
    /// A file of its own.
    Redb(PathBuf),
    /// A server that others use as well.
    Redis(RedisUrl),
}

/// What happens when no companion answers for longer than `hold`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Requests go within this Envoy's part of the last known bounds.
    Open,
    /// They are answered 503.
    Closed,
}

/// One model server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `ip:port`
    pub address: SocketAddr,
    /// Scales its bounds.
    pub weight: Decimal,
    /// Servers of one variant share their model.
    pub variant: String,
    /// Requests in one batch; at least 1.
    pub max_batch: u64,
    /// What it is called for people and for subsets.
    pub labels: BTreeMap<String, String>,
    /// Only requests that tolerate all of these go there.
    pub taints: Vec<String>,
}

/// What finds a pool's endpoints, again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Discovery {
    /// All addresses of a name.
    Dns {
        /// The name.
        name: String,
        /// The port of all of them.
        port: u16,
        /// Between two look-ups.
        refresh: Duration,
    },
    /// A file with a list of them, in the form of `static`; read again when it changes.
    File(PathBuf),
    /// The ready pods of an InferencePool.
    Kubernetes {
        /// Its name.
        inference_pool: String,
        /// Its namespace.
        namespace: String,
    },
}

/// How an endpoint's health is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Path of the request.
    pub path: String,
    /// Between two.
    pub interval: Duration,
    /// Failures in a row that make it unready.
    pub unhealthy_after: u64,
}

/// How servers are asked what they do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scrape {
    /// Path of their metrics.
    pub path: String,
    /// Between two.
    pub interval: Duration,
    /// What was read counts no longer than this; at least `interval`.
    pub stale_after: Duration,
}

/// Text that is no address to listen on: why, and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AddressError(String);

/// A configuration that can't be used, and where.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file can't be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A value is wrong that stands in no file: in a change, or in the environment.
    #[error("{origin}: {key}: {message}")]
    Value {
        /// What said it.
        origin: String,
        /// `pools[0].queue.ttl`
        key: String,
        /// What is wrong and what is allowed.
        message: String,
    },
    /// The document is wrong at a line: in itself, or where keys don't fit together.
    #[error("{file}:{line}: {key}: {message}")]
    Document {
        /// Which file.
        file: String,
        /// From 1.
        line: u64,
        /// `pools[0].queue.ttl`
        key: String,
        /// What is wrong and what is allowed.
        message: String,
    },
}

/// Where something would be reached that nothing protects there: the key, why, and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {message}")]
pub struct Exposed {
    key: &'static str,
    message: String,
}

/// A rule across keys that was broken: the key's path, and what is allowed.
struct Broken(String, String);

/// A pool's `slo` in a document of another kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct SloKeys(pub penstock_model::slo::Policy);

impl<'de> Deserialize<'de> for SloKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = raw::Slo::deserialize(deserializer)?;
        convert::slo(&raw)
            .map(Self)
            .map_err(|Broken(_, why)| D::Error::custom(why))
    }
}

impl Config {
    /// Reads and checks a file, and the environment over it.
    ///
    /// # Errors
    /// When the file can't be read, isn't YAML, or says something that isn't allowed.
    pub fn read(path: &Path) -> Result<Self, Error> {
        Document::read(path).map(Document::into_config)
    }

    /// Checks a document; `file` names it in errors.
    ///
    /// # Errors
    /// When it isn't YAML, or says something that isn't allowed.
    pub fn parse(text: &str, file: &str) -> Result<Self, Error> {
        Document::parse(text, file).map(Document::into_config)
    }
}
