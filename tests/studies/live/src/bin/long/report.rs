//! Samples as lines and as a table, and the memory growth.

use std::fmt::Write;

use penstock_studies::figures::{grouped, keep, machine, put};
use penstock_tests::binary::workspace;
use penstock_tests::poisson_clients::Ends;
use serde_json::{Value, json};

use crate::{LOADS, Rest, Sample};

/// Minutes of a complete run; a shorter run is printed and does not change the page.
const MINUTES: f64 = 10.0;
/// Maximum rows of the page's table for each load.
const ROWS: usize = 10;

/// Prints one sample.
pub(crate) fn line(sample: &Sample) -> String {
    format!(
        "{:>5} s at {:.0} %: Envoy {:.1} MiB, companion {:.1} MiB, stock {}, waiting {}, {} sent",
        sample.after.as_secs(),
        100.0 * sample.load,
        mib(sample.envoy_bytes),
        mib(sample.companion_bytes),
        sample.stock,
        sample.waiting,
        sample.sent
    )
}

/// Prints the result; after a complete run, writes it below docs/bench/.
///
/// # Panics
/// If a file cannot be written.
pub(crate) fn write(minutes: f64, capacity: f64, samples: &[Sample], ends: &Ends, rest: Rest) {
    let growths: Vec<Value> = LOADS.iter().filter_map(|load| growth(*load, samples)).collect();
    let summary = format!(
        "{} requests in {minutes} + {minutes} minutes at 80 % and 200 % of {capacity:.0} requests/s; ends: {}. When all \
         were answered: stock {}, waiting {}, at the servers {}.\n\n{}",
        grouped(ends.values().sum::<u64>() as f64),
        ends.iter()
            .map(|(end, count)| format!("{} {end}", grouped(*count as f64)))
            .collect::<Vec<_>>()
            .join(", "),
        rest.stock,
        rest.waiting,
        rest.at_servers,
        growths.iter().map(sentence).collect::<String>(),
    );
    println!("{summary}");
    if minutes < MINUTES {
        println!("A short run: docs/bench stays as it is.");
        return;
    }
    let folder = workspace().join("docs/bench");
    let text = format!("{}. {summary}\n{}", machine(), table(samples));
    put(&folder.join("README.md"), "long", &text);
    let rows = samples.iter().map(|sample| {
        json!({
            "s": sample.after.as_secs(), "load": sample.load, "envoy_mib": mib(sample.envoy_bytes),
            "companion_mib": mib(sample.companion_bytes), "stock": sample.stock, "waiting": sample.waiting, "sent": sample.sent,
        })
    });
    let figures = json!({
        "machine": machine(),
        "minutes": minutes,
        "capacity_per_s": (capacity * 10.0).round() / 10.0,
        "ends": ends,
        "rest": {"stock": rest.stock, "waiting": rest.waiting, "at_servers": rest.at_servers},
        "growth": growths,
        "samples": rows.collect::<Vec<_>>(),
    });
    keep(&folder.join("results.json"), "long", figures);
}

/// Growth of resident memory over the last two thirds of a load; before that, queues and tables fill.
fn growth(load: f64, samples: &[Sample]) -> Option<Value> {
    let all: Vec<_> = samples.iter().filter(|sample| sample.load == load).collect();
    let (from, to) = (all.get(all.len() / 3)?, all.last()?);
    let grew = |value: fn(&Sample) -> u64| {
        let (from, to) = (mib(value(from)), mib(value(to)));
        json!({"from_mib": from, "to_mib": to, "percent": ((to - from) / from * 1_000.0).round() / 10.0})
    };
    Some(
        json!({"load": load, "envoy": grew(|sample| sample.envoy_bytes), "companion": grew(|sample| sample.companion_bytes)}),
    )
}

fn sentence(growth: &Value) -> String {
    let described = |process: &str| {
        let figures = &growth[process];
        format!("{} to {} MiB ({} %)", figures["from_mib"], figures["to_mib"], figures["percent"])
    };
    format!(
        "Over the last two thirds at {:.0} %: Envoy {}, companion {}.\n",
        100.0 * growth["load"].as_f64().unwrap_or_default(),
        described("envoy"),
        described("companion")
    )
}

fn table(samples: &[Sample]) -> String {
    let mut text = String::from(
        "| after | load | Envoy MiB | companion MiB | stock | waiting | requests so far |\n|---|---|---|---|---|---|---|\n",
    );
    for load in LOADS {
        let all: Vec<_> = samples.iter().filter(|sample| sample.load == load).collect();
        for sample in all.iter().rev().step_by(all.len().div_ceil(ROWS).max(1)).rev() {
            let _ = writeln!(
                text,
                "| {} s | {:.0} % | {:.1} | {:.1} | {} | {} | {} |",
                sample.after.as_secs(),
                100.0 * load,
                mib(sample.envoy_bytes),
                mib(sample.companion_bytes),
                sample.stock,
                sample.waiting,
                grouped(sample.sent as f64)
            );
        }
    }
    text
}

/// In MiB, rounded to a tenth.
fn mib(bytes: u64) -> f64 {
    (bytes as f64 / f64::from(1 << 20) * 10.0).round() / 10.0
}
