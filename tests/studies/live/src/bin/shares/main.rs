//! The share of a light tenant beside a greedy one, and the throughput cost of the gate.
//! `just bench shares [--rounds N] [--seconds N]`.
//!
//! Three servers with four places each, responses streamed in about 150 ms, and a greedy tenant with 64 concurrent requests. One gateway
//! with two pools of the same servers: one gated at their places, one without a gate, where requests without a place wait at the servers.
//! Both are measured in turn in every round; each figure is the median over the rounds, with minimum and maximum.

mod load;
mod report;

use std::process::ExitCode;
use std::time::Duration;

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::{Gateway, Upstream, run};

use crate::load::Load;

const SERVERS: usize = 3;
const PLACES: u32 = 4;
pub(crate) const SERVICE: Duration = Duration::from_millis(150);
/// Concurrent requests of the greedy tenant.
const GREEDY: usize = 64;

/// The pools, by model name.
const GATED: &str = "gated";
const OPEN: &str = "open";

/// One round: every load once.
pub(crate) struct Round {
    /// The light tenant alone with 2 concurrent requests.
    pub(crate) alone: Load,
    /// With 2, beside the greedy tenant.
    pub(crate) two: Load,
    /// With 16, beside the greedy tenant.
    pub(crate) sixteen: Load,
    /// With 16, beside the greedy tenant, without a gate.
    pub(crate) open: Load,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |name: &str, default: u64| {
        let position = arguments.iter().position(|argument| argument == name);
        position.and_then(|position| arguments.get(position + 1)?.parse().ok()).unwrap_or(default).max(1)
    };
    let (rounds, seconds) = (number("--rounds", 3), number("--seconds", 12));
    run(measure(rounds, Duration::from_secs(seconds)));
    ExitCode::SUCCESS
}

async fn measure(count: u64, time: Duration) {
    let servers = Upstream::streaming(SERVERS, SERVICE, PLACES as usize).await;
    let all: Vec<_> = servers.iter().collect();
    let pools = [
        pool(GATED, GATED, &all, &slots(PLACES)),
        pool(OPEN, OPEN, &all, "  stock: {watermark_per_backend: none}\n"),
    ];
    let gateway = Gateway::start(&config("", &pools)).await;
    let load = |model, greedy, light| load::run(&gateway, &servers, model, [greedy, light], time);
    let mut rounds = Vec::new();
    for round in 1..=count {
        // The two compared loads follow each other, in alternating order.
        let alone = load(GATED, 0, 2).await;
        let two = load(GATED, GREEDY, 2).await;
        let (sixteen, open) = if round % 2 == 0 {
            let open = load(OPEN, GREEDY, 16).await;
            (load(GATED, GREEDY, 16).await, open)
        } else {
            (load(GATED, GREEDY, 16).await, load(OPEN, GREEDY, 16).await)
        };
        println!(
            "round {round}/{count}: light's TTFT p99 {:.1} ms alone, {:.1} ms with 2 out; share {:.2} %, {:.2} % without \
             a gate; {:.2} requests/s of {:.2}",
            alone.light_p99_ms(),
            two.light_p99_ms(),
            100.0 * sixteen.light_share(),
            100.0 * open.light_share(),
            sixteen.rate(),
            open.rate(),
        );
        rounds.push(Round { alone, two, sixteen, open });
    }
    report::write(&rounds);
}
