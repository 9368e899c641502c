//! The budgets of all pools, and changes of them.

use std::sync::Arc;

use penstock_engine::Instant;
use penstock_engine::snapshot::FlowBudgetSnapshot;

use super::{Controls, GATEWAY};
use crate::budgets::{BudgetChange, NoBudget, PoolBudgets};
use crate::control::Control;
use crate::event::{Event, PoolEvent};

impl Controls {
    /// The budgets of all pools, in time proportional to the number of flows with one.
    #[must_use]
    pub fn budgets(&self, now: Instant) -> Vec<PoolBudgets> {
        self.iter().flat_map(|(_, control)| control.budgets(now)).collect()
    }

    /// Changes a flow's budget. Returns the budget as it is now.
    ///
    /// # Errors
    /// When the flow has no budget that can be changed so.
    pub fn change_budget(
        &mut self,
        now: Instant,
        pool: &Arc<str>,
        flow: &str,
        change: BudgetChange,
    ) -> Result<FlowBudgetSnapshot, NoBudget> {
        let before = self.deciding(pool)?.budget(now, pool, flow)?;
        change.check(&before)?;
        let event = Event::Pool(pool.clone(), PoolEvent::ChangeBudget { flow: flow.into(), change });
        self.handle(now, event);
        self.deciding(pool)?.budget(now, pool, flow)
    }

    /// The control that decides about the pool's requests.
    fn deciding(&self, pool: &str) -> Result<&Control, NoBudget> {
        let index = self.by_pool.get(pool).copied().unwrap_or(GATEWAY);
        let member = self.members.get(index).and_then(Option::as_ref);
        member.map(|member| &member.control).ok_or(NoBudget::UnknownPool)
    }
}
