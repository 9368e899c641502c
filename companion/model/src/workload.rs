//! What endpoints were seen to do, averaged: weighted by arrival rate, busy ones only.

use crate::closed_form::Traffic;

/// One endpoint in one window, or several of them together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Observed {
    /// Requests per second and their mean size.
    pub traffic: Traffic,
    /// Mean time to the first token.
    pub ttft_ms: f64,
    /// Mean time between tokens.
    pub itl_ms: f64,
    /// Endpoints of a rate above 0.
    pub busy: usize,
}

impl Observed {
    /// The traffic of one endpoint, if all that were busy had the same part of it.
    #[must_use]
    pub fn per_server(&self) -> Traffic {
        Traffic {
            rate: self.traffic.rate / self.busy.max(1) as f64,
            ..self.traffic
        }
    }
}

/// All of `windows` together: rates add, the rest is weighted by them. Nothing busy: all zero.
#[must_use]
pub fn together(windows: &[Observed]) -> Observed {
    let mut sum = Observed::default();
    for window in windows {
        let rate = window.traffic.rate;
        if !(rate > 0.0 && rate.is_finite()) {
            continue;
        }
        sum.traffic.rate += rate;
        sum.traffic.input += rate * window.traffic.input;
        sum.traffic.output += rate * window.traffic.output;
        sum.ttft_ms += rate * window.ttft_ms;
        sum.itl_ms += rate * window.itl_ms;
        sum.busy += window.busy.max(1);
    }
    if sum.busy > 0 {
        let rate = sum.traffic.rate;
        sum.traffic.input /= rate;
        sum.traffic.output /= rate;
        sum.ttft_ms /= rate;
        sum.itl_ms /= rate;
    }
    sum
}
