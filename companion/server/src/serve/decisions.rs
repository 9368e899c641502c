//! Starts the driver, which makes the decisions, and the companion's part in the elections of leaders.

use std::sync::Arc;

use penstock_config::Config;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::Error;
use crate::base::clock::Clock;
use crate::base::role::RoleReceiver;
use crate::decisions::control_settings::{self, ProcessIdentity};
use crate::decisions::decision_runtime::DecisionRuntime;
use crate::decisions::driver::{self, Leads, ScopeRoles};
use crate::decisions::observe::Observer;
use crate::decisions::reports::Reporters;
use crate::decisions::usage_forwarding;
use crate::election::{self, Elections};
use crate::metrics::Metrics;
use penstock_stores as stores;

/// What the driver and the elections share with the rest of the companion.
pub(super) struct Surroundings<'a> {
    config: &'a Config,
    runtime: &'a DecisionRuntime,
    metrics: &'a Arc<Metrics>,
    clock: Clock,
    may_lead: watch::Receiver<bool>,
}

impl<'a> Surroundings<'a> {
    pub(super) const fn new(
        config: &'a Config,
        runtime: &'a DecisionRuntime,
        metrics: &'a Arc<Metrics>,
        clock: Clock,
        may_lead: watch::Receiver<bool>,
    ) -> Self {
        Self { config, runtime, metrics, clock, may_lead }
    }
}

/// The running driver, and the elections.
pub(super) struct Decisions {
    pub(super) driver: driver::Handle,
    /// The driver's task.
    pub(super) task: JoinHandle<()>,
    /// The controls' roles.
    pub(super) roles: watch::Receiver<ScopeRoles>,
    pub(super) leads: watch::Receiver<Leads>,
    /// With several companions.
    pub(super) elections: Elections,
    /// The roles for the HTTP API.
    pub(super) replica_roles: RoleReceiver,
}

impl Decisions {
    /// Starts both, before the first request can arrive. `restored`: what earlier companions have stored.
    pub(super) async fn start(
        around: Surroundings<'_>,
        identity: ProcessIdentity,
        observer: Observer,
        mut restored: stores::Restored,
    ) -> Result<Self, Error> {
        let Surroundings { config, runtime, metrics, clock, may_lead } = around;
        let settings = control_settings::with_models(config, &identity, &mut restored.models);
        let reports = Reporters::default();
        let spawn = || driver::spawn(settings, clock, observer, reports.clone());
        let started = runtime.enter(spawn);
        // Fails when the driver has ended, which `run_until_signal` notices.
        let _ = usage_forwarding::send_restored(restored, &started.handle).await;
        let member = election::Start {
            driver: started.handle.clone(),
            roles: started.roles.clone(),
            reports,
            metrics: metrics.clone(),
            clock,
            begins: may_lead,
        };
        let (elections, replica_roles) = election::join(config, member)?;
        Ok(Self {
            driver: started.handle,
            task: started.task,
            roles: started.roles,
            leads: started.leads,
            elections,
            replica_roles,
        })
    }
}
