//! Measures the cost of the model: nanoseconds for each completed request and microseconds for each window's fit, by
//! the number of requests in flight at an endpoint. Prints the minimum of many runs, because other processes share
//! the machine.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
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

/// Requests that a simulated server runs, by the time of their last token in microseconds.
type Running = BinaryHeap<(Reverse<u64>, u64, u64)>;

/// Completes the requests that have made their last token, and returns their number.
fn complete_due(
    running: &mut Running,
    now_ms: f64,
    every_ms: f64,
    tracker: &mut OverlapTracker,
    learner: &mut Learner,
) -> u64 {
    let mut completed = 0;
    while let Some((last, id, output)) = running.peek().copied() {
        let last_ms = last.0 as f64 / 1e3;
        if last_ms > now_ms {
            break;
        }
        running.pop();
        let completion = Completion {
            first_ms: Some(id as f64 * every_ms + 45.0),
            last_ms: Some(last_ms),
            streamed: true,
            input: None,
            cached: None,
            output: Some(output as f64),
        };
        tracker.record_completion(last_ms, id, &completion);
        while let Some(observation) = tracker.poll_observation() {
            learner.observe(&observation);
        }
        completed += 1;
    }
    completed
}

/// Sends requests at a constant rate, so that `in_flight` run on average. Returns the least nanoseconds a request.
fn time_requests(in_flight: u64, learner: &mut Learner) -> u128 {
    let mut tracker = OverlapTracker::default();
    let every_ms = every_ms(in_flight);
    let mut running = Running::new();
    let (mut batch_ns, mut least_ns) = (0_u128, u128::MAX);
    let mut completed = 0;
    for id in 0.. {
        let now_ms = id as f64 * every_ms;
        let started = Instant::now();
        let input = 512.0 * (0.5 + pseudo_random(id));
        tracker.record_dispatch(now_ms, id, input, 0.0, 128.0, Some(40.0));
        let output = (128.0 * (0.5 + pseudo_random(id + 1_000_000))).round();
        let itl_ms = 20.0 * (0.9 + 0.2 * pseudo_random(id + 2_000_000));
        let last_ms = now_ms + 45.0 + itl_ms * (output - 1.0);
        running.push((Reverse((last_ms * 1e3) as u64), id, output as u64));
        completed += complete_due(&mut running, now_ms, every_ms, &mut tracker, learner);
        batch_ns += started.elapsed().as_nanos();
        if id % BATCH == BATCH - 1 {
            if completed > 2_000 {
                least_ns = least_ns.min(batch_ns / u128::from(BATCH));
            }
            batch_ns = 0;
        }
        if completed >= ENDED {
            break;
        }
    }
    least_ns
}

/// Milliseconds between two arrivals.
fn every_ms(in_flight: u64) -> f64 {
    128.0 * 20.0 / in_flight as f64
}

/// Returns the least microseconds a fit, and the observations in the last fit.
fn time_fits(in_flight: u64, learner: &mut Learner) -> (f64, usize) {
    let traffic = Traffic { rate: 1.0, input: 512.0, output: 128.0 };
    let (mut least_us, mut observations) = (f64::INFINITY, 0);
    for window in 0..WINDOWS {
        let now_ms = ENDED as f64 * every_ms(in_flight) + f64::from(window);
        let started = Instant::now();
        let fit = learner.fit(now_ms, &traffic, &Targets::default());
        least_us = (started.elapsed().as_nanos() as f64 / 1e3).min(least_us);
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
    (least_us, observations)
}

fn main() {
    for in_flight in [1, 8, 32, 64, 128, 256] {
        let mut learner = Learner::new(None);
        let request_ns = time_requests(in_flight, &mut learner);
        let (fit_us, observations) = time_fits(in_flight, &mut learner);
        println!(
            "{in_flight:4} in flight: {request_ns:6} ns a request (dispatched, completed, observed), \
             {fit_us:5.0} us a fit to {observations} observations"
        );
    }
}
