//! The limit on dispatches per second: a token bucket in whole numbers.
//!
//! A token has 1e18 parts, and the rate is rounded once, to billionths of a token a second, which makes it a whole
//! number of parts a nanosecond. No sum is ever rounded: a rate of 3 gives exactly 3,000 tokens in 1,000 s however often
//! the bucket is read. The bucket holds one second, at least one token, and is full at first.

use core::time::Duration;

use crate::time::Instant;

/// Parts of a token.
const TOKEN: u128 = 1_000_000_000_000_000_000;
const SECOND: u128 = 1_000_000_000;
/// Parts a nanosecond: 1e12 tokens a second, more than any pool dispatches.
const PARTS_MAX: u128 = 1_000_000_000_000_000_000_000;

/// The bucket of `queue.max_rate`. Without a rate it never runs out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateLimiter(Option<Bucket>);

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Parts that a nanosecond adds, at least 1.
    parts: u128,
    /// Parts in the bucket at `updated`.
    level: u128,
    updated: Instant,
}

impl RateLimiter {
    /// A full bucket. `per_second` is finite and above 0.
    pub(crate) fn new(per_second: Option<f64>, now: Instant) -> Self {
        Self(per_second.map(|per_second| {
            let parts = parts(per_second);
            Bucket { parts, level: capacity(parts), updated: now }
        }))
    }

    /// Changes the rate. The bucket keeps its level as far as that fits. The first rate starts with a full bucket.
    pub(crate) fn set(&mut self, per_second: Option<f64>, now: Instant) {
        *self = match (self.0, per_second) {
            (Some(bucket), Some(per_second)) => {
                let level = bucket.level(now);
                let parts = parts(per_second);
                Self(Some(Bucket {
                    parts,
                    level: level.min(capacity(parts)),
                    updated: bucket.updated.max(now),
                }))
            }
            (None, _) | (_, None) => Self::new(per_second, now),
        };
    }

    /// The bucket holds a token.
    pub(crate) fn has_token(&self, now: Instant) -> bool {
        self.0.is_none_or(|bucket| bucket.level(now) >= TOKEN)
    }

    /// Takes a token. An empty bucket stays empty; no debt remains.
    pub(crate) fn take(&mut self, now: Instant) {
        if let Some(bucket) = &mut self.0 {
            bucket.level = bucket.level(now).saturating_sub(TOKEN);
            bucket.updated = bucket.updated.max(now);
        }
    }

    /// When [`Self::has_token`] becomes true if nothing is taken; `None`: it is true already.
    pub(crate) fn next_token(&self, now: Instant) -> Option<Instant> {
        let bucket = self.0?;
        let missing = TOKEN.checked_sub(bucket.level(now)).filter(|&parts| parts > 0)?;
        let nanos = u64::try_from(missing.div_ceil(bucket.parts)).unwrap_or(u64::MAX);
        Some(bucket.updated.max(now).after(Duration::from_nanos(nanos)))
    }
}

impl Bucket {
    /// A time before the last update adds nothing.
    fn level(&self, now: Instant) -> u128 {
        let added = now.since(self.updated).as_nanos().saturating_mul(self.parts);
        self.level.saturating_add(added).min(capacity(self.parts))
    }
}

fn parts(per_second: f64) -> u128 {
    // A valid policy gives a finite number. The cast saturates at the bounds.
    (libm::rint(per_second * 1e9) as u128).clamp(1, PARTS_MAX)
}

fn capacity(parts: u128) -> u128 {
    (parts * SECOND).max(TOKEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    /// Takes every token.
    fn drained(rate: &mut RateLimiter, now: Instant) -> u64 {
        let mut taken = 0;
        while rate.has_token(now) {
            rate.take(now);
            taken += 1;
        }
        taken
    }

    #[test]
    fn without_a_rate_nothing_runs_out() {
        let mut rate = RateLimiter::new(None, Instant::ZERO);
        rate.take(Instant::ZERO);
        assert!(rate.has_token(Instant::ZERO));
        assert_eq!(rate.next_token(Instant::ZERO), None);
    }

    #[test]
    fn a_bucket_is_one_second_and_at_least_one_token() {
        for (per_second, initial) in [(0.001, 1), (0.5, 1), (1.0, 1), (2.5, 2), (3.0, 3), (1_000.0, 1_000)] {
            let mut rate = RateLimiter::new(Some(per_second), Instant::ZERO);
            assert_eq!(drained(&mut rate, Instant::ZERO), initial, "{per_second}");
            // A day later it holds no more.
            assert_eq!(drained(&mut rate, at(86_400 * 1_000_000_000)), initial, "{per_second}");
        }
    }

    #[test]
    fn a_third_of_a_second_is_not_rounded_away() {
        let mut rate = RateLimiter::new(Some(3.0), Instant::ZERO);
        assert_eq!(drained(&mut rate, Instant::ZERO), 3);
        let (mut now, mut taken) = (Instant::ZERO, 0_u64);
        while taken < 3_000 {
            let next = rate.next_token(now).expect("the bucket is empty");
            assert!(!rate.has_token(next.before(Duration::from_nanos(1))), "not a nanosecond early");
            assert!(rate.has_token(next), "nor late");
            now = next;
            rate.take(now);
            taken += 1;
        }
        assert_eq!(now, at(1_000 * 1_000_000_000), "3,000 tokens are 1,000 s");
    }

    #[test]
    fn frequent_reads_change_nothing() {
        let (mut often, mut rarely) =
            (RateLimiter::new(Some(0.7), Instant::ZERO), RateLimiter::new(Some(0.7), Instant::ZERO));
        for rate in [&mut often, &mut rarely] {
            rate.take(Instant::ZERO);
        }
        for nanos in (0..1_428_000_000).step_by(999_983) {
            often.set(Some(0.7), at(nanos));
            assert!(!often.has_token(at(nanos)));
        }
        assert_eq!(
            often.next_token(at(1_428_000_000)),
            rarely.next_token(Instant::ZERO),
            "10/7 s after the first"
        );
        assert_eq!(rarely.next_token(Instant::ZERO), Some(at(1_428_571_429)));
    }

    #[test]
    fn a_clock_that_stops_or_jumps_back_adds_nothing() {
        let mut rate = RateLimiter::new(Some(2.0), at(1_000_000_000));
        assert_eq!(drained(&mut rate, at(1_000_000_000)), 2);
        for _ in 0..1_000 {
            assert!(!rate.has_token(at(1_000_000_000)));
            rate.take(at(1_000_000_000));
        }
        assert_eq!(rate.next_token(at(1_000_000_000)), Some(at(1_500_000_000)), "no debt remains");
        assert!(!rate.has_token(at(0)));
        assert_eq!(rate.next_token(at(0)), Some(at(1_500_000_000)));
        rate.set(Some(2.0), at(0));
        assert!(rate.has_token(at(1_500_000_000)));
    }

    #[test]
    fn a_new_rate_keeps_the_level_as_far_as_it_fits() {
        let mut rate = RateLimiter::new(Some(10.0), Instant::ZERO);
        rate.set(Some(4.0), Instant::ZERO);
        assert_eq!(drained(&mut rate, Instant::ZERO), 4);
        rate.set(Some(10.0), at(500_000_000));
        assert_eq!(drained(&mut rate, at(500_000_000)), 2, "half a second at 4");
        rate.set(None, at(500_000_000));
        assert!(rate.has_token(at(500_000_000)));
        rate.set(Some(5.0), at(500_000_000));
        assert_eq!(drained(&mut rate, at(500_000_000)), 5, "a first rate begins full");
    }

    #[test]
    fn extremes_stay_in_range() {
        let mut slow = RateLimiter::new(Some(f64::MIN_POSITIVE), Instant::ZERO);
        slow.take(Instant::ZERO);
        assert_eq!(
            slow.next_token(Instant::ZERO),
            Some(at(1_000_000_000_000_000_000)),
            "a billionth of a token a second"
        );
        let mut fast = RateLimiter::new(Some(f64::MAX), Instant::ZERO);
        fast.take(Instant::MAX);
        assert!(fast.has_token(Instant::MAX));
    }
}
