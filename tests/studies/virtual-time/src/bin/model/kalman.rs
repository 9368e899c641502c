//! A Kalman filter over the windows of a run. It combines all servers of a window into one observation.

use penstock_model::Parameters;
use penstock_model::window_estimator::WindowEstimator;
use penstock_model::workload::{Observed, aggregate};

/// One variant's filter.
#[derive(Debug)]
pub(crate) struct Filter(WindowEstimator);

impl Default for Filter {
    fn default() -> Self {
        Self(WindowEstimator::new(None))
    }
}

impl Filter {
    /// Processes one window of all servers and returns the filter's parameters.
    pub(crate) fn step(&mut self, observed: &[Observed]) -> Option<Parameters> {
        let mut all = aggregate(observed);
        all.traffic.rate /= all.busy.max(1) as f64;
        self.0.observe(&all);
        self.0.parameters()
    }
}
