//! What a pool asks of its endpoints: their models, health and metrics, and how one is chosen for a request.

use std::collections::BTreeSet;
use std::path::PathBuf;

use penstock_engine::policy::{OutlierEjection, Scorers};
use penstock_wire::limits::NAME_BYTES_MAX;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::millis;
use super::upstream::{self, UpstreamTls};
use crate::error::Violation;
use crate::value::{Count, Factor, Port, PositiveDuration, Weight, WholeNumber};

/// Sends requests for a model with another model's name.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rewrite {
    /// A glob of the models that clients request.
    #[schemars(length(min = 1))]
    pub(crate) model: String,
    /// The models that requests are sent with, in proportion to their weights. A retried request keeps its target.
    #[schemars(length(min = 1))]
    pub(crate) targets: Vec<RewriteTarget>,
}

/// A model that the model servers serve.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RewriteTarget {
    /// The model's name.
    #[schemars(length(min = 1, max = 256))]
    pub(crate) name: String,
    /// The target's share of the requests, relative to the weights of the other targets.
    #[serde(default = "default_target_weight")]
    pub(crate) weight: Weight,
}

const fn default_target_weight() -> Weight {
    Weight(1.0)
}

/// Health checks of the endpoints.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Health {
    /// The path that is requested with GET. A server without the path, which answers 404, 405 or 501, counts as healthy. Null
    /// turns the checks off, and endpoints count as healthy.
    #[schemars(regex(pattern = "^/"))]
    pub(crate) path: Option<String>,
    /// The time between two checks of an endpoint.
    pub(crate) interval: PositiveDuration,
    /// Failed checks in a row after which the endpoint is not ready.
    pub(crate) unhealthy_after: Count,
}

impl Default for Health {
    fn default() -> Self {
        Self { path: Some("/health".into()), interval: millis(5_000), unhealthy_after: Count(3) }
    }
}

/// How long an endpoint is marked down, so that it gets no requests, after two requests to it failed within ten seconds. The
/// time doubles whenever that happens again before the endpoint has served a request. The last ready endpoint is never marked
/// down.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Down {
    /// The first time that the endpoint is marked down; at most `max`.
    pub(crate) first: PositiveDuration,
    /// The longest time.
    pub(crate) max: PositiveDuration,
}

impl Default for Down {
    fn default() -> Self {
        Self { first: millis(1_000), max: millis(30_000) }
    }
}

/// Reading of the endpoints' metrics, in Prometheus' text format under the names of vLLM, SGLang, TensorRT-LLM, llama.cpp, TGI or Ray Serve.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Scrape {
    /// The path of the metrics. Null: metrics are not read.
    #[schemars(regex(pattern = "^/"))]
    pub(crate) path: Option<String>,
    /// The time between two reads of an endpoint.
    pub(crate) interval: PositiveDuration,
    /// The age from which values no longer count; at least `interval`. The default is 5s, or twice the interval if that is
    /// longer.
    pub(crate) stale_after: Option<PositiveDuration>,
    /// The port of the metrics. Null: that of the endpoint.
    pub(crate) port: Option<Port>,
    /// The file with a token, which is sent as `authorization: Bearer TOKEN`. It is read again for each request. Null: on the endpoint's port, the headers
    /// of `upstream` are sent; on another port, none.
    pub(crate) token_file: Option<PathBuf>,
    /// TLS for the metrics. Null: on the endpoint's port as in `upstream`; on another port, plain text.
    pub(crate) tls: Option<UpstreamTls>,
}

impl Default for Scrape {
    fn default() -> Self {
        Self {
            path: Some("/metrics".into()),
            interval: millis(1_000),
            stale_after: None,
            port: None,
            token_file: None,
            tls: None,
        }
    }
}

/// Weights of the scorers that choose among the endpoints with room. 0 turns a scorer off.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Scheduler {
    /// The free fraction of the endpoint's bound.
    pub(crate) stock: Factor,
    /// Requests that wait in the endpoint's own queue. Fewer score higher.
    pub(crate) queue: Factor,
    /// The free fraction of the endpoint's KV cache.
    pub(crate) kv_cache: Factor,
    /// The fraction of the prompt that was sent to the endpoint before.
    pub(crate) prefix: Factor,
    /// Whether the endpoint has the model's LoRA adapter in memory.
    pub(crate) lora: Factor,
    /// Where the scorer `prefix` is in use, prompts of fewer tokens may be admitted by credit (`queue.credits`), which chooses their
    /// endpoint without it. Longer ones ask the companion.
    pub(crate) prefix_min_tokens: WholeNumber,
}

impl Scheduler {
    /// The weights without the key that concerns admission credits.
    pub(super) const fn scorers(&self) -> Scorers {
        Scorers {
            stock: self.stock.0,
            queue: self.queue.0,
            kv_cache: self.kv_cache.0,
            prefix: self.prefix.0,
            lora: self.lora.0,
        }
    }
}

impl Default for Scheduler {
    fn default() -> Self {
        let Scorers { stock, queue, kv_cache, prefix, lora } = Scorers::default();
        Self {
            stock: Factor(stock),
            queue: Factor(queue),
            kv_cache: Factor(kv_cache),
            prefix: Factor(prefix),
            lora: Factor(lora),
            prefix_min_tokens: WholeNumber(256),
        }
    }
}

/// Checks `rewrite`; `path` is the pool's.
pub(super) fn rewrite(raw: Vec<Rewrite>, path: &str) -> Result<Vec<crate::Rewrite>, Violation> {
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
            Ok(crate::Rewrite {
                model: rewrite.model,
                targets: rewrite.targets.into_iter().map(|target| (target.name, target.weight.0)).collect(),
            })
        })
        .collect()
}

/// Checks `down`; `path` is the pool's.
pub(super) fn down(raw: &Down, path: &str) -> Result<OutlierEjection, Violation> {
    let down = OutlierEjection { first: raw.first.0, max: raw.max.0 };
    if down.first > down.max {
        return Err(Violation::new(
            format!("{path}.down.first"),
            "first is at most max; the time doubles until it reaches max",
        ));
    }
    Ok(down)
}

/// Checks `scrape`; `path` is the pool's.
pub(super) fn scrape(raw: Scrape, path: &str) -> Result<Option<crate::Scrape>, Violation> {
    let interval = raw.interval.0;
    let stale_after = raw.stale_after().0;
    if stale_after < interval {
        return Err(Violation::new(
            format!("{path}.scrape.stale_after"),
            "stale_after is at least interval; otherwise values would be stale before they are read again",
        ));
    }
    let url_path = http_path(raw.path.as_deref(), "/metrics", format!("{path}.scrape.path"))?;
    if raw.token_file.as_ref().is_some_and(|file| file.as_os_str().is_empty()) {
        return Err(Violation::new(
            format!("{path}.scrape.token_file"),
            "must be the path of a file, not empty",
        ));
    }
    let tls = raw.tls.map(|tls| upstream::tls(tls, None, &format!("{path}.scrape.tls"))).transpose()?;
    Ok(url_path.map(|path| crate::Scrape {
        path,
        interval,
        stale_after,
        port: raw.port.and_then(|port| u16::try_from(port.0).ok()),
        token_file: raw.token_file,
        tls,
    }))
}

/// Checks `health`; `path` is the pool's.
pub(super) fn health(raw: &Health, path: &str) -> Result<Option<crate::Health>, Violation> {
    let path = http_path(raw.path.as_deref(), "/health", format!("{path}.health.path"))?;
    Ok(path.map(|path| crate::Health {
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

    use crate::{Config, Pool, Scrape};

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
            port: None,
            token_file: None,
            tls: None,
        };
        assert_eq!(with("").scrape, Some(usual));
        assert_eq!(with("scrape: {path: null}").scrape, None);
        let seldom = with("scrape: {interval: 6s}").scrape.expect("on");
        assert_eq!(seldom.stale_after, Duration::from_secs(12));
        let other = Scrape {
            path: "/m".into(),
            interval: Duration::from_millis(250),
            stale_after: Duration::from_millis(250),
            port: None,
            token_file: None,
            tls: None,
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
        assert_eq!(pool.slo, slo::Policy { multiplier: Some(1.5), explicit: Some(explicit) });
        assert_eq!(with("slo: {slo_multiplier: 3}").slo, slo::Policy::default(), "3 is the default, too");
    }

    #[test]
    fn targets_of_the_stock_are_the_explicit_ones_alone_or_both() {
        let explicit = |yaml| with(yaml).slo.explicit;
        assert_eq!(explicit("stock: {targets: {ttft: null, itl: null}}"), None);
        let itl = Targets { ttft_ms: None, itl_ms: Some(50.0) };
        assert_eq!(explicit("stock: {watermark_per_backend: auto, targets: {itl: 50ms}}"), Some(itl));
        let both = Targets { ttft_ms: Some(2_000.0), itl_ms: Some(50.0) };
        assert_eq!(explicit("stock: {targets: {ttft: 2s, itl: 50}}"), Some(both));
    }
}
