//! Figures out of rounds: medians with their spread, ratios, and the file they are kept in.

use penstock_tests::figures::{keep, machine, spread};
use serde_json::json;

use crate::load::Load;
use crate::subject::Cpu;

/// One turn of one subject.
pub(crate) struct Round {
    pub(crate) many: Load,
    pub(crate) one: Load,
    pub(crate) cpu: Cpu,
}

/// Prints the figures and writes them to docs/bench/results.json, beside those of other benchmarks.
///
/// # Panics
/// When the file can't be written.
pub(crate) fn write(names: &[&str], rounds: &[Vec<Round>], idle: Option<[f64; 2]>) {
    let plain = &rounds[0];
    let mut subjects = serde_json::Map::new();
    for (name, rounds) in names.iter().zip(rounds) {
        let figure = |of: &dyn Fn(&Round) -> f64| spread(rounds.iter().map(of).collect());
        let ratio = spread(
            rounds
                .iter()
                .zip(plain)
                .map(|(own, plain)| own.many.rate() / plain.many.rate())
                .collect(),
        );
        let figures = json!({
            "requests_per_s_at_50": figure(&|r| r.many.rate()),
            "requests_per_s_of_plain": ratio,
            "p50_us_at_50": figure(&|r| r.many.p50_us),
            "p99_us_at_50": figure(&|r| r.many.p99_us),
            "p50_us_at_1": figure(&|r| r.one.p50_us),
            "p99_us_at_1": figure(&|r| r.one.p99_us),
            "envoy_cpu_us_per_request": figure(&|r| r.cpu.envoy_us / r.many.requests),
            "companion_cpu_us_per_request": figure(&|r| r.cpu.companion_us / r.many.requests),
        });
        let median = |key: &str| figures[key]["median"].as_f64().unwrap_or_default();
        println!(
            "{name:<9} {:>7.0} requests/s ({:.2} of plain), p50 {:>5.0} us at 50 and {:>4.0} us at 1, CPU us a request: \
             Envoy {:.1}, companion {:.1}",
            median("requests_per_s_at_50"),
            median("requests_per_s_of_plain"),
            median("p50_us_at_50"),
            median("p50_us_at_1"),
            median("envoy_cpu_us_per_request"),
            median("companion_cpu_us_per_request"),
        );
        subjects.insert((*name).to_owned(), figures);
    }
    let mut gateway = json!({
        "what": "one Envoy worker on one core, chat of 1 KB, answer at once, client wrk; medians over the rounds",
        "rounds": plain.len(),
        "machine": machine(),
        "subjects": subjects,
    });
    if let Some([companion, envoy]) = idle {
        println!("idle: companion {companion:.3} %, Envoy {envoy:.3} % of a core");
        gateway["idle_cpu_percent"] = json!({"companion": companion, "envoy": envoy});
    }
    let results = penstock_tests::binary::workspace().join("docs/bench/results.json");
    keep(&results, "gateway", gateway);
}
