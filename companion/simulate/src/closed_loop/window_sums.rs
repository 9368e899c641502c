//! Sums over the requests that one server finished in the current window.

use penstock_model::Traffic;
use penstock_model::workload::Observed;

use super::record::Finished;

/// Sums over the requests that one server finished in the current window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WindowSums {
    requests: f64,
    input: f64,
    output: f64,
    ttft_ms: f64,
    itl_ms: f64,
}

impl WindowSums {
    pub(super) fn add(&mut self, finished: &Finished) {
        self.requests += 1.0;
        self.input += finished.input as f64;
        self.output += finished.output as f64;
        self.ttft_ms += finished.ttft_ms();
        self.itl_ms += finished.itl_ms();
    }

    pub(super) fn observed(&self, seconds: f64) -> Observed {
        if self.requests == 0.0 || seconds == 0.0 {
            return Observed::default();
        }
        Observed {
            traffic: Traffic {
                rate: self.requests / seconds,
                input: self.input / self.requests,
                output: self.output / self.requests,
            },
            ttft_ms: self.ttft_ms / self.requests,
            itl_ms: self.itl_ms / self.requests,
            busy: 1,
        }
    }
}
