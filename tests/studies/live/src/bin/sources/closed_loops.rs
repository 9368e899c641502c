//! Closed loops in virtual time: servers, traffic, and statistics of the served requests.

use std::time::Duration;

use penstock_engine::input::Role;
use penstock_engine::units::Decimal;
use penstock_model::{Parameters, Targets, sizing};
use penstock_model_server::Hardware;
use penstock_simulate::closed_loop::{Finished, Mix, Record, RequestKind, ServerSpec};
use serde_json::{Value, json};

/// `count` servers with the default hardware, the middle one of the model's page. Each request decodes at a different pace.
pub(crate) fn servers(count: usize) -> Vec<ServerSpec> {
    let server = ServerSpec {
        variant: "default".into(),
        hardware: Hardware::default(),
        weight: Decimal::whole(1),
        request_noise: 0.05,
        role: Role::Both,
    };
    vec![server; count]
}

/// The targets of all pools here: 50 ms between tokens, and a time to the first token that is too high to matter.
pub(crate) const TARGETS: Targets = Targets { ttft_ms: Some(10_000.0), itl_ms: Some(50.0) };

/// Requests per second of this mix that one server can serve within [`TARGETS`].
pub(crate) fn capacity(mix: &Mix) -> f64 {
    let hardware = Hardware::default();
    let parameters =
        Parameters { alpha_ms: hardware.alpha_ms, beta_ms: hardware.beta_ms, gamma_ms: hardware.gamma_ms };
    let requests_max = Some(hardware.seqs_max as f64);
    sizing::size(&parameters, &mix.mean(), &TARGETS, requests_max, 1.0).lambda_star
}

/// A mix of kinds by their shares, which add up to 1.
pub(crate) fn mix(parts: &[(f64, &'static str, f64, f64)]) -> Mix {
    let kind = |&(share, name, input, output): &(f64, &'static str, f64, f64)| {
        let kind = RequestKind { name, input, output, spread: 0.5 };
        (share, kind)
    };
    Mix { name: "mix", parts: parts.iter().map(kind).collect() }
}

/// Mean and percentiles of times, in milliseconds.
pub(crate) fn distribution(mut times: Vec<Duration>) -> Value {
    times.sort_unstable();
    let millis = |time: Duration| (time.as_secs_f64() * 1e4).round() / 10.0;
    let quantile = |part: f64| {
        let rank = (times.len() as f64 * part).ceil() as usize;
        times.get(rank.max(1) - 1).map_or(Value::Null, |time| json!(millis(*time)))
    };
    let count = u32::try_from(times.len()).unwrap_or(u32::MAX);
    let mean = times.iter().sum::<Duration>().checked_div(count).map(millis);
    json!({
        "count": times.len(),
        "mean": mean,
        "p50": quantile(0.5),
        "p99": quantile(0.99),
        "p999": quantile(0.999),
        "max": quantile(1.0),
    })
}

/// Times from the arrival to the first token, of one kind or of all.
pub(crate) fn first_tokens(record: &Record, kind: Option<&str>) -> Value {
    let of_kind = record.finished.iter().filter(|finished| kind.is_none_or(|kind| *finished.kind == *kind));
    distribution(of_kind.map(|finished| finished.first - finished.arrived).collect())
}

/// Times from the arrival to the last token.
pub(crate) fn whole_answers(record: &Record) -> Value {
    let finished = record.finished.iter();
    distribution(finished.map(|finished| finished.last - finished.arrived).collect())
}

/// Mean time between tokens over all requests, in milliseconds.
pub(crate) fn mean_itl_ms(record: &Record) -> f64 {
    let sum: f64 = record.finished.iter().map(Finished::itl_ms).sum();
    sum / record.finished.len().max(1) as f64
}

/// The part of the recorded time during which a server has at least one request, as a mean over the servers.
pub(crate) fn utilisation(record: &Record, servers: usize) -> f64 {
    let begin = record.duration - record.recorded;
    let busy: Duration = (0..servers).map(|server| busy(record, server, begin)).sum();
    busy.as_secs_f64() / record.recorded.as_secs_f64() / servers as f64
}

fn busy(record: &Record, server: usize, begin: Duration) -> Duration {
    let mut spans: Vec<(Duration, Duration)> = record
        .finished
        .iter()
        .filter(|finished| finished.server == server)
        .map(|finished| (finished.granted.max(begin), finished.last))
        .collect();
    spans.sort_unstable();
    let mut busy = Duration::ZERO;
    let mut covered = begin;
    for (from, to) in spans {
        let from = from.max(covered);
        if to > from {
            busy += to - from;
            covered = to;
        }
    }
    busy
}

/// Output tokens per second.
pub(crate) fn output_rate(record: &Record) -> f64 {
    let tokens: u64 = record.finished.iter().map(|finished| finished.output).sum();
    tokens as f64 / record.recorded.as_secs_f64()
}

/// Prompt and output tokens of the served requests of one kind, an output token as two: the pool's default weights.
pub(crate) fn weighted_tokens(record: &Record, kind: &str) -> u64 {
    let served = record.finished.iter().filter(|finished| *finished.kind == *kind);
    served.map(|finished| finished.input + 2 * finished.output).sum()
}
