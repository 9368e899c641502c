//! The parameters that a whole gateway learns, beside the true ones: three `penstock mock-server`s of known alpha, beta and gamma, one of
//! them twice as slow and a separate variant, under clients that arrive at random times.
//!
//! `just model-live [--seconds N] [--noise X] [--seed N]`: below the servers' capacity, then at twice the capacity, then well below it;
//! then the companion restarts and shows the restored parameters.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use penstock_model::{Parameters, Targets, Traffic, sizing, slo};
use penstock_tests::gateway::config;
use penstock_tests::mock::{Hardware, Mock};
use penstock_tests::poisson_clients::{PoissonClients, RequestShape};
use penstock_tests::{Gateway, run};
use serde_json::Value;

const FAST: Hardware = Hardware { alpha: 12.0, beta: 0.1, gamma: 0.001, noise: 0.0 };
/// Mean tokens of the requests.
const TRAFFIC: Traffic = Traffic { rate: 0.0, input: 256.0, output: 64.0 };
const PRINT_INTERVAL: Duration = Duration::from_secs(5);
/// Parts of the time, and the load as a part of the capacity.
const PHASES: [(f64, f64); 3] = [(0.4, 0.6), (0.3, 2.0), (0.3, 0.3)];

fn main() -> ExitCode {
    let mut seconds = 120.0;
    let mut noise = 0.05;
    let mut seed = 1;
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().unwrap_or_default();
        let understood = match word.as_str() {
            "--seconds" => value.parse().map(|parsed| seconds = parsed).is_ok() && seconds > 0.0,
            "--noise" => value.parse().map(|parsed| noise = parsed).is_ok(),
            "--seed" => value.parse().map(|parsed| seed = parsed).is_ok(),
            _ => false,
        };
        if !understood {
            eprintln!("{word} {value}: model_live [--seconds N] [--noise X] [--seed N]");
            return ExitCode::from(2);
        }
    }
    run(measure(seconds, noise, seed));
    ExitCode::SUCCESS
}

/// A variant and its true parameters.
struct Truth {
    variant: &'static str,
    servers: f64,
    parameters: Parameters,
    n_star: f64,
    lambda_star: f64,
}

async fn measure(seconds: f64, noise: f64, seed: u64) {
    let fast = Hardware { noise, ..FAST };
    let slow = Hardware { alpha: 2.0 * fast.alpha, beta: 2.0 * fast.beta, gamma: 2.0 * fast.gamma, noise };
    let mocks =
        [Mock::start(fast, seed).await, Mock::start(fast, seed + 1).await, Mock::start(slow, seed + 2).await];
    let truths = truths([("fast", 2.0, fast), ("slow", 1.0, slow)]);
    let capacity: f64 = truths.iter().map(|truth| truth.servers * truth.lambda_star).sum();
    let store = tempfile::tempdir().expect("a temporary folder");
    let servers: Vec<String> = mocks
        .iter()
        .zip(["fast", "fast", "slow"])
        .map(|(mock, variant)| format!("{{address: '{}', variant: {variant}}}", mock.address()))
        .collect();
    let text = config(
        "",
        &[format!(
            "- name: chat\n  endpoints: {{static: [{}]}}\n  stock: {{watermark_per_backend: auto}}\n  usage: {{store: {{redb: '{}'}}}}\n",
            servers.join(", "),
            store.path().join("store.redb").display(),
        )],
    );
    let gateway = Gateway::start(&text).await;
    println!(
        "{seconds} s at {:.1} requests/s of capacity; noise {noise} an iteration; prompts of {} tokens, answers of {}",
        capacity, TRAFFIC.input, TRAFFIC.output
    );
    let shape = RequestShape { model: "chat".into(), input: 64..=448, output: 16..=112 };
    let mut clients = PoissonClients::new(shape, seed);
    let start = Instant::now();
    for (part, load) in PHASES {
        println!("\nload: {load} of the capacity, {:.1} requests/s", load * capacity);
        let end = start.elapsed().as_secs_f64() + part * seconds;
        while start.elapsed().as_secs_f64() + 0.1 < end {
            let rest = Duration::from_secs_f64((end - start.elapsed().as_secs_f64()).max(0.0));
            clients.arrive(&gateway, load * capacity, rest.min(PRINT_INTERVAL)).await;
            print_state(&gateway, start.elapsed()).await;
        }
    }
    let learned = gateway.pool("chat").await;
    table("learned", &learned, &truths);
    println!("\n{} requests: {:?}", clients.sent(), clients.finish().await);
    drop(gateway);
    let gateway = Gateway::start(&text).await;
    table("after a restart", &gateway.pool("chat").await, &truths);
}

/// The closed forms' results for the true parameters, at the targets inferred from them.
fn truths(variants: [(&'static str, f64, Hardware); 2]) -> Vec<Truth> {
    let multiplier = slo::MULTIPLIER;
    let parameters = variants.map(|(_, _, hardware)| Parameters {
        alpha_ms: hardware.alpha,
        beta_ms: hardware.beta,
        gamma_ms: hardware.gamma,
    });
    let inferred = parameters.map(|parameters| slo::inferred(&parameters, &TRAFFIC, multiplier));
    let most = |target: fn(&Targets) -> Option<f64>| inferred.iter().filter_map(target).reduce(f64::max);
    let targets =
        Targets { ttft_ms: most(|targets| targets.ttft_ms), itl_ms: most(|targets| targets.itl_ms) };
    variants
        .into_iter()
        .zip(parameters)
        .map(|((variant, servers, _), parameters)| {
            let size = sizing::size(&parameters, &TRAFFIC, &targets, Some(256.0), 1.0);
            Truth {
                variant,
                servers,
                parameters,
                n_star: size.n_star.unwrap_or_default(),
                lambda_star: size.lambda_star,
            }
        })
        .collect()
}

async fn print_state(gateway: &Gateway, elapsed: Duration) {
    let pool = gateway.pool("chat").await;
    let metrics = gateway.metrics().await;
    let bounds: Vec<String> = list(&pool["endpoints"])
        .iter()
        .map(|endpoint| format!("{}/{}", endpoint["stock"], endpoint["bound"]))
        .collect();
    print!(
        "{:>4.0} s  targets {} and {} ms, stock {}, bound {} ({}), waiting {:>3}",
        elapsed.as_secs_f64(),
        short(&pool["slo"]["ttft_ms"]),
        short(&pool["slo"]["itl_ms"]),
        pool["stock"],
        pool["upper"],
        bounds.join(" "),
        pool["waiting"],
    );
    for variant in list(&pool["model"]) {
        let name = variant["variant"].as_str().unwrap_or_default();
        let labels = [("pool", "chat"), ("variant", name)];
        let desired = metrics.samples.iter().any(|sample| {
            sample.name == "penstock_desired_replicas"
                && sample.labels.get("variant").is_some_and(|value| value == name)
        });
        print!(
            " | {name} {} {} {} {}, bias {}, n* {}, demand {}, desired {}",
            variant["state"].as_str().unwrap_or_default(),
            short(&variant["alpha"]),
            short(&variant["beta"]),
            short(&variant["gamma"]),
            short(&variant["ttft_bias"]),
            short(&variant["n_star"]),
            short(&variant["demand"]),
            if desired {
                metrics.sum("penstock_desired_replicas", &labels).to_string()
            } else {
                "-".to_owned()
            },
        );
    }
    println!();
}

fn table(title: &str, pool: &Value, truths: &[Truth]) {
    println!("\n| {title}: {} | state | alpha | beta | gamma | n* | lambda* | TTFT bias |", pool["slo"]);
    println!("|---|---|---|---|---|---|---|---|");
    for truth in truths {
        let model = list(&pool["model"]);
        let Some(variant) = model.iter().find(|variant| variant["variant"] == truth.variant) else {
            println!("| {} | not shown |", truth.variant);
            continue;
        };
        println!(
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            truth.variant,
            variant["state"].as_str().unwrap_or_default(),
            short(&variant["alpha"]),
            short(&variant["beta"]),
            short(&variant["gamma"]),
            short(&variant["n_star"]),
            short(&variant["lambda_star"]),
            short(&variant["ttft_bias"]),
        );
        println!(
            "| {}, truth | | {:.3} | {:.4} | {:.5} | {:.1} | {:.2} | |",
            truth.variant,
            truth.parameters.alpha_ms,
            truth.parameters.beta_ms,
            truth.parameters.gamma_ms,
            truth.n_star,
            truth.lambda_star,
        );
    }
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

/// Four digits, or a dash if unknown.
fn short(value: &Value) -> String {
    match value.as_f64() {
        None => "-".into(),
        Some(number) if number.abs() >= 100.0 => format!("{number:.0}"),
        Some(number) if number.abs() >= 1.0 => format!("{number:.2}"),
        Some(number) if number.abs() >= 0.01 => format!("{number:.4}"),
        Some(number) => format!("{number:.6}"),
    }
}
