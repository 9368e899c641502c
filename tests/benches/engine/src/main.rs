//! How fast the engine decides, and what a waiting request takes, beside the policy queue of the released crate
//! `dynamo-kv-router`. `just bench engine [--rounds N] [--cycles N] [--batches N]`; with `--profile CLASSES` or
//! `--profile-flows FLOWS` nothing but ours runs, for a profiler.
//!
//! Side by side in one run, in rounds whose order turns, so that what disturbs the machine disturbs all alike; of
//! every figure the median over the rounds, with the least and the most. One thread; rates are per second of its CPU
//! time, quantiles of single steps are what a wall clock shows.

extern crate alloc;

mod audit;
#[expect(dead_code, reason = "the engine's own source; not all of it is used here")]
#[rustfmt::skip]
#[path = "../../../../companion/engine/src/cost.rs"]
mod cost;
mod cycles;
#[path = "../../../src/figures.rs"]
mod figures;
#[expect(dead_code, reason = "the engine's own source; not all of it is used here")]
#[rustfmt::skip]
#[path = "../../../../companion/engine/src/pairing_heap.rs"]
mod pairing_heap;
mod lot;
mod memory;
mod pick;
mod plot;
mod report;
#[expect(dead_code, reason = "the engine's own source; not all of it is used here")]
#[rustfmt::skip]
#[path = "../../../../companion/engine/src/slab.rs"]
mod slab;
#[expect(dead_code, reason = "the engine's own source; not all of it is used here")]
mod tree;
mod watch;

use std::path::Path;

use penstock_engine::{policy, time};

use crate::cycles::Case;

/// What the command line says.
struct Plan {
    rounds: usize,
    cycles: u64,
    batches: usize,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |name: &str, default: u64| {
        let at = arguments.iter().position(|a| a == name);
        at.and_then(|at| arguments.get(at + 1)?.parse().ok())
            .unwrap_or(default)
            .max(1)
    };
    let plan = Plan {
        rounds: usize::try_from(number("--rounds", 7)).unwrap_or(7),
        cycles: number("--cycles", 300_000),
        batches: usize::try_from(number("--batches", 200)).unwrap_or(200),
    };
    let given = |name: &str| arguments.iter().any(|a| a == name);
    if given("--profile") {
        let classes = usize::try_from(number("--profile", 64)).unwrap_or(64);
        println!("{:?}", pick::measure::<pick::Alone>(classes, plan.batches));
        println!("{:?}", pick::measure::<pick::Whole>(classes, plan.batches));
        return;
    }
    if given("--profile-flows") {
        let flows = number("--profile-flows", 1_000);
        println!("{}", cycles::measure(Case::new(flows, 1, flows), plan.cycles));
        return;
    }
    let cycles = measure_cycles(&plan);
    let picks = measure_picks(&plan);
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/bench");
    report::write(&docs, plan.rounds, &cycles, &picks);
}

/// Turns through the cases, each round from another one on.
fn turned(round: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |turn| (round + turn) % count)
}

fn measure_cycles(plan: &Plan) -> Vec<(Case, Vec<cycles::Sample>)> {
    let mut all: Vec<_> = Case::ALL.iter().map(|case| (*case, Vec::new())).collect();
    for round in 0..plan.rounds {
        for at in turned(round, all.len()) {
            let (case, samples) = &mut all[at];
            let sample = cycles::measure(*case, plan.cycles);
            println!("round {}/{}: {case}: {sample}", round + 1, plan.rounds);
            samples.push(sample);
        }
    }
    all
}

fn measure_picks(plan: &Plan) -> Vec<pick::Row> {
    let mut rows: Vec<_> = pick::CLASSES
        .iter()
        .map(|&classes| pick::Row::new(classes))
        .collect();
    for round in 0..plan.rounds {
        for at in turned(round, rows.len()) {
            rows[at].measure(round, plan.batches);
            println!("round {}/{}: {}", round + 1, plan.rounds, rows[at]);
        }
    }
    rows
}
