//! Usage of quotas as engines report it to each other.

use alloc::boxed::Box;
use core::time::Duration;

use crate::policy::{CostUnit, QuotaPeriod};
use crate::units::Tokens;

/// What a flow used of one window of its quota, once settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaUsage {
    /// The fairness identity; empty: `anonymous`.
    pub flow: Box<str>,
    /// The unit of the window.
    pub unit: CostUnit,
    /// The time of the window.
    pub period: QuotaPeriod,
    /// When it was used.
    pub used_at: UsedAt,
    /// How much.
    pub amount: u64,
}

/// When something was used of a quota: when the request was dispatched, or later if its step has left the window by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsedAt {
    /// In a sliding window, so long ago.
    Ago(Duration),
    /// In the day or month that began with this second since 1970 began, in UTC.
    Since(i64),
    /// Before all that the window counts. It isn't paid back yet.
    Debt,
}

/// What a flow runs at some engines: reserved, and not settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaRunning {
    /// The fairness identity; empty: `anonymous`.
    pub flow: Box<str>,
    /// The sum of the estimated costs in tokens.
    pub tokens: Tokens,
    /// Requests.
    pub requests: u64,
}
