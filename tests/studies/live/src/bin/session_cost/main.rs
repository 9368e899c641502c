//! The companion's cost per request: instructions and allocations in user space, counted by valgrind.
//!
//!     bash tests/studies/run session-cost [--list]
//!
//! A companion serves filters on a real socket, as `penstock serve` does. A script registers requests in rounds and completes
//! the granted ones. The cost is the difference between a long and a short run, divided by the requests in between, so that
//! the start counts nothing. It doesn't depend on the speed and the load of the machine.

mod filter;
mod valgrind;

use std::path::PathBuf;
use std::process::ExitCode;

use penstock_config::Environment;
use penstock_server::serve;

use self::valgrind::Tool;

/// Requests of the short run, which warms up, and of the long run.
const REQUESTS: [u64; 2] = [2_000, 6_000];

/// The only pool, and its endpoint, at which nothing listens.
const POOL: &str = "p";
const ENDPOINT: &str = "127.0.0.1:9";

/// How requests arrive.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    sessions: u64,
    /// Requests that are registered at a time, by all sessions.
    round: u64,
    /// Requests that may run.
    places: u64,
    /// A response is streamed, so that the filter sends one more message about it.
    streams: bool,
    /// The filter admits the requests by credit, and reports those of a round in one frame.
    by_credit: bool,
    budgets: Budgets,
}

/// The budgets of the pool.
#[derive(Clone, Copy)]
enum Budgets {
    None,
    /// So many, of tenants that send nothing.
    OfOthers(usize),
    /// One for every tenant of the load, with a window of an hour and one of a day. No tenant reaches it.
    OfAll,
}

const LOADS: [Load; 9] = [
    Load::new("one at a time", 1, 1, 1_000),
    Load::new("8 at a time", 1, 8, 1_000),
    Load::new("32 at a time, 4 sessions", 4, 32, 1_000),
    Load::new("32 at a time, half of them wait", 4, 32, 16),
    Load { streams: true, ..Load::new("8 at a time, streamed", 1, 8, 1_000) },
    Load { by_credit: true, ..Load::new("16 at a time, by credit", 1, 16, 1_000) },
    Load { budgets: Budgets::OfOthers(1), ..Load::new("8 at a time, budget of others", 1, 8, 1_000) },
    Load { budgets: Budgets::OfOthers(256), ..Load::new("8 at a time, 256 budgets", 1, 8, 1_000) },
    Load { budgets: Budgets::OfAll, ..Load::new("8 at a time, within budgets", 1, 8, 1_000) },
];

impl Load {
    const fn new(name: &'static str, sessions: u64, round: u64, places: u64) -> Self {
        Self { name, sessions, round, places, streams: false, by_credit: false, budgets: Budgets::None }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    match (arguments.next(), arguments.next()) {
        (Some(word), Some(config)) if word == "serve" => serve_until_closed(config.into()).await,
        (pattern, _) => {
            let pattern = pattern.unwrap_or_default();
            measure(&pattern.to_string_lossy()).await;
            ExitCode::SUCCESS
        }
    }
}

/// Measures the loads whose names contain `pattern`.
async fn measure(pattern: &str) {
    println!("{:32} {:>20} {:>19}", "load", "instructions/request", "allocations/request");
    for load in LOADS.into_iter().filter(|load| load.name.contains(pattern)) {
        let mut each = [0.0; 2];
        for (each, tool) in each.iter_mut().zip([Tool::Instructions, Tool::Allocations]) {
            let mut counts = [0; 2];
            for (count, requests) in counts.iter_mut().zip(REQUESTS) {
                *count = valgrind::count(tool, load, requests).await;
            }
            let [short, long] = counts;
            let requests = REQUESTS[1] - REQUESTS[0];
            #[expect(clippy::cast_precision_loss, reason = "the counts are far below 2^52")]
            let quotient = long.saturating_sub(short) as f64 / requests as f64;
            *each = quotient;
        }
        println!("{:32} {:20.0} {:19.2}", load.name, each[0], each[1]);
    }
}

/// The companion, until its standard input is closed. It ends by a return, so that valgrind reports its counts. It logs as `penstock serve`
/// does: without a log, the libraries would do more for each message.
async fn serve_until_closed(config: PathBuf) -> ExitCode {
    tracing_subscriber::fmt().with_env_filter("info").with_writer(std::io::stderr).init();
    let arguments = serve::Args {
        config,
        grpc: None,
        http: None,
        envoy: None,
        envoy_admin: None,
        expect_sessions: None,
        envoy_gateway: None,
    };
    let closed = tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    tokio::select! {
        ended = serve::run(arguments, Environment::default(), serve::FilterModules { wasm: || &[], native: || &[] }) => match ended {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        },
        _ = closed => ExitCode::SUCCESS,
    }
}
