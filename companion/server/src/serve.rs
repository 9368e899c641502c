//! `penstock serve`: starts the parts of the companion, waits for a signal, and shuts down.

mod decisions;
pub mod envoy_endpoints;
mod signals;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use futures_util::FutureExt as _;
use penstock_config::{self as config, Address, Config, Document, Environment, Queued};
use penstock_control::Event;
use penstock_data_plane::filter_policy;
use penstock_errors::Failure;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};

use self::decisions::{Decisions, Surroundings};
use self::signals::{EndSignal, Signals};
use crate::active::envoy_pools::EnvoyPools;
use crate::active::reload::{self, FlagOverrides, Loaded};
use crate::base::admin::{self, Admin};
use crate::base::clock::Clock;
use crate::base::listener::{self, Listener};
use crate::base::phase::{self, Phase, ending};
use crate::base::role::RoleReceiver;
use crate::base::{essential, tls};
use crate::decisions::control_settings::{OPENS_WITHIN, ProcessIdentity};
use crate::decisions::decision_runtime::DecisionRuntime;
use crate::decisions::driver::{self, Handle};
use crate::decisions::observe::Observer;
use crate::decisions::usage_forwarding;
use crate::discovery::{self, pool_events};
use crate::election::companions::Peers;
use crate::election::{self, Elections};
use crate::metrics::{Metrics, trace};
pub use crate::surface::http::FilterModules;
use crate::surface::{grpc, history, http, keep_alive, picker};
use penstock_stores::{self as stores, Stores};

/// How long a shutdown waits for peers that don't read, for the stores, and for the last spans.
const FLUSH_MAX: Duration = Duration::from_secs(1);
/// The names of the tasks that serve filters and administrators.
const GRPC: &str = "gRPC";
const HTTP: &str = "HTTP";
const PICKER: &str = "the endpoint picker";

/// Flags of `penstock serve`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Args {
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Serve gRPC on this address instead of listen.grpc
    #[arg(long, value_name = "ADDR")]
    pub grpc: Option<Address>,
    /// Serve HTTP on this address instead of listen.http
    #[arg(long, value_name = "ADDR")]
    pub http: Option<Address>,
    /// The folder of `penstock envoy-config --envoy`: the companion keeps its pools and endpoints up to date, and Envoy
    /// follows without a restart
    #[arg(long, value_name = "DIR")]
    pub envoy: Option<PathBuf>,
    /// Envoy's admin interface, which shows the applied version of that folder, instead of listen.envoy_admin. Set by
    /// `penstock up`.
    #[arg(long, hide = true, value_name = "ADDR")]
    pub envoy_admin: Option<SocketAddr>,
    /// Envoy sessions without which /readyz is 503: one for each listener on each thread that has a filter. Set by
    /// `penstock up`.
    #[arg(long, hide = true, value_name = "N")]
    pub expect_sessions: Option<usize>,
    /// Envoy's listener, without which /readyz is 503. Set by `penstock up`.
    #[arg(long, hide = true, value_name = "ADDR")]
    pub envoy_gateway: Option<SocketAddr>,
}

/// Why the companion couldn't start, or failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// An address of a flag is reachable from other machines without TLS.
    #[error(transparent)]
    Bind(#[from] config::BindError),
    /// The certificates can't be used.
    #[error(transparent)]
    Tls(#[from] tls::Error),
    /// The admin token can't be used.
    #[error(transparent)]
    Admin(#[from] admin::Error),
    /// An address can't be listened on.
    #[error(transparent)]
    Listen(#[from] listener::Error),
    /// A store can't be opened.
    #[error(transparent)]
    Store(#[from] stores::Error),
    /// Two metrics have the same name: a defect.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The folder of `--envoy` can't be written.
    #[error("--envoy {}: {why}", folder.display())]
    Envoy {
        /// The folder.
        folder: PathBuf,
        /// The error of the operating system.
        why: std::io::Error,
    },
    /// The leader lease's store can't be used.
    #[error(transparent)]
    Replicas(#[from] election::Error),
    /// The decision thread can't start.
    #[error("decision thread: {0}")]
    Thread(#[source] std::io::Error),
    /// Signal handlers can't be installed.
    #[error("signal handlers: {0}")]
    Signal(#[source] std::io::Error),
    /// Serving gRPC failed.
    #[error("gRPC: {0}")]
    Grpc(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Serving gateways as an endpoint picker failed.
    #[error(transparent)]
    Picker(#[from] penstock_picker::Error),
    /// Serving HTTP failed.
    #[error("HTTP: {0}")]
    Http(#[source] std::io::Error),
    /// A task without which the companion is incomplete has panicked.
    #[error("a defect ended the task for {0}; the log has the panic's message; please report it")]
    Defect(&'static str),
    /// A server ended without a request to end.
    #[error("the task for {0} ended too early; please report this with the log")]
    EndedEarly(&'static str),
}

impl Failure for Error {
    fn is_usage(&self) -> bool {
        matches!(self, Self::Config(_) | Self::Bind(_) | Self::Tls(_) | Self::Admin(_) | Self::Replicas(_))
    }
}

/// Serves until SIGTERM or SIGINT.
///
/// SIGTERM rejects new and waiting requests and lets running ones finish; with `shutdown.queued: hand_over` it leaves
/// all of them to the next companion, and stays while requests of its own endpoint picker wait or run. SIGINT rejects, where this companion
/// decides, because an operator who ends a companion by hand has no other one ready; a standby leaves what its picker has to the leader.
/// `penstock up` ends its companion with SIGINT, because its Envoy ends too.
///
/// # Errors
/// When it can't start, a listener fails, or an essential task panics.
pub async fn run(args: Args, environment: Environment, filter: FilterModules) -> Result<(), Error> {
    let mut companion = tokio::select! {
        started = Companion::start(args, environment, filter) => started?,
        task = essential::failed() => return Err(Error::Defect(task)),
    };
    log_start(&companion.config.active().config);
    #[cfg(feature = "injected-defect")]
    crate::decisions::injected_defect::follow_signal(companion.driver.clone()).map_err(Error::Signal)?;
    match companion.run_until_signal().await {
        Ok(signal) => tokio::select! {
            () = companion.shut_down(signal) => Ok(()),
            task = essential::failed() => Err(Error::Defect(task)),
        },
        Err(error) => {
            companion.save_state().await;
            Err(error)
        }
    }
}

/// Reads the configuration file, and applies the flags.
fn load(args: &Args, environment: &Environment) -> Result<Loaded, Error> {
    // Before the document: a change between the two reads is noticed later and causes a reload.
    let file_bytes = std::fs::read(&args.config).unwrap_or_default();
    let document = Document::read(&args.config, environment)?;
    let file_document = document.json().clone();
    let alone = Document::read(&args.config, &Environment::default());
    let saved_document = alone.map_or_else(|_| file_document.clone(), |alone| alone.json().clone());
    if let Some(grpc) = &args.grpc {
        document.config().check_grpc_address(grpc)?;
    }
    let flags = FlagOverrides::new(args.grpc.as_ref(), args.http.as_ref(), args.envoy_gateway);
    let document = flags.apply(document)?;
    Ok(Loaded {
        file: args.config.clone(),
        file_bytes,
        file_document,
        saved_document,
        config: document.config().clone().read_secrets()?,
        document,
        flags,
    })
}

/// The files, threads and sockets that a start needs; a failure to open one ends the start.
struct Opened {
    tls: Option<tls::ServerTlsConfig>,
    admin: Admin,
    decisions: DecisionRuntime,
    grpc: Listener,
    http: Listener,
    picker: Option<picker::Ports>,
    signals: Signals,
}

impl Opened {
    fn open(config: &Config) -> Result<Self, Error> {
        let tls = config.tls.as_ref().map(tls::server).transpose()?;
        let admin = Admin::new(&config.admin)?;
        let decisions = DecisionRuntime::start().map_err(Error::Thread)?;
        let grpc = decisions.enter(|| Listener::open(&config.listen.grpc, "listen.grpc"))?;
        let http = Listener::open(&config.listen.http, "listen.http")?;
        let picker = picker::Ports::open(config, tls::picker(&config.picker)?)?;
        let signals = Signals::new().map_err(Error::Signal)?;
        Ok(Self { tls, admin, decisions, grpc, http, picker, signals })
    }
}

/// A companion that is an endpoint picker.
struct RunningPicker {
    serving: JoinHandle<Result<(), penstock_picker::Error>>,
    /// Carries the sessions of the picker's workers.
    sessions: JoinHandle<()>,
    leaves: watch::Sender<bool>,
}

impl RunningPicker {
    /// Returns when all streams have ended, and the companion that leads knows it.
    async fn ended(&mut self) {
        // The companion ends in any case: failures of these tasks no longer matter.
        let _ = (&mut self.serving).await;
        let _ = (&mut self.sessions).await;
    }
}

/// The running parts of a companion.
struct Companion {
    driver: Handle,
    /// The driver's task.
    decisions: JoinHandle<()>,
    config: reload::Handle,
    /// With several companions.
    elections: Elections,
    phase: watch::Sender<Phase>,
    signals: Signals,
    grpc: JoinHandle<Result<(), grpc::Error>>,
    http: JoinHandle<std::io::Result<()>>,
    /// `None`: the companion is no endpoint picker.
    picker: Option<RunningPicker>,
    /// Sends spans, if tracing is on.
    spans: Option<JoinHandle<()>>,
    /// Dropped last: it ends the driver and the gRPC streams.
    _thread: DecisionRuntime,
}

impl Companion {
    async fn start(args: Args, environment: Environment, filter: FilterModules) -> Result<Self, Error> {
        let loaded = load(&args, &environment)?;
        let config = &loaded.config;
        let opened = Opened::open(config)?;

        let back = config.listen.keep_alive.filter(|_| config.keeps_alive());
        let kept_alive =
            back.map(|back| keep_alive::Way { back, runtime: tokio::runtime::Handle::current() });
        let clock = Clock::start();
        let metrics = Arc::new(Metrics::new()?);
        let mut stores = Stores::with_metrics(metrics.stores());
        let restored = stores.open(config).await?;
        let (phase, phases) = watch::channel(Phase::Serving);
        let (tracer, spans) = start_tracing(&metrics, &environment, phases.clone());
        let identity = ProcessIdentity::now(args.expect_sessions, tracer.is_some());
        let picker_policy = filter_policy::frame(config, tracer.is_some());
        let observer = observer(config, &metrics, &stores, tracer);
        let (leading, may_lead) = watch::channel(false);
        let around = Surroundings::new(config, &opened.decisions, &metrics, clock, may_lead);
        let decisions = Decisions::start(around, identity, observer, restored).await?;
        let driver = decisions.driver;
        usage_forwarding::forward_shared(&mut stores, driver.clone());
        let config = reload::spawn(reload::Start {
            envoy: open_envoy_pools(&args, config, decisions.replica_roles.clone())?,
            loaded,
            admin: opened.admin,
            environment,
            identity,
            driver: driver.clone(),
            metrics: metrics.clone(),
            stores,
            elections: decisions.elections.clone(),
            roles: decisions.replica_roles.clone(),
        })
        .await;
        pool_events::spawn(config.clone(), driver.clone(), decisions.replica_roles.clone());
        let discoveries = discovery::spawn(&config, metrics.clone());
        let answered = discoveries.clone().wait_for_answers(OPENS_WITHIN).boxed().shared();
        let picker = opened.picker.map(|ports| {
            let availability =
                picker::availability(decisions.leads.clone(), discoveries.complete(), phases.clone());
            let (leaves, leaving) = watch::channel(false);
            let active = config.active().config;
            let peers = peers(&active);
            let address = active.replicas.as_ref().map(|replicas| replicas.advertise.to_string());
            let (serving, sessions) =
                ports.serve(picker_policy, availability, leaving, address, phase::leaving(phases.clone()));
            let answered = answered.clone();
            let driver = driver.clone();
            let carrying = async move {
                answered.await;
                sessions.carry(driver, peers).await;
            };
            RunningPicker {
                sessions: opened.decisions.enter(|| essential::spawn(PICKER, carrying)),
                serving: essential::spawn(PICKER, serving),
                leaves,
            }
        });
        let app = http::App {
            history: history::spawn(&driver, &metrics, &config, &decisions.replica_roles),
            driver: driver.clone(),
            discoveries,
            filter,
            metrics,
            clock,
            sessions_expected: args.expect_sessions,
            gateway: args.envoy_gateway,
            config: config.clone(),
            phase: phases.clone(),
            roles: decisions.replica_roles,
        };
        let grpc = grpc::Sessions {
            kept_alive,
            driver: driver.clone(),
            roles: decisions.roles,
            elections: decisions.elections.clone(),
        };
        let serving = grpc.serve(opened.grpc, opened.tls, ending(phases.clone()));
        let (ends, opens) = (ending(phases.clone()), driver.clone());
        let serving = async move {
            tokio::select! {
                () = answered => {}
                () = ends => {}
            }
            // From here on filters can list their running requests: the startup wait and the election begin.
            leading.send_replace(true);
            // Fails when the driver has ended.
            let _ = opens.send(Event::Serving).await;
            serving.await
        };
        Ok(Self {
            grpc: opened.decisions.enter(|| essential::spawn(GRPC, serving)),
            http: essential::spawn(HTTP, http::serve(opened.http, app, ending(phases))),
            picker,
            driver,
            decisions: decisions.task,
            config,
            elections: decisions.elections,
            phase,
            signals: opened.signals,
            spans,
            _thread: opened.decisions,
        })
    }

    /// Returns the signal that ends the companion. SIGHUP reloads the configuration.
    async fn run_until_signal(&mut self) -> Result<EndSignal, Error> {
        tokio::select! {
            signal = self.signals.next_end(&self.config) => Ok(signal),
            task = essential::failed() => Err(Error::Defect(task)),
            ended = &mut self.decisions => match ended {
                Ok(()) => Err(Error::EndedEarly(driver::NAME)),
                Err(_) => Err(Error::Defect(driver::NAME)),
            },
            ended = &mut self.grpc => match ended {
                Ok(Err(error)) => Err(Error::Grpc(error.into())),
                Ok(Ok(())) => Err(Error::EndedEarly(GRPC)),
                Err(_) => Err(Error::Defect(GRPC)),
            },
            Some(ended) = ended(self.picker.as_mut().map(|picker| &mut picker.serving)) => match ended {
                Ok(Err(error)) => Err(Error::Picker(error)),
                Ok(Ok(())) => Err(Error::EndedEarly(PICKER)),
                Err(_) => Err(Error::Defect(PICKER)),
            },
            ended = &mut self.http => match ended {
                Ok(Err(error)) => Err(Error::Http(error)),
                Ok(Ok(())) => Err(Error::EndedEarly(HTTP)),
                Err(_) => Err(Error::Defect(HTTP)),
            },
        }
    }

    /// Writes usage and learned models to the stores, as far as that works after a failure.
    async fn save_state(self) {
        let saving = async {
            if let Some(stores) = self.config.stop().await {
                stores.close(FLUSH_MAX).await;
            }
        };
        // The task of the configuration may be the one that failed, and may never answer.
        if tokio::time::timeout(FLUSH_MAX, saving).await.is_err() {
            tracing::warn!("usage.store: usage and models of the last seconds may be lost");
        }
    }

    async fn shut_down(mut self, signal: EndSignal) {
        // Sending a phase fails when no receiver is left.
        let _ = self.phase.send(Phase::Draining);
        let config = self.config.active().config;
        let is_alone = config.replicas.is_none();
        // A standby has nothing to reject: another companion decides about what its picker still has.
        let decides = is_alone || self.elections.has_lease();
        let hands_over = !decides || (signal == EndSignal::Terminate && config.queued == Queued::HandOver);
        let picker = self.picker.take_if(|_| hands_over || !is_alone);
        let closing = if !hands_over {
            let stores = self.config.stop().await;
            let begun = Instant::now();
            let is_idle = self.drain(config.drain).await;
            match picker {
                Some(picker) if is_idle => {
                    if self.elections.has_lease() {
                        resign(self.elections.resign()).await;
                    } else {
                        // Another companion decides by now about what the picker still has.
                        resign(self.elections.leave()).await;
                    }
                    self.finish(picker, config.drain.saturating_sub(begun.elapsed())).await;
                }
                Some(picker) => {
                    self.picker = Some(picker);
                    resign(self.elections.resign()).await;
                }
                None => resign(self.elections.resign()).await,
            }
            // After the drain, so that the usage of requests that ended meanwhile is written as well.
            close(stores)
        } else if let Some(picker) = picker {
            if is_alone {
                // Nobody else could decide about what is in this process.
                tracing::info!(
                    drain_s = config.drain.as_secs(),
                    "shutting down: the endpoint picker takes no new requests, and those that it has may finish; then those of filters are \
                     left to the next companion"
                );
                self.finish(picker, config.drain).await;
                close(self.config.stop().await)
            } else {
                tracing::info!(
                    drain_s = config.drain.as_secs(),
                    "handing over: waiting and running requests are left to the next companion; those of the endpoint picker stay in this process \
                     meanwhile, and go on as that one decides"
                );
                let stores = self.config.stop().await;
                // Its workers are named to the successor, which waits for them.
                picker.leaves.send_replace(self.elections.has_lease());
                resign(self.elections.leave()).await;
                let closing = close(stores);
                self.finish(picker, config.drain).await;
                closing
            }
        } else {
            log_hand_over();
            let stores = self.config.stop().await;
            resign(self.elections.resign()).await;
            // At once: the next companion may be starting already and needs the file.
            close(stores)
        };
        let _ = self.driver.shut_down().await;
        let _ = self.phase.send(Phase::Ending);
        let (grpc, http, spans) = (self.grpc, self.http, self.spans);
        let flushed = async {
            // The companion ends in any case: failures of these tasks no longer matter.
            let _ = grpc.await;
            let _ = http.await;
            if let Some(spans) = spans {
                let _ = spans.await;
            }
            if let Some(picker) = &mut self.picker {
                picker.ended().await;
            }
        };
        if tokio::time::timeout(FLUSH_MAX, flushed).await.is_err() {
            tracing::warn!("a peer did not read its last messages within {FLUSH_MAX:?}; ending without it");
        }
        if let Some(closing) = closing {
            // The stores log lost data.
            let _ = closing.await;
        }
    }

    /// Waits until the requests of the picker have ended, up to `limit` or until the next signal. It takes no new ones.
    async fn finish(&mut self, mut picker: RunningPicker, limit: Duration) {
        // Fails when no receiver is left.
        let _ = self.phase.send(Phase::Leaving);
        tokio::select! {
            () = picker.ended() => {}
            () = tokio::time::sleep(limit) => {
                tracing::warn!("shutdown.drain ({limit:?}) is over; requests of the endpoint picker that still run are cut off");
            }
            _ = self.signals.next_end(&self.config) => {
                tracing::warn!("second signal: requests of the endpoint picker that still run are cut off");
            }
        }
    }

    /// Rejects waiting requests, and waits for running ones up to `limit` or until the next signal. Returns whether all have ended.
    async fn drain(&mut self, limit: Duration) -> bool {
        tracing::info!(
            drain_s = limit.as_secs(),
            "shutting down: waiting requests are rejected, running requests may finish"
        );
        if self.driver.send(Event::Drain(true)).await.is_err() {
            return false;
        }
        tokio::select! {
            Ok(()) = self.driver.idle() => {
                tracing::info!("all requests have ended");
                true
            }
            () = tokio::time::sleep(limit) => {
                tracing::warn!("shutdown.drain ({limit:?}) is over; requests that still run are cut off");
                false
            }
            _ = self.signals.next_end(&self.config) => {
                tracing::warn!("second signal: requests that still run are cut off");
                false
            }
        }
    }
}

fn log_hand_over() {
    tracing::info!("handing over: waiting and running requests are left to the next companion");
}

/// Closes the stores, if they are open still.
fn close(stores: Option<Stores>) -> Option<JoinHandle<()>> {
    stores.map(|stores| tokio::spawn(stores.close(FLUSH_MAX)))
}

/// The other companions.
fn peers(config: &Config) -> Option<Peers> {
    config.replicas.as_ref().map(|replicas| Peers::new(replicas, config.tls.as_ref()))
}

/// Waits until the leader leases are given up, so that other companions lead at once.
async fn resign(resigning: impl Future<Output = ()>) {
    if tokio::time::timeout(FLUSH_MAX, resigning).await.is_err() {
        tracing::warn!(
            "replicas.lease: the store didn't confirm within {FLUSH_MAX:?} that the lease was given up; \
             another companion leads when it expires"
        );
    }
}

/// Returns the end of a task; never, if there is none.
async fn ended<T>(task: Option<&mut JoinHandle<T>>) -> Option<Result<T, JoinError>> {
    match task {
        Some(task) => Some(task.await),
        None => std::future::pending().await,
    }
}

fn log_start(config: &Config) {
    tracing::info!(
        grpc = %config.listen.grpc,
        mutual_tls = config.tls.is_some(),
        http = %config.listen.http,
        pools = config.pools.len(),
        "serving"
    );
}

/// Starts the export of spans, if the environment configures it.
fn start_tracing(
    metrics: &Metrics,
    environment: &Environment,
    phases: watch::Receiver<Phase>,
) -> (Option<trace::Tracer>, Option<JoinHandle<()>>) {
    let Some(settings) = trace::Settings::from_environment(|name| environment.opentelemetry(name)) else {
        return (None, None);
    };
    match trace::spawn(&settings, metrics, ending(phases)) {
        Ok((tracer, task)) => (Some(tracer), Some(task)),
        Err(why) => {
            tracing::error!(why, "tracing disabled: correct the OTEL_* environment variables and restart");
            (None, None)
        }
    }
}

fn observer(
    config: &Config,
    metrics: &Arc<Metrics>,
    stores: &Stores,
    tracer: Option<trace::Tracer>,
) -> Observer {
    Observer::new(metrics.clone(), config.metric_flows).with_recorders(stores.recorders()).with_tracer(tracer)
}

fn open_envoy_pools(args: &Args, config: &Config, role: RoleReceiver) -> Result<EnvoyPools, Error> {
    // Port 0: Envoy chooses, and nobody has told this companion.
    let configured = Some(config.listen.envoy_admin).filter(|address| address.port() != 0);
    let admin = args.envoy_admin.or(configured);
    EnvoyPools::open(args.envoy.as_deref(), admin, config, role)
        .map_err(|why| Error::Envoy { folder: args.envoy.clone().unwrap_or_default(), why })
}
