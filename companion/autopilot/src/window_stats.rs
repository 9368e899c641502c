//! Counts and averages of one endpoint in one window: request by request, or from the totals of its model server where the
//! requests don't show the times.

use core::time::Duration;

use penstock_model::Traffic;
use penstock_model::workload::Observed;

use crate::types::Totals;

/// Counts of one endpoint in one window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WindowStats {
    pub(crate) granted: u64,
    served: Mean,
    input: f64,
    cached: f64,
    output: f64,
    ttft: Mean,
    itl: Mean,
}

/// A sum and its count.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    count: f64,
    sum: f64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.count += 1.0;
        self.sum += value;
    }

    fn value(&self) -> f64 {
        if self.count > 0.0 { self.sum / self.count } else { 0.0 }
    }
}

impl WindowStats {
    /// A request was served. `input`: prompt tokens computed. `cached`: prompt tokens found in the cache.
    pub(crate) fn record(
        &mut self,
        input: f64,
        cached: f64,
        output: f64,
        ttft_ms: Option<f64>,
        itl_ms: Option<f64>,
    ) {
        self.served.add(0.0);
        self.input += input;
        self.cached += cached;
        self.output += output;
        if let Some(ttft_ms) = ttft_ms {
            self.ttft.add(ttft_ms);
        }
        if let Some(itl_ms) = itl_ms {
            self.itl.add(itl_ms);
        }
    }

    /// Mean prompt tokens found in the cache; `None` if no request was served.
    pub(crate) fn cached(&self) -> Option<f64> {
        (self.served.count > 0.0).then(|| self.cached / self.served.count)
    }

    /// No request was granted or served.
    pub(crate) const fn is_empty(&self) -> bool {
        self.granted == 0 && self.served.count == 0.0
    }

    /// The averages of a window of this length; `None` if there are none. A time of 0 was not measured. `before`: the traffic
    /// of the last window that had any, for the sizes of requests if this one served none. The rate is the mean of grants and
    /// completions, because requests may be longer than windows.
    pub(crate) fn averages(&self, length: Duration, before: Option<&Traffic>) -> Option<Observed> {
        let seconds = length.as_secs_f64();
        if self.is_empty() || seconds <= 0.0 {
            return None;
        }
        let rate = (count(self.granted) + self.served.count) / 2.0 / seconds;
        let traffic = if self.served.count == 0.0 {
            Traffic { rate, ..*before? }
        } else {
            Traffic { rate, input: self.input / self.served.count, output: self.output / self.served.count }
        };
        Some(Observed { traffic, ttft_ms: self.ttft.value(), itl_ms: self.itl.value(), busy: 1 })
    }

    /// At least half of the served requests showed both of their times.
    pub(crate) fn is_mostly_timed(&self) -> bool {
        let timed = self.ttft.count.min(self.itl.count);
        timed > 0.0 && 2.0 * timed >= self.served.count
    }
}

/// The values of `preferred`, and the times that it lacks from `other`.
pub(crate) fn with_times_of(preferred: Observed, other: &Observed) -> Observed {
    let measured = |ms: f64, other_ms: f64| if ms > 0.0 { ms } else { other_ms };
    Observed {
        ttft_ms: measured(preferred.ttft_ms, other.ttft_ms),
        itl_ms: measured(preferred.itl_ms, other.itl_ms),
        ..preferred
    }
}

impl Totals {
    /// The averages between two readings; `None` if no request was served, or if the counters were reset.
    pub(crate) fn averages_since(&self, earlier: &Self, length: Duration) -> Option<Observed> {
        let seconds = length.as_secs_f64();
        let requests = self.requests.checked_sub(earlier.requests).filter(|requests| *requests > 0)?;
        let input = self.prompt_tokens.checked_sub(earlier.prompt_tokens)?;
        let output = self.output_tokens.checked_sub(earlier.output_tokens)?;
        let decodes = self.itl_count.checked_sub(earlier.itl_count)?;
        let (ttft_s, itl_s) = (self.ttft_s - earlier.ttft_s, self.itl_s - earlier.itl_s);
        if !(seconds > 0.0 && ttft_s >= 0.0 && itl_s >= 0.0) {
            return None;
        }
        let requests = count(requests);
        Some(Observed {
            traffic: Traffic {
                rate: requests / seconds,
                input: count(input) / requests,
                output: count(output) / requests,
            },
            ttft_ms: ttft_s / requests * 1_000.0,
            itl_ms: if decodes > 0 { itl_s / count(decodes) * 1_000.0 } else { 0.0 },
            busy: 1,
        })
    }
}

/// A count as a number; exact up to 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53, and means need no more")]
pub(crate) const fn count(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);

    #[test]
    fn the_rate_is_the_mean_of_grants_and_completions() {
        let mut stats = WindowStats::default();
        assert_eq!(stats.averages(WINDOW, None), None);
        stats.granted = 30;
        assert_eq!(stats.averages(WINDOW, None), None, "the requests' sizes aren't known yet");
        for _ in 0..9 {
            stats.record(100.0, 10.0, 50.0, Some(40.0), Some(10.0));
        }
        stats.record(200.0, 0.0, 150.0, None, None);
        let observed = stats.averages(WINDOW, None).expect("averages");
        assert_eq!(observed.traffic, Traffic { rate: 2.0, input: 110.0, output: 60.0 });
        assert_eq!((observed.ttft_ms, observed.itl_ms, observed.busy), (40.0, 10.0, 1));
        assert_eq!(stats.cached(), Some(9.0));
    }

    #[test]
    fn sizes_that_a_window_lacks_are_those_of_the_last_one_and_times_are_not() {
        let before = Traffic { rate: 9.0, input: 100.0, output: 50.0 };
        let stats = WindowStats { granted: 20, ..WindowStats::default() };
        let observed = stats.averages(WINDOW, Some(&before)).expect("averages");
        assert_eq!((observed.traffic.rate, observed.traffic.input), (1.0, 100.0));
        assert_eq!((observed.ttft_ms, observed.itl_ms), (0.0, 0.0));
        let mut stats = WindowStats::default();
        stats.record(7.0, 0.0, 3.0, None, Some(10.0));
        let observed = stats.averages(WINDOW, Some(&before)).expect("averages");
        assert_eq!((observed.traffic.input, observed.itl_ms), (7.0, 10.0));
        assert!(!stats.is_mostly_timed());
        let times = Observed { ttft_ms: 40.0, itl_ms: 20.0, ..Observed::default() };
        let filled = with_times_of(observed, &times);
        assert_eq!((filled.traffic.input, filled.ttft_ms, filled.itl_ms), (7.0, 40.0, 10.0));
    }

    #[test]
    fn averages_follow_from_the_difference_of_totals() {
        let earlier = Totals {
            requests: 5,
            prompt_tokens: 50,
            output_tokens: 10,
            ttft_s: 1.0,
            itl_count: 5,
            itl_s: 0.1,
        };
        let later = Totals {
            requests: 15,
            prompt_tokens: 1_050,
            output_tokens: 510,
            ttft_s: 2.0,
            itl_count: 495,
            itl_s: 10.0 - 0.1,
        };
        let observed = later.averages_since(&earlier, WINDOW).expect("requests were served");
        assert_eq!(observed.traffic, Traffic { rate: 1.0, input: 100.0, output: 50.0 });
        assert!((observed.ttft_ms - 100.0).abs() < 1e-9 && (observed.itl_ms - 20.0).abs() < 1e-9);
        assert_eq!(earlier.averages_since(&later, WINDOW), None, "the counters were reset");
        assert_eq!(later.averages_since(&later, WINDOW), None, "no request was served");
    }
}
