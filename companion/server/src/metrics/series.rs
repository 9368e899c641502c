//! The handles of what is counted for one pool, model and target: to count takes no lock, and once a series is there
//! nothing is allocated for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use penstock_data_plane::policy::band_name;
use penstock_engine::input::Band;
use penstock_engine::{Instant, Outcome};
use prometheus::core::{MetricVec, MetricVecBuilder};
use prometheus::{Histogram, IntCounter};

use super::Metrics;

/// Classes of a status: the first is of none.
const CODE_CLASSES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// What is counted for one pool, model and target.
#[derive(Debug)]
pub(crate) struct Series {
    metrics: Arc<Metrics>,
    pub(super) pool: Arc<str>,
    pub(super) model: Box<str>,
    pub(super) target: Box<str>,
    /// When it was asked for last.
    pub(super) last: Instant,
    arrivals: Lazy<IntCounter>,
    bypass: Lazy<IntCounter>,
    input_tokens: Lazy<IntCounter>,
    output_tokens: Lazy<IntCounter>,
    decided: [[Option<Decided>; 3]; Outcome::ALL.len()],
    pub(super) endpoints: HashMap<Box<str>, At>,
}

/// For one outcome and band.
#[derive(Debug)]
struct Decided {
    requests: IntCounter,
    latency: Histogram,
}

/// For one endpoint.
#[derive(Debug)]
pub(super) struct At {
    /// When something ended there last.
    pub(super) last: Instant,
    responses: [Lazy<IntCounter>; CODE_CLASSES.len()],
    duration: Lazy<Histogram>,
    ttft: Lazy<Histogram>,
    itl: Lazy<Histogram>,
}

/// How a granted request ended, as far as it is counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    /// What the client got; 0: nothing.
    pub(crate) status: u16,
    /// From its arrival to its end,
    pub(crate) duration: Duration,
    /// and to the first byte of its answer.
    pub(crate) ttft: Option<Duration>,
    /// Mean time between tokens.
    pub(crate) itl: Option<Duration>,
    /// Of the prompt, as the server counted.
    pub(crate) input_tokens: u64,
    /// Of the answer.
    pub(crate) output_tokens: u64,
}

/// A series that is there when it is first needed.
#[derive(Debug)]
struct Lazy<T>(Option<T>);

impl<T> Lazy<T> {
    const NONE: Self = Self(None);

    fn of<B: MetricVecBuilder<M = T>>(&mut self, family: &MetricVec<B>, labels: &[&str]) -> &T {
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
            last: now,
            arrivals: Lazy::NONE,
            bypass: Lazy::NONE,
            input_tokens: Lazy::NONE,
            output_tokens: Lazy::NONE,
            decided: [const { [const { None }; 3] }; Outcome::ALL.len()],
            endpoints: HashMap::new(),
        }
    }

    /// Its labels: pool, model and target.
    pub(crate) fn labels(&self) -> [&str; 3] {
        [&self.pool, &self.model, &self.target]
    }

    /// A request came.
    pub(crate) fn arrived(&mut self) {
        let labels = [&*self.pool, &*self.model, &*self.target];
        self.arrivals.of(&self.metrics.arrivals, &labels).inc();
    }

    /// A request was let go, or refused.
    pub(crate) fn decided(&mut self, outcome: Outcome, band: Band, waited: Option<Duration>) {
        let [pool, model, target] = [&*self.pool, &*self.model, &*self.target];
        let (name, band_of) = (outcome.as_str(), band_name(band));
        let metrics = &self.metrics;
        let decided = self.decided[outcome as usize][band as usize].get_or_insert_with(|| Decided {
            requests: metrics
                .requests
                .with_label_values(&[pool, model, target, name, band_of]),
            latency: metrics
                .queue_latency
                .with_label_values(&[pool, model, target, band_of, name]),
        });
        decided.requests.inc();
        if let Some(waited) = waited {
            decided.latency.observe(waited.as_secs_f64());
        }
        if outcome == Outcome::Bypassed {
            self.bypass.of(&metrics.bypass, &[pool, model, target]).inc();
        }
    }

    /// The tokens of a request that has ended.
    fn tokens(&mut self, ended: &Ended) {
        let labels = [&*self.pool, &*self.model, &*self.target];
        let metrics = &self.metrics;
        self.input_tokens
            .of(&metrics.input_tokens, &labels)
            .inc_by(ended.input_tokens);
        self.output_tokens
            .of(&metrics.output_tokens, &labels)
            .inc_by(ended.output_tokens);
    }

    /// Something may end at `endpoint`, a name for which there is room.
    pub(super) fn meet(&mut self, now: Instant, endpoint: &str) {
        self.endpoints.entry(endpoint.into()).or_insert_with(|| At {
            last: now,
            responses: [const { Lazy::NONE }; CODE_CLASSES.len()],
            duration: Lazy::NONE,
            ttft: Lazy::NONE,
            itl: Lazy::NONE,
        });
    }

    /// A granted request has ended at `endpoint`. `false`: nobody [met](Self::meet) that, and nothing is counted.
    pub(super) fn ended(&mut self, now: Instant, endpoint: &str, ended: &Ended) -> bool {
        let Some(at) = self.endpoints.get_mut(endpoint) else {
            return false;
        };
        let metrics = &self.metrics;
        let labels = [&*self.pool, &*self.model, &*self.target, endpoint];
        at.last = now;
        let class = code_class(ended.status);
        let [pool, model, target, _] = labels;
        at.responses[class]
            .of(
                &metrics.responses,
                &[pool, model, target, endpoint, CODE_CLASSES[class]],
            )
            .inc();
        at.duration
            .of(&metrics.duration, &labels)
            .observe(ended.duration.as_secs_f64());
        if let Some(ttft) = ended.ttft {
            at.ttft.of(&metrics.ttft, &labels).observe(ttft.as_secs_f64());
        }
        if let Some(itl) = ended.itl {
            at.itl.of(&metrics.itl, &labels).observe(itl.as_secs_f64());
        }
        self.tokens(ended);
        true
    }
}

/// By its number in [`CODE_CLASSES`].
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
