//! `penstock serve`: the companion alone, from its configuration to its last answer.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args as ClapArgs;
use penstock_config::{self as config, Address, Config, Document, Environment, Pool, Queued};
use penstock_control::{EndpointSettings, Event, PoolSettings, Settings};
use penstock_data_plane::policy;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::clock::{self, Clock};
use crate::data_path::DataPath;
use crate::discovery;
use crate::driver::{self, Handle};
use crate::envoy_pools::EnvoyPools;
use crate::http::admin::Admin;
use crate::listener::{self, Listener};
use crate::metrics::Metrics;
use crate::observe::Observer;
use crate::store::Keeper;
use crate::{grpc, http, reload, store, tls, trace};

/// Peers that don't read keep the process no longer than this.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// How far a companion's life has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It takes requests.
    Serving,
    /// It was told to end: what runs may finish.
    Draining,
    /// Streams are closed behind what was said on them.
    Ending,
}

/// Flags of `penstock serve`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Args {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Where gRPC is served, instead of listen.grpc.
    #[arg(long, value_name = "ADDR")]
    pub grpc: Option<Address>,
    /// Where HTTP is served, instead of listen.http.
    #[arg(long, value_name = "ADDR")]
    pub http: Option<Address>,
    /// The folder that `penstock envoy-config --envoy` was given: pools and endpoints are kept true there, and Envoy
    /// follows without a restart.
    #[arg(long, value_name = "DIR")]
    pub envoy: Option<PathBuf>,
    /// Envoy's admin interface, which says what it has applied of that folder. Set by `penstock up`.
    #[arg(long, hide = true, value_name = "ADDR")]
    pub envoy_admin: Option<SocketAddr>,
    /// Sessions of Envoy without which /readyz is 503: each listener's, on its workers and its main thread. Set by
    /// `penstock up`.
    #[arg(long, hide = true, value_name = "N")]
    pub expect_sessions: Option<usize>,
    /// Envoy's listener, without which /readyz is 503. Set by `penstock up`.
    #[arg(long, hide = true, value_name = "ADDR")]
    pub envoy_gateway: Option<SocketAddr>,
}

/// Why the companion couldn't start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration can't be used.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// An address of a flag would be reached by others.
    #[error(transparent)]
    Bind(#[from] config::BindError),
    /// The certificates can't be used.
    #[error(transparent)]
    Tls(#[from] tls::Error),
    /// The admin token can't be used.
    #[error(transparent)]
    Admin(#[from] http::admin::Error),
    /// An address can't be listened on.
    #[error(transparent)]
    Listen(#[from] listener::Error),
    /// What is kept across restarts can't be.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The metrics clash: a defect.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// No HTTP client for health checks and metrics.
    #[error("health checks and metrics of servers: {0}")]
    Health(#[from] reqwest::Error),
    /// The folder of `--envoy` can't be written.
    #[error("--envoy {}: {why}", folder.display())]
    Envoy {
        /// Which.
        folder: PathBuf,
        /// Why.
        why: std::io::Error,
    },
    /// The thread that decides can't start.
    #[error("a thread for decisions: {0}")]
    Thread(#[source] std::io::Error),
    /// A signal can't be waited for.
    #[error("signals: {0}")]
    Signal(#[source] std::io::Error),
    /// gRPC failed.
    #[error("gRPC: {0}")]
    Grpc(#[from] tonic::transport::Error),
    /// HTTP failed.
    #[error("HTTP: {0}")]
    Http(#[source] std::io::Error),
}

impl Error {
    /// 2: bad usage or configuration, 1: failed at run time.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Bind(_) | Self::Tls(_) | Self::Admin(_) => 2,
            Self::Listen(_)
            | Self::Store(_)
            | Self::Metrics(_)
            | Self::Health(_)
            | Self::Envoy { .. }
            | Self::Thread(_)
            | Self::Signal(_)
            | Self::Grpc(_)
            | Self::Http(_) => 1,
        }
    }
}

/// Serves until SIGTERM or SIGINT.
///
/// SIGTERM refuses what is new, answers what waits and lets what runs finish; or, as `shutdown.queued` says, leaves all
/// of it to the next companion. SIGINT always refuses: who ends a companion by hand has no other one ready. `penstock up`
/// ends its companion so, for its Envoy ends too.
///
/// # Errors
/// When it can't start, or a listener fails.
pub async fn run(args: Args, environment: Environment) -> Result<(), Error> {
    // Before the document: what changes in between is seen to have changed.
    let seen = std::fs::read(&args.config).unwrap_or_default();
    let read = Document::read(&args.config, &environment)?;
    let first = read.json().clone();
    if let Some(grpc) = &args.grpc {
        read.config().check_grpc_address(grpc)?;
    }
    let flags = reload::Flags::new(args.grpc.as_ref(), args.http.as_ref(), args.envoy_gateway);
    let document = flags.over(read)?;
    let config = document.config();
    let tls = config.tls.as_ref().map(tls::server).transpose()?;
    let admin = Admin::new(&config.admin)?;
    let data_path = DataPath::start().map_err(Error::Thread)?;
    let grpc = data_path.within(|| Listener::open(&config.listen.grpc, "listen.grpc"))?;
    let http = Listener::open(&config.listen.http, "listen.http")?;
    let mut signals = Signals::new().map_err(Error::Signal)?;

    let clock = Clock::start();
    let metrics = Arc::new(Metrics::new()?);
    metrics.follow(config);
    let mut keeper = Keeper::shown_in(metrics.clone());
    let mut kept = keeper.open(config).await?;
    let (life, lives) = watch::channel(Life::Serving);
    let (tracer, spans) = match trace::spawn(&metrics, ending(lives.clone())) {
        Ok(started) => started.unzip(),
        Err(why) => {
            tracing::error!(why, "no traces: what the environment says of them can't be");
            (None, None)
        }
    };
    let observer = Observer::new(metrics.clone(), config.metric_flows)
        .keeping(keeper.writers())
        .traced(tracer);
    let birth = Birth::now(args.expect_sessions);
    let mut settings = settings(config, &birth);
    for pool in &mut settings.pools {
        pool.kept = kept.models.remove(&pool.name).unwrap_or_default();
    }
    let (folder, admin_of_envoy) = (args.envoy.as_deref(), args.envoy_admin);
    let envoy = EnvoyPools::open(folder, admin_of_envoy, config).map_err(|why| Error::Envoy {
        folder: args.envoy.clone().unwrap_or_default(),
        why,
    })?;
    let (driver, _running) = data_path.within(|| driver::spawn(settings, clock, observer));
    // Before anybody can ask for something.
    if kept.tell(&driver).await.is_ok() {
        keeper.tell(&driver);
    }
    tracing::info!(
        grpc = %config.listen.grpc,
        mutual_tls = tls.is_some(),
        http = %config.listen.http,
        pools = config.pools.len(),
        "serving"
    );
    let config = reload::spawn(reload::Begin {
        file: args.config,
        environment,
        seen,
        first,
        document,
        flags,
        admin,
        birth,
        driver: driver.clone(),
        metrics: metrics.clone(),
        keeper,
        envoy,
    })
    .await?;
    tokio::spawn(discovery::run(config.clone()));

    let app = http::App {
        driver: driver.clone(),
        metrics,
        clock,
        sessions_expected: args.expect_sessions,
        gateway: args.envoy_gateway,
        config: config.clone(),
        life: lives.clone(),
    };
    let served = grpc::serve(grpc, tls, driver.clone(), ending(lives.clone()));
    let mut grpc = data_path.within(|| tokio::spawn(served));
    let mut http = tokio::spawn(http::serve(http, app, ending(lives)));
    let told = tokio::select! {
        told = signals.told(&config) => told,
        ended = &mut grpc => return ended.map_or(Ok(()), |it| it.map_err(Error::Grpc)),
        ended = &mut http => return ended.map_or(Ok(()), |it| it.map_err(Error::Http)),
    };
    // Nobody listens any more when these fail.
    let _ = life.send(Life::Draining);
    let keeper = config.end().await;
    let close = |keeper: Option<Keeper>| keeper.map(|it| tokio::spawn(it.close(FLUSH_MAX)));
    let ends = config.in_force().config;
    let kept = match (told, ends.queued) {
        (Told::Terminate, Queued::HandOver) => {
            tracing::info!("handing over: what waits and what runs is left to the next companion");
            // Which may be starting already, and needs the file; nobody waits for a disk.
            close(keeper)
        }
        (Told::Terminate, Queued::Reject) | (Told::Interrupt, _) => {
            drain(&driver, &mut signals, &config).await;
            // What ended meanwhile was used as well.
            close(keeper)
        }
    };
    let _ = driver.end().await;
    let _ = life.send(Life::Ending);
    let flushed = async {
        // What fails from here on fails because nobody needs it any more.
        let _ = grpc.await;
        let _ = http.await;
        if let Some(spans) = spans {
            let _ = spans.await;
        }
    };
    if tokio::time::timeout(FLUSH_MAX, flushed).await.is_err() {
        tracing::warn!("a peer doesn't read; not waiting for it");
    }
    if let Some(kept) = kept {
        // It says by itself what is lost.
        let _ = kept.await;
    }
    Ok(())
}

async fn drain(driver: &Handle, signals: &mut Signals, config: &reload::Handle) {
    let most = config.in_force().config.drain;
    tracing::info!(
        drain_s = most.as_secs(),
        "shutting down: what waits is refused, what runs may finish"
    );
    if driver.tell(Event::Drain(true)).await.is_err() {
        return;
    }
    tokio::select! {
        _ = driver.idle() => tracing::info!("all requests have ended"),
        () = tokio::time::sleep(most) => tracing::warn!("some requests still run; shutdown.drain is over"),
        _ = signals.told(config) => tracing::warn!("told twice: not waiting for what still runs"),
    }
}

async fn ending(mut life: watch::Receiver<Life>) {
    // An error means that the sender has gone, which is an end as well.
    let _ = life.wait_for(|it| *it == Life::Ending).await;
}

/// What a companion is told by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Terminate,
    Interrupt,
}

/// The signals that end the companion. SIGHUP doesn't: its configuration is read again.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hang_up: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    async fn told(&mut self, config: &reload::Handle) -> Told {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return Told::Terminate,
                _ = self.interrupt.recv() => return Told::Interrupt,
                _ = self.hang_up.recv() => config.reload().await,
            }
        }
    }
}

/// What a control is told of its companion, as long as that lives.
#[derive(Clone, Copy, Debug)]
pub struct Birth {
    sessions_expected: Option<usize>,
    term: u64,
    seed: u64,
}

impl Birth {
    /// Of a companion that starts now. Later ones have larger terms, as long as the clock doesn't go back by more than
    /// their distance.
    #[must_use]
    pub fn now(sessions_expected: Option<usize>) -> Self {
        let since_epoch = clock::unix();
        Self {
            sessions_expected,
            term: u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX),
            seed: u64::try_from(since_epoch.as_nanos() & u128::from(u64::MAX)).unwrap_or(0),
        }
    }
}

/// What a control holds to under this configuration.
#[must_use]
pub fn settings(config: &Config, birth: &Birth) -> Settings {
    Settings {
        pools: config
            .pools
            .iter()
            .map(|pool| PoolSettings {
                name: pool.name.clone(),
                models: pool.models.clone(),
                endpoints: endpoints(pool),
                policy: pool.policy.clone(),
                flow_key: pool.flow_key.clone(),
                class_globs: pool.class_globs.clone(),
                capacity_status: pool.capacity_status,
                requeues: pool.requeues,
                slo: pool.slo,
                reported: pool.store.is_some(),
                kept: Vec::new(),
                rewrite: pool.rewrite.clone(),
            })
            .collect(),
        policy: policy::frame(config),
        objectives: config.identity.objectives.clone(),
        max_priority: config.identity.max_priority.clone(),
        sessions_expected: birth.sessions_expected,
        startup_wait: config.startup_wait,
        flows_shown: config.metric_flows,
        term: birth.term,
        seed: birth.seed,
    }
}

/// A pool's endpoints as a control is told of them.
#[must_use]
pub fn endpoints(pool: &Pool) -> Vec<EndpointSettings> {
    let endpoints = pool.endpoints.iter().map(|endpoint| EndpointSettings {
        address: endpoint.address.to_string(),
        weight: endpoint.weight,
        ready: pool.health.is_none(),
        variant: endpoint.variant.clone(),
        max_batch: endpoint.max_batch,
        taints: endpoint.taints.clone(),
    });
    endpoints.collect()
}
