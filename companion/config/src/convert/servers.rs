//! A pool's endpoints: how they are found, and how their models, health and metrics are handled.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use penstock_engine::limits::ENDPOINTS_MAX;
use penstock_engine::units::Decimal;
use penstock_wire::limits::NAME_BYTES_MAX;

use super::{HOST_BYTES_MAX, LABEL_BYTES_MAX, check_name};
use crate::error::Violation;
use crate::{
    Discovery, Endpoint, EndpointDefaults, Health, KubernetesObject, PodLabels, Rewrite, Scrape, compiled,
    raw,
};

/// Labels of one endpoint, and likewise taints.
const LABELS_MAX: usize = penstock_wire::limits::LIST_MAX;

/// The endpoints of a pool, or the way to find them.
pub(super) struct Endpoints {
    pub(super) listed: Vec<Endpoint>,
    pub(super) discovery: Option<Discovery>,
    pub(super) defaults: EndpointDefaults,
}

/// Checks `endpoints`, which is a list or one kind of discovery; `path` is the pool's.
pub(super) fn endpoints(raw: raw::Endpoints, path: &str) -> Result<Endpoints, Violation> {
    let path = format!("{path}.endpoints");
    let raw::Endpoints { listed, dns: by_name, file, kubernetes: by_pool, defaults } = raw;
    check_name(&defaults.variant, LABEL_BYTES_MAX, "a variant", &format!("{path}.defaults.variant"))?;
    let defaults = EndpointDefaults {
        variant: defaults.variant,
        max_batch: defaults.max_batch.0,
        max_batched_tokens: defaults.max_batched_tokens.map(|tokens| tokens.0),
    };
    let (listed, discovery) = match (listed, by_name, file, by_pool) {
        (Some(list), None, None, None) => (endpoint_list(list, &defaults, &format!("{path}.static"))?, None),
        (None, Some(raw), None, None) => (Vec::new(), Some(dns(raw, &format!("{path}.dns"))?)),
        (None, None, Some(file), None) if file.as_os_str().is_empty() => {
            return Err(Violation::new(format!("{path}.file"), "must be the path of a file, not empty"));
        }
        (None, None, Some(file), None) => (Vec::new(), Some(Discovery::File(file))),
        (None, None, None, Some(raw)) => {
            let discovery = kubernetes(raw, &format!("{path}.kubernetes"))?;
            (Vec::new(), Some(discovery))
        }
        _ => {
            return Err(Violation::new(path, "exactly one of static, dns, file and kubernetes is required"));
        }
    };
    Ok(Endpoints { listed, discovery, defaults })
}

/// Checks that the endpoints listed at `path` all have `max_batched_tokens`.
pub(crate) fn check_batched_tokens(endpoints: &[Endpoint], path: &str) -> Result<(), Violation> {
    let mut unknown = endpoints.iter().enumerate();
    match unknown.find(|(_, endpoint)| endpoint.max_batched_tokens.is_none()) {
        None => Ok(()),
        Some((index, endpoint)) => Err(Violation::new(
            format!("{path}[{index}]"),
            format!(
                "endpoint {} has no max_batched_tokens, which a class's prefill_busy_threshold_frac needs; set it here, or \
                 for all endpoints in endpoints.defaults",
                endpoint.address
            ),
        )),
    }
}

/// Whether a text is allowed as a variant.
#[must_use]
pub fn is_variant(text: &str) -> bool {
    check_name(text, LABEL_BYTES_MAX, "a variant", "").is_ok()
}

/// Checks a list of endpoints at `path`.
pub(crate) fn endpoint_list(
    list: Vec<raw::EndpointEntry>,
    defaults: &EndpointDefaults,
    path: &str,
) -> Result<Vec<Endpoint>, Violation> {
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
            let endpoint = endpoint(raw, defaults, &key)?;
            if seen.insert(endpoint.address) {
                Ok(endpoint)
            } else {
                Err(Violation::new(key, format!("`{}` is listed twice", endpoint.address)))
            }
        })
        .collect()
}

fn endpoint(raw: raw::Endpoint, defaults: &EndpointDefaults, key: &str) -> Result<Endpoint, Violation> {
    let address: SocketAddr = raw.address.parse().map_err(|_| {
        Violation::new(
            key,
            format!("`{}` is not an address; write ip:port, like 127.0.0.1:8001", raw.address),
        )
    })?;
    if address.port() == 0 {
        return Err(Violation::new(key, format!("`{address}`: a port is 1 to 65535")));
    }
    if raw.weight.0 == Decimal::default() {
        return Err(Violation::new(format!("{key}.weight"), "a weight is above 0"));
    }
    if let Some(variant) = &raw.variant {
        check_name(variant, LABEL_BYTES_MAX, "a variant", &format!("{key}.variant"))?;
    }
    check_labels(&raw, key)?;
    let default = defaults.endpoint(address);
    Ok(Endpoint {
        address,
        weight: raw.weight.0,
        variant: raw.variant.unwrap_or(default.variant),
        max_batch: raw.max_batch.map_or(default.max_batch, |requests| requests.0),
        max_batched_tokens: raw.max_batched_tokens.map(|tokens| tokens.0).or(default.max_batched_tokens),
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
    let object = kubernetes_object(raw.inference_pool, raw.service, raw.port, path)?;
    if let Some(namespace) = &raw.namespace {
        check_host(namespace, &format!("{path}.namespace"))?;
    }
    let raw::PodLabels { variant, max_batch, max_batched_tokens } = raw.labels;
    for (key, label) in
        [("variant", &variant), ("max_batch", &max_batch), ("max_batched_tokens", &max_batched_tokens)]
    {
        if let Some(label) = label {
            if let KubernetesObject::Service { .. } = &object {
                return Err(Violation::new(
                    format!("{path}.labels.{key}"),
                    "the endpoints of a Service have no labels of pods; use inference_pool, or endpoints.defaults",
                ));
            }
            check_pod_label(label, &format!("{path}.labels.{key}"))?;
        }
    }
    Ok(Discovery::Kubernetes {
        object,
        namespace: raw.namespace,
        labels: PodLabels { variant, max_batch, max_batched_tokens },
    })
}

fn kubernetes_object(
    inference_pool: Option<String>,
    service: Option<String>,
    port: Option<String>,
    path: &str,
) -> Result<KubernetesObject, Violation> {
    match (inference_pool, service) {
        (Some(name), None) => {
            check_host(&name, &format!("{path}.inference_pool"))?;
            if port.is_some() {
                return Err(Violation::new(
                    format!("{path}.port"),
                    "the ports of an InferencePool are in its spec; port belongs to service",
                ));
            }
            Ok(KubernetesObject::InferencePool(name))
        }
        (None, Some(name)) => {
            check_host(&name, &format!("{path}.service"))?;
            if let Some(port) = &port {
                check_host(port, &format!("{path}.port"))?;
            }
            Ok(KubernetesObject::Service { name, port })
        }
        _ => Err(Violation::new(path.to_owned(), "exactly one of inference_pool and service is required")),
    }
}

/// Checks the name of a pod's label: a name, which may follow the name of a domain and a slash.
fn check_pod_label(label: &str, key: &str) -> Result<(), Violation> {
    let (domain, name) = label.rsplit_once('/').unwrap_or(("example.com", label));
    check_name(domain, HOST_BYTES_MAX, "a label's domain", key)?;
    check_name(name, LABEL_BYTES_MAX, "a label's name", key)
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
            Err(Violation::new(key, format!("{noun} has 1 to {NAME_BYTES_MAX} bytes")))
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
                    format!("`{}` is listed twice; the first entry that matches counts", rewrite.model),
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
                    return Err(Violation::new(key, format!("`{}` is a target twice", target.name)));
                }
            }
            Ok(Rewrite {
                model: rewrite.model,
                targets: rewrite.targets.into_iter().map(|target| (target.name, target.weight.0)).collect(),
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
    Ok(path.map(|path| Scrape { path, interval, stale_after }))
}

/// Checks `health`; `path` is the pool's.
pub(super) fn health(raw: &raw::Health, path: &str) -> Result<Option<Health>, Violation> {
    let path = http_path(raw.path.as_deref(), "/health", format!("{path}.health.path"))?;
    Ok(path.map(|path| Health { path, interval: raw.interval.0, unhealthy_after: raw.unhealthy_after.0 }))
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
        let kinds = pool.endpoints.iter().map(|endpoint| (endpoint.variant.as_str(), endpoint.max_batch));
        assert_eq!(kinds.collect::<Vec<_>>(), [("default", 256), ("h100", 64)]);
    }

    #[test]
    fn defaults_apply_to_endpoints_without_their_own_values() {
        let pool = parse(
            "endpoints:\n  static: ['127.0.0.1:1', {address: '127.0.0.1:2', variant: h100, max_batched_tokens: 4096}]\n  \
             defaults: {variant: a100, max_batch: 64, max_batched_tokens: 8192}",
        )
        .expect("valid");
        let values = pool
            .endpoints
            .iter()
            .map(|endpoint| (endpoint.variant.as_str(), endpoint.max_batch, endpoint.max_batched_tokens));
        assert_eq!(values.collect::<Vec<_>>(), [("a100", 64, Some(8_192)), ("h100", 64, Some(4_096))]);
        assert_eq!(pool.endpoint_defaults.max_batched_tokens, Some(8_192));
    }

    /// The keys of `endpoints`, and a class with these keys.
    fn with_class(endpoints: &str, class: &str) -> Result<Pool, String> {
        parse(&format!(
            "endpoints: {{{endpoints}}}\narbitration:\n  classes:\n    policy_classes:\n    - {{name: a, quantum: 1}}\n    \
             - {{name: b, quantum: 1, {class}}}"
        ))
    }

    #[test]
    fn a_fraction_alone_needs_the_batched_tokens_of_every_endpoint() {
        let fraction = "prefill_busy_threshold_frac: 0.5";
        let unknown = [
            ("static: [{address: '127.0.0.1:1', max_batched_tokens: 1}, '127.0.0.1:2']", "127.0.0.1:2"),
            ("dns: {name: servers, port: 1}", "dns"),
            #[cfg(feature = "kubernetes")]
            ("kubernetes: {inference_pool: p}", "kubernetes"),
        ];
        for (endpoints, word) in unknown {
            let message = with_class(endpoints, fraction).expect_err(endpoints);
            let place =
                "f.yaml:9: pools[0].arbitration.classes.policy_classes[1].prefill_busy_threshold_frac: ";
            assert!(message.starts_with(place), "{message}");
            for word in [word, "max_batched_tokens"] {
                assert!(message.contains(word), "{message}");
            }
            let known = format!("{endpoints}, defaults: {{max_batched_tokens: 8192}}");
            assert!(with_class(&known, fraction).is_ok(), "{endpoints}");
            for other in [
                "prefill_busy_threshold_frac: 0.5, prefill_busy_threshold: 9",
                "prefill_busy_threshold_frac: 0",
                "prefill_busy_threshold: 9",
            ] {
                assert!(with_class(endpoints, other).is_ok(), "{endpoints}: {other}");
            }
        }
        // A file is checked when it is read, and pods may have the label.
        assert!(with_class("file: f", fraction).expect("valid").needs_batched_tokens());
        #[cfg(feature = "kubernetes")]
        assert!(
            with_class("kubernetes: {inference_pool: p, labels: {max_batched_tokens: a/b}}", fraction)
                .is_ok()
        );
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
        assert_eq!(with("slo: {slo_multiplier: 0}").slo, slo::Policy::default(), "0 is the default");
        let pool = with("slo: {slo_multiplier: 1.5, target_ttft: 0.5s, target_itl: 40}");
        let explicit = Targets { ttft_ms: Some(500.0), itl_ms: Some(40.0) };
        assert_eq!(pool.slo, slo::Policy { multiplier: 1.5, explicit: Some(explicit) });
    }

    #[test]
    fn errors_name_the_line_the_key_and_the_allowed_values() {
        let one = "endpoints: {static: ['127.0.0.1:1']}\n";
        let server = |key: &str| format!("endpoints:\n  static:\n  - address: '127.0.0.1:1'\n    {key}");
        let pool = |keys: &str| format!("{one}{keys}");
        let endpoint = "endpoints.static[0]";
        for (keys, line, key, word) in [
            (server("variant: ''"), 7, format!("{endpoint}.variant"), "1 to 63"),
            (server("variant: a b"), 7, format!("{endpoint}.variant"), "1 to 63"),
            (server("max_batch: 0"), 7, format!("{endpoint}.max_batch"), "at least 1"),
            (server("weight: 0"), 7, format!("{endpoint}.weight"), "above 0"),
            (pool("slo:\n  slo_multiplier: 1"), 6, "slo.slo_multiplier".into(), "above 1"),
            (pool("slo:\n  slo_multiplier: -3"), 6, "slo.slo_multiplier".into(), "above 1"),
            (pool("slo:\n  slo_multiplier: .inf"), 6, "slo.slo_multiplier".into(), "above 1"),
            (pool("slo: {target_ttft: 5}"), 5, "slo".into(), "both, or neither"),
            (pool("slo: {target_itl: 5}"), 5, "slo".into(), "both, or neither"),
            (pool("slo: {target_ttft: 0, target_itl: 5}"), 5, "slo.target_ttft".into(), "above zero"),
            (pool("slo: {target_ttft: -1.5, target_itl: 5}"), 5, "slo.target_ttft".into(), "above zero"),
            (pool("scrape:\n  interval: 0s"), 6, "scrape.interval".into(), "above zero"),
            (pool("scrape:\n  stale_after: 0.5s"), 6, "scrape.stale_after".into(), "at least interval"),
            (pool("scrape:\n  path: metrics"), 6, "scrape.path".into(), "begins with /"),
            (pool("scrape:\n  every: 1s"), 6, "scrape".into(), "every"),
            (pool("reject_unmeetable: maybe"), 5, "reject_unmeetable".into(), ""),
        ] {
            let message = parse(&keys).expect_err(&keys);
            assert!(message.starts_with(&format!("f.yaml:{line}: pools[0].{key}")), "{keys}: {message}");
            assert!(message.contains(word), "{keys}: {message}");
        }
    }
}
