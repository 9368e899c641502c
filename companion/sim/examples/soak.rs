//! Worlds without end: random seeds, until one fails, the time given is over, or it is stopped.
//!
//! `soak [--for 4h] [--from SEED]`; a line every few seconds says how far it is.

use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use penstock_sim::world::{self, Tally};

const PROGRESS: Duration = Duration::from_secs(10);

/// `90s`, `10m`, `4h`.
fn duration(text: &str) -> Option<Duration> {
    let split = text.len().checked_sub(1)?;
    let (number, unit) = text.split_at_checked(split)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        _ => return None,
    };
    Some(Duration::from_secs(
        number.parse::<u64>().ok()?.checked_mul(seconds)?,
    ))
}

fn main() -> ExitCode {
    let mut until = None;
    let nanos = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |it| it.as_nanos());
    let mut seed = u64::try_from(nanos % (1 << 62)).unwrap_or(0);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().unwrap_or_default();
        let understood = match word.as_str() {
            "--for" => duration(&value).map(|it| until = Some(it)),
            "--from" => value.parse().ok().map(|it| seed = it),
            _ => None,
        };
        if understood.is_none() {
            eprintln!("soak [--for 90s|10m|4h] [--from SEED]: not understood: {word} {value}");
            return ExitCode::from(2);
        }
    }
    let begun = Instant::now();
    let mut said = begun;
    let mut sum = Tally::default();
    let mut failed = 0_u64;
    while until.is_none_or(|until| begun.elapsed() < until) {
        match world::run(seed) {
            Ok(tally) => sum.add(&tally),
            Err(failure) => {
                println!("{failure}");
                failed += 1;
                break;
            }
        }
        seed += 1;
        if said.elapsed() >= PROGRESS {
            said = Instant::now();
            let faults: u64 = sum.faults.values().sum();
            println!(
                "{:>6} s: {} worlds, {} requests, {faults} faults, at seed {seed}",
                begun.elapsed().as_secs(),
                sum.worlds,
                sum.requests
            );
        }
    }
    println!("{sum}");
    ExitCode::from(u8::from(failed > 0))
}
