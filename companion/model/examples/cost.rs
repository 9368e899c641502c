//! Measures the cost of the model: nanoseconds for each completed request and microseconds for each window's fit, by
//! the number of requests in flight at an endpoint. Prints the minimum of many runs, because other processes share
//! the machine.

use std::time::Instant;

use penstock_model::Targets;
use penstock_model::closed_form::Traffic;
use penstock_model::learner::Learner;
use penstock_model::observation::{Completion, Observation};
use penstock_model::overlap_tracker::OverlapTracker;

/// Requests that are timed.
const ENDED: u64 = 20_000;
/// Requests in one timed batch.
const BATCH: u64 = 100;
/// Windows that are timed.
const WINDOWS: u32 = 20;

/// A deterministic pseudo-random number from 0 to 1.
fn pseudo_random(number: u64) -> f64 {
    let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    ((mixed ^ (mixed >> 32)) >> 11) as f64 / (1_u64 << 53) as f64
}

/// Sends requests at a constant rate, so that `in_flight` run on average.
fn run(in_flight: u64) {
    let (mut tracker, mut learner) = (OverlapTracker::default(), Learner::new(None));
    let every_ms = 128.0 * 20.0 / in_flight as f64;
    let mut running = std::collections::BinaryHeap::new();
    let mut fit_us = Vec::new();
    let (mut batch_ns, mut least_ns) = (0_u128, u128::MAX);
    let mut ended = 0;
    for id in 0.. {
        let now_ms = id as f64 * every_ms;
        let started = Instant::now();
        tracker.record_dispatch(
            now_ms,
            id,
            512.0 * (0.5 + pseudo_random(id)),
            0.0,
            128.0,
            Some(40.0),
        );
        let output = (128.0 * (0.5 + pseudo_random(id + 1_000_000))).round();
        let slow = 20.0 * (0.9 + 0.2 * pseudo_random(id + 2_000_000));
        let last_ms = now_ms + 45.0 + slow * (output - 1.0);
        running.push((std::cmp::Reverse((last_ms * 1e3) as u64), id, output as u64));
        while let Some((last, id, output)) = running.peek().copied() {
            let last_ms = last.0 as f64 / 1e3;
            if last_ms > now_ms {
                break;
            }
            running.pop();
            let end = Completion {
                first_ms: Some(id as f64 * every_ms + 45.0),
                last_ms: Some(last_ms),
                streamed: true,
                input: None,
                cached: None,
                output: Some(output as f64),
            };
            tracker.record_completion(last_ms, id, &end);
            while let Some(observation) = tracker.poll_observation() {
                learner.observe(&observation);
            }
            ended += 1;
        }
        batch_ns += started.elapsed().as_nanos();
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
    let mut observations = 0;
    for window in 0..WINDOWS {
        let now_ms = ENDED as f64 * every_ms + f64::from(window);
        let started = Instant::now();
        let fit = learner.fit(now_ms, &traffic, &Targets::default());
        fit_us.push(started.elapsed().as_nanos() as f64 / 1e3);
        observations = fit.map_or(observations, |fit| fit.observations);
        // The learner skips a fit without a new observation.
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
        "{in_flight:4} in flight: {least_ns:6} ns a request (dispatched, completed, observed), {fit_us:5.0} us a fit to {observations} observations"
    );
}

fn main() {
    for in_flight in [1, 8, 32, 64, 128, 256] {
        run(in_flight);
    }
}
