//! The budgets of the control's pools.

use penstock_engine::Instant;
use penstock_engine::snapshot::FlowBudgetSnapshot;

use super::Control;
use crate::budgets::{NoBudget, PoolBudgets};

impl Control {
    /// The budgets of all pools that are configured or have requests.
    #[must_use]
    pub fn budgets(&self, now: Instant) -> Vec<PoolBudgets> {
        self.pools.iter().map(|(_, pool)| pool.budgets(now)).collect()
    }

    /// The budget of a flow of a configured pool.
    pub(crate) fn budget(
        &self,
        now: Instant,
        pool: &str,
        flow: &str,
    ) -> Result<FlowBudgetSnapshot, NoBudget> {
        let pool = self.pools.by_name(pool).and_then(|id| self.pools.get(id));
        let pool = pool.ok_or(NoBudget::UnknownPool)?;
        pool.budget(now, flow).ok_or(NoBudget::NoneMatches)
    }
}
