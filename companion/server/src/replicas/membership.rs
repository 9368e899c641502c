//! One companion among several: connects the elections of leaders with the controls, the metrics and the HTTP API.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use penstock_config::{Companions, Config, Per, Replicas};
use penstock_control::{LeadershipChange, Scope};
use penstock_election::{RoleChange, Settings};
use tokio::sync::watch;

use super::{Election, Error, Reporters, RoleSink};
use crate::clock::Clock;
use crate::driver::{Gone, Handle, RoleTerms};
use crate::essential;
use crate::grpc::companions::Peers;
use crate::metrics::Metrics;
use crate::role::RoleReceiver;
use crate::role_publisher::RolePublisher;

/// The name of the task that publishes the roles.
const PUBLISHER: &str = "the companion's roles";
/// The name of a task that follows an election.
const FOLLOWER: &str = "the state of the lease store";

/// What a companion needs to take part in the elections of leaders.
#[derive(Debug)]
pub struct Start {
    /// The driver, which owns the controls.
    pub driver: Handle,
    /// The controls' roles.
    pub roles: watch::Receiver<RoleTerms>,
    /// The reports of the controls.
    pub reports: Reporters,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// The companion's clock.
    pub clock: Clock,
}

/// The elections in which this companion takes part: one for all pools, or one for each. Cheap to clone. Without `replicas`
/// there is none.
#[derive(Clone, Debug)]
pub struct Elections(Option<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    replicas: Replicas,
    peers: Arc<Peers>,
    /// The last claim got no answer.
    is_claim_unanswered: Arc<AtomicBool>,
    driver: Handle,
    reports: Reporters,
    metrics: Arc<Metrics>,
    clock: Clock,
    running: Mutex<BTreeMap<Scope, Election>>,
    stores: Arc<StoreStates>,
}

/// Takes part in the elections of leaders, if there are several companions. Returns the elections and the roles.
///
/// # Errors
/// If the lease store can't be used with this binary or this configuration.
pub fn join(config: &Config, start: Start) -> Result<(Elections, RoleReceiver), Error> {
    let Some(replicas) = &config.replicas else {
        return Ok((Elections::none(), None));
    };
    let (publisher, receiver) = RolePublisher::new(replicas.per, replicas.advertise, start.metrics.clone());
    let elections = Elections(Some(Arc::new(Shared {
        peers: Arc::new(Peers {
            own: replicas.advertise,
            tls: config.tls.clone(),
            name: match &replicas.companions {
                Companions::Dns { name, .. } => Some(name.clone()),
                Companions::List(_) => None,
            },
        }),
        is_claim_unanswered: Arc::default(),
        replicas: replicas.clone(),
        driver: start.driver,
        reports: start.reports,
        stores: Arc::new(StoreStates::new(start.metrics.clone())),
        metrics: start.metrics,
        clock: start.clock,
        running: Mutex::default(),
    })));
    elections.configure(config)?;
    essential::spawn(PUBLISHER, publish(publisher, start.roles));
    Ok((elections, Some(receiver)))
}

impl Elections {
    /// Those of a companion that is alone.
    #[must_use]
    pub const fn none() -> Self {
        Self(None)
    }

    /// Takes part in the elections that this configuration needs, and no longer in others.
    ///
    /// # Errors
    /// If the lease store can't be used with this binary or this configuration.
    pub fn configure(&self, config: &Config) -> Result<(), Error> {
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
        let mut running = shared.running.lock().unwrap_or_else(PoisonError::into_inner);
        for (scope, election) in running.extract_if(.., |scope, _| !scopes.contains(scope)) {
            shared.leave(&scope, election);
        }
        for scope in scopes {
            if let Entry::Vacant(place) = running.entry(scope) {
                let election = shared.join(place.key())?;
                place.insert(election);
            }
        }
        Ok(())
    }

    /// Leaves a pool to the companion at `address`, if this companion leads the pool and the pool prefers the other one. Returns
    /// whether it does.
    pub async fn yield_to(&self, pool: &str, address: SocketAddr) -> bool {
        let Some(shared) = &self.0 else {
            return false;
        };
        let is_listed = match &shared.replicas.companions {
            Companions::List(list) => list.contains(&address),
            Companions::Dns { .. } => true,
        };
        let election = {
            let running = shared.running.lock().unwrap_or_else(PoisonError::into_inner);
            let election = running.get(&Scope::Pool(pool.into())).filter(|_| is_listed);
            election.map(Election::commands)
        };
        match election {
            Some(commands) => Election::yield_to(commands, address.to_string()).await,
            None => false,
        }
    }

    /// Gives all leases up, so that other companions lead at once, and takes no further part. Returns when the store has
    /// confirmed it. While the store can't be reached that may take forever, so the caller sets a limit.
    pub async fn resign(&self) {
        let Some(shared) = &self.0 else {
            return;
        };
        let running = {
            let mut running = shared.running.lock().unwrap_or_else(PoisonError::into_inner);
            core::mem::take(&mut *running)
        };
        futures_util::future::join_all(running.into_values().map(Election::resign)).await;
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
            peers: self.peers.clone(),
            is_claim_unanswered: self.is_claim_unanswered.clone(),
        };
        let pool = scope.pool().map(|pool| &**pool);
        let reports = self.reports.of(scope);
        let election = super::spawn(&self.replicas.lease, pool, settings, self.clock, sink, reports)?;
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

    /// The pool was removed: nobody needs to lead it.
    fn leave(&self, scope: &Scope, election: Election) {
        self.reports.remove(scope);
        tokio::spawn(election.resign());
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
        Self {
            up: Mutex::default(),
            metrics,
        }
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
    peers: Arc<Peers>,
    is_claim_unanswered: Arc<AtomicBool>,
}

impl RoleSink for ControlSink {
    async fn apply(&mut self, change: RoleChange) -> Result<(), Gone> {
        let change = leadership_change(change);
        self.driver.change_leadership(self.scope.clone(), change).await
    }

    fn claim(&mut self, leader: String) {
        if let Scope::Pool(pool) = &self.scope {
            let claim = Claim {
                pool: pool.clone(),
                leader,
                peers: self.peers.clone(),
                is_unanswered: self.is_claim_unanswered.clone(),
            };
            tokio::spawn(claim.make(self.driver.clone()));
        }
    }

    fn renewed(&mut self, took: Duration) {
        self.metrics.record_lease_renewal(took);
    }
}

/// A request to the leader of a pool that prefers this companion.
struct Claim {
    pool: Arc<str>,
    leader: String,
    peers: Arc<Peers>,
    is_unanswered: Arc<AtomicBool>,
}

impl Claim {
    /// Asks the leader, if this companion has a ready endpoint of the pool.
    async fn make(self, driver: Handle) {
        let (pool, leader) = (&*self.pool, &*self.leader);
        let Ok(status) = driver.status().await else {
            return;
        };
        let mut endpoints = (status.pools.iter())
            .filter(|status| status.name == self.pool)
            .flat_map(|status| &status.snapshot.endpoints);
        let Ok(address) = leader.parse() else { return };
        if !endpoints.any(|endpoint| endpoint.ready) {
            tracing::debug!(
                pool,
                "no endpoint is ready, so the leader isn't asked to leave the pool"
            );
            return;
        }
        let answer = self.peers.claim(pool, address).await;
        let was_unanswered = self.is_unanswered.swap(answer.is_err(), Ordering::Relaxed);
        match answer {
            Ok(true) => tracing::info!(pool, leader, "the leader leaves the pool to this companion"),
            Ok(false) => tracing::debug!(pool, leader, "the leader keeps the pool"),
            Err(why) if was_unanswered => tracing::debug!(pool, leader, %why, "the leader doesn't answer"),
            Err(why) => tracing::warn!(
                pool,
                leader,
                "the leader can't be asked to leave the pool to this companion, which the pool prefers: {why}; pools spread over the \
                 companions again when it answers, and until then the leader keeps them"
            ),
        }
    }
}

fn leadership_change(change: RoleChange) -> LeadershipChange {
    match change {
        RoleChange::Lead {
            term,
            known,
            is_last_leader_gone,
            grants_until,
        } => LeadershipChange::Lead {
            term,
            known,
            is_last_leader_gone,
            grants_until,
        },
        RoleChange::Renewed { term, grants_until } => LeadershipChange::Renewed { term, grants_until },
        RoleChange::StoreUnreachable => LeadershipChange::StoreUnreachable,
        RoleChange::StandBy { leader, term } => LeadershipChange::StandBy {
            leader: leader.map(Into::into),
            term,
        },
    }
}

/// Publishes the roles of the controls. Ends with the driver.
async fn publish(mut publisher: RolePublisher, mut roles: watch::Receiver<RoleTerms>) {
    loop {
        publisher.publish(&roles.borrow_and_update());
        if roles.changed().await.is_err() {
            return;
        }
    }
}
