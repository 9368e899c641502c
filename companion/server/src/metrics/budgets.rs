//! Gauges of the budgets of flows.

use penstock_control::{FlowBudget, PoolBudgets};
use penstock_engine::policy::CostUnit;
use penstock_engine::snapshot::QuotaWindowSnapshot;
use prometheus::{IntCounterVec, IntGaugeVec};

use super::{Maker, OTHER, int};

/// All families of budgets, made for one scrape. A flow that has used nothing has no series. Flows without a name of their own are summed
/// as `other`.
#[derive(Debug)]
pub(super) struct Gauges {
    used: IntGaugeVec,
    limit: IntGaugeVec,
    remaining: IntGaugeVec,
    shadowed: IntCounterVec,
}

impl Gauges {
    /// All families, without series.
    pub(super) fn new(make: &Maker) -> prometheus::Result<Self> {
        const WINDOW: [&str; 3] = ["pool", "flow", "window"];
        Ok(Self {
            used: make.gauge(
                "budget_used",
                "What a flow has used in a window of its budget, and what its running requests are estimated to use: weighted tokens, or \
                 requests where the window's label says so.",
                &WINDOW,
            )?,
            limit: make.gauge("budget_limit", "The limit of a window of a flow's budget, without top-ups.", &WINDOW)?,
            remaining: make.gauge(
                "budget_remaining",
                "What is left in a window of a flow's budget, top-ups included. At 0 the flow is over its budget.",
                &WINDOW,
            )?,
            shadowed: make.counter(
                "budget_shadow_total",
                "Requests of a flow over a budget with shadow: true, by what would have happened to them.",
                &["pool", "flow", "over"],
            )?,
        })
    }

    pub(super) fn set<'a>(&self, budgets: impl Iterator<Item = &'a PoolBudgets>) {
        for pool in budgets {
            for budget in pool.flows.iter().filter(|budget| !budget.is_unused()) {
                self.set_flow(&pool.pool, budget);
            }
            for (flow, over, count) in &pool.shadowed {
                let labels = [&*pool.pool, flow, over.as_str()];
                self.shadowed.with_label_values(&labels).inc_by(*count);
            }
        }
    }

    fn set_flow(&self, pool: &str, budget: &FlowBudget) {
        let flow = if budget.is_shown { &*budget.quota.flow } else { OTHER };
        for window in &budget.quota.windows {
            let labels = [pool, flow, &window_name(window)];
            let used = window.used.saturating_add(window.reserved);
            for (gauge, value) in
                [(&self.used, used), (&self.limit, window.limit), (&self.remaining, window.remaining)]
            {
                gauge.with_label_values(&labels).add(int(value));
            }
        }
    }
}

/// `1h` for a window of tokens, `1h requests` for one of requests: a budget may have both.
fn window_name(window: &QuotaWindowSnapshot) -> String {
    match window.unit {
        CostUnit::Tokens => window.period.to_string(),
        CostUnit::Requests => format!("{} requests", window.period),
    }
}
