//! The control's settings, built from the configuration and the identity of this process.

use std::collections::HashMap;
use std::time::Duration;

use penstock_config::{Config, Pool, Store};
use penstock_control::{CreditSettings, EndpointSettings, Kept, PoolSettings, Settings};
use penstock_data_plane::filter_policy;
use penstock_engine::input::{Band, Role};

use crate::base::clock;

/// Values that are fixed at the start and distinguish this companion from earlier and later ones.
#[derive(Clone, Copy, Debug)]
pub struct ProcessIdentity {
    sessions_expected: Option<usize>,
    term: u64,
    seed: u64,
    exports_spans: bool,
}

impl ProcessIdentity {
    /// The identity of a companion that starts now. A later companion has a larger term, unless the clock is set back by
    /// more than the time between the two starts. With `exports_spans`, filters report what spans need.
    #[must_use]
    pub fn now(sessions_expected: Option<usize>, exports_spans: bool) -> Self {
        let since_epoch = clock::unix();
        Self {
            sessions_expected,
            term: u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX),
            seed: u64::try_from(since_epoch.as_nanos() & u128::from(u64::MAX)).unwrap_or(0),
            exports_spans,
        }
    }
}

/// The longest time that a starting companion waits for the discovery of its pools, before it accepts sessions of filters.
pub(crate) const OPENS_WITHIN: Duration = Duration::from_secs(2);

/// The control's settings for this configuration, without learned models.
#[must_use]
pub fn settings(config: &Config, identity: &ProcessIdentity) -> Settings {
    Settings {
        pools: config
            .pools
            .iter()
            .map(|pool| PoolSettings {
                name: pool.name.clone(),
                models: pool.models.clone(),
                is_default: pool.is_default,
                endpoints: endpoints(pool),
                pending: pool.pending.clone(),
                policy: pool.policy.clone(),
                flow_key: pool.flow_key.clone(),
                class_globs: pool.class_globs.clone(),
                capacity_status: pool.capacity_status,
                requeues: pool.requeues,
                // After `timeouts.first_byte` Envoy sends a request again whatever `requeue_on` says, so the control must answer it.
                resets: if pool.requeue_on.reset { pool.resets } else { 0 },
                credit: pool.gives_credit.then(|| CreditSettings {
                    prefix_min_tokens: pool.prefix_min_tokens,
                    ..CreditSettings::default()
                }),
                slo: pool.slo,
                transient: pool.transient,
                reported: pool.store.is_some(),
                shared: matches!(pool.store, Some(Store::Redis(_))),
                kept: Vec::new(),
                rewrite: pool.rewrite.clone(),
                default_variant: pool.endpoint_defaults.variant.clone(),
                objectives: objectives(config, pool),
            })
            .collect(),
        pool: None,
        policy: filter_policy::frame(config, identity.exports_spans),
        max_priority: config.identity.max_priority.clone(),
        sessions_expected: identity.sessions_expected,
        startup_wait: config.startup_wait,
        opens_within: OPENS_WITHIN,
        flows_shown: config.metric_flows,
        term: identity.term,
        is_replicated: config.replicas.is_some(),
        seed: identity.seed,
    }
}

/// The control's settings for this configuration, with each pool's learned models, which are taken out of `models`.
#[must_use]
pub(crate) fn with_models(
    config: &Config,
    identity: &ProcessIdentity,
    models: &mut HashMap<String, Vec<(String, Kept)>>,
) -> Settings {
    let mut settings = settings(config, identity);
    for pool in &mut settings.pools {
        pool.kept = models.remove(&pool.name).unwrap_or_default();
    }
    settings
}

/// The bands of a pool's objectives.
fn objectives(config: &Config, pool: &Pool) -> Vec<(String, Band)> {
    let all = config.identity.objectives_of(pool);
    all.into_iter().map(|(name, band)| (name.to_owned(), band)).collect()
}

/// The control's settings for a pool's endpoints.
#[must_use]
pub(crate) fn endpoints(pool: &Pool) -> Vec<EndpointSettings> {
    let has_roles = pool.policy.min_uncached_tokens.is_some();
    let endpoints = pool.endpoints.iter().map(|endpoint| EndpointSettings {
        address: endpoint.address.to_string(),
        weight: endpoint.weight,
        ready: pool.health.is_none(),
        variant: endpoint.variant.clone(),
        max_batch: endpoint.max_batch,
        max_batched_tokens: endpoint.max_batched_tokens,
        taints: endpoint.taints.clone(),
        // A file may name roles that the pool doesn't use.
        role: if has_roles { endpoint.role } else { Role::Both },
    });
    endpoints.collect()
}
