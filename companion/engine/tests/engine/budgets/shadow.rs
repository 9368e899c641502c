//! `shadow: true`: nothing is decided, and everything is reported.

use Band::Default;
use penstock_engine::effect::BudgetReport;
use penstock_engine::input::Band;
use penstock_engine::policy::{BudgetPeriod, Over, Policy};
use penstock_engine::{Effect, Input};

use super::{amounts, requests, with_budget};
use crate::support::*;

fn shadow(over: Over) -> Policy {
    let mut policy = with_budget(over, &[requests(1, BudgetPeriod::Day)]);
    policy.flows.budgets[0].shadow = true;
    policy
}

#[test]
fn a_shadow_decides_nothing_and_reports_each_request_once() {
    for over in [Over::Demote, Over::Hold, Over::Refuse] {
        let mut policy = shadow(over);
        policy.gate = gate(2, 2);
        let mut harness = Harness::new(policy, 1);
        let granted =
            |effects: &[Effect]| effects.iter().filter(|effect| matches!(effect, Effect::Grant(_))).count();
        let reported = |effects: &[Effect]| {
            let shadowed = Effect::Budget(BudgetReport::Shadowed { flow: "f".into(), over });
            effects.iter().filter(|effect| **effect == shadowed).count()
        };
        let first = harness.effects(Input::Register(request(1, "f", Default)));
        assert_eq!((granted(&first), reported(&first)), (1, 0));
        let second = harness.effects(Input::Register(request(2, "f", Default)));
        assert_eq!((granted(&second), reported(&second)), (1, 1), "{over:?}");
        let third = harness.effects(Input::Register(request(3, "f", Default)));
        assert_eq!((granted(&third), reported(&third)), (0, 1), "{over:?}: it waits for a place");
        let ended = harness.effects(super::used(1, 1));
        assert_eq!((granted(&ended), reported(&ended)), (1, 0), "{over:?}");
        assert_eq!(amounts(&mut harness, "f"), (1, 2, 0));
        assert_eq!(harness.engine.tightest_window("f"), None, "clients don't hear of it");
    }
}

#[test]
fn only_a_shadow_allows_credit() {
    assert!(shadow(Over::Refuse).allows_credit());
    assert!(!with_budget(Over::Refuse, &[requests(1, BudgetPeriod::Day)]).allows_credit());
}
