//! Usage of budgets as engines report it to each other.

use alloc::boxed::Box;
use core::time::Duration;

use crate::policy::{BudgetPeriod, CostUnit};
use crate::units::Tokens;

/// What a flow used of one window of its budget, once settled, or what was added to the window by hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetUsage {
    /// The fairness identity; empty: `anonymous`.
    pub flow: Box<str>,
    /// The unit of the window.
    pub unit: CostUnit,
    /// The time of the window.
    pub period: BudgetPeriod,
    /// Whether it was used or added.
    pub kind: UsageKind,
    /// When.
    pub used_at: UsedAt,
    /// How much.
    pub amount: u64,
}

/// A kind of [`BudgetUsage`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UsageKind {
    /// Used by requests.
    #[default]
    Used,
    /// Added by [`crate::Input::TopUp`], to a window of tokens.
    ToppedUp,
}

/// A reset of a flow's budget, in the one order in which all engines hear of resets and usage. An empty flow: `anonymous`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BudgetReset {
    /// Another engine has reset the flow. All that this engine has used of the flow's budget until now, and all top-ups, count no longer. Ignored
    /// while the engine waits for its own reset of the flow in this order ([`Self::Here`]): that one comes later, and so does what it has used since.
    Elsewhere {
        /// The fairness identity.
        flow: Box<str>,
        /// What the sender calls this reset; [`crate::BudgetReport::Forgotten`] says it again.
        number: u64,
    },
    /// This engine's [`crate::Input::ResetBudget`]: what others report from here on, they have used after it.
    Here {
        /// The fairness identity.
        flow: Box<str>,
        /// That of [`crate::BudgetReport::Reset`].
        number: u64,
    },
}

/// When something was used of a budget: when the request was dispatched, or later if its step has left the window by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsedAt {
    /// In a sliding window, so long ago.
    Ago(Duration),
    /// In the day, week or month that began with this second since 1970 began.
    Since(i64),
    /// Before all that the window counts. It isn't paid back yet.
    Debt,
}

/// What a flow runs at some engines: reserved, and not settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetRunning {
    /// The fairness identity; empty: `anonymous`.
    pub flow: Box<str>,
    /// The sum of the estimated costs in tokens.
    pub tokens: Tokens,
    /// Requests.
    pub requests: u64,
}
