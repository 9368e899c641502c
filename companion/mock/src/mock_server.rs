//! `penstock mock-server`: an OpenAI-compatible server that batches like vLLM, for demos and tests.
//!
//! A real clock drives the simulated server. The mock server doesn't depend on Penstock except for the names of the
//! headers that it records. `/mock/stats` and `/mock/log` show at the server the effect of a gateway's decisions.

mod api;
mod clock;
mod dialect;
mod driver;
mod log;
mod metrics;
mod request;
mod sidecar;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::value_parser;
use penstock_errors::Failure;
use penstock_model_server::{Hardware, HardwareError, Server};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub use self::log::Stats;

/// The model name in /v1/models if every name is served.
const DEFAULT_MODEL: &str = "mock";
/// Time for running requests to end after SIGTERM or Ctrl-C.
const GRACE: Duration = Duration::from_secs(10);

/// An OpenAI-compatible server that batches like vLLM, with /metrics under vLLM's names.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Port to listen on; 0 takes a free port and prints it
    #[arg(long, value_name = "N")]
    pub port: u16,
    /// Address to listen on
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    pub host: IpAddr,
    /// Milliseconds that every iteration takes
    #[arg(long, value_name = "MS", allow_negative_numbers = true, default_value_t = Hardware::default().alpha_ms)]
    pub alpha: f64,
    /// Milliseconds per token processed in an iteration
    #[arg(long, value_name = "MS", allow_negative_numbers = true, default_value_t = Hardware::default().beta_ms)]
    pub beta: f64,
    /// Milliseconds per token resident in the KV cache
    #[arg(long, value_name = "MS", allow_negative_numbers = true, default_value_t = Hardware::default().gamma_ms)]
    pub gamma: f64,
    /// Sequences in one batch
    #[arg(long, value_name = "N", default_value_t = Hardware::default().seqs_max)]
    pub max_num_seqs: usize,
    /// Tokens that the KV cache holds
    #[arg(long, value_name = "N", default_value_t = Hardware::default().kv_tokens)]
    pub kv_tokens: u64,
    /// Name of a served model, may be repeated; without it, every name is served
    #[arg(long = "model", value_name = "NAME")]
    pub models: Vec<String>,
    /// Mean length of a response if the request has no limit
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = value_parser!(u64).range(1..=1_000_000))]
    pub output_tokens: u64,
    /// Requests at a time; further ones are refused with --refuse-status. Without it, they wait in the server's queue
    #[arg(long, value_name = "N")]
    pub max_requests: Option<u64>,
    /// HTTP status of a request that is refused because of --max-requests: 429 or 503
    #[arg(long, value_name = "STATUS", default_value_t = 429, value_parser = refuse_status)]
    pub refuse_status: u16,
    /// Relative standard deviation of an iteration's duration
    #[arg(long, value_name = "X", allow_negative_numbers = true, default_value_t = 0.0)]
    pub noise: f64,
    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

fn refuse_status(text: &str) -> Result<u16, &'static str> {
    match text {
        "429" => Ok(429),
        "503" => Ok(503),
        _ => Err("429 or 503"),
    }
}

/// How a mock server refuses requests by itself, as an overloaded vLLM does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pushback {
    /// Requests at a time; further ones are refused.
    pub requests_max: u64,
    /// The HTTP status of a refusal.
    pub status: u16,
}

/// Settings of a mock server.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Address to listen on; port 0 takes a free port.
    pub listen: SocketAddr,
    /// Speed and capacity of the simulated server.
    pub hardware: Hardware,
    /// Names of the served models; empty: every name.
    pub models: Vec<String>,
    /// Mean length of a response if the request has no limit; at least 1.
    pub output_tokens: u64,
    /// `None`: the server refuses nothing by itself.
    pub pushback: Option<Pushback>,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            hardware: Hardware::default(),
            models: Vec::new(),
            output_tokens: 64,
            pushback: None,
            seed: 0,
        }
    }
}

impl From<Args> for Settings {
    fn from(args: Args) -> Self {
        let seqs_max = args.max_num_seqs;
        let default = Hardware::default();
        Self {
            listen: SocketAddr::new(args.host, args.port),
            hardware: Hardware {
                alpha_ms: args.alpha,
                beta_ms: args.beta,
                gamma_ms: args.gamma,
                seqs_max,
                kv_tokens: args.kv_tokens,
                noise: args.noise,
                batched_tokens: default.batched_tokens.max(seqs_max as u64),
            },
            models: args.models,
            output_tokens: args.output_tokens,
            pushback: args
                .max_requests
                .map(|requests_max| Pushback { requests_max, status: args.refuse_status }),
            seed: args.seed,
        }
    }
}

/// Why a mock server can't start or continue.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A flag's value is out of its range.
    #[error(transparent)]
    Hardware(#[from] HardwareError),
    /// Another process uses the port.
    #[error(
        "{0} is in use: stop the process that listens there, or choose another --port (0 takes a free port)"
    )]
    InUse(SocketAddr),
    /// Listening failed for another reason.
    #[error("can't listen on {0}: {1}")]
    Listen(SocketAddr, #[source] io::Error),
    /// Signal handlers can't be installed.
    #[error("can't install signal handlers: {0}")]
    Signals(#[source] io::Error),
    /// The client for prompts that another server computes can't be made.
    #[error("can't make an HTTP client: {0}")]
    Http(#[source] reqwest::Error),
    /// A metric can't be registered, which only a model's name could cause.
    #[error("can't register the metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

impl Failure for Error {
    fn is_usage(&self) -> bool {
        matches!(self, Self::Hardware(_))
    }
}

/// A running mock server. Dropping it stops the server at once and cuts its responses.
#[derive(Debug)]
pub struct Running {
    address: SocketAddr,
    driver: Option<driver::Handle>,
    stop: Option<oneshot::Sender<()>>,
    http: JoinHandle<()>,
    driver_task: JoinHandle<()>,
}

impl Running {
    /// The address that the server listens on.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The current counters; `None` after the server has stopped.
    pub async fn stats(&self) -> Option<Stats> {
        self.driver.as_ref()?.stats().await.ok()
    }

    /// Completely served requests by tenant; `None` after the server has stopped.
    pub async fn served_by_tenant(&self) -> Option<BTreeMap<String, u64>> {
        self.driver.as_ref()?.served_by_tenant().await.ok()
    }

    /// Stops accepting requests, and gives the running ones up to `grace` to end.
    pub async fn shutdown(mut self, grace: Duration) {
        self.driver = None;
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        // Dropping `self` cuts the responses that are still running.
        let _ = tokio::time::timeout(grace, &mut self.http).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.http.abort();
        self.driver_task.abort();
    }
}

/// Starts a mock server inside the current runtime.
///
/// # Errors
/// The hardware is invalid, or the server can't listen on the address.
pub async fn start(settings: Settings) -> Result<Running, Error> {
    let (listen, hardware) = (settings.listen, settings.hardware);
    let server = Server::new(hardware, settings.seed)?;
    let model = settings.models.first().map_or(DEFAULT_MODEL, String::as_str);
    let metrics = metrics::Metrics::new(model, &hardware)?;
    let listener = TcpListener::bind(listen).await.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => Error::InUse(listen),
        _ => Error::Listen(listen, error),
    })?;
    let address = listener.local_addr().map_err(|error| Error::Listen(listen, error))?;

    let (driver, handle) = driver::Driver::new(server, metrics.clone(), &settings);
    let driver_task = tokio::spawn(driver.run());
    // Without a proxy of the environment, and without a time limit: the client of the request has one.
    let http = reqwest::Client::builder().no_proxy().build().map_err(Error::Http)?;
    let app = api::App { driver: handle.clone(), metrics, address, models: settings.models.into(), http };
    let (stop, stopped) = oneshot::channel::<()>();
    let http = tokio::spawn(async move {
        let stopped = async {
            let _ = stopped.await;
        };
        // axum retries accept errors by itself and returns no error.
        let _ = axum::serve(listener, api::router(app)).with_graceful_shutdown(stopped).await;
    });
    Ok(Running { address, driver: Some(handle), stop: Some(stop), http, driver_task })
}

/// Serves until SIGINT or SIGTERM, then waits for running requests.
///
/// # Errors
/// The server can't start.
pub async fn run(args: Args) -> Result<(), Error> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Signals)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::Signals)?;
    let running = start(args.into()).await?;
    // A closed stdout is no reason to stop.
    let _ = writeln!(io::stdout(), "mock-server http://{}", running.address());
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    running.shutdown(GRACE).await;
    Ok(())
}
