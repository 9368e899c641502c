//! Listens for gateways, deals their connections to the workers' threads, and reports health.

use std::convert::Infallible;
use std::io;
use std::net::TcpStream as StdStream;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use penstock_base::essential;
use penstock_filter_core::config::Config;
use penstock_wire as wire;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::service::Routes;
use tonic::transport::Server;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::availability::Availability;
use crate::certificate::{self, Certificate};
use crate::generated::external_processor_server::{ExternalProcessorServer, SERVICE_NAME};
use crate::limits::{
    CONNECTION_STREAMS_MAX, CONNECTION_WINDOW, CONNECTIONS, EVENTS, FOLLOW_MAX, LOG_PAUSE, MESSAGE_OVERHEAD,
    RESET_STREAMS_MAX, STREAM_WINDOW, WORKERS_MAX,
};
use crate::service::Service;
use crate::sessions::{NewSession, Sessions};
use crate::shared_data::WorkersData;
use crate::worker::{Clock, Handle, Seat, Shared, random_bits};

/// The name of the picker's tasks, after "the task for".
const NAME: &str = "the endpoint picker";
/// The services of the health check that llm-d's picker has, beside that of the protocol.
const LIVENESS: &str = "liveness";
const READINESS: &str = "readiness";

/// A port at which gateways ask.
#[derive(Debug)]
pub struct Door {
    /// The open listener.
    pub listener: TcpListener,
    /// The pool of all requests that come here; `None`: the model of each chooses.
    pub pool: Option<String>,
}

/// What a picker needs.
#[derive(Debug)]
pub struct Settings {
    /// The policy until the companion sends one.
    pub policy: wire::Policy,
    /// The picker's name among the companion's sessions.
    pub node: String,
    /// At least one.
    pub doors: Vec<Door>,
    /// A port for health checks alone, without TLS.
    pub health: Option<TcpListener>,
    /// `None`: gateways connect in plain text.
    pub certificate: Option<Certificate>,
    /// Where filters find this companion, as `IP:PORT`; `None`: it is the only one.
    pub address: Option<String>,
    /// Takes the sessions that workers open with companions.
    pub companion: mpsc::Sender<NewSession>,
    /// The companion leaves its requests to the next leader, which waits until each worker has listed its requests. So each worker opens a
    /// session with the next leader before the picker ends, also without streams.
    pub leaves: watch::Receiver<bool>,
    /// Whether gateways should ask this picker.
    pub availability: watch::Receiver<Availability>,
}

/// Why the picker can't serve.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The certificate can't be used.
    #[error(transparent)]
    Certificate(#[from] certificate::Error),
    /// The operating system gives no thread, or no event queue for sockets.
    #[error("endpoint picker: {0}")]
    Thread(#[from] io::Error),
    /// The system provides no random bits.
    #[error("endpoint picker: no random bits: {0}")]
    Random(#[from] getrandom::Error),
    /// The transport fails.
    #[error("endpoint picker: {0}")]
    Transport(#[from] tonic::transport::Error),
}

/// Serves until `shutdown` returns, and then until all streams have ended.
///
/// # Errors
/// When a thread can't start, or a transport fails.
pub async fn serve(settings: Settings, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
    let (mut reporter, health_service) = tonic_health::server::health_reporter();
    let count = std::thread::available_parallelism().map_or(1, usize::from).min(WORKERS_MAX);
    let shared = Shared::default();
    let availability = connected(settings.availability, shared.connected(), count);
    let following = shared.following();
    let reporting = essential::spawn(NAME, report_health(reporter.clone(), availability.clone()));
    let checks =
        settings.health.map(|listener| essential::spawn(NAME, check(listener, availability.clone())));
    let (end, ending) = watch::channel(false);
    let tls = Tls::new(settings.certificate.as_ref())?;
    let body_bytes = usize::try_from(settings.policy.body_bytes_max).unwrap_or(usize::MAX);
    let common = Common {
        config: config(settings.policy, settings.node),
        clock: Clock::start(),
        data: WorkersData::default(),
        shared: shared.clone(),
        address: settings.address,
        companion: settings.companion,
        leaves: settings.leaves.clone(),
        availability,
        health: Routes::new(health_service),
        tls,
        message_bytes: body_bytes.saturating_add(MESSAGE_OVERHEAD),
    };
    let pools: Vec<Option<Arc<str>>> =
        settings.doors.iter().map(|door| door.pool.as_deref().map(Arc::from)).collect();
    let mut dealt = vec![Vec::new(); settings.doors.len()];
    let mut threads = Vec::new();
    for number in 0..count {
        let mut incoming = Vec::new();
        for (pool, dealt) in pools.iter().zip(&mut dealt) {
            let (to, from) = mpsc::channel(CONNECTIONS);
            dealt.push(to);
            incoming.push((pool.clone(), from));
        }
        threads.push(WorkerThread::start(number, common.clone(), incoming, ending.clone())?);
    }
    drop(common);
    let accepting =
        settings.doors.into_iter().zip(dealt).map(|(door, workers)| {
            essential::spawn(NAME, accept(door.listener, workers, ended(ending.clone())))
        });
    let accepting: Vec<_> = accepting.collect();
    shutdown.await;
    end.send_replace(true);
    join_all(accepting).await;
    reporting.abort();
    // Ends the streams of clients that watch a service's health, which would keep their connections.
    for service in [LIVENESS, READINESS, SERVICE_NAME] {
        reporter.clear_service_status(service).await;
    }
    let ends = tokio::select! {
        ends = served(threads) => ends?,
        never = log_open_streams(&shared) => match never {},
    };
    if *settings.leaves.borrow() {
        follow(following, count).await;
    }
    join_all(ends.into_iter().map(End::end)).await;
    // Until here the health checks have said NOT_SERVING. The process ends: health checks may be cut.
    if let Some(checks) = checks {
        checks.abort();
    }
    Ok(())
}

/// Returns when all connections of all threads have ended.
async fn served(threads: Vec<WorkerThread>) -> Result<Vec<End>, Error> {
    let mut ends = Vec::new();
    for thread in threads {
        ends.extend(thread.served().await?);
    }
    Ok(ends)
}

/// Logs the number of open streams at intervals, for an operator who waits until the companion has ended.
async fn log_open_streams(shared: &Shared) -> Infallible {
    loop {
        let requests = shared.open_streams();
        if requests > 0 {
            tracing::info!(
                requests,
                "endpoint picker: takes no new requests, and waits for those that it has"
            );
        }
        tokio::time::sleep(LOG_PAUSE).await;
    }
}

/// Returns when all workers follow the next leader, or soon after.
async fn follow(mut following: watch::Receiver<usize>, workers: usize) {
    // An error means that the workers are gone.
    let all = following.wait_for(|count| *count >= workers);
    if tokio::time::timeout(FOLLOW_MAX, all).await.is_err() {
        tracing::debug!("endpoint picker: no next leader was found within {FOLLOW_MAX:?}");
    }
}

/// Returns when the picker is to end.
async fn ended(mut ending: watch::Receiver<bool>) {
    // An error means that the sender is gone, which ends the picker as well.
    let _: Result<_, _> = ending.wait_for(|ends| *ends).await;
}

/// The filter core's configuration.
fn config(policy: wire::Policy, node: String) -> Config {
    Config {
        companion: "companion".to_owned(),
        node,
        requeue_listener: None,
        is_requeue_listener: false,
        routes_report_endpoint: false,
        logs_attempts: false,
        routes_requeue: false,
        restarts: false,
        keeps_alive: false,
        is_picker: true,
        policy,
    }
}

/// The availability of a picker whose workers must have their sessions, too: until then nothing decides here.
fn connected(
    mut companion: watch::Receiver<Availability>,
    mut connected: watch::Receiver<usize>,
    count: usize,
) -> watch::Receiver<Availability> {
    let (sender, receiver) = watch::channel(Availability::Unready);
    tokio::spawn(async move {
        loop {
            let all_are = *connected.borrow_and_update() >= count;
            let availability = match *companion.borrow_and_update() {
                Availability::Ready if !all_are => Availability::Unready,
                availability => availability,
            };
            sender.send_if_modified(|before| core::mem::replace(before, availability) != availability);
            tokio::select! {
                // After the companion has ended, its last word stays.
                Ok(()) = companion.changed() => {}
                Ok(()) = connected.changed() => {}
                () = sender.closed() => return,
            }
        }
    });
    receiver
}

/// Answers health checks at a port of their own, until it is aborted.
async fn check(
    listener: TcpListener,
    availability: watch::Receiver<Availability>,
) -> Result<(), tonic::transport::Error> {
    let (reporter, service) = tonic_health::server::health_reporter();
    let server = Server::builder().add_service(service);
    let serving = server.serve_with_incoming(TcpListenerStream::new(listener));
    tokio::join!(serving, report_health(reporter, availability)).0
}

/// Reports the services as serving while requests can be decided here. The process lives in any case.
async fn report_health(health: HealthReporter, mut availability: watch::Receiver<Availability>) {
    health.set_service_status(LIVENESS, ServingStatus::Serving).await;
    loop {
        let status = match *availability.borrow_and_update() {
            Availability::Ready => ServingStatus::Serving,
            Availability::Unready | Availability::Standby => ServingStatus::NotServing,
        };
        for service in [READINESS, SERVICE_NAME] {
            health.set_service_status(service, status).await;
        }
        if availability.changed().await.is_err() {
            return;
        }
    }
}

/// Deals the connections of a port to the workers, in turn.
async fn accept(
    listener: TcpListener,
    workers: Vec<mpsc::Sender<StdStream>>,
    ended: impl Future<Output = ()>,
) {
    let mut ended = std::pin::pin!(ended);
    for worker in workers.iter().cycle() {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut ended => return,
        };
        let connection = accepted.and_then(|(connection, _)| {
            connection.set_nodelay(true)?;
            connection.into_std()
        });
        match connection {
            // A thread that has ended takes none, and the companion ends as well.
            Ok(connection) => drop(worker.send(connection).await),
            Err(error) => {
                tracing::warn!(%error, "endpoint picker: a connection can't be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// After a connection that couldn't be accepted: the process may be out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The shortest time between two servers of a standby that refuses streams.
const GENERATION_MIN: Duration = Duration::from_secs(1);

/// The certificate, if there is one and this build can show it.
#[derive(Clone, Debug)]
struct Tls {
    #[cfg(feature = "tls")]
    config: Option<tonic::transport::ServerTlsConfig>,
}

#[cfg(feature = "tls")]
impl Tls {
    fn new(certificate: Option<&Certificate>) -> Result<Self, certificate::Error> {
        Ok(Self { config: certificate.map(certificate::tls).transpose()? })
    }

    fn apply(self, server: Server) -> Result<Server, tonic::transport::Error> {
        match self.config {
            Some(config) => server.tls_config(config),
            None => Ok(server),
        }
    }
}

#[cfg(not(feature = "tls"))]
impl Tls {
    fn new(certificate: Option<&Certificate>) -> Result<Self, certificate::Error> {
        match certificate {
            None => Ok(Self {}),
            Some(_) => Err(certificate::Error::Unusable("this binary was built without tls".to_owned())),
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "the interface is that of a build with TLS")]
    fn apply(self, server: Server) -> Result<Server, tonic::transport::Error> {
        Ok(server)
    }
}

/// What all workers' threads begin with.
#[derive(Clone)]
struct Common {
    config: Config,
    clock: Clock,
    data: WorkersData,
    shared: Shared,
    address: Option<String>,
    companion: mpsc::Sender<NewSession>,
    leaves: watch::Receiver<bool>,
    availability: watch::Receiver<Availability>,
    health: Routes,
    tls: Tls,
    /// The longest message of a gateway.
    message_bytes: usize,
}

/// The connections of a port that are dealt to one thread.
type Incoming = (Option<Arc<str>>, mpsc::Receiver<StdStream>);

/// A thread with a worker and the connections that it serves.
struct WorkerThread {
    served: oneshot::Receiver<Result<(), tonic::transport::Error>>,
    end: End,
}

/// Ends a worker whose connections have ended.
struct End {
    /// Dropped, it ends the worker.
    ask: oneshot::Sender<()>,
    /// An error when the worker has ended.
    ended: oneshot::Receiver<()>,
}

impl End {
    async fn end(self) {
        drop(self.ask);
        drop(self.ended.await);
    }
}

impl WorkerThread {
    fn start(
        number: usize,
        common: Common,
        incoming: Vec<Incoming>,
        ending: watch::Receiver<bool>,
    ) -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let random = random_bits()?;
        let (done, served) = oneshot::channel();
        let (ask, end_asked) = oneshot::channel::<()>();
        let (ends, ended) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name(format!("picker-{number}"));
        thread.spawn(move || {
            essential::guard(NAME, || {
                runtime.block_on(async move {
                    let (to_worker, events) = mpsc::channel(EVENTS);
                    let seat = Seat::new(
                        common.clock,
                        &random,
                        &common.config,
                        common.data.clone(),
                        common.shared.clone(),
                        Sessions::new(common.address.clone(), common.companion.clone(), to_worker.clone()),
                        common.leaves.clone(),
                    );
                    let worker = Handle::new(to_worker, &common.shared);
                    let serving = incoming.into_iter().map(|incoming| {
                        tokio::spawn(serve_connections(
                            common.clone(),
                            worker.clone(),
                            incoming,
                            ending.clone(),
                        ))
                    });
                    let serving: Vec<_> = serving.collect();
                    tokio::spawn(async move {
                        let results = join_all(serving).await;
                        // A task that has panicked has ended its connections alone.
                        let result = results.into_iter().filter_map(Result::ok).collect();
                        // Fails when nothing waits for the end any more.
                        let _: Result<(), _> = done.send(result);
                    });
                    seat.run(events, async { drop(end_asked.await) }).await;
                    drop(ends);
                });
            });
        })?;
        Ok(Self { served, end: End { ask, ended } })
    }

    /// Returns when all connections have ended; `None`: so has the thread, by a panic, which ends the process.
    async fn served(self) -> Result<Option<End>, Error> {
        match self.served.await {
            Ok(result) => result.map(|()| Some(self.end)).map_err(Error::from),
            Err(_) => Ok(None),
        }
    }
}

/// Serves the connections of a port, by one server after another: when this picker is no longer ready, and when it has refused a stream as a
/// standby, the connections are asked to end, so that their gateways connect to a picker that is ready. Their streams go on.
async fn serve_connections(
    common: Common,
    worker: Handle,
    (pool, mut connections): Incoming,
    ending: watch::Receiver<bool>,
) -> Result<(), tonic::transport::Error> {
    let mut servers = JoinSet::new();
    loop {
        let (to_server, incoming) = mpsc::channel(CONNECTIONS);
        let (retire, retired) = oneshot::channel::<()>();
        let refused = Arc::new(Notify::new());
        // An error means that the sender is gone, which retires the server as well.
        let retired = async { drop(retired.await) };
        let service = Service {
            worker: worker.clone(),
            pool: pool.clone(),
            availability: common.availability.clone(),
            refused: refused.clone(),
        };
        servers.spawn(server(&common, service, incoming, retired)?);
        let mut unready = pin!(turned_unready(common.availability.clone()));
        let mut ended = pin!(ended(ending.clone()));
        let mut has_refused = pin!(async {
            tokio::time::sleep(GENERATION_MIN).await;
            refused.notified().await;
        });
        let goes_on = loop {
            tokio::select! {
                biased;
                () = &mut ended => break false,
                () = &mut unready => break true,
                () = &mut has_refused => break true,
                Some(connection) = connections.recv() => {
                    // Fails when the server has failed, which ends this loop's caller.
                    if to_server.send(connection).await.is_err() {
                        break false;
                    }
                }
                else => break false,
            }
        };
        drop(retire);
        while let Some(Ok(result)) = servers.try_join_next() {
            result?;
        }
        if !goes_on {
            break;
        }
    }
    // A connection that was dealt out in this moment would be open and never served.
    drop(connections);
    // A task that has panicked has ended its connections alone.
    servers.join_all().await.into_iter().collect()
}

/// Returns when the picker is ready no longer, after it has been.
async fn turned_unready(mut availability: watch::Receiver<Availability>) {
    let is_ready = |availability: &Availability| *availability == Availability::Ready;
    let was_ready = availability.wait_for(is_ready).await.is_ok();
    if !was_ready || availability.wait_for(|now| !is_ready(now)).await.is_err() {
        // The companion has ended, and this picker will.
        std::future::pending::<()>().await;
    }
}

/// A server of these connections. It takes no more when `retired` returns, and ends with the last stream.
fn server(
    common: &Common,
    service: Service,
    connections: mpsc::Receiver<StdStream>,
    retired: impl Future<Output = ()> + Send + 'static,
) -> Result<impl Future<Output = Result<(), tonic::transport::Error>> + Send + 'static, tonic::transport::Error>
{
    let service = ExternalProcessorServer::new(service)
        .max_decoding_message_size(common.message_bytes)
        .max_encoding_message_size(usize::MAX);
    let server = common.tls.clone().apply(Server::builder())?;
    let incoming = ReceiverStream::new(connections).map(|connection| {
        connection.set_nonblocking(true)?;
        TcpStream::from_std(connection)
    });
    Ok(server
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(CONNECTION_STREAMS_MAX)
        .http2_max_pending_accept_reset_streams(Some(RESET_STREAMS_MAX))
        .http2_keepalive_interval(Some(Duration::from_secs(5)))
        .http2_keepalive_timeout(Some(Duration::from_secs(5)))
        .add_routes(common.health.clone().add_service(service))
        .serve_with_incoming_shutdown(incoming, retired))
}
