//! Budgets of flows: the queries and changes of the HTTP API.

use std::sync::Arc;

use penstock_control::{BudgetChange, NoBudget, PoolBudgets};
use penstock_engine::snapshot::FlowBudgetSnapshot;

use super::{Gone, Handle, Message};

/// A change of a flow's budget in a pool.
pub(super) struct Change {
    pub(super) pool: Arc<str>,
    pub(super) flow: Box<str>,
    pub(super) change: BudgetChange,
}

impl Handle {
    /// The budgets of all pools, in time proportional to the number of flows with one.
    ///
    /// # Errors
    /// When the driver has ended.
    pub(crate) async fn budgets(&self) -> Result<Vec<PoolBudgets>, Gone> {
        self.query(Message::Budgets).await
    }

    /// Changes a flow's budget. Returns the budget as it is then, or why it can't be changed.
    ///
    /// # Errors
    /// When the driver has ended.
    pub(crate) async fn change_budget(
        &self,
        pool: Arc<str>,
        flow: &str,
        change: BudgetChange,
    ) -> Result<Result<FlowBudgetSnapshot, NoBudget>, Gone> {
        let flow = flow.into();
        let change = Box::new(Change { pool, flow, change });
        self.query(|reply| Message::ChangeBudget(change, reply)).await
    }
}
