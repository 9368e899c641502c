//! Replicas: what is asked for while the load is 0.4, twice and 0.4 of what two servers can do, and then nothing.

use std::time::Duration;

use penstock_sim::closed_loop::{Arrivals, GateBy, Mix, Phase, Setting, fly};
use serde_json::{Value, json};

use crate::combos::{hardware, inferred_size, parameters, server};

const SERVERS: usize = 2;
/// Load, of what the servers can do, and seconds.
const PHASES: [(f64, u64); 4] = [(0.4, 600), (2.0, 600), (0.4, 600), (0.0, 600)];

/// Requests of one flow that may wait, and how long: the pool's defaults.
const QUEUE: f64 = 100.0;
const TTL_S: f64 = 30.0;

pub(crate) fn run() -> Value {
    let mix = Mix::chat();
    let true_size = inferred_size(&parameters(&hardware(1)), &mix.mean());
    let phases = PHASES.map(|(load, seconds)| Phase {
        mix: mix.clone(),
        rate: load * SERVERS as f64 * true_size.lambda_star,
        lasts: Duration::from_secs(seconds),
    });
    let servers = vec![server(hardware(1), 0.05); SERVERS];
    let mut setting = Setting::new(
        servers,
        GateBy::Learned,
        Arrivals::Poisson(phases.to_vec()),
        usize::MAX,
    );
    setting.lasts = Duration::from_secs(PHASES.iter().map(|it| it.1).sum());
    let record = fly(&setting).expect("it can be");
    let points = record.samples.iter().map(|sample| {
        let variant = sample.status.variants.first();
        json!([
            sample.at.as_secs(),
            variant.and_then(|it| it.desired),
            sample.status.demand,
            variant.and_then(|it| it.lambda_star),
        ])
    });
    let mut begins = 0;
    let phases = PHASES.map(|(load, seconds)| {
        let (from, to) = (begins, begins + seconds);
        begins = to;
        let desired: Vec<Option<u64>> = record
            .samples
            .iter()
            .filter(|it| (from + 1..=to).contains(&it.at.as_secs()))
            .map(|it| it.status.variants.first().and_then(|it| it.desired))
            .collect();
        // The flow's queue is full where more is offered than they can do, and has to be served within its ttl.
        let backlog = if load > 1.0 { QUEUE / TTL_S } else { 0.0 };
        let needed = (load * SERVERS as f64 + backlog / true_size.lambda_star).ceil() as u64;
        let mut known: Vec<u64> = desired.iter().copied().flatten().collect();
        known.sort_unstable();
        json!({
            "load": load,
            "needed": needed,
            "from_s": from,
            "windows": desired.len(),
            "absent": desired.iter().filter(|it| it.is_none()).count(),
            "median": known.get(known.len() / 2),
            "least": known.first(),
            "most": known.last(),
            "windows_until_needed": desired.iter().position(|it| *it == Some(needed)),
            "last": desired.last().copied().flatten(),
        })
    });
    json!({"servers": SERVERS, "phases": phases, "points": points.collect::<Vec<_>>()})
}
