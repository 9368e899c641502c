//! The budgets of the pool's flows.

use hashbrown::HashSet;
use penstock_engine::Instant;
use penstock_engine::input::{Input, RequestId};
use penstock_engine::snapshot::FlowBudgetSnapshot;
use penstock_engine::units::Tokens;

use super::Pool;
use crate::budgets::{BudgetChange, FlowBudget, PoolBudgets};
use crate::rate_limit::RateLimit;

impl Pool {
    /// The rest of a flow's budget now; `None`: it has none that decides. Without budgets, all that this costs is a check.
    pub(super) fn rate_limit(&mut self, now: Instant, flow: &str) -> Option<RateLimit> {
        if self.rules.policy.flows.budgets.is_empty() {
            return None;
        }
        let window = self.engine.tightest_window(flow)?;
        Some(RateLimit::of(&window, now))
    }

    /// The rest of the budget of a request's flow; the request waits or runs.
    pub(super) fn rate_limit_of(&mut self, now: Instant, id: RequestId) -> Option<RateLimit> {
        let window = self.engine.tightest_window_of(id)?;
        Some(RateLimit::of(&window, now))
    }

    /// All budgets at this moment, in time proportional to the number of flows with one.
    pub(crate) fn budgets(&self, now: Instant) -> PoolBudgets {
        let budgets = self.engine.budgets_at(now);
        let is_reserved =
            |budget: &FlowBudgetSnapshot| budget.windows.iter().any(|window| window.reserved > 0);
        let busy = budgets.iter().filter(|budget| is_reserved(budget));
        let busy: HashSet<Box<str>> = busy.map(|budget| budget.flow.clone()).collect();
        let visible = self.visible_flows.visible_at(now, |flow| busy.contains(flow));
        let visible: HashSet<Box<str>> = visible.into_iter().map(|(flow, _)| flow).collect();
        let shadowed = self.visible_flows.shadowed(visible.iter().map(|flow| &**flow));
        PoolBudgets {
            pool: self.name.clone(),
            shadowed: shadowed.into_iter().map(|(flow, over, count)| (flow.into(), over, count)).collect(),
            flows: budgets
                .into_iter()
                .map(|budget| FlowBudget {
                    is_public: self.public_budgets.contains(&budget.flow),
                    is_shown: visible.contains(&budget.flow),
                    budget,
                })
                .collect(),
        }
    }

    /// The budget of a flow at this moment; `None`: it has none.
    pub(crate) fn budget(&self, now: Instant, flow: &str) -> Option<FlowBudgetSnapshot> {
        self.engine.budget_at(now, flow)
    }

    pub(super) fn change_budget(&mut self, now: Instant, flow: Box<str>, change: BudgetChange) {
        let input = match change {
            BudgetChange::AddTokens(tokens) => Input::TopUp { flow, tokens: Tokens(tokens) },
            BudgetChange::Reset => Input::ResetBudget(flow),
        };
        self.decide(now, input);
    }
}
