//! Policies compared by their outcome: what is served within its targets, how long tenants wait and how fairly they are treated, on
//! traffic of several kinds from half to twice the servers' capacity, in virtual time.
//!
//! Usage: `outcome [--chat FILE] [--code FILE] [--out DIR] [--only TEXT] [--page]` writes outcome.json and outcome.md to DIR. FILE is a
//! trace that `penstock simulate` reads; without it the workload is made up. `--only` runs and prints the cells whose names contain TEXT,
//! and writes nothing. `--page` runs nothing and writes outcome.md from outcome.json.

mod arguments;
mod cell;
mod fixed_limit;
mod measured;
mod page;
mod policies;
mod rate_limits;
mod servers;
mod tables;
mod tenants;
mod workloads;

use std::process::ExitCode;
use std::time::Instant;

use penstock_studies::parallel;
use penstock_studies::report::Report;
use serde_json::json;

use crate::arguments::{Arguments, USAGE};

fn main() -> ExitCode {
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let mut report = Report::read(&arguments.out, "outcome");
    if arguments.page {
        return written(&report, &arguments);
    }
    let workloads = match workloads::all(&arguments) {
        Ok(workloads) => workloads,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let start = Instant::now();
    let cells = cell::all(&workloads);
    let chosen: Vec<_> = cells
        .iter()
        .filter(|cell| arguments.only.as_ref().is_none_or(|only| cell.name().contains(only)))
        .collect();
    let figures = parallel::map(&chosen, |cell| {
        let figures = policies::compare(cell);
        eprintln!("{}: {:.0} s", cell.name(), start.elapsed().as_secs_f64());
        figures
    });
    if arguments.only.is_some() {
        let mut text = String::new();
        tables::cells(&mut text, &figures.into());
        print!("{text}");
        return ExitCode::SUCCESS;
    }
    let sources = workloads.iter().map(|workload| json!({"name": workload.name, "source": workload.source}));
    report.figures.insert("workloads".into(), sources.collect());
    report.figures.insert("cells".into(), figures.into());
    written(&report, &arguments)
}

fn written(report: &Report, arguments: &Arguments) -> ExitCode {
    match report.write(&arguments.out, &page::text(&report.figures)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("can't write the report to {}: {error}", arguments.out.display());
            ExitCode::FAILURE
        }
    }
}
