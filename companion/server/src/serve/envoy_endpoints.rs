//! `penstock envoy-endpoints`: keeps the folder of one Envoy up to date where the companion runs elsewhere, for example in
//! another pod.
//!
//! It discovers endpoints in the same way as the companion and decides nothing. Envoy may learn of an endpoint after the
//! companion: a request that is granted to it meanwhile returns to its place in the queue.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use clap::Args as ClapArgs;
use penstock_config::{Address, Config, Discovered, Environment};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};

use crate::active::envoy_pools::EnvoyPools;
use crate::base::found::Found;
use crate::base::listener::Listener;
use crate::base::secret_files::SecretFileWatch;
use crate::base::{essential, watched_file};
use crate::discovery::{Finders, NewestLists, States};
use crate::metrics::Metrics;
use crate::serve::Error;

/// The name of the task that serves HTTP.
const HTTP: &str = "HTTP";

/// Flags of `penstock envoy-endpoints`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Args {
    /// The configuration file, the same as the companion's
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The folder of `penstock envoy-config --envoy`, which Envoy watches
    #[arg(long, value_name = "DIR")]
    pub envoy: PathBuf,
    /// Serve /livez, /readyz and /metrics on this address
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9192")]
    pub http: Address,
}

/// Keeps the folder up to date until SIGTERM or SIGINT. Follows the configuration file; SIGHUP reads it again.
///
/// # Errors
/// When it can't start, the HTTP server fails, or an essential task panics.
pub async fn run(args: Args, environment: Environment) -> Result<(), Error> {
    // Before the configuration: a change between the two reads is noticed later.
    let file_bytes = std::fs::read(&args.config).unwrap_or_default();
    let config = Config::read(&args.config, &environment)?.read_upstream_files()?;
    let metrics = Arc::new(Metrics::new()?);
    let mut signals = Signals::new().map_err(Error::Signal)?;
    let listener = Listener::open(&args.http, "--http")?;
    let states = States::new(&config, metrics.clone());
    let (sender, lists) = NewestLists::new();
    let admin = Some(config.listen.envoy_admin).filter(|address| address.port() != 0);
    let envoy = EnvoyPools::open(Some(&args.envoy), admin, &config, None)
        .map_err(|why| Error::Envoy { folder: args.envoy.clone(), why })?;
    let mut endpoints = EnvoyEndpoints {
        file: args.config,
        file_bytes,
        environment,
        config,
        finders: Finders::new(sender, states.clone()),
        states: states.clone(),
        discovered: BTreeMap::new(),
        envoy,
        metrics: metrics.clone(),
        last_error: None,
    };
    tracing::info!(http = %args.http, folder = %args.envoy.display(), "updating Envoy's endpoints");
    let (ending, ended) = watch::channel(());
    let serving = serve_http(listener, Page { states, metrics }, ended);
    let mut http = essential::spawn(HTTP, serving);
    tokio::select! {
        () = endpoints.follow(lists, &mut signals) => {}
        task = essential::failed() => return Err(Error::Defect(task)),
        served = &mut http => return match served {
            Ok(Err(error)) => Err(Error::Http(error)),
            Ok(Ok(())) => Err(Error::EndedEarly(HTTP)),
            Err(_) => Err(Error::Defect(HTTP)),
        },
    }
    drop(ending);
    // A connection that stays open doesn't keep the process.
    http.abort();
    Ok(())
}

/// The signals that this command handles.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }
}

/// The folder, its configuration and the discovered endpoints.
struct EnvoyEndpoints {
    file: PathBuf,
    /// The file's bytes when it was last read.
    file_bytes: Vec<u8>,
    environment: Environment,
    /// The configuration of the file, without discovered endpoints.
    config: Config,
    finders: Finders,
    states: States,
    /// By pool.
    discovered: BTreeMap<Arc<str>, Discovered>,
    envoy: EnvoyPools,
    metrics: Arc<Metrics>,
    /// Why the file's present content isn't used.
    last_error: Option<String>,
}

impl EnvoyEndpoints {
    /// Returns at SIGTERM or SIGINT.
    async fn follow(&mut self, mut lists: NewestLists, signals: &mut Signals) {
        let (sender, mut file_changes) = mpsc::channel(1);
        watched_file::watch(self.file.clone(), sender, || ());
        let mut secrets = SecretFileWatch::default();
        self.finders.follow(&self.config);
        loop {
            secrets.follow(&self.config);
            tokio::select! {
                () = secrets.changed() => self.reload(true).await,
                newest = lists.next() => self.apply(newest).await,
                Some(()) = file_changes.recv() => self.reload(false).await,
                _ = signals.hang_up.recv() => self.reload(true).await,
                _ = signals.terminate.recv() => return,
                _ = signals.interrupt.recv() => return,
            }
        }
    }

    async fn apply(&mut self, newest: Vec<Found>) {
        let pools: Vec<Arc<str>> = newest.iter().map(|found| found.pool.clone()).collect();
        self.envoy.note_found(pools.iter().map(|pool| &**pool));
        for found in newest {
            let is_current = (self.config.pools.iter())
                .any(|pool| *pool.name == *found.pool && pool.discovery.as_ref() == Some(&found.discovery));
            if is_current {
                self.discovered.insert(found.pool, found.discovered);
            }
        }
        self.write().await;
        self.states.are_applied(pools.iter());
    }

    /// Writes the folder, and returns when Envoy has applied it or should have by now.
    async fn write(&mut self) {
        let mut config = self.config.clone();
        for pool in config.pools.iter_mut().filter(|pool| pool.discovery.is_some()) {
            if let Some(discovered) = self.discovered.get(&*pool.name) {
                pool.add_discovered(discovered);
            }
        }
        self.envoy.admit(&config).await;
    }

    /// Reads the file. A file that is missing, unchanged (unless `force`) or invalid changes nothing.
    async fn reload(&mut self, force: bool) {
        let (file, environment) = (self.file.clone(), self.environment.clone());
        let read = tokio::task::spawn_blocking(move || {
            let bytes = std::fs::read(&file).unwrap_or_default();
            (bytes, Config::read(&file, &environment).and_then(Config::read_upstream_files))
        });
        // It fails when the runtime shuts down.
        let Ok((bytes, config)) = read.await else { return };
        if bytes == self.file_bytes && !force {
            return;
        }
        self.file_bytes = bytes;
        match config {
            Ok(config) => {
                self.last_error = None;
                self.config = config;
                (self.discovered).retain(|name, _| {
                    let mut pools = self.config.pools.iter();
                    pools.any(|pool| *pool.name == **name && pool.discovery.is_some())
                });
                self.finders.follow(&self.config);
                self.write().await;
                tracing::info!(file = %self.file.display(), "configuration reloaded");
            }
            Err(why) => {
                self.metrics.reload_failures.inc();
                let why = why.to_string();
                if self.last_error.as_ref() != Some(&why) {
                    tracing::error!("configuration not reloaded, the previous one stays active: {why}");
                }
                self.last_error = Some(why);
            }
        }
    }
}

/// The state of the HTTP server.
#[derive(Clone)]
struct Page {
    states: States,
    metrics: Arc<Metrics>,
}

async fn serve_http(listener: Listener, page: Page, ended: watch::Receiver<()>) -> std::io::Result<()> {
    let router = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(page);
    let shutdown = async move {
        let mut ended = ended;
        // Fails when the sender is dropped, which is the end.
        let _ = ended.changed().await;
    };
    match listener {
        Listener::Tcp(listener) => {
            let server = axum::serve(listener, router);
            server.with_graceful_shutdown(shutdown).await
        }
        Listener::Unix(listener, _path) => {
            let server = axum::serve(listener, router);
            server.with_graceful_shutdown(shutdown).await
        }
    }
}

/// Handles `GET /readyz`: the folder has an answer of each pool's discovery.
async fn ready(State(page): State<Page>) -> Response {
    match page.states.unanswered() {
        None => "ready\n".into_response(),
        Some((pool, why)) => {
            let text = format!("not ready: the discovery of pool `{pool}` has found no list yet: {why}\n");
            (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
        }
    }
}

async fn metrics(State(page): State<Page>) -> Response {
    match page.metrics.render_discovery() {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(why) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n")).into_response(),
    }
}
