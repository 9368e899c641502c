//! The figures of a cell, from a record of either world.

use std::time::Duration;

use penstock_simulate::closed_loop::{Finished, Record};
use penstock_simulate::goal::Goal;
use penstock_simulate::results::Percentiles;
use penstock_simulate::simulation::Simulation;
use serde_json::{Value, json};

/// The figures of the requests that arrived after the warm-up and until `end`.
pub(crate) fn figures(simulation: &Simulation, record: &Record, goal: &Goal, end: Duration) -> Value {
    let results = simulation.results(record, goal);
    let is_greedy = |finished: &&Finished| &*finished.kind == "greedy";
    let small = record.finished.iter().filter(|finished| !is_greedy(finished));
    let small = Percentiles::of(small.map(|finished| finished.first - finished.arrived).collect());
    let paces = record.finished.iter().filter(|finished| finished.output > 1);
    let itl =
        Percentiles::of(paces.map(|finished| Duration::from_secs_f64(finished.itl_ms() / 1e3)).collect());
    let tokens = |finished: &Finished| finished.input + finished.output;
    let greedy: u64 = record.finished.iter().filter(is_greedy).map(tokens).sum();
    let all: u64 = record.finished.iter().map(tokens).sum();
    json!({
        "good_requests_s": results.goodput_requests_per_s,
        "good_tokens_s": results.goodput_tokens_per_s,
        "served_s": results.served as f64 / end.saturating_sub(simulation.warmup).as_secs_f64(),
        "small_p50_ms": small.p50,
        "small_p99_ms": small.p99,
        "itl_p50_ms": itl.p50,
        "itl_p99_ms": itl.p99,
        "greedy_share": (greedy > 0).then(|| greedy as f64 / all as f64),
    })
}
