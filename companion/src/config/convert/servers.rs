//! A pool's model servers: their addresses and kinds, what is read from their metrics, and what they owe.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use penstock_engine::units::Decimal;
use penstock_model::{Targets, slo};

use super::is_name;
use crate::config::{Broken, Endpoint, Scrape, raw};

/// The variant of servers that name none.
const DEFAULT_VARIANT: &str = "default";
/// Requests in one batch of a server that doesn't say, as vLLM has it.
const DEFAULT_MAX_BATCH: u64 = 256;
/// How long what was read from a server counts, unless it is read so seldom that this would be too short.
const DEFAULT_STALE_AFTER: Duration = Duration::from_secs(5);

/// Checks `endpoints`; `path` is the pool's.
pub(super) fn endpoints(raw: raw::Endpoints, path: &str) -> Result<Vec<Endpoint>, Broken> {
    if raw.fixed.is_empty() {
        return Err(Broken(
            format!("{path}.endpoints.static"),
            "at least one address is needed".into(),
        ));
    }
    let mut seen = BTreeSet::new();
    raw.fixed
        .into_iter()
        .enumerate()
        .map(|(at, raw::EndpointEntry(raw))| {
            let key = format!("{path}.endpoints.static[{at}]");
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
            format!("`{}` is no address; write ip:port", raw.address),
        )
    })?;
    let weight = raw.weight.map_or(Decimal::whole(1), |it| it.0);
    if weight == Decimal::default() {
        return Err(Broken(format!("{key}.weight"), "a weight is above 0".into()));
    }
    let variant = raw.variant.unwrap_or_else(|| DEFAULT_VARIANT.into());
    if !is_name(&variant) {
        return Err(Broken(
            format!("{key}.variant"),
            format!("`{variant}`: a variant has 1 to 63 letters, digits, `-`, `_` or `.`"),
        ));
    }
    Ok(Endpoint {
        address,
        weight,
        variant,
        max_batch: raw.max_batch.map_or(DEFAULT_MAX_BATCH, |it| it.0),
        labels: BTreeMap::new(),
        taints: Vec::new(),
    })
}

/// Checks `scrape`; `path` is the pool's.
pub(super) fn scrape(raw: raw::Scrape, path: &str) -> Result<Option<Scrape>, Broken> {
    let interval = raw.interval.0;
    let stale_after = raw
        .stale_after
        .map_or_else(|| interval.saturating_mul(2).max(DEFAULT_STALE_AFTER), |it| it.0);
    if stale_after < interval {
        return Err(Broken(
            format!("{path}.scrape.stale_after"),
            "stale_after is at least interval, or what was read would be too old before it is read again"
                .into(),
        ));
    }
    raw.path
        .map(|it| {
            if it.starts_with('/') {
                Ok(Scrape {
                    path: it,
                    interval,
                    stale_after,
                })
            } else {
                Err(Broken(
                    format!("{path}.scrape.path"),
                    format!("`{it}`: a path begins with /, like /metrics; null reads nothing"),
                ))
            }
        })
        .transpose()
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
        (Some(_), None) | (None, Some(_)) => {
            return Err(Broken(
                format!("{path}.slo"),
                "target_ttft and target_itl are given both, or neither".into(),
            ));
        }
    };
    Ok(slo::Policy {
        multiplier: raw.slo_multiplier.0,
        explicit,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Pool};

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
