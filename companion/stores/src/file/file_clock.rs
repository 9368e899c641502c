//! The clock of a file. It never jumps while a companion runs: it continues from the last write, by the time for which the companion was
//! away as the wall clock shows it, and then by the monotonic clock. A wall clock that is set ahead would otherwise make everything in the
//! file older than it is, and the next write would delete it.

use std::time::Duration;

use tokio::time::Instant;

use crate::millis;

/// The file's clock and the wall clock at the last write of a file, in milliseconds since 1970.
pub(super) type LastWrite = (u64, u64);

#[derive(Clone, Copy, Debug)]
pub(super) struct FileClock {
    /// The file's clock when the file was opened.
    at_open: Duration,
    /// The wall clock at that time.
    wall_at_open: Duration,
    opened: Instant,
}

impl FileClock {
    /// `wall`: the wall clock now. A file that was never written begins with it. Its clock doesn't go back with the wall clock.
    pub(super) fn resume(last: Option<LastWrite>, wall: Duration) -> Self {
        let at_open = last.map_or(wall, |(clock, wall_then)| {
            let away = wall.saturating_sub(Duration::from_millis(wall_then));
            Duration::from_millis(clock).saturating_add(away)
        });
        Self { at_open, wall_at_open: wall, opened: Instant::now() }
    }

    /// The present moment, at which the wall clock shows `wall`.
    pub(super) fn moment(&self, wall: Duration) -> Moment {
        self.moment_at(Instant::now(), wall)
    }

    fn moment_at(&self, monotonic: Instant, wall: Duration) -> Moment {
        let passed = monotonic.saturating_duration_since(self.opened);
        let steady = self.wall_at_open.saturating_add(passed);
        Moment {
            clock: self.at_open.saturating_add(passed),
            wall,
            earliest: wall.min(steady),
            latest: wall.max(steady),
            monotonic,
        }
    }
}

/// A moment on all clocks. Times are since 1970.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// By the file's clock. Everything but days and months is written and read by it.
    pub(super) clock: Duration,
    /// By the wall clock.
    pub(super) wall: Duration,
    /// By the wall clock if it hasn't jumped since the file was opened, or as it is: the earlier and the later of both.
    pub(super) earliest: Duration,
    pub(super) latest: Duration,
    pub(super) monotonic: Instant,
}

impl Moment {
    /// What [`FileClock::resume`] needs after a write at this moment.
    pub(super) fn last_write(&self) -> LastWrite {
        (millis(self.clock), millis(self.wall))
    }

    /// A moment at which all clocks show the same.
    #[cfg(test)]
    pub(super) fn of(time: Duration) -> Self {
        Self { clock: time, wall: time, earliest: time, latest: time, monotonic: Instant::now() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);
    const START: Duration = Duration::from_secs(1_700_000_000);

    #[test]
    fn a_wall_clock_that_jumps_while_the_companion_runs_changes_nothing() {
        let clock = FileClock::resume(None, START);
        for wall in [START + HOUR, START + 5_000 * HOUR, START - 5_000 * HOUR] {
            let moment = clock.moment_at(clock.opened + HOUR, wall);
            assert_eq!(moment.clock, START + HOUR, "{wall:?}");
            // The next companion starts two hours later, by the same clock.
            let next = FileClock::resume(Some(moment.last_write()), wall + 2 * HOUR);
            assert_eq!(next.at_open - moment.clock, 2 * HOUR);
        }
    }

    #[test]
    fn a_clock_that_was_set_back_meanwhile_counts_as_no_time() {
        let moment = FileClock::resume(None, START).moment(START);
        let next = FileClock::resume(Some(moment.last_write()), START - HOUR);
        assert!(next.at_open >= START && next.at_open < START + HOUR);
    }

    #[test]
    fn days_are_judged_by_the_wall_clock_before_and_after_its_jump() {
        let moment = FileClock::resume(None, START).moment(START + 900 * HOUR);
        assert!(moment.earliest < START + HOUR && moment.latest == START + 900 * HOUR);
    }
}
