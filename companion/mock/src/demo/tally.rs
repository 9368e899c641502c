//! Counts of the demo's requests by tenant, as the clients see them.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::client::Ending;

/// Weight of an output token relative to a prompt token: the default of the gateway's policy.
pub(super) const OUTPUT_WEIGHT: f64 = 2.0;
/// The longest time to the first token that the histogram distinguishes.
const TTFT_MAX: Duration = Duration::from_secs(600);

/// Counts of one tenant's requests.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    pub(super) sent: u64,
    pub(super) served: u64,
    pub(super) refused: u64,
    pub(super) cut: u64,
    pub(super) failed: u64,
    /// Requests without a complete response that no limit of the queue refused.
    pub(super) lost: u64,
    /// Outcomes from responses. Failed requests have none.
    pub(super) outcomes: BTreeMap<String, u64>,
    /// Served tokens while all tenants sent, weighted: prompt + 2 x output.
    pub(super) service: f64,
    /// Why the latest failed or cut request failed.
    pub(super) last_failure: Option<String>,
    /// Time to the first token, in microseconds.
    ttft: Histogram<u64>,
}

impl Default for Tally {
    fn default() -> Self {
        let max = TTFT_MAX.as_micros() as u64;
        Self {
            sent: 0,
            served: 0,
            refused: 0,
            cut: 0,
            failed: 0,
            lost: 0,
            outcomes: BTreeMap::new(),
            service: 0.0,
            last_failure: None,
            ttft: Histogram::new_with_bounds(1, max, 3).expect("invariant: 1 < 2 * 1 <= max, 3 digits"),
        }
    }
}

impl Tally {
    pub(super) fn sent(&mut self) {
        self.sent += 1;
    }

    /// Counts a request's end. `counts`: the tokens count for the shares, because all tenants were sending.
    pub(super) fn ended(&mut self, ending: Ending, counts: bool) {
        self.lost += u64::from(ending.is_lost());
        let outcome = match ending {
            Ending::Served { outcome, ttft, input, output } => {
                self.served += 1;
                self.ttft.saturating_record(u64::try_from(ttft.as_micros()).unwrap_or(u64::MAX).max(1));
                if counts {
                    self.service += input as f64 + OUTPUT_WEIGHT * output as f64;
                }
                outcome
            }
            Ending::Refused { outcome, .. } => {
                self.refused += 1;
                outcome
            }
            Ending::Cut { outcome, why } => {
                self.cut += 1;
                self.last_failure = Some(why);
                outcome
            }
            Ending::Failed { why } => {
                self.failed += 1;
                self.last_failure = Some(why);
                return;
            }
        };
        *self.outcomes.entry(outcome).or_default() += 1;
    }

    /// Requests that have ended in any way.
    pub(super) fn ends(&self) -> u64 {
        self.served + self.refused + self.cut + self.failed
    }

    /// Time to the first token at a quantile; `None` if no request was served.
    pub(super) fn ttft(&self, quantile: f64) -> Option<Duration> {
        (!self.ttft.is_empty()).then(|| Duration::from_micros(self.ttft.value_at_quantile(quantile)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ending() -> impl Strategy<Value = Ending> {
        let word = prop_oneof![
            Just("bypassed".to_owned()),
            Just("dispatched".to_owned()),
            Just("displaced".to_owned())
        ];
        prop_oneof![
            (word.clone(), 0..10_000_u64, 0..100_u64, 0..100_u64).prop_map(|(outcome, ms, input, output)| {
                Ending::Served { outcome, ttft: Duration::from_millis(ms), input, output }
            }),
            word.clone().prop_map(|outcome| Ending::Refused { outcome, status: 503, retry_after: None }),
            word.prop_map(|outcome| Ending::Cut { outcome, why: String::new() }),
            Just(Ending::Failed { why: String::new() }),
        ]
    }

    proptest! {
        #[test]
        fn ends_count_every_request_and_outcomes_every_response(
            endings in proptest::collection::vec((ending(), any::<bool>()), 0..200),
        ) {
            let mut tally = Tally::default();
            let mut service = 0.0;
            for (ending, counts) in &endings {
                tally.sent();
                if let (Ending::Served { input, output, .. }, true) = (ending, counts) {
                    service += *input as f64 + 2.0 * *output as f64;
                }
                tally.ended(ending.clone(), *counts);
            }
            prop_assert_eq!(tally.ends(), endings.len() as u64);
            prop_assert_eq!(tally.outcomes.values().sum::<u64>() + tally.failed, tally.sent);
            prop_assert!((tally.service - service).abs() < 1e-6);
            prop_assert_eq!(tally.ttft(0.5).is_some(), tally.served > 0);
            prop_assert!(tally.ttft(0.5) <= tally.ttft(0.99));
        }
    }

    #[test]
    fn quantiles_cover_the_served_requests() {
        let mut tally = Tally::default();
        assert_eq!(tally.ttft(0.5), None);
        for ms in 1..=100 {
            let ttft = Duration::from_millis(ms);
            tally.ended(Ending::Served { outcome: "bypassed".to_owned(), ttft, input: 1, output: 1 }, true);
        }
        let ms = |quantile| tally.ttft(quantile).map(|t| (t.as_secs_f64() * 1e3).round());
        assert_eq!((ms(0.5), ms(0.99)), (Some(50.0), Some(99.0)));
    }
}
