//! All metrics of the companion: names, help, labels, and a limit on the values of labels that clients choose.
//!
//! The observer updates counters and histograms. Gauges are made from the present status at each scrape, so that they
//! are current, unknown values have no series, and concurrent scrapes don't interfere.

mod budgets;
mod maker;
mod model;
mod queue;
mod replicas;
mod requests;
mod responses;
mod series;
mod table;
#[cfg(test)]
mod tests;
mod totals;
#[cfg_attr(not(feature = "otlp"), expect(dead_code, reason = "used by the exporter, which is a feature"))]
pub(crate) mod trace;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use penstock_config::{Alias, Config};
use penstock_control::{PoolBudgets, PoolStatus, Status};
use prometheus::core::{Collector, MetricVec, MetricVecBuilder};
use prometheus::{Encoder, Histogram, IntCounter, IntCounterVec, IntGaugeVec, Registry, TextEncoder};

use self::maker::{Family, Maker};
use self::replicas::ReplicaMetrics;
use self::requests::RequestCounters;
use self::responses::ResponseMetrics;
pub(crate) use self::responses::WAIT_SECONDS;
pub(crate) use self::series::CompletedRequest;
pub(crate) use self::table::SeriesTable;
pub(crate) use self::totals::{BUCKETS, Buckets, EndpointTotals, PoolTotals, Totals};
use crate::base::role::Roles;

/// The labels of all metrics of requests.
const REQUEST: [&str; 3] = ["pool", "model", "target_model"];
const DECISION_SECONDS: [f64; 9] =
    [0.000_000_5, 0.000_001, 0.000_002, 0.000_005, 0.000_01, 0.000_05, 0.000_1, 0.001, 0.01];
/// The label value that stands for all values beyond the limit.
pub(crate) const OTHER: &str = "other";
/// The pool label of requests without a pool.
pub(crate) const NO_POOL: &str = "none";
/// The limit on values of a label that clients choose, before a configuration sets it.
const VALUES_MAX: usize = 1_000;

/// Decides by a label's name and value whether its series is removed.
type IsGone<'a> = dyn Fn(&str, &str) -> bool + 'a;

/// All registered metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    families: Vec<Family>,
    pub(crate) requests: RequestCounters,
    pub(crate) responses: ResponseMetrics,
    replicas: ReplicaMetrics,
    pub(crate) resyncs: IntCounter,
    pub(crate) reload_failures: IntCounter,
    pub(crate) spans_dropped: IntCounterVec,
    pub(crate) store_up: IntGaugeVec,
    discovery_up: IntGaugeVec,
    pub(crate) store_writes: IntCounterVec,
    pub(crate) decision: Histogram,
    values_max: AtomicUsize,
    has_nexus_alias: AtomicBool,
}

fn request_labels<'a>(more: &[&'a str]) -> Vec<&'a str> {
    REQUEST.iter().chain(more).copied().collect()
}

impl Metrics {
    /// Sets whether the endpoints of a pool can be discovered.
    pub(crate) fn set_discovery_up(&self, pool: &str, is_up: bool) {
        self.discovery_up.with_label_values(&[pool]).set(is_up.into());
    }

    /// The pool has no discovery any more.
    pub(crate) fn remove_discovery(&self, pool: &str) {
        // Fails if there is no such series.
        let _ = self.discovery_up.remove_label_values(&[pool]);
    }

    /// All metrics at zero.
    ///
    /// # Errors
    /// Only when two families have the same name, which is a defect.
    pub fn new() -> prometheus::Result<Self> {
        let make = Maker::new();
        let build = make.gauge("build_info", "1, with the running version as label.", &["version"])?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        Ok(Self {
            requests: RequestCounters::new(&make)?,
            responses: ResponseMetrics::new(&make)?,
            replicas: ReplicaMetrics::new(&make)?,
            resyncs: make.counter_without_labels(
                "resyncs_total",
                "Sessions opened by filters, at their start and after each loss of a session.",
            )?,
            spans_dropped: make.counter(
                "trace_spans_dropped_total",
                "Spans that were lost, because the queue was full or the collector did not accept them.",
                &["reason"],
            )?,
            discovery_up: make.gauge(
                "discovery_up",
                "1 while the pool's endpoints can be discovered, else 0; absent for pools without discovery.",
                &["pool"],
            )?,
            store_up: make.gauge(
                "store_up",
                "1 while the pool's store can be read and written, else 0; absent for pools without a store.",
                &["pool"],
            )?,
            store_writes: make.counter(
                "store_writes_total",
                "Writes of the pool's data to its store, at most one a second.",
                &["pool"],
            )?,
            reload_failures: make.counter_without_labels(
                "config_reload_failures_total",
                "Failed reloads of the configuration file, or of that of the API keys; the previous content stayed active.",
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
            has_nexus_alias: AtomicBool::new(false),
            registry: make.registry,
            families: make.families.into_inner(),
        })
    }

    /// Applies a configuration: the limit on label values, the aliases, and the series that each pool has from the start.
    pub(crate) fn follow(&self, config: &Config) {
        self.set_values_max(config.metric_flows);
        let has_nexus_alias = config.metric_aliases.contains(&Alias::Nexus);
        self.has_nexus_alias.store(has_nexus_alias, Ordering::Relaxed);
        for pool in &config.pools {
            self.requests.init_pool(&pool.name);
        }
        if config.replicas.is_some() {
            self.replicas.init();
        }
    }

    /// Sets the limit on values of a label that clients choose.
    pub(crate) fn set_values_max(&self, values_max: usize) {
        self.values_max.store(values_max, Ordering::Relaxed);
    }

    /// The limit on values of a label that clients choose.
    pub(crate) fn values_max(&self) -> usize {
        self.values_max.load(Ordering::Relaxed)
    }

    /// Removes every series of requests with a label for which `is_gone`, called with name and value, returns true.
    pub(crate) fn remove_series(&self, is_gone: impl Fn(&str, &str) -> bool) {
        self.requests.remove_series(&is_gone);
        self.responses.remove_series(&is_gone);
        remove_series(&self.store_writes, &is_gone);
    }

    /// The page in Prometheus' text format, with gauges from this status and these budgets. `roles` is `None` without `replicas`. The gauges of
    /// pools for which this companion stands by have no series, so that a sum over all companions is the leader's value.
    ///
    /// # Errors
    /// When a metric can't be encoded.
    pub(crate) fn render(
        &self,
        status: &Status,
        budgets: &[PoolBudgets],
        roles: Option<&Roles>,
    ) -> prometheus::Result<Vec<u8>> {
        let make = Maker::new();
        replicas::render(&make, status, roles)?;
        let led = roles.and_then(|roles| only_led_pools(status, roles));
        let status = led.as_ref().unwrap_or(status);
        queue::Gauges::new(&make)?.set(status, self.values_max());
        model::Gauges::new(&make)?.set(status);
        let is_led = |name: &str| roles.is_none_or(|roles| roles.of(name).is_leader);
        budgets::Gauges::new(&make)?.set(budgets.iter().filter(|budgets| is_led(&budgets.pool)));
        if self.has_nexus_alias.load(Ordering::Relaxed) {
            queue::register_nexus_alias(&make.registry, status)?;
        }
        let mut families = self.registry.gather();
        families.extend(make.registry.gather());
        let mut text = Vec::new();
        TextEncoder::new().encode(&families, &mut text)?;
        let with_series: HashSet<&str> = families.iter().map(|family| family.name()).collect();
        for family in self.families.iter().chain(make.families.borrow().iter()) {
            // Families without series appear too, so that the page names every metric.
            if !with_series.contains(&*family.name) {
                let Family { name, help, kind } = family;
                text.extend_from_slice(format!("# HELP {name} {help}\n# TYPE {name} {kind}\n").as_bytes());
            }
        }
        Ok(text)
    }

    /// The metrics of a process that only discovers endpoints.
    ///
    /// # Errors
    /// When a metric can't be encoded.
    pub(crate) fn render_discovery(&self) -> prometheus::Result<Vec<u8>> {
        const FAMILIES: [&str; 3] =
            ["penstock_build_info", "penstock_config_reload_failures_total", "penstock_discovery_up"];
        let mut families = self.registry.gather();
        families.retain(|family| FAMILIES.contains(&family.name()));
        let mut text = Vec::new();
        TextEncoder::new().encode(&families, &mut text)?;
        Ok(text)
    }
}

/// The status without the pools for which this companion stands by; `None`: there are none.
fn only_led_pools(status: &Status, roles: &Roles) -> Option<Status> {
    let leads = |pool: &&PoolStatus| roles.of(&pool.name).is_leader;
    let pools: Vec<_> = status.pools.iter().filter(leads).cloned().collect();
    (pools.len() < status.pools.len()).then(|| Status { pools, ..status.clone() })
}

/// Removes the series of a family with a label that is gone.
fn remove_series<B: MetricVecBuilder>(family: &MetricVec<B>, is_gone: &IsGone<'_>) {
    let descriptions = family.desc();
    let Some(names) = descriptions.first().map(|description| &description.variable_labels) else {
        return;
    };
    for collected in family.collect() {
        for metric in collected.get_metric() {
            let labels = metric.get_label();
            if !labels.iter().any(|label| is_gone(label.name(), label.value())) {
                continue;
            }
            // A metric sorts its labels by name, a family keeps the order of its definition.
            let value = |name: &String| labels.iter().find(|label| label.name() == name);
            let values: Vec<&str> = names.iter().filter_map(value).map(|label| label.value()).collect();
            // Fails when the series is removed already.
            let _ = family.remove_label_values(&values);
        }
    }
}

fn int<T: TryInto<i64>>(value: T) -> i64 {
    value.try_into().unwrap_or(i64::MAX)
}
