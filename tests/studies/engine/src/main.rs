//! Measures how fast the engine decides and how much memory a waiting request takes, beside the policy queue of the
//! released crate `dynamo-kv-router`. `just bench engine [--rounds N] [--cycles N] [--batches N]`. With `--profile
//! CLASSES` or `--profile-flows FLOWS` only the engine runs, for a profiler.
//!
//! All subjects run side by side, in rounds that start with another subject each time, so that disturbances of the
//! machine affect all of them. Every figure is the median over the rounds, with the minimum and the maximum. There is
//! one thread. Rates are per second of its CPU time; quantiles of single steps are wall-clock times.

extern crate alloc;

#[rustfmt::skip]
#[path = "../../../../companion/engine/src/arrival.rs"]
mod arrival;
mod audit;
#[expect(dead_code, reason = "a source file of the engine, of which only a part is used here")]
#[rustfmt::skip]
#[path = "../../../../companion/engine/src/band.rs"]
mod band;
#[expect(dead_code, reason = "a source file of the engine, of which only a part is used here")]
#[rustfmt::skip]
#[path = "../../../../companion/engine/src/cost.rs"]
mod cost;
mod cycles;
#[path = "../../virtual-time/src/figures.rs"]
mod figures;
#[expect(dead_code, reason = "a source file of the engine, of which only a part is used here")]
#[rustfmt::skip]
#[path = "../../../../companion/engine/src/ids.rs"]
mod ids;
#[expect(dead_code, reason = "a source file of the engine, of which only a part is used here")]
#[rustfmt::skip]
#[path = "../../../../companion/engine/src/indexed_heap.rs"]
mod indexed_heap;
#[rustfmt::skip]
#[path = "../../../../companion/engine/src/pairing_heap.rs"]
mod pairing_heap;
mod lcg;
mod memory;
mod pick;
mod plot;
mod report;
#[expect(dead_code, reason = "a source file of the engine, of which only a part is used here")]
#[rustfmt::skip]
#[path = "../../../../companion/engine/src/slab.rs"]
mod slab;
mod cpu_clock;
#[expect(dead_code, reason = "a source file of the engine, of which only a part is used here")]
mod tree;

use std::path::Path;

use penstock_engine::{input, limits, policy, time};

use crate::cycles::Case;

/// Options of the command line.
struct Plan {
    rounds: usize,
    cycles: u64,
    batches: usize,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let option = |name: &str, default: u64| {
        let position = arguments.iter().position(|a| a == name);
        position.and_then(|position| arguments.get(position + 1)?.parse().ok()).unwrap_or(default).max(1)
    };
    let plan = Plan {
        rounds: usize::try_from(option("--rounds", 7)).unwrap_or(7),
        cycles: option("--cycles", 300_000),
        batches: usize::try_from(option("--batches", 200)).unwrap_or(200),
    };
    let given = |name: &str| arguments.iter().any(|a| a == name);
    if given("--profile") {
        let classes = usize::try_from(option("--profile", 64)).unwrap_or(64);
        println!("{:?}", pick::measure::<pick::Alone>(classes, plan.batches));
        println!("{:?}", pick::measure::<pick::Whole>(classes, plan.batches));
        return;
    }
    if given("--profile-flows") {
        let flows = option("--profile-flows", 1_000);
        println!("{}", cycles::measure(Case::new(flows, 1, flows), plan.cycles));
        return;
    }
    let cycles = measure_cycles(&plan);
    let picks = measure_picks(&plan);
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/bench");
    report::write(&docs, plan.rounds, &cycles, &picks);
}

/// The indices from 0 to `count`, starting with another one each round.
fn rotated(round: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |turn| (round + turn) % count)
}

fn measure_cycles(plan: &Plan) -> Vec<(Case, Vec<cycles::Sample>)> {
    let mut all: Vec<_> = Case::ALL.iter().map(|case| (*case, Vec::new())).collect();
    for round in 0..plan.rounds {
        for index in rotated(round, all.len()) {
            let (case, samples) = &mut all[index];
            let sample = cycles::measure(*case, plan.cycles);
            println!("round {}/{}: {case}: {sample}", round + 1, plan.rounds);
            samples.push(sample);
        }
    }
    all
}

fn measure_picks(plan: &Plan) -> Vec<pick::Row> {
    let mut rows: Vec<_> = pick::CLASSES.iter().map(|&classes| pick::Row::new(classes)).collect();
    for round in 0..plan.rounds {
        for index in rotated(round, rows.len()) {
            rows[index].measure(round, plan.batches);
            println!("round {}/{}: {}", round + 1, plan.rounds, rows[index]);
        }
    }
    rows
}
