//! Stands in for the exporter of spans in a binary without the feature `otlp`.

use tokio::sync::mpsc;

use super::Ended;
use crate::metrics::Metrics;

/// An exporter that can't be made, so there is none.
#[derive(Debug)]
pub(super) enum Exporter {}

impl Exporter {
    /// Always fails.
    pub(super) fn from_environment(_metrics: &Metrics) -> Result<Self, String> {
        Err("this binary was built without otlp; build it with `--features otlp`".to_owned())
    }

    pub(super) async fn run(self, _ended: mpsc::Receiver<Ended>, _ending: impl Future<Output = ()>) {
        match self {}
    }
}
