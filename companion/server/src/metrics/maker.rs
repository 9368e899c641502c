//! Makes and registers the families that last from scrape to scrape, and remembers them for the page.

use std::cell::RefCell;

use prometheus::core::{Collector, MetricVec, MetricVecBuilder};
use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry};

/// Decides by a label's name and value whether its series is removed.
type IsGone<'a> = dyn Fn(&str, &str) -> bool + 'a;

/// Makes the families that last, and registers them.
pub(super) struct Maker {
    pub(super) registry: Registry,
    pub(super) families: RefCell<Vec<Family>>,
}

/// The description of a family, for the page when the family has no series.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) name: String,
    pub(super) help: String,
    pub(super) kind: &'static str,
    removable: Removable,
}

/// The series that go when a pool, a model or an endpoint is gone.
#[derive(Debug)]
enum Removable {
    Counters(IntCounterVec),
    Times(HistogramVec),
    None,
}

impl Family {
    /// Removes the series with a label that is gone.
    pub(super) fn remove_series(&self, is_gone: &IsGone<'_>) {
        match &self.removable {
            Removable::Counters(family) => remove_series(family, is_gone),
            Removable::Times(family) => remove_series(family, is_gone),
            Removable::None => {}
        }
    }
}

impl Maker {
    pub(super) fn new() -> Self {
        Self { registry: Registry::new(), families: RefCell::default() }
    }

    fn register<F: Collector + Clone + 'static>(
        &self,
        name: &str,
        help: &str,
        kind: &'static str,
        family: F,
        removable: Removable,
    ) -> prometheus::Result<F> {
        self.registry.register(Box::new(family.clone()))?;
        self.families.borrow_mut().push(Family {
            name: format!("penstock_{name}"),
            help: help.to_owned(),
            kind,
            removable,
        });
        Ok(family)
    }

    pub(super) fn counter(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> prometheus::Result<IntCounterVec> {
        let family = IntCounterVec::new(opts(name, help), labels)?;
        self.register(name, help, "counter", family.clone(), Removable::Counters(family))
    }

    pub(super) fn counter_without_labels(&self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        let counter = IntCounter::with_opts(opts(name, help))?;
        self.register(name, help, "counter", counter, Removable::None)
    }

    pub(super) fn gauge(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntGaugeVec> {
        let family = IntGaugeVec::new(opts(name, help), labels)?;
        self.register(name, help, "gauge", family, Removable::None)
    }

    pub(super) fn seconds(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: &[f64],
    ) -> prometheus::Result<HistogramVec> {
        let options = HistogramOpts { common_opts: opts(name, help), buckets: buckets.to_vec() };
        let family = HistogramVec::new(options, labels)?;
        self.register(name, help, "histogram", family.clone(), Removable::Times(family))
    }
}

fn opts(name: &str, help: &str) -> Opts {
    Opts::new(name, help).namespace("penstock")
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
