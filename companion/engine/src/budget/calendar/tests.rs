//! Tests of days, weeks and months, and of clocks that jump.

use alloc::vec::Vec;
use core::time::Duration;

use jiff::civil::Weekday;
use jiff::tz::TimeZone;

use super::{Calendars, StepNumber, Unit};
use crate::policy::{Budget, BudgetCalendar, FlowGlob, Over};
use crate::rng::Rng;
use crate::time::Instant;

/// An engine's time that has nothing to do with UTC.
const START: Instant = Instant::from_nanos(77_000_000_000);
const DAY: u64 = 86_400;

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

fn rule(timezone: &str, month_starts: i8, week_starts: Weekday) -> BudgetCalendar {
    let timezone = TimeZone::get(timezone).expect("in the database");
    BudgetCalendar { timezone, month_starts, week_starts }
}

fn budget(calendar: BudgetCalendar) -> Budget {
    Budget { flows: FlowGlob::new("*"), windows: Vec::new(), calendar, over: Over::Hold, shadow: false }
}

/// One calendar, read as the budgets' code reads it.
struct OneCalendar(Calendars);

impl OneCalendar {
    fn starting(rule: BudgetCalendar, now: &str) -> Self {
        let mut calendars = Calendars::of_rule(START, rule);
        calendars.set(START, utc(now));
        Self(calendars)
    }

    fn set(&mut self, now: Instant, utc: Duration) {
        self.0.set(now, utc);
    }

    fn advance(&mut self, now: Instant) {
        self.0.advance(now);
    }

    fn step(&self, unit: Unit) -> StepNumber {
        self.0.of_budget(0).step(unit)
    }

    fn begins(&self, unit: Unit, step: StepNumber) -> Instant {
        self.0.begins(self.0.of_budget(0), unit, step)
    }

    fn first_second(&self, unit: Unit, step: StepNumber) -> i64 {
        self.0.of_budget(0).first_second(unit, step)
    }

    fn step_of(&self, unit: Unit, seconds: i64) -> StepNumber {
        self.0.of_budget(0).step_of(unit, seconds)
    }
}

fn calendar(text: &str) -> OneCalendar {
    OneCalendar::starting(BudgetCalendar::default(), text)
}

#[test]
fn a_day_begins_at_midnight_utc() {
    let mut calendar = calendar("2026-03-09T23:59:50Z");
    let day = calendar.step(Unit::Day);
    assert_eq!(calendar.begins(Unit::Day, day + 1), after(10));
    assert_eq!(calendar.begins(Unit::Day, day + 3), after(10 + 2 * DAY));
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
    calendar.set(after(3 * DAY), utc("2026-03-12T12:00:01Z"));
    assert_eq!(calendar.step(Unit::Day), day + 3);
    calendar.set(after(5 * DAY), utc("2026-05-30T12:00:00Z"));
    assert_eq!(calendar.step(Unit::Day), day + 6, "two days passed, and the clock jumped");
}

#[test]
fn a_clock_that_goes_back_by_less_than_an_hour_does_not_reopen_the_day() {
    let mut calendar = calendar("2026-03-10T00:10:00Z");
    let day = calendar.step(Unit::Day);
    calendar.set(after(60), utc("2026-03-09T23:20:00Z"));
    assert_eq!(calendar.step(Unit::Day), day);
    assert_eq!(calendar.begins(Unit::Day, day + 1), after(60 + 40 * 60 + DAY));
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
    assert_eq!(calendar.begins(Unit::Day, day + 1), after(20 * 60 + DAY));
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
    let calendar = OneCalendar(Calendars::of_utc(START));
    assert_eq!(calendar.first_second(Unit::Month, calendar.step(Unit::Month)), 0);
    assert_eq!(calendar.begins(Unit::Month, calendar.step(Unit::Month) + 1), after(31 * DAY));
}

#[test]
fn every_second_is_in_the_unit_of_its_number() {
    let mut rng = Rng::new(1);
    for timezone in [
        "UTC",
        "Europe/Berlin",
        "America/New_York",
        "Asia/Kathmandu",
        "Australia/Lord_Howe",
        "America/Sao_Paulo",
        "Pacific/Apia",
    ] {
        for (month_starts, week_starts) in
            [(1, Weekday::Monday), (15, Weekday::Sunday), (31, Weekday::Wednesday)]
        {
            let rule = rule(timezone, month_starts, week_starts);
            for _ in 0..3_000 {
                // From 1990 to 2053.
                let second = 631_152_000 + i64::try_from(rng.next() % 2_000_000_000).expect("small");
                for unit in Unit::ALL {
                    let number = rule.number(unit, second);
                    let (first, next) =
                        (rule.first_second(unit, number), rule.first_second(unit, number + 1));
                    assert!(first <= second && second < next, "{timezone} {month_starts} {unit:?} {second}");
                    assert_eq!((rule.number(unit, first), rule.number(unit, next - 1)), (number, number));
                }
            }
        }
    }
}

#[test]
fn days_are_those_of_the_time_zone_also_when_clocks_change() {
    for (timezone, now, ends) in [
        ("Europe/Berlin", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"),
        ("Europe/Berlin", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"),
        ("America/New_York", "2026-07-01T12:00:00Z", "2026-07-02T04:00:00Z"),
        // Clocks skipped the time from midnight to one.
        ("America/Sao_Paulo", "2018-11-03T12:00:00Z", "2018-11-04T03:00:00Z"),
        // There was no 30 December: Samoa moved across the date line.
        ("Pacific/Apia", "2011-12-29T12:00:00Z", "2011-12-30T10:00:00Z"),
    ] {
        let mut calendar = OneCalendar::starting(rule(timezone, 1, Weekday::Monday), now);
        let day = calendar.step(Unit::Day);
        let wait = (seconds(ends) - seconds(now)).unsigned_abs();
        calendar.advance(after(wait - 1));
        assert_eq!(calendar.step(Unit::Day), day, "{timezone} {now}");
        calendar.advance(after(wait));
        assert!(calendar.step(Unit::Day) > day, "{timezone} {now}");
        assert_eq!(calendar.begins(Unit::Day, calendar.step(Unit::Day)), after(wait), "{timezone} {now}");
    }
}

#[test]
fn weeks_and_months_begin_on_their_days() {
    for (rule, unit, now, ends) in [
        (rule("UTC", 1, Weekday::Monday), Unit::Week, "2026-11-28T12:00:00Z", "2026-11-30T00:00:00Z"),
        (rule("UTC", 1, Weekday::Saturday), Unit::Week, "2026-11-28T12:00:00Z", "2026-12-05T00:00:00Z"),
        (rule("Asia/Tokyo", 1, Weekday::Sunday), Unit::Week, "2026-11-28T14:59:59Z", "2026-11-28T15:00:00Z"),
        (rule("UTC", 15, Weekday::Monday), Unit::Month, "2026-12-14T12:00:00Z", "2026-12-15T00:00:00Z"),
        (rule("UTC", 15, Weekday::Monday), Unit::Month, "2026-12-15T00:00:00Z", "2027-01-15T00:00:00Z"),
        (rule("UTC", 31, Weekday::Monday), Unit::Month, "2027-02-01T00:00:00Z", "2027-02-28T00:00:00Z"),
        (rule("UTC", 31, Weekday::Monday), Unit::Month, "2027-02-28T00:00:00Z", "2027-03-31T00:00:00Z"),
        (rule("UTC", 30, Weekday::Monday), Unit::Month, "2028-02-01T00:00:00Z", "2028-02-29T00:00:00Z"),
        (
            rule("America/New_York", 1, Weekday::Monday),
            Unit::Month,
            "2026-11-28T12:00:00Z",
            "2026-12-01T05:00:00Z",
        ),
    ] {
        let mut calendar = OneCalendar::starting(rule, now);
        let step = calendar.step(unit);
        let wait = (seconds(ends) - seconds(now)).unsigned_abs();
        assert_eq!(calendar.begins(unit, step + 1), after(wait), "{now}");
        calendar.advance(after(wait - 1));
        assert_eq!(calendar.step(unit), step, "{now}");
        calendar.advance(after(wait));
        assert_eq!(calendar.step(unit), step + 1, "{now}");
    }
}

#[test]
fn budgets_of_one_rule_share_a_calendar_and_a_new_one_begins_no_period_again() {
    let berlin = || rule("Europe/Berlin", 1, Weekday::Monday);
    let utc_alone = [budget(BudgetCalendar::default())];
    let mut calendars = Calendars::new(START).of_policy(&utc_alone, START);
    calendars.set(START, utc("2026-11-28T23:30:00Z"));
    calendars.set(after(1), utc("2026-11-28T22:50:00Z"));
    let both = [budget(berlin()), budget(BudgetCalendar::default()), budget(berlin())];
    let mut both = calendars.of_policy(&both, after(1));
    assert_eq!(both.all.len(), 2);
    assert_eq!(both.of_budgets, [0, 1, 0]);
    assert_eq!(both.of_budget(1).step(Unit::Day), calendars.of_budget(0).step(Unit::Day));
    // It is ten to midnight in Berlin, and was half past already.
    let day = both.of_budget(0).step(Unit::Day);
    both.advance(after(1_201));
    assert_eq!(both.of_budget(0).step(Unit::Day), day);
}
