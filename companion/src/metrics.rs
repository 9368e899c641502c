//! Every metric of the companion: names, help, labels, and a limit on the values that a client can make up.
//!
//! Counters and histograms live here and are moved by the observer; gauges are made from a snapshot when somebody
//! scrapes, so that they are never old, what isn't known has no series, and two scrapes at a time don't meet.

mod model;
mod queue;

use penstock_control::Status;
use penstock_engine::units::Decimal;
use prometheus::{
    Encoder, GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

const REQUEST: [&str; 3] = ["pool", "model", "target_model"];
const WAIT_SECONDS: [f64; 15] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];
const ITL_SECONDS: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0,
];
const DECISION_SECONDS: [f64; 9] = [
    0.000_000_5,
    0.000_001,
    0.000_002,
    0.000_005,
    0.000_01,
    0.000_05,
    0.000_1,
    0.001,
    0.01,
];
/// What a label says for the values past its limit.
pub const OTHER: &str = "other";

/// All metrics, registered.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    pub(crate) arrivals: IntCounterVec,
    pub(crate) requests: IntCounterVec,
    pub(crate) bypass: IntCounterVec,
    pub(crate) expired: IntCounterVec,
    pub(crate) cancelled: IntCounterVec,
    pub(crate) push_errors: IntCounterVec,
    pub(crate) preemptions: IntCounterVec,
    pub(crate) requeues: IntCounterVec,
    pub(crate) priority_lowered: IntCounterVec,
    pub(crate) misrouted: IntCounterVec,
    pub(crate) resyncs: IntCounterVec,
    pub(crate) reload_failures: IntCounter,
    pub(crate) responses: IntCounterVec,
    pub(crate) input_tokens: IntCounterVec,
    pub(crate) output_tokens: IntCounterVec,
    pub(crate) queue_latency: HistogramVec,
    pub(crate) ttft: HistogramVec,
    pub(crate) itl: HistogramVec,
    pub(crate) duration: HistogramVec,
    pub(crate) decision: HistogramVec,
}

/// Makes and registers one family after the other.
struct Maker(Registry);

impl Maker {
    fn counter(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntCounterVec> {
        let family = IntCounterVec::new(opts(name, help), labels)?;
        self.0.register(Box::new(family.clone()))?;
        Ok(family)
    }

    fn plain(&self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        let counter = IntCounter::with_opts(opts(name, help))?;
        self.0.register(Box::new(counter.clone()))?;
        Ok(counter)
    }

    fn gauge(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntGaugeVec> {
        let family = IntGaugeVec::new(opts(name, help), labels)?;
        self.0.register(Box::new(family.clone()))?;
        Ok(family)
    }

    fn float(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<GaugeVec> {
        let family = GaugeVec::new(opts(name, help), labels)?;
        self.0.register(Box::new(family.clone()))?;
        Ok(family)
    }

    fn seconds(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: &[f64],
    ) -> prometheus::Result<HistogramVec> {
        let options = HistogramOpts {
            common_opts: opts(name, help),
            buckets: buckets.to_vec(),
        };
        let family = HistogramVec::new(options, labels)?;
        self.0.register(Box::new(family.clone()))?;
        Ok(family)
    }
}

fn opts(name: &str, help: &str) -> Opts {
    Opts::new(name, help).namespace("penstock")
}

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    REQUEST.iter().chain(more).copied().collect()
}

impl Metrics {
    /// All metrics at zero.
    ///
    /// # Errors
    /// Only if two families had the same name.
    pub fn new() -> prometheus::Result<Self> {
        let make = Maker(Registry::new());
        let build = make.gauge(
            "build_info",
            "1, labelled with the version that runs.",
            &["version"],
        )?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        Ok(Self {
            arrivals: make.counter(
                "arrivals_total",
                "Requests that came, whatever became of them.",
                &REQUEST,
            )?,
            requests: make.counter(
                "requests_total",
                "Requests that left the queue or never entered it, by outcome.",
                &with(&["outcome", "band"]),
            )?,
            bypass: make.counter("bypass_total", "Requests that went without waiting.", &REQUEST)?,
            expired: make.counter(
                "requests_expired_total",
                "Requests that waited longer than ttl.",
                &REQUEST,
            )?,
            cancelled: make.counter(
                "requests_cancelled_total",
                "Requests whose client left while they waited.",
                &REQUEST,
            )?,
            push_errors: make.counter(
                "queue_push_errors_total",
                "Requests that were refused, by the code of the answer.",
                &with(&["error_type"]),
            )?,
            preemptions: make.counter(
                "preemptions_total",
                "Waiting requests whose place a more critical one took, by their band.",
                &with(&["band"]),
            )?,
            requeues: make.counter(
                "requeues_total",
                "Granted requests that no server took and that wait again.",
                &REQUEST,
            )?,
            priority_lowered: make.counter(
                "priority_lowered_total",
                "Requests whose client claimed a higher priority than it may have.",
                &REQUEST,
            )?,
            misrouted: make.counter(
                "misrouted_total",
                "Requests that Envoy sent to another endpoint than was granted.",
                &["pool"],
            )?,
            resyncs: make.counter(
                "resyncs_total",
                "Times that a filter said which requests it has: at its start, and whenever it came back.",
                &[],
            )?,
            reload_failures: make.plain(
                "config_reload_failures_total",
                "Times that the configuration file was wrong when it was read again; the one before stayed in force.",
            )?,
            responses: make.counter(
                "responses_total",
                "Answers to granted requests, by the endpoint and the class of the status.",
                &with(&["endpoint", "code_class"]),
            )?,
            input_tokens: make.counter(
                "input_tokens_total",
                "Prompt tokens, as the servers counted them.",
                &REQUEST,
            )?,
            output_tokens: make.counter(
                "output_tokens_total",
                "Output tokens, as the servers counted them, else events of the stream.",
                &REQUEST,
            )?,
            queue_latency: make.seconds(
                "queue_latency_seconds",
                "From a request's arrival to the decision on it.",
                &with(&["band", "outcome"]),
                &WAIT_SECONDS,
            )?,
            ttft: make.seconds(
                "ttft_seconds",
                "From a request's arrival to the first byte of its answer.",
                &with(&["endpoint"]),
                &WAIT_SECONDS,
            )?,
            itl: make.seconds(
                "itl_seconds",
                "Mean time between two tokens of an answer.",
                &with(&["endpoint"]),
                &ITL_SECONDS,
            )?,
            duration: make.seconds(
                "request_duration_seconds",
                "From a granted request's arrival to its end.",
                &with(&["endpoint"]),
                &WAIT_SECONDS,
            )?,
            decision: make.seconds(
                "decision_duration_seconds",
                "Time to decide on one message of a filter.",
                &[],
                &DECISION_SECONDS,
            )?,
            registry: make.0,
        })
    }

    /// Shows at 0 what hasn't gone wrong in a pool yet, so that rules over it have something to look at.
    pub fn expect(&self, pool: &str) {
        self.misrouted.with_label_values(&[pool]);
        for counter in [&self.requeues, &self.priority_lowered] {
            // Of no model in particular: an empty label is none.
            counter.with_label_values(&[pool, "", ""]);
        }
    }

    /// The text format, with the gauges of this moment.
    ///
    /// # Errors
    /// When a metric can't be encoded.
    pub fn render(&self, status: &Status) -> prometheus::Result<Vec<u8>> {
        let make = Maker(Registry::new());
        queue::Gauges::new(&make)?.set(status);
        model::Gauges::new(&make)?.set(status);
        let mut families = self.registry.gather();
        families.extend(make.0.gather());
        let mut text = Vec::new();
        TextEncoder::new().encode(&families, &mut text)?;
        Ok(text)
    }
}

/// A decimal as the nearest float.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
pub fn decimal(of: Decimal) -> f64 {
    of.billionths() as f64 / Decimal::ONE as f64
}

/// A ratio from its thousandths.
#[must_use]
pub fn thousandths(of: u64) -> f64 {
    u32::try_from(of).map_or(f64::INFINITY, f64::from) / 1_000.0
}

fn int<T: TryInto<i64>>(of: T) -> i64 {
    of.try_into().unwrap_or(i64::MAX)
}
