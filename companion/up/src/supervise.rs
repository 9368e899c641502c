//! Keeps one process running: starts it, starts it again when it dies, ends it when told.
//!
//! Until the gateway has been ready once, a death is the end: a wrong configuration doesn't get better by trying.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use penstock_envoy::{bootstrap, child, run::Envoy};
use tokio::{
    process::{Child, Command},
    sync::{broadcast, watch},
    time,
};

use super::{Error, backoff::Backoff, plan::Plan};

/// What a companion may take beyond its drain, and Envoy at all, before it is killed.
const PATIENCE: Duration = Duration::from_secs(5);

/// One of the processes of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `penstock serve`.
    Companion,
    /// Envoy with the filter.
    Envoy,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Companion => "the companion",
            Self::Envoy => "Envoy",
        })
    }
}

/// What happened to a process.
#[derive(Clone, Debug)]
pub enum Event {
    /// It runs.
    Started {
        /// Which.
        part: Part,
        /// Its process number.
        pid: u32,
    },
    /// It died by itself.
    Died {
        /// Which.
        part: Part,
        /// As far as it is known.
        why: String,
        /// When it is started again.
        again_in: Duration,
    },
}

/// What a supervisor is told. The latest counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Orders {
    /// How often the configuration was to be read again.
    pub reloads: u64,
    pub end: End,
}

/// Whether to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    #[default]
    NotYet,
    /// Drain first.
    Gently,
    /// Don't wait for what runs.
    Now,
}

pub(super) struct Supervisor {
    pub part: Part,
    pub plan: Arc<Plan>,
    pub flags: Vec<String>,
    pub established: Arc<AtomicBool>,
    pub orders: watch::Receiver<Orders>,
    pub events: broadcast::Sender<Event>,
}

impl Supervisor {
    /// Returns when it was told to end, or with the death that it doesn't repair.
    pub(super) async fn run(mut self) -> Result<(), Error> {
        let part = self.part;
        let mut record = Backoff::default();
        loop {
            let started = time::Instant::now();
            let why = match self.start().await {
                Ok(process) => match self.watch(process).await {
                    None => return Ok(()),
                    Some(why) => why,
                },
                Err(why) => why,
            };
            if !self.established.load(Ordering::Relaxed) {
                return Err(Error::Died { part, why });
            }
            let again_in = record.died(started.elapsed());
            tracing::warn!("{part} died: {why}; starting it again in {again_in:?}");
            self.tell(Event::Died { part, why, again_in });
            tokio::select! {
                () = time::sleep(again_in) => {}
                () = ended(&mut self.orders, End::Gently) => return Ok(()),
            }
        }
    }

    async fn start(&self) -> Result<Process, String> {
        let process = match self.part {
            Part::Envoy => Process::Envoy(
                Envoy::start(&self.plan.envoy)
                    .await
                    .map_err(|why| why.to_string())?,
            ),
            Part::Companion => {
                let child = child::spawn(companion(&self.plan, &self.flags)).await;
                Process::Companion(child.map_err(|why| format!("it can't be started: {why}"))?)
            }
        };
        if let Some(pid) = process.id() {
            self.tell(Event::Started { part: self.part, pid });
        }
        Ok(process)
    }

    /// Until it dies, and why; or until it was ended as told.
    async fn watch(&mut self, mut process: Process) -> Option<String> {
        let mut reloads = self.orders.borrow_and_update().reloads;
        loop {
            let orders = *self.orders.borrow_and_update();
            if orders.end != End::NotYet {
                process.end(&mut self.orders, self.plan.drain).await;
                return None;
            }
            if orders.reloads != reloads {
                reloads = orders.reloads;
                process.reload();
            }
            tokio::select! {
                why = process.died() => return Some(why),
                changed = self.orders.changed() => if changed.is_err() {
                    // The gateway was dropped: so is the process.
                    return None;
                },
            }
        }
    }

    fn tell(&self, event: Event) {
        // Nobody may be listening.
        let _ = self.events.send(event);
    }
}

/// A running process of either kind. Dropped, it is killed.
enum Process {
    Companion(Child),
    Envoy(Envoy),
}

impl Process {
    fn id(&self) -> Option<u32> {
        match self {
            Self::Companion(child) => child.id(),
            Self::Envoy(envoy) => envoy.id(),
        }
    }

    /// Cancel-safe.
    async fn died(&mut self) -> String {
        match self {
            Self::Companion(child) => match child.wait().await {
                Ok(status) => status.to_string(),
                Err(why) => why.to_string(),
            },
            Self::Envoy(envoy) => envoy.wait().await.to_string(),
        }
    }

    /// Envoy has nothing to read again.
    fn reload(&self) {
        match self {
            Self::Companion(child) => child::signal(child, libc::SIGHUP),
            Self::Envoy(_) => {}
        }
    }

    /// A companion drains; told again, it ends at once.
    async fn end(self, orders: &mut watch::Receiver<Orders>, drain: Duration) {
        match self {
            Self::Envoy(envoy) => envoy.stop(PATIENCE).await,
            Self::Companion(mut child) => {
                // Not SIGTERM, at which it may leave what waits to another companion: Envoy ends with this one.
                child::signal(&child, libc::SIGINT);
                let most = drain.saturating_add(PATIENCE);
                tokio::select! {
                    _ = time::timeout(most, child.wait()) => {}
                    () = ended(orders, End::Now) => {
                        child::signal(&child, libc::SIGINT);
                        // Killed by the drop if this is too short.
                        let _ = time::timeout(PATIENCE, child.wait()).await;
                    }
                }
            }
        }
    }
}

/// Returns when the order to end is at least this one.
async fn ended(orders: &mut watch::Receiver<Orders>, end: End) {
    // An error means that the gateway was dropped: that is an end as well.
    let _ = orders.wait_for(|orders| orders.end >= end).await;
}

/// Sessions of an Envoy: one for each of the filter's plugin configurations, on each worker and on the main thread.
fn sessions(workers: u32) -> u32 {
    workers.saturating_add(1).saturating_mul(bootstrap::PLUGINS)
}

fn companion(plan: &Plan, flags: &[String]) -> Command {
    let mut command = Command::new(this_program());
    command
        .arg0("penstock")
        .args(flags)
        .arg("serve")
        .arg("--config")
        .arg(&plan.config)
        .args(["--grpc", &plan.listen.grpc.to_string()])
        .args(["--http", &plan.listen.http.to_string()])
        .args(["--envoy-gateway", &plan.listen.gateway.to_string()])
        .args(["--envoy-admin", &plan.listen.envoy_admin.to_string()])
        .arg("--envoy")
        .arg(&plan.pools)
        .args(["--expect-sessions", &sessions(plan.envoy.workers).to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

/// This very program, also after its file was replaced.
fn this_program() -> PathBuf {
    let running = Path::new("/proc/self/exe");
    std::env::current_exe()
        .and_then(|path| {
            if path.exists() {
                Ok(path)
            } else {
                Err(io::ErrorKind::NotFound.into())
            }
        })
        .unwrap_or_else(|_| running.to_owned())
}
