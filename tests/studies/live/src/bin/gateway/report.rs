//! Figures from rounds: medians with their spread, and ratios inside a round, where measurements are close in time.

use std::fmt::Write;

use penstock_live_studies::peers::module_of;
use penstock_studies::figures::{keep, median, put, spread};
use penstock_tests::binary::workspace;
use serde_json::{Map, Value, json};

use crate::options::Plan;
use crate::subject::Which;
use crate::{Figures, plot, tables};

/// A figure of one subject relative to another subject's.
struct Beside {
    /// The figure's name.
    key: &'static str,
    /// The figure that is compared.
    figure: &'static str,
    other: Which,
    how: How,
}

enum How {
    Ratio,
    Difference,
}

const BESIDE: [Beside; 11] = [
    beside("cpu_us_of_plain", "cpu_us", Which::Plain, How::Ratio),
    beside("requests_per_s_of_plain", "requests_per_s", Which::Plain, How::Ratio),
    beside("requests_per_s_of_ext_proc", "requests_per_s", Which::ExtProc, How::Ratio),
    beside("envoy_cpu_us_over_parse_only", "envoy_cpu_us", Which::ParseOnly, How::Difference),
    beside("p50_us_at_1_over_plain", "p50_us_at_1", Which::Plain, How::Difference),
    beside("requests_per_s_220kb_of_plain", "requests_per_s_220kb", Which::Plain, How::Ratio),
    beside("requests_per_s_220kb_of_ext_proc", "requests_per_s_220kb", Which::ExtProc, How::Ratio),
    beside("envoy_cpu_us_per_event_over_plain", "envoy_cpu_us_per_event", Which::Plain, How::Difference),
    beside("requests_per_s_of_epp", "requests_per_s", Which::EndpointPicker, How::Ratio),
    beside("p50_us_at_1_of_epp", "p50_us_at_1", Which::EndpointPicker, How::Ratio),
    beside("requests_per_s_220kb_of_epp", "requests_per_s_220kb", Which::EndpointPicker, How::Ratio),
];

const fn beside(key: &'static str, figure: &'static str, other: Which, how: How) -> Beside {
    Beside { key, figure, other, how }
}

/// The figures of a run.
pub(crate) struct Measured<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) machine: String,
    /// The rounds of each subject of the plan.
    pub(crate) rounds: Vec<Vec<Figures>>,
    /// Figures outside of rounds, by their names in the results; null if not measured.
    pub(crate) paused: Value,
    pub(crate) companion: Value,
    pub(crate) idle: Value,
    pub(crate) instructions: Value,
    pub(crate) flood: Value,
}

/// Prints one round of one subject as a line.
pub(crate) fn line(name: &str, figures: &Figures) -> String {
    let mut line = format!("{name:<15}");
    for (key, unit) in [
        ("requests_per_s", "requests/s"),
        ("p50_us", "us p50"),
        ("envoy_cpu_us", "us Envoy"),
        ("side_cpu_us", "us beside"),
        ("standby_cpu_us", "us standby"),
        ("waited_percent", "% waited"),
        ("leased_percent", "% by credit"),
        ("p50_us_at_1", "us p50 at 1"),
        ("requests_per_s_220kb", "requests/s of 220 KB"),
        ("envoy_cpu_us_220kb", "us Envoy"),
        ("open_p50_us", "us p50 in the open"),
        ("envoy_cpu_us_per_event", "us Envoy an event"),
    ] {
        if let Some(value) = figures.get(key) {
            let _ = write!(line, " {value:.1} {unit},");
        }
    }
    line.trim_end_matches(',').to_owned()
}

/// Prints the figures; after a complete run, writes them below docs/bench/ and into the README.
///
/// # Panics
/// If a file cannot be written.
pub(crate) fn write(measured: &Measured<'_>) {
    let results = results(measured);
    for (name, which) in Which::ALL {
        let figures = &results["subjects"][name];
        let measures = figures.as_object().is_some_and(|all| !all.is_empty());
        if measured.plan.subjects.contains(&which) && measures {
            println!("{}", summary(name, figures));
        }
    }
    if !measured.plan.is_whole() {
        println!("Not everything was measured: docs/bench stays as it is.");
        return;
    }
    let folder = workspace().join("docs/bench");
    plot::draw(&folder.join("gateway.svg"), &results);
    put(&folder.join("README.md"), "gateway", &tables::page(&results));
    put(&workspace().join("README.md"), "gateway", &tables::short(&results));
    keep(&folder.join("results.json"), "gateway", results);
}

fn results(measured: &Measured<'_>) -> Value {
    let mut subjects = Map::new();
    for (which, rounds) in measured.plan.subjects.iter().zip(&measured.rounds) {
        let keys = rounds.first().into_iter().flat_map(|first| first.keys().copied());
        let mut figures: Map<String, Value> = keys
            .map(|key| {
                let values = rounds.iter().filter_map(|round| round.get(key).copied());
                (key.to_owned(), spread(values.collect()))
            })
            .collect();
        for ratio in BESIDE {
            let other = measured.plan.subjects.iter().position(|other| *other == ratio.other);
            let Some(others) = other.and_then(|index| measured.rounds.get(index)) else {
                continue;
            };
            let pairs = rounds.iter().zip(others);
            let values = pairs.filter_map(|(own, other)| match ratio.how {
                How::Ratio => Some(own.get(ratio.figure)? / other.get(ratio.figure)?),
                How::Difference => Some(own.get(ratio.figure)? - other.get(ratio.figure)?),
            });
            let values: Vec<f64> = values.collect();
            if !values.is_empty() {
                figures.insert(ratio.key.to_owned(), spread(values));
            }
        }
        subjects.insert(which.name().to_owned(), figures.into());
    }
    let mut results = json!({
        "what": "one Envoy worker on one core; chats of 1 KB and 220 KB, answered at once; closed loop by wrk, open loop \
                 by oha; medians over the rounds, with the least and the most",
        "rounds": measured.plan.rounds,
        "seconds": measured.plan.seconds,
        "open_rate": measured.plan.rate,
        "machine": measured.machine,
        "subjects": subjects,
        "paused": measured.paused,
        "companion": measured.companion,
        "idle_cpu_percent": measured.idle,
        "instructions": measured.instructions,
        "flood": measured.flood,
    });
    if let Some(program) = &measured.plan.programs.endpoint_picker {
        let version = module_of(program).unwrap_or_else(|| "of an unknown version".to_owned());
        results["programs"] = json!({ Which::EndpointPicker.name(): version });
    }
    results
}

/// Prints the medians of a subject and their ratios to other subjects.
fn summary(name: &str, figures: &Value) -> String {
    let keys = [
        "requests_per_s",
        "p50_us",
        "p50_us_at_1",
        "envoy_cpu_us",
        "side_cpu_us",
        "leased_percent",
        "requests_per_s_220kb",
        "envoy_cpu_us_220kb",
        "side_cpu_us_220kb",
        "open_p50_us",
        "open_p99_us",
        "envoy_cpu_us_per_event",
        "side_cpu_us_per_event",
    ];
    let mut text = format!("{name}:");
    for key in keys.into_iter().chain(BESIDE.iter().map(|ratio| ratio.key)) {
        if !figures[key].is_null() {
            let figure = &figures[key];
            let _ = write!(
                text,
                "\n  {key:<34} {:>10.2} ({} to {})",
                median(figure),
                figure["min"],
                figure["max"]
            );
        }
    }
    text
}
