//! Keeps one process running: starts it, restarts it when it dies, and ends it on request.
//!
//! Until the gateway has been ready once, a process that dies isn't restarted, because a retry doesn't repair a wrong
//! configuration.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fmt, io};

use penstock_envoy::child;
use penstock_envoy::run::Envoy;
use penstock_filter_module::Kind;
use tokio::process::{Child, Command};
use tokio::sync::{broadcast, watch};
use tokio::time;

use super::Error;
use super::backoff::Backoff;
use super::companions::Companion;
use super::plan::Plan;

/// Time for the companion to end after its drain, and for Envoy to end, before the process is killed.
const KILL_AFTER: Duration = Duration::from_secs(5);

/// One of the processes of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `penstock serve`: its number from 1, or 0 if it is the only companion.
    Companion(usize),
    /// Envoy with the filter.
    Envoy,
    /// The etcd that keeps the lease of the leader.
    Etcd,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Companion(0) => f.write_str("the companion"),
            Self::Companion(number) => write!(f, "companion {number}"),
            Self::Envoy => f.write_str("Envoy"),
            Self::Etcd => f.write_str("etcd"),
        }
    }
}

/// An event of a process.
#[derive(Clone, Debug)]
pub enum Event {
    /// The process was started.
    Started {
        /// The process.
        part: Part,
        /// The process id.
        pid: u32,
    },
    /// The process died by itself.
    Died {
        /// The process.
        part: Part,
        /// The reason, if it is known.
        why: String,
        /// Time until the restart.
        restart_in: Duration,
    },
}

/// Commands to a supervisor. Only the latest value counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Commands {
    /// Number of requested reloads of the configuration.
    pub reloads: u64,
    /// Number of requested kills of a companion.
    pub kills: u64,
    pub end: End,
}

/// Whether and how to end the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    #[default]
    NotYet,
    /// Drain before.
    Gently,
    /// Don't wait for running requests.
    Now,
}

pub(super) struct Supervisor {
    pub part: Part,
    pub plan: Arc<Plan>,
    pub flags: Vec<String>,
    /// The gateway has been ready once, so a process that dies is restarted.
    pub restarts: Arc<AtomicBool>,
    pub commands: watch::Receiver<Commands>,
    pub events: broadcast::Sender<Event>,
}

impl Supervisor {
    /// Returns when the process was ended on request, or when it died and isn't restarted.
    pub(super) async fn run(mut self) -> Result<(), Error> {
        let part = self.part;
        let mut backoff = Backoff::default();
        loop {
            let started = time::Instant::now();
            let kills = self.commands.borrow().kills;
            let why = match self.start().await {
                Ok(process) => match self.watch(process).await {
                    None => return Ok(()),
                    Some(why) => why,
                },
                Err(why) => why,
            };
            if !self.restarts.load(Ordering::Relaxed) {
                return Err(Error::Died { part, why });
            }
            let restart_in = backoff.after_death(started.elapsed());
            if self.commands.borrow().kills == kills {
                tracing::warn!("{part} died: {why}; restart in {restart_in:?}");
            } else {
                tracing::debug!("{part} was killed on request: {why}; restart in {restart_in:?}");
            }
            self.notify(Event::Died { part, why, restart_in });
            tokio::select! {
                () = time::sleep(restart_in) => {}
                () = requested(&mut self.commands, End::Gently) => return Ok(()),
            }
        }
    }

    async fn start(&self) -> Result<Process, String> {
        let process = match self.part {
            Part::Envoy => {
                Process::Envoy(Envoy::start(&self.plan.envoy).await.map_err(|error| error.to_string())?)
            }
            Part::Companion(number) => {
                let companion = self.plan.companions.get(number.saturating_sub(1));
                let companion = companion.ok_or("the companion isn't planned")?;
                Process::Companion(spawn(command(&self.plan, companion, &self.flags)).await?)
            }
            Part::Etcd => {
                let etcd = self.plan.etcd.as_ref().ok_or("etcd isn't planned")?;
                Process::Etcd(spawn(etcd.command()).await?)
            }
        };
        if let Some(pid) = process.id() {
            self.notify(Event::Started { part: self.part, pid });
        }
        Ok(process)
    }

    /// Waits until the process dies and returns the reason; `None` if it was ended on request.
    async fn watch(&mut self, mut process: Process) -> Option<String> {
        let Commands { mut reloads, mut kills, .. } = *self.commands.borrow_and_update();
        loop {
            let commands = *self.commands.borrow_and_update();
            if commands.end != End::NotYet {
                process.end(&mut self.commands, self.plan.drain).await;
                return None;
            }
            if commands.reloads != reloads {
                reloads = commands.reloads;
                process.reload();
            }
            if commands.kills != kills {
                kills = commands.kills;
                process.kill();
            }
            tokio::select! {
                why = process.died() => return Some(why),
                changed = self.commands.changed() => if changed.is_err() {
                    // The gateway was dropped, and dropping the process kills it.
                    return None;
                },
            }
        }
    }

    fn notify(&self, event: Event) {
        // Without receivers the event is dropped.
        let _ = self.events.send(event);
    }
}

async fn spawn(command: Command) -> Result<Child, String> {
    let child = child::spawn(command).await;
    child.map_err(|error| format!("the process can't be started: {error}"))
}

/// A running process of any kind. Dropping it kills the process.
enum Process {
    Companion(Child),
    Envoy(Envoy),
    Etcd(Child),
}

impl Process {
    fn id(&self) -> Option<u32> {
        match self {
            Self::Companion(child) | Self::Etcd(child) => child.id(),
            Self::Envoy(envoy) => envoy.id(),
        }
    }

    /// Cancel-safe.
    async fn died(&mut self) -> String {
        match self {
            Self::Companion(child) | Self::Etcd(child) => match child.wait().await {
                Ok(status) => status.to_string(),
                Err(why) => why.to_string(),
            },
            Self::Envoy(envoy) => envoy.wait().await.to_string(),
        }
    }

    /// Reloads a companion's configuration. The other processes have none to reload.
    fn reload(&self) {
        match self {
            Self::Companion(child) => child::signal(child, libc::SIGHUP),
            Self::Envoy(_) | Self::Etcd(_) => {}
        }
    }

    /// Kills a companion with SIGKILL, as the kernel does when memory is short. The other processes aren't killed.
    fn kill(&self) {
        match self {
            Self::Companion(child) => child::signal(child, libc::SIGKILL),
            Self::Envoy(_) | Self::Etcd(_) => {}
        }
    }

    /// Ends the process. A companion drains; [`End::Now`] ends the drain.
    async fn end(self, commands: &mut watch::Receiver<Commands>, drain: Duration) {
        match self {
            Self::Envoy(envoy) => envoy.stop(KILL_AFTER).await,
            Self::Etcd(mut child) => {
                child::signal(&child, libc::SIGTERM);
                // Dropping the child kills it.
                let _ = time::timeout(KILL_AFTER, child.wait()).await;
            }
            Self::Companion(mut child) => {
                // SIGTERM would hand waiting requests over to another companion, but this Envoy ends as well.
                child::signal(&child, libc::SIGINT);
                let limit = drain.saturating_add(KILL_AFTER);
                tokio::select! {
                    _ = time::timeout(limit, child.wait()) => {}
                    () = requested(commands, End::Now) => {
                        child::signal(&child, libc::SIGINT);
                        // If the companion doesn't end in time, dropping the child kills it.
                        let _ = time::timeout(KILL_AFTER, child.wait()).await;
                    }
                }
            }
        }
    }
}

/// Returns when this end, or a faster one, is requested.
async fn requested(commands: &mut watch::Receiver<Commands>, end: End) {
    // An error means that the gateway was dropped, which also requests the end.
    let _ = commands.wait_for(|commands| commands.end >= end).await;
}

/// Number of an Envoy's sessions: one for each configuration of the filter on each worker. Of WebAssembly the main thread has one, too.
fn sessions(plan: &Plan) -> u32 {
    let workers = plan.envoy.workers;
    let threads = match plan.filter {
        Kind::Wasm => workers.saturating_add(1),
        Kind::Native => workers,
    };
    threads.saturating_mul(plan.plugins)
}

fn command(plan: &Plan, companion: &Companion, flags: &[String]) -> Command {
    let mut command = Command::new(this_program());
    command
        .arg0("penstock")
        .args(flags)
        .arg("serve")
        .arg("--config")
        .arg(&plan.config)
        .args(["--grpc", &companion.grpc.to_string()])
        .args(["--http", &companion.http.to_string()])
        .args(["--envoy-gateway", &plan.listen.gateway.to_string()])
        .args(["--envoy-admin", &plan.listen.envoy_admin.to_string()])
        .arg("--envoy")
        .arg(&plan.pools)
        .args(["--expect-sessions", &sessions(plan).to_string()])
        .envs(companion.variables.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

/// The running program's file. If it was replaced or deleted, the path of the running process' image.
fn this_program() -> PathBuf {
    let image = Path::new("/proc/self/exe");
    std::env::current_exe()
        .and_then(|path| if path.exists() { Ok(path) } else { Err(io::ErrorKind::NotFound.into()) })
        .unwrap_or_else(|_| image.to_owned())
}
