//! The model in a closed loop, with servers of known parameters, in virtual time: does it learn behind its own gate, what
//! is its gate worth, and what follows for replicas.
//!
//! `model [--out DIR] [learned|gate|servers|replicas]...` writes model.json, model.md and plots to DIR; without words all
//! of them, else what is left out stays as it stands in model.json.

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

/// Does `of` to every item, on as many threads as there are cores; the results are in order.
pub(crate) fn all<T: Sync, R: Send>(items: &[T], of: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(items.len()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(at) else {
                        return;
                    };
                    let result = of(item);
                    done.lock()
                        .expect("invariant: nobody panics with it")
                        .push((at, result));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("invariant: nobody panics with it");
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

fn main() -> ExitCode {
    let mut out = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/bench"));
    let mut chosen = Vec::new();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match (word.as_str(), words.len()) {
            ("--out", 1..) => out = words.next().map(PathBuf::from).unwrap_or_default(),
            ("learned" | "gate" | "servers" | "replicas", _) => chosen.push(word),
            ("--bench", _) => {}
            _ => {
                eprintln!("model [--out DIR] [learned|gate|servers|replicas]...: not understood: {word}");
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
        if chosen.is_empty() || chosen.iter().any(|it| it == name) {
            let begun = Instant::now();
            report.set(name, run());
            eprintln!("{name}: {:.1} s", begun.elapsed().as_secs_f64());
        }
    }
    if let Err(error) = report.write(&out) {
        eprintln!("{}: {error}", out.display());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
