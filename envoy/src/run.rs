//! One Envoy process, from start to stop.
//!
//! Envoy's log comes out as `tracing` events of the target `envoy`. When it ends, [`Envoy::wait`] says why with
//! Envoy's own last words; whether to start another is the caller's decision.

mod log;

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    process::{Child, Command},
    task::JoinHandle,
    time,
};

use crate::child;

/// How one Envoy is started.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The executable, see [`crate::find`].
    pub binary: PathBuf,
    /// The bootstrap's file; its name ends in `.yaml` or `.json`.
    pub bootstrap: PathBuf,
    /// The address of the admin interface, as the bootstrap has it.
    pub admin: SocketAddr,
    /// Worker threads; each opens a session to the companion, and the main thread one more.
    pub workers: u32,
}

/// Envoy couldn't be started, or didn't stay.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program didn't start.
    #[error("{binary} can't be started: {why}", binary = binary.display())]
    Start {
        /// The executable.
        binary: PathBuf,
        /// What the system said.
        why: io::Error,
    },
    /// An address of the bootstrap is taken.
    #[error("Envoy can't listen on {address}: {why}; stop what listens there or choose another port")]
    Address {
        /// The address.
        address: String,
        /// What the system said.
        why: String,
    },
    /// It ended by itself, or was killed.
    #[error("{status}{}{said}", if said.is_empty() { "" } else { ": " })]
    Ended {
        /// Its exit status.
        status: ExitStatus,
        /// The last errors it logged; empty: none.
        said: String,
    },
    /// Validation failed.
    #[error("Envoy refuses {bootstrap}: {said}", bootstrap = bootstrap.display())]
    Refused {
        /// The bootstrap's file.
        bootstrap: PathBuf,
        /// Why.
        said: String,
    },
    /// It runs but doesn't serve.
    #[error("Envoy wasn't ready within {0:?}; its log says why")]
    NotReady(Duration),
}

/// A running Envoy. Dropped, it is killed.
#[derive(Debug)]
pub struct Envoy {
    child: Child,
    admin: SocketAddr,
    tail: Arc<Mutex<log::Tail>>,
    reader: JoinHandle<()>,
}

impl Envoy {
    /// Starts it; it isn't ready yet.
    ///
    /// # Errors
    /// When the program can't be started at all.
    pub async fn start(launch: &Launch) -> Result<Self, Error> {
        let failed = |why| Error::Start {
            binary: launch.binary.clone(),
            why,
        };
        let mut command = Command::new(&launch.binary);
        command
            .arg("--config-path")
            .arg(&launch.bootstrap)
            .args(["--concurrency", &launch.workers.to_string()])
            // Several Envoys live on one machine; none takes over from another.
            .arg("--disable-hot-restart")
            .args(["--log-level", "warning", "--log-format", log::FORMAT])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = child::spawn(command).await.map_err(failed)?;
        let tail = Arc::<Mutex<log::Tail>>::default();
        let reader = tokio::spawn(log::read(child.stderr.take(), Arc::clone(&tail)));
        Ok(Self {
            child,
            admin: launch.admin,
            tail,
            reader,
        })
    }

    /// Its process number; none once it has ended.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Returns when its listeners are open and its filter is loaded.
    ///
    /// # Errors
    /// When it ends before, or `limit` is over.
    pub async fn ready(&mut self, limit: Duration) -> Result<(), Error> {
        let admin = self.admin;
        let answers = async {
            while !says_ready(admin).await {
                time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            ended = self.wait() => Err(ended),
            answer = time::timeout(limit, answers) => answer.map_err(|_| Error::NotReady(limit)),
        }
    }

    /// Waits until it ends, by itself or killed; says why, as far as Envoy told. Cancel-safe.
    pub async fn wait(&mut self) -> Error {
        let status = match self.child.wait().await {
            Ok(status) => status,
            Err(why) => {
                return Error::Start {
                    binary: PathBuf::from("envoy"),
                    why,
                };
            }
        };
        // Its log ends with the process, but may still be in the pipe.
        let _ = time::timeout(Duration::from_secs(1), &mut self.reader).await;
        let said = self.tail.lock().expect("invariant: no one panics with it").text();
        match log::taken_address(&said) {
            Some((address, why)) => Error::Address { address, why },
            None => Error::Ended { status, said },
        }
    }

    /// Asks it to end, and after `patience` makes it. What it logs on the way isn't told.
    pub async fn stop(mut self, patience: Duration) {
        self.reader.abort();
        child::signal(&self.child, libc::SIGTERM);
        if time::timeout(patience, self.child.wait()).await.is_err() {
            // Gone in between: as wanted.
            drop(self.child.kill().await);
        }
    }
}

/// Asks Envoy whether it takes `bootstrap`. Blocks for about a second: it loads the filter too.
///
/// # Errors
/// What Envoy has against it.
pub fn validate(binary: &Path, bootstrap: &Path) -> Result<(), Error> {
    let output = std::process::Command::new(binary)
        .args([
            "--mode",
            "validate",
            "--log-level",
            "error",
            "--log-format",
            log::FORMAT,
            "--config-path",
        ])
        .arg(bootstrap)
        .output()
        .map_err(|why| Error::Start {
            binary: binary.to_owned(),
            why,
        })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::Refused {
        bootstrap: bootstrap.to_owned(),
        said,
    })
}

/// One look at the admin interface's `/ready`.
async fn says_ready(admin: SocketAddr) -> bool {
    let look = async {
        let mut stream = TcpStream::connect(admin).await?;
        stream
            .write_all(b"GET /ready HTTP/1.1\r\nhost: penstock\r\nconnection: close\r\n\r\n")
            .await?;
        let mut head = [0; 12];
        stream.read_exact(&mut head).await?;
        Ok::<_, io::Error>(&head == b"HTTP/1.1 200")
    };
    matches!(time::timeout(Duration::from_secs(1), look).await, Ok(Ok(true)))
}
