//! Starts the driver, which makes the decisions, and the companion's part in the election of the leader.

use std::sync::Arc;

use penstock_config::Config;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::Error;
use crate::clock::Clock;
use crate::control_settings::{self, ProcessIdentity};
use crate::decision_runtime::DecisionRuntime;
use crate::driver::{self, RoleTerm};
use crate::metrics::Metrics;
use crate::observe::Observer;
use crate::replicas::{self, Election};
use crate::role::RoleReceiver;
use crate::{stores, usage_forwarding};

/// What the driver and the election share with the rest of the companion.
pub(super) struct Surroundings<'a> {
    config: &'a Config,
    runtime: &'a DecisionRuntime,
    metrics: &'a Arc<Metrics>,
    clock: Clock,
}

impl<'a> Surroundings<'a> {
    pub(super) const fn new(
        config: &'a Config,
        runtime: &'a DecisionRuntime,
        metrics: &'a Arc<Metrics>,
        clock: Clock,
    ) -> Self {
        Self {
            config,
            runtime,
            metrics,
            clock,
        }
    }
}

/// The running driver, and the election.
pub(super) struct Decisions {
    pub(super) driver: driver::Handle,
    /// The driver's task.
    pub(super) task: JoinHandle<()>,
    /// The control's role.
    pub(super) role: watch::Receiver<RoleTerm>,
    /// With several companions.
    pub(super) election: Option<Election>,
    /// The role for the HTTP API.
    pub(super) replica_role: RoleReceiver,
}

impl Decisions {
    /// Starts both, before the first request can arrive. `restored`: what earlier companions have stored.
    pub(super) async fn start(
        around: Surroundings<'_>,
        identity: ProcessIdentity,
        observer: Observer,
        mut restored: stores::Restored,
    ) -> Result<Self, Error> {
        let Surroundings {
            config,
            runtime,
            metrics,
            clock,
        } = around;
        let settings = control_settings::with_models(config, &identity, &mut restored.models);
        let reports = replicas::Reporter::new();
        let spawn = || driver::spawn(settings, clock, observer, reports.clone());
        let started = runtime.enter(spawn);
        // Fails when the driver has ended, which `run_until_signal` notices.
        let _ = usage_forwarding::send_restored(restored, &started.handle).await;
        let member = replicas::Start {
            driver: started.handle.clone(),
            role: started.role.clone(),
            reports,
            metrics: metrics.clone(),
            clock,
        };
        let (election, replica_role) = replicas::join(config.replicas.as_ref(), member)?;
        Ok(Self {
            driver: started.handle,
            task: started.task,
            role: started.role,
            election,
            replica_role,
        })
    }
}
