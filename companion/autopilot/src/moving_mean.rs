//! What requests are like of late: the mean over a window where it had many, and over as many before where it had few.
//!
//! A window of ten requests says little about the next ten; what follows from their mean, n* and the replicas, would
//! jump with chance. The trade-off: a change of the traffic is seen in full only after so many requests.

use core::time::Duration;

use penstock_model::Traffic;

/// Requests that a mean rests on.
const REQUESTS: f64 = 256.0;
/// The part of what is remembered that a window leaves, however few requests it had.
const LEFT_MAX: f64 = 0.97;
/// What requests are taken to be like before any was seen.
const ASSUMED: Traffic = Traffic {
    rate: 0.0,
    input: 256.0,
    output: 256.0,
};

/// Means of late.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Blend {
    /// Requests that they rest on.
    requests: f64,
    traffic: Traffic,
    cached: f64,
}

impl Blend {
    /// Takes a window in.
    pub(crate) fn add(&mut self, traffic: &Traffic, cached: f64, over: Duration) {
        let requests = traffic.rate * over.as_secs_f64();
        if requests.is_nan() || requests <= 0.0 {
            return;
        }
        let left = self.requests * (1.0 - requests / REQUESTS).clamp(0.0, LEFT_MAX);
        let all = left + requests;
        let blend = |before: f64, now: f64| (before * left + now * requests) / all;
        self.traffic = Traffic {
            rate: traffic.rate,
            input: blend(self.traffic.input, traffic.input),
            output: blend(self.traffic.output, traffic.output),
        };
        self.cached = blend(self.cached, cached);
        self.requests = all;
    }

    /// Requests like the mean; the rate is that of the last window that had some.
    pub(crate) fn traffic(&self) -> Traffic {
        if self.requests > 0.0 {
            self.traffic
        } else {
            ASSUMED
        }
    }

    /// Prompt tokens of them that are in a server's cache already.
    pub(crate) const fn cached(&self) -> f64 {
        self.cached
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);

    fn of(rate: f64, input: f64) -> Traffic {
        Traffic {
            rate,
            input,
            output: 10.0,
        }
    }

    #[test]
    fn many_requests_speak_for_themselves_and_few_with_those_before() {
        let mut blend = Blend::default();
        assert_eq!(blend.traffic(), ASSUMED);
        blend.add(&of(100.0, 1_000.0), 7.0, WINDOW);
        assert_eq!((blend.traffic(), blend.cached()), (of(100.0, 1_000.0), 7.0));
        blend.add(&of(100.0, 2_000.0), 7.0, WINDOW);
        assert_eq!(blend.traffic().input, 2_000.0, "there were enough");
        let mut few = Blend::default();
        for at in 0..400 {
            few.add(&of(1.0, if at % 2 == 0 { 100.0 } else { 300.0 }), 0.0, WINDOW);
        }
        assert!((few.traffic().input - 200.0).abs() < 10.0, "{few:?}");
        for _ in 0..100 {
            few.add(&of(1.0, 1_000.0), 0.0, WINDOW);
        }
        assert!((few.traffic().input - 1_000.0).abs() < 30.0, "{few:?}");
        few.add(&of(0.0, 1.0), 0.0, WINDOW);
        assert!(few.traffic().input > 900.0, "nothing says nothing");
    }
}
