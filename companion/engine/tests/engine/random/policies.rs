//! Random policies.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_engine::Policy;
use penstock_engine::policy::{
    Admit, BandMode, Bands, Bucket, Budget, BudgetCalendar, BudgetPeriod, BudgetWindow, Class, ClassMode,
    ClassSet, CostUnit, Discipline, ExtraPlaces, FlowGlob, Flows, Gate, Order, OutlierEjection, Over,
    Overflow, Queue, Scorers, StockUnit, TokenWeights,
};
use penstock_engine::units::Decimal;

use super::{Rng, maybe};

/// The features that random policies use.
#[derive(Clone, Debug)]
pub struct PolicyChoices {
    pub disciplines: Vec<Discipline>,
    /// Some policies have the class mode `dynamo`.
    pub dynamo: bool,
    /// Some policies have [`Gate::Manual`].
    pub manual: bool,
    /// Some policies have [`Gate::Auto`].
    pub auto: bool,
    /// Some policies count stock in tokens.
    pub stock_in_tokens: bool,
    /// Some policies allow fewer identities than there are.
    pub identities: bool,
    /// Some policies have budgets.
    pub budgets: bool,
    /// Some policies have evictions.
    pub evictions: bool,
}

impl PolicyChoices {
    /// All features.
    pub fn all() -> Self {
        Self {
            disciplines: Discipline::ALL.to_vec(),
            dynamo: true,
            manual: true,
            auto: true,
            stock_in_tokens: true,
            identities: true,
            budgets: true,
            evictions: true,
        }
    }
}

fn quarters(count: u64) -> Decimal {
    Decimal::from_billionths(u128::from(count) * Decimal::ONE / 4)
}

pub fn policy(rng: &mut Rng, choices: &PolicyChoices) -> Policy {
    let discipline = rng.choose(&choices.disciplines);
    let dynamo = choices.dynamo && rng.percent(10);
    Policy {
        queue: queue(rng),
        gate: gate(rng, choices),
        bands: bands(rng),
        per_model: rng.percent(25),
        class_mode: if dynamo { ClassMode::Dynamo } else { ClassMode::Exact },
        classes: classes(rng),
        flows: flows(rng, discipline, choices),
        order: order(rng),
        weights: rng.choose(&[TokenWeights::default(), TokenWeights { input: 1.0, output: 0.0 }]),
        usage_window: Duration::from_secs(rng.choose(&[5, 60, 300, 600])),
        outlier_ejection: OutlierEjection {
            first: Duration::from_secs(rng.choose(&[1, 5])),
            max: Duration::from_secs(rng.choose(&[5, 30])),
        },
        // The model of this test knows no kinds of requests: `health` tests that rule.
        failing: None,
        release_after: maybe(rng, 25, |rng| Duration::from_secs(1 + rng.below(20))),
        extra_for_idle_flows: rng.choose(&[
            ExtraPlaces::NONE,
            ExtraPlaces::NONE,
            ExtraPlaces::Count(1),
            ExtraPlaces::Count(3),
            ExtraPlaces::Part(quarters(1)),
            ExtraPlaces::Part(quarters(4)),
        ]),
        eviction: if choices.evictions {
            maybe(rng, 40, |rng| Duration::from_millis(1 + rng.below(10_000)))
        } else {
            None
        },
        reject_unmeetable: rng.percent(20),
        scheduler: rng.choose(&[
            Scorers::default(),
            Scorers { stock: 0.0, ..Scorers::default() },
            Scorers { queue: 0.0, kv_cache: 0.0, prefix: 0.0, ..Scorers::default() },
        ]),
        // `world` changes it: the model of this test knows no roles.
        min_uncached_tokens: None,
    }
}

fn queue(rng: &mut Rng) -> Queue {
    Queue {
        enabled: rng.percent(92),
        total_capacity: rng.choose(&[0, 3, 8, 12, 40, 40, 40]),
        total_bytes: rng.choose(&[500, 5_000, 20_000, 1 << 30]),
        flow_capacity: 1 + rng.below(8),
        ttl: Duration::from_secs(1 + rng.below(40)),
        no_endpoint_ttl: Duration::from_secs(1 + rng.below(40)),
        overflow: rng.choose(&[Overflow::Displace, Overflow::Reject]),
        admit: rng.choose(&[Admit::All, Admit::All, Admit::All, Admit::CriticalOnly]),
        max_rate: maybe(rng, 15, |rng| rng.choose(&[0.5, 1.0, 4.0, 20.0])),
    }
}

fn gate(rng: &mut Rng, choices: &PolicyChoices) -> Gate {
    let lower = rng.below(10);
    let upper = lower + rng.below(6);
    let tokens = choices.stock_in_tokens && rng.percent(15);
    let sequences = rng.percent(30);
    let (unit, each) = match (tokens, sequences) {
        (true, _) => (StockUnit::Tokens, 300),
        (false, true) => (StockUnit::Sequences, 1),
        (false, false) => (StockUnit::Requests, 1),
    };
    match rng.below(16) {
        0 => Gate::Open,
        1 if choices.manual => Gate::Manual,
        2..7 if choices.auto => Gate::Auto { initial: quarters(4 + rng.below(16)) },
        _ => Gate::Bounded {
            unit,
            lower: quarters(lower * each),
            upper: quarters(upper * each),
            watermark: quarters(lower * each),
        },
    }
}

fn bands(rng: &mut Rng) -> Bands {
    let weights = [[1.0, 1.0, 1.0], [70.0, 20.0, 10.0], [0.5, 2.0, 0.25], [1.0, 3.0, 0.0]];
    let mode = maybe(rng, 40, |rng| BandMode::Weighted(rng.choose(&weights)));
    let ceiling = |rng: &mut Rng| maybe(rng, 15, |rng| quarters(1 + rng.below(4)));
    Bands { mode: mode.unwrap_or_default(), ceilings: [ceiling(rng), ceiling(rng), ceiling(rng)] }
}

fn classes(rng: &mut Rng) -> Vec<ClassSet> {
    if rng.percent(50) {
        return Vec::new();
    }
    let mut class = |family: &str, bucket: Option<&str>, name: &str| {
        let quantum = rng.choose(&[1, 64, 100, 512, 2_048]);
        let limit = |rng: &mut Rng, percent, most| maybe(rng, percent, |rng| 1 + rng.below(most));
        Class {
            family: family.into(),
            bucket: bucket.map(Into::into),
            order: maybe(rng, 30, order),
            busy_tokens: limit(rng, 25, 400),
            busy_fraction: maybe(rng, 15, |rng| rng.choose(&[0.25, 0.5, 1.0])),
            requests_per_endpoint: limit(rng, 20, 5),
            prompt_tokens_per_endpoint: limit(rng, 10, 1_000),
            cached_tokens_per_endpoint: limit(rng, 10, 300),
            ..Class::new(name, quantum)
        }
    };
    let first = ClassSet {
        default_family: None,
        buckets: vec![
            Bucket { min_tokens: 0, name: "short".into() },
            Bucket { min_tokens: 150, name: "long".into() },
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
    let count = rng.below(2) as usize + 1;
    [first, second].into_iter().take(count).collect()
}

fn flows(rng: &mut Rng, discipline: Discipline, choices: &PolicyChoices) -> Flows {
    let mut weights = BTreeMap::new();
    for name in ["a", "b", "anonymous"] {
        if rng.percent(40) {
            weights.insert(name.into(), rng.choose(&[0.25, 0.5, 2.0, 3.0]));
        }
    }
    let few = choices.identities && rng.percent(15);
    Flows {
        discipline,
        cost: rng.choose(&[CostUnit::Tokens, CostUnit::Requests]),
        weights,
        default_weight: rng.choose(&[1.0, 1.0, 2.0]),
        capacities: BTreeMap::from([("a".into(), 1 + rng.below(6))]),
        max_in_flight: maybe(rng, 20, |rng| 1 + rng.below(4)),
        max_in_flight_per_endpoint: maybe(rng, 20, |rng| 1 + rng.below(2)),
        budgets: if choices.budgets && rng.percent(40) { budgets(rng) } else { Vec::new() },
        identities_max: if few { 2 } else { 1_000 },
    }
}

fn budgets(rng: &mut Rng) -> Vec<Budget> {
    let globs = ["a", "b", "?", "anonymous", "*"];
    let mut budgets = Vec::new();
    for glob in globs {
        if rng.percent(50) {
            budgets.push(Budget {
                flows: FlowGlob::new(glob),
                windows: budget_windows(rng),
                calendar: BudgetCalendar::default(),
                over: rng.choose(&[Over::Demote, Over::Demote, Over::Hold, Over::Refuse]),
                shadow: rng.percent(10),
            });
        }
    }
    budgets
}

fn budget_windows(rng: &mut Rng) -> Vec<BudgetWindow> {
    let mut windows: Vec<BudgetWindow> = Vec::new();
    for _ in 0..1 + rng.below(3) {
        let (unit, limit) = if rng.percent(60) {
            let most = rng.choose(&[100, 1_000, 4_000]);
            (CostUnit::Tokens, 1 + rng.below(most))
        } else {
            (CostUnit::Requests, 1 + rng.below(12))
        };
        let sliding = |seconds| BudgetPeriod::Sliding(Duration::from_secs(seconds));
        let period = rng.choose(&[
            sliding(1),
            sliding(10),
            sliding(10),
            sliding(90),
            BudgetPeriod::Day,
            BudgetPeriod::Week,
            BudgetPeriod::Month,
        ]);
        if !windows.iter().any(|other| (other.unit, other.period) == (unit, period)) {
            windows.push(BudgetWindow { unit, limit, period });
        }
    }
    windows
}

fn order(rng: &mut Rng) -> Order {
    let target = maybe(rng, 50, |rng| Duration::from_secs(rng.below(20)));
    rng.choose(&[Order::Fcfs, Order::Fcfs, Order::Wspt, Order::Edf, Order::SloDeadline { target }])
}
