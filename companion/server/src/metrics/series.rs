//! Handles of the metrics of one pool, model and target model, so that counting takes no lock and, once a series exists,
//! allocates nothing.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use penstock_control::Door;
use penstock_engine::input::Band;
use penstock_engine::{Instant, Outcome};
use prometheus::core::{MetricVec, MetricVecBuilder};
use prometheus::{Histogram, IntCounter};

use super::Metrics;

/// Classes of an HTTP status; the first means no response.
const CODE_CLASSES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// The metrics of one pool, model and target model.
#[derive(Debug)]
pub(crate) struct Series {
    metrics: Arc<Metrics>,
    pub(super) pool: Arc<str>,
    pub(super) model: Box<str>,
    pub(super) target: Box<str>,
    /// When the series were last used.
    pub(super) last_used: Instant,
    /// A server has answered one of its requests with success.
    pub(super) was_served: bool,
    /// By door.
    arrivals: [Lazy<IntCounter>; 2],
    bypass: Lazy<IntCounter>,
    input_tokens: Lazy<IntCounter>,
    output_tokens: Lazy<IntCounter>,
    decided: [[Option<Decided>; 3]; Outcome::ALL.len()],
    pub(super) endpoints: HashMap<Box<str>, EndpointSeries>,
}

/// The metrics of one outcome and band.
#[derive(Debug)]
struct Decided {
    requests: IntCounter,
    latency: Histogram,
}

/// The metrics of one endpoint.
#[derive(Debug)]
pub(super) struct EndpointSeries {
    /// When a request last ended there.
    pub(super) last_used: Instant,
    responses: [Lazy<IntCounter>; CODE_CLASSES.len()],
    duration: Lazy<Histogram>,
    ttft: Lazy<Histogram>,
    itl: Lazy<Histogram>,
}

/// The counted facts of a granted request's end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompletedRequest {
    /// The HTTP status of the response; 0: the client got none.
    pub(crate) status: u16,
    /// From the request's arrival to its end.
    pub(crate) duration: Duration,
    /// From the request's arrival to the first byte of its response.
    pub(crate) ttft: Option<Duration>,
    /// The mean time between tokens.
    pub(crate) itl: Option<Duration>,
    /// Prompt tokens, as counted by the server.
    pub(crate) input_tokens: u64,
    pub(crate) output_tokens: u64,
}

/// A metric that is made when it is first used.
#[derive(Debug)]
struct Lazy<T>(Option<T>);

impl<T> Lazy<T> {
    const NONE: Self = Self(None);

    fn get<B: MetricVecBuilder<M = T>>(&mut self, family: &MetricVec<B>, labels: &[&str]) -> &T {
        self.0.get_or_insert_with(|| family.with_label_values(labels))
    }
}

impl Series {
    pub(super) fn new(
        metrics: Arc<Metrics>,
        pool: Arc<str>,
        model: &str,
        target: &str,
        now: Instant,
    ) -> Self {
        Self {
            metrics,
            pool,
            model: model.into(),
            target: target.into(),
            last_used: now,
            was_served: false,
            arrivals: [const { Lazy::NONE }; 2],
            bypass: Lazy::NONE,
            input_tokens: Lazy::NONE,
            output_tokens: Lazy::NONE,
            decided: [const { [const { None }; 3] }; Outcome::ALL.len()],
            endpoints: HashMap::new(),
        }
    }

    /// The labels: pool, model and target model.
    pub(crate) fn labels(&self) -> [&str; 3] {
        [&self.pool, &self.model, &self.target]
    }

    pub(crate) fn count_arrival(&mut self, door: Door) {
        let labels = [&*self.pool, &*self.model, &*self.target, door.as_str()];
        self.arrivals[door as usize].get(&self.metrics.requests.arrivals, &labels).inc();
    }

    /// Counts a grant or a rejection, also under the metric that only requests with this outcome have.
    pub(crate) fn count_decision(&mut self, outcome: Outcome, band: Band, waited: Option<Duration>) {
        let [pool, model, target] = [&*self.pool, &*self.model, &*self.target];
        let (name, band_label) = (outcome.as_str(), band.as_str());
        let metrics = &self.metrics;
        let decided = self.decided[outcome as usize][band as usize].get_or_insert_with(|| Decided {
            requests: metrics.requests.decided.with_label_values(&[pool, model, target, name, band_label]),
            latency: metrics
                .responses
                .queue_latency
                .with_label_values(&[pool, model, target, band_label, name]),
        });
        decided.requests.inc();
        if let Some(waited) = waited {
            decided.latency.observe(waited.as_secs_f64());
        }
        let values = [pool, model, target];
        let requests = &metrics.requests;
        match outcome {
            Outcome::Bypassed => self.bypass.get(&requests.bypass, &values).inc(),
            Outcome::ExpiredTtl => requests.expired.with_label_values(&values).inc(),
            Outcome::Cancelled => requests.cancelled.with_label_values(&values).inc(),
            Outcome::Displaced => {
                let values = [pool, model, target, band_label];
                requests.preemptions.with_label_values(&values).inc();
            }
            _ => {}
        }
    }

    /// Counts that a decision that was counted is the second one on its request, which had been granted.
    pub(crate) fn count_second_outcome(&self, outcome: Outcome, band: Band) {
        let [pool, model, target] = self.labels();
        let values = [pool, model, target, outcome.as_str(), band.as_str()];
        let counter = &self.metrics.requests.refused_after_grant;
        counter.with_label_values(&values).inc();
    }

    fn count_tokens(&mut self, completed: &CompletedRequest) {
        let labels = [&*self.pool, &*self.model, &*self.target];
        let metrics = &self.metrics;
        self.input_tokens.get(&metrics.responses.input_tokens, &labels).inc_by(completed.input_tokens);
        self.output_tokens.get(&metrics.responses.output_tokens, &labels).inc_by(completed.output_tokens);
    }

    /// Adds an endpoint, whose name is within the limit.
    pub(super) fn add_endpoint(&mut self, now: Instant, endpoint: &str) {
        self.endpoints.entry(endpoint.into()).or_insert_with(|| EndpointSeries {
            last_used: now,
            responses: [const { Lazy::NONE }; CODE_CLASSES.len()],
            duration: Lazy::NONE,
            ttft: Lazy::NONE,
            itl: Lazy::NONE,
        });
    }

    /// Counts a completed request. Returns false, and counts nothing, if the endpoint hasn't been
    /// [added](Self::add_endpoint).
    pub(super) fn count_completion(
        &mut self,
        now: Instant,
        endpoint: &str,
        completed: &CompletedRequest,
    ) -> bool {
        let Some(series) = self.endpoints.get_mut(endpoint) else {
            return false;
        };
        let metrics = &self.metrics.responses;
        let labels = [&*self.pool, &*self.model, &*self.target, endpoint];
        series.last_used = now;
        let class = code_class(completed.status);
        let [pool, model, target, _] = labels;
        series.responses[class]
            .get(&metrics.responses, &[pool, model, target, endpoint, CODE_CLASSES[class]])
            .inc();
        series.duration.get(&metrics.duration, &labels).observe(completed.duration.as_secs_f64());
        if let Some(ttft) = completed.ttft {
            series.ttft.get(&metrics.ttft, &labels).observe(ttft.as_secs_f64());
        }
        if let Some(itl) = completed.itl {
            series.itl.get(&metrics.itl, &labels).observe(itl.as_secs_f64());
        }
        self.count_tokens(completed);
        true
    }
}

/// The index of a status in [`CODE_CLASSES`].
const fn code_class(status: u16) -> usize {
    match status {
        100..=199 => 1,
        200..=299 => 2,
        300..=399 => 3,
        400..=499 => 4,
        500..=599 => 5,
        _ => 0,
    }
}
