//! One companion among several: connects the elections of leaders with the controls, the metrics and the HTTP API.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_config::{Companions, Config, Per, Replicas};
use penstock_control::Scope;
use penstock_election::{RoleChange, Settings, prefers};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::claims::Claims;
use super::companions::Peers;
use super::{Election, Error, RoleSink};
use crate::base::clock::Clock;
use crate::base::essential;
use crate::base::role::RoleReceiver;
use crate::decisions::driver::{Gone, Handle, ScopeRoles};
use crate::decisions::reports::Reporters;
use crate::election::role_publisher::RolePublisher;
use crate::metrics::Metrics;

/// The name of the task that publishes the roles.
const PUBLISHER: &str = "the companion's roles";
/// The name of a task that follows an election.
const FOLLOWER: &str = "the state of the lease store";

/// What a companion needs to take part in the elections of leaders.
#[derive(Debug)]
pub(crate) struct Start {
    /// The driver, which owns the controls.
    pub(crate) driver: Handle,
    /// The controls' roles.
    pub(crate) roles: watch::Receiver<ScopeRoles>,
    /// The reports of the controls.
    pub(crate) reports: Reporters,
    pub(crate) metrics: Arc<Metrics>,
    /// The companion's clock.
    pub(crate) clock: Clock,
    /// The companion takes no part before this is true.
    pub(crate) begins: watch::Receiver<bool>,
}

/// The elections in which this companion takes part: one for all pools, or one for each. Cheap to clone. Without `replicas`
/// there is none.
#[derive(Clone, Debug)]
pub(crate) struct Elections(Option<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    replicas: Replicas,
    claims: Arc<Claims>,
    driver: Handle,
    reports: Reporters,
    metrics: Arc<Metrics>,
    clock: Clock,
    roles: watch::Receiver<ScopeRoles>,
    members: Mutex<Members>,
    stores: Arc<StoreStates>,
    begins: watch::Receiver<bool>,
}

#[derive(Debug, Default)]
struct Members {
    running: BTreeMap<Scope, Election>,
    /// The running elections whose pools were removed. They end when their controls do, so that the leader keeps the pool until its
    /// last request has ended.
    removed: BTreeSet<Scope>,
    /// Elections that give their leases up.
    resigning: BTreeMap<Scope, AbortHandle>,
}

/// Takes part in the elections of leaders, if there are several companions. Returns the elections and the roles.
///
/// # Errors
/// If the lease store can't be used with this binary or this configuration.
pub(crate) fn join(config: &Config, start: Start) -> Result<(Elections, RoleReceiver), Error> {
    let Some(replicas) = &config.replicas else {
        return Ok((Elections::none(), None));
    };
    let (publisher, receiver) = RolePublisher::new(replicas.per, replicas.advertise, start.metrics.clone());
    let elections = Elections(Some(Arc::new(Shared {
        claims: Arc::new(Claims::new(Peers::new(replicas, config.tls.as_ref()))),
        replicas: replicas.clone(),
        driver: start.driver,
        reports: start.reports,
        stores: Arc::new(StoreStates::new(start.metrics.clone())),
        metrics: start.metrics,
        clock: start.clock,
        begins: start.begins,
        roles: start.roles.clone(),
        members: Mutex::default(),
    })));
    elections.configure(config)?;
    essential::spawn(PUBLISHER, publish(publisher, start.roles, elections.clone()));
    Ok((elections, Some(receiver)))
}

impl Elections {
    /// The elections of a companion that is alone: none.
    #[must_use]
    pub(crate) const fn none() -> Self {
        Self(None)
    }

    /// Takes part in the elections that this configuration needs, and no longer in others.
    ///
    /// # Errors
    /// If the lease store can't be used with this binary or this configuration.
    pub(crate) fn configure(&self, config: &Config) -> Result<(), Error> {
        let Some(shared) = &self.0 else {
            return Ok(());
        };
        let scopes: Vec<Scope> = match shared.replicas.per {
            Per::Gateway => vec![Scope::Gateway],
            Per::Pool => {
                let pools = config.pools.iter();
                pools.map(|pool| Scope::Pool(pool.name.as_str().into())).collect()
            }
        };
        let mut members = shared.members();
        let removed = members.running.keys().filter(|scope| !scopes.contains(scope));
        members.removed = removed.cloned().collect();
        for scope in scopes {
            if members.running.contains_key(&scope) {
                continue;
            }
            if let Some(resigning) = members.resigning.remove(&scope) {
                // It would pass changes of its role to the new control.
                resigning.abort();
            }
            let election = shared.join(&scope)?;
            members.running.insert(scope, election);
        }
        drop(members);
        shared.leave_ended();
        Ok(())
    }

    /// This companion is asking the leader of the pool to leave the pool to it.
    #[must_use]
    pub(crate) fn claims(&self, pool: &str) -> bool {
        self.0.as_ref().is_some_and(|shared| shared.claims.has(pool))
    }

    /// Leaves a pool to the companion at `address`, if this companion leads the pool, and the pool prefers the other one, which
    /// says that it asks for it. Returns whether it does.
    pub(crate) async fn yield_to(&self, pool: &str, address: SocketAddr) -> bool {
        let Some(shared) = &self.0 else {
            return false;
        };
        let may_be_companion = match &shared.replicas.companions {
            Companions::List(list) => list.contains(&address),
            Companions::Dns { port, .. } => address.port() == *port,
        };
        let is_preferred = prefers(pool, &address.to_string(), &shared.replicas.advertise.to_string());
        let pool: Arc<str> = pool.into();
        let commands = {
            let members = shared.members();
            let election = members.running.get(&Scope::Pool(pool.clone()));
            election.map(Election::commands)
        };
        let Some(commands) = commands.filter(|_| may_be_companion && is_preferred) else {
            return false;
        };
        shared.claims.is_real(&pool, address).await && Election::yield_to(commands, address.to_string()).await
    }

    /// Gives all leases up, so that other companions lead at once, and takes no further part. Returns when the store has
    /// confirmed it. While the store can't be reached that may take forever, so the caller sets a limit.
    pub(crate) async fn resign(&self) {
        let Some(shared) = &self.0 else {
            return;
        };
        let running = core::mem::take(&mut shared.members().running);
        futures_util::future::join_all(running.into_values().map(Election::resign)).await;
    }

    /// This companion leads, or is taking over.
    pub(crate) fn has_lease(&self) -> bool {
        let leads = |election: &Election| election.status().borrow().role.is_leader();
        self.0.as_ref().is_some_and(|shared| shared.members().running.values().any(leads))
    }

    /// Gives all leases up as [`Self::resign`] does, and goes on to tell the controls who leads, whom this companion's own picker follows.
    pub(crate) async fn leave(&self) {
        let Some(shared) = &self.0 else {
            return;
        };
        let commands: Vec<_> = shared.members().running.values().map(Election::commands).collect();
        futures_util::future::join_all(commands.into_iter().map(Election::leave)).await;
    }
}

impl Shared {
    fn join(&self, scope: &Scope) -> Result<Election, Error> {
        let settings = Settings {
            address: self.replicas.advertise.to_string(),
            duration: self.replicas.duration,
            pool: scope.pool().map(|pool| pool.to_string()),
        };
        let sink = ControlSink {
            scope: scope.clone(),
            driver: self.driver.clone(),
            metrics: self.metrics.clone(),
            claims: self.claims.clone(),
        };
        let pool = scope.pool().map(|pool| &**pool);
        let (reports, begins) = (self.reports.of(scope), self.begins.clone());
        let election = super::spawn(&self.replicas.lease, pool, settings, self.clock, sink, reports, begins)?;
        let (stores, scope, mut status) = (self.stores.clone(), scope.clone(), election.status());
        essential::spawn(FOLLOWER, async move {
            loop {
                stores.set(&scope, Some(status.borrow_and_update().store_up));
                if status.changed().await.is_err() {
                    return stores.set(&scope, None);
                }
            }
        });
        Ok(election)
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves the elections of removed pools whose controls have ended: nobody needs to lead these pools.
    fn leave_ended(&self) {
        let mut members = self.members();
        let members = &mut *members;
        let roles = self.roles.borrow();
        for scope in members.removed.extract_if(.., |scope| !roles.contains_key(scope)) {
            if let Some(election) = members.running.remove(&scope) {
                self.reports.remove(&scope);
                members.resigning.insert(scope, election.abort_handle());
                tokio::spawn(election.resign());
            }
        }
        members.resigning.retain(|_, task| !task.is_finished());
    }
}

/// Whether the lease stores answer.
#[derive(Debug)]
struct StoreStates {
    up: Mutex<BTreeMap<Scope, bool>>,
    metrics: Arc<Metrics>,
}

impl StoreStates {
    fn new(metrics: Arc<Metrics>) -> Self {
        Self { up: Mutex::default(), metrics }
    }

    /// Sets whether the store answers to the election of a scope; `None`: the election has ended.
    fn set(&self, scope: &Scope, is_up: Option<bool>) {
        let mut up = self.up.lock().unwrap_or_else(PoisonError::into_inner);
        match is_up {
            Some(is_up) => drop(up.insert(scope.clone(), is_up)),
            None => drop(up.remove(scope)),
        }
        self.metrics.set_lease_store_up(up.values().all(|is_up| *is_up));
    }
}

/// Passes changes of the role to a control.
struct ControlSink {
    scope: Scope,
    driver: Handle,
    metrics: Arc<Metrics>,
    claims: Arc<Claims>,
}

impl RoleSink for ControlSink {
    async fn apply(&mut self, change: RoleChange) -> Result<(), Gone> {
        self.driver.change_leadership(self.scope.clone(), change).await
    }

    fn claim(&mut self, leader: String) {
        if let Scope::Pool(pool) = &self.scope {
            let (claims, pool, driver) = (self.claims.clone(), pool.clone(), self.driver.clone());
            tokio::spawn(async move { claims.make(pool, leader, driver).await });
        }
    }

    fn renewed(&mut self, took: Duration) {
        self.metrics.record_lease_renewal(took);
    }
}

/// Publishes the roles of the controls, and leaves the elections of those that have ended. Ends with the driver.
async fn publish(mut publisher: RolePublisher, mut roles: watch::Receiver<ScopeRoles>, elections: Elections) {
    loop {
        publisher.publish(&roles.borrow_and_update());
        if let Some(shared) = &elections.0 {
            shared.leave_ended();
        }
        if roles.changed().await.is_err() {
            return;
        }
    }
}
