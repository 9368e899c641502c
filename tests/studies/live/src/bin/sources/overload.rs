//! A burst above capacity with and without queueing in the gateway, and what the cost unit and the discipline change: the comparisons of
//! the Gateway API Inference Extension's flow control.

use std::time::Duration;

use penstock_engine::policy::{CostUnit, Discipline};
use penstock_model::slo::Policy as SloPolicy;
use penstock_simulate::closed_loop::{Arrivals, GateBy, Mix, Phase, Record, Scenario, run as run_loop};
use serde_json::{Value, json};

use crate::closed_loops::{
    TARGETS, capacity, first_tokens, mean_itl_ms, mix, output_rate, servers, utilisation, weighted_tokens,
    whole_answers,
};

const SERVERS: usize = 3;
/// Time for learning before anything is recorded.
const WARMUP: Duration = Duration::from_secs(480);
const RECORDED: Duration = Duration::from_secs(2_400);
/// Alternating load as a multiple of the servers' capacity within the target, and seconds.
const BURSTS: [(f64, u64); 2] = [(0.5, 60), (1.4, 20)];
/// Offered load of the comparison of disciplines.
const OVERLOAD: f64 = 4.0;

/// Flows of the burst: requests of people, and a batch job with larger ones.
const PEOPLE: &str = "people";
const BATCH: &str = "batch";

fn scenario(arrivals: Arrivals, gate: GateBy) -> Scenario {
    let mut scenario = Scenario::new(servers(SERVERS), gate, arrivals);
    scenario.slo = SloPolicy { explicit: Some(TARGETS), ..SloPolicy::default() };
    (scenario.warmup, scenario.duration) = (WARMUP, Some(WARMUP + RECORDED));
    scenario
}

fn record(scenario: &Scenario) -> Record {
    run_loop(scenario).expect("the hardware is valid")
}

pub(crate) fn run() -> Value {
    json!({
        "servers": SERVERS,
        "recorded_s": RECORDED.as_secs(),
        "bursts": BURSTS,
        "overload": OVERLOAD,
        "gates": gates(),
        "disciplines": disciplines(),
    })
}

/// One burst by gate. Every request is served: the queue is large, and its ttl long.
fn gates() -> Vec<Value> {
    let mixed = mix(&[(0.5, PEOPLE, 512.0, 128.0), (0.5, BATCH, 2_000.0, 400.0)]);
    let capacity = SERVERS as f64 * capacity(&mixed);
    let phases = BURSTS.map(|(load, seconds)| Phase {
        mix: mixed.clone(),
        rate: load * capacity,
        duration: Duration::from_secs(seconds),
    });
    let arrivals = Arrivals::Poisson(phases.to_vec());
    let gates = [
        ("no gate", GateBy::Unlimited, Discipline::Wfq),
        ("auto, fifo", GateBy::Learned, Discipline::Fifo),
        ("auto, wfq", GateBy::Learned, Discipline::Wfq),
    ];
    let row = |(name, gate, discipline)| {
        let mut scenario = scenario(arrivals.clone(), gate);
        let queue = &mut scenario.policy.queue;
        (queue.total_capacity, queue.flow_capacity) = (100_000, 100_000);
        queue.ttl = Duration::from_secs(600);
        scenario.policy.flows.discipline = discipline;
        let record = record(&scenario);
        json!({
            "gate": name,
            "all": first_tokens(&record, None),
            "people": first_tokens(&record, Some(PEOPLE)),
            "whole": whole_answers(&record),
            "itl_ms": mean_itl_ms(&record),
            "over_target": over_target(&record),
            "utilisation": utilisation(&record, SERVERS),
            "output_tokens_s": output_rate(&record),
            "rejected": record.rejected,
        })
    };
    gates.into_iter().map(row).collect()
}

/// The part of the responses with a mean time between tokens above the target.
fn over_target(record: &Record) -> f64 {
    let target = TARGETS.itl_ms.unwrap_or(f64::INFINITY);
    let over = record.finished.iter().filter(|finished| finished.itl_ms() > target);
    over.count() as f64 / record.finished.len().max(1) as f64
}

/// Two backlogged tenants with requests of different sizes, and one that sends less than its share, by discipline and cost unit.
fn disciplines() -> Vec<Value> {
    let [small, large, light] = ["small", "large", "light"];
    let mixed =
        mix(&[(0.65, small, 512.0, 128.0), (0.32, large, 2_000.0, 400.0), (0.03, light, 512.0, 128.0)]);
    let arrivals = Arrivals::steady(mixed.clone(), OVERLOAD * SERVERS as f64 * capacity(&mixed));
    let rows = [
        (GateBy::Unlimited, Discipline::Fifo, CostUnit::Tokens),
        (GateBy::Learned, Discipline::Fifo, CostUnit::Tokens),
        (GateBy::Learned, Discipline::Wfq, CostUnit::Requests),
        (GateBy::Learned, Discipline::Wfq, CostUnit::Tokens),
        (GateBy::Learned, Discipline::Drr, CostUnit::Tokens),
    ];
    let row = |(gate, discipline, cost)| {
        // Without a gate nothing waits in the gateway, so it has no discipline.
        let is_gated = gate == GateBy::Learned;
        let shown = |word| if is_gated { word } else { "-" };
        let mut scenario = scenario(arrivals.clone(), gate);
        scenario.policy.flows.discipline = discipline;
        scenario.policy.flows.cost = cost;
        let record = record(&scenario);
        let tokens = |kind| weighted_tokens(&record, kind) as f64;
        let requests =
            |kind: &str| record.finished.iter().filter(|finished| *finished.kind == *kind).count() as f64;
        json!({
            "gate": if is_gated { "auto" } else { "no gate" },
            "discipline": shown(discipline.as_str()),
            "cost": shown(unit(cost)),
            "tokens_large_to_small": tokens(large) / tokens(small),
            "requests_large_to_small": requests(large) / requests(small),
            "light": first_tokens(&record, Some(light)),
            "light_served": requests(light) / expected(&mixed, light, &arrivals),
            "over_target": over_target(&record),
            "output_tokens_s": output_rate(&record),
        })
    };
    rows.into_iter().map(row).collect()
}

/// The name of a cost unit in a configuration.
const fn unit(cost: CostUnit) -> &'static str {
    match cost {
        CostUnit::Tokens => "tokens",
        CostUnit::Requests => "requests",
    }
}

/// Requests of a kind that arrive while the run is recorded, on average.
fn expected(mix: &Mix, kind: &str, arrivals: &Arrivals) -> f64 {
    let Arrivals::Poisson(phases) = arrivals else {
        return 0.0;
    };
    let part = mix.parts.iter().find(|(_, part)| part.name == kind);
    part.map_or(0.0, |(share, _)| share * phases[0].rate * RECORDED.as_secs_f64())
}
