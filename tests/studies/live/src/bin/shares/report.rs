//! Figures from rounds: the results file and the page's table.

use penstock_studies::figures::{keep, machine, median, put, spread};
use penstock_tests::binary::workspace;
use serde_json::{Value, json};

use crate::load::Load;
use crate::{Round, SERVICE};

/// Prints the figures and writes them below docs/bench/.
///
/// # Panics
/// If a file cannot be written.
pub(crate) fn write(rounds: &[Round]) {
    let figure = |value: &dyn Fn(&Round) -> f64| spread(rounds.iter().map(value).collect());
    let load = |part: fn(&Round) -> &Load| {
        json!({
            "light_ttft_p50_ms": figure(&|r| part(r).light_p50_ms()),
            "light_ttft_p99_ms": figure(&|r| part(r).light_p99_ms()),
            "light_share_percent": figure(&|r| 100.0 * part(r).light_share()),
            "requests_per_s": figure(&|r| part(r).rate()),
        })
    };
    let figures = json!({
        "what": "3 servers of 4 places, about 150 ms an answer, streamed; a greedy tenant with 64 out; medians over \
                 the rounds",
        "rounds": rounds.len(),
        "machine": machine(),
        "service_ms": SERVICE.as_millis() as u64,
        "alone_2": load(|r| &r.alone),
        "gated_2": load(|r| &r.two),
        "gated_16": load(|r| &r.sixteen),
        "open_16": load(|r| &r.open),
        "light_ttft_p99_ms_over_alone": figure(&|r| r.two.light_p99_ms() - r.alone.light_p99_ms()),
        "throughput_of_open_percent": figure(&|r| 100.0 * r.sixteen.rate() / r.open.rate()),
    });
    let text = page(&figures);
    println!("{text}");
    let docs = workspace().join("docs/bench");
    put(&docs.join("README.md"), "shares", &text);
    keep(&docs.join("results.json"), "shares", figures);
}

/// The table of the page.
fn page(figures: &Value) -> String {
    let span = |spread: &Value, digits: usize| {
        let end = |key: &str| spread[key].as_f64().unwrap_or_default();
        format!("{:.digits$} ({:.digits$} to {:.digits$})", median(spread), end("min"), end("max"))
    };
    let mut text = format!(
        "{}, {} rounds; in brackets the least and the most.\n\n| | light's TTFT p50 | p99 | light's share | requests/s \
         |\n|---|---|---|---|---|\n",
        figures["machine"].as_str().unwrap_or_default(),
        figures["rounds"]
    );
    for (key, name) in [
        ("alone_2", "light alone, 2 out"),
        ("gated_2", "light 2, greedy 64 out"),
        ("gated_16", "light 16, greedy 64 out"),
        ("open_16", "the same without a gate"),
    ] {
        let own = &figures[key];
        text += &format!(
            "| {name} | {:.0} ms | {} ms | {} % | {} |\n",
            median(&own["light_ttft_p50_ms"]),
            span(&own["light_ttft_p99_ms"], 0),
            span(&own["light_share_percent"], 2),
            span(&own["requests_per_s"], 1),
        );
    }
    text + &format!(
        "\nWith 2 out the light tenant's p99 is {} ms above its time alone; one service time is {} ms. With the gate \
         the servers did {} % of what they do without.\n",
        span(&figures["light_ttft_p99_ms_over_alone"], 0),
        figures["service_ms"],
        span(&figures["throughput_of_open_percent"], 1),
    )
}
