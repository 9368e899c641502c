//! `penstock mock-server`: an OpenAI-compatible server that batches like vLLM, for demos and tests.
//!
//! The physics are `penstock-sim`'s, driven by the real clock. It refuses to know anything of Penstock but the names
//! of its headers, which it records: what a gateway did is counted here, at the server, by `/mock/stats` and
//! `/mock/log`.

mod api;
mod ask;
mod clock;
mod dialect;
mod driver;
mod log;
mod metrics;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::value_parser;
use penstock_model_server::{Hardware, HardwareError, Server};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub use log::Stats;

/// What /v1/models says when every name is served.
const DEFAULT_MODEL: &str = "mock";
/// Running requests get so long to end after SIGTERM or Ctrl-C.
const GRACE: Duration = Duration::from_secs(10);

/// An OpenAI-compatible server that batches like vLLM, with /metrics under vLLM's names.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Port to listen on; 0 takes a free one and prints it
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
    /// Name it answers to, may be repeated; none: it answers to every name
    #[arg(long = "model", value_name = "NAME")]
    pub models: Vec<String>,
    /// Mean length of an answer whose request names no limit
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = value_parser!(u64).range(1..=1_000_000))]
    pub output_tokens: u64,
    /// Relative standard deviation of an iteration's duration
    #[arg(long, value_name = "X", allow_negative_numbers = true, default_value_t = 0.0)]
    pub noise: f64,
    /// Seed of all that is random
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// What a mock server is started with.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Where it listens; port 0: a free one.
    pub listen: SocketAddr,
    /// What it is made of.
    pub hardware: Hardware,
    /// Names it answers to; empty: all.
    pub models: Vec<String>,
    /// Mean length of an answer whose request names no limit; at least 1.
    pub output_tokens: u64,
    /// Seed of all that is random.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            hardware: Hardware::default(),
            models: Vec::new(),
            output_tokens: 64,
            seed: 0,
        }
    }
}

impl From<Args> for Settings {
    fn from(args: Args) -> Self {
        let seqs_max = args.max_num_seqs;
        let standard = Hardware::default();
        Self {
            listen: SocketAddr::new(args.host, args.port),
            hardware: Hardware {
                alpha_ms: args.alpha,
                beta_ms: args.beta,
                gamma_ms: args.gamma,
                seqs_max,
                kv_tokens: args.kv_tokens,
                noise: args.noise,
                batched_tokens: standard.batched_tokens.max(seqs_max as u64),
            },
            models: args.models,
            output_tokens: args.output_tokens,
            seed: args.seed,
        }
    }
}

/// Why a mock server can't start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A flag's value is out of its range: bad usage.
    #[error(transparent)]
    Hardware(#[from] HardwareError),
    /// The port is taken.
    #[error("{0} is in use: stop what listens there, or choose another --port (0 takes a free one)")]
    InUse(SocketAddr),
    /// The address can't be listened on for another reason.
    #[error("can't listen on {0}: {1}")]
    Listen(SocketAddr, #[source] io::Error),
    /// Signals can't be waited for.
    #[error("can't wait for signals: {0}")]
    Signals(#[source] io::Error),
    /// A series of /metrics can't be made, which only a name of a model could cause.
    #[error("can't name the metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

impl Error {
    /// 2: bad usage, 1: failed at run time.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Hardware(_) => 2,
            Self::InUse(_) | Self::Listen(..) | Self::Signals(_) | Self::Metrics(_) => 1,
        }
    }
}

/// A mock server that runs until it is shut down, or dropped: then it stops at once and cuts what it was answering.
#[derive(Debug)]
pub struct Running {
    address: SocketAddr,
    driver: Option<driver::Handle>,
    stop: Option<oneshot::Sender<()>>,
    http: JoinHandle<()>,
    physics: JoinHandle<()>,
}

impl Running {
    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it has done so far; `None` once it has stopped.
    pub async fn stats(&self) -> Option<Stats> {
        self.driver.as_ref()?.stats().await.ok()
    }

    /// Requests it has answered in full, by the tenant they named; `None` once it has stopped.
    pub async fn served_by_tenant(&self) -> Option<BTreeMap<String, u64>> {
        self.driver.as_ref()?.served_by_tenant().await.ok()
    }

    /// Takes no more, and gives what it is answering up to `grace` to end.
    pub async fn shutdown(mut self, grace: Duration) {
        self.driver = None;
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        // What isn't done by then is cut when `self` is dropped.
        let _ = tokio::time::timeout(grace, &mut self.http).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.http.abort();
        self.physics.abort();
    }
}

/// Starts a mock server inside the current runtime.
///
/// # Errors
/// The hardware can't be, or the address can't be listened on.
pub async fn start(settings: Settings) -> Result<Running, Error> {
    let Settings {
        listen,
        hardware,
        models,
        output_tokens,
        seed,
    } = settings;
    let server = Server::new(hardware, seed)?;
    let model = models.first().map_or(DEFAULT_MODEL, String::as_str);
    let metrics = metrics::Metrics::new(model, &hardware)?;
    let listener = TcpListener::bind(listen).await.map_err(|e| match e.kind() {
        io::ErrorKind::AddrInUse => Error::InUse(listen),
        _ => Error::Listen(listen, e),
    })?;
    let address = listener.local_addr().map_err(|e| Error::Listen(listen, e))?;

    let (driver, handle) = driver::Driver::new(server, metrics.clone(), output_tokens, seed);
    let physics = tokio::spawn(driver.run());
    let app = api::App {
        driver: handle.clone(),
        metrics,
        address,
        models: models.into(),
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let http = tokio::spawn(async move {
        let stopped = async {
            let _ = stopped.await;
        };
        // Accept errors are retried inside; this future gives no error.
        let _ = axum::serve(listener, api::router(app))
            .with_graceful_shutdown(stopped)
            .await;
    });
    Ok(Running {
        address,
        driver: Some(handle),
        stop: Some(stop),
        http,
        physics,
    })
}

/// Serves until SIGINT or SIGTERM, then lets running requests end.
///
/// # Errors
/// It can't start.
pub async fn run(args: Args) -> Result<(), Error> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Signals)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::Signals)?;
    let running = start(args.into()).await?;
    // Who closed our stdout doesn't want to know.
    let _ = writeln!(io::stdout(), "mock-server http://{}", running.address());
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    running.shutdown(GRACE).await;
    Ok(())
}
