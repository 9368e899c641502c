//! `penstock up`: runs Envoy, the filter and the companion in front of model servers with one command.
//!
//! The companion and Envoy are separate processes. Either one can die and be restarted while the other continues:
//! waiting requests stay in Envoy. [`Gateway`] offers the same as a library, for the demo.

mod backend;
mod backoff;
mod certificate_files;
mod companions;
pub mod envoy_config;
mod flags;
mod gateway;
pub mod gateway_resources;
pub mod http_filters;
mod inspect;
mod plan;
mod process_limits;
mod readiness;
mod supervise;

use std::io::{self, Write as _};
use std::path::PathBuf;

pub use config::Environment;
use penstock_config as config;
use penstock_envoy::find;
use penstock_errors::Failure;
use penstock_filter_module as filter_module;
use tokio::signal::unix::{SignalKind, signal};

pub use self::gateway::{Addresses, DrainShortcut, Gateway};
pub use self::process_limits::raise_open_files;
pub use self::supervise::{Event, Part};

/// Flags of `penstock up`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The configuration file; without it, --backend names the model servers.
    #[arg(long, value_name = "FILE", conflicts_with = "backends")]
    pub config: Option<PathBuf>,
    /// A model server as http://HOST:PORT; can be given several times.
    #[arg(long = "backend", value_name = "URL")]
    pub backends: Vec<String>,
    /// Port for clients instead of that in listen.gateway; 0 takes a free port.
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Port of Envoy's admin interface instead of that in listen.envoy_admin; 0 takes a free port.
    #[arg(long, value_name = "PORT")]
    pub admin_port: Option<u16>,
    /// File with additional Envoy HTTP filters to place before Penstock's, for example one that checks tokens: an
    /// HttpFilter object of Envoy's API or a list of them, in YAML or JSON; can be given several times.
    #[arg(long = "http-filter", value_name = "FILE")]
    pub http_filters: Vec<PathBuf>,
    /// What Envoy runs the filter as.
    #[arg(long, value_name = "KIND", value_enum, default_value_t = filter_module::Kind::Wasm)]
    pub filter: filter_module::Kind,
    /// Number of companions: one is the leader, the others are standbys that take over when it ends.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=9))]
    pub companions: u8,
}

const EXAMPLE: &str = "Example:\n  penstock up --backend http://127.0.0.1:8000 --backend http://127.0.0.1:8001\n  \
                       penstock up --config penstock.yaml";

/// Options of a gateway.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The configuration file.
    pub config: Option<PathBuf>,
    /// Environment variables that override the file.
    pub environment: Environment,
    /// Model servers, if there is no configuration file.
    pub backends: Vec<String>,
    /// Replaces the port of `listen.gateway`; 0 takes a free port.
    pub port: Option<u16>,
    /// Replaces the port of `listen.envoy_admin`; 0 takes a free port.
    pub admin_port: Option<u16>,
    /// Files with Envoy HTTP filters to place before Penstock's.
    pub http_filters: Vec<PathBuf>,
    /// What Envoy runs the filter as.
    pub filter: filter_module::Kind,
    /// Number of Envoy's worker threads; by default one per core.
    pub workers: Option<u32>,
    /// Flags of `penstock` that the companion gets before its command, such as `--log debug`.
    pub flags: Vec<String>,
    /// Number of companions; 0 is the same as 1.
    pub companions: usize,
}

impl From<Args> for Options {
    fn from(args: Args) -> Self {
        let Args { config, backends, port, admin_port, http_filters, filter, companions } = args;
        Self {
            config,
            backends,
            port,
            admin_port,
            http_filters,
            filter,
            companions: companions.into(),
            ..Self::default()
        }
    }
}

/// Why a gateway can't start or continue.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Neither --backend nor --config is given.
    #[error("no model server is given: use --backend URL or --config FILE\n\n{EXAMPLE}")]
    Neither,
    /// Both --backend and --config are given.
    #[error("the configuration file already names the model servers: use --config or --backend, not both")]
    Both,
    /// A backend can't be used.
    #[error(transparent)]
    Backend(#[from] backend::Error),
    /// The configuration can't be used.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// An address is in use or can't be used.
    #[error(transparent)]
    Port(#[from] penstock_envoy::ports::Error),
    /// Several companions can't listen on one unix socket.
    #[error(
        "--companions: listen.grpc is {0}, which only one companion can listen on; write an address like 127.0.0.1:9190"
    )]
    UnixSocket(config::Address),
    /// No Envoy was found.
    #[error(transparent)]
    Find(#[from] find::Error),
    /// The filter's module can't be written.
    #[error(transparent)]
    Filter(#[from] filter_module::Error),
    /// The Envoy that was found can't load the native filter.
    #[error(
        "--filter native: Envoy {0} can't load the native filter, which needs 1.39 or later: use --filter wasm, or name a later Envoy by ENVOY_PATH"
    )]
    TooOldForNative(String),
    /// A file of --http-filter can't be used.
    #[error("--http-filter {0}")]
    HttpFilter(#[from] http_filters::Error),
    /// The certificate for clients can't be used.
    #[error(transparent)]
    Certificate(#[from] certificate_files::Error),
    /// The directory for generated files can't be used.
    #[error("can't use a temporary directory for generated files: {0}; choose another one with TMPDIR")]
    Directory(#[source] io::Error),
    /// Signal handlers can't be installed.
    #[error("can't install signal handlers: {0}")]
    Signal(#[source] io::Error),
    /// A process ended before the gateway was ready.
    #[error("{part} ended before the gateway was ready: {why}")]
    Died {
        /// The process.
        part: Part,
        /// The reason, if it is known.
        why: String,
    },
    /// The companion isn't ready in time, or doesn't answer.
    #[error("the gateway wasn't ready within {0:?}: {1}")]
    NotReady(std::time::Duration, String),
    /// The runtime is shutting down.
    #[error("interrupted")]
    Interrupted,
}

impl Failure for Error {
    fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Neither
                | Self::Both
                | Self::Backend(_)
                | Self::Config(_)
                | Self::Certificate(_)
                | Self::HttpFilter(_)
                | Self::UnixSocket(_)
                | Self::TooOldForNative(_)
        )
    }
}

/// Runs a gateway until SIGTERM or Ctrl-C, then drains it. A second signal ends it at once. SIGHUP reloads the
/// configuration.
///
/// # Errors
/// The gateway can't start or doesn't become ready.
pub async fn run(options: Options) -> Result<(), Error> {
    let mut terminate = signal(SignalKind::terminate()).map_err(Error::Signal)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Signal)?;
    let mut hang_up = signal(SignalKind::hangup()).map_err(Error::Signal)?;
    let mut gateway = tokio::select! {
        started = Gateway::start(options) => started?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    let ready = tokio::select! {
        ready = gateway.wait_ready() => Some(ready),
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
    };
    if let Some(ready) = ready {
        ready?;
        // A closed stdout is no reason to stop.
        let _ = write!(io::stdout().lock(), "{}", gateway.addresses());
        if let Some(inspection) = gateway.inspection() {
            tokio::spawn(async move {
                if let Ok(report) = inspection.await {
                    let _ = write!(io::stderr().lock(), "{report}");
                }
            });
        }
        loop {
            tokio::select! {
                _ = hang_up.recv() => gateway.reload(),
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
            }
        }
    }
    let shortcut = gateway.drain_shortcut();
    tokio::select! {
        () = gateway.shutdown() => return Ok(()),
        _ = terminate.recv() => shortcut.end_now(),
        _ = interrupt.recv() => shortcut.end_now(),
    }
    gateway.shutdown().await;
    Ok(())
}
