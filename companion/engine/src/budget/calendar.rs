//! Calendars as the engine knows them: days, weeks and months, numbered, and when they begin in the engine's time.
//!
//! The owner says what UTC is at some moments, and the engine's own time passes in between. A clock that goes back by less than
//! [`BACK_MAX`] starts no earlier day again. One that goes back further is followed, but what was used stays: periods are numbered in the
//! order in which they began here, and a period that begins again keeps the present number. A clock that jumps forward begins one period,
//! however many it skips: so it forgets what was used in one window, and pays no more of a debt than that has room for.
//!
//! Budgets with the same [`BudgetCalendar`] share one calendar.

mod rule;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;
use core::time::Duration;

pub(crate) use self::rule::Unit;
use super::window::StepNumber;
use crate::policy::{Budget, BudgetCalendar};
use crate::time::Instant;

const SECOND: i128 = 1_000_000_000;
/// How far a clock may go back without effect.
const BACK_MAX: i128 = 3_600 * SECOND;

/// The present period of one unit.
#[derive(Clone, Copy, Debug)]
struct Period {
    /// The number by the calendar.
    number: i64,
    /// The number by the order of beginnings here.
    step: StepNumber,
    /// When the next one begins.
    ends: Instant,
}

/// What has moved UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moved {
    /// The engine's own time.
    ByTime,
    /// The clock was set.
    Set,
    /// The clock was set back so far that it is followed into an earlier period.
    FarBack,
}

/// UTC in the engine's time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// UTC at a moment, in nanoseconds since 1970 began.
    set_at: Instant,
    utc: i128,
    /// The latest UTC so far.
    latest: i128,
}

impl Clock {
    fn set(&mut self, now: Instant, utc: Duration) -> Moved {
        self.latest = self.latest.max(self.utc_at(now));
        self.set_at = now;
        self.utc = i128::try_from(utc.as_nanos()).unwrap_or(i128::MAX);
        let is_far_back = self.latest - self.utc >= BACK_MAX;
        self.latest = if is_far_back { self.utc } else { self.latest.max(self.utc) };
        if is_far_back { Moved::FarBack } else { Moved::Set }
    }

    fn utc_at(&self, now: Instant) -> i128 {
        self.utc.saturating_add(i128::from(now.as_nanos()) - i128::from(self.set_at.as_nanos()))
    }

    /// The second after 1970 began that contains `now`.
    fn second_at(&self, now: Instant) -> i64 {
        let seconds = self.utc_at(now).div_euclid(SECOND);
        i64::try_from(seconds).unwrap_or(if seconds < 0 { i64::MIN } else { i64::MAX })
    }

    fn latest_second(&self) -> i64 {
        i64::try_from(self.latest.div_euclid(SECOND)).unwrap_or(i64::MAX)
    }

    /// When this second begins, in the engine's time.
    fn instant(&self, seconds: i64) -> Instant {
        let nanos = i128::from(seconds) * SECOND - self.utc + i128::from(self.set_at.as_nanos());
        Instant::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
    }
}

/// The days, weeks and months by one rule.
#[derive(Clone, Debug)]
pub(super) struct Calendar {
    rule: BudgetCalendar,
    /// In the order of [`Unit::ALL`].
    periods: [Period; Unit::ALL.len()],
}

impl Calendar {
    fn new(rule: BudgetCalendar, clock: &Clock, now: Instant) -> Self {
        // A clock that has gone back a little begins no period again.
        let second = clock.second_at(now).max(clock.latest_second());
        let periods =
            Unit::ALL.map(|unit| Period { number: rule.number(unit, second), step: 0, ends: Instant::MAX });
        let mut calendar = Self { rule, periods };
        calendar.begin_periods(clock, now, Moved::ByTime);
        calendar
    }

    /// The step of the present period.
    pub(super) const fn step(&self, unit: Unit) -> StepNumber {
        self.period(unit).step
    }

    /// The first second of the period of `step`, since 1970 began.
    pub(super) fn first_second(&self, unit: Unit, step: StepNumber) -> i64 {
        let period = self.period(unit);
        self.rule.first_second(unit, period.number.saturating_add(step.saturating_sub(period.step)))
    }

    /// The step of the period that contains this second after 1970 began; at most the present one.
    pub(super) fn step_of(&self, unit: Unit, seconds: i64) -> StepNumber {
        let period = self.period(unit);
        let ago = period.number.saturating_sub(self.rule.number(unit, seconds)).max(0);
        period.step.saturating_sub(ago)
    }

    const fn period(&self, unit: Unit) -> &Period {
        &self.periods[unit as usize]
    }

    fn ends(&self) -> Instant {
        self.periods.iter().map(|period| period.ends).min().unwrap_or(Instant::MAX)
    }

    fn begin_periods(&mut self, clock: &Clock, now: Instant, moved: Moved) {
        let second = clock.second_at(now);
        for unit in Unit::ALL {
            let number = self.rule.number(unit, second);
            let period = &mut self.periods[unit as usize];
            if number > period.number {
                let begun = if moved == Moved::ByTime { number - period.number } else { 1 };
                period.step = period.step.saturating_add(begun);
            }
            if number > period.number || moved == Moved::FarBack {
                period.number = number;
            }
            period.ends = clock.instant(self.rule.first_second(unit, period.number.saturating_add(1)));
        }
    }
}

/// The calendars of a policy's budgets, and UTC.
#[derive(Clone, Debug)]
pub(super) struct Calendars {
    clock: Clock,
    all: Vec<Calendar>,
    /// By budget: its calendar's index.
    of_budgets: Vec<usize>,
    /// When the next period of any of them begins.
    ends: Instant,
}

impl Calendars {
    /// Of no budget. Until [`Self::set`], `now` counts as the beginning of 1970.
    pub(super) const fn new(now: Instant) -> Self {
        let clock = Clock { set_at: now, utc: 0, latest: 0 };
        Self { clock, all: Vec::new(), of_budgets: Vec::new(), ends: Instant::MAX }
    }

    /// The calendar of one budget in UTC.
    #[cfg(test)]
    pub(super) fn of_utc(now: Instant) -> Self {
        Self::of_rule(now, BudgetCalendar::default())
    }

    #[cfg(test)]
    pub(super) fn of_rule(now: Instant, calendar: BudgetCalendar) -> Self {
        let (flows, over) = (crate::policy::FlowGlob::new("*"), crate::policy::Over::default());
        Self::new(now).of_policy(&[Budget { flows, windows: Vec::new(), calendar, over, shadow: false }], now)
    }

    /// The calendars of these budgets at `now`, where [`Self::advance`] has been. Calendars stay while budgets have their rules.
    pub(super) fn of_policy(&self, budgets: &[Budget], now: Instant) -> Self {
        let mut new = Self { all: Vec::new(), of_budgets: Vec::new(), ..self.clone() };
        for budget in budgets {
            let rule = &budget.calendar;
            let of_rule = |calendar: &Calendar| calendar.rule == *rule;
            let index = new.all.iter().position(of_rule).unwrap_or_else(|| {
                let known = self.all.iter().find(|calendar| of_rule(calendar)).cloned();
                new.all.push(known.unwrap_or_else(|| Calendar::new(rule.clone(), &self.clock, now)));
                new.all.len() - 1
            });
            new.of_budgets.push(index);
        }
        new.update_ends();
        new
    }

    /// `now` is this long after 1970 began, in UTC.
    pub(super) fn set(&mut self, now: Instant, utc: Duration) {
        self.advance(now);
        let moved = self.clock.set(now, utc);
        self.begin_periods(now, moved);
    }

    /// Begins the periods that are due by `now`. Mostly none is, and one comparison finds that out.
    pub(super) fn advance(&mut self, now: Instant) {
        if self.are_due(now) {
            self.begin_periods(now, Moved::ByTime);
        }
    }

    /// Whether a period has to begin by `now`.
    pub(super) fn are_due(&self, now: Instant) -> bool {
        now >= self.ends
    }

    /// The calendar of the budget of this index.
    pub(super) fn of_budget(&self, index: usize) -> &Calendar {
        &self.all[self.of_budgets[index]]
    }

    /// When the period of `step` begins in a calendar.
    pub(super) fn begins(&self, calendar: &Calendar, unit: Unit, step: StepNumber) -> Instant {
        self.clock.instant(calendar.first_second(unit, step))
    }

    fn begin_periods(&mut self, now: Instant, moved: Moved) {
        for calendar in &mut self.all {
            calendar.begin_periods(&self.clock, now, moved);
        }
        self.update_ends();
    }

    fn update_ends(&mut self) {
        self.ends = self.all.iter().map(Calendar::ends).min().unwrap_or(Instant::MAX);
    }
}
