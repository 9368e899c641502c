//! The active configuration: one task owns it, makes every change, and updates everything that depends on it.
//!
//! A change comes from the file, SIGHUP, `PUT /config`, `PATCH /config`, or discovery. Each change makes a whole new
//! document, which is validated first. An invalid document, or a change of a key that can't change at run time, leaves
//! everything as it was. The file of `identity.api_keys` is read with each document, and when it changes. All other code reads
//! the [`ActiveConfig`].

mod api_keys;
mod changes;
mod reloader;

use std::path::PathBuf;
use std::sync::Arc;

use penstock_config::{self as config, Config, Document, Environment};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

pub(crate) use self::reloader::spawn;
use crate::active::envoy_pools::EnvoyPools;
use crate::base::admin::Admin;
use crate::base::check_failures::CheckFailures;
use crate::base::found::Found;
use crate::base::role::RoleReceiver;
use crate::decisions::control_settings::ProcessIdentity;
use crate::decisions::driver::{Gone, Handle as Driver};
use crate::election::Elections;
use crate::metrics::Metrics;
use penstock_stores::Stores;

/// Commands that wait for the task; senders beyond the limit wait as well.
const COMMANDS: usize = 64;

/// The configuration at one moment. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct ActiveConfig {
    /// The document that is shown and changed: every key, with the flags applied.
    pub(crate) document: Arc<Document>,
    /// The document as types, with discovered servers beside the configured ones, and with the API keys of their file. Replaced
    /// whenever anything in it changes.
    pub(crate) config: Arc<Config>,
    /// Who may change the configuration.
    pub(crate) admin: Arc<Admin>,
    /// The document's origin: the file's path, `PUT /config` or `PATCH /config`.
    pub(crate) source: Arc<str>,
    /// When the document became active.
    pub(crate) since: Instant,
    /// How many documents, or files of API keys, became active after the first.
    pub(crate) reloads: u64,
    /// How often the file, or that of the API keys, could not become active.
    pub(crate) failures: u64,
    /// Why the present content of the file, or else of that of the API keys, is not active. `None`: it is active, or was until
    /// a change by HTTP.
    pub(crate) last_error: Option<Arc<str>>,
}

impl ActiveConfig {
    /// The `config` object of `/status`.
    #[must_use]
    pub(crate) fn json(&self) -> Value {
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

/// A requested change of the document.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Replaces the document by this text.
    Put(String),
    /// Applies this merge patch.
    Patch(Value),
}

/// Why a change was rejected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeError {
    /// The active document isn't the one for which the change was made.
    #[error("the configuration has changed since; its ETag is now \"{0}\"")]
    Stale(String),
    /// The resulting document is invalid.
    #[error("{0}")]
    Invalid(String),
    /// Another companion leads a pool that the change concerns.
    #[error("pools[{pool}]: this companion doesn't lead the pool, so its configuration doesn't count there")]
    OtherLeader {
        /// The pool's name.
        pool: String,
        /// Where its leader listens for filters; `None`: unknown.
        leader: Option<String>,
    },
    /// The change was to be saved in the file, which can't be written.
    #[error("{} can't be written: {why}; nothing was changed", path.display())]
    Unwritable {
        /// The configuration file.
        path: PathBuf,
        /// The error of the operating system.
        why: std::io::Error,
    },
    /// The task has ended.
    #[error("the companion is shutting down")]
    ShuttingDown,
}

impl From<Gone> for ChangeError {
    fn from(_: Gone) -> Self {
        Self::ShuttingDown
    }
}

/// A change with the conditions under which it is made.
struct ChangeRequest {
    change: Change,
    /// Digests, one of which must be that of the active document. `None`: no condition.
    only_if: Option<Vec<String>>,
    /// The document is saved in the file, too.
    persist: bool,
    reply: oneshot::Sender<Result<ActiveConfig, ChangeError>>,
}

/// A command to the task.
enum Command {
    /// Reads the file and reloads it if its bytes differ from the last ones.
    CheckFile,
    /// Reads and reloads the file in any case.
    Reload,
    Change(Box<ChangeRequest>),
    /// Discovery found these servers. The reply follows when they are endpoints.
    SetDiscovered(Vec<Found>, oneshot::Sender<()>),
    Stop(oneshot::Sender<Stores>),
}

/// Sends commands to the task and reads the active configuration. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    commands: mpsc::Sender<Command>,
    active: watch::Receiver<ActiveConfig>,
    check_failures: CheckFailures,
}

impl Handle {
    /// Why checks of endpoints fail.
    #[must_use]
    pub(crate) const fn check_failures(&self) -> &CheckFailures {
        &self.check_failures
    }

    /// The configuration as it is now.
    #[must_use]
    pub(crate) fn active(&self) -> ActiveConfig {
        self.active.borrow().clone()
    }

    /// Follows the active configuration, including its `last_error`.
    #[must_use]
    pub(crate) fn watch(&self) -> watch::Receiver<ActiveConfig> {
        self.active.clone()
    }

    /// Reloads the file, as SIGHUP requests.
    pub(crate) async fn reload(&self) {
        // Sending fails during shutdown, when there is nothing left to reload.
        let _ = self.commands.send(Command::Reload).await;
    }

    /// Sets the discovered servers of pools that are still configured to be discovered in this way. Returns when they are
    /// endpoints.
    pub(crate) async fn set_discovered(&self, found: Vec<Found>) {
        let (done, applied) = oneshot::channel();
        // Sending fails during shutdown, when endpoints no longer matter.
        if self.commands.send(Command::SetDiscovered(found, done)).await.is_ok() {
            let _ = applied.await;
        }
    }

    /// Changes the document, if the digest of the active one is among `only_if`. With `persist`, the file is written
    /// first.
    ///
    /// # Errors
    /// When the document isn't changed.
    pub(crate) async fn change(
        &self,
        change: Change,
        only_if: Option<Vec<String>>,
        persist: bool,
    ) -> Result<ActiveConfig, ChangeError> {
        let (reply, answer) = oneshot::channel();
        let request = Box::new(ChangeRequest { change, only_if, persist, reply });
        let sent = self.commands.send(Command::Change(request)).await;
        sent.map_err(|_| ChangeError::ShuttingDown)?;
        answer.await.unwrap_or(Err(ChangeError::ShuttingDown))
    }

    /// Ends the task, so that nothing changes any more, and returns the open stores.
    pub(crate) async fn stop(&self) -> Option<Stores> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Stop(reply)).await.ok()?;
        answer.await.ok()
    }
}

/// The configuration as it was read at the start.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The configuration file.
    pub(crate) file: PathBuf,
    /// The file's bytes when it was read.
    pub(crate) file_bytes: Vec<u8>,
    /// The file's document with variables, and without flags.
    pub(crate) file_document: Value,
    /// The values that keys have when the document is saved, if they can't change at run time: those of the file without
    /// variables and flags. The file's document, if the file is invalid without the variables.
    pub(crate) saved_document: Value,
    /// The file's document with flags.
    pub(crate) document: Document,
    /// The document as types, with the API keys of their file.
    pub(crate) config: Config,
    /// The flags that replace keys of the document.
    pub(crate) flags: FlagOverrides,
}

/// The initial state of the task.
#[derive(Debug)]
pub(crate) struct Start {
    /// The configuration.
    pub(crate) loaded: Loaded,
    /// Who may change the configuration.
    pub(crate) admin: Admin,
    /// Variables that override the file.
    pub(crate) environment: Environment,
    pub(crate) identity: ProcessIdentity,
    /// The decision task.
    pub(crate) driver: Driver,
    /// The exported metrics.
    pub(crate) metrics: Arc<Metrics>,
    /// The open stores.
    pub(crate) stores: Stores,
    /// The pools and endpoints that Envoy has.
    pub(crate) envoy: EnvoyPools,
    /// The elections of leaders, one for each pool if each has a leader.
    pub(crate) elections: Elections,
    /// The roles of this companion.
    pub(crate) roles: RoleReceiver,
}

/// Keys of `listen` that flags of the command line replace.
#[derive(Clone, Debug)]
pub(crate) struct FlagOverrides(Value);

impl FlagOverrides {
    /// The addresses of the companion and of Envoy's listener, as far as flags give them.
    #[must_use]
    pub(crate) fn new(
        grpc: Option<&config::Address>,
        http: Option<&config::Address>,
        gateway: Option<std::net::SocketAddr>,
    ) -> Self {
        let mut listen = serde_json::Map::new();
        let addresses = [
            ("grpc", grpc.map(ToString::to_string)),
            ("http", http.map(ToString::to_string)),
            ("gateway", gateway.map(|address| address.to_string())),
        ];
        for (key, address) in addresses {
            if let Some(address) = address {
                listen.insert(key.to_owned(), address.into());
            }
        }
        Self(Value::Object(listen))
    }

    /// The document with the flags applied.
    ///
    /// # Errors
    /// When the document is invalid with the flags.
    pub(crate) fn apply(&self, document: Document) -> Result<Document, config::Error> {
        if self.0.as_object().is_none_or(serde_json::Map::is_empty) {
            return Ok(document);
        }
        document.patched(&json!({ "listen": self.0 }))
    }
}
