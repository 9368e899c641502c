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
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

const USAGE: &str = "usage: model [--out DIR] [learned|gate|servers|replicas]...";

/// Calls `function` for every item, on as many threads as there are cores. Returns the results in the items' order.
pub(crate) fn map_parallel<T: Sync, R: Send>(items: &[T], function: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(items.len()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else {
                        return;
                    };
                    let result = function(item);
                    done.lock()
                        .expect("invariant: no thread panics while it holds the lock")
                        .push((index, result));
                }
            });
        }
    });
    let mut done = done
        .into_inner()
        .expect("invariant: no thread panics while it holds the lock");
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

fn main() -> ExitCode {
    let mut out = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/bench"));
    let mut chosen = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match (argument.as_str(), arguments.len()) {
            ("--out", 1..) => out = arguments.next().map(PathBuf::from).unwrap_or_default(),
            ("learned" | "gate" | "servers" | "replicas", _) => chosen.push(argument),
            ("--bench", _) => {}
            _ => {
                eprintln!("invalid argument: {argument}\n{USAGE}");
                return ExitCode::from(2);
            }
        }
    }
    let mut report = report::Report::read(&out);
    for (name, run) in [
        ("learned", learned::run as fn() -> serde_json::Value),
        ("gate", gate::run),
        ("servers", servers::run),
        ("replicas", replicas::run),
    ] {
        if chosen.is_empty() || chosen.iter().any(|chosen| chosen == name) {
            let start = Instant::now();
            report.set(name, run());
            eprintln!("{name}: {:.1} s", start.elapsed().as_secs_f64());
        }
    }
    if let Err(error) = report.write(&out) {
        eprintln!("can't write the report to {}: {error}", out.display());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
