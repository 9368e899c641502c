//! `over: refuse`: requests without room are rejected until there is room.

use std::time::Duration;

use Band::Default;
use ShortEffect::{Bypassed, Dispatched, Rejected, Settled};
use penstock_engine::effect::Reject;
use penstock_engine::input::Band;
use penstock_engine::policy::{BudgetPeriod, Discipline, Over};
use penstock_engine::{Effect, Input, Outcome};

use super::{budget, requests, sized, sliding, tokens, used, with_budget};
use crate::support::*;

/// The outcome and the retry-after of the only effect.
fn rejection(effects: &[Effect]) -> (Outcome, Duration) {
    let [Effect::Reject(Reject { outcome, retry_after, .. })] = effects else {
        panic!("{effects:?}");
    };
    (*outcome, retry_after.expect("a rejection has one"))
}

#[test]
fn a_request_without_room_is_refused_until_the_window_has_room() {
    for discipline in Discipline::ALL {
        let mut policy = with_budget(Over::Refuse, &[requests(2, sliding(60))]);
        policy.flows.discipline = discipline;
        let mut harness = Harness::new(policy, 1);
        harness.advance_to(100.5);
        assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
        harness.advance_to(130.0);
        assert_eq!(harness.register(2, "f", Band::Critical), [Bypassed(2, 1)]);
        let refused = harness.effects(Input::Register(request(3, "f", Band::Critical)));
        assert_eq!(rejection(&refused), (Outcome::RejectedBudget, Duration::from_secs(31)), "{discipline:?}");
        assert_eq!(harness.register(4, "g", Default), [Bypassed(4, 1)], "another flow");
        harness.advance_to(160.9);
        assert_eq!(
            rejection(&harness.effects(Input::Register(request(5, "f", Default)))).1,
            Duration::from_millis(100)
        );
        harness.advance_to(161.0);
        assert_eq!(harness.register(6, "f", Default), [Bypassed(6, 1)]);
    }
}

#[test]
fn retry_after_includes_debts_and_is_not_capped() {
    let mut harness = Harness::new(with_budget(Over::Refuse, &[tokens(100, sliding(600))]), 1);
    assert_eq!(harness.handle(Input::Register(sized(1, "f", Default, 1_050))), [Bypassed(1, 1)]);
    let refused = harness.effects(Input::Register(request(2, "f", Default)));
    assert_eq!(rejection(&refused), (Outcome::RejectedBudget, Duration::from_secs(6_100)));
    harness.advance_to(6_099.9);
    assert!(
        rejection(&harness.effects(Input::Register(request(3, "f", Default)))).1 < Duration::from_secs(1)
    );
    harness.advance_to(6_100.0);
    assert_eq!(harness.register(4, "f", Default), [Bypassed(4, 1)]);
}

#[test]
fn retry_after_of_a_calendar_window_is_the_first_day_with_room() {
    let mut harness = Harness::new(with_budget(Over::Refuse, &[tokens(100, BudgetPeriod::Day)]), 1);
    // Noon on some day.
    harness.handle(Input::Utc(Duration::from_secs(20_000 * 86_400 + 43_200)));
    assert_eq!(harness.handle(Input::Register(sized(1, "f", Default, 150))), [Bypassed(1, 1)]);
    let refused = harness.effects(Input::Register(request(2, "f", Default)));
    assert_eq!(rejection(&refused).1, Duration::from_secs(43_200));
    assert_eq!(harness.handle(used(1, 250)), [Settled(1, 1)]);
    let refused = harness.effects(Input::Register(request(3, "f", Default)));
    assert_eq!(rejection(&refused).1, Duration::from_secs(43_200 + 86_400));
}

#[test]
fn the_latest_of_several_full_windows_decides() {
    let windows = [requests(1, sliding(10)), tokens(5, sliding(60)), requests(9, BudgetPeriod::Month)];
    let mut harness = Harness::new(with_budget(Over::Refuse, &windows), 1);
    assert_eq!(harness.handle(Input::Register(sized(1, "f", Default, 5))), [Bypassed(1, 1)]);
    let refused = harness.effects(Input::Register(request(2, "f", Default)));
    assert_eq!(rejection(&refused).1, Duration::from_secs(61));
}

#[test]
fn a_waiting_request_is_judged_at_its_turn() {
    let mut harness = Harness::new(
        {
            let mut policy = with_budget(Over::Refuse, &[requests(2, sliding(60))]);
            policy.gate = gate(1, 1);
            policy
        },
        1,
    );
    assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "f", Default), []);
    assert_eq!(harness.register(3, "f", Default), []);
    assert_eq!(harness.register(4, "f", Default), []);
    assert_eq!(harness.register(5, "g", Default), []);
    assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(2, 1)]);
    assert_eq!(harness.complete(2), [Settled(2, 1), Dispatched(5, 1)]);
    let rejected = |id| Rejected(id, Outcome::RejectedBudget);
    assert_eq!(harness.complete(5), [Settled(5, 1), rejected(3), rejected(4)]);
}

#[test]
fn the_first_budget_that_matches_holds_with_all_its_windows() {
    let mut policy = with_budget(Over::Refuse, &[requests(1, sliding(10))]);
    policy.flows.budgets = vec![
        budget("fa", Over::Refuse, &[requests(2, sliding(60)), requests(3, sliding(120))]),
        budget("*", Over::Refuse, &[requests(1, sliding(60))]),
    ];
    let mut harness = Harness::new(policy, 1);
    assert_eq!(harness.register(1, "fa", Default), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "fa", Default), [Bypassed(2, 1)]);
    assert_eq!(harness.register(3, "fa", Default), [Rejected(3, Outcome::RejectedBudget)]);
    assert_eq!(harness.register(4, "", Default), [Bypassed(4, 1)]);
    assert_eq!(harness.register(5, "", Default), [Rejected(5, Outcome::RejectedBudget)]);
    harness.advance_to(61.0);
    assert_eq!(harness.register(6, "fa", Default), [Bypassed(6, 1)]);
    assert_eq!(harness.register(7, "fa", Default), [Rejected(7, Outcome::RejectedBudget)]);
}
