//! Budgets of flows: what happens without room, what counts, and what other engines and policies change. One rule a test.

mod by_hand;
mod counting;
mod demoted;
mod elsewhere;
mod held;
mod policy_changes;
mod refused;
mod running;
mod shadow;

use std::time::Duration;

use penstock_engine::input::{Band, Prompt, Service, Usage};
use penstock_engine::policy::{Budget, BudgetCalendar, BudgetPeriod, BudgetWindow, CostUnit, FlowGlob, Over};
use penstock_engine::snapshot::BudgetWindowSnapshot;
use penstock_engine::units::Tokens;
use penstock_engine::{Input, Policy, Request, RequestId};

use crate::support::*;

/// The policy of these tests: ten places at each endpoint, and this budget for every flow whose name begins with `f`.
fn with_budget(over: Over, windows: &[BudgetWindow]) -> Policy {
    let mut policy = policy();
    policy.gate = gate(10, 10);
    policy.flows.budgets = vec![budget("f*", over, windows)];
    policy
}

fn budget(glob: &str, over: Over, windows: &[BudgetWindow]) -> Budget {
    Budget {
        flows: FlowGlob::new(glob),
        windows: windows.to_vec(),
        calendar: BudgetCalendar::default(),
        over,
        shadow: false,
    }
}

const fn sliding(seconds: u64) -> BudgetPeriod {
    BudgetPeriod::Sliding(Duration::from_secs(seconds))
}

const fn tokens(limit: u64, period: BudgetPeriod) -> BudgetWindow {
    BudgetWindow { unit: CostUnit::Tokens, limit, period }
}

const fn requests(limit: u64, period: BudgetPeriod) -> BudgetWindow {
    BudgetWindow { unit: CostUnit::Requests, limit, period }
}

/// A request that is estimated at so many tokens.
fn sized(id: u64, flow: &str, band: Band, estimate: u64) -> Request {
    Request {
        prompt: Prompt::Tokens(Tokens(estimate)),
        expected_output: Some(Tokens(0)),
        ..request(id, flow, band)
    }
}

/// `id` ends and has used so many tokens.
fn used(id: u64, real: u64) -> Input {
    Input::Completed {
        id: RequestId(id),
        service: Service::Served(Usage {
            prompt: Some(Tokens(real)),
            cached: Some(Tokens(0)),
            output: Some(Tokens(0)),
        }),
    }
}

/// The first window of a flow; `None`: it has used nothing.
fn window(harness: &mut Harness, flow: &str) -> Option<BudgetWindowSnapshot> {
    harness.engine.handle_timeout(harness.now);
    let budgets = harness.engine.budgets();
    let found = budgets.into_iter().find(|budget| *budget.flow == *flow);
    found.map(|budget| budget.windows[0])
}

/// Used, reserved and remaining of that window.
fn amounts(harness: &mut Harness, flow: &str) -> (u64, u64, u64) {
    let window = window(harness, flow).expect("something was used");
    (window.used, window.reserved, window.remaining)
}
