//! `penstock simulate`: policies on a trace or a scenario, in virtual time, in front of simulated model servers.

mod args;
mod document;
mod error;
mod format;
mod input;
mod outcome;
mod policies;
mod report;
mod table;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::Path;
use std::time::Duration;

use penstock_config::Environment;
use penstock_simulate::closed_loop::Placement;
use penstock_simulate::simulation::Simulation;

pub use self::args::Args;
pub use self::error::Error;
use self::input::Input;
use self::outcome::{Outcome, PolicyRuns, Run};
use self::policies::Policies;
use crate::progress::Progress;

/// Runs the simulation, writes the files of `--out`, and returns what is to be printed.
///
/// # Errors
/// An argument, the configuration or the trace is invalid, or a file can't be read or written.
pub fn run(args: &Args, environment: &Environment) -> Result<String, Error> {
    let policies = Policies::read(args, environment)?;
    if let Some(directory) = &args.out {
        fs::create_dir_all(directory).map_err(Error::writing(directory))?;
    }
    let input = Input::read(args, &policies)?;
    let outcome = simulate(args, &policies, input)?;
    let json = document::json(&outcome);
    let mut printed = if args.json { json.clone() } else { table::text(&outcome) };
    if let Some(directory) = &args.out {
        for (name, text) in [("report.html", report::html(&outcome)), ("results.json", json)] {
            let path = directory.join(name);
            fs::write(&path, text).map_err(Error::writing(&path))?;
            note(args.json, &mut printed, &path);
        }
    }
    Ok(printed)
}

/// Names a written file where it doesn't disturb the JSON.
fn note(is_json: bool, printed: &mut String, path: &Path) {
    let line = format!("wrote {}\n", path.display());
    if is_json {
        eprint!("{line}");
    } else {
        printed.push_str(&line);
    }
}

/// Runs every policy with every number of servers.
fn simulate(args: &Args, policies: &Policies, input: Input) -> Result<Outcome, Error> {
    let arrivals_ms = input.arrivals().as_millis() as u64;
    let mut progress = Progress::new("simulating", arrivals_ms * policies.runs() as u64);
    let mut all = Vec::with_capacity(policies.all.len());
    for policy in &policies.all {
        let mut runs = Vec::new();
        for servers in policy.counts.clone() {
            let simulation = Simulation {
                servers: policy.servers(servers),
                policy: policy.policy.clone(),
                slo: policy.slo,
                transient: policy.transient,
                placement: Placement::Engine,
                requests: input.requests.clone(),
                tenants: policy.tenants(&input.tenants),
                warmup: Duration::ZERO,
                seed: args.seed,
            };
            let mut reached_ms = 0;
            let results = simulation.run(&policies.goal, |time| {
                let now_ms = (time.as_millis() as u64).min(arrivals_ms);
                progress.advance(now_ms - reached_ms);
                reached_ms = now_ms;
            })?;
            runs.push(Run { servers, results });
        }
        let name = policy.name.to_string();
        all.push(PolicyRuns { name, runs });
    }
    drop(progress);
    Ok(Outcome {
        arrivals: input.arrivals(),
        source: input.source,
        requests: input.requests.len(),
        unanswered: input.unanswered,
        scale: args.scale.0,
        seed: args.seed,
        hardware: policies.hardware,
        goal: policies.goal,
        goal_source: policies.goal_source,
        policies: all,
    })
}
