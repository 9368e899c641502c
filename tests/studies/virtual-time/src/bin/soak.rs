//! Runs worlds one after the other until an invariant is violated, the given time is over, or the process is stopped.
//!
//! Usage: `soak [--for 4h] [--from SEED]`. Without `--from` the first seed is random. A line every ten seconds shows the
//! progress.

use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use penstock_world::Summary;

const USAGE: &str = "usage: soak [--for 90s|10m|4h] [--from SEED]";
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// Parses `90s`, `10m` or `4h`.
fn duration(text: &str) -> Option<Duration> {
    let split = text.len().checked_sub(1)?;
    let (number, unit) = text.split_at_checked(split)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        _ => return None,
    };
    Some(Duration::from_secs(number.parse::<u64>().ok()?.checked_mul(seconds)?))
}

fn main() -> ExitCode {
    let mut limit = None;
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let mut seed = u64::try_from(nanos % (1 << 62)).unwrap_or(0);
    let mut arguments = std::env::args().skip(1);
    while let Some(option) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        let valid = match option.as_str() {
            "--for" => duration(&value).map(|duration| limit = Some(duration)),
            "--from" => value.parse().ok().map(|first| seed = first),
            _ => None,
        };
        if valid.is_none() {
            eprintln!("invalid argument: {option} {value}\n{USAGE}");
            return ExitCode::from(2);
        }
    }
    let start = Instant::now();
    let mut last_report = start;
    let mut sum = Summary::default();
    while limit.is_none_or(|limit| start.elapsed() < limit) {
        match penstock_world::run(seed) {
            Ok(summary) => sum.add(&summary),
            Err(failure) => {
                println!("{failure}\n{sum}");
                return ExitCode::FAILURE;
            }
        }
        seed += 1;
        if last_report.elapsed() >= PROGRESS_INTERVAL {
            last_report = Instant::now();
            let faults: u64 = sum.faults.values().sum();
            println!(
                "{:>6} s: {} worlds, {} requests, {faults} faults, next seed {seed}",
                start.elapsed().as_secs(),
                sum.worlds,
                sum.requests
            );
        }
    }
    println!("{sum}");
    ExitCode::SUCCESS
}
