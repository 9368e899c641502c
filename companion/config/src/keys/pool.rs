//! `pools`: a queue in front of model servers that serve the same models.

use std::collections::BTreeMap;

use penstock_engine::policy::{Policy, TokenWeights};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::arbitration::{convert_bands, convert_flows, convert_key, convert_order};
use super::classes::{self, ClassSets};
use super::{
    Arbitration, Credits, Down, Endpoints, Eviction, Health, Model, Queue, Rewrite, Scheduler, Scrape, Slo,
    Stock, Upstream, Usage, check_name, endpoints, millis, servers, slo, stock, upstream,
};
use crate::error::Violation;
use crate::name::LABEL_BYTES_MAX;
use crate::pool::has_only_fraction;
use crate::value::{CapacityStatus, List, Port, PositiveDuration, WholeNumber};
use crate::{Discovery, Then};

/// A queue in front of model servers that serve the same models.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pool {
    /// The pool's unique name: 1 to 63 letters, digits, `-`, `_` or `.`.
    #[schemars(regex(pattern = r"^[A-Za-z0-9._-]{1,63}$"))]
    pub(crate) name: String,
    /// Globs of the models that the pool serves. An empty list means every model.
    #[serde(default)]
    pub(crate) models: List<String>,
    /// Requests that name no model belong to this pool. They belong to the only pool in any case.
    #[serde(default)]
    pub(crate) default: bool,
    /// A port of `picker.listen`'s address at which gateways ask about requests of this pool alone, whatever their model: the port of the
    /// Service in an InferencePool's `endpointPickerRef`. Null: they ask at `picker.listen`, and the model chooses the pool. It can't change
    /// at run time.
    #[serde(default)]
    pub(crate) picker_port: Option<Port>,
    /// Replaces the model of a request before the request is sent to a model server. The first entry that matches counts.
    #[serde(default)]
    pub(crate) rewrite: List<Rewrite>,
    /// The model servers: exactly one of `static`, `dns`, `file` and `kubernetes`.
    pub(crate) endpoints: Endpoints,
    /// The way to the model servers: TLS, HTTP/2 and credentials.
    #[serde(default)]
    pub(crate) upstream: Upstream,
    /// Health checks of the endpoints.
    #[serde(default)]
    pub(crate) health: Health,
    /// How long an endpoint gets no requests after requests to it have failed.
    #[serde(default)]
    pub(crate) down: Down,
    /// Reading of the endpoints' metrics.
    #[serde(default)]
    pub(crate) scrape: Scrape,
    /// Limits of the queue.
    #[serde(default)]
    pub(crate) queue: Queue,
    /// Limits of the work that runs at the endpoints.
    #[serde(default)]
    pub(crate) stock: Stock,
    /// Ends running sheddable requests for critical ones that wait.
    #[serde(default)]
    pub(crate) eviction: Eviction,
    /// The order in which queued requests are granted.
    #[serde(default)]
    pub(crate) arbitration: Arbitration,
    /// The cost of tokens, and the storage of usage.
    #[serde(default)]
    pub(crate) usage: Usage,
    /// Latency targets. Set both targets or neither.
    #[serde(default)]
    pub(crate) slo: Slo,
    /// The performance model.
    #[serde(default)]
    pub(crate) model: Model,
    /// Weights of the scorers that choose an endpoint for a request.
    #[serde(default)]
    pub(crate) scheduler: Scheduler,
    /// Has long prompts computed by endpoints of the role `prefill`, for those of the role `decode`.
    #[serde(default)]
    pub(crate) disaggregation: Disaggregation,
    /// How long a model server may be silent before Envoy ends the attempt. Without a limit, a server that hangs is named by an advice and a
    /// metric, and nothing is cut.
    #[serde(default)]
    pub(crate) timeouts: Timeouts,
    /// Envoy's behaviour while no companion answers.
    #[serde(default)]
    pub(crate) companion_down: CompanionDown,
    /// Answers a request 429 at once if it is predicted to miss its deadline, by the queue's pace and the performance model.
    #[serde(default)]
    pub(crate) reject_unmeetable: bool,
    /// The status of answers when the queue is full or a request has waited for too long.
    #[serde(default = "service_unavailable")]
    pub(crate) capacity_status: CapacityStatus,
}

const fn service_unavailable() -> CapacityStatus {
    CapacityStatus(503)
}

/// Envoy's behaviour while no companion answers.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CompanionDown {
    /// How long Envoy holds requests, counted from the loss of the companion, also for requests that arrive later.
    pub(crate) hold: PositiveDuration,
    /// What happens to held requests after `hold`.
    pub(crate) then: Then,
}

impl Default for CompanionDown {
    fn default() -> Self {
        Self { hold: millis(5_000), then: Then::Closed }
    }
}

/// Has long prompts computed by endpoints of the role `prefill`, as in llm-d: a request that goes to an endpoint of the role `decode` names one
/// of them in the header `x-prefiller-host-port`, and counts at both until its answer begins. If no endpoint of one role is ready or has
/// room, an endpoint of the other one computes prompt and answer.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Disaggregation {
    /// A prompt is computed by a `prefill` endpoint if at least so many of its tokens aren't cached at the `decode` endpoint. Null: none is.
    pub(crate) min_uncached_tokens: Option<WholeNumber>,
}

/// How long a model server may be silent.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Timeouts {
    /// The longest time from sending a request, its body included, to the first byte of its answer's body. Then the request goes elsewhere,
    /// as `queue.resets` and `reset` in `queue.requeue_on` allow, or is answered 504 `upstream_timeout`. An answer that isn't streamed
    /// comes as a whole, so the limit must be longer than the longest of them takes.
    pub(crate) first_byte: Option<PositiveDuration>,
    /// The longest pause between two bytes after the first one. Then the answer is cut.
    pub(crate) idle: Option<PositiveDuration>,
}

/// Checks the pool at `path`. `identities_max` is `limits.flows`.
pub(super) fn convert(raw: Pool, identities_max: usize, path: &str) -> Result<crate::Pool, Violation> {
    check_name(&raw.name, LABEL_BYTES_MAX, "a name", &format!("{path}.name"))?;
    if let Some(index) = raw.models.iter().position(String::is_empty) {
        return Err(Violation::new(
            format!("{path}.models[{index}]"),
            "a glob isn't empty; `*` matches every model",
        ));
    }
    let requeue_on = raw.queue.requeue_on(path)?;
    let slo_policy = raw.stock.targets.added_to(slo(&raw.slo, path)?, path)?;
    let (input, output) = (raw.usage.input_token_weight.0, raw.usage.output_token_weight.0);
    if input == 0.0 && output == 0.0 {
        return Err(Violation::new(format!("{path}.usage"), "the two token weights can't both be 0"));
    }
    let arbitration = raw.arbitration;
    let arbitration_path = format!("{path}.arbitration");
    let class_mode = arbitration.classes.mode;
    let flow_key = convert_key(&arbitration.flows.key.0, &arbitration_path)?;
    let ClassSets { sets, globs } =
        classes::convert(arbitration.classes, &format!("{arbitration_path}.classes"))?;
    let policy = Policy {
        outlier_ejection: servers::down(&raw.down, path)?,
        failing: raw.endpoints.failing.as_ref().map(endpoints::Failing::policy),
        release_after: raw.stock.release_after.map(|after| after.0),
        extra_for_idle_flows: raw.stock.extra_for_idle_flows.0,
        eviction: raw.eviction.policy(raw.queue.ttl.0, path)?,
        queue: raw.queue.limits(),
        gate: stock::convert(&raw.stock, path)?,
        bands: convert_bands(&arbitration.bands, &arbitration_path)?,
        per_model: arbitration.per_model,
        class_mode,
        classes: sets,
        flows: convert_flows(arbitration.flows, identities_max, &format!("{arbitration_path}.flows"))?,
        order: convert_order(arbitration.order, &slo_policy),
        weights: TokenWeights { input, output },
        usage_window: raw.usage.window.0,
        reject_unmeetable: raw.reject_unmeetable,
        scheduler: raw.scheduler.scorers(),
        min_uncached_tokens: raw.disaggregation.min_uncached_tokens.map(|tokens| tokens.0),
    };
    let found = endpoints::convert(raw.endpoints, policy.min_uncached_tokens.is_some(), path)?;
    check_fractions(&policy, &globs, &found, path)?;
    let dns_name = match &found.discovery {
        Some(Discovery::Dns { name, .. }) => Some(name.as_str()),
        _ => None,
    };
    let upstream = upstream::convert(raw.upstream, dns_name, found.is_https, path)?;
    Ok(crate::Pool {
        endpoints: found.listed,
        discovery: found.discovery,
        pending: Vec::new(),
        objectives: BTreeMap::new(),
        endpoint_defaults: found.defaults,
        rewrite: servers::rewrite(raw.rewrite.0, path)?,
        upstream,
        health: servers::health(&raw.health, path)?,
        scrape: servers::scrape(raw.scrape, path)?,
        policy,
        slo: slo_policy,
        transient: raw.model.transient.0,
        flow_key,
        class_globs: globs,
        requeues: raw.queue.requeues.limit(),
        requeue_on,
        resets: raw.queue.resets.0,
        gives_credit: matches!(raw.queue.credits, Credits::Auto),
        prefix_min_tokens: raw.scheduler.prefix_min_tokens.0,
        include_usage: raw.usage.include,
        timeouts: crate::Timeouts {
            first_byte: raw.timeouts.first_byte.map(|longest| longest.0),
            idle: raw.timeouts.idle.map(|longest| longest.0),
        },
        keep_alive: raw.queue.keep_alive(path)?,
        store: raw.usage.store.checked(&format!("{path}.usage.store"))?,
        hold: raw.companion_down.hold.0,
        then: raw.companion_down.then,
        capacity_status: if raw.capacity_status.0 == 429 { 429 } else { 503 },
        name: raw.name,
        models: raw.models.0,
        is_default: raw.default,
        picker_port: raw.picker_port.and_then(|port| u16::try_from(port.0).ok()),
    })
}

/// Checks that the batched tokens of every endpoint are known, if a class has its prefill threshold only as a fraction of them.
/// A file of endpoints is checked when it is read.
fn check_fractions(
    policy: &Policy,
    class_globs: &[String],
    endpoints: &endpoints::Found,
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

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use penstock_engine::policy::{
        BandMode, Bands, CostUnit, Discipline, ExtraPlaces, Failing, FlowKey, Flows, Gate, Order,
        OutlierEjection, StockUnit, TokenWeights,
    };
    use penstock_engine::units::Decimal;

    use crate::{Config, Pool, RequeueOn, Store, Then};

    /// A document of one pool with `keys`, each line from the fourth on.
    fn parse(keys: &str) -> Result<Pool, String> {
        let indented: String = keys.lines().map(|line| format!("  {line}\n")).collect();
        let text = format!("pools:\n- name: a\n  endpoints: {{static: ['127.0.0.1:8001']}}\n{indented}");
        Config::parse(&text, "f.yaml")
            .map(|mut config| config.pools.remove(0))
            .map_err(|error| error.to_string())
    }

    fn valid(keys: &str) -> Pool {
        parse(keys).unwrap_or_else(|error| panic!("{keys}: {error}"))
    }

    /// The engine's defaults, and a tenth of each bound for flows with nothing running.
    fn default_policy() -> penstock_engine::Policy {
        let extra_for_idle_flows = ExtraPlaces::TENTH;
        penstock_engine::Policy { extra_for_idle_flows, ..penstock_engine::Policy::default() }
    }

    #[test]
    fn defaults_of_the_document_are_those_of_the_engine() {
        let pool = valid("");
        assert_eq!(pool.policy, default_policy());
        assert_eq!(pool.flow_key, [FlowKey::FairnessId]);
        assert!(pool.class_globs.is_empty());
    }

    #[test]
    fn configuration_page_shows_the_defaults() {
        let page = include_str!("../../../../docs/configuration.md");
        let blocks: Vec<_> = page
            .split("```")
            .filter_map(|block| block.strip_prefix("yaml\n"))
            .filter(|block| block.contains("endpoints:"))
            .collect();
        assert_eq!(
            blocks.len(),
            6,
            "shortest, sharing, performance model, failures, several companions, protection"
        );
        let least = "pools: [{name: chat, endpoints: {static: ['127.0.0.1:8001']}}]";
        let defaults = format!("{:?}", Config::parse(least, "least").expect("valid"));
        for block in blocks {
            let mut config = Config::parse(block, "page").expect("valid");
            // Absent by default; the page shows the defaults of its keys.
            config.replicas = None;
            assert_eq!(config.pools[0].policy, default_policy());
            assert_eq!(format!("{config:?}"), defaults);
        }
    }

    fn listed(connect: bool, reset: bool, statuses: &[u16]) -> RequeueOn {
        RequeueOn { connect, reset, statuses: statuses.to_vec() }
    }

    #[test]
    fn every_key_reaches_the_engine() {
        let pool = valid(
            "queue: {max_rate: 2.5, requeues: 5}
reject_unmeetable: true
eviction: {sheddable: true, after: 400ms}
down: {first: 250ms, max: 8s}
companion_down: {hold: 2s, then: open}
stock: {unit: tokens, watermark_per_backend: 20000, deviation: 0.25, release_after: 20s, extra_for_idle_flows: 3}
usage: {window: 90s, input_token_weight: 0.5, output_token_weight: 4, include: true, store: memory}
slo: {target_ttft: 500ms, target_itl: 50}
arbitration:
  per_model: true
  bands: {mode: weighted, weights: {critical: 7, default: 0.25}, ceiling: {default: 0.9, sheddable: 0.5}}
  flows: {discipline: usage, key: [fairness_id, target_model], cost: requests, weights: {acme: 3}, default_weight: 2,
          capacities: {acme: 7}, max_in_flight: 9, max_in_flight_per_endpoint: 4}
  order: slo_deadline",
        );
        let policy = pool.policy;
        assert_eq!(policy.queue.max_rate, Some(2.5));
        assert!(policy.reject_unmeetable);
        assert_eq!(policy.eviction, Some(Duration::from_millis(400)));
        assert_eq!(valid("eviction: {after: 400ms}").policy.eviction, None, "it is off");
        assert_eq!(
            policy.gate,
            Gate::Bounded {
                unit: StockUnit::Tokens,
                lower: Decimal::whole(15_000),
                upper: Decimal::whole(25_000),
                watermark: Decimal::whole(20_000),
            }
        );
        assert_eq!(policy.usage_window, Duration::from_secs(90));
        assert!(pool.include_usage && !valid("").include_usage);
        let weights = TokenWeights { input: 0.5, output: 4.0 };
        assert_eq!(policy.weights, weights);
        assert!(policy.per_model);
        let tenths = |count: u128| Some(Decimal::from_billionths(count * Decimal::ONE / 10));
        let bands =
            Bands { mode: BandMode::Weighted([7.0, 0.25, 0.0]), ceilings: [None, tenths(9), tenths(5)] };
        assert_eq!(policy.bands, bands);
        let flows = Flows {
            discipline: Discipline::Usage,
            cost: CostUnit::Requests,
            weights: [("acme".into(), 3.0)].into(),
            default_weight: 2.0,
            capacities: [("acme".into(), 7)].into(),
            max_in_flight: Some(9),
            max_in_flight_per_endpoint: Some(4),
            ..Flows::default()
        };
        assert_eq!(policy.flows, flows);
        assert_eq!(pool.flow_key, [FlowKey::FairnessId, FlowKey::TargetModel]);
        let target = Some(Duration::from_millis(500));
        assert_eq!(policy.order, Order::SloDeadline { target });
        let down = OutlierEjection { first: Duration::from_millis(250), max: Duration::from_secs(8) };
        assert_eq!(policy.outlier_ejection, down);
        assert_eq!(policy.release_after, Some(Duration::from_secs(20)));
        assert_eq!(policy.extra_for_idle_flows, ExtraPlaces::Count(3));
        assert_eq!(pool.requeues, Some(5));
        assert_eq!(valid("queue: {requeues: until_ttl}").requeues, None);
        assert_eq!(pool.requeue_on, listed(true, true, &[429, 500, 502, 503, 504]));
        assert_eq!((pool.resets, valid("queue: {resets: 0}").resets), (1, 0));
        let some = valid("queue: {requeue_on: [connect, 503]}");
        assert_eq!(some.requeue_on, listed(true, false, &[503]));
        assert_eq!(valid("queue: {requeue_on: []}").requeue_on, listed(false, false, &[]));
        assert_eq!(pool.store, None);
        let kept = valid("usage: {store: {redb: /var/lib/penstock/kept.redb}}");
        assert_eq!(kept.store, Some(Store::Redb("/var/lib/penstock/kept.redb".into())));
        let shared = valid("usage: {store: {redis: 'rediss://me:hunter2@cache.internal:6380/2'}}");
        let Some(Store::Redis(url)) = shared.store else {
            panic!("{:?}", shared.store);
        };
        assert_eq!(url.to_string(), "rediss://me:***@cache.internal:6380/2");
        assert_eq!((pool.hold, pool.then), (Duration::from_secs(2), Then::Open));
    }

    #[test]
    fn failing_reaches_the_engine_and_null_turns_it_off() {
        let failing = |keys: &str| {
            let text = format!("pools: [{{name: a, endpoints: {{static: ['127.0.0.1:8001']{keys}}}}}]");
            Config::parse(&text, "f.yaml").map(|mut config| config.pools.remove(0).policy.failing)
        };
        let given = Failing {
            consecutive: 3,
            ratio: 0.25,
            window: Duration::from_secs(10),
            probe_every: Duration::from_millis(500),
        };
        let keys = ", failing: {consecutive: 3, ratio: 0.25, window: 10s, probe_every: 500ms}";
        assert_eq!(failing(keys).expect("valid"), Some(given));
        assert_eq!(failing(", failing: {}").expect("valid"), Some(Failing::default()));
        assert_eq!(failing("").expect("valid"), Some(Failing::default()));
        assert_eq!(failing(", failing: null").expect("valid"), None);
    }

    #[test]
    fn names_of_variants_reach_the_engine() {
        let disciplines = ["wfq", "usage", "vtc", "drr", "round_robin", "fifo"];
        for (word, discipline) in disciplines.into_iter().zip(Discipline::ALL) {
            let pool = valid(&format!("arbitration: {{flows: {{discipline: {word}}}}}"));
            assert_eq!(pool.policy.flows.discipline, discipline);
        }
        let target = None;
        for (word, order) in [
            ("fcfs", Order::Fcfs),
            ("wspt", Order::Wspt),
            ("edf", Order::Edf),
            ("slo_deadline", Order::SloDeadline { target }),
        ] {
            assert_eq!(valid(&format!("arbitration: {{order: {word}}}")).policy.order, order);
        }
        assert!(valid("arbitration: {flows: {key: none}}").flow_key.is_empty());
        assert_eq!(valid("arbitration: {flows: {key: user}}").flow_key, [FlowKey::User]);
        let weighted = valid("arbitration: {bands: {mode: weighted}}").policy.bands.mode;
        assert_eq!(weighted, BandMode::Weighted([70.0, 20.0, 10.0]));
        let nulls = "queue: {max_rate: null}\nslo: {target_ttft: null, target_itl: null}\narbitration:
  classes: {mode: exact, default_policy_family: null, uncached_isl_buckets: [], policy_classes: []}
  flows: {max_in_flight: null, max_in_flight_per_endpoint: null}";
        assert_eq!(valid(nulls).policy, default_policy());
    }
}
