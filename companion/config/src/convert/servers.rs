//! A pool's model servers: where they are, what they are asked for and what of them is read, and what they owe.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use penstock_control::Rewrite;
use penstock_engine::limits::ENDPOINTS_MAX;
use penstock_engine::units::Decimal;
use penstock_model::{Targets, slo};
use penstock_wire::limits::NAME_BYTES_MAX;

use super::is_name;
use crate::compiled;
use crate::{Broken, Discovery, Endpoint, Health, Scrape, raw};

/// Labels of an endpoint, and taints.
const LABELS_MAX: usize = penstock_wire::limits::LIST_MAX;

/// Checks `endpoints`: a list, or one way to find them; `path` is the pool's.
pub(super) fn endpoints(
    raw: raw::Endpoints,
    path: &str,
) -> Result<(Vec<Endpoint>, Option<Discovery>), Broken> {
    let path = format!("{path}.endpoints");
    match raw {
        raw::Endpoints {
            fixed: Some(list),
            dns: None,
            file: None,
            kubernetes: None,
        } => Ok((fixed(list, &format!("{path}.static"))?, None)),
        raw::Endpoints {
            fixed: None,
            dns: Some(raw),
            file: None,
            kubernetes: None,
        } => Ok((Vec::new(), Some(dns(raw, &format!("{path}.dns"))?))),
        raw::Endpoints {
            fixed: None,
            dns: None,
            file: Some(file),
            kubernetes: None,
        } => {
            if file.as_os_str().is_empty() {
                return Err(Broken(format!("{path}.file"), "this is a file's path".into()));
            }
            Ok((Vec::new(), Some(Discovery::File(file))))
        }
        raw::Endpoints {
            fixed: None,
            dns: None,
            file: None,
            kubernetes: Some(raw),
        } => Ok((Vec::new(), Some(kubernetes(raw, &format!("{path}.kubernetes"))?))),
        _ => Err(Broken(
            path,
            "exactly one of static, dns, file and kubernetes is needed".into(),
        )),
    }
}

/// Checks a list of endpoints that stands at `path`.
pub(crate) fn fixed(list: Vec<raw::EndpointEntry>, path: &str) -> Result<Vec<Endpoint>, Broken> {
    if list.is_empty() {
        return Err(Broken(path.into(), "at least one address is needed".into()));
    }
    if list.len() > ENDPOINTS_MAX {
        return Err(Broken(
            path.into(),
            format!("a pool has at most {ENDPOINTS_MAX} endpoints, not {}", list.len()),
        ));
    }
    let mut seen = BTreeSet::new();
    list.into_iter()
        .enumerate()
        .map(|(at, raw::EndpointEntry(raw))| {
            let key = format!("{path}[{at}]");
            let endpoint = endpoint(raw, &key)?;
            if seen.insert(endpoint.address) {
                Ok(endpoint)
            } else {
                Err(Broken(key, format!("`{}` is listed twice", endpoint.address)))
            }
        })
        .collect()
}

fn endpoint(raw: raw::Endpoint, key: &str) -> Result<Endpoint, Broken> {
    let address: SocketAddr = raw.address.parse().map_err(|_| {
        Broken(
            key.into(),
            format!(
                "`{}` is no address; write ip:port, like 127.0.0.1:8001",
                raw.address
            ),
        )
    })?;
    if address.port() == 0 {
        return Err(Broken(key.into(), format!("`{address}`: a port is 1 to 65535")));
    }
    if raw.weight.0 == Decimal::default() {
        return Err(Broken(format!("{key}.weight"), "a weight is above 0".into()));
    }
    named(&raw.variant, "a variant", &format!("{key}.variant"))?;
    let label = |text: &str| text.len() <= NAME_BYTES_MAX && !text.chars().any(char::is_control);
    for (name, value) in &raw.labels {
        if name.is_empty() || !label(name) || !label(value) {
            return Err(Broken(
                format!("{key}.labels.{name}"),
                format!(
                    "a label and its value have at most {NAME_BYTES_MAX} bytes, none of them a control character"
                ),
            ));
        }
    }
    for (at, taint) in raw.taints.0.iter().enumerate() {
        let key = format!("{key}.taints[{at}]");
        named(taint, "a taint", &key)?;
        if raw.taints.0.iter().take(at).any(|earlier| earlier == taint) {
            return Err(Broken(key, format!("`{taint}` is listed twice")));
        }
    }
    for (what, count) in [("labels", raw.labels.len()), ("taints", raw.taints.0.len())] {
        if count > LABELS_MAX {
            return Err(Broken(
                format!("{key}.{what}"),
                format!("there are at most {LABELS_MAX}, not {count}"),
            ));
        }
    }
    Ok(Endpoint {
        address,
        weight: raw.weight.0,
        variant: raw.variant,
        max_batch: raw.max_batch.0,
        labels: raw.labels,
        taints: raw.taints.0,
    })
}

fn named(text: &str, what: &str, key: &str) -> Result<(), Broken> {
    if is_name(text) {
        Ok(())
    } else {
        Err(Broken(
            key.into(),
            format!("`{text}`: {what} has 1 to 63 letters, digits, `-`, `_` or `.`"),
        ))
    }
}

fn dns(raw: raw::Dns, path: &str) -> Result<Discovery, Broken> {
    if raw.name.parse::<IpAddr>().is_ok() {
        return Err(Broken(
            format!("{path}.name"),
            format!("`{}` is an address; addresses stand under static", raw.name),
        ));
    }
    host(&raw.name, &format!("{path}.name"))?;
    Ok(Discovery::Dns {
        name: raw.name,
        port: u16::try_from(raw.port.0).expect("invariant: a port is at most 65535"),
        refresh: raw.refresh.0,
    })
}

fn kubernetes(raw: raw::Kubernetes, path: &str) -> Result<Discovery, Broken> {
    compiled::require("kubernetes", cfg!(feature = "kubernetes"), path)?;
    host(&raw.inference_pool, &format!("{path}.inference_pool"))?;
    host(&raw.namespace, &format!("{path}.namespace"))?;
    Ok(Discovery::Kubernetes {
        inference_pool: raw.inference_pool,
        namespace: raw.namespace,
    })
}

/// A name as DNS has it, and Kubernetes.
fn host(text: &str, key: &str) -> Result<(), Broken> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if (1..=253).contains(&text.len()) && text.bytes().all(known) {
        Ok(())
    } else {
        Err(Broken(
            key.into(),
            format!("`{text}`: a name has 1 to 253 letters, digits, `-`, `_` or `.`"),
        ))
    }
}

/// Checks `rewrite`; `path` is the pool's.
pub(super) fn rewrite(raw: Vec<raw::Rewrite>, path: &str) -> Result<Vec<Rewrite>, Broken> {
    let name = |text: &str, what: &str, key: String| {
        if (1..=NAME_BYTES_MAX).contains(&text.len()) {
            Ok(())
        } else {
            Err(Broken(key, format!("{what} has 1 to {NAME_BYTES_MAX} bytes")))
        }
    };
    let mut globs = BTreeSet::new();
    raw.into_iter()
        .enumerate()
        .map(|(at, rewrite)| {
            let path = format!("{path}.rewrite[{at}]");
            name(&rewrite.model, "a glob", format!("{path}.model"))?;
            if !globs.insert(rewrite.model.clone()) {
                return Err(Broken(
                    format!("{path}.model"),
                    format!(
                        "`{}` stands here twice; the first that matches counts",
                        rewrite.model
                    ),
                ));
            }
            if rewrite.targets.is_empty() {
                return Err(Broken(
                    format!("{path}.targets"),
                    "at least one target is needed: {name, weight}".into(),
                ));
            }
            let mut names = BTreeSet::new();
            for (at, target) in rewrite.targets.iter().enumerate() {
                let key = format!("{path}.targets[{at}].name");
                name(&target.name, "a model's name", key.clone())?;
                if !names.insert(&target.name) {
                    return Err(Broken(key, format!("`{}` is a target twice", target.name)));
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
pub(super) fn scrape(raw: &raw::Scrape, path: &str) -> Result<Option<Scrape>, Broken> {
    let interval = raw.interval.0;
    let stale_after = raw.stale_after().0;
    if stale_after < interval {
        return Err(Broken(
            format!("{path}.scrape.stale_after"),
            "stale_after is at least interval, or what was read would be too old before it is read again"
                .into(),
        ));
    }
    let found = slashed(raw.path.as_deref(), "/metrics", format!("{path}.scrape.path"))?;
    Ok(found.map(|path| Scrape {
        path,
        interval,
        stale_after,
    }))
}

/// Checks `health`; `path` is the pool's.
pub(super) fn health(raw: &raw::Health, path: &str) -> Result<Option<Health>, Broken> {
    let found = slashed(raw.path.as_deref(), "/health", format!("{path}.health.path"))?;
    Ok(found.map(|path| Health {
        path,
        interval: raw.interval.0,
        unhealthy_after: raw.unhealthy_after.0,
    }))
}

/// A path of HTTP, or none.
fn slashed(path: Option<&str>, like: &str, key: String) -> Result<Option<String>, Broken> {
    match path {
        Some(path) if !path.starts_with('/') || path.chars().any(|it| it.is_control() || it == ' ') => {
            Err(Broken(
                key,
                format!("`{path}`: a path begins with / and has no spaces, like {like}; null: none"),
            ))
        }
        path => Ok(path.map(Into::into)),
    }
}

/// Checks `slo`; `path` is the pool's.
pub(super) fn slo(raw: &raw::Slo, path: &str) -> Result<slo::Policy, Broken> {
    let millis = |of: Duration| of.as_secs_f64() * 1_000.0;
    let explicit = match (raw.target_ttft, raw.target_itl) {
        (None, None) => None,
        (Some(ttft), Some(itl)) => Some(Targets {
            ttft_ms: Some(millis(ttft.0)),
            itl_ms: Some(millis(itl.0)),
        }),
        (given, _) => {
            let given = if given.is_some() {
                "target_ttft"
            } else {
                "target_itl"
            };
            return Err(Broken(
                format!("{path}.slo.{given}"),
                "target_ttft and target_itl are given both, or neither".into(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Pool};

    /// A document of one pool with `keys`, each line from the fourth on.
    fn parse(keys: &str) -> Result<Pool, String> {
        let keys: String = keys.lines().map(|line| format!("  {line}\n")).collect();
        Config::parse(&format!("pools:\n- name: a\n\n{keys}"), "f.yaml")
            .map(|mut config| config.pools.remove(0))
            .map_err(|why| why.to_string())
    }

    fn with(keys: &str) -> Pool {
        parse(&format!("endpoints: {{static: ['127.0.0.1:1']}}\n{keys}"))
            .unwrap_or_else(|why| panic!("{keys}: {why}"))
    }

    #[test]
    fn a_server_is_of_the_default_kind_until_it_says() {
        let pool = parse(
            "endpoints: {static: ['127.0.0.1:1', {address: '127.0.0.1:2', variant: h100, max_batch: 64}]}",
        )
        .expect("valid");
        let kinds = pool
            .endpoints
            .iter()
            .map(|it| (it.variant.as_str(), it.max_batch));
        assert_eq!(kinds.collect::<Vec<_>>(), [("default", 256), ("h100", 64)]);
    }

    #[test]
    fn metrics_are_read_every_second_unless_it_says() {
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
    fn targets_are_inferred_unless_they_are_given() {
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
    fn what_is_out_of_range_names_line_path_and_what_is_allowed() {
        let one = "endpoints: {static: ['127.0.0.1:1']}\n";
        let server = |it: &str| format!("endpoints:\n  static:\n  - address: '127.0.0.1:1'\n    {it}");
        let pool = |it: &str| format!("{one}{it}");
        let at = "endpoints.static[0]";
        for (keys, line, key, word) in [
            (server("variant: ''"), 7, format!("{at}.variant"), "1 to 63"),
            (server("variant: a b"), 7, format!("{at}.variant"), "1 to 63"),
            (server("max_batch: 0"), 7, format!("{at}.max_batch"), "at least 1"),
            (server("weight: 0"), 7, format!("{at}.weight"), "above 0"),
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
