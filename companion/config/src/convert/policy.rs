//! The engine's policy of a pool: the queue, the gate, and the order of grants.

use penstock_engine::policy as engine;
use penstock_engine::policy::FlowKey;

use super::classes::{self, ClassSets};
use super::{budgets, stock};
use crate::error::Violation;
use crate::raw;

/// The keys of a pool that make its policy.
pub(super) struct Parts {
    pub(super) down: raw::Down,
    pub(super) queue: raw::Queue,
    pub(super) stock: raw::Stock,
    pub(super) arbitration: raw::Arbitration,
    pub(super) usage: raw::Usage,
    pub(super) slo: raw::Slo,
    pub(super) reject_unmeetable: bool,
    pub(super) scheduler: engine::Scorers,
}

/// A pool's policy, and the settings of `arbitration` that the engine doesn't need.
pub(super) struct Converted {
    pub(super) policy: engine::Policy,
    pub(super) flow_key: Vec<FlowKey>,
    pub(super) class_globs: Vec<String>,
}

/// Checks a pool's policy; `path` is the pool's. `identities_max` is `limits.flows`.
pub(super) fn convert(raw: Parts, identities_max: usize, path: &str) -> Result<Converted, Violation> {
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
    Ok(Converted {
        policy: engine::Policy {
            outlier_ejection: convert_down(&raw.down, path)?,
            queue: convert_queue(&raw.queue),
            gate: stock::convert(&raw.stock, path)?,
            bands: convert_bands(&arbitration.bands, &arbitration_path)?,
            per_model: arbitration.per_model,
            class_mode,
            classes: sets,
            flows: convert_flows(arbitration.flows, identities_max, &format!("{arbitration_path}.flows"))?,
            order: convert_order(arbitration.order, &raw.slo),
            weights: engine::TokenWeights { input, output },
            usage_window: raw.usage.window.0,
            reject_unmeetable: raw.reject_unmeetable,
            scheduler: raw.scheduler,
        },
        flow_key,
        class_globs: globs,
    })
}

fn convert_down(raw: &raw::Down, path: &str) -> Result<engine::OutlierEjection, Violation> {
    let down = engine::OutlierEjection { first: raw.first.0, max: raw.max.0 };
    if down.first > down.max {
        return Err(Violation::new(
            format!("{path}.down.first"),
            "first is at most max; the time doubles until it reaches max",
        ));
    }
    Ok(down)
}

fn convert_queue(raw: &raw::Queue) -> engine::Queue {
    engine::Queue {
        enabled: raw.enabled,
        total_capacity: raw.total_capacity.0,
        total_bytes: raw.total_bytes.0,
        flow_capacity: raw.flow_capacity.0,
        ttl: raw.ttl.0,
        no_endpoint_ttl: raw.no_endpoint_ttl.0,
        overflow: raw.overflow,
        admit: raw.admit,
        max_rate: raw.max_rate.map(|rate| rate.0),
    }
}

fn convert_bands(raw: &raw::Bands, path: &str) -> Result<engine::Bands, Violation> {
    let weights = [raw.weights.critical, raw.weights.default, raw.weights.sheddable].map(|weight| weight.0);
    if weights.iter().all(|weight| *weight == 0.0) {
        return Err(Violation::new(
            format!("{path}.bands.weights"),
            "the weights can't all be 0; a band that is left out has 0",
        ));
    }
    let ceiling = &raw.ceiling;
    Ok(engine::Bands {
        mode: match raw.mode {
            raw::BandMode::Strict => engine::BandMode::Strict,
            raw::BandMode::Weighted => engine::BandMode::Weighted(weights),
        },
        ceilings: [ceiling.critical, ceiling.default, ceiling.sheddable]
            .map(|ceiling| ceiling.map(|share| share.0)),
    })
}

fn convert_flows(raw: raw::Flows, identities_max: usize, path: &str) -> Result<engine::Flows, Violation> {
    Ok(engine::Flows {
        discipline: raw.discipline,
        cost: raw.cost,
        weights: raw.weights.into_iter().map(|(flow, weight)| (flow.into(), weight.0)).collect(),
        default_weight: raw.default_weight.0,
        capacities: raw.capacities.into_iter().map(|(flow, capacity)| (flow.into(), capacity.0)).collect(),
        max_in_flight: raw.max_in_flight.map(|count| count.0),
        max_in_flight_per_endpoint: raw.max_in_flight_per_endpoint.map(|count| count.0),
        quotas: budgets::convert(raw.budgets.0, &format!("{path}.budgets"))?,
        identities_max,
    })
}

/// The parts of a flow's identity. `none` is an empty list.
fn convert_key(raw: &[raw::FlowKey], path: &str) -> Result<Vec<FlowKey>, Violation> {
    let violation = |message: &str| Err(Violation::new(format!("{path}.flows.key"), message));
    if raw.is_empty() {
        return violation(
            "at least one of fairness_id, user, model, target_model is required, or none alone",
        );
    }
    if raw == [raw::FlowKey::None] {
        return Ok(Vec::new());
    }
    let mut keys = Vec::with_capacity(raw.len());
    for key in raw {
        let key = match key {
            raw::FlowKey::FairnessId => FlowKey::FairnessId,
            raw::FlowKey::User => FlowKey::User,
            raw::FlowKey::Model => FlowKey::Model,
            raw::FlowKey::TargetModel => FlowKey::TargetModel,
            raw::FlowKey::None => return violation("none stands alone"),
        };
        if keys.contains(&key) {
            return violation("each part is listed once");
        }
        keys.push(key);
    }
    Ok(keys)
}

const fn convert_order(raw: raw::Order, slo: &raw::Slo) -> engine::Order {
    match raw {
        raw::Order::Fcfs => engine::Order::Fcfs,
        raw::Order::Wspt => engine::Order::Wspt,
        raw::Order::Edf => engine::Order::Edf,
        raw::Order::SloDeadline => engine::Order::SloDeadline {
            target: match slo.target_ttft {
                Some(target) => Some(target.0),
                None => None,
            },
        },
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use penstock_engine::policy::{
        BandMode, Bands, CostUnit, Discipline, FlowKey, Flows, Gate, Order, OutlierEjection, StockUnit,
        TokenWeights,
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

    #[test]
    fn defaults_of_the_document_are_those_of_the_engine() {
        let pool = valid("");
        assert_eq!(pool.policy, penstock_engine::Policy::default());
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
            assert_eq!(config.pools[0].policy, penstock_engine::Policy::default());
            assert_eq!(format!("{config:?}"), defaults);
        }
    }

    fn listed([connect, reset, too_many_requests, unavailable]: [bool; 4]) -> RequeueOn {
        RequeueOn { connect, reset, too_many_requests, unavailable }
    }

    #[test]
    fn every_key_reaches_the_engine() {
        let pool = valid(
            "queue: {max_rate: 2.5, requeues: 5}
reject_unmeetable: true
down: {first: 250ms, max: 8s}
companion_down: {hold: 2s, then: open}
stock: {unit: tokens, watermark_per_backend: 20000, deviation: 0.25}
usage: {window: 90s, input_token_weight: 0.5, output_token_weight: 4, store: memory}
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
        assert_eq!(pool.requeues, Some(5));
        assert_eq!(valid("queue: {requeues: until_ttl}").requeues, None);
        assert_eq!(pool.requeue_on, listed([true; 4]));
        let some = valid("queue: {requeue_on: [connect, 503]}");
        assert_eq!(some.requeue_on, listed([true, false, false, true]));
        assert_eq!(valid("queue: {requeue_on: []}").requeue_on, listed([false; 4]));
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
        assert_eq!(valid(nulls).policy, penstock_engine::Policy::default());
    }

    #[test]
    fn errors_name_the_line_the_key_and_the_allowed_values() {
        let flows = |keys: &str| format!("\narbitration:\n  flows: {{{keys}}}");
        let bands = |keys: &str| format!("\narbitration:\n  bands: {{{keys}}}");
        let store = |value: &str, allowed| (format!("\nusage:\n  store: {value}"), 6, "usage.store", allowed);
        let cases = [
            ("\nqueue:\n  max_rate: 0".to_owned(), 6, "queue.max_rate", "above 0"),
            ("\nqueue:\n  max_rate: .inf".to_owned(), 6, "queue.max_rate", "finite"),
            ("\nusage:\n  window: 0s".to_owned(), 6, "usage.window", "above zero"),
            store("{redis: '127.0.0.1:6379'}", "not the URL of a redis server"),
            store("{redis: 'http://127.0.0.1'}", "rediss:// for TLS"),
            store("{redis: 'redis://:***@127.0.0.1'}", "not the URL of a redis server"),
            store("'redis://127.0.0.1'", "{redis: URL}"),
            store("redis", "{redis: URL}"),
            store("{redb: f, redis: 'redis://h'}", "memory, {redb: PATH}, or"),
            store("{redb: ''}", "memory, {redb: PATH}, or"),
            store("{redb: null}", "memory, {redb: PATH}, or"),
            store("{}", "memory, {redb: PATH}, or"),
            store("{file: f}", "redb"),
            store("[f]", "memory, {redb: PATH}, or"),
            ("\ndown: {first: 40s}".to_owned(), 5, "down", "at most max"),
            ("\ndown:\n  first: 0s".to_owned(), 6, "down.first", "above zero"),
            (
                "\nqueue:\n  requeue_on: [reset, 429, reset]".to_owned(),
                6,
                "queue.requeue_on[2]",
                "listed once",
            ),
            ("\nqueue:\n  requeues: 1001".to_owned(), 6, "queue.requeues", "0 to 1000"),
            ("\ncompanion_down:\n  then: ajar".to_owned(), 6, "companion_down.then", "open"),
            (flows("default_weight: 0"), 6, "arbitration.flows.default_weight", "above 0"),
            (flows("weights: {a: -1}"), 6, "arbitration.flows.weights.a", "above 0"),
            (flows("weights: {a: .nan}"), 6, "arbitration.flows.weights.a", "above 0"),
            (flows("capacities: {a: 0}"), 6, "arbitration.flows.capacities.a", "at least 1"),
            (flows("max_in_flight: 0"), 6, "arbitration.flows.max_in_flight", "at least 1"),
            (flows("max_in_flight_per_endpoint: 0"), 6, "arbitration.flows.max_in_flight_per", "at least 1"),
            (flows("discipline: lottery"), 6, "arbitration.flows.discipline", "round_robin"),
            (flows("key: []"), 6, "arbitration.flows.key", "none alone"),
            (flows("key: [user, none]"), 6, "arbitration.flows.key", "alone"),
            (flows("key: [user, user]"), 6, "arbitration.flows.key", "once"),
            (flows("key: tenant"), 6, "arbitration.flows.key", "fairness_id"),
            (flows("cost: bytes"), 6, "arbitration.flows.cost", "requests"),
            (flows("colour: red"), 6, "arbitration.flows", "colour"),
            (bands("mode: weighted, weights: {critical: 0}"), 6, "arbitration.bands.weights", "all be 0"),
            (bands("weights: {critical: -1}"), 6, "arbitration.bands.weights.critical", "at least 0"),
            (bands("weights: {batch: 1}"), 6, "arbitration.bands.weights", "sheddable"),
            (bands("ceiling: {sheddable: 1.01}"), 6, "arbitration.bands.ceiling.sheddable", "at most 1"),
            (bands("ceiling: {critical: 0}"), 6, "arbitration.bands.ceiling.critical", "above 0"),
            ("\narbitration:\n  order: lcfs".to_owned(), 6, "arbitration.order", "slo_deadline"),
        ];
        for (keys, line, key, word) in cases {
            let message = parse(&keys).expect_err(&keys);
            assert!(message.starts_with(&format!("f.yaml:{line}: pools[0].{key}")), "{keys}: {message}");
            assert!(message.contains(word), "{keys}: {message}");
        }
    }
}
