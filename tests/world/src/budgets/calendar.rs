//! Days and months in UTC by a wall clock that may be set, numbered in the order in which they begin.

use super::super::time::SECOND;

const DAY: i128 = 86_400 * SECOND as i128;
/// A clock that is set back by less begins no earlier day.
const BACK_MAX: i128 = 3_600 * SECOND as i128;

/// The calendar of one engine.
#[derive(Clone, Debug)]
pub(super) struct Calendar {
    /// UTC minus the companion's clock, in nanoseconds.
    offset: i128,
    /// The latest UTC so far, but for a clock that was set back far.
    latest: i128,
    day: i64,
    month: i64,
    pub(super) days_begun: i64,
    pub(super) months_begun: i64,
}

impl Calendar {
    /// UTC isn't known yet.
    pub(super) fn new(local: u64) -> Self {
        Self {
            offset: -i128::from(local),
            latest: 0,
            day: 0,
            month: month_of(0),
            days_begun: 0,
            months_begun: 0,
        }
    }

    /// The time passes until the companion's clock shows `local`.
    pub(super) fn advance(&mut self, local: u64) {
        let day = day_of(i128::from(local) + self.offset);
        self.days_begun += (day - self.day).max(0);
        self.day = self.day.max(day);
        let month = month_of(day);
        self.months_begun += (month - self.month).max(0);
        self.month = self.month.max(month);
    }

    /// The wall clock shows `utc`, in nanoseconds, while the companion's clock shows `local`.
    pub(super) fn set(&mut self, local: u64, utc: i128) {
        self.advance(local);
        self.latest = self.latest.max(i128::from(local) + self.offset);
        self.offset = utc - i128::from(local);
        if self.latest - utc >= BACK_MAX {
            self.latest = utc;
            self.day = day_of(utc);
            self.month = month_of(self.day);
        } else {
            self.latest = self.latest.max(utc);
            // However many days a clock skips, one begins.
            let (days, months) = (self.days_begun, self.months_begun);
            self.advance(local);
            self.days_begun = self.days_begun.min(days + 1);
            self.months_begun = self.months_begun.min(months + 1);
        }
    }
}

/// The number of the day since 1970 began.
fn day_of(utc: i128) -> i64 {
    i64::try_from(utc.div_euclid(DAY)).unwrap_or(i64::MAX)
}

/// The number of the month that contains a day, counted from March of the year 0.
const fn month_of(day: i64) -> i64 {
    // Years of 400 end on 29 February, so that a leap day is the last one.
    let days = day + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    (era * 400 + year) * 12 + (5 * of_year + 2) / 153
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_begin_where_the_calendar_has_them() {
        // 1 January 1970, 29 February and 1 March 2024, 31 December 2027, 1 January 2028.
        let months = [0, 19_782, 19_783, 21_183, 21_184].map(|day| month_of(day) - month_of(0));
        assert_eq!(months, [0, 649, 650, 695, 696]);
    }
}
