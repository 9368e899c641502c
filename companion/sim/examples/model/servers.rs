//! Servers that differ behind one pool: each at its own limit.

use std::time::Duration;

use penstock_model::sizing;
use penstock_model_server::Hardware;
use penstock_sim::closed_loop::{Arrivals, Finished, GateBy, Mix, Setting, fly};
use serde_json::{Value, json};

use crate::combos::{hardware, parameters, server};
use crate::gate::slo;

const NOISE: f64 = 0.05;
const SETTLES: Duration = Duration::from_secs(300);
const LASTS: Duration = Duration::from_secs(300 + 900);

/// The same at half the speed.
fn twice_as_slow(of: Hardware) -> Hardware {
    Hardware {
        alpha_ms: 2.0 * of.alpha_ms,
        beta_ms: 2.0 * of.beta_ms,
        gamma_ms: 2.0 * of.gamma_ms,
        ..of
    }
}

pub(crate) fn run() -> Value {
    let mut slow = server(twice_as_slow(hardware(1)), NOISE);
    slow.variant = "slow";
    let servers = vec![server(hardware(1), NOISE), server(hardware(1), NOISE), slow];
    let (traffic, targets) = (Mix::chat().mean(), slo().explicit.unwrap_or_default());
    let sizes: Vec<_> = servers
        .iter()
        .map(|it| sizing::size(&parameters(&it.hardware), &traffic, &targets, Some(256.0), 1.0))
        .collect();
    let rate = 1.2 * sizes.iter().map(|it| it.lambda_star).sum::<f64>();
    let mean_n = sizes.iter().filter_map(|it| it.n_star).sum::<f64>() / sizes.len() as f64;
    let rows = [
        ("auto", GateBy::Learned),
        ("auto with true parameters", GateBy::Truth),
        ("fixed, the mean n*", GateBy::Watermark(0.9 * mean_n)),
    ]
    .map(|(name, gate)| {
        let mut setting = Setting::new(
            servers.clone(),
            gate,
            Arrivals::steady(Mix::chat(), rate),
            usize::MAX,
        );
        setting.slo = slo();
        (setting.settles, setting.lasts) = (SETTLES, LASTS);
        let record = fly(&setting).expect("it can be");
        let each = (0..servers.len()).map(|at| {
            let own: Vec<&Finished> = record.finished.iter().filter(|it| it.server == at).collect();
            let count = own.len().max(1) as f64;
            let settled: Vec<_> = record.samples.iter().filter(|it| it.at >= SETTLES).collect();
            let in_flight = settled.iter().map(|it| it.in_flight[at] as f64).sum::<f64>();
            let status = record.samples.last().and_then(|it| {
                let variants = &it.status.variants;
                variants.iter().find(|it| it.name == servers[at].variant).cloned()
            });
            json!({
                "variant": servers[at].variant,
                "n_star": sizes[at].n_star,
                "learned_n_star": status.and_then(|it| it.n_star),
                "in_flight": in_flight / settled.len().max(1) as f64,
                "itl_ms": own.iter().map(|it| it.itl_ms()).sum::<f64>() / count,
                "over_slo": own.iter().filter(|it| it.itl_ms() > 50.0).count() as f64 / count,
                "requests_s": count / record.recorded.as_secs_f64(),
            })
        });
        json!({"gate": name, "servers": each.collect::<Vec<_>>()})
    });
    json!(rows)
}
