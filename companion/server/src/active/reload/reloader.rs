//! The task that owns the active configuration, and the steps by which a document becomes active.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use penstock_config::{ApiKeyTable, Config, Discovered, Document, Environment};
use penstock_control::Event;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::api_keys;
use super::{
    ActiveConfig, COMMANDS, Change, ChangeError, ChangeRequest, Command, FlagOverrides, Handle, Loaded,
    Start, changes,
};
use crate::active::envoy_pools::EnvoyPools;
use crate::base::admin::Admin;
use crate::base::check_failures::CheckFailures;
use crate::base::found::Found;
use crate::base::role::RoleReceiver;
use crate::base::secret_files::SecretFileWatch;
use crate::base::{essential, watched_file};
use crate::checks::{health, model_lists, scrape};
use crate::decisions::control_settings::{self, ProcessIdentity};
use crate::decisions::driver::{Gone, Handle as Driver};
use crate::decisions::usage_forwarding;
use crate::election::Elections;
use crate::metrics::Metrics;
use penstock_stores::{Restored, Stores};

/// The name of a document from an HTTP body in error messages.
const BODY: &str = "body";

/// Starts the task, the health checks and the metrics readers.
pub(crate) async fn spawn(start: Start) -> Handle {
    let Loaded { file, file_bytes, file_document, saved_document, document, config, flags } = start.loaded;
    let (commands, inbox) = mpsc::channel(COMMANDS);
    let active = ActiveConfig {
        config: Arc::new(config),
        source: file.display().to_string().into(),
        document: Arc::new(document),
        admin: Arc::new(start.admin),
        since: Instant::now(),
        reloads: 0,
        failures: 0,
        last_error: None,
    };
    let (sender, receiver) = watch::channel(active);
    watched_file::watch(file.clone(), commands.clone(), || Command::CheckFile);
    let check_failures = CheckFailures::default();
    let mut reloader = Reloader {
        active: sender,
        discovered: BTreeMap::new(),
        file,
        file_bytes: Some(file_bytes),
        file_missing: false,
        file_document,
        saved_document,
        keys: SecretFileWatch::default(),
        failures: Failures::default(),
        flags,
        environment: start.environment,
        identity: start.identity,
        health: health::Checks::new(start.driver.clone(), check_failures.clone(), start.metrics.clone()),
        model_lists: model_lists::Lists::new(start.driver.clone()),
        readers: scrape::Readers::new(start.driver.clone(), start.metrics.clone(), check_failures.clone()),
        driver: start.driver,
        metrics: start.metrics,
        stores: start.stores,
        envoy: start.envoy,
        elections: start.elections,
        roles: start.roles,
    };
    let config = receiver.borrow().config.clone();
    reloader.update_followers(&config).await;
    // Until discovery has answered, the pools have the endpoints that Envoy has.
    let remembered = reloader.envoy.remembered(&config);
    reloader.set_discovered(remembered).await;
    essential::spawn("the configuration", reloader.run(inbox));
    Handle { commands, active: receiver, check_failures }
}

/// The state of the task.
struct Reloader {
    active: watch::Sender<ActiveConfig>,
    /// Servers found by discovery, by pool.
    discovered: BTreeMap<Arc<str>, Discovered>,
    file: PathBuf,
    /// The file's bytes when it was last read; `None`: it couldn't be read.
    file_bytes: Option<Vec<u8>>,
    /// The file didn't exist when it was last read.
    file_missing: bool,
    /// The file's document at the start, without flags.
    file_document: Value,
    /// The file's document at the start, without flags and variables.
    saved_document: Value,
    /// The file of the API keys.
    keys: SecretFileWatch,
    failures: Failures,
    flags: FlagOverrides,
    /// Variables that override the file.
    environment: Environment,
    identity: ProcessIdentity,
    driver: Driver,
    metrics: Arc<Metrics>,
    stores: Stores,
    envoy: EnvoyPools,
    elections: Elections,
    roles: RoleReceiver,
    health: health::Checks,
    model_lists: model_lists::Lists,
    readers: scrape::Readers,
}

/// Why the present content of each file is not active; `None`: it is.
#[derive(Default)]
struct Failures {
    document: Option<Arc<str>>,
    keys: Option<Arc<str>>,
}

impl Failures {
    /// The message that `status` shows.
    fn shown(&self) -> Option<Arc<str>> {
        self.document.as_ref().or(self.keys.as_ref()).cloned()
    }
}

/// Where a document comes from.
enum Origin {
    /// The configuration file.
    File,
    /// A request like `PATCH /config`, which may ask for the document to be written to the file.
    Http { request: &'static str, persist: bool },
}

/// The result of reading the file.
enum FileState {
    Unchanged,
    Missing,
    Unreadable(io::Error),
    Read(Vec<u8>, Box<Result<Document, String>>),
}

impl Reloader {
    async fn run(mut self, mut inbox: mpsc::Receiver<Command>) {
        loop {
            let command = tokio::select! {
                command = inbox.recv() => command,
                () = self.keys.changed() => {
                    self.load_keys().await;
                    continue;
                }
            };
            let Some(command) = command else { return };
            match command {
                Command::CheckFile => self.load_file(false).await,
                Command::Reload => self.load_file(true).await,
                Command::Change(request) => {
                    let ChangeRequest { change, only_if, persist, reply } = *request;
                    let result = self.change(change, only_if, persist).await;
                    if let Err(why) = &result {
                        tracing::info!(%why, "configuration change by HTTP rejected");
                    }
                    // Sending fails when the HTTP client has closed its connection.
                    let _ = reply.send(result);
                }
                Command::SetDiscovered(found, done) => {
                    self.envoy.note_found(found.iter().map(|found| &*found.pool));
                    self.set_discovered(found).await;
                    // Sending fails when the sender no longer waits.
                    let _ = done.send(());
                }
                Command::Stop(reply) => {
                    // When the receiver is gone, dropping the stores ends their tasks.
                    let _ = reply.send(self.stores);
                    return;
                }
            }
        }
    }

    /// Reads the file and makes its document active. Unless `force`, an unchanged file does nothing.
    async fn load_file(&mut self, force: bool) {
        let Some(state) = self.read_file(force).await else {
            return;
        };
        let was_missing = std::mem::replace(&mut self.file_missing, matches!(state, FileState::Missing));
        let document = match state {
            FileState::Unchanged => return,
            FileState::Missing if was_missing => return,
            FileState::Missing => {
                tracing::warn!(
                    file = %self.file.display(),
                    "configuration file not found: its last content stays active"
                );
                return;
            }
            FileState::Unreadable(error) => {
                self.file_bytes = None;
                Err(format!("{}: {error}", self.file.display()))
            }
            FileState::Read(bytes, document) => {
                self.file_bytes = Some(bytes);
                *document
            }
        };
        let source = self.file.display().to_string();
        let result = match document {
            Ok(document) => self.replace(document, Origin::File).await,
            Err(why) => Err(ChangeError::Invalid(why)),
        };
        match result {
            Ok(()) | Err(ChangeError::ShuttingDown) => {}
            Err(why) => {
                let why = why.to_string();
                let why: Arc<str> =
                    if why.starts_with(&source) { why.into() } else { format!("{source}: {why}").into() };
                if self.failures.document.replace(why.clone()).as_ref() != Some(&why) {
                    tracing::error!("configuration not reloaded, the previous one stays active: {why}");
                }
                self.record_failure();
            }
        }
    }

    /// Reads the file of the API keys and makes its keys active. Unchanged keys do nothing.
    async fn load_keys(&mut self) {
        let now = self.active.borrow().clone();
        let config = Config::clone(&now.config);
        // Fails when the runtime shuts down.
        let Ok(read) = tokio::task::spawn_blocking(move || config.read_secrets()).await else {
            return;
        };
        match read {
            Ok(config) => {
                self.failures.keys = None;
                if has_same_secrets(&config, &now.config) {
                    self.active.send_modify(|active| active.last_error = self.failures.shown());
                } else if self.replace_keys(&now, config).await.is_err() {
                    return;
                }
                // Without valid keys, a new document could not become active either.
                if self.failures.document.is_some() {
                    self.load_file(true).await;
                }
            }
            Err(why) => {
                let why: Arc<str> = why.to_string().into();
                if self.failures.keys.replace(why.clone()).as_ref() != Some(&why) {
                    tracing::error!(
                        "API keys or credentials not reloaded, the previous ones stay active: {why}"
                    );
                }
                self.record_failure();
            }
        }
    }

    /// Makes a configuration active that differs from the active one in its secrets alone.
    async fn replace_keys(&mut self, now: &ActiveConfig, config: Config) -> Result<(), Gone> {
        self.envoy.admit(&config).await;
        self.apply_settings(&config, Restored::default()).await?;
        if key_table(&config) != key_table(&now.config) {
            log_keys(&now.config, &config);
        }
        api_keys::log_upstreams(&now.config, &config);
        let config = Arc::new(config);
        self.active.send_modify(|active| {
            active.config = config.clone();
            active.reloads += 1;
            active.last_error = self.failures.shown();
        });
        self.update_followers(&config).await;
        Ok(())
    }

    /// `None`: the runtime is shutting down.
    async fn read_file(&self, force: bool) -> Option<FileState> {
        let (path, environment) = (self.file.clone(), self.environment.clone());
        let before = self.file_bytes.clone().filter(|_| !force);
        let read = tokio::task::spawn_blocking(move || match std::fs::read(&path) {
            Ok(bytes) if before.is_some_and(|before| before == bytes) => FileState::Unchanged,
            Ok(bytes) => FileState::Read(
                bytes,
                Box::new(Document::read(&path, &environment).map_err(|error| error.to_string())),
            ),
            Err(error) if !force && error.kind() == io::ErrorKind::NotFound => FileState::Missing,
            Err(error) => FileState::Unreadable(error),
        });
        read.await.ok()
    }

    /// Counts a file that can't become active.
    fn record_failure(&self) {
        self.metrics.reload_failures.inc();
        self.active.send_modify(|active| {
            active.failures += 1;
            active.last_error = self.failures.shown();
        });
    }

    async fn change(
        &mut self,
        change: Change,
        only_if: Option<Vec<String>>,
        persist: bool,
    ) -> Result<ActiveConfig, ChangeError> {
        let now = self.active.borrow().document.clone();
        if only_if.is_some_and(|digests| digests.iter().all(|digest| digest != now.digest())) {
            return Err(ChangeError::Stale(now.digest().to_owned()));
        }
        let (document, request) = match change {
            Change::Put(text) => (changes::put(&now, &text, BODY), "PUT /config"),
            Change::Patch(patch) => (now.patched(&patch), "PATCH /config"),
        };
        let document = document.map_err(|error| ChangeError::Invalid(error.to_string()))?;
        if let Some(roles) = &self.roles {
            let roles = roles.borrow().clone();
            changes::check_leads(document.json(), now.json(), &roles)?;
        }
        self.replace(document, Origin::Http { request, persist }).await?;
        Ok(self.active.borrow().clone())
    }

    /// Makes a document active; one to be persisted is written to the file first. On an error nothing has changed.
    async fn replace(&mut self, document: Document, origin: Origin) -> Result<(), ChangeError> {
        let now = self.active.borrow().clone();
        changes::check_fixed_keys(document.json(), now.document.json(), &self.file_document)
            .map_err(ChangeError::Invalid)?;
        let document = self.flags.apply(document).map_err(|error| ChangeError::Invalid(error.to_string()))?;
        let config = self.with_discovered(&document);
        let read = tokio::task::spawn_blocking(move || config.read_secrets()).await;
        let config = read.map_err(|_| ChangeError::ShuttingDown)?;
        let config = config.map_err(|error| ChangeError::Invalid(error.to_string()))?;
        let admin = Admin::new(&config.admin).map_err(|error| ChangeError::Invalid(error.to_string()))?;
        let restored = self.open_stores(&config).await?;
        if matches!(origin, Origin::Http { persist: true, .. })
            && let Err(why) = self.persist(&document).await
        {
            // The stores of the new document are open by now. They close again, so that a later change restores their state.
            let _ = self.stores.open(&now.config).await;
            return Err(why);
        }
        let source: Arc<str> = match origin {
            Origin::Http { request, persist: false } => request.into(),
            Origin::File | Origin::Http { persist: true, .. } => {
                // The content of both files becomes active.
                self.failures = Failures::default();
                self.file.display().to_string().into()
            }
        };
        let has_same_keys = key_table(&config) == key_table(&now.config);
        if document.digest() == now.document.digest() && has_same_secrets(&config, &now.config) {
            self.active.send_modify(|active| {
                active.admin = Arc::new(admin);
                active.source = source.clone();
                active.last_error = self.failures.shown();
            });
            tracing::info!(source = &*source, "configuration read: nothing has changed");
            return Ok(());
        }
        changes::log(&source, now.document.json(), document.json());
        if !has_same_keys {
            log_keys(&now.config, &config);
        }
        changes::warn_about_envoy(&now.config, &config);
        self.forget_undiscovered(&config);
        // Envoy must know an endpoint before a request can be granted to it.
        self.envoy.admit(&config).await;
        self.apply_settings(&config, restored).await?;
        let config = Arc::new(config);
        self.active.send_modify(|active| {
            active.document = Arc::new(document);
            active.config = config.clone();
            active.admin = Arc::new(admin);
            active.source = source;
            active.since = Instant::now();
            active.reloads += 1;
            active.last_error = self.failures.shown();
        });
        if let Err(why) = self.elections.configure(&config) {
            tracing::error!("a new pool has no leader: {why}");
        }
        self.update_followers(&config).await;
        // Closed stores finish writing on their own.
        let _ = self.stores.close_unused();
        Ok(())
    }

    /// Drops the discovered servers of pools that no longer have discovery.
    fn forget_undiscovered(&mut self, config: &Config) {
        self.discovered.retain(|name, _| {
            config.pools.iter().any(|pool| *pool.name == **name && pool.discovery.is_some())
        });
    }

    /// The document's configuration with the discovered endpoints after the configured ones, and the servers that aren't
    /// ready.
    fn with_discovered(&self, document: &Document) -> Config {
        let mut config = document.config().clone();
        for pool in config.pools.iter_mut().filter(|pool| pool.discovery.is_some()) {
            if let Some(discovered) = self.discovered.get(&*pool.name) {
                pool.add_discovered(discovered);
            }
        }
        config
    }

    /// Applies the configuration to the observer and the control, and sends the restored state.
    async fn apply_settings(&self, config: &Config, mut restored: Restored) -> Result<(), Gone> {
        let settings = control_settings::with_models(config, &self.identity, &mut restored.models);
        self.driver.configure_observer(config.metric_flows, self.stores.recorders()).await?;
        self.driver.send(Event::Settings(Box::new(settings))).await?;
        usage_forwarding::send_restored(restored, &self.driver).await
    }

    /// Updates the metrics, the health checks, the readers of metrics and of lists of models, and the watch on files with secrets.
    async fn update_followers(&mut self, config: &Config) {
        self.keys.follow(config);
        self.metrics.follow(config);
        self.health.follow(config).await;
        self.readers.follow(config).await;
        self.model_lists.follow(config).await;
    }

    async fn set_discovered(&mut self, found: Vec<Found>) {
        let now = self.active.borrow().clone();
        let mut is_current = false;
        for Found { pool: name, discovery, discovered } in found {
            let pool = now.config.pools.iter().find(|pool| *pool.name == *name);
            if pool.is_some_and(|pool| pool.discovery.as_ref() == Some(&discovery)) {
                self.discovered.insert(name, discovered);
                is_current = true;
            }
        }
        if !is_current {
            return;
        }
        let mut config = self.with_discovered(&now.document);
        config.copy_secrets(&now.config);
        let config = Arc::new(config);
        self.envoy.admit(&config).await;
        // All settings, not only this pool's endpoints: the policy carries the endpoints for filters that continue
        // without a companion.
        if self.apply_settings(&config, Restored::default()).await.is_err() {
            return;
        }
        self.active.send_modify(|active| active.config = config.clone());
        self.update_followers(&config).await;
    }

    /// Opens the stores that the configuration names and that aren't open, and restores the state of their pools.
    async fn open_stores(&mut self, config: &Config) -> Result<Restored, ChangeError> {
        if self.stores.matches(config) {
            return Ok(Restored::default());
        }
        let opened = self.stores.open(config).await;
        opened.map_err(|error| ChangeError::Invalid(error.to_string()))
    }

    /// Writes the document to the file. Keys that can't change keep the file's values, without variables and flags: those may
    /// belong to this companion alone.
    async fn persist(&mut self, document: &Document) -> Result<(), ChangeError> {
        let unwritable = |why| ChangeError::Unwritable { path: self.file.clone(), why };
        let text = changes::without_flags(document, &self.saved_document)
            .map_err(|why| unwritable(io::Error::other(why)))?;
        let (path, bytes) = (self.file.clone(), text.clone().into_bytes());
        let written = tokio::task::spawn_blocking(move || watched_file::replace(&path, &bytes));
        let written = written.await.map_err(|_| ChangeError::ShuttingDown)?;
        written.map_err(unwritable)?;
        self.file_bytes = Some(text.into_bytes());
        Ok(())
    }
}

/// The API keys, and the credentials and certificates for model servers, are the same. So are the pools.
fn has_same_secrets(one: &Config, other: &Config) -> bool {
    let upstreams = |config: &Config| -> Vec<_> {
        let pools = config.pools.iter();
        pools.map(|pool| (pool.upstream.clone(), pool.scrape.clone().and_then(|scrape| scrape.tls))).collect()
    };
    key_table(one) == key_table(other) && upstreams(one) == upstreams(other)
}

/// The API keys of a configuration; none without `identity.api_keys`.
fn key_table(config: &Config) -> ApiKeyTable {
    let keys = config.identity.api_keys.as_ref();
    keys.map(|keys| keys.table.clone()).unwrap_or_default()
}

fn log_keys(before: &Config, after: &Config) {
    if let Some(keys) = &after.identity.api_keys {
        api_keys::log(&keys.file, &key_table(before), &keys.table);
    }
}
