//! Usage that engines tell each other: what they settle, and what they run.

use alloc::vec::Vec;
use core::time::Duration;

use super::flow::Amount;
use super::restore::count;
use super::table::Settled;
use super::window::{Counted, StepNumber};
use super::{LocalNow, Now, Table};
use crate::input::{BudgetRunning, BudgetUsage, UsageKind, UsedAt};
use crate::policy::{BudgetPeriod, BudgetWindow, CostUnit};
use crate::units::Tokens;

/// `step` and `ago` are those of the same moment.
fn used_at(period: BudgetPeriod, step: StepNumber, ago: Duration, now: &LocalNow<'_>) -> UsedAt {
    now.first_second(period, step).map_or(UsedAt::Ago(ago), UsedAt::Since)
}

impl Table {
    /// A settled request as the windows of its flow count it. Another engine that adds the same counts the same.
    ///
    /// Of a request that has outlived a window, others count what is still filled or owed because of it: they have forgotten its step, and
    /// knew until now only that it runs.
    pub(crate) fn report(&mut self, name: &str, settled: &Settled, now: &Now<'_>) -> Vec<BudgetUsage> {
        let Some(flow) = self.get(name, now) else {
            return Vec::new();
        };
        let index = flow.budget;
        let now = now.under(index);
        let dispatched = &settled.reservation.moment;
        let mut reports = Vec::new();
        for (window, counted) in self.budget(index).windows.iter().zip(&settled.counted) {
            let mut report = |step: StepNumber, ago: Duration, amount: u64| {
                reports.push(BudgetUsage {
                    flow: name.into(),
                    unit: window.unit,
                    period: window.period,
                    kind: UsageKind::Used,
                    used_at: used_at(window.period, step, ago, &now),
                    amount,
                });
            };
            match counted {
                Counted::AtDispatch => {
                    let (step, real) = (dispatched.step(window.period), settled.real.of(window.unit));
                    if real > 0 {
                        report(step, now.moment.at.since(dispatched.at), real);
                    }
                }
                Counted::Later(steps) => {
                    for &(step, amount) in steps {
                        report(step, now.since_end(window.period, step), amount);
                    }
                }
            }
        }
        reports
    }

    /// What the flow runs here that isn't settled.
    pub(crate) fn running(&self, name: &str) -> Option<BudgetRunning> {
        let running = self.flows.get(name)?.running;
        Some(BudgetRunning { flow: name.into(), tokens: Tokens(running.tokens), requests: running.requests })
    }

    /// A top-up of now as the windows of a flow count it. `index` is its budget.
    pub(crate) fn report_top_up(
        &self,
        name: &str,
        index: usize,
        tokens: u64,
        now: &Now<'_>,
    ) -> Vec<BudgetUsage> {
        let now = now.under(index);
        let of_tokens = |window: &&BudgetWindow| window.unit == CostUnit::Tokens;
        let windows = self.budget(index).windows.iter().filter(of_tokens);
        let reports = windows.map(|window| BudgetUsage {
            flow: name.into(),
            unit: window.unit,
            period: window.period,
            kind: UsageKind::ToppedUp,
            used_at: used_at(window.period, now.moment.step(window.period), Duration::ZERO, &now),
            amount: tokens,
        });
        reports.collect()
    }

    /// Adds usage that was settled elsewhere, or before, or a top-up there. `index` is the flow's budget.
    pub(crate) fn add_used(&mut self, usage: &BudgetUsage, index: usize, now: &Now<'_>) {
        if self.awaits_reset(&usage.flow, now) {
            return;
        }
        let local = now.under(index);
        let Some((flow, budget)) = self.entry_with_budget(&usage.flow, index, now) else {
            return;
        };
        let is_same = |window: &BudgetWindow| (window.unit, window.period) == (usage.unit, usage.period);
        let Some(position) = budget.windows.iter().position(is_same) else {
            return;
        };
        let window = &mut flow.windows[position];
        match local.step_of(usage) {
            Some(step) => count(window, step, usage),
            None if usage.used_at == UsedAt::Debt => window.add_debt(usage.amount),
            None => {}
        }
    }

    /// What the flow runs at other engines now. `index` is its budget.
    pub(crate) fn set_elsewhere(&mut self, running: &BudgetRunning, index: usize, now: &Now<'_>) {
        let amount = Amount { tokens: running.tokens.0, requests: running.requests };
        if amount == Amount::default() && !self.flows.contains_key(&running.flow) {
            return;
        }
        if let Some((flow, budget)) = self.entry_with_budget(&running.flow, index, now) {
            for (window, definition) in flow.windows.iter_mut().zip(&budget.windows) {
                window.set_elsewhere(amount.of(definition.unit));
            }
        }
    }
}
