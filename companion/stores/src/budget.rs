//! Usage of budgets as stores keep it: summed up by flow, window and bucket of time.
//!
//! A bucket is as wide as a step of the engine's window, but a second at least, and belongs to a day, week or month as a whole. Buckets are kept for longer than their
//! window, because what a flow has used above its budget is owed after that: the engine replays them ([`DEBT_WINDOWS`]).

use std::time::Duration;

use penstock_engine::input::{BudgetUsage, UsageKind, UsedAt};
use penstock_engine::limits::BUDGET_STEPS;
use penstock_engine::policy::{BudgetPeriod, CostUnit};

use super::millis;

/// A debt is remembered as long as it comes from the last so many windows, days, weeks or months.
const DEBT_WINDOWS: u64 = 10;
const SECOND_MS: u64 = 1_000;
const DAY_MS: u64 = 24 * 3_600 * SECOND_MS;
/// The longest month.
const MONTH_MS: u64 = 31 * DAY_MS;

/// A window's time as a number: milliseconds of a sliding one, which lasts a second at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PeriodCode(u64);

const DAY: PeriodCode = PeriodCode(1);
const MONTH: PeriodCode = PeriodCode(2);
const WEEK: PeriodCode = PeriodCode(3);

impl From<BudgetPeriod> for PeriodCode {
    fn from(period: BudgetPeriod) -> Self {
        match period {
            BudgetPeriod::Sliding(duration) => Self(millis(duration).max(SECOND_MS)),
            BudgetPeriod::Day => DAY,
            BudgetPeriod::Week => WEEK,
            BudgetPeriod::Month => MONTH,
        }
    }
}

impl PeriodCode {
    /// `None`: no window has this number.
    pub(super) fn from_number(number: u64) -> Option<Self> {
        let code = Self(number);
        ([DAY, WEEK, MONTH].contains(&code) || number >= SECOND_MS).then_some(code)
    }

    pub(super) const fn number(self) -> u64 {
        self.0
    }

    pub(super) const fn period(self) -> BudgetPeriod {
        match self {
            DAY => BudgetPeriod::Day,
            WEEK => BudgetPeriod::Week,
            MONTH => BudgetPeriod::Month,
            Self(millis) => BudgetPeriod::Sliding(Duration::from_millis(millis)),
        }
    }

    pub(super) const fn is_calendar(self) -> bool {
        self.0 < SECOND_MS
    }

    /// The width of a bucket, in milliseconds; of a calendar window at most.
    pub(super) fn width(self) -> u64 {
        match self {
            DAY | WEEK | MONTH => self.length(),
            Self(millis) => millis.div_ceil(BUDGET_STEPS).max(SECOND_MS),
        }
    }

    /// The start of the bucket that contains `time`, in milliseconds. A calendar window's usage has the first second of its day, week or month.
    pub(super) fn bucket(self, time: u64) -> u64 {
        if self.is_calendar() { time } else { time - time % self.width() }
    }

    /// The time of the window in milliseconds; of a calendar window at most, unless clocks change.
    pub(super) const fn length(self) -> u64 {
        match self {
            DAY => DAY_MS,
            WEEK => 7 * DAY_MS,
            MONTH => MONTH_MS,
            Self(millis) => millis,
        }
    }

    /// How long a bucket is kept after its start, in milliseconds.
    pub(super) const fn kept(self) -> u64 {
        self.length().saturating_mul(DEBT_WINDOWS)
    }

    /// When something was used, for the engine, which is at `now`: at the end of the bucket, so that no usage leaves its window early.
    fn used_at(self, bucket: u64, now: u64) -> UsedAt {
        if self.is_calendar() {
            UsedAt::Since(i64::try_from(bucket / SECOND_MS).unwrap_or(i64::MAX))
        } else {
            let end = bucket.saturating_add(self.width());
            UsedAt::Ago(Duration::from_millis(now.saturating_sub(end)))
        }
    }
}

/// What a record counts: used tokens, used requests, or tokens that were added by hand. A companion that doesn't know a number or a letter
/// ignores its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Counter {
    Tokens,
    Requests,
    TopUps,
}

impl Counter {
    pub(super) const ALL: [Self; 3] = [Self::Tokens, Self::Requests, Self::TopUps];

    pub(super) const fn of(unit: CostUnit, kind: UsageKind) -> Self {
        match (kind, unit) {
            (UsageKind::ToppedUp, _) => Self::TopUps,
            (UsageKind::Used, CostUnit::Tokens) => Self::Tokens,
            (UsageKind::Used, CostUnit::Requests) => Self::Requests,
        }
    }

    pub(super) const fn number(self) -> u8 {
        self as u8
    }

    /// `None`: no counter has this number.
    pub(super) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|counter| counter.number() == number)
    }

    pub(super) const fn unit(self) -> CostUnit {
        match self {
            Self::Tokens | Self::TopUps => CostUnit::Tokens,
            Self::Requests => CostUnit::Requests,
        }
    }

    pub(super) const fn kind(self) -> UsageKind {
        match self {
            Self::Tokens | Self::Requests => UsageKind::Used,
            Self::TopUps => UsageKind::ToppedUp,
        }
    }
}

/// What a flow has used, or was given, in one bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) flow: Box<str>,
    pub(super) counter: Counter,
    pub(super) period: PeriodCode,
    /// The bucket's start, in milliseconds since 1970 began by the store's clock.
    pub(super) bucket: u64,
    pub(super) amount: u64,
}

impl Counted {
    /// The engine's record of what was counted; `now` is the store's time in milliseconds.
    pub(super) fn usage(self, now: u64) -> BudgetUsage {
        let used_at = self.period.used_at(self.bucket, now);
        self.used_at(used_at)
    }

    /// The engine's record if `bucket` is the exact time.
    pub(super) fn exact_usage(self, now: u64) -> BudgetUsage {
        let used_at = if self.period.is_calendar() {
            self.period.used_at(self.bucket, now)
        } else {
            UsedAt::Ago(Duration::from_millis(now.saturating_sub(self.bucket)))
        };
        self.used_at(used_at)
    }

    fn used_at(self, used_at: UsedAt) -> BudgetUsage {
        BudgetUsage {
            flow: self.flow,
            unit: self.counter.unit(),
            period: self.period.period(),
            kind: self.counter.kind(),
            used_at,
            amount: self.amount,
        }
    }
}

/// When `usage`, which is from `taken_at`, was used, in milliseconds by the store's clock; `None`: at no time.
pub(super) fn time_of(usage: &BudgetUsage, taken_at: u64) -> Option<u64> {
    match usage.used_at {
        UsedAt::Ago(ago) => Some(taken_at.saturating_sub(millis(ago))),
        UsedAt::Since(seconds) => u64::try_from(seconds).ok()?.checked_mul(SECOND_MS),
        UsedAt::Debt => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(period: BudgetPeriod) -> PeriodCode {
        period.into()
    }

    #[test]
    fn a_period_survives_its_number() {
        let sliding = |millis| BudgetPeriod::Sliding(Duration::from_millis(millis));
        for period in
            [BudgetPeriod::Day, BudgetPeriod::Week, BudgetPeriod::Month, sliding(1_000), sliding(90_500)]
        {
            let number = code(period).number();
            assert_eq!(PeriodCode::from_number(number).map(PeriodCode::period), Some(period));
        }
        assert_eq!(
            [0, 4, 999].map(PeriodCode::from_number),
            [None; 3],
            "a sliding window lasts a second at least"
        );
        for counter in Counter::ALL {
            assert_eq!(Counter::from_number(counter.number()), Some(counter));
            assert_eq!(Counter::of(counter.unit(), counter.kind()), counter);
        }
        assert_eq!(Counter::from_number(3), None);
    }

    #[test]
    fn usage_leaves_its_window_up_to_a_bucket_late_and_never_early() {
        let hour = code(BudgetPeriod::Sliding(Duration::from_secs(3_600)));
        assert_eq!(hour.width(), 60_000);
        for time in [600_000, 600_001, 659_999] {
            let bucket = hour.bucket(time);
            assert_eq!(bucket, 600_000);
            assert_eq!(hour.used_at(bucket, 700_000), UsedAt::Ago(Duration::from_secs(40)));
        }
        let now_within = hour.used_at(600_000, 600_500);
        assert_eq!(now_within, UsedAt::Ago(Duration::ZERO));
    }

    #[test]
    fn a_day_is_counted_by_its_first_second() {
        let day = code(BudgetPeriod::Day);
        let first = 20_000 * DAY_MS;
        let usage = Counted {
            flow: "a".into(),
            counter: Counter::Tokens,
            period: day,
            bucket: day.bucket(first),
            amount: 7,
        }
        .usage(first + 3_000);
        assert_eq!(usage.used_at, UsedAt::Since(20_000 * 24 * 3_600));
        assert_eq!(time_of(&usage, 0), Some(first));
    }
}
