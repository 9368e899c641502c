//! Writes the figures of all rounds: the results file, the tables of the page, and the plot.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::cycles::{self, Case};
use crate::figures::{grouped, keep, machine, median, put, spread};
use crate::{pick, plot};

/// Writes everything below docs/bench/.
pub(crate) fn write(docs: &Path, rounds: usize, cycles: &[(Case, Vec<cycles::Sample>)], picks: &[pick::Row]) {
    let cycles: Vec<Value> = cycles.iter().map(|(case, samples)| case_figures(*case, samples)).collect();
    let rows: Vec<Value> = picks.iter().map(row_figures).collect();
    let time = |flows: u64, waiting: u64| {
        let found =
            cycles.iter().find(|c| c["flows"] == flows && c["waiting"] == waiting && c["classes"] == 1);
        1.0 / median(&found.expect("every case was measured")["cycles_per_s"])
    };
    let most = time(100_000, 100_000);
    let figures = json!({
        "what": "one thread; cycle = register + complete + grant of the next, costs settled; medians over the rounds",
        "rounds": rounds,
        "machine": machine(),
        "cycles": cycles,
        "time_at_100000_flows_of_1000_flows": round(most / time(1_000, 1_000)),
        "time_at_100000_flows_of_1000_flows_with_as_many_waiting": round(most / time(1_000, 100_000)),
        "picks": rows,
    });
    put(&docs.join("README.md"), "engine", &page(&figures));
    plot::draw(&docs.join("engine.svg"), &figures);
    keep(&docs.join("results.json"), "engine", figures);
}

fn round(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

fn case_figures(case: Case, samples: &[cycles::Sample]) -> Value {
    let figure = |value: &dyn Fn(&cycles::Sample) -> f64| spread(samples.iter().map(value).collect());
    json!({
        "flows": case.flows,
        "classes": case.classes,
        "waiting": case.waiting,
        "cycles_per_s": figure(&|s| s.cycles_per_s),
        "decision_p50_ns": figure(&|s| s.decision_p50_ns),
        "decision_p99_ns": figure(&|s| s.decision_p99_ns),
        "register_p50_ns": figure(&|s| s.register_p50_ns),
        "register_p99_ns": figure(&|s| s.register_p99_ns),
        "bytes_per_waiting": figure(&|s| s.bytes_per_waiting),
    })
}

fn row_figures(row: &pick::Row) -> Value {
    let mut subjects = Map::new();
    for (name, samples) in pick::Row::NAMES.iter().zip(&row.samples) {
        // Ratios are per round, because both subjects ran one after the other in it.
        let ratio = samples.iter().zip(&row.samples[0]);
        let figures = json!({
            "pick_ns": spread(samples.iter().map(|s| s.pick_ns).collect()),
            "enqueue_ns": spread(samples.iter().map(|s| s.enqueue_ns).collect()),
            "pick_of_released": spread(ratio.map(|(own, released)| own.pick_ns / released.pick_ns).collect()),
        });
        subjects.insert((*name).to_owned(), figures);
    }
    json!({"classes": row.classes, "subjects": subjects})
}

/// The tables of the page.
fn page(figures: &Value) -> String {
    let list = |key: &str| figures[key].as_array().cloned().unwrap_or_default();
    let number = |value: &Value| grouped(median(value));
    let mut text = format!(
        "{}, {} rounds.\n\n| flows | classes | waiting | cycles/s (least to most) | decision p50 | p99 | register p50 | \
         p99 | bytes a waiting one |\n|---|---|---|---|---|---|---|---|---|\n",
        figures["machine"].as_str().unwrap_or_default(),
        figures["rounds"]
    );
    let whole = |value: &Value| grouped(value.as_f64().unwrap_or_default());
    for case in list("cycles") {
        let rate = &case["cycles_per_s"];
        text += &format!(
            "| {} | {} | {} | {} ({} to {}) | {} ns | {} ns | {} ns | {} ns | {} |\n",
            whole(&case["flows"]),
            whole(&case["classes"]),
            whole(&case["waiting"]),
            number(rate),
            whole(&rate["min"]),
            whole(&rate["max"]),
            number(&case["decision_p50_ns"]),
            number(&case["decision_p99_ns"]),
            number(&case["register_p50_ns"]),
            number(&case["register_p99_ns"]),
            number(&case["bytes_per_waiting"]),
        );
    }
    text += &format!(
        "\nA cycle at 100,000 flows takes {} times that at 1,000 with as many waiting, {} times that at 1,000 flows and \
         1,000 waiting.\n\n| classes |",
        figures["time_at_100000_flows_of_1000_flows_with_as_many_waiting"],
        figures["time_at_100000_flows_of_1000_flows"],
    );
    for name in pick::Row::NAMES {
        text += &format!(" {name}: pick (least to most) | enqueue |");
    }
    text += "\n|---|";
    text += &"---|---|".repeat(pick::Row::NAMES.len());
    text.push('\n');
    for row in list("picks") {
        text += &format!("| {} |", whole(&row["classes"]));
        for name in pick::Row::NAMES {
            let own = &row["subjects"][name];
            let pick = &own["pick_ns"];
            text += &format!(
                " {} ns ({} to {}) | {} ns |",
                number(pick),
                whole(&pick["min"]),
                whole(&pick["max"]),
                number(&own["enqueue_ns"])
            );
        }
        text.push('\n');
    }
    text + "\n![nanoseconds a pick by number of classes](engine.svg)\n"
}
