//! Changes of budgets that no request of this engine makes: by hand, at other engines, and before the start.

use alloc::vec::Vec;

use super::super::Engine;
use super::named;
use crate::effect::{BudgetReport, Effect};
use crate::input::{BudgetReset, BudgetRunning, BudgetUsage};
use crate::units::Tokens;

impl Engine {
    pub(in crate::engine) fn add_budget_usage(
        &mut self,
        settled: Vec<BudgetUsage>,
        running: Vec<BudgetRunning>,
    ) {
        for mut usage in settled {
            usage.flow = named(&usage.flow).into();
            if let Some(index) = self.policy.flows.budget_of(&usage.flow)
                && let Some((table, now)) = self.budgets.table()
            {
                table.add_used(&usage, index, &now);
                self.update_hold_of(&usage.flow);
            }
        }
        for mut running in running {
            running.flow = named(&running.flow).into();
            if let Some(index) = self.policy.flows.budget_of(&running.flow)
                && let Some((table, now)) = self.budgets.table()
            {
                table.set_elsewhere(&running, index, &now);
                self.update_hold_of(&running.flow);
            }
        }
    }

    pub(in crate::engine) fn replay_budgets(&mut self, mut past: Vec<BudgetUsage>) {
        for usage in &mut past {
            usage.flow = named(&usage.flow).into();
        }
        past.sort_by(|a, b| a.flow.cmp(&b.flow));
        for past in past.chunk_by(|a, b| a.flow == b.flow) {
            if let Some(first) = past.first()
                && let Some(index) = self.policy.flows.budget_of(&first.flow)
                && let Some((table, now)) = self.budgets.table()
                && !table.awaits_reset(&first.flow, &now)
            {
                table.replay(&first.flow, index, past, &now);
                self.update_hold_of(&first.flow);
            }
        }
    }

    pub(in crate::engine) fn apply_budget_resets(&mut self, resets: Vec<BudgetReset>) {
        for reset in resets {
            match reset {
                BudgetReset::Elsewhere { flow, number } => {
                    let name = named(&flow);
                    if let Some((table, now)) = self.budgets.table() {
                        if table.awaits_reset(name, &now) {
                            continue;
                        }
                        table.forget(name, &now);
                    }
                    // Without a budget, too: the next policy may give the flow one.
                    self.report_reset(BudgetReport::Forgotten { flow: name.into(), number }, name);
                }
                BudgetReset::Here { flow, number } => {
                    if let Some((table, _)) = self.budgets.table() {
                        table.end_reset(named(&flow), number);
                    }
                }
            }
        }
    }

    pub(in crate::engine) fn top_up(&mut self, flow: &str, tokens: Tokens) {
        let name = named(flow);
        let Some(index) = self.policy.flows.budget_of(name) else {
            return;
        };
        let Some((table, now)) = self.budgets.table() else {
            return;
        };
        table.top_up(name, index, tokens.0, &now);
        if self.reports_budgets {
            let reports = table.report_top_up(name, index, tokens.0, &now).into_iter();
            self.effects.extend(reports.map(|report| Effect::Budget(BudgetReport::Used(report))));
        }
        self.update_hold_of(name);
    }

    pub(in crate::engine) fn reset_budget(&mut self, flow: &str) {
        let name = named(flow);
        if self.policy.flows.budget_of(name).is_some()
            && let Some((table, now)) = self.budgets.table()
        {
            let number = table.reset(name, self.shares_budgets, &now);
            self.report_reset(BudgetReport::Reset { flow: name.into(), number }, name);
        }
    }

    /// Nothing of the flow's budget is used any more, and nothing that runs is reserved.
    fn report_reset(&mut self, report: BudgetReport, name: &str) {
        if self.reports_budgets {
            self.effects.push_back(Effect::Budget(report));
        }
        if let Some(flow) = self.tree.flow_named(name) {
            self.report_budget_running(flow);
        }
        self.update_hold_of(name);
    }
}
