//! Budgets of a scenario's pools.

use core::time::Duration;

use penstock_engine::policy::{Budget, BudgetCalendar, BudgetPeriod, BudgetWindow, CostUnit, FlowGlob, Over};

use super::super::rng::Rng;
use super::Scenario;

impl Scenario {
    /// Budgets for some of the pools, by random choices of their own. In half of the worlds with budgets, only they, the bands and the
    /// gate decide which request goes, so that the world can tell.
    pub(super) fn with_budgets(mut self) -> Self {
        let rng = &mut Rng::new(self.seed ^ 0x4255_4447);
        let is_plain = rng.percent(50);
        for pool in &mut self.pools {
            let globs: &[&str] = match rng.below(10) {
                0 => &["f0", "*"],
                1 => &["f?"],
                2 | 3 => &["*"],
                _ => continue,
            };
            let flows = &mut pool.policy.flows;
            flows.budgets = globs.iter().map(|glob| budget(glob, rng)).collect();
            if is_plain {
                flows.max_in_flight = None;
                flows.max_in_flight_per_endpoint = None;
                flows.identities_max = 1_000;
                pool.policy.queue.max_rate = None;
                pool.credit = None;
                self.faults.retain(|kind| !kind.blurs_turns());
            }
        }
        self
    }
}

fn budget(glob: &str, rng: &mut Rng) -> Budget {
    let units: &[CostUnit] = match rng.below(4) {
        0 => &[CostUnit::Requests],
        1 => &[CostUnit::Tokens],
        _ => &[CostUnit::Requests, CostUnit::Tokens],
    };
    Budget {
        flows: FlowGlob::new(glob),
        windows: units.iter().map(|unit| budget_window(*unit, rng)).collect(),
        calendar: BudgetCalendar::default(),
        over: rng.choose(&[Over::Demote, Over::Hold, Over::Refuse]),
        shadow: rng.percent(20),
    }
}

fn budget_window(unit: CostUnit, rng: &mut Rng) -> BudgetWindow {
    let sliding = |seconds| BudgetPeriod::Sliding(Duration::from_secs(seconds));
    let limit = match unit {
        CostUnit::Requests => rng.between(1, 40),
        CostUnit::Tokens => rng.between(100, 20_000),
    };
    let period = rng.choose(&[
        sliding(1),
        sliding(10),
        sliding(300),
        BudgetPeriod::Day,
        BudgetPeriod::Week,
        BudgetPeriod::Month,
    ]);
    BudgetWindow { unit, limit, period }
}
