//! Kubernetes Events about InferencePools, where operators of Kubernetes look first (`kubectl describe inferencepool`).
//!
//! The state of each pool is compared with the last one every few seconds, apart from any decision. Of several companions the
//! pool's leader writes. The pool's status belongs to the gateway's controller and is left alone. A failure to write is
//! logged once and changes nothing else.

mod changes;
mod publisher;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use penstock_config::{Config, Discovery, KubernetesObject, Pool};
use penstock_control::PoolStatus;
use penstock_engine::Outcome;
use penstock_model::learner::State;
use tokio::time::{Instant, MissedTickBehavior};

use self::changes::{Changes, Facts, Variant};
use self::publisher::Publisher;
use crate::active::reload;
use crate::base::essential;
use crate::base::role::RoleReceiver;
use crate::decisions::driver::Handle;

/// Between two looks at the pools.
const INTERVAL: Duration = Duration::from_secs(5);

/// Starts the task that writes Events, until the companion shuts down.
///
/// # Panics
/// Outside a tokio runtime.
pub(crate) fn spawn(config: reload::Handle, driver: Handle, roles: RoleReceiver) {
    essential::spawn("Events about InferencePools", run(config, driver, roles));
}

/// An InferencePool, by which a pool's endpoints are found.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    /// `None`: that of the companion's pod.
    namespace: Option<String>,
    name: String,
}

impl Target {
    fn of(pool: &Pool) -> Option<Self> {
        match pool.discovery.as_ref()? {
            Discovery::Kubernetes { object: KubernetesObject::InferencePool(name), namespace, .. } => {
                Some(Self { namespace: namespace.clone(), name: name.clone() })
            }
            Discovery::Kubernetes { object: KubernetesObject::Service { .. }, .. }
            | Discovery::Dns { .. }
            | Discovery::File(_) => None,
        }
    }
}

async fn run(config: reload::Handle, driver: Handle, roles: RoleReceiver) {
    let mut publisher = Publisher::default();
    let mut pools: BTreeMap<Arc<str>, Changes> = BTreeMap::new();
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let config = config.active().config;
        let targets = targets(&config);
        let leads = |pool: &str| {
            let roles = roles.as_ref().map(|roles| roles.borrow().of(pool));
            roles.is_none_or(|role| role.is_leader())
        };
        pools.retain(|pool, _| targets.contains_key(&**pool) && leads(pool));
        if !targets.keys().any(|pool| leads(pool)) {
            continue;
        }
        // It fails when the companion shuts down.
        let Ok(status) = driver.status().await else { return };
        for pool in &status.pools {
            let configured = config.pools.iter().find(|other| other.name == *pool.name);
            let (Some(target), Some(configured), true) =
                (targets.get(&*pool.name), configured, leads(&pool.name))
            else {
                continue;
            };
            let changes = pools.entry(pool.name.clone()).or_default();
            let facts = facts(pool, configured);
            for notice in changes.update(Instant::now().into_std(), facts) {
                publisher.publish(&pool.name, target, &notice).await;
            }
        }
    }
}

fn targets(config: &Config) -> BTreeMap<&str, Target> {
    let targets = config.pools.iter();
    targets.filter_map(|pool| Some((pool.name.as_str(), Target::of(pool)?))).collect()
}

fn facts(pool: &PoolStatus, configured: &Pool) -> Facts {
    let queue = &configured.policy.queue;
    let counters = &pool.snapshot.counters;
    let refused = Outcome::ALL.into_iter().filter(|outcome| outcome.is_for_full_queue());
    let variants = pool.model.iter().flat_map(|model| &model.variants);
    let learned = variants.filter(|variant| variant.state == State::Converged).filter_map(|variant| {
        let parameters = variant.parameters?;
        Some((variant.name.clone(), Variant { parameters, n_star: variant.n_star }))
    });
    Facts {
        ready: pool.snapshot.ready_endpoints,
        waiting: pool.snapshot.waiting,
        capacity: queue.total_capacity,
        longest_wait: queue.longest_wait(),
        refused: refused.map(|outcome| counters.outcome(outcome)).sum(),
        learned: learned.collect(),
    }
}
