//! Compares the wall clock with the passage of time, so that the controls know of a clock that jumps.

use std::time::Duration;

use penstock_engine::Instant;

use crate::base::clock;

/// How often the clocks are compared, at most.
const INTERVAL: Duration = Duration::from_secs(1);
/// The difference from which on UTC has changed.
const TOLERANCE: Duration = Duration::from_millis(500);

/// UTC as it was sent last.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UtcWatch {
    /// UTC, and when it was; `None`: it was never sent.
    sent: Option<(Duration, Instant)>,
    compared: Instant,
}

impl UtcWatch {
    /// UTC since 1970 began, if it isn't what follows from the one before and the time since.
    pub(crate) fn changed(&mut self, now: Instant) -> Option<Duration> {
        if self.sent.is_some() && now.since(self.compared) < INTERVAL {
            return None;
        }
        self.compared = now;
        self.changed_to(now, clock::unix())
    }

    fn changed_to(&mut self, now: Instant, utc: Duration) -> Option<Duration> {
        let expected = self.sent.map(|(sent, then)| sent.saturating_add(now.since(then)));
        if expected.is_some_and(|expected| expected.abs_diff(utc) < TOLERANCE) {
            return None;
        }
        self.sent = Some((utc, now));
        Some(utc)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_jumps_is_noticed_and_one_that_runs_is_not() {
        let mut watch = UtcWatch::default();
        let second = Instant::from_nanos(1_000_000_000);
        let utc = Duration::from_secs(2_000_000_000);
        assert_eq!(watch.changed_to(second, utc), Some(utc));
        let later = second.after(Duration::from_secs(90));
        assert_eq!(watch.changed_to(later, utc + Duration::from_millis(90_400)), None);
        for jumped in [utc, utc + Duration::from_secs(3_600)] {
            assert_eq!(watch.changed_to(later, jumped), Some(jumped));
            assert_eq!(watch.changed_to(later, jumped), None);
        }
    }
}
