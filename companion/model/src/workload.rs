//! The measured workload of endpoints, and averages of it weighted by arrival rate. Endpoints without traffic don't
//! count.

use crate::closed_form::Traffic;

/// Measurements of one endpoint in one window, or the aggregate of several.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Observed {
    /// Requests per second and their mean sizes.
    pub traffic: Traffic,
    /// Mean time to the first token, in milliseconds; 0 if not measured.
    pub ttft_ms: f64,
    /// Mean time between tokens, in milliseconds; 0 if not measured.
    pub itl_ms: f64,
    /// Number of endpoints with a rate above 0.
    pub busy: usize,
}

impl Observed {
    /// The traffic of one endpoint, as if all busy ones shared it equally.
    #[must_use]
    pub fn per_server(&self) -> Traffic {
        Traffic { rate: self.traffic.rate / self.busy.max(1) as f64, ..self.traffic }
    }
}

/// The aggregate of `windows`: rates add up, everything else is a mean weighted by rate. A window that didn't measure
/// a time is left out of that mean. Without any traffic, all values are 0.
#[must_use]
pub fn aggregate(windows: &[Observed]) -> Observed {
    let is_busy = |window: &&Observed| window.traffic.rate > 0.0 && window.traffic.rate.is_finite();
    let busy = || windows.iter().filter(is_busy);
    let mean = |value: fn(&Observed) -> f64, is_measured: fn(f64) -> bool| {
        let measured = busy().filter(|window| is_measured(value(window)));
        let (rate, sum) = measured.fold((0.0, 0.0), |(rate, sum), window| {
            let weight = window.traffic.rate;
            (rate + weight, sum + weight * value(window))
        });
        if rate > 0.0 { sum / rate } else { 0.0 }
    };
    Observed {
        traffic: Traffic {
            rate: busy().map(|window| window.traffic.rate).sum(),
            input: mean(|window| window.traffic.input, |_| true),
            output: mean(|window| window.traffic.output, |_| true),
        },
        ttft_ms: mean(|window| window.ttft_ms, |ms| ms > 0.0),
        itl_ms: mean(|window| window.itl_ms, |ms| ms > 0.0),
        busy: busy().map(|window| window.busy.max(1)).sum(),
    }
}
