//! The steps in which the windows count, at a moment.

use core::time::Duration;

use super::calendar::{Calendar, Calendars, Unit};
use super::window::StepNumber;
use crate::input::{BudgetUsage, UsedAt};
use crate::limits::BUDGET_STEPS;
use crate::policy::BudgetPeriod;
use crate::time::Instant;

/// The present moment, and the calendars of all budgets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now<'a> {
    pub(super) instant: Instant,
    calendars: &'a Calendars,
}

impl<'a> Now<'a> {
    pub(super) const fn new(instant: Instant, calendars: &'a Calendars) -> Self {
        Self { instant, calendars }
    }

    /// By the calendar of the budget of this index.
    pub(crate) fn under(&self, budget: usize) -> LocalNow<'a> {
        let calendar = self.calendars.of_budget(budget);
        LocalNow { moment: Moment::new(calendar, self.instant), calendar, calendars: self.calendars }
    }
}

/// The present moment by the calendar of one budget, and what converts steps to times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalNow<'a> {
    pub(super) moment: Moment,
    calendar: &'a Calendar,
    calendars: &'a Calendars,
}

/// A moment, and the steps of calendar windows then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) at: Instant,
    day: StepNumber,
    week: StepNumber,
    month: StepNumber,
}

impl Moment {
    const fn new(calendar: &Calendar, now: Instant) -> Self {
        Self {
            at: now,
            day: calendar.step(Unit::Day),
            week: calendar.step(Unit::Week),
            month: calendar.step(Unit::Month),
        }
    }

    /// The step of a window of this period.
    pub(super) fn step(&self, period: BudgetPeriod) -> StepNumber {
        match period {
            BudgetPeriod::Sliding(duration) => number(i128::from(self.at.as_nanos()), duration),
            BudgetPeriod::Day => self.day,
            BudgetPeriod::Week => self.week,
            BudgetPeriod::Month => self.month,
        }
    }

    pub(super) const fn shifted(&self, shift: &Shift) -> Self {
        Self {
            at: self.at,
            day: self.day.saturating_add(shift.day),
            week: self.week.saturating_add(shift.week),
            month: self.month.saturating_add(shift.month),
        }
    }
}

/// By how much the steps of one calendar are above those of another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shift {
    day: StepNumber,
    week: StepNumber,
    month: StepNumber,
}

impl Shift {
    /// Makes the present step of one calendar the present one of another.
    pub(super) const fn between(from: &Moment, to: &Moment) -> Self {
        Self {
            day: to.day.saturating_sub(from.day),
            week: to.week.saturating_sub(from.week),
            month: to.month.saturating_sub(from.month),
        }
    }

    /// For a window of this period.
    pub(super) const fn of(&self, period: BudgetPeriod) -> StepNumber {
        match period {
            BudgetPeriod::Sliding(_) => 0,
            BudgetPeriod::Day => self.day,
            BudgetPeriod::Week => self.week,
            BudgetPeriod::Month => self.month,
        }
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
        BudgetPeriod::Day | BudgetPeriod::Week | BudgetPeriod::Month => 1,
    }
}

const fn unit(period: BudgetPeriod) -> Option<Unit> {
    match period {
        BudgetPeriod::Sliding(_) => None,
        BudgetPeriod::Day => Some(Unit::Day),
        BudgetPeriod::Week => Some(Unit::Week),
        BudgetPeriod::Month => Some(Unit::Month),
    }
}

impl LocalNow<'_> {
    /// The step in which this was used; `None`: in none.
    pub(super) fn step_of(&self, usage: &BudgetUsage) -> Option<StepNumber> {
        match (usage.used_at, usage.period) {
            (UsedAt::Ago(ago), BudgetPeriod::Sliding(duration)) => {
                // It may be before the owner's origin.
                let ago = i128::try_from(ago.as_nanos()).unwrap_or(i128::MAX);
                let nanos = i128::from(self.moment.at.as_nanos()).saturating_sub(ago);
                Some(number(nanos, duration))
            }
            (UsedAt::Since(seconds), period) => Some(self.calendar.step_of(unit(period)?, seconds)),
            (UsedAt::Ago(_) | UsedAt::Debt, _) => None,
        }
    }

    /// The time since the last moment of a step; none if it hasn't ended.
    pub(super) fn since_end(&self, period: BudgetPeriod, step: StepNumber) -> Duration {
        let next = self.begins(period, step.saturating_add(1));
        self.moment.at.since(next.before(Duration::from_nanos(1)))
    }

    /// When a step begins.
    pub(super) fn begins(&self, period: BudgetPeriod, step: StepNumber) -> Instant {
        let of_unit = |unit| self.calendars.begins(self.calendar, unit, step);
        match period {
            BudgetPeriod::Sliding(duration) => {
                let step = u64::try_from(step).unwrap_or(0);
                Instant::from_nanos(step.saturating_mul(steps(duration).0))
            }
            BudgetPeriod::Day => of_unit(Unit::Day),
            BudgetPeriod::Week => of_unit(Unit::Week),
            BudgetPeriod::Month => of_unit(Unit::Month),
        }
    }

    /// The first second of a step of the calendar, after 1970 began; `None`: the period isn't the calendar's.
    pub(super) fn first_second(&self, period: BudgetPeriod, step: StepNumber) -> Option<i64> {
        Some(self.calendar.first_second(unit(period)?, step))
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
        let calendars = Calendars::of_utc(Instant::ZERO);
        let minute = BudgetPeriod::Sliding(Duration::from_secs(120));
        let now = Now::new(Instant::from_nanos(7 * SECOND), &calendars).under(0);
        assert_eq!(now.moment.step(minute), 3);
        assert_eq!(now.begins(minute, 4), Instant::from_nanos(8 * SECOND));
        assert_eq!(now.begins(minute, -1), Instant::ZERO);
    }
}
