//! When to try again: what would wait ahead, over the rate at which the pool drains.
//!
//! The rate is the last [`KEPT`] completions over the time they took, on a clock that runs only while the pool
//! is saturated: idle time says nothing about how fast a queue goes. Before the first completion it is taken as
//! one over the saturated time so far, so a pool that serves nothing asks for ever longer waits.

use core::time::Duration;

use crate::limits::RETRY_AFTER_MAX_S;
use crate::rng::Rng;
use crate::time::Instant;

const KEPT: usize = 64;

#[derive(Debug)]
pub(crate) struct DrainRate {
    /// Saturated nanoseconds up to `at`.
    elapsed: u64,
    at: Instant,
    saturated: bool,
    /// Of `elapsed`, at the last completions; a ring.
    completions: [u64; KEPT],
    count: usize,
}

impl DrainRate {
    pub(crate) const fn new(now: Instant) -> Self {
        Self {
            elapsed: 0,
            at: now,
            saturated: false,
            completions: [0; KEPT],
            count: 0,
        }
    }

    /// Brings the clock to `now`; from here on the pool is `saturated` or isn't.
    pub(crate) const fn advance(&mut self, now: Instant, saturated: bool) {
        if self.saturated {
            self.elapsed = self
                .elapsed
                .saturating_add(now.as_nanos().saturating_sub(self.at.as_nanos()));
        }
        self.at = now;
        self.saturated = saturated;
    }

    /// One was served, at the time the clock shows.
    pub(crate) const fn completed(&mut self) {
        if self.saturated {
            self.completions[self.count % KEPT] = self.elapsed;
            self.count += 1;
        }
    }

    /// Something was served while the pool was saturated.
    pub(crate) const fn is_measured(&self) -> bool {
        self.count > 0
    }

    /// How long one with `ahead` before it waits, from 1 s to the limit. `expected`: completions per second, as a model
    /// of the servers says, for where nothing was measured.
    pub(crate) fn wait(&self, ahead: u64, expected: Option<f64>) -> Duration {
        let wait = match expected.filter(|_| !self.is_measured()) {
            Some(rate) => over(ahead, rate),
            None => self.measured(ahead),
        };
        wait.clamp(Duration::from_secs(1), Duration::from_secs(RETRY_AFTER_MAX_S))
    }

    /// The same without limits; `None`: nothing was measured, and nothing is expected.
    pub(crate) fn prediction(&self, ahead: u64, expected: Option<f64>) -> Option<Duration> {
        if self.is_measured() {
            return Some(self.measured(ahead));
        }
        expected.map(|rate| over(ahead, rate))
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

    /// The same, up to a tenth more by lot within the limit: who are refused together don't come back together.
    pub(crate) fn retry_after(&self, ahead: u64, expected: Option<f64>, rng: &mut Rng) -> Duration {
        let wait = self.wait(ahead, expected);
        let lot = u64::from(rng.next_u32() >> 16);
        let jitter = wait / 10 * u32::from(lot as u16) / 65_536;
        (wait + jitter).min(Duration::from_secs(RETRY_AFTER_MAX_S))
    }
}

/// What isn't finite can't come of a valid rate; the cast takes it to a bound.
fn over(ahead: u64, rate: f64) -> Duration {
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
        assert!(
            wait >= least && wait <= least + least / 10,
            "{wait:?}, not {seconds} s and up to a tenth"
        );
    }

    #[test]
    fn position_over_rate_of_saturated_time() {
        let mut rng = Rng::new(1);
        let mut rate = DrainRate::new(at(0));
        between(rate.retry_after(1_000, None, &mut rng), 1);
        rate.advance(at(100), true);
        for second in 101..=110 {
            rate.advance(at(second), true);
            rate.completed();
            rate.completed();
        }
        // Two a second: the 100 s before, and an hour of idling after, don't count.
        between(rate.retry_after(20, None, &mut rng), 10);
        rate.advance(at(110), false);
        rate.completed();
        rate.advance(at(3_710), true);
        between(rate.retry_after(20, None, &mut rng), 10);
        between(rate.retry_after(1, None, &mut rng), 1);
        assert_eq!(
            rate.retry_after(u64::MAX, None, &mut rng),
            Duration::from_secs(RETRY_AFTER_MAX_S)
        );
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
