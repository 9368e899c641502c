//! `penstock up`: Envoy, the filter and the companion in front of real model servers, in one command.
//!
//! The companion and Envoy are processes of their own, so that either can die and be started again while the other
//! goes on: streams that wait stay in Envoy. [`Gateway`] is the same as a library, for the demo.

mod backend;
mod backoff;
pub mod envoy_config;
mod gateway;
pub mod http_filters;
mod inspect;
mod plan;
mod ports;
mod supervise;

use std::{
    io::{self, Write as _},
    path::PathBuf,
};

use penstock_config as config;
use penstock_envoy::find;
use penstock_filter_module as filter_module;
use tokio::signal::unix::{SignalKind, signal};

pub use gateway::{Addresses, Gateway, Hurry};
pub use supervise::{Event, Part};

/// Flags of `penstock up`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The configuration file; without one, --backend names the model servers.
    #[arg(long, value_name = "FILE", conflicts_with = "backends")]
    pub config: Option<PathBuf>,
    /// A model server, http://HOST:PORT; may be given several times.
    #[arg(long = "backend", value_name = "URL")]
    pub backends: Vec<String>,
    /// Where clients connect, instead of listen.gateway's port; 0: any free one.
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Envoy's admin interface, instead of listen.envoy_admin's port; 0: any free one.
    #[arg(long, value_name = "PORT")]
    pub admin_port: Option<u16>,
    /// Filters of Envoy's own to put before Penstock's, one that checks tokens for example: a file with one of Envoy's
    /// HttpFilter objects, or a list of them, in YAML or JSON; may be given several times.
    #[arg(long = "http-filter", value_name = "FILE")]
    pub http_filters: Vec<PathBuf>,
}

const EXAMPLE: &str = "Example:\n  penstock up --backend http://127.0.0.1:8000 --backend http://127.0.0.1:8001\n  \
                       penstock up --config penstock.yaml";

/// What a gateway is started with.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The configuration file.
    pub config: Option<PathBuf>,
    /// Model servers, if there is no file.
    pub backends: Vec<String>,
    /// Instead of the port of `listen.gateway`; 0: any free one.
    pub port: Option<u16>,
    /// Instead of the port of `listen.envoy_admin`; 0: any free one.
    pub admin_port: Option<u16>,
    /// Files with filters of Envoy's own that come before Penstock's.
    pub http_filters: Vec<PathBuf>,
    /// Envoy's worker threads; as many as cores if it isn't given.
    pub workers: Option<u32>,
    /// Flags of `penstock` for the companion, before its command: `--log debug`.
    pub flags: Vec<String>,
}

impl From<Args> for Options {
    fn from(args: Args) -> Self {
        let Args {
            config,
            backends,
            port,
            admin_port,
            http_filters,
        } = args;
        Self {
            config,
            backends,
            port,
            admin_port,
            http_filters,
            ..Self::default()
        }
    }
}

/// A gateway that doesn't start, or doesn't stay.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No model server is named.
    #[error("no model server is named: give --backend URL or --config FILE\n\n{EXAMPLE}")]
    Neither,
    /// Servers are named twice.
    #[error("the model servers are in the configuration file: give --config or --backend, not both")]
    Both,
    /// A backend can't be used.
    #[error(transparent)]
    Backend(#[from] backend::Error),
    /// The configuration can't be used.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// An address can't be listened on.
    #[error(transparent)]
    Port(#[from] ports::Error),
    /// There is no Envoy.
    #[error(transparent)]
    Find(#[from] find::Error),
    /// The filter's module can't be written.
    #[error(transparent)]
    Filter(#[from] filter_module::Error),
    /// A filter of the user's can't be used.
    #[error("--http-filter {0}")]
    HttpFilter(#[from] http_filters::Error),
    /// The folder for generated files.
    #[error("a temporary folder for generated files: {0}; TMPDIR says where it is made")]
    Folder(#[source] io::Error),
    /// A signal can't be waited for.
    #[error("signals: {0}")]
    Signal(#[source] io::Error),
    /// A child died before the gateway was ready.
    #[error("{part} didn't stay: {why}")]
    Died {
        /// Which.
        part: Part,
        /// As far as it is known.
        why: String,
    },
    /// The companion says it isn't ready, or doesn't answer.
    #[error("the gateway wasn't ready within {0:?}: {1}")]
    NotReady(std::time::Duration, String),
    /// The runtime ends.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// 2: bad usage or configuration, 1: failed at run time.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Neither | Self::Both | Self::Backend(_) | Self::Config(_) | Self::HttpFilter(_) => 2,
            Self::Port(_)
            | Self::Find(_)
            | Self::Filter(_)
            | Self::Folder(_)
            | Self::Signal(_)
            | Self::Died { .. }
            | Self::NotReady(..)
            | Self::Interrupted => 1,
        }
    }
}

/// Runs a gateway until SIGTERM or ^C, then drains it; a second one ends it at once. SIGHUP is passed on.
///
/// # Errors
/// When it can't start, or doesn't become ready.
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
        // Nobody may be reading.
        let _ = write!(io::stdout().lock(), "{}", gateway.addresses());
        if let Some(inspection) = gateway.inspection() {
            tokio::spawn(async move {
                if let Ok(found) = inspection.await {
                    let _ = write!(io::stderr().lock(), "{found}");
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
    let hurry = gateway.hurry();
    tokio::select! {
        () = gateway.shutdown() => return Ok(()),
        _ = terminate.recv() => hurry.now(),
        _ = interrupt.recv() => hurry.now(),
    }
    gateway.shutdown().await;
    Ok(())
}
