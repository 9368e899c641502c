//! What Penstock costs a request: the same client against plain Envoy, Envoy with a filter that does nothing, and the
//! whole gateway. `just bench gateway [--rounds N] [--seconds N] [--idle N]`.
//!
//! Side by side in one run, in rounds whose order turns, so that what disturbs the machine disturbs all alike; of
//! every figure the median over the rounds, with the least and the most. Envoy has one worker, on one core; client,
//! model server and companion have the others. The answer is as cheap as can be: what is measured is the way.

mod load;
mod report;
mod subject;

use std::process::ExitCode;
use std::time::Duration;

use penstock_tests::run;

use crate::report::Round;
use crate::subject::Subject;

/// Of the load that counts for requests per second, and of the one that counts for latency.
const CONNECTIONS: [u32; 2] = [50, 1];

/// What the command line says.
struct Plan {
    rounds: usize,
    seconds: u32,
    idle: u64,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --benches` starts this as well, and wants no measurement.
    if !arguments.iter().any(|a| a == "--bench") {
        return ExitCode::SUCCESS;
    }
    let number = |name: &str, default: u64| {
        let at = arguments.iter().position(|a| a == name);
        at.and_then(|at| arguments.get(at + 1)?.parse().ok())
            .unwrap_or(default)
    };
    let plan = Plan {
        rounds: usize::try_from(number("--rounds", 5)).unwrap_or(5).max(1),
        seconds: u32::try_from(number("--seconds", 5)).unwrap_or(5).max(1),
        idle: number("--idle", 30),
    };
    if let Err(why) = load::installed() {
        eprintln!("{why}");
        return ExitCode::FAILURE;
    }
    run(measure(&plan));
    ExitCode::SUCCESS
}

async fn measure(plan: &Plan) {
    let server = subject::server().await;
    let subjects = [
        Subject::plain(&server).await,
        Subject::no_op(&server).await,
        Subject::penstock(&server).await,
    ];
    for subject in &subjects {
        load::run(&subject.url(), 8, 1).await;
    }
    let mut rounds: Vec<Vec<Round>> = subjects.iter().map(|_| Vec::new()).collect();
    for round in 0..plan.rounds {
        for turn in 0..subjects.len() {
            let at = (round + turn) % subjects.len();
            let subject = &subjects[at];
            let before = subject.cpu();
            let many = load::run(&subject.url(), CONNECTIONS[0], plan.seconds).await;
            let cpu = subject.cpu().since(before);
            let one = load::run(&subject.url(), CONNECTIONS[1], plan.seconds.div_ceil(2)).await;
            println!(
                "round {}/{}: {:<9} {:>7.0} requests/s, p50 {:>5.0} us at {}, {:>4.0} us at 1",
                round + 1,
                plan.rounds,
                subject.name,
                many.rate(),
                many.p50_us,
                CONNECTIONS[0],
                one.p50_us
            );
            rounds[at].push(Round { many, one, cpu });
        }
    }
    let idle = match plan.idle {
        0 => None,
        seconds => Some(idle(&subjects[2], seconds).await),
    };
    let names: Vec<_> = subjects.iter().map(|s| s.name).collect();
    report::write(&names, &rounds, idle);
}

/// CPU of a gateway that nobody asks anything, in percent of one core: companion, Envoy.
async fn idle(subject: &Subject, seconds: u64) -> [f64; 2] {
    println!("idle for {seconds} s ...");
    let before = subject.cpu();
    let start = std::time::Instant::now();
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let wall_us = start.elapsed().as_secs_f64() * 1e6;
    let used = subject.cpu().since(before);
    [
        used.companion_us / wall_us * 100.0,
        used.envoy_us / wall_us * 100.0,
    ]
}
