//! The steps in which the windows count, at a moment.

use core::time::Duration;

use super::Now;
use super::calendar::{Calendar, Unit};
use super::window::StepNumber;
use crate::input::{BudgetUsage, UsedAt};
use crate::limits::BUDGET_STEPS;
use crate::policy::BudgetPeriod;
use crate::time::Instant;

/// The present moment, and the steps of calendar windows then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(super) at: Instant,
    day: StepNumber,
    month: StepNumber,
}

impl Moment {
    pub(super) const fn of(calendar: &Calendar, now: Instant) -> Self {
        Self { at: now, day: calendar.step(Unit::Day), month: calendar.step(Unit::Month) }
    }

    /// The step of a window of this period.
    pub(super) fn step(&self, period: BudgetPeriod) -> StepNumber {
        match period {
            BudgetPeriod::Sliding(duration) => number(i128::from(self.at.as_nanos()), duration),
            BudgetPeriod::Day => self.day,
            BudgetPeriod::Month => self.month,
        }
    }

    /// The step of a sliding window that contained the time so long ago.
    pub(super) fn step_ago(&self, duration: Duration, ago: Duration) -> StepNumber {
        let ago = i128::try_from(ago.as_nanos()).unwrap_or(i128::MAX);
        number(i128::from(self.at.as_nanos()).saturating_sub(ago), duration)
    }
}

/// A moment that may be before the owner's origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PastMoment {
    nanos: i128,
    day: StepNumber,
    month: StepNumber,
}

impl PastMoment {
    /// The step of a window of this period.
    pub(super) fn step(&self, period: BudgetPeriod) -> StepNumber {
        match period {
            BudgetPeriod::Sliding(duration) => number(self.nanos, duration),
            BudgetPeriod::Day => self.day,
            BudgetPeriod::Month => self.month,
        }
    }

    pub(super) fn is_before(&self, instant: Instant) -> bool {
        self.nanos < i128::from(instant.as_nanos())
    }

    pub(super) const fn is_later_than(&self, other: &Self) -> bool {
        self.nanos > other.nanos
    }
}

/// The number of the step of a sliding window that contains a time. Steps before the owner's origin have negative numbers.
fn number(nanos: i128, window: Duration) -> StepNumber {
    let (width, _) = steps(window);
    let number = nanos.div_euclid(i128::from(width));
    StepNumber::try_from(number).unwrap_or(if number < 0 { StepNumber::MIN } else { StepNumber::MAX })
}

/// The width of a step of a sliding window in nanoseconds, and how many the window keeps: as many as are as long as the window, and one
/// more, because the window begins inside the oldest step. So nothing leaves before it is older than the window.
fn steps(window: Duration) -> (u64, i64) {
    let nanos = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX).max(1);
    let width = nanos.div_ceil(BUDGET_STEPS);
    (width, nanos.div_ceil(width).cast_signed() + 1)
}

/// How many steps a window keeps.
pub(super) fn kept(period: BudgetPeriod) -> i64 {
    match period {
        BudgetPeriod::Sliding(duration) => steps(duration).1,
        BudgetPeriod::Day | BudgetPeriod::Month => 1,
    }
}

pub(super) const fn unit(period: BudgetPeriod) -> Option<Unit> {
    match period {
        BudgetPeriod::Sliding(_) => None,
        BudgetPeriod::Day => Some(Unit::Day),
        BudgetPeriod::Month => Some(Unit::Month),
    }
}

impl Now<'_> {
    /// The step in which this was used; `None`: in none.
    pub(super) fn step_of(&self, usage: &BudgetUsage) -> Option<StepNumber> {
        match (usage.used_at, usage.period) {
            (UsedAt::Ago(ago), BudgetPeriod::Sliding(duration)) => Some(self.moment.step_ago(duration, ago)),
            (UsedAt::Since(seconds), period) => Some(self.calendar.step_of(unit(period)?, seconds)),
            (UsedAt::Ago(_) | UsedAt::Debt, _) => None,
        }
    }

    /// The moment so long ago.
    pub(super) fn ago(&self, ago: Duration) -> PastMoment {
        let now = self.moment.at;
        let nanos = i128::try_from(ago.as_nanos()).unwrap_or(i128::MAX);
        PastMoment {
            nanos: i128::from(now.as_nanos()).saturating_sub(nanos),
            day: self.calendar.step_ago(Unit::Day, now, ago),
            month: self.calendar.step_ago(Unit::Month, now, ago),
        }
    }

    /// The time since the last moment of a step; none if it hasn't ended.
    pub(super) fn since_end(&self, period: BudgetPeriod, step: StepNumber) -> Duration {
        let next = self.begins(period, step.saturating_add(1));
        self.moment.at.since(next.before(Duration::from_nanos(1)))
    }

    /// When a step begins.
    pub(super) fn begins(&self, period: BudgetPeriod, step: StepNumber) -> Instant {
        match period {
            BudgetPeriod::Sliding(duration) => {
                let step = u64::try_from(step).unwrap_or(0);
                Instant::from_nanos(step.saturating_mul(steps(duration).0))
            }
            BudgetPeriod::Day => self.calendar.begins(Unit::Day, step),
            BudgetPeriod::Month => self.calendar.begins(Unit::Month, step),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_sliding_window_keeps_one_step_more_than_is_as_long_as_it() {
        for (millis, width) in [
            (1_000, 16_666_667),
            (4_000, 66_666_667),
            (60_000, SECOND),
            (90_000, 1_500_000_000),
            (3_600_000, 60 * SECOND),
        ] {
            assert_eq!(steps(Duration::from_millis(millis)), (width, 61), "{millis}");
        }
        assert_eq!(steps(Duration::MAX).1, 61);
    }

    #[test]
    fn a_step_leaves_as_soon_as_all_of_it_is_older_than_the_window() {
        for window in [1_000, 1_500, 4_000, 7_300, 60_000, 3_600_000].map(Duration::from_millis) {
            let (width, kept) = steps(window);
            let length = u64::try_from(window.as_nanos()).expect("small");
            for begins in [0, width, 7 * width] {
                let leaves = begins + width * kept.unsigned_abs();
                assert!(leaves >= begins + width + length, "{window:?}");
                // Each step is rounded up to a nanosecond.
                assert!(leaves < begins + width + length + BUDGET_STEPS, "{window:?}");
            }
        }
    }

    #[test]
    fn a_step_begins_at_a_multiple_of_its_width() {
        let calendar = Calendar::new(Instant::ZERO);
        let minute = BudgetPeriod::Sliding(Duration::from_secs(120));
        let moment = Moment::of(&calendar, Instant::from_nanos(7 * SECOND));
        assert_eq!(
            (moment.step(minute), moment.step_ago(Duration::from_secs(120), Duration::from_secs(8))),
            (3, -1)
        );
        let now = Now { moment, calendar: &calendar };
        assert_eq!(now.begins(minute, 4), Instant::from_nanos(8 * SECOND));
        assert_eq!(now.begins(minute, -1), Instant::ZERO);
    }
}
