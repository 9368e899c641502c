//! `over: demote`: requests without room go after all others.

use Band::{Critical, Default, Sheddable};
use ShortEffect::{Bypassed, Dispatched, Rejected, Settled};
use penstock_engine::input::Band;
use penstock_engine::policy::{BandMode, BudgetPeriod, Discipline, Over, Policy};
use penstock_engine::units::Decimal;
use penstock_engine::{Input, Outcome, RequestId};

use super::{requests, sliding, with_budget};
use crate::support::*;

/// One place, and one request a flow.
fn narrow() -> Policy {
    let mut policy = with_budget(Over::Demote, &[requests(1, BudgetPeriod::Day)]);
    policy.gate = gate(1, 1);
    policy
}

/// `f` has used up its budget, and `other` runs.
fn over(policy: Policy) -> Harness {
    let mut harness = Harness::new(policy, 1);
    assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(harness.complete(1), [Settled(1, 1)]);
    assert_eq!(harness.register(2, "other", Default), [Bypassed(2, 1)]);
    harness
}

#[test]
fn a_demoted_request_goes_at_once_where_nothing_waits() {
    let mut harness = Harness::new(narrow(), 2);
    assert_eq!(harness.register(1, "f", Critical).len(), 1);
    assert_eq!(harness.register(2, "f", Critical).len(), 1, "the other place is free");
}

#[test]
fn a_demoted_request_goes_after_sheddable_ones_in_every_mode_of_bands() {
    for mode in [BandMode::Strict, BandMode::Weighted([0.0, 0.0, 1.0]), BandMode::Weighted([1.0, 1.0, 0.0])] {
        for discipline in Discipline::ALL {
            let mut policy = narrow();
            policy.bands.mode = mode;
            policy.flows.discipline = discipline;
            let mut harness = over(policy);
            assert_eq!(harness.register(3, "f", Critical), []);
            assert_eq!(harness.register(4, "g", Sheddable), []);
            assert_eq!(harness.register(5, "g", Default), []);
            let mut order = vec![harness.complete(2)];
            let last = order[0].last().copied();
            let Some(Dispatched(first, _)) = last else { panic!("{last:?}") };
            assert!([4, 5].contains(&first), "{mode:?} {discipline:?}");
            order.push(harness.complete(first));
            order.push(harness.complete(9 - first));
            assert_eq!(order[1].last(), Some(&Dispatched(9 - first, 1)), "{mode:?} {discipline:?}");
            assert_eq!(order[2].last(), Some(&Dispatched(3, 1)), "{mode:?} {discipline:?}");
        }
    }
}

#[test]
fn a_demoted_request_is_shown_as_sheddable() {
    let mut harness = over(narrow());
    assert_eq!(harness.register(3, "f", Critical), []);
    assert_eq!(harness.register(4, "g", Sheddable), []);
    let snapshot = harness.engine.snapshot();
    assert_eq!(snapshot.bands.map(|band| band.waiting), [0, 0, 2]);
    harness.complete(2);
    harness.complete(4);
    let counters = harness.engine.snapshot().counters;
    assert_eq!(counters.outcome_in(Sheddable, Outcome::Dispatched), 2);
    assert_eq!(counters.outcome_in(Critical, Outcome::Dispatched), 0);
}

#[test]
fn demoted_requests_of_several_flows_share_by_the_discipline() {
    let mut policy = narrow();
    policy.flows.discipline = Discipline::RoundRobin;
    let mut harness = Harness::new(policy, 1);
    for (id, flow) in [(1, "f1"), (2, "f2")] {
        assert_eq!(harness.register(id, flow, Default), [Bypassed(id, 1)]);
        harness.complete(id);
    }
    assert_eq!(harness.register(3, "other", Default), [Bypassed(3, 1)]);
    for (id, flow) in [(10, "f1"), (11, "f1"), (12, "f1"), (20, "f2"), (21, "f2")] {
        assert_eq!(harness.register(id, flow, Critical), []);
    }
    let mut order = vec![3];
    for _ in 0..5 {
        let effects = harness.complete(order[order.len() - 1]);
        let Some(&Dispatched(next, _)) = effects.last() else { panic!("{effects:?}") };
        order.push(next);
    }
    assert_eq!(order[1..], [10, 20, 11, 21, 12]);
}

#[test]
fn a_waiting_request_moves_down_at_its_turn_and_keeps_its_arrival() {
    let mut harness = Harness::new(narrow(), 1);
    assert_eq!(harness.register(1, "other", Default), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "f", Default), []);
    harness.advance_to(1.0);
    assert_eq!(harness.register(3, "f", Default), []);
    harness.advance_to(2.0);
    assert_eq!(harness.register(4, "g", Sheddable), []);
    assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(2, 1)]);
    assert_eq!(harness.complete(2), [Settled(2, 1), Dispatched(4, 1)], "request 3 moves down");
    harness.advance_to(31.0);
    assert_eq!(harness.handle_timeout(), [Rejected(3, Outcome::ExpiredTtl)], "30 s after its arrival");
}

#[test]
fn a_newcomer_within_budget_goes_before_what_was_demoted_of_its_flow() {
    let mut policy = narrow();
    policy.flows.budgets[0].windows = vec![requests(1, sliding(20))];
    let mut harness = over(policy);
    assert_eq!(harness.register(3, "f", Default), [], "demoted");
    harness.advance_to(20.4);
    assert_eq!(harness.register(4, "f", Default), [], "within its budget");
    assert_eq!(harness.register(5, "g", Sheddable), []);
    assert_eq!(harness.complete(2), [Settled(2, 1), Dispatched(4, 1)]);
    assert_eq!(harness.complete(4), [Settled(4, 1), Dispatched(5, 1)]);
    assert_eq!(harness.complete(5), [Settled(5, 1), Dispatched(3, 1)], "what was demoted stays so");
}

#[test]
fn a_demoted_request_is_displaced_before_a_sheddable_one() {
    let mut policy = narrow();
    policy.queue.total_capacity = 2;
    let mut harness = over(policy);
    assert_eq!(harness.register(3, "f", Critical), []);
    assert_eq!(harness.register(4, "g", Sheddable), []);
    assert_eq!(harness.register(5, "h", Sheddable), [Rejected(3, Outcome::Displaced)]);
    assert_eq!(harness.register(6, "f", Critical), [Rejected(6, Outcome::RejectedTooManyFlows)]);
}

#[test]
fn a_demoted_request_shares_the_ceiling_of_sheddable_ones() {
    let mut policy = with_budget(Over::Demote, &[requests(1, BudgetPeriod::Day)]);
    policy.gate = gate(4, 4);
    policy.bands.ceilings[2] = Some(Decimal::from_billionths(Decimal::ONE / 2));
    let mut harness = Harness::new(policy, 1);
    assert_eq!(harness.register(1, "f", Critical), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "f", Critical), [Bypassed(2, 1)]);
    assert_eq!(harness.register(3, "f", Critical), [], "half of the bound is used");
    assert_eq!(harness.register(4, "g", Default), [Bypassed(4, 1)]);
}

#[test]
fn a_demoted_request_that_is_requeued_waits_as_demoted_and_costs_its_budget_nothing() {
    let mut harness = Harness::new(narrow(), 1);
    let used = |harness: &mut Harness| {
        super::window(harness, "f").map(|window| (window.used, window.reserved, window.debt))
    };
    assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
    harness.complete(1);
    assert_eq!(harness.register(2, "f", Default), [Bypassed(2, 1)]);
    assert_eq!(used(&mut harness), Some((1, 0, 0)));
    assert_eq!(harness.register(3, "g", Sheddable), []);
    assert_eq!(harness.handle(Input::Requeue(RequestId(2))), [Dispatched(3, 1)]);
    assert_eq!(harness.complete(3), [Settled(3, 1), Dispatched(2, 1)]);
    harness.complete(2);
    assert_eq!(used(&mut harness), Some((1, 0, 0)));
}

#[test]
fn a_flow_that_goes_on_when_it_is_over_owes_nothing_for_it() {
    let mut policy = with_budget(Over::Demote, &[requests(2, sliding(60))]);
    policy.gate = gate(1, 1);
    let mut harness = Harness::new(policy, 1);
    for id in 1..=50 {
        assert_eq!(harness.register(id, "f", Default), [Bypassed(id, 1)]);
        harness.complete(id);
    }
    harness.advance_to(61.0);
    let window = super::window(&mut harness, "f");
    assert!(window.is_none_or(|window| window.remaining == 2), "within its budget again after one window");
}
