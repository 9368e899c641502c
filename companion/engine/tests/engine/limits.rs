//! Limits of a flow, changes of the policy while requests wait, removal of a model, and early settling. One rule a
//! test.

use std::time::Duration;

use Band::Default;
use ShortEffect::{Bypassed, Dispatched, Rejected, Settled};
use penstock_engine::input::{Band, Prompt, Service, Usage};
use penstock_engine::policy::{
    Budget, BudgetCalendar, BudgetPeriod, BudgetWindow, CostUnit, Discipline, FlowGlob, Gate, Order, Over,
};
use penstock_engine::units::Tokens;
use penstock_engine::{Input, Outcome, Policy, RequestId};

use crate::support::*;

/// A policy with ten places at each endpoint.
fn wide() -> Policy {
    let mut policy = policy();
    policy.gate = gate(10, 10);
    policy
}

#[test]
fn max_in_flight_limits_a_flow_over_all_bands() {
    for discipline in Discipline::ALL {
        let mut policy = wide();
        policy.flows.discipline = discipline;
        policy.flows.max_in_flight = Some(2);
        let mut harness = Harness::new(policy, 1);
        assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
        assert_eq!(harness.register(2, "f", Band::Sheddable), [Bypassed(2, 1)]);
        assert_eq!(harness.register(3, "f", Default), []);
        assert_eq!(harness.register(4, "f", Band::Critical), []);
        // The waiting requests are blocked by their flow's limit only, so other flows don't overtake them.
        assert_eq!(harness.register(5, "g", Default), [Bypassed(5, 1)]);
        assert_eq!(harness.complete(5), [Settled(5, 1)]);
        assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(4, 1)]);
        assert_eq!(harness.complete(2), [Settled(2, 1), Dispatched(3, 1)]);
    }
}

#[test]
fn max_in_flight_per_endpoint_limits_a_flow_at_each_endpoint() {
    for discipline in Discipline::ALL {
        let mut policy = wide();
        policy.flows.discipline = discipline;
        policy.flows.max_in_flight_per_endpoint = Some(1);
        let mut harness = Harness::new(policy, 2);
        let [Bypassed(1, first)] = harness.register(1, "f", Default)[..] else { panic!("there is room") };
        let other = 3 - first;
        assert_eq!(harness.register(2, "f", Default), [Bypassed(2, other)]);
        assert_eq!(harness.register(3, "f", Default), []);
        assert_eq!(harness.complete(2), [Settled(2, 1), Dispatched(3, other)]);
        let pinned = restricted(request(4, "f", Default), &[first]);
        assert_eq!(harness.handle(Input::Register(pinned)), []);
        assert_eq!(harness.complete(3), [Settled(3, 1)]);
        assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(4, first)]);
    }
}

#[test]
fn a_limit_changes_with_requests_waiting() {
    let mut policy = wide();
    policy.flows.max_in_flight = Some(1);
    let mut harness = Harness::new(policy.clone(), 1);
    for id in 1..=4 {
        harness.register(id, "f", Default);
    }
    assert_eq!(harness.engine.waiting(), 3);
    policy.flows.max_in_flight = Some(3);
    let raised = harness.handle(Input::Policy(Box::new(policy.clone())));
    assert_eq!(raised, [Dispatched(2, 1), Dispatched(3, 1)]);
    policy.flows.max_in_flight = None;
    policy.flows.max_in_flight_per_endpoint = Some(3);
    assert_eq!(harness.handle(Input::Policy(Box::new(policy.clone()))), []);
    policy.flows.max_in_flight_per_endpoint = None;
    assert_eq!(harness.handle(Input::Policy(Box::new(policy))), [Dispatched(4, 1)]);
}

#[test]
fn a_discipline_changes_with_requests_waiting_and_running() {
    let mut policy = wide();
    policy.gate = gate(1, 1);
    for first in Discipline::ALL {
        for second in Discipline::ALL {
            policy.flows.discipline = first;
            let mut harness = Harness::new(policy.clone(), 1);
            for (id, flow) in [(1, "x"), (2, "a"), (3, "a"), (4, "b")] {
                harness.advance_to(id as f64).register(id, flow, Default);
            }
            policy.flows.discipline = second;
            assert_eq!(harness.handle(Input::Policy(Box::new(policy.clone()))), []);
            assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(2, 1)]);
            let third = if second == Discipline::Fifo { 3 } else { 4 };
            assert_eq!(harness.complete(2), [Settled(2, 1), Dispatched(third, 1)], "{first:?} to {second:?}");
        }
    }
}

#[test]
fn an_order_changes_with_requests_waiting() {
    let mut policy = wide();
    policy.gate = Gate::Manual;
    let mut harness = Harness::new(policy.clone(), 1);
    for (id, prompt, deadline) in [(1, 30, 9.0), (2, 20, 8.0), (3, 10, 9.5)] {
        let mut request = request(id, "f", Default);
        request.prompt = Prompt::Tokens(Tokens(prompt));
        request.deadline = Some(time(deadline));
        request.head_start = Duration::from_secs(if id == 1 { 4 } else { 0 });
        harness.handle(Input::Register(request));
    }
    let dispatch = || Input::Dispatch { blocked: vec![] };
    let mut first_by = |order: Order| {
        policy.order = order;
        harness.handle(Input::Policy(Box::new(policy.clone())));
        let first = harness.handle(dispatch());
        let [Dispatched(id, _)] = first[..] else { panic!("{first:?}") };
        harness.handle(Input::Requeue(RequestId(id)));
        id
    };
    // 30 / (1 + 4 s) is less than 10.
    assert_eq!(first_by(Order::Wspt), 1);
    assert_eq!(first_by(Order::Edf), 2);
    assert_eq!(first_by(Order::Fcfs), 1);
    assert_eq!(first_by(Order::SloDeadline { target: None }), 1);
}

#[test]
fn a_cost_can_be_settled_before_the_request_has_ended() {
    let mut policy = wide();
    policy.flows.cost = CostUnit::Tokens;
    let mut harness = Harness::new(policy, 1);
    harness.register(1, "f", Default);
    let usage = Usage { output: Some(Tokens(10)), ..Usage::default() };
    let settle = |service| Input::Settle { id: RequestId(1), service };
    assert_eq!(harness.handle(settle(Service::Served(usage))), []);
    assert_eq!(harness.handle(settle(Service::Nothing)), []);
    assert_eq!((harness.engine.stock(), harness.engine.snapshot().flows[0].served_tokens.0), (1, 120));
    assert_eq!(harness.complete(1), [Settled(1, 120)]);
    assert_eq!((harness.engine.stock(), harness.engine.snapshot().flows[0].served_tokens.0), (0, 120));
}

#[test]
fn a_waiting_request_of_a_removed_model_is_rejected() {
    let mut policy = policy();
    policy.gate = gate(1, 1);
    let mut harness = Harness::new(policy, 1);
    harness.register(1, "f", Default);
    harness.register(2, "f", Default);
    assert_eq!(harness.handle(Input::ModelRemoved(RequestId(1))), []);
    let refused = [Rejected(2, Outcome::RejectedInvalid)];
    assert_eq!(harness.handle(Input::ModelRemoved(RequestId(2))), refused);
    assert_eq!(harness.handle(Input::ModelRemoved(RequestId(2))), []);
}

#[test]
fn beyond_the_limit_new_identities_share_flows() {
    let mut policy = policy();
    policy.gate = gate(1, 1);
    policy.queue.flow_capacity = 1;
    policy.flows.identities_max = 2;
    let mut harness = Harness::new(policy, 1);
    harness.register(1, "x", Default);
    harness.register(2, "y", Default);
    let mut refused = 0;
    for id in 0..200 {
        refused += harness.register(10 + id, &format!("new {id}"), Default).len();
    }
    let flows = harness.engine.snapshot().flows;
    let shared = flows.iter().filter(|flow| flow.key.starts_with("overflow-"));
    assert_eq!(shared.count() + refused, 200);
    assert!(refused > 130, "{refused}: at most 64 flows are shared");
    // Identities from before the limit keep their flow.
    assert!(flows.iter().any(|flow| &*flow.key == "y"));
}

/// A policy under which `acme` has a weight, `pro` a capacity and `free` a budget, in a table that is full with one identity of
/// others.
fn with_names() -> Policy {
    let mut policy = policy();
    policy.gate = gate(1, 1);
    policy.flows.identities_max = 1;
    policy.flows.weights.insert("acme".into(), 3.0);
    policy.flows.capacities.insert("pro".into(), 1);
    policy.flows.budgets.push(Budget {
        flows: FlowGlob::new("free"),
        windows: vec![BudgetWindow {
            unit: CostUnit::Requests,
            limit: 1,
            period: BudgetPeriod::Sliding(Duration::from_secs(60)),
        }],
        calendar: BudgetCalendar::default(),
        over: Over::Refuse,
        shadow: false,
    });
    policy
}

#[test]
fn an_identity_that_the_policy_names_has_its_own_account_however_many_others_there_are() {
    let mut harness = Harness::new(with_names(), 1);
    harness.register(1, "x", Default);
    for id in 0..50 {
        harness.register(10 + id, &format!("new {id}"), Default);
    }
    harness.register(100, "acme", Default);
    harness.register(101, "pro", Default);
    assert_eq!(harness.register(102, "pro", Default), [Rejected(102, Outcome::RejectedFlowCapacity)]);
    let flows = harness.engine.snapshot().flows;
    let named = |name: &str| {
        let found = flows.iter().find(|flow| &*flow.key == name);
        found.map(|flow| (flow.waiting, flow.weight))
    };
    assert_eq!(named("acme"), Some((1, 3.0)));
    assert_eq!(named("pro"), Some((1, 1.0)));
    let others = flows.iter().filter(|flow| !flow.key.starts_with("overflow-"));
    assert_eq!(others.count(), 3, "x, acme and pro");
}

#[test]
fn a_named_identity_keeps_its_budget_in_a_full_table() {
    let mut harness = Harness::new(with_names(), 1);
    harness.register(1, "x", Default);
    harness.register(2, "new", Default);
    harness.register(3, "free", Default);
    assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(2, 1)]);
    assert_eq!(harness.complete(2), [Settled(2, 1), Dispatched(3, 1)]);
    assert_eq!(harness.register(4, "free", Default), [Rejected(4, Outcome::RejectedBudget)]);
}

#[test]
fn a_reload_that_names_an_identity_gives_it_its_account_while_its_requests_wait() {
    let mut policy = with_names();
    let mut harness = Harness::new(policy.clone(), 1);
    harness.register(1, "x", Default);
    harness.register(2, "late", Default);
    harness.register(3, "late", Default);
    harness.register(4, "late", Default);
    assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(2, 1)]);
    policy.flows.weights.insert("late".into(), 5.0);
    assert_eq!(harness.handle(Input::Policy(Box::new(policy.clone()))), []);
    let flow = |harness: &Harness| {
        let flows = harness.engine.snapshot().flows;
        let found = flows.into_iter().find(|flow| &*flow.key == "late");
        found.map(|flow| (flow.waiting, flow.in_flight, flow.weight))
    };
    // What runs stays where it was charged, until it waits again.
    assert_eq!(flow(&harness), Some((2, 0, 5.0)));
    harness.handle(Input::Hold);
    assert_eq!(harness.handle(Input::Requeue(RequestId(2))), []);
    assert_eq!(flow(&harness), Some((3, 0, 5.0)));
    assert_eq!(harness.handle(Input::Ready), [Dispatched(2, 1)], "it keeps its place");
    // A name that the policy no longer has keeps its account as long as it is used.
    policy.flows.weights.remove("late");
    assert_eq!(harness.handle(Input::Policy(Box::new(policy))), []);
    assert_eq!(flow(&harness), Some((2, 1, 1.0)));
}
