//! Desired replicas while the load changes, from a cold start: the experiment of the Workload Variant Autoscaler.

use std::time::Duration;

use penstock_autopilot::Desired;
use penstock_model::slo::Policy as SloPolicy;
use penstock_simulate::closed_loop::{Arrivals, GateBy, Mix, Phase, Record, Scenario, run as run_loop};
use serde_json::{Value, json};

use crate::closed_loops::{TARGETS, capacity, servers};

const SERVERS: usize = 2;
/// Load as a multiple of the servers' capacity within the target, and seconds. The first phase starts cold.
const PHASES: [(f64, u64); 5] = [(2.0, 600), (0.4, 600), (1.2, 600), (0.4, 600), (0.0, 600)];

pub(crate) fn run() -> Value {
    let mix = Mix::chat();
    let one = capacity(&mix);
    let phases = PHASES.map(|(load, seconds)| Phase {
        mix: mix.clone(),
        rate: load * SERVERS as f64 * one,
        duration: Duration::from_secs(seconds),
    });
    let mut scenario = Scenario::new(servers(SERVERS), GateBy::Learned, Arrivals::Poisson(phases.to_vec()));
    scenario.slo = SloPolicy { explicit: Some(TARGETS), ..SloPolicy::default() };
    scenario.duration = Some(Duration::from_secs(PHASES.iter().map(|(_, seconds)| seconds).sum()));
    let record = run_loop(&scenario).expect("the hardware is valid");
    let queue = &scenario.policy.queue;
    let backlog = queue.flow_capacity as f64 / queue.ttl.as_secs_f64();
    let mut begin = 0;
    let rows = PHASES.map(|(load, seconds)| {
        let (from, to) = (begin, begin + seconds);
        begin = to;
        // Above capacity the flow's queue is full, and its requests have to be served within the ttl.
        let backlog = if load > 1.0 { backlog / one } else { 0.0 };
        let needed = (load * SERVERS as f64 + backlog).ceil().max(1.0);
        phase(&record, from, to, load, needed as u64)
    });
    json!({"servers": SERVERS, "phases": rows})
}

/// One phase: the desired replicas at its end, and how they got there.
fn phase(record: &Record, from: u64, to: u64, load: f64, needed: u64) -> Value {
    let samples: Vec<(u64, Option<Desired>)> = record
        .samples
        .iter()
        .map(|sample| (sample.time.as_secs(), sample.status.variants.first()))
        .filter(|(time, _)| (from + 1..=to).contains(time))
        .map(|(time, variant)| (time - from, variant.and_then(|variant| variant.desired)))
        .collect();
    let known = || samples.iter().filter_map(|&(time, desired)| Some((time, desired?)));
    let more = known().find(|(_, desired)| desired.replicas > SERVERS as u64);
    let reached = known().find(|(_, desired)| desired.replicas == needed);
    json!({
        "load": load,
        "seconds": to - from,
        "needed": needed,
        "first": known().next().map(|(time, desired)| json!([time, desired.replicas, desired.source.as_str()])),
        "more_than_ready_after_s": more.map(|(time, _)| time),
        "more_than_ready_by": more.map(|(_, desired)| desired.source.as_str()),
        "needed_after_s": reached.map(|(time, _)| time),
        "at_end": known().next_back().map(|(_, desired)| json!([desired.replicas, desired.source.as_str()])),
        "most": known().map(|(_, desired)| desired.replicas).max(),
    })
}
