//! Runs one Envoy process.
//!
//! Envoy's log becomes `tracing` events with the target `envoy`. When the process ends, [`Envoy::wait`] returns the reason
//! with the last errors of that log. The caller decides whether to start Envoy again.

mod log;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time;

use crate::child;

/// The parameters of an Envoy process.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The executable, see [`crate::find`].
    pub binary: PathBuf,
    /// The bootstrap file; its name ends in `.yaml` or `.json`.
    pub bootstrap: PathBuf,
    /// The address of the admin interface, as the bootstrap has it.
    pub admin: SocketAddr,
    /// Number of worker threads. Each opens a session with the companion, and so does the main thread.
    pub workers: u32,
}

/// Envoy couldn't be started, or has ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program can't be started.
    #[error("{binary} can't be started: {error}", binary = binary.display())]
    Start {
        /// The executable.
        binary: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Another process listens on an address of the bootstrap.
    #[error(
        "Envoy can't listen on {address}: {reason}; stop the process that listens there, or choose another port"
    )]
    Address {
        /// The address.
        address: String,
        /// The system's error.
        reason: String,
    },
    /// Envoy ended by itself, or was killed.
    #[error("{status}{}{log}", if log.is_empty() { "" } else { ": " })]
    Ended {
        /// The exit status.
        status: ExitStatus,
        /// The last errors in the log; empty: none.
        log: String,
    },
    /// The validation failed.
    #[error("Envoy refuses {bootstrap}: {error}", bootstrap = bootstrap.display())]
    Refused {
        /// The bootstrap file.
        bootstrap: PathBuf,
        /// Envoy's error.
        error: String,
    },
    /// Envoy runs but isn't ready.
    #[error("Envoy wasn't ready within {0:?}; look for errors in its log")]
    NotReady(Duration),
}

/// A running Envoy. Dropping it kills the process.
#[derive(Debug)]
pub struct Envoy {
    child: Child,
    admin: SocketAddr,
    tail: Arc<Mutex<log::Tail>>,
    reader: JoinHandle<()>,
}

impl Envoy {
    /// Starts Envoy, and returns before it is ready.
    ///
    /// # Errors
    /// The program can't be started.
    pub async fn start(launch: &Launch) -> Result<Self, Error> {
        let failed = |error| Error::Start { binary: launch.binary.clone(), error };
        let mut command = Command::new(&launch.binary);
        command
            .arg("--config-path")
            .arg(&launch.bootstrap)
            .args(["--concurrency", &launch.workers.to_string()])
            // Several Envoys may run on one machine. Hot restart would make one take over from another.
            .arg("--disable-hot-restart")
            .args(["--log-level", "warning", "--log-format", log::FORMAT])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = child::spawn(command).await.map_err(failed)?;
        let tail = Arc::<Mutex<log::Tail>>::default();
        let reader = tokio::spawn(log::read(child.stderr.take(), Arc::clone(&tail)));
        Ok(Self { child, admin: launch.admin, tail, reader })
    }

    /// The process id; `None` once it has ended.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits until the listeners are open and the filter is loaded.
    ///
    /// # Errors
    /// Envoy ends before, or isn't ready within `limit`.
    pub async fn ready(&mut self, limit: Duration) -> Result<(), Error> {
        let admin = self.admin;
        let readiness = async {
            while !is_ready(admin).await {
                time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            ended = self.wait() => Err(ended),
            result = time::timeout(limit, readiness) => result.map_err(|_| Error::NotReady(limit)),
        }
    }

    /// Waits until the process ends. Returns the reason as far as Envoy has logged it. Cancel-safe.
    pub async fn wait(&mut self) -> Error {
        let status = match self.child.wait().await {
            Ok(status) => status,
            Err(error) => {
                return Error::Start { binary: PathBuf::from("envoy"), error };
            }
        };
        // The end of the log may still be in the pipe.
        let _ = time::timeout(Duration::from_secs(1), &mut self.reader).await;
        let errors = self.tail.lock().expect("invariant: no thread panics while it holds the lock").text();
        match log::taken_address(&errors) {
            Some((address, reason)) => Error::Address { address, reason },
            None => Error::Ended { status, log: errors },
        }
    }

    /// Sends SIGTERM, and kills the process if it hasn't ended after `grace`. Discards its log.
    pub async fn stop(mut self, grace: Duration) {
        self.reader.abort();
        child::signal(&self.child, libc::SIGTERM);
        if time::timeout(grace, self.child.wait()).await.is_err() {
            // An error means that the process has ended in the meantime.
            drop(self.child.kill().await);
        }
    }
}

/// Validates a bootstrap with Envoy, which also loads the filter. Blocks for about a second.
///
/// # Errors
/// Envoy's error.
pub fn validate(binary: &Path, bootstrap: &Path) -> Result<(), Error> {
    let output = std::process::Command::new(binary)
        .args(["--mode", "validate", "--log-level", "error", "--log-format", log::FORMAT, "--config-path"])
        .arg(bootstrap)
        .output()
        .map_err(|error| Error::Start { binary: binary.to_owned(), error })?;
    if output.status.success() {
        return Ok(());
    }
    let error = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::Refused { bootstrap: bootstrap.to_owned(), error })
}

/// Requests `/ready` from the admin interface once.
async fn is_ready(admin: SocketAddr) -> bool {
    let request = async {
        let mut stream = TcpStream::connect(admin).await?;
        stream.write_all(b"GET /ready HTTP/1.1\r\nhost: penstock\r\nconnection: close\r\n\r\n").await?;
        let mut head = [0; 12];
        stream.read_exact(&mut head).await?;
        Ok::<_, io::Error>(&head == b"HTTP/1.1 200")
    };
    matches!(time::timeout(Duration::from_secs(1), request).await, Ok(Ok(true)))
}
