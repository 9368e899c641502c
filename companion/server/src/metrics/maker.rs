//! Makes and registers metric families, and remembers them for the page.

use std::cell::RefCell;

use prometheus::core::Collector;
use prometheus::{
    GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry,
};

/// Makes families and registers them.
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
    ) -> prometheus::Result<F> {
        self.registry.register(Box::new(family.clone()))?;
        self.families.borrow_mut().push(Family {
            name: format!("penstock_{name}"),
            help: help.to_owned(),
            kind,
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
        self.register(name, help, "counter", family)
    }

    pub(super) fn counter_without_labels(&self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        let counter = IntCounter::with_opts(opts(name, help))?;
        self.register(name, help, "counter", counter)
    }

    pub(super) fn gauge(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntGaugeVec> {
        let family = IntGaugeVec::new(opts(name, help), labels)?;
        self.register(name, help, "gauge", family)
    }

    pub(super) fn float_gauge(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> prometheus::Result<GaugeVec> {
        let family = GaugeVec::new(opts(name, help), labels)?;
        self.register(name, help, "gauge", family)
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
        self.register(name, help, "histogram", family)
    }
}

fn opts(name: &str, help: &str) -> Opts {
    Opts::new(name, help).namespace("penstock")
}
