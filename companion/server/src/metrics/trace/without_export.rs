//! Replaces the exporter of spans in a binary without the feature `otlp`.

use tokio::sync::mpsc;

use super::{Settings, SpanRecord};
use crate::metrics::Metrics;

/// Never constructed: building an exporter fails.
#[derive(Debug)]
pub(super) enum Exporter {}

impl Exporter {
    /// Always fails.
    pub(super) fn new(_settings: &Settings, _metrics: &Metrics) -> Result<Self, String> {
        Err("this binary was built without otlp; build it with `--features otlp`".to_owned())
    }

    pub(super) async fn run(self, _records: mpsc::Receiver<SpanRecord>, _ending: impl Future<Output = ()>) {
        match self {}
    }
}
