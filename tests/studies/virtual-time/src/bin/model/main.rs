//! Closed-loop experiments with servers of known parameters, in virtual time: whether the model learns behind its own
//! gate, what that gate is worth, and how many replicas it asks for.
//!
//! Usage: `model [--out DIR] [learned|gate|servers|replicas]...` writes model.json, model.md and plots to DIR. Without
//! names it runs all experiments. Experiments that aren't named keep their figures in model.json.

mod combos;
mod gate;
mod kalman;
mod learned;
mod plots;
mod replicas;
mod report;
mod servers;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use penstock_studies::report::Report;

const USAGE: &str = "usage: model [--out DIR] [learned|gate|servers|replicas]...";

fn main() -> ExitCode {
    let mut out = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/bench"));
    let mut chosen = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match (argument.as_str(), arguments.len()) {
            ("--out", 1..) => out = arguments.next().map(PathBuf::from).unwrap_or_default(),
            ("learned" | "gate" | "servers" | "replicas", _) => chosen.push(argument),
            _ => {
                eprintln!("invalid argument: {argument}\n{USAGE}");
                return ExitCode::from(2);
            }
        }
    }
    let mut report = Report::read(&out, "model");
    for (name, run) in [
        ("learned", learned::run as fn() -> serde_json::Value),
        ("gate", gate::run),
        ("servers", servers::run),
        ("replicas", replicas::run),
    ] {
        if chosen.is_empty() || chosen.iter().any(|chosen| chosen == name) {
            let start = Instant::now();
            report.figures.insert(name.into(), run());
            eprintln!("{name}: {:.1} s", start.elapsed().as_secs_f64());
        }
    }
    let written = report.write(&out, &report::page(&report.figures)).map_err(Into::into);
    if let Err(error) = written.and_then(|()| plots::draw(&out, &report.figures)) {
        eprintln!("can't write the report to {}: {error}", out.display());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
