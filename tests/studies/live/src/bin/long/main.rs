//! Stability of a gateway under long load: below the servers' capacity, then at twice the capacity.
//! `just bench long [--minutes N]`: N minutes of each load, 10 by default.
//!
//! Three simulated model servers with eight places each, clients that arrive at random times, and a whole gateway between them. The servers'
//! capacity is measured first. Every 30 s a sample records the resident memory of Envoy and companion, the stock and the waiting requests.
//! At the end, when every request has been answered, no request may wait, and both the companion's stock and the servers' running requests
//! must be zero.

mod report;

use std::process::ExitCode;
use std::time::Duration;

use penstock_tests::gateway::{config, slots};
use penstock_tests::metrics::Metrics;
use penstock_tests::mock::{Hardware, Mock};
use penstock_tests::pages::Pages;
use penstock_tests::poisson_clients::{PoissonClients, RequestShape};
use penstock_tests::process::{raise_open_files, resident_bytes};
use penstock_tests::{Gateway, run};
use tokio::time::Instant;

const SERVERS: u64 = 3;
const PLACES: u32 = 8;
const HARDWARE: Hardware = Hardware { alpha: 6.0, beta: 0.02, gamma: 0.0005, noise: 0.05 };
/// The loads, as parts of the servers' capacity.
pub(crate) const LOADS: [f64; 2] = [0.8, 2.0];
const SAMPLE_INTERVAL: Duration = Duration::from_secs(30);
/// Duration of the capacity measurement, after a warm-up of the same length that fills the queue.
const MEASURED: Duration = Duration::from_secs(10);
/// Requests per second of the capacity measurement: more than the servers can serve.
const TOO_MANY: f64 = 400.0;
/// Time limit for answering the last waiting requests.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// One sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Time since the start of the first load.
    pub(crate) after: Duration,
    pub(crate) load: f64,
    pub(crate) envoy_bytes: u64,
    pub(crate) companion_bytes: u64,
    pub(crate) stock: u64,
    pub(crate) waiting: u64,
    /// Client requests so far.
    pub(crate) sent: u64,
}

/// The state after all requests have been answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    pub(crate) stock: u64,
    pub(crate) waiting: u64,
    /// Requests that run at the servers, as the servers report.
    pub(crate) at_servers: u64,
}

impl Rest {
    fn is_nothing(self) -> bool {
        self.stock == 0 && self.waiting == 0 && self.at_servers == 0
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    let minutes: Option<f64> = match words.as_slice() {
        [] => Some(10.0),
        ["--minutes", minutes] => minutes.parse().ok().filter(|minutes| *minutes > 0.0),
        _ => None,
    };
    let Some(minutes) = minutes else {
        eprintln!("just bench long [--minutes N]: N is a number above 0");
        return ExitCode::from(2);
    };
    raise_open_files();
    run(measure(minutes))
}

async fn measure(minutes: f64) -> ExitCode {
    let mut mocks = Vec::new();
    for seed in 1..=SERVERS {
        mocks.push(Mock::start(HARDWARE, seed).await);
    }
    let servers: Vec<_> = mocks.iter().map(|mock| format!("'{}'", mock.address())).collect();
    let pool = format!("- name: chat\n  endpoints: {{static: [{}]}}\n{}", servers.join(", "), slots(PLACES));
    let gateway = Gateway::start(&config("", &[pool])).await;
    let shape = RequestShape { model: "chat".into(), input: 50..=450, output: 8..=24 };
    let mut clients = PoissonClients::new(shape, 1);
    clients.arrive(&gateway, TOO_MANY, MEASURED).await;
    let before = admitted(&gateway).await;
    let since = Instant::now();
    clients.arrive(&gateway, TOO_MANY, MEASURED).await;
    let capacity = (admitted(&gateway).await - before) / since.elapsed().as_secs_f64();
    println!("the servers can do {capacity:.1} requests/s");

    // `envoy` alone occurs in both command lines, because the companion writes files for Envoy.
    let envoy = gateway.child("--disable-hot-restart").await;
    let companion = gateway.child("serve").await;
    let begin = Instant::now();
    let phase = Duration::from_secs_f64(60.0 * minutes);
    let mut samples = Vec::new();
    for (load, end) in LOADS.iter().zip([phase, 2 * phase]) {
        while let Some(left) = end.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) {
            clients.arrive(&gateway, load * capacity, left.min(SAMPLE_INTERVAL)).await;
            let pool = gateway.pool("chat").await;
            let sample = Sample {
                after: begin.elapsed(),
                load: *load,
                envoy_bytes: resident_bytes(envoy).expect("it runs"),
                companion_bytes: resident_bytes(companion).expect("it runs"),
                stock: pool["stock"].as_u64().expect("a number"),
                waiting: pool["waiting"].as_u64().expect("a number"),
                sent: clients.sent(),
            };
            println!("{}", report::line(&sample));
            samples.push(sample);
        }
    }
    let ends = clients.finish().await;
    let rest = rest(&gateway, &mocks).await;
    report::write(minutes, capacity, &samples, &ends, rest);
    if rest.is_nothing() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The number of admitted requests so far.
async fn admitted(gateway: &Gateway) -> f64 {
    let page = gateway.metrics().await;
    let count = |outcome| page.sum("penstock_requests_total", &[("outcome", outcome)]);
    count("bypassed") + count("leased") + count("dispatched")
}

/// Waits until nothing is left, for a limited time, and returns the remaining state.
async fn rest(gateway: &Gateway, mocks: &[Mock]) -> Rest {
    let begin = Instant::now();
    loop {
        let pool = gateway.pool("chat").await;
        let number = |key: &str| pool[key].as_u64().expect("a number");
        let mut at_servers = 0.0;
        for mock in mocks {
            let pages = Pages::at(format!("http://{}", mock.address()));
            let page: Metrics = pages.metrics().await;
            at_servers +=
                page.sum("vllm:num_requests_running", &[]) + page.sum("vllm:num_requests_waiting", &[]);
        }
        let rest = Rest { stock: number("stock"), waiting: number("waiting"), at_servers: at_servers as u64 };
        if rest.is_nothing() || begin.elapsed() > WAIT_MAX {
            return rest;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
