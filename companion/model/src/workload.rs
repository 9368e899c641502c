//! What endpoints were seen to do, averaged: weighted by arrival rate, busy ones only.

use crate::closed_form::Traffic;

/// One endpoint in one window, or several of them together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Observed {
    /// Requests per second and their mean size.
    pub traffic: Traffic,
    /// Mean time to the first token; 0: it wasn't seen.
    pub ttft_ms: f64,
    /// Mean time between tokens; 0: it wasn't seen.
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

/// All of `windows` together: rates add, the rest is weighted by them, and a time that a window hasn't seen is none of
/// the mean. Nothing busy: all zero.
#[must_use]
pub fn together(windows: &[Observed]) -> Observed {
    let is_busy = |it: &&Observed| it.traffic.rate > 0.0 && it.traffic.rate.is_finite();
    let busy = || windows.iter().filter(is_busy);
    let mean = |of: fn(&Observed) -> f64, is_seen: fn(f64) -> bool| {
        let seen = busy().filter(|it| is_seen(of(it)));
        let (rate, sum) = seen.fold((0.0, 0.0), |(rate, sum), it| {
            (rate + it.traffic.rate, sum + it.traffic.rate * of(it))
        });
        if rate > 0.0 { sum / rate } else { 0.0 }
    };
    Observed {
        traffic: Traffic {
            rate: busy().map(|it| it.traffic.rate).sum(),
            input: mean(|it| it.traffic.input, |_| true),
            output: mean(|it| it.traffic.output, |_| true),
        },
        ttft_ms: mean(|it| it.ttft_ms, |ms| ms > 0.0),
        itl_ms: mean(|it| it.itl_ms, |ms| ms > 0.0),
        busy: busy().map(|it| it.busy.max(1)).sum(),
    }
}
