//! What the systems that Penstock learned from promise, measured: `just bench sources [nexus] [overload] [fairness] [replicas]`.
//!
//! `nexus` runs a real gateway, so its times depend on the machine. The other parts are seeded closed loops in virtual time, with the same
//! figures on every machine. A part that isn't named keeps its figures. Writes docs/bench/sources.md.

mod closed_loops;
mod fairness;
mod nexus;
mod overload;
mod replicas;
mod report;

use std::process::ExitCode;
use std::time::Instant;

use penstock_studies::figures::keep;
use penstock_tests::binary::workspace;
use serde_json::Value;

/// Measures one part.
type Measure = fn() -> Value;

/// The parts, by their names.
const PARTS: [(&str, Measure); 4] = [
    ("nexus", nexus::run),
    ("overload", overload::run),
    ("fairness", fairness::run),
    ("replicas", replicas::run),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(unknown) = arguments.iter().find(|argument| !PARTS.iter().any(|(name, _)| name == argument)) {
        eprintln!("no part {unknown}: nexus, overload, fairness, replicas");
        return ExitCode::from(2);
    }
    let results = workspace().join("docs/bench/results.json");
    let known = std::fs::read(&results).ok().and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    let mut figures = known.map_or(Value::Null, |all| all["sources"].clone());
    for (name, measure) in PARTS {
        if arguments.is_empty() || arguments.iter().any(|argument| argument == name) {
            let start = Instant::now();
            figures[name] = measure();
            println!("{name}: {:.0} s", start.elapsed().as_secs_f64());
        }
    }
    report::write(&figures);
    keep(&results, "sources", figures);
    ExitCode::SUCCESS
}
