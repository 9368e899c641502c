//! The tables of the page.

use std::fmt::Write as _;

use serde_json::Value;

use penstock_studies::markdown::{head, line, number, percent, rows};

const COLUMNS: [&str; 14] = [
    "policy",
    "good req/s",
    "good tokens/s",
    "in time",
    "small: in time",
    "TTFT p50",
    "p99",
    "urgent: TTFT p99",
    "mean wait",
    "Jain",
    "busy",
    "refused",
    "wasted",
    "replicas",
];

/// The row of a policy in a cell.
pub(crate) fn policy<'a>(cell: &'a Value, name: &str) -> &'a Value {
    rows(&cell["policies"]).find(|row| row["policy"] == name).unwrap_or(&Value::Null)
}

/// One table for each cell.
pub(crate) fn cells(text: &mut String, cells: &Value) {
    for cell in rows(cells) {
        let rate = cell["load"].as_f64().unwrap_or_default() * cell["capacity"].as_f64().unwrap_or_default();
        let name = cell["cell"].as_str().unwrap_or_default();
        let _ = writeln!(text, "\n### {}\n\n{rate:.1} requests/s.", capitalised(name));
        head(text, &COLUMNS);
        for row in rows(&cell["policies"]) {
            let name = row["policy"].as_str().unwrap_or_default();
            let setting = row["setting"].as_str().filter(|setting| !setting.is_empty());
            line(
                text,
                &[
                    setting.map_or_else(|| name.to_string(), |setting| format!("{name} ({setting})")),
                    number(&row["good_requests_s"], 2),
                    number(&row["good_tokens_s"], 0),
                    percent(&row["in_time"]),
                    percent(&row["small_in_time"]),
                    seconds(&row["small"]["p50_ms"]),
                    seconds(&row["small"]["p99_ms"]),
                    seconds(&row["urgent"]["p99_ms"]),
                    seconds(&row["urgent_wait_ms"]),
                    number(&row["jain"], 3),
                    percent(&row["utilisation"]),
                    percent(&row["refused"]),
                    percent(&row["wasted"]),
                    number(&row["replicas"], 0),
                ],
            );
        }
    }
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn seconds(ms: &Value) -> String {
    ms.as_f64().map_or_else(|| "-".to_string(), |ms| format!("{:.2} s", ms / 1e3))
}
