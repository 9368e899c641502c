//! Looks as lines and as a table, and whether memory is flat.

use std::fmt::Write;

use penstock_tests::binary::workspace;
use penstock_tests::figures::{grouped, keep, machine, put};
use penstock_tests::poisson_clients::Ends;
use serde_json::{Value, json};

use crate::{LOADS, Look, Rest};

/// Of a whole run: shorter ones are printed, and leave the page as it is.
const MINUTES: f64 = 10.0;
/// Rows of the page's table for each load, at most.
const ROWS: usize = 10;

/// A look, for who watches.
pub(crate) fn line(look: &Look) -> String {
    format!(
        "{:>5} s at {:.0} %: Envoy {:.1} MiB, companion {:.1} MiB, stock {}, waiting {}, {} sent",
        look.after.as_secs(),
        100.0 * look.load,
        mib(look.envoy_bytes),
        mib(look.companion_bytes),
        look.stock,
        look.waiting,
        look.sent
    )
}

/// Prints the end; after a whole run, writes it below docs/bench/.
///
/// # Panics
/// When a file can't be written.
pub(crate) fn write(minutes: f64, capacity: f64, looks: &[Look], ends: &Ends, rest: Rest) {
    let growths: Vec<Value> = LOADS.iter().filter_map(|load| growth(*load, looks)).collect();
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
    let text = format!("{}. {summary}\n{}", machine(), table(looks));
    put(&folder.join("README.md"), "long", &text);
    let rows = looks.iter().map(|look| {
        json!({
            "s": look.after.as_secs(), "load": look.load, "envoy_mib": mib(look.envoy_bytes),
            "companion_mib": mib(look.companion_bytes), "stock": look.stock, "waiting": look.waiting, "sent": look.sent,
        })
    });
    let figures = json!({
        "machine": machine(),
        "minutes": minutes,
        "capacity_per_s": (capacity * 10.0).round() / 10.0,
        "ends": ends,
        "rest": {"stock": rest.stock, "waiting": rest.waiting, "at_servers": rest.at_servers},
        "growth": growths,
        "looks": rows.collect::<Vec<_>>(),
    });
    keep(&folder.join("results.json"), "long", figures);
}

/// How much resident memory grew over the last two thirds of a load: what is there before is queues and pools that fill.
fn growth(load: f64, looks: &[Look]) -> Option<Value> {
    let all: Vec<_> = looks.iter().filter(|look| look.load == load).collect();
    let (from, to) = (all.get(all.len() / 3)?, all.last()?);
    let grew = |of: fn(&Look) -> u64| {
        let (from, to) = (mib(of(from)), mib(of(to)));
        json!({"from_mib": from, "to_mib": to, "percent": ((to - from) / from * 1_000.0).round() / 10.0})
    };
    Some(
        json!({"load": load, "envoy": grew(|it| it.envoy_bytes), "companion": grew(|it| it.companion_bytes)}),
    )
}

fn sentence(growth: &Value) -> String {
    let of = |who: &str| {
        let it = &growth[who];
        format!("{} to {} MiB ({} %)", it["from_mib"], it["to_mib"], it["percent"])
    };
    format!(
        "Over the last two thirds at {:.0} %: Envoy {}, companion {}.\n",
        100.0 * growth["load"].as_f64().unwrap_or_default(),
        of("envoy"),
        of("companion")
    )
}

fn table(looks: &[Look]) -> String {
    let mut text = String::from(
        "| after | load | Envoy MiB | companion MiB | stock | waiting | requests so far |\n|---|---|---|---|---|---|---|\n",
    );
    for load in LOADS {
        let all: Vec<_> = looks.iter().filter(|look| look.load == load).collect();
        for look in all.iter().rev().step_by(all.len().div_ceil(ROWS).max(1)).rev() {
            let _ = writeln!(
                text,
                "| {} s | {:.0} % | {:.1} | {:.1} | {} | {} | {} |",
                look.after.as_secs(),
                100.0 * load,
                mib(look.envoy_bytes),
                mib(look.companion_bytes),
                look.stock,
                look.waiting,
                grouped(look.sent as f64)
            );
        }
    }
    text
}

/// In MiB, to a tenth.
fn mib(bytes: u64) -> f64 {
    (bytes as f64 / f64::from(1 << 20) * 10.0).round() / 10.0
}
