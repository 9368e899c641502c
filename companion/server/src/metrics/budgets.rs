//! The budgets of flows.

use penstock_control::PoolBudgets;
use penstock_engine::policy::CostUnit;
use penstock_engine::snapshot::BudgetWindowSnapshot;

use super::OTHER;
use super::page::{Page, Series};

/// Adds the families. A flow that has used nothing has no series. Flows without a name of their own are summed as `other`.
pub(super) fn render(page: &mut Page, budgets: &[&PoolBudgets]) {
    const WINDOW: [&str; 3] = ["pool", "flow", "window"];
    page.gauge(
        "budget_used",
        "What a flow has used in a window of its budget, and what its running requests are estimated to use: weighted tokens, or \
         requests where the window's label says so.",
        WINDOW,
        |series| by_window(series, budgets, |window| window.used.saturating_add(window.reserved)),
    );
    page.gauge(
        "budget_limit",
        "The limit of a window of a flow's budget, without top-ups.",
        WINDOW,
        |series| by_window(series, budgets, |window| window.limit),
    );
    page.gauge(
        "budget_remaining",
        "What is left in a window of a flow's budget, top-ups included. At 0 the flow is over its budget.",
        WINDOW,
        |series| by_window(series, budgets, |window| window.remaining),
    );
    page.counter(
        "budget_shadow_total",
        "Requests of a flow over a budget with shadow: true, by what would have happened to them.",
        ["pool", "flow", "over"],
        |series| {
            for pool in budgets {
                for (flow, over, count) in &pool.shadowed {
                    series.add([&pool.pool, flow, over.as_str()], *count);
                }
            }
        },
    );
}

fn by_window(series: &mut Series<3>, budgets: &[&PoolBudgets], value: impl Fn(&BudgetWindowSnapshot) -> u64) {
    for pool in budgets {
        for budget in pool.flows.iter().filter(|budget| !budget.is_unused()) {
            let flow = if budget.is_shown { &*budget.budget.flow } else { OTHER };
            for window in &budget.budget.windows {
                series.add([&pool.pool, flow, &window_name(window)], value(window));
            }
        }
    }
}

/// `1h` for a window of tokens, `1h requests` for one of requests: a budget may have both.
fn window_name(window: &BudgetWindowSnapshot) -> String {
    match window.unit {
        CostUnit::Tokens => window.period.to_string(),
        CostUnit::Requests => format!("{} requests", window.period),
    }
}
