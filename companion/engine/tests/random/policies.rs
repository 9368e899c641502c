//! Random policies.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_engine::Policy;
use penstock_engine::policy::{
    Admit, BandMode, Bands, Bucket, Class, ClassMode, ClassSet, CostUnit, Discipline, Flows, Gate, Order,
    OutlierEjection, Overflow, Queue, Scorers, StockUnit, TokenWeights,
};
use penstock_engine::units::Decimal;

use super::{Dice, maybe};

/// Which policies are drawn.
#[derive(Clone, Debug)]
pub struct Worlds {
    pub disciplines: Vec<Discipline>,
    /// Some follow `mode: dynamo`.
    pub dynamo: bool,
    /// Some have [`Gate::Manual`].
    pub manual: bool,
    /// Some follow budgets.
    pub auto: bool,
    /// Some count stock in tokens.
    pub stock_in_tokens: bool,
    /// Some have fewer identities than there are.
    pub identities: bool,
}

impl Worlds {
    /// Everything that there is.
    pub fn all() -> Self {
        Self {
            disciplines: Discipline::ALL.to_vec(),
            dynamo: true,
            manual: true,
            auto: true,
            stock_in_tokens: true,
            identities: true,
        }
    }
}

fn quarters(of: u64) -> Decimal {
    Decimal::from_billionths(u128::from(of) * Decimal::ONE / 4)
}

pub fn policy(dice: &mut Dice, worlds: &Worlds) -> Policy {
    let discipline = dice.one(&worlds.disciplines);
    let dynamo = worlds.dynamo && dice.percent(10);
    Policy {
        queue: queue(dice),
        gate: gate(dice, worlds),
        bands: bands(dice),
        per_model: dice.percent(25),
        class_mode: if dynamo {
            ClassMode::Dynamo
        } else {
            ClassMode::Exact
        },
        classes: classes(dice),
        flows: flows(dice, discipline, worlds),
        order: order(dice),
        weights: dice.one(&[
            TokenWeights::default(),
            TokenWeights {
                input: 1.0,
                output: 0.0,
            },
        ]),
        usage_window: Duration::from_secs(dice.one(&[5, 60, 300, 600])),
        outlier_ejection: OutlierEjection {
            first: Duration::from_secs(dice.one(&[1, 5])),
            max: Duration::from_secs(dice.one(&[5, 30])),
        },
        reject_unmeetable: dice.percent(20),
        scheduler: dice.one(&[
            Scorers::default(),
            Scorers {
                stock: 0.0,
                ..Scorers::default()
            },
            Scorers {
                queue: 0.0,
                kv_cache: 0.0,
                prefix: 0.0,
                ..Scorers::default()
            },
        ]),
    }
}

fn queue(dice: &mut Dice) -> Queue {
    Queue {
        enabled: dice.percent(92),
        total_capacity: dice.one(&[0, 3, 8, 12, 40, 40, 40]),
        total_bytes: dice.one(&[500, 5_000, 20_000, 1 << 30]),
        flow_capacity: 1 + dice.below(8),
        ttl: Duration::from_secs(1 + dice.below(40)),
        no_endpoint_ttl: Duration::from_secs(1 + dice.below(40)),
        overflow: dice.one(&[Overflow::Displace, Overflow::Reject]),
        admit: dice.one(&[Admit::All, Admit::All, Admit::All, Admit::CriticalOnly]),
        max_rate: maybe(dice, 15, |dice| dice.one(&[0.5, 1.0, 4.0, 20.0])),
    }
}

fn gate(dice: &mut Dice, worlds: &Worlds) -> Gate {
    let lower = dice.below(10);
    let upper = lower + dice.below(6);
    let tokens = worlds.stock_in_tokens && dice.percent(15);
    let (unit, each) = if tokens {
        (StockUnit::Tokens, 300)
    } else {
        (StockUnit::Requests, 1)
    };
    match dice.below(16) {
        0 => Gate::Open,
        1 if worlds.manual => Gate::Manual,
        2..7 if worlds.auto => Gate::Auto {
            initial: quarters(4 + dice.below(16)),
        },
        _ => Gate::Bounded {
            unit,
            lower: quarters(lower * each),
            upper: quarters(upper * each),
            watermark: quarters(lower * each),
        },
    }
}

fn bands(dice: &mut Dice) -> Bands {
    let weights = [
        [1.0, 1.0, 1.0],
        [70.0, 20.0, 10.0],
        [0.5, 2.0, 0.25],
        [1.0, 3.0, 0.0],
    ];
    let mode = maybe(dice, 40, |dice| BandMode::Weighted(dice.one(&weights)));
    let ceiling = |dice: &mut Dice| maybe(dice, 15, |dice| quarters(1 + dice.below(4)));
    Bands {
        mode: mode.unwrap_or_default(),
        ceilings: [ceiling(dice), ceiling(dice), ceiling(dice)],
    }
}

fn classes(dice: &mut Dice) -> Vec<ClassSet> {
    if dice.percent(50) {
        return Vec::new();
    }
    let mut class = |family: &str, bucket: Option<&str>, name: &str| {
        let quantum = dice.one(&[1, 64, 100, 512, 2_048]);
        let limit = |dice: &mut Dice, percent, of| maybe(dice, percent, |dice| 1 + dice.below(of));
        Class {
            family: family.into(),
            bucket: bucket.map(Into::into),
            order: maybe(dice, 30, order),
            busy_tokens: limit(dice, 25, 400),
            busy_fraction: maybe(dice, 15, |dice| dice.one(&[0.25, 0.5, 1.0])),
            requests_per_endpoint: limit(dice, 20, 5),
            prompt_tokens_per_endpoint: limit(dice, 10, 1_000),
            cached_tokens_per_endpoint: limit(dice, 10, 300),
            ..Class::new(name, quantum)
        }
    };
    let first = ClassSet {
        default_family: None,
        buckets: vec![
            Bucket {
                min_tokens: 0,
                name: "short".into(),
            },
            Bucket {
                min_tokens: 150,
                name: "long".into(),
            },
        ],
        classes: vec![
            class("chat", Some("short"), "0.chat.short"),
            class("chat", Some("long"), "0.chat.long"),
            class("batch", None, "0.batch"),
        ],
    };
    let second = ClassSet {
        default_family: Some("chat".into()),
        buckets: Vec::new(),
        classes: vec![class("batch", None, "1.batch"), class("chat", None, "1.chat")],
    };
    let count = dice.below(2) as usize + 1;
    [first, second].into_iter().take(count).collect()
}

fn flows(dice: &mut Dice, discipline: Discipline, worlds: &Worlds) -> Flows {
    let mut weights = BTreeMap::new();
    for name in ["a", "b", "anonymous"] {
        if dice.percent(40) {
            weights.insert(name.into(), dice.one(&[0.25, 0.5, 2.0, 3.0]));
        }
    }
    let few = worlds.identities && dice.percent(15);
    Flows {
        discipline,
        cost: dice.one(&[CostUnit::Tokens, CostUnit::Requests]),
        weights,
        default_weight: dice.one(&[1.0, 1.0, 2.0]),
        capacities: BTreeMap::from([("a".into(), 1 + dice.below(6))]),
        max_in_flight: maybe(dice, 20, |dice| 1 + dice.below(4)),
        max_in_flight_per_endpoint: maybe(dice, 20, |dice| 1 + dice.below(2)),
        identities_max: if few { 2 } else { 1_000 },
    }
}

fn order(dice: &mut Dice) -> Order {
    let target = maybe(dice, 50, |dice| Duration::from_secs(dice.below(20)));
    dice.one(&[
        Order::Fcfs,
        Order::Fcfs,
        Order::Wspt,
        Order::Edf,
        Order::SloDeadline { target },
    ])
}
