//! Every metric of the companion: names, help, labels, and a limit on the values that a client can make up.
//!
//! Counters and histograms live here and are moved by the observer; gauges are set from a snapshot when somebody
//! scrapes, so that they are never old.

use std::collections::BTreeSet;

use penstock_control::Status;
use penstock_engine::policy::Discipline;
use penstock_engine::snapshot::FlowSnapshot;
use penstock_engine::units::Decimal;
use prometheus::{
    Encoder, GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder,
};

use crate::policy::band_name;

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
    pub(crate) responses: IntCounterVec,
    pub(crate) input_tokens: IntCounterVec,
    pub(crate) output_tokens: IntCounterVec,
    pub(crate) queue_latency: HistogramVec,
    pub(crate) ttft: HistogramVec,
    pub(crate) itl: HistogramVec,
    pub(crate) duration: HistogramVec,
    pub(crate) decision: HistogramVec,
    gauges: Gauges,
}

/// Set at every scrape.
#[derive(Debug)]
struct Gauges {
    queue_length: IntGaugeVec,
    queue_cost_tokens: GaugeVec,
    queue_bytes: IntGaugeVec,
    stock_level: IntGaugeVec,
    draining_stock: IntGaugeVec,
    orphaned_stock: IntGaugeVec,
    unacked_events: IntGaugeVec,
    upper_bound: IntGaugeVec,
    lower_bound: IntGaugeVec,
    watermark: GaugeVec,
    saturation: GaugeVec,
    ready_endpoints: IntGaugeVec,
    active_flows: IntGaugeVec,
    class_deficit_tokens: IntGaugeVec,
    usage_window_tokens: GaugeVec,
    sessions: IntGaugeVec,
    clock_backwards: IntGaugeVec,
    dequeue_attempts: IntGaugeVec,
    dequeue_successes: IntGaugeVec,
}

/// Makes and registers one family after the other.
struct Maker(Registry);

impl Maker {
    fn counter(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntCounterVec> {
        let family = IntCounterVec::new(opts(name, help), labels)?;
        self.0.register(Box::new(family.clone()))?;
        Ok(family)
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
            gauges: Gauges {
                queue_length: make.gauge("queue_length", "Requests that wait.", &["pool", "flow", "band"])?,
                queue_cost_tokens: make.float(
                    "queue_cost_tokens",
                    "Estimated cost of the requests that wait.",
                    &["pool"],
                )?,
                queue_bytes: make.gauge(
                    "queue_bytes",
                    "Bytes of the bodies that wait in Envoy.",
                    &["pool"],
                )?,
                stock_level: make.gauge(
                    "stock_level",
                    "Requests dispatched to an endpoint and not ended.",
                    &["pool", "endpoint"],
                )?,
                draining_stock: make.gauge(
                    "draining_stock",
                    "Requests that still run on endpoints that aren't ready.",
                    &["pool"],
                )?,
                orphaned_stock: make.gauge(
                    "orphaned_stock",
                    "Requests that run and whose session is lost; released after its grace.",
                    &["pool"],
                )?,
                unacked_events: make.gauge(
                    "unacked_events",
                    "Frames of filters that were handled and aren't acknowledged yet.",
                    &[],
                )?,
                upper_bound: make.gauge(
                    "upper_bound",
                    "Below this stock a newcomer bypasses the queue.",
                    &["pool"],
                )?,
                lower_bound: make.gauge(
                    "lower_bound",
                    "Below this stock what waits is dispatched.",
                    &["pool"],
                )?,
                watermark: make.float(
                    "watermark",
                    "The stock between the bounds, summed over ready endpoints.",
                    &["pool"],
                )?,
                saturation: make.float(
                    "saturation",
                    "The larger of stock/upper bound and waiting/total capacity.",
                    &["pool"],
                )?,
                ready_endpoints: make.gauge(
                    "ready_endpoints",
                    "Endpoints that may be given requests.",
                    &["pool"],
                )?,
                active_flows: make.gauge(
                    "active_flows",
                    "Flows that wait, or have something in flight.",
                    &["pool"],
                )?,
                usage_window_tokens: make.float(
                    "usage_window_tokens",
                    "Weighted tokens of all flows in the sliding window and in flight, where the discipline is usage.",
                    &["pool"],
                )?,
                class_deficit_tokens: make.gauge(
                    "class_deficit_tokens",
                    "What a policy class may send before its next turn, over bands and models.",
                    &["pool", "class"],
                )?,
                sessions: make.gauge("sessions", "Filters with an open stream.", &[])?,
                clock_backwards: make.gauge(
                    "clock_backwards_total",
                    "Times that went backwards and were clamped.",
                    &["pool"],
                )?,
                dequeue_attempts: make.gauge(
                    "dequeue_attempts_total",
                    "Looks for a request to dispatch.",
                    &["pool"],
                )?,
                dequeue_successes: make.gauge(
                    "dequeue_successes_total",
                    "Looks that dispatched one.",
                    &["pool"],
                )?,
            },
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
        self.gauges.set(status);
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}

impl Gauges {
    fn set(&self, status: &Status) {
        let open = status.sessions.iter().filter(|it| it.open).count();
        let none: [&str; 0] = [];
        self.sessions.with_label_values(&none).set(int(open));
        let unacked: u64 = status.sessions.iter().map(|it| it.unacked).sum();
        self.unacked_events.with_label_values(&none).set(int(unacked));
        self.queue_length.reset();
        self.stock_level.reset();
        self.class_deficit_tokens.reset();
        for pool in &status.pools {
            let of = &[pool.name.as_ref()];
            let now = &pool.snapshot;
            self.upper_bound.with_label_values(of).set(int(now.upper));
            self.lower_bound.with_label_values(of).set(int(now.lower));
            self.watermark.with_label_values(of).set(decimal(now.watermark));
            self.saturation
                .with_label_values(of)
                .set(thousandths(now.saturation_milli));
            self.draining_stock
                .with_label_values(of)
                .set(int(now.draining_stock));
            self.orphaned_stock
                .with_label_values(of)
                .set(int(pool.orphaned_stock));
            self.queue_bytes.with_label_values(of).set(int(now.waiting_bytes));
            #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
            self.queue_cost_tokens
                .with_label_values(of)
                .set(now.waiting_cost.0 as f64);
            self.ready_endpoints.with_label_values(of).set(int(now
                .endpoints
                .iter()
                .filter(|it| it.ready)
                .count()));
            self.active_flows
                .with_label_values(of)
                .set(int(active_flows(&now.flows)));
            if pool.discipline == Discipline::Usage {
                // What is first to go there is who used least per weight.
                let used = now.flows.iter().map(|flow| flow.finish * flow.weight);
                self.usage_window_tokens
                    .with_label_values(of)
                    .set(used.sum::<f64>().round());
            }
            for class in &now.classes {
                self.class_deficit_tokens
                    .with_label_values(&[of[0], &class.name])
                    .set(int(class.deficit));
            }
            self.clock_backwards
                .with_label_values(of)
                .set(int(now.counters.clock_backwards));
            self.dequeue_attempts
                .with_label_values(of)
                .set(int(now.counters.dequeue_attempts));
            self.dequeue_successes
                .with_label_values(of)
                .set(int(now.counters.dequeue_successes));
            for endpoint in &now.endpoints {
                let address = pool.address(endpoint.id);
                self.stock_level
                    .with_label_values(&[of[0], address])
                    .set(int(endpoint.stock));
            }
            for flow in &now.flows {
                self.queue_length
                    .with_label_values(&[of[0], pool.shown(&flow.key), band_name(flow.band)])
                    .add(int(flow.waiting));
            }
        }
    }
}

/// Identities that wait or have something in flight, in whatever band.
fn active_flows(flows: &[FlowSnapshot]) -> usize {
    let active = flows.iter().filter(|flow| flow.waiting > 0 || flow.in_flight > 0);
    active.map(|flow| &flow.key).collect::<BTreeSet<_>>().len()
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
