//! The families of one scrape, made from the present status: each is named once, with its help, its labels and its values.
//!
//! An unknown value has no series, and concurrent scrapes don't interfere, because nothing outlives the page.

use std::collections::BTreeMap;

use penstock_control::{PoolStatus, Status, VariantStatus};
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

/// The families of one scrape, in the order in which they were added.
#[derive(Debug, Default)]
pub(super) struct Page(Vec<MetricFamily>);

/// The series of a family by the values of its labels.
pub(super) struct Series<const N: usize>(BTreeMap<[Box<str>; N], f64>);

/// A number as a sample.
pub(super) trait Value {
    /// `None`: the value is unknown.
    fn sample(self) -> Option<f64>;
}

impl Value for u64 {
    #[expect(clippy::cast_precision_loss, reason = "a sample is a float")]
    fn sample(self) -> Option<f64> {
        Some(self as f64)
    }
}

impl Value for f64 {
    fn sample(self) -> Option<f64> {
        Some(self)
    }
}

impl Value for bool {
    fn sample(self) -> Option<f64> {
        Some(self.into())
    }
}

impl<V: Value> Value for Option<V> {
    fn sample(self) -> Option<f64> {
        self.and_then(V::sample)
    }
}

impl<const N: usize> Series<N> {
    /// Adds to the series with these label values.
    pub(super) fn add(&mut self, labels: [&str; N], value: impl Value) {
        if let Some(value) = value.sample() {
            *self.0.entry(labels.map(Box::from)).or_default() += value;
        }
    }

    /// Raises the series with these label values, which begins at 0.
    pub(super) fn raise(&mut self, labels: [&str; N], value: f64) {
        let highest = self.0.entry(labels.map(Box::from)).or_default();
        *highest = highest.max(value);
    }
}

impl Page {
    /// Adds a gauge.
    pub(super) fn gauge<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; N],
        fill: impl FnOnce(&mut Series<N>),
    ) {
        self.add(MetricType::GAUGE, name, help, labels, fill);
    }

    /// Adds a counter, which the engine counts.
    pub(super) fn counter<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; N],
        fill: impl FnOnce(&mut Series<N>),
    ) {
        self.add(MetricType::COUNTER, name, help, labels, fill);
    }

    /// Adds a gauge with one value for each pool.
    pub(super) fn pool_gauge<V: Value>(
        &mut self,
        name: &str,
        help: &str,
        status: &Status,
        value: impl Fn(&PoolStatus) -> V,
    ) {
        self.gauge(name, help, ["pool"], |series| add_pools(series, status, value));
    }

    /// Adds a counter with one value for each pool.
    pub(super) fn pool_counter(
        &mut self,
        name: &str,
        help: &str,
        status: &Status,
        value: impl Fn(&PoolStatus) -> u64,
    ) {
        self.counter(name, help, ["pool"], |series| add_pools(series, status, value));
    }

    /// Adds a gauge with one value for each variant of each pool.
    pub(super) fn variant_gauge<V: Value>(
        &mut self,
        name: &str,
        help: &str,
        status: &Status,
        value: impl Fn(&VariantStatus) -> V,
    ) {
        self.gauge(name, help, ["pool", "variant"], |series| {
            for (pool, variant) in variants(status) {
                series.add([pool, &variant.name], value(variant));
            }
        });
    }

    /// Adds a gauge under the name of another system.
    pub(super) fn alias(&mut self, name: &str, help: &str, value: u64) {
        self.gauge(name, help, [], |series| series.add([], value));
        if let Some(family) = self.0.last_mut() {
            family.set_name(name.to_owned());
        }
    }

    /// The families by name. Some have no series.
    pub(super) fn into_families(mut self) -> Vec<MetricFamily> {
        self.0.sort_by(|one, other| one.name().cmp(other.name()));
        self.0
    }

    fn add<const N: usize>(
        &mut self,
        kind: MetricType,
        name: &str,
        help: &str,
        labels: [&str; N],
        fill: impl FnOnce(&mut Series<N>),
    ) {
        let mut series = Series(BTreeMap::new());
        fill(&mut series);
        let metrics = series.0.into_iter().map(|(values, value)| {
            let mut pairs: Vec<LabelPair> =
                labels.iter().zip(&values).map(|(name, value)| pair(name, value)).collect();
            pairs.sort();
            let mut metric = Metric::from_label(pairs);
            if kind == MetricType::COUNTER {
                let mut counter = Counter::default();
                counter.set_value(value);
                metric.set_counter(counter);
            } else {
                let mut gauge = Gauge::default();
                gauge.set_value(value);
                metric.set_gauge(gauge);
            }
            metric
        });
        let mut family = MetricFamily::default();
        family.set_name(format!("penstock_{name}"));
        family.set_help(help.to_owned());
        family.set_field_type(kind);
        family.set_metric(metrics.collect());
        self.0.push(family);
    }
}

fn add_pools<V: Value>(series: &mut Series<1>, status: &Status, value: impl Fn(&PoolStatus) -> V) {
    for pool in &status.pools {
        series.add([&pool.name], value(pool));
    }
}

/// The variants of all pools, each with the name of its pool.
pub(super) fn variants(status: &Status) -> impl Iterator<Item = (&str, &VariantStatus)> {
    status.pools.iter().flat_map(|pool| {
        let variants = pool.model.iter().flat_map(|model| &model.variants);
        variants.map(|variant| (&*pool.name, variant))
    })
}

fn pair(name: &str, value: &str) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    pair
}
