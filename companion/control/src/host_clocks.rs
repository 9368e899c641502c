//! The clocks of the filters' hosts, by which requests of different sessions keep their order after a takeover or a restart.
//!
//! A Hello gives the ages of its requests, and takes a while to arrive: each Hello another one. A filter therefore also sends what its
//! host's monotonic clock shows. All workers and Envoys of a host read one clock, so the difference between that clock and the
//! companion's is the same for all their sessions, apart from the time that a Hello takes. Sessions whose differences are about
//! equal are taken to share a clock, and are given one difference. The order of their requests is then exact.

use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};

use penstock_engine::Instant;

use crate::limits::{CLOCKS_AGREE, CLOCKS_KEPT, CLOCKS_MAX};

/// The differences between clocks of hosts and the companion's clock, as recent Hellos showed them, in microseconds: the delay of a Hello
/// included.
#[derive(Debug, Default)]
pub(crate) struct HostClocks {
    differences: BTreeSet<i64>,
    /// In the order in which they were first seen. Clocks drift, so each is used for a short time.
    seen: VecDeque<(Instant, i64)>,
}

/// The time at which a filter sent a Hello: a moment of the companion's clock, in microseconds. It may lie in the future by as much as the Hello of
/// another session of that host took longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SentAt(i64);

impl SentAt {
    /// The age, at `now`, of a request that had this age when the Hello was sent.
    pub(crate) fn age(self, now: Instant, age: Duration) -> Duration {
        let since = micros(now).saturating_sub(self.0);
        let elapsed = Duration::from_micros(since.unsigned_abs());
        if since < 0 { age.saturating_sub(elapsed) } else { age.saturating_add(elapsed) }
    }
}

impl HostClocks {
    /// When a Hello was sent whose first part arrives at `now`. `clock_us`: the monotonic clock of the filter's host at that moment; 0: the
    /// Hello has no clock, and counts as sent when it arrived.
    pub(crate) fn sent_at(&mut self, now: Instant, clock_us: u64) -> SentAt {
        self.forget(now);
        let now = (now, micros(now));
        let clock = i64::try_from(clock_us).unwrap_or(i64::MAX);
        if clock == 0 {
            return SentAt(now.1);
        }
        let measured = now.1.saturating_sub(clock);
        let difference = self.known_about(measured).unwrap_or_else(|| {
            self.differences.insert(measured);
            self.seen.push_back((now.0, measured));
            measured
        });
        SentAt(clock.saturating_add(difference))
    }

    /// The known difference that is the closest to this one, if they may be those of one clock.
    fn known_about(&self, measured: i64) -> Option<i64> {
        let agree = i64::try_from(CLOCKS_AGREE.as_micros()).unwrap_or(i64::MAX);
        let (least, most) = (measured.saturating_sub(agree), measured.saturating_add(agree));
        let below = self.differences.range(least..=measured).next_back();
        let above = self.differences.range(measured..=most).next();
        let known = [below, above].into_iter().flatten().copied();
        known.min_by_key(|known| known.abs_diff(measured))
    }

    fn forget(&mut self, now: Instant) {
        while let Some(&(first, difference)) = self.seen.front()
            && (now.since(first) > CLOCKS_KEPT || self.seen.len() >= CLOCKS_MAX)
        {
            self.seen.pop_front();
            self.differences.remove(&difference);
        }
    }
}

fn micros(instant: Instant) -> i64 {
    i64::try_from(instant.as_nanos() / 1_000).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1_000)
    }

    #[test]
    fn hellos_of_one_host_are_sent_when_its_clock_says() {
        let mut clocks = HostClocks::default();
        // The first takes 40 ms, the second 1 ms, the third 90 ms.
        let first = clocks.sent_at(at(1_040_000), 7_000_000);
        let second = clocks.sent_at(at(1_061_000), 7_060_000);
        let third = clocks.sent_at(at(1_160_000), 7_070_000);
        assert_eq!(first, SentAt(1_040_000));
        assert_eq!((second.0 - first.0, third.0 - first.0), (60_000, 70_000));
        let age = Duration::from_millis(50);
        assert_eq!(second.age(at(1_061_000), age), Duration::from_millis(11));
        assert_eq!(second.age(at(1_061_000), Duration::from_millis(2)), Duration::ZERO);
        assert_eq!(third.age(at(1_160_000), age), Duration::from_millis(100));
    }

    #[test]
    fn hellos_of_different_hosts_are_sent_when_they_arrive() {
        let mut clocks = HostClocks::default();
        clocks.sent_at(at(1_000_000), 7_000_000);
        let apart = u64::try_from(CLOCKS_AGREE.as_micros()).unwrap_or_default() + 1;
        for clock in [7_000_000 - apart, 7_000_000 + apart, 99, u64::MAX] {
            assert_eq!(clocks.sent_at(at(1_000_000), clock), SentAt(1_000_000), "{clock}");
        }
    }

    #[test]
    fn a_filter_that_sends_no_clock_is_of_no_host() {
        let mut clocks = HostClocks::default();
        assert_eq!(clocks.sent_at(at(1_000), 0), SentAt(1_000));
        assert_eq!(clocks.sent_at(at(2_000), 0), SentAt(2_000));
    }

    #[test]
    fn differences_are_forgotten_after_a_while_and_above_a_limit() {
        let mut clocks = HostClocks::default();
        clocks.sent_at(at(1_000_000), 7_000_000);
        let later = at(1_000_000).after(CLOCKS_KEPT + Duration::from_millis(50));
        let clock = 7_000_000 + u64::try_from(CLOCKS_KEPT.as_micros()).unwrap_or_default();
        assert_eq!(clocks.sent_at(later, clock), SentAt(micros(later)), "measured again");
        for host in 0..2 * CLOCKS_MAX as u64 {
            clocks.sent_at(later, host * 1_000_000);
        }
        assert!(clocks.seen.len() <= CLOCKS_MAX);
        assert_eq!(clocks.seen.len(), clocks.differences.len());
    }
}
