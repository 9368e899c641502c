//! The usage of flows, for display and for headers.

use alloc::vec::Vec;

use super::flow::FlowBudget;
use super::window::Window;
use super::{LocalNow, Now, Table};
use crate::policy::{Budget, BudgetWindow};
use crate::snapshot::{BudgetWindowSnapshot, FlowBudgetSnapshot};

fn of_window(window: &Window, definition: &BudgetWindow, now: &LocalNow<'_>) -> BudgetWindowSnapshot {
    BudgetWindowSnapshot {
        unit: definition.unit,
        period: definition.period,
        limit: window.limit(),
        used: window.used(),
        reserved: window.reserved(),
        debt: window.debt(),
        remaining: window.room(),
        resets_at: now.begins(definition.period, window.is_empty_in()),
    }
}

impl FlowBudget {
    fn windows<'a>(
        &'a self,
        budget: &'a Budget,
        now: &'a LocalNow<'_>,
    ) -> impl Iterator<Item = BudgetWindowSnapshot> + 'a {
        let windows = self.windows.iter().zip(&budget.windows);
        windows.map(|(window, definition)| of_window(window, definition, now))
    }

    /// At this moment.
    fn snapshot(mut self, name: &str, budget: &Budget, now: &LocalNow<'_>) -> FlowBudgetSnapshot {
        self.advance(budget, &now.moment);
        FlowBudgetSnapshot {
            flow: name.into(),
            over: budget.over,
            shadow: budget.shadow,
            windows: self.windows(budget, now).collect(),
        }
    }
}

impl Table {
    /// Every flow with an entry, in time proportional to their number.
    pub(crate) fn snapshots(&self, now: &Now<'_>) -> Vec<FlowBudgetSnapshot> {
        let flows = self.flows.iter().map(|(name, flow)| {
            let budget = self.budget(flow.budget);
            flow.clone().snapshot(name, budget, &now.under(flow.budget))
        });
        let mut flows: Vec<FlowBudgetSnapshot> = flows.collect();
        flows.sort_unstable_by(|a, b| a.flow.cmp(&b.flow));
        flows
    }

    /// One flow, whether it has an entry or not. `index` is its budget.
    pub(crate) fn snapshot(&self, name: &str, index: usize, now: &Now<'_>) -> FlowBudgetSnapshot {
        let (budget, now) = (self.budget(index), now.under(index));
        let flow = self.flows.get(name).cloned();
        flow.unwrap_or_else(|| FlowBudget::new(index, budget, 0, &now.moment)).snapshot(name, budget, &now)
    }

    /// The window of the flow of which the smallest part is left; `None`: its budget, `index`, decides nothing.
    pub(crate) fn tightest_deciding(
        &mut self,
        name: &str,
        index: usize,
        now: &Now<'_>,
    ) -> Option<BudgetWindowSnapshot> {
        if self.budget(index).shadow {
            return None;
        }
        self.tightest(name, index, now)
    }

    fn tightest(&mut self, name: &str, index: usize, now: &Now<'_>) -> Option<BudgetWindowSnapshot> {
        if self.get(name, now).is_none() {
            let now = now.under(index);
            let unused = FlowBudget::new(index, self.budget(index), 0, &now.moment);
            return tightest(unused.windows(self.budget(index), &now));
        }
        let flow = self.flows.get(name)?;
        tightest(flow.windows(self.budget(flow.budget), &now.under(flow.budget)))
    }
}

fn tightest(windows: impl Iterator<Item = BudgetWindowSnapshot>) -> Option<BudgetWindowSnapshot> {
    // The smaller of the parts remaining / limit, compared without division.
    let left =
        |a: &BudgetWindowSnapshot, b: &BudgetWindowSnapshot| u128::from(a.remaining) * u128::from(b.limit);
    windows.reduce(
        |tightest, other| {
            if left(&other, &tightest) < left(&tightest, &other) { other } else { tightest }
        },
    )
}
