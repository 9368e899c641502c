//! The Kalman filter over the same run's windows, all servers of a window together.

use penstock_model::Parameters;
use penstock_model::windows::Windows;
use penstock_model::workload::{Observed, together};

/// One variant's filter.
#[derive(Debug)]
pub(crate) struct Filter(Windows);

impl Default for Filter {
    fn default() -> Self {
        Self(Windows::new(None))
    }
}

impl Filter {
    /// Takes one window of all servers in; what it holds the parameters to be then.
    pub(crate) fn step(&mut self, observed: &[Observed]) -> Option<Parameters> {
        let mut all = together(observed);
        all.traffic.rate /= all.busy.max(1) as f64;
        self.0.observe(&all);
        self.0.parameters()
    }
}
