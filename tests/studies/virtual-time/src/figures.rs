//! Benchmark figures: medians over rounds with their spread, and the files in docs/bench/ that hold them.
//!
//! The engine's benchmark, a workspace of its own, includes this file, so it uses only std and JSON.

use std::path::Path;

use serde_json::{Value, json};

/// Median, minimum and maximum, rounded to three decimals.
#[must_use]
pub fn spread(mut values: Vec<f64>) -> Value {
    values.sort_by(f64::total_cmp);
    let round = |v: f64| (v * 1e3).round() / 1e3;
    let median = values.get(values.len() / 2).copied().unwrap_or_default();
    let (minimum, maximum) = (values.first().copied(), values.last().copied());
    json!({"median": round(median), "min": minimum.map(round), "max": maximum.map(round)})
}

/// The median of a [`spread`]; 0 if absent.
#[must_use]
pub fn median(spread: &Value) -> f64 {
    spread["median"].as_f64().unwrap_or_default()
}

/// The integer part with grouped digits, as in `1,234,567`.
#[must_use]
pub fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The number of cores and the processor's name.
#[must_use]
pub fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|l| l.strip_prefix("model name")).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{cores} x {}", model.trim_start_matches(['\t', ' ', ':']))
}

/// Writes a benchmark's figures into the results file, beside the figures of other benchmarks.
///
/// # Panics
/// If the file cannot be written.
pub fn keep(results: &Path, bench: &str, figures: Value) {
    std::fs::create_dir_all(results.parent().expect("a file lies in a folder")).expect("create the folder");
    let known = std::fs::read(results).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let mut all: Value = known.unwrap_or_else(|| json!({}));
    all[bench] = figures;
    let text = serde_json::to_string_pretty(&all).expect("values are JSON");
    std::fs::write(results, text + "\n").expect("write the results");
}

/// Replaces the text between the two marks that enclose a benchmark's tables on a page.
///
/// # Panics
/// If the page cannot be read or written, or lacks the marks.
pub fn put(page: &Path, bench: &str, text: &str) {
    let old = std::fs::read_to_string(page).expect("read the page");
    let marks = [
        format!("<!-- {bench}: written by `just bench {bench}` -->\n"),
        format!("<!-- {bench}: to here -->\n"),
    ];
    let begin = old.find(&marks[0]).expect("the page has the first mark") + marks[0].len();
    let end = old.find(&marks[1]).expect("the page has the second mark");
    let new = format!("{}\n{}\n{}", &old[..begin], text.trim_end(), &old[end..]);
    std::fs::write(page, new).expect("write the page");
}
