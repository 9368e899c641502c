//! The totals of counters and histograms by pool and endpoint, as the history of the dashboard needs them.

use std::collections::HashMap;

use penstock_engine::Outcome;
use prometheus::core::Collector as _;
use prometheus::proto::{Histogram, LabelPair, Metric};
use prometheus::{HistogramVec, IntCounterVec};

use super::Metrics;
use super::responses::WAIT_SECONDS;

/// The buckets of times, the last one without an upper bound.
pub(crate) const BUCKETS: usize = WAIT_SECONDS.len() + 1;

/// Observations by bucket; not cumulative.
pub(crate) type Buckets = [u64; BUCKETS];

/// The totals of all pools since the start of the companion.
pub(crate) type Totals = HashMap<Box<str>, PoolTotals>;

#[derive(Clone, Debug, Default)]
pub(crate) struct PoolTotals {
    /// Decided requests by outcome.
    pub(crate) decided: [u64; Outcome::ALL.len()],
    /// The waits of granted requests.
    pub(crate) queue: Buckets,
    /// Prompt tokens.
    pub(crate) input_tokens: u64,
    pub(crate) output_tokens: u64,
    /// By address.
    pub(crate) endpoints: HashMap<Box<str>, EndpointTotals>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct EndpointTotals {
    /// Times to the first byte.
    pub(crate) ttft: Buckets,
    /// The sum of the responses' mean times between tokens, in seconds.
    pub(crate) itl_seconds: f64,
    /// Responses with a time between tokens.
    pub(crate) itl_responses: u64,
    /// Responses, whatever their status.
    pub(crate) completed: u64,
}

impl Metrics {
    /// Reads the totals of all pools. Takes time in proportion to the series.
    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals::new();
        each(&self.requests.decided, |pool, labels, metric| {
            let outcome = label(labels, "outcome");
            if let Some(outcome) = Outcome::from_name(outcome) {
                entry(&mut totals, pool).decided[outcome as usize] += count(metric);
            }
        });
        each_time(&self.responses.queue_latency, |pool, labels, times| {
            let granted = Outcome::ALL.into_iter().filter(|outcome| outcome.is_grant());
            let outcome = label(labels, "outcome");
            if granted.map(Outcome::as_str).any(|granted| granted == outcome) {
                add_buckets(&mut entry(&mut totals, pool).queue, times);
            }
        });
        each(&self.responses.input_tokens, |pool, _, metric| {
            entry(&mut totals, pool).input_tokens += count(metric);
        });
        each(&self.responses.output_tokens, |pool, _, metric| {
            entry(&mut totals, pool).output_tokens += count(metric);
        });
        each_time(&self.responses.ttft, |pool, labels, times| {
            add_buckets(&mut endpoint(&mut totals, pool, labels).ttft, times);
        });
        each_time(&self.responses.itl, |pool, labels, times| {
            let endpoint = endpoint(&mut totals, pool, labels);
            endpoint.itl_seconds += times.get_sample_sum();
            endpoint.itl_responses += times.get_sample_count();
        });
        each_time(&self.responses.duration, |pool, labels, times| {
            endpoint(&mut totals, pool, labels).completed += times.get_sample_count();
        });
        totals
    }
}

fn each(family: &IntCounterVec, mut visit: impl FnMut(&str, &[LabelPair], &Metric)) {
    for collected in family.collect() {
        for metric in collected.get_metric() {
            let labels = metric.get_label();
            visit(label(labels, "pool"), labels, metric);
        }
    }
}

fn each_time(family: &HistogramVec, mut visit: impl FnMut(&str, &[LabelPair], &Histogram)) {
    for collected in family.collect() {
        for metric in collected.get_metric() {
            let labels = metric.get_label();
            visit(label(labels, "pool"), labels, metric.get_histogram());
        }
    }
}

/// The value of a label; empty if there is none.
fn label<'a>(labels: &'a [LabelPair], name: &str) -> &'a str {
    let found = labels.iter().find(|label| label.name() == name);
    found.map_or("", |label| label.value())
}

fn entry<'a>(totals: &'a mut Totals, pool: &str) -> &'a mut PoolTotals {
    if !totals.contains_key(pool) {
        totals.insert(pool.into(), PoolTotals::default());
    }
    totals.get_mut(pool).expect("invariant: inserted above")
}

fn endpoint<'a>(totals: &'a mut Totals, pool: &str, labels: &[LabelPair]) -> &'a mut EndpointTotals {
    let endpoints = &mut entry(totals, pool).endpoints;
    endpoints.entry(label(labels, "endpoint").into()).or_default()
}

/// The value of a counter.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a counter of whole numbers, which start at 0"
)]
fn count(metric: &Metric) -> u64 {
    metric.get_counter().get_value() as u64
}

/// Adds a histogram, whose buckets are cumulative.
fn add_buckets(buckets: &mut Buckets, times: &Histogram) {
    let cumulative = times.get_bucket().iter().map(|bucket| bucket.cumulative_count());
    let mut below = 0;
    for (bucket, upto) in buckets.iter_mut().zip(cumulative.chain([times.get_sample_count()])) {
        *bucket += upto.saturating_sub(below);
        below = upto;
    }
}
