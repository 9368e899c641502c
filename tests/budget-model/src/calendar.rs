//! Days, weeks and months in UTC by a wall clock that may be set, numbered in the order in which they begin.

const DAY: i128 = 86_400 * 1_000_000_000;
/// A clock that is set back by less begins no earlier day.
const BACK_MAX: i128 = 3_600 * 1_000_000_000;

/// The calendar of one engine.
#[derive(Clone, Copy, Debug)]
pub struct Calendar {
    /// UTC minus the local time, in nanoseconds.
    offset: i128,
    /// The latest UTC so far, but for a clock that was set back far.
    latest: i128,
    /// The present day since 1970 began.
    pub day: i64,
    /// The present week since 1970 began, a Thursday.
    pub week: i64,
    /// The present month since 1970 began.
    pub month: i64,
    /// How many days have begun.
    pub days_begun: i64,
    /// How many weeks have begun.
    pub weeks_begun: i64,
    /// How many months have begun.
    pub months_begun: i64,
}

impl Calendar {
    /// A calendar to which UTC isn't known yet: 1970 begins at the local time `local`, in nanoseconds.
    #[must_use]
    pub fn new(local: u64) -> Self {
        Self {
            offset: -i128::from(local),
            latest: 0,
            day: 0,
            week: 0,
            month: 0,
            days_begun: 0,
            weeks_begun: 0,
            months_begun: 0,
        }
    }

    /// UTC at the local time `local`, in nanoseconds.
    #[must_use]
    pub fn utc(&self, local: u64) -> i128 {
        i128::from(local) + self.offset
    }

    /// The local time at which a day begins; 0 if that was before.
    #[must_use]
    pub fn begin_of(&self, day: i64) -> u64 {
        u64::try_from(i128::from(day) * DAY - self.offset).unwrap_or(0)
    }

    /// Time passes until the local time is `local`.
    pub fn advance(&mut self, local: u64) {
        let day = day_of(self.utc(local));
        self.days_begun += (day - self.day).max(0);
        self.day = self.day.max(day);
        let week = week_of(day);
        self.weeks_begun += (week - self.week).max(0);
        self.week = self.week.max(week);
        let month = month_of(day);
        self.months_begun += (month - self.month).max(0);
        self.month = self.month.max(month);
    }

    /// The wall clock shows `utc`, in nanoseconds, at the local time `local`.
    pub fn set(&mut self, local: u64, utc: i128) {
        self.advance(local);
        self.latest = self.latest.max(self.utc(local));
        self.offset = utc - i128::from(local);
        if self.latest - utc >= BACK_MAX {
            self.latest = utc;
            self.day = day_of(utc);
            self.week = week_of(self.day);
            self.month = month_of(self.day);
        } else {
            self.latest = self.latest.max(utc);
            // However many days a clock skips, one begins.
            let (days, weeks, months) = (self.days_begun, self.weeks_begun, self.months_begun);
            self.advance(local);
            self.days_begun = self.days_begun.min(days + 1);
            self.weeks_begun = self.weeks_begun.min(weeks + 1);
            self.months_begun = self.months_begun.min(months + 1);
        }
    }
}

/// The number of the day since 1970 began, at a UTC in nanoseconds.
#[must_use]
pub fn day_of(utc: i128) -> i64 {
    i64::try_from(utc.div_euclid(DAY)).unwrap_or(i64::MAX)
}

/// The number of the week, from Monday, that contains a day; 1970 begins in week 0.
#[must_use]
pub const fn week_of(day: i64) -> i64 {
    (day + 3).div_euclid(7)
}

/// The first day of a week.
#[must_use]
pub const fn first_day_of_week(week: i64) -> i64 {
    week * 7 - 3
}

/// The number of the month since 1970 began that contains a day.
#[must_use]
pub const fn month_of(day: i64) -> i64 {
    // Years of 400 end on 29 February, so that a leap day is the last one.
    let days = day + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    // January 1970 is month 23,638 since March of the year 0.
    (era * 400 + year) * 12 + (5 * of_year + 2) / 153 - 23_638
}

/// The first day of a month.
#[must_use]
pub fn first_day(month: i64) -> i64 {
    (0..month).map(days_of).sum()
}

/// The days of a month.
const fn days_of(month: i64) -> i64 {
    let year = 1970 + month / 12;
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month % 12 {
        1 if is_leap => 29,
        1 => 28,
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_begin_where_the_calendar_has_them() {
        // 1 January 1970, 29 February and 1 March 2024, 31 December 2027, 1 January 2028.
        assert_eq!([0, 19_782, 19_783, 21_183, 21_184].map(month_of), [0, 649, 650, 695, 696]);
        for month in 0..6_000 {
            let first = first_day(month);
            assert_eq!((month_of(first - 1), month_of(first)), (month - 1, month));
        }
    }
}
