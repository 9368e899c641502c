//! The autoscaler examples of docs/model.md, tried: their queries are answered by a real Prometheus that scrapes an overloaded gateway.
//!
//! `just autoscaling`. The examples are read from the page. Each query must have one sample, with the number of replicas that the
//! companion's own page of metrics shows.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use penstock_tests::binary::workspace;
use penstock_tests::gateway::{config, slots};
use penstock_tests::metrics::Metrics;
use penstock_tests::mock::{Hardware, Mock};
use penstock_tests::poisson_clients::{PoissonClients, RequestShape};
use penstock_tests::{Gateway, Prometheus, prometheus, run};
use serde_json::Value;
use tokio::time::Instant;

const PAGE: &str = "docs/model.md";
/// The pool and the variant that the page's examples name.
const POOL: &str = "chat";
const VARIANT: &str = "h100";
const HARDWARE: Hardware = Hardware { alpha: 20.0, beta: 0.1, gamma: 0.001, noise: 0.05 };
const SERVERS: u64 = 2;
const PLACES: u32 = 4;
/// Requests per second: about twice what the servers' places can take.
const RATE: f64 = 20.0;
/// The load comes in steps of this length, and the queries are tried after each.
const STEP: Duration = Duration::from_secs(1);
/// How long a query may have no right answer. The first decision comes after one or two windows of 10 s.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// The queries of one example.
#[derive(Debug)]
struct Example {
    name: &'static str,
    /// A selector of series that must exist.
    selector: Option<String>,
    query: String,
}

fn main() -> ExitCode {
    let found = prometheus::binary().and_then(|binary| Ok((binary, examples()?)));
    let (binary, examples) = match found {
        Ok(found) => found,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::FAILURE;
        }
    };
    match run(try_all(binary, &examples)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// The examples on the page.
fn examples() -> Result<Vec<Example>, String> {
    let text = std::fs::read_to_string(workspace().join(PAGE)).map_err(|error| format!("{PAGE}: {error}"))?;
    let blocks: Vec<Value> = (text.split("```yaml\n").skip(1))
        .filter_map(|rest| rest.split_once("```"))
        .filter_map(|(block, _)| serde_saphyr::from_str(block).ok())
        .collect();
    let find = |what: &str, is_it: &dyn Fn(&Value) -> bool| {
        let block = blocks.iter().find(|block| is_it(block)).cloned();
        block.ok_or_else(|| format!("{PAGE} has no example of {what}"))
    };
    let adapter = find("prometheus-adapter", &|block| block["externalRules"].is_array())?;
    let hpa = find("an HPA", &|block| block["kind"] == "HorizontalPodAutoscaler")?;
    let keda = blocks.iter().filter(|block| block["kind"] == "ScaledObject");
    let keda: Vec<Value> = keda.cloned().collect();
    let text = |value: &Value, what: &str| {
        let text = value.as_str().map(str::to_owned);
        text.ok_or_else(|| format!("{PAGE}: the example has no {what}"))
    };
    let rule = &adapter["externalRules"][0];
    let selector = text(&rule["seriesQuery"], "seriesQuery")?;
    let metric = &hpa["spec"]["metrics"][0]["external"]["metric"];
    let labels = metric["selector"]["matchLabels"].as_object();
    let labels = labels.ok_or_else(|| format!("{PAGE}: the HPA has no matchLabels"))?;
    let matchers: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let query = text(&rule["metricsQuery"], "metricsQuery")?;
    let query = query.replace("<<.Series>>", &text(&metric["name"], "metric's name")?);
    let mut examples = vec![Example {
        name: "HPA, by prometheus-adapter",
        selector: Some(selector),
        query: query.replace("<<.LabelMatchers>>", &matchers.join(",")),
    }];
    let [usual, from_zero] = &*keda else {
        return Err(format!("{PAGE} has {} examples of KEDA instead of two", keda.len()));
    };
    for (name, object) in [("KEDA", usual), ("KEDA, from zero", from_zero)] {
        let trigger = &object["spec"]["triggers"][0]["metadata"];
        examples.push(Example { name, selector: None, query: text(&trigger["query"], "query")? });
    }
    Ok(examples)
}

async fn try_all(binary: PathBuf, examples: &[Example]) -> Result<(), String> {
    let mut mocks = Vec::new();
    for seed in 1..=SERVERS {
        mocks.push(Mock::start(HARDWARE, seed).await);
    }
    let servers: Vec<String> =
        mocks.iter().map(|mock| format!("{{address: '{}', variant: {VARIANT}}}", mock.address())).collect();
    let pool =
        format!("- name: {POOL}\n  endpoints: {{static: [{}]}}\n{}", servers.join(", "), slots(PLACES));
    let gateway = Gateway::start(&config("", &[pool])).await;
    let target = gateway.companion().trim_start_matches("http://");
    let prometheus = Prometheus::scraping(binary, target).await;
    let shape = RequestShape { model: POOL.into(), input: 64..=448, output: 16..=48 };
    let mut clients = PoissonClients::new(shape, 1);
    for example in examples {
        let begin = Instant::now();
        loop {
            clients.arrive(&gateway, RATE, STEP).await;
            match answered(&gateway, &prometheus, example).await {
                Ok(replicas) => {
                    println!("{}: {} -> {replicas}", example.name, example.query);
                    break;
                }
                Err(why) if begin.elapsed() > WAIT_MAX => {
                    return Err(format!("{}: {}: {why}", example.name, example.query));
                }
                Err(_) => {}
            }
        }
    }
    // Before the gateway ends, all requests are answered.
    clients.finish().await;
    Ok(())
}

/// The number of replicas by which the autoscaler of this example scales.
async fn answered(gateway: &Gateway, prometheus: &Prometheus, example: &Example) -> Result<f64, String> {
    if let Some(selector) = &example.selector
        && prometheus.series(selector).await?.is_empty()
    {
        return Err(format!("no series matches {selector}"));
    }
    let before = desired(&gateway.metrics().await);
    let samples = prometheus.query(&example.query).await?;
    let after = desired(&gateway.metrics().await);
    let [sample] = samples.as_slice() else {
        return Err(format!("{} samples: {samples:?}", samples.len()));
    };
    let value = sample["value"][1].as_str().and_then(|text| text.parse().ok());
    let value: f64 = value.ok_or_else(|| sample.to_string())?;
    let current = gateway.metrics().await;
    let current = current.sum("penstock_current_replicas", &[("pool", POOL), ("variant", VARIANT)]);
    if before != after || before != Some(value) {
        return Err(format!("{value}, but /metrics has {before:?}, then {after:?}"));
    }
    if value <= current {
        return Err(format!("{value} replicas, though {current} are overloaded"));
    }
    Ok(value)
}

/// The replicas that the page of metrics shows; `None` before the first decision.
fn desired(page: &Metrics) -> Option<f64> {
    let name = "penstock_desired_replicas";
    let labels = [("pool", POOL), ("variant", VARIANT)];
    page.has(name).then(|| page.sum(name, &labels))
}
