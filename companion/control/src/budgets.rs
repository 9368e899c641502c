//! The budgets of flows, for the API and the metrics.

use std::sync::Arc;

use penstock_engine::policy::{CostUnit, Over};
use penstock_engine::snapshot::{BudgetWindowSnapshot, FlowBudgetSnapshot};

/// The budgets of a pool's flows at one moment.
#[derive(Clone, Debug)]
pub struct PoolBudgets {
    /// The pool's name.
    pub pool: Arc<str>,
    /// The flows that have used something, by name.
    pub flows: Vec<FlowBudget>,
    /// How many requests of a flow met no room in a budget with `shadow`, by what would have happened to them: flows that are shown
    /// by name, and `other`.
    pub shadowed: Vec<(Box<str>, Over, u64)>,
}

/// The budget of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowBudget {
    /// What the flow has used.
    pub budget: FlowBudgetSnapshot,
    /// The name came in a header or from a key, at a request since this companion's start. Any other name may be private.
    pub is_public: bool,
    /// The name is a label value in metrics. All other flows are `other` there.
    pub is_shown: bool,
}

impl FlowBudget {
    /// Nothing of it is used.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        let is_unused = |window: &BudgetWindowSnapshot| window.used == 0 && window.reserved == 0;
        self.budget.windows.iter().all(is_unused)
    }

    /// A request may go.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.budget.windows.iter().all(|window| window.remaining > 0)
    }

    /// The smallest part of a window that is left, in thousandths.
    #[must_use]
    pub fn left_milli(&self) -> u64 {
        let left = |window: &BudgetWindowSnapshot| {
            let part = u128::from(window.remaining) * 1_000 / u128::from(window.limit.max(1));
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        self.budget.windows.iter().map(left).min().unwrap_or(u64::MAX)
    }
}

/// A change of a flow's budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetChange {
    /// Tokens that may be used on top in each window that counts tokens; see [`penstock_engine::Input::TopUp`].
    AddTokens(u64),
    /// Nothing that was used counts any more.
    Reset,
}

/// Why a budget can't be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoBudget {
    /// No pool has this name.
    UnknownPool,
    /// No budget of the pool matches the flow.
    NoneMatches,
    /// The flow's budget has no window of tokens.
    CountsNoTokens,
}

impl BudgetChange {
    /// # Errors
    /// When the change would have no effect on this budget.
    pub(crate) fn check(self, budget: &FlowBudgetSnapshot) -> Result<(), NoBudget> {
        let counts_tokens = |window: &BudgetWindowSnapshot| window.unit == CostUnit::Tokens;
        match self {
            Self::AddTokens(_) if !budget.windows.iter().any(counts_tokens) => Err(NoBudget::CountsNoTokens),
            Self::AddTokens(_) | Self::Reset => Ok(()),
        }
    }
}
