//! The results of a run: what was served within its targets, how long requests waited, and how fairly tenants were treated.

mod fairness;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use penstock_model::Targets;

use crate::closed_loop::{Finished, Planned, Record};

/// Half and 99 in a hundred of the values are at most this, in milliseconds; `None`: there are no values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Percentiles {
    /// The median.
    pub p50: Option<f64>,
    /// The 99th percentile.
    pub p99: Option<f64>,
}

/// The results of one tenant.
#[derive(Clone, Debug, PartialEq)]
pub struct TenantResults {
    /// Its name.
    pub name: Arc<str>,
    /// Requests that were served.
    pub served: usize,
    /// Requests that weren't.
    pub refused: usize,
    /// Its part of all served tokens, from 0 to 1.
    pub share: f64,
    /// Its weight.
    pub weight: f64,
    /// From the arrival to the first token, for served requests.
    pub ttft_ms: Percentiles,
}

/// The results of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// Requests that arrived.
    pub requests: usize,
    /// Requests that were served.
    pub served: usize,
    /// Requests that weren't.
    pub refused: usize,
    /// Requests that were served within the targets, per second.
    pub goodput_requests_per_s: f64,
    /// Their prompt and output tokens per second.
    pub goodput_tokens_per_s: f64,
    /// From the arrival to the first token, for served requests.
    pub ttft_ms: Percentiles,
    /// From the arrival to the grant, for served requests.
    pub queue_ms: Percentiles,
    /// The part of the time in which a server computed, over all servers, from 0 to 1.
    pub utilisation: f64,
    /// Jain's index of the tenants' served tokens, each over its max-min fair part: 1 if every tenant got its part.
    pub jain: f64,
    /// By tenant, in the order of their names.
    pub tenants: Vec<TenantResults>,
    /// The most replicas that the model asked for, by the end of the run's windows.
    pub replicas_wanted: Option<u64>,
}

impl Results {
    /// The results of a run of these requests. `weight`: a tenant's weight, above 0.
    #[must_use]
    pub fn new(
        requests: &[Planned],
        record: &Record,
        targets: &Targets,
        weight: impl Fn(&str) -> f64,
    ) -> Self {
        let last = requests.last().map_or(Duration::ZERO, |request| request.at);
        // Rates count over the time in which requests arrive, however long the servers work afterwards.
        let seconds = last.as_secs_f64().max(1.0);
        let good = || {
            record
                .finished
                .iter()
                .filter(|finished| is_within(finished, targets))
        };
        let tenants = tenants(requests, record, weight);
        let busy: Duration = record.busy.iter().sum();
        let available = record.duration.as_secs_f64() * record.busy.len() as f64;
        let wanted = record.samples.iter().map(|sample| {
            let desired = sample
                .status
                .variants
                .iter()
                .filter_map(|variant| variant.desired);
            desired.map(|desired| desired.replicas).sum::<u64>()
        });
        Self {
            requests: requests.len(),
            served: record.finished.len(),
            refused: record.refused.len(),
            goodput_requests_per_s: good().count() as f64 / seconds,
            goodput_tokens_per_s: good().map(tokens).sum::<u64>() as f64 / seconds,
            ttft_ms: percentiles(record.finished.iter().map(first_token)),
            queue_ms: percentiles(
                record
                    .finished
                    .iter()
                    .map(|finished| finished.granted - finished.arrived),
            ),
            utilisation: if available > 0.0 {
                (busy.as_secs_f64() / available).min(1.0)
            } else {
                0.0
            },
            jain: fairness::jain(&fairness::parts(requests, record, &tenants)),
            tenants,
            replicas_wanted: wanted.max().filter(|replicas| *replicas > 0),
        }
    }
}

/// The prompt and output tokens of a request.
fn tokens(finished: &Finished) -> u64 {
    finished.input + finished.output
}

/// From the arrival to the first token.
fn first_token(finished: &Finished) -> Duration {
    finished.first - finished.arrived
}

/// Whether the request met its targets, as its client sees them. An answer of one token has no time between tokens.
fn is_within(finished: &Finished, targets: &Targets) -> bool {
    let ttft_ms = first_token(finished).as_secs_f64() * 1e3;
    let is_first_in_time = targets.ttft_ms.is_none_or(|target| ttft_ms <= target);
    let is_fast = targets
        .itl_ms
        .is_none_or(|target| finished.output < 2 || finished.itl_ms() <= target);
    is_first_in_time && is_fast
}

fn tenants(requests: &[Planned], record: &Record, weight: impl Fn(&str) -> f64) -> Vec<TenantResults> {
    let mut times: BTreeMap<&Arc<str>, Vec<Duration>> = BTreeMap::new();
    let mut served_tokens: BTreeMap<&Arc<str>, u64> = BTreeMap::new();
    let mut refused: BTreeMap<&Arc<str>, usize> = BTreeMap::new();
    for request in requests {
        times.entry(&request.tenant).or_default();
    }
    for finished in &record.finished {
        times
            .entry(&finished.kind)
            .or_default()
            .push(first_token(finished));
        *served_tokens.entry(&finished.kind).or_default() += tokens(finished);
    }
    for request in &record.refused {
        *refused.entry(&request.kind).or_default() += 1;
    }
    let all: u64 = served_tokens.values().sum();
    let results = times.into_iter().map(|(name, times)| TenantResults {
        name: name.clone(),
        served: times.len(),
        refused: refused.get(name).copied().unwrap_or_default(),
        share: served_tokens.get(name).copied().unwrap_or_default() as f64 / all.max(1) as f64,
        weight: weight(name),
        ttft_ms: percentiles(times.into_iter()),
    });
    results.collect()
}

/// The nearest-rank percentiles.
fn percentiles(times: impl Iterator<Item = Duration>) -> Percentiles {
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    let at = |part: f64| {
        let rank = (part * times.len() as f64).ceil() as usize;
        let time = times.get(rank.saturating_sub(1))?;
        Some(time.as_secs_f64() * 1e3)
    };
    Percentiles {
        p50: at(0.5),
        p99: at(0.99),
    }
}
