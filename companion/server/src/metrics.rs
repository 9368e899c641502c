//! Every metric of the companion: names, help, labels, and a limit on the values that a client can make up.
//!
//! Counters and histograms live here and are moved by the observer; gauges are made from a snapshot when somebody
//! scrapes, so that they are never old, what isn't known has no series, and two scrapes at a time don't meet.

mod model;
mod queue;
mod series;
mod table;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use penstock_control::Status;
use penstock_engine::units::Decimal;
use prometheus::core::{Collector, MetricVec, MetricVecBuilder};
use prometheus::{
    Encoder, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

pub(crate) use self::series::Ended;
pub(crate) use self::table::Table;
use penstock_config::{Alias, Config};

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
/// The pool of a request that has none.
pub(crate) const NO_POOL: &str = "none";
/// Values of a label that a client makes up, until a configuration says how many.
const VALUES_MAX: usize = 1_000;

/// All metrics, registered.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    made: Vec<Described>,
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
    pub(crate) resyncs: IntCounter,
    pub(crate) lease_admissions: IntCounterVec,
    pub(crate) reload_failures: IntCounter,
    pub(crate) spans_dropped: IntCounterVec,
    pub(crate) store_up: IntGaugeVec,
    pub(crate) store_writes: IntCounterVec,
    pub(crate) responses: IntCounterVec,
    pub(crate) input_tokens: IntCounterVec,
    pub(crate) output_tokens: IntCounterVec,
    pub(crate) queue_latency: HistogramVec,
    pub(crate) ttft: HistogramVec,
    pub(crate) itl: HistogramVec,
    pub(crate) duration: HistogramVec,
    pub(crate) decision: Histogram,
    values_max: AtomicUsize,
    nexus: AtomicBool,
}

/// Makes and registers one family after the other.
struct Maker {
    registry: Registry,
    made: RefCell<Vec<Described>>,
}

/// A family, to be named where it has no series.
#[derive(Debug)]
struct Described {
    name: String,
    help: String,
    kind: &'static str,
}

impl Maker {
    fn new() -> Self {
        Self {
            registry: Registry::new(),
            made: RefCell::default(),
        }
    }

    fn register<F: Collector + Clone + 'static>(
        &self,
        name: &str,
        help: &str,
        kind: &'static str,
        family: F,
    ) -> prometheus::Result<F> {
        self.registry.register(Box::new(family.clone()))?;
        self.made.borrow_mut().push(Described {
            name: format!("penstock_{name}"),
            help: help.to_owned(),
            kind,
        });
        Ok(family)
    }

    fn counter(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntCounterVec> {
        let family = IntCounterVec::new(opts(name, help), labels)?;
        self.register(name, help, "counter", family)
    }

    fn plain(&self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        let counter = IntCounter::with_opts(opts(name, help))?;
        self.register(name, help, "counter", counter)
    }

    fn gauge(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntGaugeVec> {
        let family = IntGaugeVec::new(opts(name, help), labels)?;
        self.register(name, help, "gauge", family)
    }

    fn float(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<GaugeVec> {
        let family = GaugeVec::new(opts(name, help), labels)?;
        self.register(name, help, "gauge", family)
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
        self.register(name, help, "histogram", family)
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
        let make = Maker::new();
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
            resyncs: make.plain(
                "resyncs_total",
                "Times that a filter said which requests it has: at its start, and whenever it came back.",
            )?,
            lease_admissions: make.counter(
                "lease_admissions_total",
                "Requests that went on a lease, without the companion being asked.",
                &REQUEST,
            )?,
            spans_dropped: make.counter(
                "trace_spans_dropped_total",
                "Spans of requests that were lost: there were more than the queue holds, or nobody took them.",
                &["reason"],
            )?,
            store_up: make.gauge(
                "store_up",
                "1 while the pool's store is read and written, 0 while it isn't; none where the store is memory.",
                &["pool"],
            )?,
            store_writes: make.counter(
                "store_writes_total",
                "Times that something of the pool was written to its store: at most one a second.",
                &["pool"],
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
            decision: make
                .seconds(
                    "decision_duration_seconds",
                    "Time to decide on one message of a filter.",
                    &[],
                    &DECISION_SECONDS,
                )?
                .with_label_values::<&str>(&[]),
            values_max: AtomicUsize::new(VALUES_MAX),
            nexus: AtomicBool::new(false),
            registry: make.registry,
            made: make.made.into_inner(),
        })
    }

    /// Holds to a configuration, from its start or its reload on: limits, other names, and what each pool shows at 0.
    pub fn follow(&self, config: &Config) {
        self.limit(config.metric_flows);
        let nexus = config.metric_aliases.contains(&Alias::Nexus);
        self.nexus.store(nexus, Ordering::Relaxed);
        for pool in &config.pools {
            self.expect(&pool.name);
        }
    }

    /// At most so many values of a label that clients choose.
    pub fn limit(&self, values_max: usize) {
        self.values_max.store(values_max, Ordering::Relaxed);
    }

    /// At most so many values of a label that clients choose.
    pub(crate) fn values_max(&self) -> usize {
        self.values_max.load(Ordering::Relaxed)
    }

    /// Shows at 0 what hasn't gone wrong in a pool yet, so that rules over it have something to look at.
    pub fn expect(&self, pool: &str) {
        self.misrouted.with_label_values(&[pool]);
        for counter in [
            &self.bypass,
            &self.expired,
            &self.cancelled,
            &self.requeues,
            &self.priority_lowered,
            &self.lease_admissions,
        ] {
            // Of no model in particular: an empty label is none.
            counter.with_label_values(&[pool, "", ""]);
        }
        // Filters tell of these all at once, and only a series that was there before rises.
        let code = penstock_wire::names::code::GATEWAY_UNAVAILABLE;
        self.push_errors.with_label_values(&[pool, "", "", code]);
    }

    /// Gives up every series of requests with a label of which `is_gone`, asked for its name and value, says so.
    pub(crate) fn forget(&self, is_gone: impl Fn(&str, &str) -> bool) {
        for family in [
            &self.arrivals,
            &self.requests,
            &self.bypass,
            &self.expired,
            &self.cancelled,
            &self.push_errors,
            &self.preemptions,
            &self.requeues,
            &self.priority_lowered,
            &self.misrouted,
            &self.lease_admissions,
            &self.responses,
            &self.input_tokens,
            &self.output_tokens,
            &self.store_writes,
        ] {
            forget(family, &is_gone);
        }
        for family in [&self.queue_latency, &self.ttft, &self.itl, &self.duration] {
            forget(family, &is_gone);
        }
    }

    /// The text format, with the gauges of this moment.
    ///
    /// # Errors
    /// When a metric can't be encoded.
    pub fn render(&self, status: &Status) -> prometheus::Result<Vec<u8>> {
        let make = Maker::new();
        queue::Gauges::new(&make)?.set(status, self.values_max());
        model::Gauges::new(&make)?.set(status);
        if self.nexus.load(Ordering::Relaxed) {
            queue::nexus(&make.registry, status)?;
        }
        let mut families = self.registry.gather();
        families.extend(make.registry.gather());
        let mut text = Vec::new();
        TextEncoder::new().encode(&families, &mut text)?;
        let there: HashSet<&str> = families.iter().map(|family| family.name()).collect();
        for made in self.made.iter().chain(make.made.borrow().iter()) {
            // What has nothing to show is named all the same: who looks for it finds it.
            if !there.contains(&*made.name) {
                let Described { name, help, kind } = made;
                text.extend_from_slice(format!("# HELP {name} {help}\n# TYPE {name} {kind}\n").as_bytes());
            }
        }
        Ok(text)
    }
}

/// Gives up the series of a family with a label that is gone.
fn forget<B: MetricVecBuilder>(family: &MetricVec<B>, is_gone: &impl Fn(&str, &str) -> bool) {
    let described = family.desc();
    let Some(names) = described.first().map(|it| &it.variable_labels) else {
        return;
    };
    for collected in family.collect() {
        for metric in collected.get_metric() {
            let labels = metric.get_label();
            if !labels.iter().any(|label| is_gone(label.name(), label.value())) {
                continue;
            }
            // A metric has its labels by name, a family in its own order.
            let value = |name: &String| labels.iter().find(|label| label.name() == name);
            let values: Vec<&str> = names
                .iter()
                .filter_map(value)
                .map(|label| label.value())
                .collect();
            // Gone already: nothing to do.
            let _ = family.remove_label_values(&values);
        }
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
