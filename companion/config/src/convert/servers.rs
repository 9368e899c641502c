//! A pool's endpoints: how they are found, and how their models, health and metrics are handled.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use penstock_engine::limits::ENDPOINTS_MAX;
use penstock_engine::units::Decimal;
use penstock_wire::limits::NAME_BYTES_MAX;

use super::{HOST_BYTES_MAX, LABEL_BYTES_MAX, check_name};
use crate::error::Violation;
use crate::{Discovery, Endpoint, Health, Rewrite, Scrape, compiled, raw};

/// Labels of one endpoint, and likewise taints.
const LABELS_MAX: usize = penstock_wire::limits::LIST_MAX;

/// Checks `endpoints`, which is a list or one kind of discovery; `path` is the pool's.
pub(super) fn endpoints(
    raw: raw::Endpoints,
    path: &str,
) -> Result<(Vec<Endpoint>, Option<Discovery>), Violation> {
    let path = format!("{path}.endpoints");
    match raw {
        raw::Endpoints {
            listed: Some(list),
            dns: None,
            file: None,
            kubernetes: None,
        } => Ok((endpoint_list(list, &format!("{path}.static"))?, None)),
        raw::Endpoints {
            listed: None,
            dns: Some(raw),
            file: None,
            kubernetes: None,
        } => Ok((Vec::new(), Some(dns(raw, &format!("{path}.dns"))?))),
        raw::Endpoints {
            listed: None,
            dns: None,
            file: Some(file),
            kubernetes: None,
        } => {
            if file.as_os_str().is_empty() {
                return Err(Violation::new(
                    format!("{path}.file"),
                    "must be the path of a file, not empty",
                ));
            }
            Ok((Vec::new(), Some(Discovery::File(file))))
        }
        raw::Endpoints {
            listed: None,
            dns: None,
            file: None,
            kubernetes: Some(raw),
        } => Ok((Vec::new(), Some(kubernetes(raw, &format!("{path}.kubernetes"))?))),
        _ => Err(Violation::new(
            path,
            "exactly one of static, dns, file and kubernetes is required",
        )),
    }
}

/// Checks a list of endpoints at `path`.
pub(crate) fn endpoint_list(list: Vec<raw::EndpointEntry>, path: &str) -> Result<Vec<Endpoint>, Violation> {
    if list.is_empty() {
        return Err(Violation::new(path, "at least one address is required"));
    }
    if list.len() > ENDPOINTS_MAX {
        return Err(Violation::new(
            path,
            format!("a pool has at most {ENDPOINTS_MAX} endpoints, not {}", list.len()),
        ));
    }
    let mut seen = BTreeSet::new();
    list.into_iter()
        .enumerate()
        .map(|(index, raw::EndpointEntry(raw))| {
            let key = format!("{path}[{index}]");
            let endpoint = endpoint(raw, &key)?;
            if seen.insert(endpoint.address) {
                Ok(endpoint)
            } else {
                Err(Violation::new(
                    key,
                    format!("`{}` is listed twice", endpoint.address),
                ))
            }
        })
        .collect()
}

fn endpoint(raw: raw::Endpoint, key: &str) -> Result<Endpoint, Violation> {
    let address: SocketAddr = raw.address.parse().map_err(|_| {
        Violation::new(
            key,
            format!(
                "`{}` is not an address; write ip:port, like 127.0.0.1:8001",
                raw.address
            ),
        )
    })?;
    if address.port() == 0 {
        return Err(Violation::new(key, format!("`{address}`: a port is 1 to 65535")));
    }
    if raw.weight.0 == Decimal::default() {
        return Err(Violation::new(format!("{key}.weight"), "a weight is above 0"));
    }
    check_name(
        &raw.variant,
        LABEL_BYTES_MAX,
        "a variant",
        &format!("{key}.variant"),
    )?;
    check_labels(&raw, key)?;
    Ok(Endpoint {
        address,
        weight: raw.weight.0,
        variant: raw.variant,
        max_batch: raw.max_batch.0,
        labels: raw.labels,
        taints: raw.taints.0,
    })
}

fn check_labels(raw: &raw::Endpoint, key: &str) -> Result<(), Violation> {
    let fits = |text: &str| text.len() <= NAME_BYTES_MAX && !text.chars().any(char::is_control);
    for (name, value) in &raw.labels {
        if name.is_empty() || !fits(name) || !fits(value) {
            return Err(Violation::new(
                format!("{key}.labels.{name}"),
                format!(
                    "a label and its value have at most {NAME_BYTES_MAX} bytes, none of them a control character"
                ),
            ));
        }
    }
    for (index, taint) in raw.taints.0.iter().enumerate() {
        let key = format!("{key}.taints[{index}]");
        check_name(taint, LABEL_BYTES_MAX, "a taint", &key)?;
        if raw.taints.0.iter().take(index).any(|earlier| earlier == taint) {
            return Err(Violation::new(key, format!("`{taint}` is listed twice")));
        }
    }
    for (kind, count) in [("labels", raw.labels.len()), ("taints", raw.taints.0.len())] {
        if count > LABELS_MAX {
            return Err(Violation::new(
                format!("{key}.{kind}"),
                format!("an endpoint has at most {LABELS_MAX} {kind}, not {count}"),
            ));
        }
    }
    Ok(())
}

fn dns(raw: raw::Dns, path: &str) -> Result<Discovery, Violation> {
    if raw.name.parse::<IpAddr>().is_ok() {
        return Err(Violation::new(
            format!("{path}.name"),
            format!("`{}` is an address; list addresses under static", raw.name),
        ));
    }
    check_host(&raw.name, &format!("{path}.name"))?;
    Ok(Discovery::Dns {
        name: raw.name,
        port: u16::try_from(raw.port.0).expect("invariant: a port is at most 65535"),
        refresh: raw.refresh.0,
    })
}

fn kubernetes(raw: raw::Kubernetes, path: &str) -> Result<Discovery, Violation> {
    compiled::require("kubernetes", cfg!(feature = "kubernetes"), path)?;
    check_host(&raw.inference_pool, &format!("{path}.inference_pool"))?;
    check_host(&raw.namespace, &format!("{path}.namespace"))?;
    Ok(Discovery::Kubernetes {
        inference_pool: raw.inference_pool,
        namespace: raw.namespace,
    })
}

/// Checks a name of DNS or Kubernetes.
fn check_host(text: &str, key: &str) -> Result<(), Violation> {
    check_name(text, HOST_BYTES_MAX, "a name", key)
}

/// Checks `rewrite`; `path` is the pool's.
pub(super) fn rewrite(raw: Vec<raw::Rewrite>, path: &str) -> Result<Vec<Rewrite>, Violation> {
    let check_length = |text: &str, noun: &str, key: String| {
        if (1..=NAME_BYTES_MAX).contains(&text.len()) {
            Ok(())
        } else {
            Err(Violation::new(
                key,
                format!("{noun} has 1 to {NAME_BYTES_MAX} bytes"),
            ))
        }
    };
    let mut globs = BTreeSet::new();
    raw.into_iter()
        .enumerate()
        .map(|(index, rewrite)| {
            let path = format!("{path}.rewrite[{index}]");
            check_length(&rewrite.model, "a glob", format!("{path}.model"))?;
            if !globs.insert(rewrite.model.clone()) {
                return Err(Violation::new(
                    format!("{path}.model"),
                    format!(
                        "`{}` is listed twice; the first entry that matches counts",
                        rewrite.model
                    ),
                ));
            }
            if rewrite.targets.is_empty() {
                return Err(Violation::new(
                    format!("{path}.targets"),
                    "at least one target is required: {name, weight}",
                ));
            }
            let mut names = BTreeSet::new();
            for (index, target) in rewrite.targets.iter().enumerate() {
                let key = format!("{path}.targets[{index}].name");
                check_length(&target.name, "a model's name", key.clone())?;
                if !names.insert(&target.name) {
                    return Err(Violation::new(
                        key,
                        format!("`{}` is a target twice", target.name),
                    ));
                }
            }
            Ok(Rewrite {
                model: rewrite.model,
                targets: rewrite
                    .targets
                    .into_iter()
                    .map(|target| (target.name, target.weight.0))
                    .collect(),
            })
        })
        .collect()
}

/// Checks `scrape`; `path` is the pool's.
pub(super) fn scrape(raw: &raw::Scrape, path: &str) -> Result<Option<Scrape>, Violation> {
    let interval = raw.interval.0;
    let stale_after = raw.stale_after().0;
    if stale_after < interval {
        return Err(Violation::new(
            format!("{path}.scrape.stale_after"),
            "stale_after is at least interval; otherwise values would be stale before they are read again",
        ));
    }
    let path = http_path(raw.path.as_deref(), "/metrics", format!("{path}.scrape.path"))?;
    Ok(path.map(|path| Scrape {
        path,
        interval,
        stale_after,
    }))
}

/// Checks `health`; `path` is the pool's.
pub(super) fn health(raw: &raw::Health, path: &str) -> Result<Option<Health>, Violation> {
    let path = http_path(raw.path.as_deref(), "/health", format!("{path}.health.path"))?;
    Ok(path.map(|path| Health {
        path,
        interval: raw.interval.0,
        unhealthy_after: raw.unhealthy_after.0,
    }))
}

/// A path of HTTP, if one is given.
fn http_path(path: Option<&str>, like: &str, key: String) -> Result<Option<String>, Violation> {
    match path {
        Some(path) if !path.starts_with('/') || path.chars().any(|char| char.is_control() || char == ' ') => {
            Err(Violation::new(
                key,
                format!("`{path}`: a path begins with / and has no spaces, like {like}; write null for none"),
            ))
        }
        path => Ok(path.map(Into::into)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use penstock_model::{Targets, slo};

    use super::*;
    use crate::{Config, Pool};

    /// A document of one pool with `keys`, each line from the fourth on.
    fn parse(keys: &str) -> Result<Pool, String> {
        let keys: String = keys.lines().map(|line| format!("  {line}\n")).collect();
        Config::parse(&format!("pools:\n- name: a\n\n{keys}"), "f.yaml")
            .map(|mut config| config.pools.remove(0))
            .map_err(|error| error.to_string())
    }

    fn with(keys: &str) -> Pool {
        parse(&format!("endpoints: {{static: ['127.0.0.1:1']}}\n{keys}"))
            .unwrap_or_else(|error| panic!("{keys}: {error}"))
    }

    #[test]
    fn endpoints_have_the_default_variant_and_batch_size() {
        let pool = parse(
            "endpoints: {static: ['127.0.0.1:1', {address: '127.0.0.1:2', variant: h100, max_batch: 64}]}",
        )
        .expect("valid");
        let kinds = pool
            .endpoints
            .iter()
            .map(|endpoint| (endpoint.variant.as_str(), endpoint.max_batch));
        assert_eq!(kinds.collect::<Vec<_>>(), [("default", 256), ("h100", 64)]);
    }

    #[test]
    fn metrics_are_read_every_second_by_default() {
        let usual = Scrape {
            path: "/metrics".into(),
            interval: Duration::from_secs(1),
            stale_after: Duration::from_secs(5),
        };
        assert_eq!(with("").scrape, Some(usual));
        assert_eq!(with("scrape: {path: null}").scrape, None);
        let seldom = with("scrape: {interval: 6s}").scrape.expect("on");
        assert_eq!(seldom.stale_after, Duration::from_secs(12));
        let other = Scrape {
            path: "/m".into(),
            interval: Duration::from_millis(250),
            stale_after: Duration::from_millis(250),
        };
        let pool = with("scrape: {path: /m, interval: 250ms, stale_after: 250ms}");
        assert_eq!(pool.scrape, Some(other));
    }

    #[test]
    fn latency_targets_are_inferred_by_default() {
        assert_eq!(with("").slo, slo::Policy::default());
        assert_eq!(
            with("slo: {slo_multiplier: 0}").slo,
            slo::Policy::default(),
            "0 is the default"
        );
        let pool = with("slo: {slo_multiplier: 1.5, target_ttft: 0.5s, target_itl: 40}");
        let explicit = Targets {
            ttft_ms: Some(500.0),
            itl_ms: Some(40.0),
        };
        assert_eq!(
            pool.slo,
            slo::Policy {
                multiplier: 1.5,
                explicit: Some(explicit),
            }
        );
    }

    #[test]
    fn errors_name_the_line_the_key_and_the_allowed_values() {
        let one = "endpoints: {static: ['127.0.0.1:1']}\n";
        let server = |key: &str| format!("endpoints:\n  static:\n  - address: '127.0.0.1:1'\n    {key}");
        let pool = |keys: &str| format!("{one}{keys}");
        let endpoint = "endpoints.static[0]";
        for (keys, line, key, word) in [
            (server("variant: ''"), 7, format!("{endpoint}.variant"), "1 to 63"),
            (
                server("variant: a b"),
                7,
                format!("{endpoint}.variant"),
                "1 to 63",
            ),
            (
                server("max_batch: 0"),
                7,
                format!("{endpoint}.max_batch"),
                "at least 1",
            ),
            (server("weight: 0"), 7, format!("{endpoint}.weight"), "above 0"),
            (
                pool("slo:\n  slo_multiplier: 1"),
                6,
                "slo.slo_multiplier".into(),
                "above 1",
            ),
            (
                pool("slo:\n  slo_multiplier: -3"),
                6,
                "slo.slo_multiplier".into(),
                "above 1",
            ),
            (
                pool("slo:\n  slo_multiplier: .inf"),
                6,
                "slo.slo_multiplier".into(),
                "above 1",
            ),
            (pool("slo: {target_ttft: 5}"), 5, "slo".into(), "both, or neither"),
            (pool("slo: {target_itl: 5}"), 5, "slo".into(), "both, or neither"),
            (
                pool("slo: {target_ttft: 0, target_itl: 5}"),
                5,
                "slo.target_ttft".into(),
                "above zero",
            ),
            (
                pool("slo: {target_ttft: -1.5, target_itl: 5}"),
                5,
                "slo.target_ttft".into(),
                "above zero",
            ),
            (
                pool("scrape:\n  interval: 0s"),
                6,
                "scrape.interval".into(),
                "above zero",
            ),
            (
                pool("scrape:\n  stale_after: 0.5s"),
                6,
                "scrape.stale_after".into(),
                "at least interval",
            ),
            (
                pool("scrape:\n  path: metrics"),
                6,
                "scrape.path".into(),
                "begins with /",
            ),
            (pool("scrape:\n  every: 1s"), 6, "scrape".into(), "every"),
            (
                pool("reject_unmeetable: maybe"),
                5,
                "reject_unmeetable".into(),
                "",
            ),
        ] {
            let message = parse(&keys).expect_err(&keys);
            assert!(
                message.starts_with(&format!("f.yaml:{line}: pools[0].{key}")),
                "{keys}: {message}"
            );
            assert!(message.contains(word), "{keys}: {message}");
        }
    }
}
