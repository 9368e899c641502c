//! Servers of different speed in one pool: each one at the limit of its speed.

use std::time::Duration;

use penstock_model::sizing;
use penstock_model_server::Hardware;
use penstock_simulate::closed_loop::{Arrivals, Finished, GateBy, Mix, Record, Scenario, run as run_loop};
use serde_json::{Value, json};

use crate::combos::{hardware, parameters, server};
use crate::gate::slo;

const NOISE: f64 = 0.05;
const WARMUP: Duration = Duration::from_secs(300);
const DURATION: Duration = Duration::from_secs(300 + 900);

/// Servers at half the speed.
fn twice_as_slow(hardware: Hardware) -> Hardware {
    Hardware {
        alpha_ms: 2.0 * hardware.alpha_ms,
        beta_ms: 2.0 * hardware.beta_ms,
        gamma_ms: 2.0 * hardware.gamma_ms,
        ..hardware
    }
}

pub(crate) fn run() -> Value {
    let mut slow = server(twice_as_slow(hardware(1)), NOISE);
    slow.variant = "slow".into();
    let servers = vec![server(hardware(1), NOISE), server(hardware(1), NOISE), slow];
    let (traffic, targets) = (Mix::chat().mean(), slo().explicit.unwrap_or_default());
    let sizes: Vec<_> = servers
        .iter()
        .map(|server| sizing::size(&parameters(&server.hardware), &traffic, &targets, Some(256.0), 1.0))
        .collect();
    let rate = 1.2 * sizes.iter().map(|size| size.lambda_star).sum::<f64>();
    let mean_n = sizes.iter().filter_map(|size| size.n_star).sum::<f64>() / sizes.len() as f64;
    let rows = [
        ("auto", GateBy::Learned),
        ("auto with true parameters", GateBy::Truth),
        ("fixed, the mean n*", GateBy::Watermark(0.9 * mean_n)),
    ]
    .map(|(name, gate)| {
        let arrivals = Arrivals::steady(Mix::chat(), rate);
        let mut scenario = Scenario::new(servers.clone(), gate, arrivals);
        scenario.slo = slo();
        (scenario.warmup, scenario.duration) = (WARMUP, Some(DURATION));
        let record = run_loop(&scenario).expect("the hardware is valid");
        let each = (0..servers.len()).map(|index| {
            let mut row = server_row(&record, index, &servers[index].variant);
            row["n_star"] = json!(sizes[index].n_star);
            row
        });
        json!({"gate": name, "servers": each.collect::<Vec<_>>()})
    });
    json!(rows)
}

/// The results of one server.
fn server_row(record: &Record, index: usize, variant: &str) -> Value {
    let finished: Vec<&Finished> =
        record.finished.iter().filter(|finished| finished.server == index).collect();
    let count = finished.len().max(1) as f64;
    let over_target = finished.iter().filter(|finished| finished.itl_ms() > 50.0);
    let samples: Vec<_> = record.samples.iter().filter(|sample| sample.time >= WARMUP).collect();
    let in_flight = samples.iter().map(|sample| sample.in_flight[index] as f64);
    let learned = record.samples.last().and_then(|sample| {
        let variants = &sample.status.variants;
        variants.iter().find(|status| status.name == variant)
    });
    json!({
        "variant": variant,
        "learned_n_star": learned.and_then(|status| status.n_star),
        "in_flight": in_flight.sum::<f64>() / samples.len().max(1) as f64,
        "itl_ms": finished.iter().map(|finished| finished.itl_ms()).sum::<f64>() / count,
        "over_slo": over_target.count() as f64 / count,
        "requests_s": count / record.recorded.as_secs_f64(),
    })
}
