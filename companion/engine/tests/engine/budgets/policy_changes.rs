//! Other budgets under what waits and runs.

use Band::{Critical, Default, Sheddable};
use ShortEffect::{Bypassed, Dispatched, Rejected, Settled};
use core::time::Duration;

use jiff::civil::Weekday;
use jiff::tz::TimeZone;
use penstock_engine::effect::Grant;
use penstock_engine::input::Band;
use penstock_engine::policy::{BudgetPeriod, Over, Policy};
use penstock_engine::units::Tokens;
use penstock_engine::{Effect, Input, Outcome, RequestId};

use super::{amounts, budget, requests, sized, sliding, tokens, used, window, with_budget};
use crate::support::*;

fn change(policy: Policy) -> Input {
    Input::Policy(Box::new(policy))
}

#[test]
fn windows_of_the_same_glob_unit_and_period_keep_what_was_used() {
    let mut harness =
        Harness::new(with_budget(Over::Refuse, &[tokens(100, sliding(60)), requests(5, sliding(60))]), 1);
    harness.handle(Input::Register(sized(1, "f", Default, 40)));
    harness.handle(used(1, 40));
    harness.handle(Input::Register(sized(2, "f", Default, 10)));
    harness.handle(change(with_budget(Over::Hold, &[requests(3, sliding(60)), tokens(45, sliding(60))])));
    assert_eq!(amounts(&mut harness, "f"), (1, 1, 1));
    let second = harness.engine.budgets()[0].windows[1];
    assert_eq!((second.limit, second.used, second.reserved, second.remaining), (45, 40, 10, 0));
}

#[test]
fn a_new_window_counts_what_runs_and_nothing_else() {
    let mut harness = Harness::new(with_budget(Over::Refuse, &[tokens(100, sliding(60))]), 1);
    harness.handle(Input::Register(sized(1, "f", Default, 40)));
    harness.handle(used(1, 40));
    harness.handle(Input::Register(sized(2, "f", Default, 10)));
    harness.handle(Input::Register(sized(3, "g", Default, 7)));
    let mut policy = with_budget(Over::Refuse, &[tokens(100, sliding(600))]);
    policy.flows.budgets[0].flows = budget("*", Over::Refuse, &[]).flows;
    harness.handle(change(policy));
    assert_eq!(amounts(&mut harness, "f"), (0, 10, 90));
    assert_eq!(amounts(&mut harness, "g"), (0, 7, 93));
    harness.handle(used(3, 9));
    assert_eq!(amounts(&mut harness, "g"), (9, 0, 91));
}

#[test]
fn without_budgets_everything_is_forgotten_and_goes() {
    let mut harness = Harness::new(with_budget(Over::Hold, &[requests(1, BudgetPeriod::Day)]), 1);
    assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "f", Default), []);
    let mut without = with_budget(Over::Hold, &[]);
    without.flows.budgets.clear();
    assert_eq!(harness.handle(change(without)), [Dispatched(2, 1)]);
    assert_eq!(harness.engine.budgets(), []);
    assert_eq!(harness.complete(1), [Settled(1, 1)]);
}

#[test]
fn a_higher_limit_lets_a_held_flow_go() {
    let mut harness = Harness::new(with_budget(Over::Hold, &[requests(1, BudgetPeriod::Day)]), 1);
    assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "f", Default), []);
    assert_eq!(harness.register(3, "f", Default), []);
    assert_eq!(
        harness.handle(change(with_budget(Over::Hold, &[requests(2, BudgetPeriod::Day)]))),
        [Dispatched(2, 1)]
    );
}

#[test]
fn demoted_requests_return_to_their_bands_when_no_budget_demotes_them_any_more() {
    let mut policy = with_budget(Over::Demote, &[requests(1, BudgetPeriod::Day)]);
    policy.gate = gate(1, 1);
    let mut harness = Harness::new(policy.clone(), 1);
    assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "f", Critical), []);
    assert_eq!(harness.register(3, "g", Sheddable), []);
    harness.handle(change(policy.clone()));
    assert_eq!(harness.engine.snapshot().bands.map(|band| band.waiting), [0, 0, 2]);
    policy.flows.budgets[0].shadow = true;
    harness.handle(change(policy));
    assert_eq!(harness.engine.snapshot().bands.map(|band| band.waiting), [1, 0, 1]);
    let effects = harness.effects(used(1, 1));
    let is_second = |effect: &Effect| matches!(effect, Effect::Grant(Grant { id: RequestId(2), .. }));
    assert!(effects.iter().any(is_second), "{effects:?}");
}

#[test]
fn a_budget_of_another_kind_judges_what_waits_at_its_turn() {
    let mut policy = with_budget(Over::Hold, &[requests(1, BudgetPeriod::Day)]);
    policy.gate = gate(1, 1);
    let mut harness = Harness::new(policy.clone(), 1);
    assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "f", Critical), []);
    policy.flows.budgets[0].over = Over::Refuse;
    assert_eq!(harness.handle(change(policy)), []);
    assert_eq!(harness.complete(1), [Settled(1, 1), Rejected(2, Outcome::RejectedBudget)]);
    assert_eq!(window(&mut harness, "f").map(|window| window.used), Some(1));
}

#[test]
fn another_calendar_keeps_what_is_used_and_runs_in_the_present_day() {
    const HOUR: f64 = 3_600.0;
    let mut harness = Harness::new(with_budget(Over::Refuse, &[tokens(100, BudgetPeriod::Day)]), 1);
    // 21:00 in UTC, 23:00 in Berlin. There the day began two hours ago, and ends in one.
    harness.handle(Input::Utc(Duration::from_secs(20_001 * 86_400 - 3 * 3_600)));
    harness.handle(Input::Register(sized(1, "f", Default, 40)));
    harness.handle(used(1, 40));
    harness.handle(Input::TopUp { flow: "f".into(), tokens: Tokens(5) });
    harness.handle(Input::Register(sized(2, "f", Default, 10)));
    let mut policy = with_budget(Over::Refuse, &[tokens(100, BudgetPeriod::Day)]);
    policy.flows.budgets[0].calendar.timezone = TimeZone::get("Europe/Berlin").expect("in the database");
    harness.handle(change(policy));
    assert_eq!(amounts(&mut harness, "f"), (40, 10, 55));
    harness.handle(used(2, 12));
    assert_eq!(amounts(&mut harness, "f"), (52, 0, 53));
    harness.advance_to(HOUR - 1.0);
    assert_eq!(amounts(&mut harness, "f"), (52, 0, 53));
    harness.advance_to(HOUR);
    assert_eq!(amounts(&mut harness, "f"), (0, 0, 100));
}

#[test]
fn a_flow_that_moves_to_a_budget_with_another_calendar_counts_what_runs() {
    let mut harness = Harness::new(with_budget(Over::Refuse, &[tokens(100, BudgetPeriod::Week)]), 1);
    // Thursday. Weeks that begin on Thursday began today; the others on Monday.
    harness.handle(Input::Utc(Duration::from_secs(20_006 * 86_400 + 60)));
    harness.handle(Input::Register(sized(1, "f", Default, 30)));
    let mut policy = with_budget(Over::Refuse, &[tokens(100, BudgetPeriod::Week)]);
    policy.flows.budgets[0].flows = budget("*", Over::Refuse, &[]).flows;
    policy.flows.budgets[0].calendar.week_starts = Weekday::Thursday;
    harness.handle(change(policy));
    assert_eq!(amounts(&mut harness, "f"), (0, 30, 70));
    harness.handle(used(1, 33));
    assert_eq!(amounts(&mut harness, "f"), (33, 0, 67));
}
