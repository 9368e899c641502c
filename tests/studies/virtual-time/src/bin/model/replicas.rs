//! Desired replicas while the load is 0.4, 2, 0.4 and 0 times the capacity of two servers.

use std::time::Duration;

use penstock_simulate::closed_loop::{Arrivals, GateBy, Mix, Phase, Scenario, run as run_loop};
use serde_json::{Value, json};

use crate::combos::{hardware, inferred_size, parameters, server};

const SERVERS: usize = 2;
/// Load as a multiple of the servers' capacity, and seconds.
const PHASES: [(f64, u64); 4] = [(0.4, 600), (2.0, 600), (0.4, 600), (0.0, 600)];

/// The pool's default capacity of a flow's queue.
const FLOW_CAPACITY: f64 = 100.0;
/// The pool's default queue TTL in seconds.
const TTL_S: f64 = 30.0;

pub(crate) fn run() -> Value {
    let mix = Mix::chat();
    let true_size = inferred_size(&parameters(&hardware(1)), &mix.mean());
    let phases = PHASES.map(|(load, seconds)| Phase {
        mix: mix.clone(),
        rate: load * SERVERS as f64 * true_size.lambda_star,
        duration: Duration::from_secs(seconds),
    });
    let servers = vec![server(hardware(1), 0.05); SERVERS];
    let mut scenario = Scenario::new(servers, GateBy::Learned, Arrivals::Poisson(phases.to_vec()));
    scenario.duration = Some(Duration::from_secs(PHASES.iter().map(|(_, seconds)| seconds).sum()));
    let record = run_loop(&scenario).expect("the hardware is valid");
    let points = record.samples.iter().map(|sample| {
        let variant = sample.status.variants.first();
        json!([
            sample.time.as_secs(),
            variant.and_then(|variant| variant.desired.map(|desired| desired.replicas)),
            sample.status.demand,
            variant.and_then(|variant| variant.lambda_star),
        ])
    });
    let mut start = 0;
    let phases = PHASES.map(|(load, seconds)| {
        let (from, to) = (start, start + seconds);
        start = to;
        let desired: Vec<Option<u64>> = record
            .samples
            .iter()
            .filter(|sample| (from + 1..=to).contains(&sample.time.as_secs()))
            .map(|sample| sample.status.variants.first())
            .map(|variant| variant.and_then(|variant| variant.desired.map(|desired| desired.replicas)))
            .collect();
        // Above the capacity the flow's queue is full, and its requests have to be served within the TTL.
        let backlog = if load > 1.0 { FLOW_CAPACITY / TTL_S } else { 0.0 };
        let needed = (load * SERVERS as f64 + backlog / true_size.lambda_star).ceil() as u64;
        let mut known: Vec<u64> = desired.iter().copied().flatten().collect();
        known.sort_unstable();
        json!({
            "load": load,
            "needed": needed,
            "from_s": from,
            "windows": desired.len(),
            "absent": desired.iter().filter(|replicas| replicas.is_none()).count(),
            "median": known.get(known.len() / 2),
            "least": known.first(),
            "most": known.last(),
            "windows_until_needed": desired.iter().position(|replicas| *replicas == Some(needed)),
            "last": desired.last().copied().flatten(),
        })
    });
    json!({"servers": SERVERS, "phases": phases, "points": points.collect::<Vec<_>>()})
}
