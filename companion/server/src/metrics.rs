//! All metrics of the companion: names, help, labels, and a limit on the values of labels that clients choose.
//!
//! The observer updates counters and histograms, which last. The rest is made from the present status at each scrape ([`page`]), so that
//! it is current.
//!
//! A new value of the status is one call in `queue`, `model`, `budgets` or `replicas`. What is counted when it happens is a field of
//! `requests` or `responses` and a line in the observer. The end-to-end test of metrics lists all names.

mod budgets;
mod maker;
mod model;
mod page;
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
use penstock_stores::StoreMetrics;
use prometheus::{Encoder, Histogram, IntCounter, IntCounterVec, IntGaugeVec, Registry, TextEncoder};

use self::maker::{Family, Maker};
use self::page::Page;
use self::replicas::ReplicaMetrics;
use self::requests::RequestCounters;
use self::responses::ResponseMetrics;
pub(crate) use self::responses::WAIT_SECONDS;
pub(crate) use self::series::CompletedRequest;
pub(crate) use self::table::SeriesTable;
pub(crate) use self::totals::{BUCKETS, Buckets, EndpointTotals, PoolTotals, Totals};
use crate::base::early_reads::EarlyReads;
use crate::base::liveness::Liveness;
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
    stores: StoreMetrics,
    discovery_up: IntGaugeVec,
    pub(crate) decision: Histogram,
    /// When bytes of answers last came from each endpoint.
    pub(crate) liveness: Liveness,
    /// Whose pages shall be read before their time.
    pub(crate) early_reads: EarlyReads,
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

    /// The metrics of stores.
    pub(crate) fn stores(&self) -> StoreMetrics {
        self.stores.clone()
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
            liveness: Liveness::default(),
            early_reads: EarlyReads::default(),
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
            stores: StoreMetrics {
                up: make.gauge(
                    "store_up",
                    "1 while the pool's store can be read and written, else 0; absent for pools without a store.",
                    &["pool"],
                )?,
                writes: make.counter(
                    "store_writes_total",
                    "Writes of the pool's data to its store, at most one a second.",
                    &["pool"],
                )?,
            },
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
            self.responses.init_pool(&pool.name);
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
        for family in &self.families {
            family.remove_series(&is_gone);
        }
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
        let mut page = Page::default();
        replicas::render(&mut page, status, roles);
        let led = roles.and_then(|roles| only_led_pools(status, roles));
        let status = led.as_ref().unwrap_or(status);
        queue::render(&mut page, status, &self.liveness, self.values_max());
        model::render(&mut page, status);
        let is_led = |name: &str| roles.is_none_or(|roles| roles.of(name).is_leader());
        let led: Vec<_> = budgets.iter().filter(|budgets| is_led(&budgets.pool)).collect();
        budgets::render(&mut page, &led);
        if self.has_nexus_alias.load(Ordering::Relaxed) {
            queue::add_nexus_alias(&mut page, status);
        }
        let (filled, empty): (Vec<_>, Vec<_>) =
            page.into_families().into_iter().partition(|family| !family.get_metric().is_empty());
        let mut families = self.registry.gather();
        let with_series: HashSet<String> = families.iter().map(|family| family.name().to_owned()).collect();
        families.extend(filled);
        let mut text = Vec::new();
        TextEncoder::new().encode(&families, &mut text)?;
        // Families without series appear too, so that the page names every metric.
        for Family { name, help, kind, .. } in
            self.families.iter().filter(|family| !with_series.contains(&family.name))
        {
            text.extend_from_slice(format!("# HELP {name} {help}\n# TYPE {name} {kind}\n").as_bytes());
        }
        for family in empty {
            let (name, help) = (family.name(), family.help());
            let kind = format!("{:?}", family.get_field_type()).to_lowercase();
            text.extend_from_slice(format!("# HELP {name} {help}\n# TYPE {name} {kind}\n").as_bytes());
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
    let leads = |pool: &&PoolStatus| roles.of(&pool.name).is_leader();
    let pools: Vec<_> = status.pools.iter().filter(leads).cloned().collect();
    (pools.len() < status.pools.len()).then(|| Status { pools, ..status.clone() })
}

/// A number of things as a sample.
fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
