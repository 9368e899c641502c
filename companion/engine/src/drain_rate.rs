//! The rate at which the pool drains, and the wait that follows from it: requests ahead over the rate.
//!
//! The rate is the last [`KEPT`] completions over the time they took, on a clock that runs only while the pool is
//! saturated, because an idle pool doesn't show how fast its queue could drain. Before the first completion the rate is
//! taken as one completion over the saturated time so far, so the predicted wait of a pool that serves nothing grows.

use core::time::Duration;

use crate::limits::RETRY_AFTER_MAX_S;
use crate::rng::Rng;
use crate::time::Instant;

const KEPT: usize = 64;

#[derive(Debug)]
pub(crate) struct DrainRate {
    /// Saturated nanoseconds up to `updated`.
    elapsed: u64,
    updated: Instant,
    saturated: bool,
    /// A ring of the values of `elapsed` at the last completions.
    completions: [u64; KEPT],
    count: usize,
}

impl DrainRate {
    pub(crate) const fn new(now: Instant) -> Self {
        Self { elapsed: 0, updated: now, saturated: false, completions: [0; KEPT], count: 0 }
    }

    /// Advances the clock to `now`, and starts or stops it.
    pub(crate) const fn advance(&mut self, now: Instant, saturated: bool) {
        if self.saturated {
            self.elapsed =
                self.elapsed.saturating_add(now.as_nanos().saturating_sub(self.updated.as_nanos()));
        }
        self.updated = now;
        self.saturated = saturated;
    }

    /// Records a completion at the clock's time. Completions outside saturation don't count.
    pub(crate) const fn completed(&mut self) {
        if self.saturated {
            self.completions[self.count % KEPT] = self.elapsed;
            self.count += 1;
        }
    }

    /// A request was completed while the pool was saturated.
    pub(crate) const fn is_measured(&self) -> bool {
        self.count > 0
    }

    /// The wait of a request with `ahead` requests before it, from 1 s to [`RETRY_AFTER_MAX_S`]. `expected`:
    /// completions per second by the performance models, used until there is a measurement.
    pub(crate) fn wait(&self, ahead: u64, expected: Option<f64>) -> Duration {
        let wait = match expected.filter(|_| !self.is_measured()) {
            Some(rate) => ahead_over(ahead, rate),
            None => self.measured(ahead),
        };
        wait.clamp(Duration::from_secs(1), Duration::from_secs(RETRY_AFTER_MAX_S))
    }

    /// The wait without limits; `None`: neither measured nor expected.
    pub(crate) fn prediction(&self, ahead: u64, expected: Option<f64>) -> Option<Duration> {
        if self.is_measured() {
            return Some(self.measured(ahead));
        }
        expected.map(|rate| ahead_over(ahead, rate))
    }

    fn measured(&self, ahead: u64) -> Duration {
        let (drained, since) = match self.count {
            0 => (1, 0),
            few if few < KEPT => (few, 0),
            many => (KEPT, self.completions[many % KEPT]),
        };
        let span = u128::from(self.elapsed.saturating_sub(since));
        let wait = span.saturating_mul(ahead.into()) / drained as u128;
        Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX))
    }

    /// [`Self::wait`] with up to a tenth of jitter, so that requests rejected together don't come back together.
    pub(crate) fn retry_after(&self, ahead: u64, expected: Option<f64>, rng: &mut Rng) -> Duration {
        let wait = self.wait(ahead, expected);
        let random = u64::from(rng.next_u32() >> 16);
        let jitter = wait / 10 * u32::from(random as u16) / 65_536;
        (wait + jitter).min(Duration::from_secs(RETRY_AFTER_MAX_S))
    }
}

/// A valid rate gives a finite number. The cast saturates at the bounds.
fn ahead_over(ahead: u64, rate: f64) -> Duration {
    Duration::from_nanos((ahead as f64 / rate * 1e9) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * SECOND)
    }

    fn between(wait: Duration, seconds: u64) {
        let least = Duration::from_secs(seconds);
        assert!(wait >= least && wait <= least + least / 10, "{wait:?}, not {seconds} s and up to a tenth");
    }

    #[test]
    fn the_wait_is_the_position_over_the_rate_in_saturated_time() {
        let mut rng = Rng::new(1);
        let mut rate = DrainRate::new(at(0));
        between(rate.retry_after(1_000, None, &mut rng), 1);
        rate.advance(at(100), true);
        for second in 101..=110 {
            rate.advance(at(second), true);
            rate.completed();
            rate.completed();
        }
        // Two a second. The 100 s before and the idle hour after don't count.
        between(rate.retry_after(20, None, &mut rng), 10);
        rate.advance(at(110), false);
        rate.completed();
        rate.advance(at(3_710), true);
        between(rate.retry_after(20, None, &mut rng), 10);
        between(rate.retry_after(1, None, &mut rng), 1);
        assert_eq!(rate.retry_after(u64::MAX, None, &mut rng), Duration::from_secs(RETRY_AFTER_MAX_S));
    }

    #[test]
    fn only_the_last_completions_count() {
        let mut rng = Rng::new(1);
        let mut rate = DrainRate::new(at(0));
        rate.advance(at(0), true);
        for second in 1..=10 {
            rate.advance(at(second * 1_000), true);
            rate.completed();
        }
        for second in 1..=64 {
            rate.advance(at(10_000 + second), true);
            rate.completed();
        }
        between(rate.retry_after(63, None, &mut rng), 62);
    }
}
