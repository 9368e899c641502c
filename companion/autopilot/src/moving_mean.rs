//! The mean request: over the last window if it had many requests, otherwise also over windows before it.
//!
//! A window of ten requests predicts the next ten badly, and n* and the replica count, which follow from the mean, would jump
//! at random. The price: a change of the traffic has its full effect only after [`REQUESTS`] requests.

use core::time::Duration;

use penstock_model::Traffic;

/// Requests that the mean covers.
const REQUESTS: f64 = 256.0;
/// The greatest weight that the past keeps over a window, however few requests the window had.
const LEFT_MAX: f64 = 0.97;
/// The assumed mean request before the first window.
const ASSUMED: Traffic = Traffic { rate: 0.0, input: 256.0, output: 256.0 };

/// A mean that forgets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MovingMean {
    /// The weight of the mean, in requests.
    requests: f64,
    traffic: Traffic,
    cached: f64,
}

impl MovingMean {
    pub(crate) fn add(&mut self, traffic: &Traffic, cached: f64, length: Duration) {
        let requests = traffic.rate * length.as_secs_f64();
        if requests.is_nan() || requests <= 0.0 {
            return;
        }
        let past = self.requests * (1.0 - requests / REQUESTS).clamp(0.0, LEFT_MAX);
        let total = past + requests;
        let mean = |before: f64, now: f64| (before * past + now * requests) / total;
        self.traffic = Traffic {
            rate: traffic.rate,
            input: mean(self.traffic.input, traffic.input),
            output: mean(self.traffic.output, traffic.output),
        };
        self.cached = mean(self.cached, cached);
        self.requests = total;
    }

    /// The mean request. The rate is that of the last window with requests.
    pub(crate) fn traffic(&self) -> Traffic {
        if self.requests > 0.0 { self.traffic } else { ASSUMED }
    }

    /// Prompt tokens of them that are in an endpoint's cache already.
    pub(crate) const fn cached(&self) -> f64 {
        self.cached
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);

    fn traffic(rate: f64, input: f64) -> Traffic {
        Traffic { rate, input, output: 10.0 }
    }

    #[test]
    fn a_window_of_many_requests_replaces_the_mean_and_one_of_few_moves_it() {
        let mut mean = MovingMean::default();
        assert_eq!(mean.traffic(), ASSUMED);
        mean.add(&traffic(100.0, 1_000.0), 7.0, WINDOW);
        assert_eq!((mean.traffic(), mean.cached()), (traffic(100.0, 1_000.0), 7.0));
        mean.add(&traffic(100.0, 2_000.0), 7.0, WINDOW);
        assert_eq!(mean.traffic().input, 2_000.0, "the window had enough requests");
        let mut few = MovingMean::default();
        for index in 0..400 {
            few.add(&traffic(1.0, if index % 2 == 0 { 100.0 } else { 300.0 }), 0.0, WINDOW);
        }
        assert!((few.traffic().input - 200.0).abs() < 10.0, "{few:?}");
        for _ in 0..100 {
            few.add(&traffic(1.0, 1_000.0), 0.0, WINDOW);
        }
        assert!((few.traffic().input - 1_000.0).abs() < 30.0, "{few:?}");
        few.add(&traffic(0.0, 1.0), 0.0, WINDOW);
        assert!(few.traffic().input > 900.0, "a window without requests changes nothing");
    }
}
