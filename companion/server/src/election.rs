//! Several companions with the same configuration: the task that takes part in the election of their leader.
//!
//! The election itself is [`penstock_election`]. This module carries its requests to the lease store and passes its changes of
//! role to the control. Both happen outside of the thread that decides about requests.

mod claims;
pub(crate) mod companions;
#[cfg_attr(not(feature = "etcd"), path = "election/without_etcd.rs")]
mod etcd;
mod file;
mod health;
#[cfg_attr(not(feature = "kubernetes"), path = "election/without_kubernetes.rs")]
mod kubernetes;
mod membership;
mod pool_lease;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod record;
pub(crate) mod role_publisher;
mod store;
mod task;

use std::time::Duration;

use penstock_config::Lease;
use penstock_election::{Candidate, RoleChange, RoleStatus, Settings};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinHandle};

pub(crate) use self::membership::{Elections, Start, join};
use self::store::LeaseStore;
use self::task::{Command, Task};
use crate::base::clock::{self, Clock};
use crate::base::essential;
use crate::decisions::driver::Gone;
use crate::decisions::reports::Reporter;

/// Commands of the process that wait for the task.
const COMMANDS: usize = 4;

/// The part of the service that a change of role concerns: the control.
pub trait RoleSink: Send + 'static {
    /// Applies a change. Returns when the control has applied it: the lease isn't released before the control has stopped
    /// granting.
    ///
    /// # Errors
    /// When the driver has ended.
    fn apply(&mut self, change: RoleChange) -> impl Future<Output = Result<(), Gone>> + Send;

    /// The pool prefers this companion to its leader at this address: asks that one to leave the pool, if this companion could serve
    /// it. Doesn't wait for the answer.
    fn claim(&mut self, leader: String) {
        let _ = leader;
    }

    /// The store answered a renewal after this time, for the metrics.
    fn renewed(&mut self, took: Duration) {
        let _ = took;
    }
}

/// The lease store can't be used at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The binary lacks a Cargo feature.
    #[error(
        "this binary was built without {0}; build it with `--features {0}`, or use another `replicas.lease`"
    )]
    Absent(&'static str),
    /// An endpoint of etcd isn't usable.
    #[error("replicas.lease.etcd.endpoints: {endpoint}: {why}")]
    Endpoint {
        /// The URL.
        endpoint: String,
        /// The reason.
        why: String,
    },
}

/// The state of this companion among its replicas, for display.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Whether this companion has the lease.
    pub role: RoleStatus,
    /// The lease store answers.
    pub store_up: bool,
}

/// Sends commands to an election. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Commands(mpsc::Sender<Command>);

/// The running election.
#[derive(Debug)]
pub struct Election {
    commands: mpsc::Sender<Command>,
    status: watch::Receiver<Status>,
    task: JoinHandle<()>,
}

/// Starts this companion's part in the election of the leader; `pool`: of this pool, where each has a leader of its own. `reports`:
/// those of the control. `begins`: the companion takes no part before this is true.
///
/// # Errors
/// If the store can't be used with this binary or this configuration. A store that isn't reachable is no error.
pub fn spawn(
    lease: &Lease,
    pool: Option<&str>,
    settings: Settings,
    clock: Clock,
    sink: impl RoleSink,
    reports: Reporter,
    begins: watch::Receiver<bool>,
) -> Result<Election, Error> {
    let identity = store::identity(&settings.address);
    let duration = settings.duration;
    let own = pool.map(|pool| pool_lease::place(lease, pool));
    let start = Starting { pool: pool.map(str::to_owned), settings, clock, reports, begins };
    Ok(match own.as_ref().unwrap_or(lease) {
        Lease::Etcd { endpoints, prefix } => {
            let store = etcd::Etcd::new(endpoints, prefix, identity, duration)?;
            start.with(store, sink)
        }
        Lease::Kubernetes { namespace, name } => {
            let store = kubernetes::Kubernetes::new(namespace, name, identity, duration)?;
            start.with(store, sink)
        }
        Lease::File(path) => start.with(file::File::new(path), sink),
    })
}

/// An election that starts, before its store is known.
struct Starting {
    pool: Option<String>,
    settings: Settings,
    clock: Clock,
    reports: Reporter,
    begins: watch::Receiver<bool>,
}

impl Starting {
    fn with(self, store: impl LeaseStore, sink: impl RoleSink) -> Election {
        let (commands, inbox) = mpsc::channel(COMMANDS);
        let (status_sender, status) = watch::channel(Status::default());
        let unix_ms = u64::try_from(clock::unix().as_millis()).unwrap_or(u64::MAX);
        let duration = self.settings.duration;
        let candidate = Candidate::new(self.settings, self.clock.now(), unix_ms);
        let task = Task::new(store, candidate, duration, self.clock, sink, status_sender);
        let task = task.of_pool(self.pool).run(self.reports, inbox, self.begins);
        Election { commands, status, task: essential::spawn("the leader election", task) }
    }
}

impl Election {
    /// The state, and a notice of each change.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }

    /// Has this companion leave the pool to the one at `to`, if it leads the pool and the pool prefers the other one. Returns whether
    /// it does.
    pub(crate) async fn yield_to(commands: Commands, to: String) -> bool {
        let (reply, answer) = oneshot::channel();
        let sent = commands.0.send(Command::Yield { to, reply }).await;
        sent.is_ok() && answer.await.unwrap_or(false)
    }

    /// Sends commands to the election.
    #[must_use]
    pub(crate) fn commands(&self) -> Commands {
        Commands(self.commands.clone())
    }

    /// Ends the task when it is still running, and leaves a held lease to expire.
    pub(crate) fn abort_handle(&self) -> AbortHandle {
        self.task.abort_handle()
    }

    /// Gives the lease up, if this companion has it, and takes no further part. Returns when the store has confirmed it. While the
    /// store can't be reached that may take forever, so the caller sets a limit.
    pub async fn resign(self) {
        self.end(Command::Resign).await;
    }

    /// Gives the lease up as [`Self::resign`] does, and goes on to tell the control who leads.
    pub(crate) async fn leave(commands: Commands) {
        let (reply, answer) = oneshot::channel();
        // Fails when the task has ended.
        let _ = commands.0.send(Command::Leave(reply)).await;
        let _ = answer.await;
    }

    /// Takes no further part, and leaves a held lease to expire.
    pub async fn stop(self) {
        self.end(Command::Stop).await;
    }

    async fn end(self, command: Command) {
        // Fails when the task has ended.
        let _ = self.commands.send(command).await;
        let _ = self.task.await;
    }
}

#[cfg(test)]
mod tests;
