//! The days, weeks and months of a [`BudgetCalendar`], numbered from about 1970.

use jiff::Timestamp;
use jiff::civil::{Date, Weekday};
use jiff::tz::{Offset, TimeZone};

use crate::policy::BudgetCalendar;

const DAY: i64 = 86_400;

/// A unit of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Day,
    Week,
    Month,
}

impl Unit {
    pub(super) const ALL: [Self; 3] = [Self::Day, Self::Week, Self::Month];
}

impl BudgetCalendar {
    /// The number of the unit that contains this second after 1970 began.
    pub(super) fn number(&self, unit: Unit, seconds: i64) -> i64 {
        let date = date(&self.timezone, seconds);
        match unit {
            Unit::Day => number_of_day(date),
            Unit::Week => (number_of_day(date) - self.first_week()).div_euclid(7),
            Unit::Month => {
                let month = i64::from(date.year()) * 12 + i64::from(date.month()) - 1;
                if date.day() < self.starts_on(date) { month - 1 } else { month }
            }
        }
    }

    /// The first second of the unit of this number, after 1970 began.
    pub(super) fn first_second(&self, unit: Unit, number: i64) -> i64 {
        let first = match unit {
            Unit::Day => day_of(number),
            Unit::Week => day_of(number.saturating_mul(7).saturating_add(self.first_week())),
            Unit::Month => {
                let year = i16::try_from(number.div_euclid(12)).unwrap_or(i16::MAX);
                let month = i8::try_from(number.rem_euclid(12) + 1).unwrap_or(1);
                let first = Date::new(year, month, 1).unwrap_or(Date::MAX);
                first.with().day(self.starts_on(first)).build().unwrap_or(first)
            }
        };
        // Where clocks skip midnight, a day begins with its first second; where midnight comes twice, with the first one.
        let midnight = self.timezone.to_ambiguous_timestamp(first.at(0, 0, 0, 0));
        midnight.compatible().map_or(i64::MAX, Timestamp::as_second)
    }

    /// The day on which a month begins that starts in the month of this date.
    fn starts_on(&self, date: Date) -> i8 {
        self.month_starts.min(date.days_in_month())
    }

    /// The number of the day on which the week 0 begins.
    fn first_week(&self) -> i64 {
        let days = self.week_starts.to_monday_zero_offset() - Weekday::Thursday.to_monday_zero_offset();
        i64::from(days).rem_euclid(7)
    }
}

/// The date there, within the years that dates have.
fn date(timezone: &TimeZone, seconds: i64) -> Date {
    let end = if seconds < 0 { Timestamp::MIN } else { Timestamp::MAX };
    timezone.to_datetime(Timestamp::from_second(seconds).unwrap_or(end)).date()
}

/// Days since 1970 began. 1 January 1970, a Thursday, is day 0.
fn number_of_day(date: Date) -> i64 {
    let end = if date.year() < 1970 { Timestamp::MIN } else { Timestamp::MAX };
    Offset::UTC.to_timestamp(date.at(0, 0, 0, 0)).unwrap_or(end).as_second().div_euclid(DAY)
}

fn day_of(number: i64) -> Date {
    date(&TimeZone::UTC, number.saturating_mul(DAY))
}
