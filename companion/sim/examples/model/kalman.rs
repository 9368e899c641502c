//! The Kalman filter over the same run's windows, all servers of a window together.

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
    /// Takes one window of all servers in; what it holds the parameters to be then.
    pub(crate) fn step(&mut self, observed: &[Observed]) -> Option<Parameters> {
        let mut all = aggregate(observed);
        all.traffic.rate /= all.busy.max(1) as f64;
        self.0.observe(&all);
        self.0.parameters()
    }
}
