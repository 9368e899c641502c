//! What was seen at one endpoint in one window: counted request by request, or by the difference of its server's own
//! totals where the requests say nothing.

use core::time::Duration;

use penstock_model::Traffic;
use penstock_model::workload::Observed;

use crate::types::Totals;

/// One window of one endpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// Requests that were sent there.
    pub(crate) granted: u64,
    served: Mean,
    input: f64,
    cached: f64,
    output: f64,
    ttft: Mean,
    itl: Mean,
}

/// A running mean.
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
        if self.count > 0.0 {
            self.sum / self.count
        } else {
            0.0
        }
    }
}

impl Tally {
    /// A request was served: tokens computed, found in the cache and put out, times where they are known, in
    /// milliseconds.
    pub(crate) fn served(
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

    /// Mean prompt tokens that were found in the cache; `None`: nothing was served.
    pub(crate) fn cached(&self) -> Option<f64> {
        (self.served.count > 0.0).then(|| self.cached / self.served.count)
    }

    /// Nothing happened.
    pub(crate) const fn is_empty(&self) -> bool {
        self.granted == 0 && self.served.count == 0.0
    }

    /// The window's averages; `before` are those of the last window that had some, for what this one doesn't say.
    /// What came and what ended both say how much there is: requests last longer than windows. `None`: there are no
    /// averages.
    pub(crate) fn observed(&self, over: Duration, before: Option<&Observed>) -> Option<Observed> {
        let seconds = over.as_secs_f64();
        if self.is_empty() || seconds <= 0.0 {
            return None;
        }
        let rate = (count(self.granted) + self.served.count) / 2.0 / seconds;
        if self.served.count == 0.0 {
            let mut observed = *before?;
            observed.traffic.rate = rate;
            return Some(observed);
        }
        let or = |mean: &Mean, last: fn(&Observed) -> f64| match before {
            Some(before) if mean.count == 0.0 => last(before),
            _ => mean.value(),
        };
        Some(Observed {
            traffic: Traffic {
                rate,
                input: self.input / self.served.count,
                output: self.output / self.served.count,
            },
            ttft_ms: or(&self.ttft, |it| it.ttft_ms),
            itl_ms: or(&self.itl, |it| it.itl_ms),
            busy: 1,
        })
    }
}

impl Totals {
    /// What happened between two readings; `None`: nothing, or the server has begun anew.
    pub(crate) fn since(&self, earlier: &Self, over: Duration) -> Option<Observed> {
        let seconds = over.as_secs_f64();
        let requests = self.requests.checked_sub(earlier.requests).filter(|it| *it > 0)?;
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
            itl_ms: if decodes > 0 {
                itl_s / count(decodes) * 1_000.0
            } else {
                0.0
            },
            busy: 1,
        })
    }
}

/// A count as a number; exact up to 2^53.
#[expect(
    clippy::cast_precision_loss,
    reason = "counts stay far below 2^53, and means need no more"
)]
pub(crate) const fn count(of: u64) -> f64 {
    of as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);

    #[test]
    fn a_window_is_what_came_and_what_ended() {
        let mut tally = Tally::default();
        assert_eq!(tally.observed(WINDOW, None), None);
        tally.granted = 30;
        assert_eq!(
            tally.observed(WINDOW, None),
            None,
            "nobody knows yet how large they are"
        );
        for _ in 0..9 {
            tally.served(100.0, 10.0, 50.0, Some(40.0), Some(10.0));
        }
        tally.served(200.0, 0.0, 150.0, None, None);
        let observed = tally.observed(WINDOW, None).expect("averages");
        assert_eq!(
            observed.traffic,
            Traffic {
                rate: 2.0,
                input: 110.0,
                output: 60.0
            }
        );
        assert_eq!(
            (observed.ttft_ms, observed.itl_ms, observed.busy),
            (40.0, 10.0, 1)
        );
        assert_eq!(tally.cached(), Some(9.0));
    }

    #[test]
    fn what_a_window_does_not_say_is_as_before() {
        let before = Observed {
            traffic: Traffic {
                rate: 9.0,
                input: 100.0,
                output: 50.0,
            },
            ttft_ms: 40.0,
            itl_ms: 10.0,
            busy: 1,
        };
        let tally = Tally {
            granted: 20,
            ..Tally::default()
        };
        let observed = tally.observed(WINDOW, Some(&before)).expect("averages");
        assert_eq!((observed.traffic.rate, observed.traffic.input), (1.0, 100.0));
        let mut tally = Tally::default();
        tally.served(7.0, 0.0, 3.0, None, None);
        let observed = tally.observed(WINDOW, Some(&before)).expect("averages");
        assert_eq!(
            (observed.traffic.input, observed.ttft_ms, observed.itl_ms),
            (7.0, 40.0, 10.0)
        );
    }

    #[test]
    fn totals_are_read_by_their_difference() {
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
        let observed = later.since(&earlier, WINDOW).expect("something happened");
        assert_eq!(
            observed.traffic,
            Traffic {
                rate: 1.0,
                input: 100.0,
                output: 50.0
            }
        );
        assert!((observed.ttft_ms - 100.0).abs() < 1e-9 && (observed.itl_ms - 20.0).abs() < 1e-9);
        assert_eq!(earlier.since(&later, WINDOW), None, "it has begun anew");
        assert_eq!(later.since(&later, WINDOW), None, "nothing happened");
    }
}
