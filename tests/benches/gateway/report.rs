//! Figures out of rounds: medians with their spread, ratios, and the file they are kept in.

use serde_json::{Value, json};

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
    let file = penstock_tests::binary::workspace().join("docs/bench/results.json");
    std::fs::create_dir_all(file.parent().expect("a file lies in a folder")).expect("create docs/bench");
    let known = std::fs::read(&file)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let mut results: Value = known.unwrap_or_else(|| json!({}));
    results["gateway"] = gateway;
    let text = serde_json::to_string_pretty(&results).expect("values are JSON");
    std::fs::write(&file, text + "\n").expect("write the results");
}

/// Median, least and most, to three digits after the point.
fn spread(mut values: Vec<f64>) -> Value {
    values.sort_by(f64::total_cmp);
    let round = |v: f64| (v * 1e3).round() / 1e3;
    let median = values.get(values.len() / 2).copied().unwrap_or_default();
    let (least, most) = (values.first().copied(), values.last().copied());
    json!({"median": round(median), "min": least.map(round), "max": most.map(round)})
}

/// The processor and how many there are of it, as the system says.
fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|l| l.strip_prefix("model name"))
        .unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{cores} x {}", model.trim_start_matches(['\t', ' ', ':']))
}
