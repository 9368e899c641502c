//! The results of a run: what was served within its targets, how long requests waited, and how fairly tenants were treated.

mod fairness;
mod percentiles;
mod series;
mod tenants;

use std::collections::BTreeMap;
use std::time::Duration;

pub use self::percentiles::Percentiles;
pub use self::series::Series;
pub use self::tenants::TenantResults;
use crate::closed_loop::{Finished, Planned, Record, Tenant};
use crate::goal::Goal;

/// The reason in [`Results::refused_by`] of a request that a model server refused.
pub const REFUSED_BY_SERVER: &str = "model_server";

/// The results of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// Requests that arrived: those that were served, refused and unfinished.
    pub requests: usize,
    /// Requests that were served.
    pub served: usize,
    /// Requests that were rejected or expired.
    pub refused: usize,
    /// Requests that waited or ran when the run ended.
    pub unfinished: usize,
    /// Refused requests by the reason.
    pub refused_by: BTreeMap<&'static str, usize>,
    /// From the first arrival to the end of the run.
    pub duration: Duration,
    /// The part of all requests that was served within the targets, from 0 to 1.
    pub within_targets: f64,
    /// Requests that were served within the targets, per second of the time in which requests arrive.
    pub goodput_requests_per_s: f64,
    /// Their prompt and output tokens per second.
    pub goodput_tokens_per_s: f64,
    /// From the arrival to the first token, for served requests.
    pub ttft_ms: Percentiles,
    /// From the arrival to the grant, for served requests.
    pub queue_ms: Percentiles,
    /// The part of the served requests' tokens that were served outside the targets, from 0 to 1.
    pub wasted: f64,
    /// The part of the time in which a server computed, over all servers, from 0 to 1.
    pub utilisation: f64,
    /// Jain's index of the tenants' served tokens, each over its max-min fair part of what its band was served: 1 if every
    /// tenant got its part.
    pub jain: f64,
    /// By tenant, the one that sent most tokens first.
    pub tenants: Vec<TenantResults>,
    /// The most replicas that the model asked for.
    pub replicas_desired: Option<u64>,
    /// The course of the run.
    pub series: Series,
}

impl Results {
    /// The results of these requests, the first of which arrived at `begin` or later. `weight`: a tenant's weight, above 0.
    pub(crate) fn new(
        requests: &[Planned],
        tenants: &[Tenant],
        begin: Duration,
        record: &Record,
        goal: &Goal,
        weight: impl Fn(&Tenant) -> f64,
    ) -> Self {
        let last = requests.last().map_or(Duration::ZERO, |request| request.at);
        // Rates count over the time in which requests arrive, however long the servers work afterwards.
        let seconds = last.saturating_sub(begin).as_secs_f64().max(1.0);
        let good = || record.finished.iter().filter(|finished| goal.is_met(finished));
        let good_tokens = good().map(tokens).sum::<u64>() as f64;
        let all_tokens = record.finished.iter().map(tokens).sum::<u64>() as f64;
        let counts = tenants::count(requests, tenants, record, weight);
        let (served, refused) = (record.finished.len(), record.refused.len());
        let times =
            |time: fn(&Finished) -> Duration| Percentiles::of(record.finished.iter().map(time).collect());
        Self {
            requests: requests.len(),
            served,
            refused,
            unfinished: requests.len().saturating_sub(served + refused),
            refused_by: refused_by(record),
            duration: record.duration,
            within_targets: good().count() as f64 / requests.len().max(1) as f64,
            goodput_requests_per_s: good().count() as f64 / seconds,
            goodput_tokens_per_s: good_tokens / seconds,
            ttft_ms: times(first_token),
            queue_ms: times(|finished| finished.granted - finished.arrived),
            wasted: (all_tokens - good_tokens) / all_tokens.max(1.0),
            utilisation: utilisation(record),
            jain: fairness::jain(&fairness::parts(&counts)),
            tenants: tenants::results(tenants, counts),
            replicas_desired: replicas_desired(record),
            series: Series::new(requests, record),
        }
    }
}

fn refused_by(record: &Record) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for refused in &record.refused {
        let reason = refused.outcome.map_or(REFUSED_BY_SERVER, |outcome| outcome.as_str());
        *counts.entry(reason).or_default() += 1;
    }
    counts
}

fn replicas_desired(record: &Record) -> Option<u64> {
    let desired = record.replicas_desired.iter().map(|desired| desired.replicas);
    desired.max().filter(|replicas| *replicas > 0)
}

fn utilisation(record: &Record) -> f64 {
    let busy: Duration = record.busy.iter().sum();
    let available = record.duration.as_secs_f64() * record.busy.len() as f64;
    if available > 0.0 { (busy.as_secs_f64() / available).min(1.0) } else { 0.0 }
}

/// The prompt and output tokens of a request.
const fn tokens(finished: &Finished) -> u64 {
    finished.input + finished.output
}

/// From the arrival to the first token.
fn first_token(finished: &Finished) -> Duration {
    finished.first - finished.arrived
}
