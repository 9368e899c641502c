//! What the model costs: nanoseconds of each request that ends, and microseconds of each window's fit, by how many are in
//! flight at an endpoint. The least of many tries, for others use the machine as well.

use std::time::Instant;

use penstock_model::Targets;
use penstock_model::closed_form::Traffic;
use penstock_model::learner::Learner;
use penstock_model::ledger::{End, Ledger, Observation};

/// Requests that are timed.
const ENDED: u64 = 20_000;
/// They are timed by so many together.
const BATCH: u64 = 100;
/// Windows that are timed.
const WINDOWS: u32 = 20;

/// A number from 0 to 1 that looks like chance and is the same every time.
fn chance(number: u64) -> f64 {
    let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    ((mixed ^ (mixed >> 32)) >> 11) as f64 / (1_u64 << 53) as f64
}

/// Sends requests one after another into `in_flight` places, each for as long as its output takes.
fn run(in_flight: u64) {
    let (mut ledger, mut learner) = (Ledger::default(), Learner::new(None));
    let every_ms = 128.0 * 20.0 / in_flight as f64;
    let mut running = std::collections::BinaryHeap::new();
    let mut fit_us = Vec::new();
    let (mut batch_ns, mut least_ns) = (0_u128, u128::MAX);
    let mut ended = 0;
    for id in 0.. {
        let now_ms = id as f64 * every_ms;
        let begun = Instant::now();
        ledger.dispatched(now_ms, id, 512.0 * (0.5 + chance(id)), 0.0, 128.0, Some(40.0));
        let output = (128.0 * (0.5 + chance(id + 1_000_000))).round();
        let slow = 20.0 * (0.9 + 0.2 * chance(id + 2_000_000));
        let last_ms = now_ms + 45.0 + slow * (output - 1.0);
        running.push((std::cmp::Reverse((last_ms * 1e3) as u64), id, output as u64));
        while let Some((last, id, output)) = running.peek().copied() {
            let last_ms = last.0 as f64 / 1e3;
            if last_ms > now_ms {
                break;
            }
            running.pop();
            let end = End {
                first_ms: Some(id as f64 * every_ms + 45.0),
                last_ms: Some(last_ms),
                streamed: true,
                input: None,
                cached: None,
                output: Some(output as f64),
            };
            ledger.ended(last_ms, id, &end);
            while let Some(observation) = ledger.poll() {
                learner.observe(&observation);
            }
            ended += 1;
        }
        batch_ns += begun.elapsed().as_nanos();
        if id % BATCH == BATCH - 1 {
            if ended > 2_000 {
                least_ns = least_ns.min(batch_ns / u128::from(BATCH));
            }
            batch_ns = 0;
        }
        if ended >= ENDED {
            break;
        }
    }
    let traffic = Traffic {
        rate: 1.0,
        input: 512.0,
        output: 128.0,
    };
    let mut kept = 0;
    for window in 0..WINDOWS {
        let now_ms = ENDED as f64 * every_ms + f64::from(window);
        let begun = Instant::now();
        let fit = learner.fit(now_ms, &traffic, &Targets::default());
        fit_us.push(begun.elapsed().as_nanos() as f64 / 1e3);
        kept = fit.map_or(kept, |fit| fit.observations);
        // Something has to have been seen for the next.
        learner.observe(&Observation {
            at_ms: now_ms,
            input: 512.0,
            output: 1.0,
            ttft_ms: 40.0,
            ttft_predicted_ms: Some(40.0),
            decode: None,
        });
    }
    let fit_us = fit_us.into_iter().fold(f64::INFINITY, f64::min);
    println!(
        "{in_flight:4} in flight: {least_ns:6} ns a request (sent, ended, observed), {fit_us:5.0} us a fit to {kept} observations"
    );
}

fn main() {
    for in_flight in [1, 8, 32, 64, 128, 256] {
        run(in_flight);
    }
}
