//! Usage of budgets as stores keep it: summed up by flow, window and bucket of time. The engine's word for a budget is quota.
//!
//! A bucket is as wide as a step of the engine's window, and belongs to a day or month as a whole. Buckets are kept for longer than their
//! window, because what a flow has used above its budget is owed after that: the engine replays them ([`DEBT_WINDOWS`]).

use std::time::Duration;

use penstock_engine::input::{QuotaUsage, UsedAt};
use penstock_engine::limits::QUOTA_STEPS;
use penstock_engine::policy::{CostUnit, QuotaPeriod};

use super::millis;

/// A debt is remembered as long as it comes from the last so many windows, days or months.
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

impl From<QuotaPeriod> for PeriodCode {
    fn from(period: QuotaPeriod) -> Self {
        match period {
            QuotaPeriod::Sliding(duration) => Self(millis(duration).max(SECOND_MS)),
            QuotaPeriod::Day => DAY,
            QuotaPeriod::Month => MONTH,
        }
    }
}

impl PeriodCode {
    /// `None`: no window has this number.
    pub(super) fn from_number(number: u64) -> Option<Self> {
        let code = Self(number);
        (code == DAY || code == MONTH || number >= SECOND_MS).then_some(code)
    }

    pub(super) const fn number(self) -> u64 {
        self.0
    }

    pub(super) const fn period(self) -> QuotaPeriod {
        match self {
            DAY => QuotaPeriod::Day,
            MONTH => QuotaPeriod::Month,
            Self(millis) => QuotaPeriod::Sliding(Duration::from_millis(millis)),
        }
    }

    const fn is_calendar(self) -> bool {
        self.0 < SECOND_MS
    }

    /// The width of a bucket, in milliseconds; of a calendar window at most.
    pub(super) fn width(self) -> u64 {
        match self {
            DAY => DAY_MS,
            MONTH => MONTH_MS,
            Self(millis) => millis.div_ceil(QUOTA_STEPS).max(SECOND_MS),
        }
    }

    /// The start of the bucket that contains `time`, in milliseconds. A calendar window's usage has the first second of its day or month.
    pub(super) fn bucket(self, time: u64) -> u64 {
        if self.is_calendar() {
            time
        } else {
            time - time % self.width()
        }
    }

    /// How long a bucket is kept after its start, in milliseconds.
    pub(super) const fn kept(self) -> u64 {
        let window = match self {
            DAY => DAY_MS,
            MONTH => MONTH_MS,
            Self(millis) => millis,
        };
        window.saturating_mul(DEBT_WINDOWS)
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

/// A unit as a number.
pub(super) const fn unit_number(unit: CostUnit) -> u8 {
    match unit {
        CostUnit::Tokens => 0,
        CostUnit::Requests => 1,
    }
}

/// `None`: no unit has this number.
pub(super) const fn unit_from_number(number: u8) -> Option<CostUnit> {
    match number {
        0 => Some(CostUnit::Tokens),
        1 => Some(CostUnit::Requests),
        _ => None,
    }
}

/// What a flow has used in one bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) flow: Box<str>,
    pub(super) unit: CostUnit,
    pub(super) period: PeriodCode,
    /// The bucket's start, in milliseconds since 1970 began by the store's clock.
    pub(super) bucket: u64,
    pub(super) amount: u64,
}

impl Counted {
    /// The engine's record of it; `now` is the store's time in milliseconds.
    pub(super) fn usage(self, now: u64) -> QuotaUsage {
        let used_at = self.period.used_at(self.bucket, now);
        self.used_at(used_at)
    }

    /// The same, if `bucket` is the exact time.
    pub(super) fn exact_usage(self, now: u64) -> QuotaUsage {
        let used_at = if self.period.is_calendar() {
            self.period.used_at(self.bucket, now)
        } else {
            UsedAt::Ago(Duration::from_millis(now.saturating_sub(self.bucket)))
        };
        self.used_at(used_at)
    }

    fn used_at(self, used_at: UsedAt) -> QuotaUsage {
        QuotaUsage {
            flow: self.flow,
            unit: self.unit,
            period: self.period.period(),
            used_at,
            amount: self.amount,
        }
    }
}

/// When `usage`, which is from `taken_at`, was used, in milliseconds by the store's clock; `None`: at no time.
pub(super) fn time_of(usage: &QuotaUsage, taken_at: u64) -> Option<u64> {
    match usage.used_at {
        UsedAt::Ago(ago) => Some(taken_at.saturating_sub(millis(ago))),
        UsedAt::Since(seconds) => u64::try_from(seconds).ok()?.checked_mul(SECOND_MS),
        UsedAt::Debt => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(period: QuotaPeriod) -> PeriodCode {
        period.into()
    }

    #[test]
    fn a_period_survives_its_number() {
        let sliding = |millis| QuotaPeriod::Sliding(Duration::from_millis(millis));
        for period in [
            QuotaPeriod::Day,
            QuotaPeriod::Month,
            sliding(1_000),
            sliding(90_500),
        ] {
            let number = code(period).number();
            assert_eq!(
                PeriodCode::from_number(number).map(PeriodCode::period),
                Some(period)
            );
        }
        assert_eq!(
            [0, 3, 999].map(PeriodCode::from_number),
            [None; 3],
            "a sliding window lasts a second at least"
        );
        for unit in [CostUnit::Tokens, CostUnit::Requests] {
            assert_eq!(unit_from_number(unit_number(unit)), Some(unit));
        }
        assert_eq!(unit_from_number(2), None);
    }

    #[test]
    fn usage_leaves_its_window_up_to_a_bucket_late_and_never_early() {
        let hour = code(QuotaPeriod::Sliding(Duration::from_secs(3_600)));
        assert_eq!(hour.width(), 60_000);
        for time in [600_000, 600_001, 659_999] {
            let bucket = hour.bucket(time);
            assert_eq!(bucket, 600_000);
            assert_eq!(
                hour.used_at(bucket, 700_000),
                UsedAt::Ago(Duration::from_secs(40))
            );
        }
        let now_within = hour.used_at(600_000, 600_500);
        assert_eq!(now_within, UsedAt::Ago(Duration::ZERO));
    }

    #[test]
    fn a_day_is_counted_by_its_first_second() {
        let day = code(QuotaPeriod::Day);
        let first = 20_000 * DAY_MS;
        let usage = Counted {
            flow: "a".into(),
            unit: CostUnit::Tokens,
            period: day,
            bucket: day.bucket(first),
            amount: 7,
        }
        .usage(first + 3_000);
        assert_eq!(usage.used_at, UsedAt::Since(20_000 * 24 * 3_600));
        assert_eq!(time_of(&usage, 0), Some(first));
    }
}
