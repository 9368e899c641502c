//! The configuration in force: one task owns it, takes whatever changes it, and has everything else follow.
//!
//! What changes it is the file, SIGHUP, PUT and PATCH, and discovery. Each makes a whole document that is checked before
//! anything is touched; one that is wrong, or changes what can't change while the companion runs, leaves everything as it
//! was. Whoever needs the configuration looks at what is [`InForce`]; nobody else decides about it.

mod changes;
pub(crate) mod file;
mod owner;

use std::path::PathBuf;
use std::sync::Arc;

use penstock_config::{self as config, Config, Discovery, Document, Endpoint, Environment};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::driver::{Gone, Handle as Driver};
use crate::envoy_pools::EnvoyPools;
use crate::http::admin::Admin;
use crate::metrics::Metrics;
use crate::serve::Birth;
use crate::store::Keeper;

pub use self::owner::spawn;

/// Changes that wait for their turn; who asks for more waits as well.
const ORDERS: usize = 64;

/// What everybody holds to, at one moment. Cheap to clone.
#[derive(Clone, Debug)]
pub struct InForce {
    /// The document as it is shown and changed: every key, flags over it.
    pub document: Arc<Document>,
    /// The same as the program's types, where the endpoints that were found stand beside those that are listed. Another
    /// one whenever anything in it changes.
    pub config: Arc<Config>,
    /// Who may change something.
    pub admin: Arc<Admin>,
    /// Where the document is from: a file's path, `PUT /config` or `PATCH /config`.
    pub source: Arc<str>,
    /// Since when it is in force.
    pub since: Instant,
    /// How often another document came into force.
    pub reloads: u64,
    /// How often the file couldn't.
    pub failures: u64,
    /// Why the file isn't in force as it stands; `None`: it is, or was until somebody changed something by HTTP.
    pub last_error: Option<Arc<str>>,
}

impl InForce {
    /// As /status shows it.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "source": &*self.source,
            "digest": self.document.digest(),
            "loaded_s_ago": self.since.elapsed().as_secs(),
            "reloads": self.reloads,
            "failures": self.failures,
            "last_error": self.last_error.as_deref(),
        })
    }
}

/// How somebody wants the document to be.
#[derive(Clone, Debug)]
pub enum Change {
    /// This text instead of it.
    Put(String),
    /// As it is, but for this merge patch.
    Patch(Value),
}

/// A change that isn't made.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The document isn't the one that the change was meant for.
    #[error("the configuration has changed since: its ETag is \"{0}\" now")]
    Stale(String),
    /// What comes of it isn't allowed.
    #[error("{0}")]
    Invalid(String),
    /// It was to be kept in the file, which can't be written.
    #[error("{}: it can't be written: {why}; nothing was changed", path.display())]
    Unwritable {
        /// Which.
        path: PathBuf,
        /// Why.
        why: std::io::Error,
    },
    /// Nobody decides any more.
    #[error("the companion is shutting down")]
    Ending,
}

impl From<Gone> for Refused {
    fn from(_: Gone) -> Self {
        Self::Ending
    }
}

/// A change and its answer.
struct Asked {
    change: Change,
    /// Digests, one of which must be in force; `None`: any may be.
    only_if: Option<Vec<String>>,
    /// It is written to the file, too.
    persist: bool,
    answer: oneshot::Sender<Result<InForce, Refused>>,
}

enum Order {
    /// The file may have changed.
    Look,
    /// Somebody says that it has.
    Reload,
    Change(Box<Asked>),
    Found {
        pool: Arc<str>,
        by: Discovery,
        endpoints: Vec<Endpoint>,
    },
    End(oneshot::Sender<Keeper>),
}

/// Talks to the task that owns the configuration. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    orders: mpsc::Sender<Order>,
    in_force: watch::Receiver<InForce>,
}

impl Handle {
    /// What is in force.
    #[must_use]
    pub fn in_force(&self) -> InForce {
        self.in_force.borrow().clone()
    }

    /// What is in force, from now on; it also changes with what is told of the last failure.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<InForce> {
        self.in_force.clone()
    }

    /// Reads the file again, as SIGHUP asks for.
    pub async fn reload(&self) {
        // Nobody listens any more when the companion ends, and nothing is to be read then.
        let _ = self.orders.send(Order::Reload).await;
    }

    /// These are a pool's endpoints from now on, as far as this is still what finds them.
    pub async fn found(&self, pool: &str, by: Discovery, endpoints: Vec<Endpoint>) {
        let pool = pool.into();
        // As above.
        let _ = self.orders.send(Order::Found { pool, by, endpoints }).await;
    }

    /// Changes the document, if one of `only_if` is its digest, and writes it to the file first if `persist` says so.
    ///
    /// # Errors
    /// When it isn't changed.
    pub async fn change(
        &self,
        change: Change,
        only_if: Option<Vec<String>>,
        persist: bool,
    ) -> Result<InForce, Refused> {
        let (answer, answered) = oneshot::channel();
        let asked = Box::new(Asked {
            change,
            only_if,
            persist,
            answer,
        });
        let sent = self.orders.send(Order::Change(asked)).await;
        sent.map_err(|_| Refused::Ending)?;
        answered.await.unwrap_or(Err(Refused::Ending))
    }

    /// Nothing changes any more; what keeps the stores is given back.
    pub async fn end(&self) -> Option<Keeper> {
        let (reply, answer) = oneshot::channel();
        self.orders.send(Order::End(reply)).await.ok()?;
        answer.await.ok()
    }
}

/// What the task begins with.
#[derive(Debug)]
pub struct Begin {
    /// The file that was read.
    pub file: PathBuf,
    /// Variables that override the file.
    pub environment: Environment,
    /// Its bytes, when it was.
    pub seen: Vec<u8>,
    /// What it says.
    pub first: Value,
    /// The same with the flags over it.
    pub document: Document,
    /// What flags say instead of the file.
    pub flags: Flags,
    /// Who may change something.
    pub admin: Admin,
    /// What a control is born with, once.
    pub birth: Birth,
    /// Where decisions are made.
    pub driver: Driver,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// The stores, open.
    pub keeper: Keeper,
    /// What Envoy knows of pools and endpoints.
    pub envoy: EnvoyPools,
}

/// What flags say instead of the document: a merge patch.
#[derive(Clone, Debug)]
pub struct Flags(Value);

impl Flags {
    /// Where the companion listens, as far as flags say so, and where Envoy does.
    #[must_use]
    pub fn new(
        grpc: Option<&config::Address>,
        http: Option<&config::Address>,
        gateway: Option<std::net::SocketAddr>,
    ) -> Self {
        let mut listen = serde_json::Map::new();
        let said = [
            ("grpc", grpc.map(ToString::to_string)),
            ("http", http.map(ToString::to_string)),
            ("gateway", gateway.map(|it| it.to_string())),
        ];
        for (key, address) in said {
            if let Some(address) = address {
                listen.insert(key.to_owned(), address.into());
            }
        }
        Self(Value::Object(listen))
    }

    /// The document with the flags over it.
    ///
    /// # Errors
    /// When both don't fit together.
    pub fn over(&self, document: Document) -> Result<Document, config::Error> {
        if self.0.as_object().is_none_or(serde_json::Map::is_empty) {
            return Ok(document);
        }
        document.patched(&json!({ "listen": self.0 }))
    }
}
