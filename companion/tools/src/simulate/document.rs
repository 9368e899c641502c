//! The JSON document of a simulation.

use std::collections::BTreeMap;

use penstock_simulate::goal::{Goal, SLACK};
use penstock_simulate::results::{Percentiles, Results, Series, TenantResults};
use serde::Serialize;

use super::outcome::{Outcome, Source};

#[derive(Serialize)]
struct Document<'a> {
    input: InputOf,
    runs: Vec<RunOf<'a>>,
    enough: Vec<Enough<'a>>,
}

#[derive(Serialize)]
struct InputOf {
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scenario: Option<String>,
    requests: usize,
    unanswered: u64,
    arrivals_s: f64,
    scale: f64,
    seed: u64,
    server: ServerOf,
    targets: TargetsOf,
}

#[derive(Serialize)]
struct ServerOf {
    alpha_ms: f64,
    beta_ms: f64,
    gamma_ms: f64,
    kv_tokens: u64,
}

/// Targets that are the same for all requests, or the multiple of an iteration from which they follow.
#[derive(Serialize)]
struct TargetsOf {
    source: &'static str,
    ttft_ms: Option<f64>,
    itl_ms: Option<f64>,
    multiplier: Option<f64>,
    slack: Option<f64>,
}

#[derive(Serialize)]
struct RunOf<'a> {
    policy: &'a str,
    servers: usize,
    requests: usize,
    served: usize,
    refused: usize,
    unfinished: usize,
    refused_by: &'a BTreeMap<&'static str, usize>,
    duration_s: f64,
    within_targets: f64,
    goodput_requests_per_s: f64,
    goodput_tokens_per_s: f64,
    ttft_ms: PercentilesOf,
    queue_ms: PercentilesOf,
    utilisation: f64,
    jain: f64,
    desired_replicas: Option<u64>,
    tenants: Vec<TenantOf<'a>>,
    series: SeriesOf<'a>,
}

#[derive(Serialize)]
struct PercentilesOf {
    p50: Option<f64>,
    p99: Option<f64>,
}

#[derive(Serialize)]
struct TenantOf<'a> {
    name: &'a str,
    served: usize,
    refused: usize,
    share: f64,
    weight: f64,
    ttft_ms: PercentilesOf,
}

#[derive(Serialize)]
struct SeriesOf<'a> {
    part_s: f64,
    arrived: &'a [usize],
    waiting: &'a [usize],
    running: &'a [usize],
    ttft_p99_ms: Vec<Option<f64>>,
}

#[derive(Serialize)]
struct Enough<'a> {
    policy: &'a str,
    servers: Option<usize>,
}

/// The whole document, with a line break at its end.
pub(super) fn json(outcome: &Outcome) -> String {
    let document = Document {
        input: input(outcome),
        runs: outcome.runs().map(|(policy, run)| one(policy, run.servers, &run.results)).collect(),
        enough: outcome
            .policies
            .iter()
            .map(|policy| Enough { policy: &policy.name, servers: policy.enough().map(|run| run.servers) })
            .collect(),
    };
    let text = serde_json::to_string_pretty(&document);
    text.expect("invariant: numbers, strings and lists are JSON") + "\n"
}

fn input(outcome: &Outcome) -> InputOf {
    let (trace, scenario) = match &outcome.source {
        Source::Trace(path) => (Some(path.clone()), None),
        Source::Scenario(_) => (None, Some(outcome.source.name())),
    };
    let (ttft_ms, itl_ms, multiplier) = match outcome.goal {
        Goal::Targets(targets) => (targets.ttft_ms, targets.itl_ms, None),
        Goal::Multiple { multiplier, .. } => (None, None, Some(multiplier)),
    };
    let hardware = &outcome.hardware;
    InputOf {
        trace,
        scenario,
        requests: outcome.requests,
        unanswered: outcome.unanswered,
        arrivals_s: rounded(outcome.arrivals.as_secs_f64()),
        scale: outcome.scale,
        seed: outcome.seed,
        server: ServerOf {
            alpha_ms: hardware.alpha_ms,
            beta_ms: hardware.beta_ms,
            gamma_ms: hardware.gamma_ms,
            kv_tokens: hardware.kv_tokens,
        },
        targets: TargetsOf {
            source: outcome.goal_source.as_str(),
            ttft_ms,
            itl_ms,
            multiplier,
            slack: multiplier.map(|_| SLACK),
        },
    }
}

fn one<'a>(policy: &'a str, servers: usize, results: &'a Results) -> RunOf<'a> {
    RunOf {
        policy,
        servers,
        requests: results.requests,
        served: results.served,
        refused: results.refused,
        unfinished: results.unfinished,
        refused_by: &results.refused_by,
        duration_s: rounded(results.duration.as_secs_f64()),
        within_targets: fine(results.within_targets),
        goodput_requests_per_s: rounded(results.goodput_requests_per_s),
        goodput_tokens_per_s: rounded(results.goodput_tokens_per_s),
        ttft_ms: percentiles(results.ttft_ms),
        queue_ms: percentiles(results.queue_ms),
        utilisation: fine(results.utilisation),
        jain: fine(results.jain),
        desired_replicas: results.replicas_desired,
        tenants: results.tenants.iter().map(tenant).collect(),
        series: series(&results.series),
    }
}

fn tenant(tenant: &TenantResults) -> TenantOf<'_> {
    TenantOf {
        name: &tenant.name,
        served: tenant.served,
        refused: tenant.refused,
        share: fine(tenant.share),
        weight: tenant.weight,
        ttft_ms: percentiles(tenant.ttft_ms),
    }
}

fn series(series: &Series) -> SeriesOf<'_> {
    SeriesOf {
        part_s: rounded(series.part.as_secs_f64()),
        arrived: &series.arrived,
        waiting: &series.waiting,
        running: &series.running,
        ttft_p99_ms: series.ttft_p99_ms.iter().map(|ms| ms.map(rounded)).collect(),
    }
}

fn percentiles(percentiles: Percentiles) -> PercentilesOf {
    PercentilesOf { p50: percentiles.p50.map(rounded), p99: percentiles.p99.map(rounded) }
}

/// To three decimals.
fn rounded(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

/// To six decimals, for parts of 1.
fn fine(number: f64) -> f64 {
    (number * 1e6).round() / 1e6
}
