//! When a gateway asks for more servers: steady overload from a cold start, behind a real Envoy, once with a fixed watermark and
//! once with the gate `auto`.
//!
//! `just bench scale [--seconds N]`: 120 seconds for each gate by default. Two simulated model servers of known parameters get twice the
//! requests that they can serve within the inferred targets. Every half second, the companion's page of metrics is read. The promise is
//! that `penstock_desired_replicas` exceeds `penstock_current_replicas` within two minutes.

use std::process::ExitCode;
use std::time::Duration;

use penstock_model::{Parameters, Traffic, sizing, slo};
use penstock_studies::figures::{keep, machine, put};
use penstock_tests::binary::workspace;
use penstock_tests::gateway::{config, slots};
use penstock_tests::mock::{Hardware, Mock};
use penstock_tests::poisson_clients::{PoissonClients, RequestShape};
use penstock_tests::{Gateway, run};
use serde_json::{Value, json};
use tokio::time::Instant;

const HARDWARE: Hardware = Hardware { alpha: 40.0, beta: 0.4, gamma: 0.004, noise: 0.05 };
/// Mean tokens of the requests.
const TRAFFIC: Traffic = Traffic { rate: 0.0, input: 256.0, output: 64.0 };
const SERVERS: u32 = 2;
/// The load as a multiple of the servers' capacity within the inferred targets.
const OVERLOAD: f64 = 2.0;
/// Requests at a server with the fixed watermark.
const PLACES: u32 = 8;
const STEP: Duration = Duration::from_millis(500);
/// Seconds of a complete run; a shorter run is printed and does not change the page.
const SECONDS: f64 = 120.0;

/// A number of replicas that the gateway asked for.
#[derive(Clone, Debug)]
struct Decision {
    after_s: f64,
    replicas: f64,
    source: String,
}

/// The observations with one gate.
#[derive(Debug)]
struct Run {
    gate: &'static str,
    /// The first number, whatever it was.
    first: Option<Decision>,
    /// The first number above the ready servers.
    more: Option<Decision>,
    /// The number at the end.
    last: Option<Decision>,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let seconds: Option<f64> = match words.as_slice() {
        [] => Some(SECONDS),
        ["--seconds", seconds] => seconds.parse().ok().filter(|seconds| *seconds > 0.0),
        _ => None,
    };
    let Some(seconds) = seconds else {
        eprintln!("just bench scale [--seconds N]: N is a number above 0");
        return ExitCode::from(2);
    };
    run(measure(seconds))
}

async fn measure(seconds: f64) -> ExitCode {
    let capacity = capacity();
    let rate = OVERLOAD * capacity;
    println!("{SERVERS} servers take {capacity:.1} requests/s within the targets, and get {rate:.1}");
    let gates =
        [("8 per server", slots(PLACES)), ("auto", "  stock: {watermark_per_backend: auto}\n".to_owned())];
    let mut runs = Vec::new();
    for (gate, keys) in gates {
        let run = overload(gate, &keys, rate, seconds).await;
        println!("{run:?}");
        runs.push(run);
    }
    if seconds >= SECONDS {
        write(&runs, capacity, rate);
    } else {
        println!("A short run: docs/bench stays as it is.");
    }
    if runs.iter().all(|run| run.more.is_some()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Requests per second that all servers take within the inferred targets, by their true parameters.
fn capacity() -> f64 {
    let parameters =
        Parameters { alpha_ms: HARDWARE.alpha, beta_ms: HARDWARE.beta, gamma_ms: HARDWARE.gamma };
    let targets = slo::inferred(&parameters, &TRAFFIC, slo::MULTIPLIER);
    let size = sizing::size(&parameters, &TRAFFIC, &targets, Some(256.0), 1.0);
    f64::from(SERVERS) * size.lambda_star
}

/// A new gateway with new servers, overloaded for some seconds.
async fn overload(gate: &'static str, keys: &str, rate: f64, seconds: f64) -> Run {
    let mut mocks = Vec::new();
    for seed in 1..=SERVERS {
        mocks.push(Mock::start(HARDWARE, seed.into()).await);
    }
    let servers: Vec<String> = mocks.iter().map(|mock| format!("'{}'", mock.address())).collect();
    let pool = format!("- name: chat\n  endpoints: {{static: [{}]}}\n{keys}", servers.join(", "));
    let gateway = Gateway::start(&config("", &[pool])).await;
    let shape = RequestShape { model: "chat".into(), input: 64..=448, output: 16..=112 };
    let mut clients = PoissonClients::new(shape, 1);
    let begin = Instant::now();
    let mut run = Run { gate, first: None, more: None, last: None };
    while begin.elapsed().as_secs_f64() < seconds {
        clients.arrive(&gateway, rate, STEP).await;
        let page = gateway.metrics().await;
        let sample = page.samples.iter().find(|sample| sample.name == "penstock_desired_replicas");
        let Some(sample) = sample else {
            continue;
        };
        let decision = Decision {
            after_s: begin.elapsed().as_secs_f64(),
            replicas: sample.value,
            source: sample.labels["source"].clone(),
        };
        if sample.value > page.sum("penstock_current_replicas", &[("pool", "chat")]) {
            run.more.get_or_insert_with(|| decision.clone());
        }
        run.first.get_or_insert_with(|| decision.clone());
        run.last = Some(decision);
    }
    // Before the gateway ends, all requests are answered.
    println!("{gate}: {:?}", clients.finish().await);
    run
}

/// Writes the result below docs/bench/.
fn write(runs: &[Run], capacity: f64, rate: f64) {
    let needed = f64::from(SERVERS) * rate / capacity;
    let text = |decision: &Option<Decision>| match decision {
        Some(Decision { after_s, replicas, source }) => {
            format!("{replicas} by `{source}` after {after_s:.0} s")
        }
        None => "none".to_owned(),
    };
    let rows: String = runs
        .iter()
        .map(|run| {
            format!("| {} | {} | {} | {} |\n", run.gate, text(&run.first), text(&run.more), text(&run.last))
        })
        .collect();
    let page = format!(
        "{}. {SERVERS} servers that take {capacity:.1} requests/s within the inferred targets get {rate:.1} from a cold start; by their true \
         parameters, {:.0} servers are needed.\n\n\
         | gate | first number | first above the ready servers | at the end |\n|---|---|---|---|\n{rows}",
        machine(),
        needed.ceil()
    );
    let folder = workspace().join("docs/bench");
    put(&folder.join("README.md"), "scale", &page);
    let figures = json!({
        "machine": machine(),
        "servers": SERVERS,
        "capacity_per_s": capacity,
        "rate_per_s": rate,
        "needed": needed.ceil(),
        "runs": runs.iter().map(figures).collect::<Vec<_>>(),
    });
    keep(&folder.join("results.json"), "scale", figures);
}

fn figures(run: &Run) -> Value {
    let decision = |decision: &Option<Decision>| {
        decision.as_ref().map(|decision| {
            let after_s = (decision.after_s * 10.0).round() / 10.0;
            json!({"after_s": after_s, "replicas": decision.replicas, "source": decision.source})
        })
    };
    json!({
        "gate": run.gate,
        "first": decision(&run.first),
        "above_ready": decision(&run.more),
        "last": decision(&run.last),
    })
}
