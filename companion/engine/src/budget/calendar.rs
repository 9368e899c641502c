//! UTC as the engine knows it: days and months, numbered, and when they begin in the engine's time.
//!
//! The owner says what UTC is at some moments, and the engine's own time passes in between. A clock that goes back by less than
//! [`BACK_MAX`] starts no earlier day again. One that goes back further is followed, but what was used stays: periods are numbered in the
//! order in which they began here, and a period that begins again keeps the present number. A clock that jumps forward begins one period,
//! however many it skips: so it forgets what was used in one window, and pays no more of a debt than that has room for.

#[cfg(test)]
mod tests;

use core::time::Duration;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::Offset;

use super::window::StepNumber;
use crate::time::Instant;

const SECOND: i128 = 1_000_000_000;
const DAY: i64 = 86_400;
/// How far a clock may go back without effect.
const BACK_MAX: i128 = 3_600 * SECOND;

/// A unit of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Day,
    Month,
}

impl Unit {
    /// The number of the unit that contains this second after 1970 began.
    fn number(self, seconds: i64) -> i64 {
        match self {
            Self::Day => seconds.div_euclid(DAY),
            Self::Month => {
                let date = date(seconds);
                i64::from(date.year()) * 12 + i64::from(date.month()) - 1
            }
        }
    }

    /// The first second of the unit of this number.
    fn start(self, number: i64) -> i64 {
        match self {
            Self::Day => number.saturating_mul(DAY),
            Self::Month => {
                let year = i16::try_from(number.div_euclid(12)).unwrap_or(i16::MAX);
                let month = i8::try_from(number.rem_euclid(12) + 1).unwrap_or(1);
                let first = Date::new(year, month, 1).unwrap_or(Date::MAX);
                Offset::UTC.to_timestamp(first.at(0, 0, 0, 0)).map_or(i64::MAX, Timestamp::as_second)
            }
        }
    }
}

/// The date in UTC, at most the last one of the year 9999.
fn date(seconds: i64) -> Date {
    let time = Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
    Offset::UTC.to_datetime(time).date()
}

/// The present period of one unit.
#[derive(Clone, Copy, Debug)]
struct Period {
    unit: Unit,
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

#[derive(Clone, Copy, Debug)]
pub(crate) struct Calendar {
    /// UTC at a moment, in nanoseconds since 1970 began.
    set_at: Instant,
    utc: i128,
    /// The latest UTC so far.
    latest: i128,
    day: Period,
    month: Period,
}

impl Calendar {
    /// Until [`Self::set`], `now` counts as the beginning of 1970.
    pub(crate) fn new(now: Instant) -> Self {
        let period = |unit: Unit| Period { unit, number: unit.number(0), step: 0, ends: Instant::MAX };
        let mut calendar =
            Self { set_at: now, utc: 0, latest: 0, day: period(Unit::Day), month: period(Unit::Month) };
        calendar.begin_periods(now, Moved::ByTime);
        calendar
    }

    /// `now` is this long after 1970 began, in UTC.
    pub(crate) fn set(&mut self, now: Instant, utc: Duration) {
        self.advance(now);
        self.latest = self.latest.max(self.utc_at(now));
        self.set_at = now;
        self.utc = i128::try_from(utc.as_nanos()).unwrap_or(i128::MAX);
        let is_far_back = self.latest - self.utc >= BACK_MAX;
        self.latest = if is_far_back { self.utc } else { self.latest.max(self.utc) };
        self.begin_periods(now, if is_far_back { Moved::FarBack } else { Moved::Set });
    }

    /// Begins the periods that are due by `now`. Mostly none is, and one comparison each finds that out.
    pub(crate) fn advance(&mut self, now: Instant) {
        if now >= self.day.ends || now >= self.month.ends {
            self.begin_periods(now, Moved::ByTime);
        }
    }

    /// The step of the present period.
    pub(crate) const fn step(&self, unit: Unit) -> StepNumber {
        self.period(unit).step
    }

    /// When the period of `step` begins.
    pub(crate) fn begins(&self, unit: Unit, step: StepNumber) -> Instant {
        let period = self.period(unit);
        let number = period.number.saturating_add(step.saturating_sub(period.step));
        self.instant(unit.start(number))
    }

    /// The first second of the period of `step`, since 1970 began.
    pub(crate) fn first_second(&self, unit: Unit, step: StepNumber) -> i64 {
        let period = self.period(unit);
        unit.start(period.number.saturating_add(step.saturating_sub(period.step)))
    }

    /// The step of the period that contains this second after 1970 began; at most the present one.
    pub(crate) fn step_of(&self, unit: Unit, seconds: i64) -> StepNumber {
        let period = self.period(unit);
        let ago = period.number.saturating_sub(unit.number(seconds)).max(0);
        period.step.saturating_sub(ago)
    }

    /// The step of the period that contains the moment so long before `now`; at most the present one.
    pub(super) fn step_ago(&self, unit: Unit, now: Instant, ago: Duration) -> StepNumber {
        let ago = i128::try_from(ago.as_nanos()).unwrap_or(i128::MAX);
        let seconds = self.utc_at(now).saturating_sub(ago).div_euclid(SECOND);
        self.step_of(unit, i64::try_from(seconds).unwrap_or(i64::MIN))
    }

    const fn period(&self, unit: Unit) -> &Period {
        match unit {
            Unit::Day => &self.day,
            Unit::Month => &self.month,
        }
    }

    fn utc_at(&self, now: Instant) -> i128 {
        self.utc.saturating_add(i128::from(now.as_nanos()) - i128::from(self.set_at.as_nanos()))
    }

    /// When this second begins, in the engine's time.
    fn instant(&self, seconds: i64) -> Instant {
        let nanos = i128::from(seconds) * SECOND - self.utc + i128::from(self.set_at.as_nanos());
        Instant::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
    }

    fn begin_periods(&mut self, now: Instant, moved: Moved) {
        let seconds = i64::try_from(self.utc_at(now).div_euclid(SECOND)).unwrap_or(i64::MAX);
        let begin = |mut period: Period| {
            let number = period.unit.number(seconds);
            if number > period.number {
                let skipped = number - period.number;
                let begun = if moved == Moved::ByTime { skipped } else { 1 };
                period.step = period.step.saturating_add(begun);
            }
            if number > period.number || moved == Moved::FarBack {
                period.number = number;
            }
            period
        };
        (self.day, self.month) = (begin(self.day), begin(self.month));
        self.day.ends = self.instant(Unit::Day.start(self.day.number.saturating_add(1)));
        self.month.ends = self.instant(Unit::Month.start(self.month.number.saturating_add(1)));
    }
}
