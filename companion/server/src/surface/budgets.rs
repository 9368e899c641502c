//! The budgets of flows as JSON, for `/budgets` and `/status`.

use std::time::{Duration, SystemTime};

use penstock_control::{FlowBudget, PoolBudgets};
use penstock_engine::Instant;
use penstock_engine::snapshot::{BudgetWindowSnapshot, FlowBudgetSnapshot};
use serde_json::{Value, json};

use crate::surface::visibility::FlowVisibility;

/// Budgets of a pool in `/status`.
const STATUS_ROWS_MAX: usize = 100;
/// Times are rounded up to whole seconds: by then, what they announce has happened. A day begins with a whole second by the clock of the
/// decisions, which may be a little behind the wall clock: that mustn't make it a second later.
const ROUNDED_UP: Duration = Duration::from_millis(950);

/// A moment by the clock of the decisions, and by the wall clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Present {
    pub(crate) now: Instant,
    pub(crate) wall: SystemTime,
}

impl Present {
    /// UTC at `instant`, as RFC 3339 has it.
    fn utc(&self, instant: Instant) -> String {
        let time = self.wall + instant.since(self.now).saturating_add(ROUNDED_UP);
        humantime::format_rfc3339_seconds(time).to_string()
    }
}

pub(crate) fn row(pool: &str, budget: &FlowBudgetSnapshot, present: Present) -> Value {
    let has_room = budget.windows.iter().all(|window| window.remaining > 0);
    let windows = budget.windows.iter().map(|window| of_window(window, present));
    json!({
        "pool": pool,
        "flow": budget.flow,
        "over": budget.over.as_str(),
        "shadow": budget.shadow,
        "has_room": has_room,
        "windows": windows.collect::<Vec<_>>(),
    })
}

fn of_window(window: &BudgetWindowSnapshot, present: Present) -> Value {
    json!({
        "unit": window.unit.as_str(),
        "per": window.period.to_string(),
        "limit": window.limit,
        "used": window.used,
        "reserved": window.reserved,
        "remaining": window.remaining,
        "debt": window.debt,
        "resets_at": present.utc(window.resets_at),
    })
}

/// At most `most` rows: of the flows that the sender may see, those with the smallest part left, then by pool and name.
pub(crate) fn rows<'a>(
    pools: impl Iterator<Item = &'a PoolBudgets>,
    visibility: FlowVisibility,
    most: usize,
    present: Present,
) -> Vec<Value> {
    let is_visible = |budget: &FlowBudget| visibility == FlowVisibility::All || budget.is_public;
    let rows = pools.flat_map(|pool| pool.flows.iter().map(|budget| (&*pool.pool, budget)));
    let mut rows: Vec<_> = rows.filter(|(_, budget)| is_visible(budget)).collect();
    // Stable: flows with equal parts left stay in the order of pools and names.
    rows.sort_by_key(|(_, budget)| budget.left_milli());
    let rows = rows.into_iter().take(most);
    rows.map(|(pool, budget)| row(pool, &budget.budget, present)).collect()
}

/// Adds `budgets` to each pool of the document of `/status`.
pub(crate) fn add_to_status(
    document: &mut Value,
    budgets: &[PoolBudgets],
    visibility: FlowVisibility,
    present: Present,
) {
    let pools = document.get_mut("pools").and_then(Value::as_array_mut);
    for pool in pools.into_iter().flatten() {
        let of_pool = budgets.iter().filter(|budgets| pool["name"] == *budgets.pool);
        pool["budgets"] = rows(of_pool, visibility, STATUS_ROWS_MAX, present).into();
    }
}

#[cfg(test)]
mod tests {
    use penstock_engine::policy::{BudgetPeriod, CostUnit, Over};

    use super::*;

    fn budget(flow: &str, remaining: u64, is_public: bool) -> FlowBudget {
        let window = BudgetWindowSnapshot {
            unit: CostUnit::Tokens,
            period: BudgetPeriod::Sliding(Duration::from_secs(3_600)),
            limit: 100,
            used: 100 - remaining,
            reserved: 0,
            debt: 0,
            remaining,
            resets_at: Instant::ZERO.after(Duration::from_millis(1_500)),
        };
        FlowBudget {
            budget: FlowBudgetSnapshot {
                flow: flow.into(),
                over: Over::Hold,
                shadow: false,
                windows: vec![window],
            },
            is_public,
            is_shown: is_public,
        }
    }

    const PRESENT: Present = Present { now: Instant::ZERO, wall: SystemTime::UNIX_EPOCH };

    fn pool(flows: Vec<FlowBudget>) -> PoolBudgets {
        PoolBudgets { pool: "chat".into(), flows, shadowed: Vec::new() }
    }

    #[test]
    fn a_row_has_the_windows_with_their_units_and_times() {
        let rows = rows([pool(vec![budget("a/b", 40, true)])].iter(), FlowVisibility::Public, 9, PRESENT);
        let window = json!({
            "unit": "tokens", "per": "1h", "limit": 100, "used": 60, "reserved": 0, "remaining": 40, "debt": 0,
            "resets_at": "1970-01-01T00:00:02Z",
        });
        let expected = json!({
            "pool": "chat", "flow": "a/b", "over": "hold", "shadow": false, "has_room": true, "windows": [window],
        });
        assert_eq!(rows, [expected]);
    }

    #[test]
    fn the_tightest_budgets_come_first_and_private_flows_need_the_token() {
        let pools = [pool(vec![
            budget("ann", 50, true),
            budget("bob", 0, true),
            budget("cid", 10, false),
            budget("dan", 50, true),
        ])];
        let names = |visibility, most| {
            let rows = rows(pools.iter(), visibility, most, PRESENT);
            rows.iter().map(|row| row["flow"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(names(FlowVisibility::Public, 9), ["bob", "ann", "dan"]);
        assert_eq!(names(FlowVisibility::All, 3), ["bob", "cid", "ann"]);
    }

    #[test]
    fn budgets_are_added_to_their_pool() {
        let mut document = json!({"pools": [{"name": "code"}, {"name": "chat"}]});
        let pools = [pool(vec![budget("ann", 0, true)])];
        add_to_status(&mut document, &pools, FlowVisibility::Public, PRESENT);
        assert_eq!(document["pools"][0]["budgets"], json!([]));
        let row = &document["pools"][1]["budgets"][0];
        assert_eq!((&row["flow"], &row["has_room"]), (&json!("ann"), &json!(false)));
    }
}
