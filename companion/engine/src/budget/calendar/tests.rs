//! Tests of days and months in UTC, and of clocks that jump.

use core::time::Duration;

use super::{Calendar, DAY, Unit};
use crate::time::Instant;

/// An engine's time that has nothing to do with UTC.
const START: Instant = Instant::from_nanos(77_000_000_000);

fn seconds(text: &str) -> i64 {
    let time: jiff::Timestamp = text.parse().expect("a time");
    time.as_second()
}

fn utc(text: &str) -> Duration {
    Duration::from_secs(seconds(text).unsigned_abs())
}

fn after(seconds: u64) -> Instant {
    START.after(Duration::from_secs(seconds))
}

fn calendar(text: &str) -> Calendar {
    let mut calendar = Calendar::new(START);
    calendar.set(START, utc(text));
    calendar
}

#[test]
fn a_day_begins_at_midnight_utc() {
    let mut calendar = calendar("2026-03-09T23:59:50Z");
    let day = calendar.step(Unit::Day);
    assert_eq!(calendar.begins(Unit::Day, day + 1), after(10));
    assert_eq!(calendar.begins(Unit::Day, day + 3), after(10 + 2 * DAY.unsigned_abs()));
    calendar.advance(after(9));
    assert_eq!(calendar.step(Unit::Day), day);
    calendar.advance(after(10));
    assert_eq!(calendar.step(Unit::Day), day + 1);
    assert_eq!(calendar.first_second(Unit::Day, day + 1), seconds("2026-03-10T00:00:00Z"));
}

#[test]
fn months_end_on_their_last_day_also_in_leap_years() {
    for (now, next) in [
        ("2026-01-31T12:00:00Z", "2026-02-01T00:00:00Z"),
        ("2026-02-28T23:59:59Z", "2026-03-01T00:00:00Z"),
        ("2028-02-28T23:59:59Z", "2028-03-01T00:00:00Z"),
        ("2028-02-29T23:59:59Z", "2028-03-01T00:00:00Z"),
        ("2100-02-28T23:59:59Z", "2100-03-01T00:00:00Z"),
        ("2026-04-30T00:00:00Z", "2026-05-01T00:00:00Z"),
        ("2026-12-31T23:59:59Z", "2027-01-01T00:00:00Z"),
    ] {
        let mut calendar = calendar(now);
        let month = calendar.step(Unit::Month);
        let wait = (seconds(next) - seconds(now)).unsigned_abs();
        assert_eq!(calendar.begins(Unit::Month, month + 1), after(wait), "{now}");
        calendar.advance(after(wait - 1));
        assert_eq!(calendar.step(Unit::Month), month, "{now}");
        calendar.advance(after(wait));
        assert_eq!(calendar.step(Unit::Month), month + 1, "{now}");
    }
}

#[test]
fn a_clock_that_jumps_forward_begins_one_period_however_many_it_skips() {
    let mut calendar = calendar("2026-03-09T12:00:00Z");
    let (day, month) = (calendar.step(Unit::Day), calendar.step(Unit::Month));
    calendar.set(after(5), utc("2026-05-02T01:00:00Z"));
    assert_eq!(calendar.step(Unit::Day), day + 1);
    assert_eq!(calendar.step(Unit::Month), month + 1);
    assert_eq!(calendar.begins(Unit::Day, day + 2), after(5 + 23 * 3_600));
}

#[test]
fn days_that_really_pass_count_also_if_the_clock_is_read_only_after_them() {
    let mut calendar = calendar("2026-03-09T12:00:00Z");
    let day = calendar.step(Unit::Day);
    calendar.set(after(3 * DAY.unsigned_abs()), utc("2026-03-12T12:00:01Z"));
    assert_eq!(calendar.step(Unit::Day), day + 3);
    calendar.set(after(5 * DAY.unsigned_abs()), utc("2026-05-30T12:00:00Z"));
    assert_eq!(calendar.step(Unit::Day), day + 6, "two days passed, and the clock jumped");
}

#[test]
fn a_clock_that_goes_back_by_less_than_an_hour_does_not_reopen_the_day() {
    let mut calendar = calendar("2026-03-10T00:10:00Z");
    let day = calendar.step(Unit::Day);
    calendar.set(after(60), utc("2026-03-09T23:20:00Z"));
    assert_eq!(calendar.step(Unit::Day), day);
    assert_eq!(calendar.begins(Unit::Day, day + 1), after(60 + 40 * 60 + DAY.unsigned_abs()));
    // Midnight comes again, and is no new day.
    calendar.advance(after(60 + 41 * 60));
    assert_eq!(calendar.step(Unit::Day), day);
}

#[test]
fn a_clock_that_goes_further_back_is_followed_but_begins_no_new_period() {
    let mut calendar = calendar("2026-03-10T00:10:00Z");
    let (day, month) = (calendar.step(Unit::Day), calendar.step(Unit::Month));
    calendar.set(after(60), utc("2026-02-27T22:00:00Z"));
    assert_eq!((calendar.step(Unit::Day), calendar.step(Unit::Month)), (day, month));
    assert_eq!(calendar.begins(Unit::Day, day + 1), after(60 + 2 * 3_600));
    calendar.advance(after(60 + 2 * 3_600));
    assert_eq!(calendar.step(Unit::Day), day + 1);
    assert_eq!(calendar.step(Unit::Month), month);
    calendar.advance(after(60 + 26 * 3_600));
    assert_eq!(calendar.step(Unit::Month), month + 1);
}

#[test]
fn small_steps_back_add_up() {
    let mut calendar = calendar("2026-03-10T00:30:00Z");
    let day = calendar.step(Unit::Day);
    calendar.set(START, utc("2026-03-09T23:40:00Z"));
    assert_eq!(calendar.begins(Unit::Day, day + 1), after(20 * 60 + DAY.unsigned_abs()));
    calendar.set(START, utc("2026-03-09T23:10:00Z"));
    assert_eq!(calendar.begins(Unit::Day, day + 1), after(50 * 60));
}

#[test]
fn an_earlier_second_belongs_to_the_step_of_its_period() {
    let calendar = calendar("2026-03-10T12:00:00Z");
    let (day, month) = (calendar.step(Unit::Day), calendar.step(Unit::Month));
    assert_eq!(calendar.step_of(Unit::Day, seconds("2026-03-08T23:59:59Z")), day - 2);
    assert_eq!(calendar.step_of(Unit::Month, seconds("2026-02-28T23:59:59Z")), month - 1);
    assert_eq!(calendar.step_of(Unit::Day, seconds("2026-03-11T00:00:00Z")), day, "another clock is ahead");
}

#[test]
fn without_a_clock_time_begins_with_1970() {
    let calendar = Calendar::new(START);
    assert_eq!(calendar.first_second(Unit::Month, calendar.step(Unit::Month)), 0);
    assert_eq!(calendar.begins(Unit::Month, calendar.step(Unit::Month) + 1), after(31 * DAY.unsigned_abs()));
}
