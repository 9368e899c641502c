//! A pool, from its parts.

use std::time::Duration;

use penstock_engine::policy::{Policy, Scorers};
use penstock_model::{Targets, slo};

use super::{LABEL_BYTES_MAX, check_name, policy, servers};
use crate::error::Violation;
use crate::pool::has_only_fraction;
use crate::{Discovery, Pool, RequeueOn, Store, compiled, raw};

/// Checks the pool at `path`. `identities_max` is `limits.flows`.
pub(super) fn convert(mut raw: raw::Pool, identities_max: usize, path: &str) -> Result<Pool, Violation> {
    check_name(&raw.name, LABEL_BYTES_MAX, "a name", &format!("{path}.name"))?;
    if let Some(index) = raw.models.0.iter().position(String::is_empty) {
        return Err(Violation::new(
            format!("{path}.models[{index}]"),
            "a glob isn't empty; `*` matches every model",
        ));
    }
    let store = std::mem::take(&mut raw.usage.store);
    let store = convert_store(store, &format!("{path}.usage.store"))?;
    let requeues = raw.queue.requeues.limit();
    let requeue_on = requeue_on(&raw.queue.requeue_on, path)?;
    let gives_credit = matches!(raw.queue.credits, raw::Credits::Auto);
    let slo = slo(&raw.slo, path)?;
    let parts = policy::Parts {
        down: raw.down,
        queue: raw.queue,
        stock: raw.stock,
        arbitration: raw.arbitration,
        usage: raw.usage,
        slo: raw.slo,
        reject_unmeetable: raw.reject_unmeetable,
        scheduler: Scorers {
            stock: raw.scheduler.stock.0,
            queue: raw.scheduler.queue.0,
            kv_cache: raw.scheduler.kv_cache.0,
            prefix: raw.scheduler.prefix.0,
            lora: raw.scheduler.lora.0,
        },
    };
    let policy::Converted { policy, flow_key, class_globs } = policy::convert(parts, identities_max, path)?;
    let endpoints = servers::endpoints(raw.endpoints, path)?;
    check_fractions(&policy, &class_globs, &endpoints, path)?;
    Ok(Pool {
        endpoints: endpoints.listed,
        discovery: endpoints.discovery,
        pending: Vec::new(),
        endpoint_defaults: endpoints.defaults,
        rewrite: servers::rewrite(raw.rewrite.0, path)?,
        health: servers::health(&raw.health, path)?,
        scrape: servers::scrape(&raw.scrape, path)?,
        policy,
        slo,
        transient: raw.model.transient.0,
        flow_key,
        class_globs,
        requeues,
        requeue_on,
        gives_credit,
        prefix_min_tokens: raw.scheduler.prefix_min_tokens.0,
        store,
        hold: raw.companion_down.hold.0,
        then: raw.companion_down.then,
        capacity_status: if raw.capacity_status.0 == 429 { 429 } else { 503 },
        name: raw.name,
        models: raw.models.0,
    })
}

/// Checks that the batched tokens of every endpoint are known, if a class has its prefill threshold only as a fraction of them.
/// A file of endpoints is checked when it is read.
fn check_fractions(
    policy: &Policy,
    class_globs: &[String],
    endpoints: &servers::Endpoints,
    path: &str,
) -> Result<(), Violation> {
    let unknown = match &endpoints.discovery {
        _ if endpoints.defaults.max_batched_tokens.is_some() => None,
        None => {
            let mut listed = endpoints.listed.iter();
            listed
                .find(|endpoint| endpoint.max_batched_tokens.is_none())
                .map(|endpoint| format!("of endpoint {}", endpoint.address))
        }
        Some(Discovery::Dns { .. }) => Some("of the endpoints of dns".to_owned()),
        Some(Discovery::Kubernetes { labels, .. }) if labels.max_batched_tokens.is_none() => {
            Some("of the endpoints of kubernetes".to_owned())
        }
        Some(Discovery::File(_) | Discovery::Kubernetes { .. }) => None,
    };
    let Some(unknown) = unknown else {
        return Ok(());
    };
    for (set, classes) in policy.classes.iter().enumerate() {
        let Some(index) = classes.classes.iter().position(has_only_fraction) else {
            continue;
        };
        let glob = set.checked_sub(1).and_then(|index| class_globs.get(index));
        let models = glob.map_or_else(String::new, |glob| format!(".models.{glob}"));
        return Err(Violation::new(
            format!("{path}.arbitration.classes{models}.policy_classes[{index}].prefill_busy_threshold_frac"),
            format!(
                "a fraction needs the max_batched_tokens {unknown}; set endpoints.defaults.max_batched_tokens, or \
                 prefill_busy_threshold in place of the fraction"
            ),
        ));
    }
    Ok(())
}

fn requeue_on(raw: &[raw::RequeueCause], path: &str) -> Result<RequeueOn, Violation> {
    for (index, cause) in raw.iter().enumerate() {
        if raw[..index].contains(cause) {
            return Err(Violation::new(
                format!("{path}.queue.requeue_on[{index}]"),
                "each cause is listed once",
            ));
        }
    }
    Ok(RequeueOn {
        connect: raw.contains(&raw::RequeueCause::Connect),
        reset: raw.contains(&raw::RequeueCause::Reset),
        too_many_requests: raw.contains(&raw::RequeueCause::TooManyRequests),
        unavailable: raw.contains(&raw::RequeueCause::Unavailable),
    })
}

fn convert_store(raw: raw::Store, key: &str) -> Result<Option<Store>, Violation> {
    match raw {
        raw::Store::Memory => Ok(None),
        raw::Store::Redb(file) => {
            compiled::require("redb", cfg!(feature = "redb"), &format!("{key}.redb"))?;
            Ok(Some(Store::Redb(file)))
        }
        raw::Store::Redis(url) => {
            compiled::require("redis", cfg!(feature = "redis"), &format!("{key}.redis"))?;
            Ok(Some(Store::Redis(url)))
        }
    }
}

/// Checks `slo`; `path` is the pool's.
pub(crate) fn slo(raw: &raw::Slo, path: &str) -> Result<slo::Policy, Violation> {
    let millis = |duration: Duration| duration.as_secs_f64() * 1_000.0;
    let explicit = match (raw.target_ttft, raw.target_itl) {
        (None, None) => None,
        (Some(ttft), Some(itl)) => {
            Some(Targets { ttft_ms: Some(millis(ttft.0)), itl_ms: Some(millis(itl.0)) })
        }
        (ttft, _) => {
            let given = if ttft.is_some() { "target_ttft" } else { "target_itl" };
            return Err(Violation::new(
                format!("{path}.slo.{given}"),
                "give target_ttft and target_itl both, or neither",
            ));
        }
    };
    Ok(slo::Policy {
        multiplier: match raw.slo_multiplier.0 {
            0.0 => slo::Policy::default().multiplier,
            given => given,
        },
        explicit,
    })
}
