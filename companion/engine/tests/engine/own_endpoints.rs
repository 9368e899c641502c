//! Requests of one flow that may go to different endpoints: none holds up another one that may go elsewhere, and those that may
//! go to the same endpoints keep their order.

use Band::Default;
use penstock_engine::input::{Amended, Band};
use penstock_engine::policy::{Discipline, Policy};
use penstock_engine::{EndpointId, Input, RequestId};

use crate::support::ShortEffect::*;
use crate::support::*;

/// Two endpoints that take one request each; requests 1 and 2 of another flow run there.
fn full(change: impl FnOnce(&mut Policy)) -> Harness {
    let mut policy = policy();
    policy.gate = gate(1, 1);
    change(&mut policy);
    let mut harness = Harness::new(policy, 2);
    for id in [1, 2] {
        let pinned = restricted(request(id, "other", Default), &[id as u32]);
        assert_eq!(harness.handle(Input::Register(pinned)), [Bypassed(id, id as u32)]);
    }
    harness
}

fn pinned(harness: &mut Harness, id: u64, endpoints: &[u32]) -> Vec<ShortEffect> {
    harness.handle(Input::Register(restricted(request(id, "", Default), endpoints)))
}

#[test]
fn a_request_pinned_to_a_full_endpoint_holds_up_no_other() {
    for discipline in Discipline::ALL {
        let mut harness = full(|policy| policy.flows.discipline = discipline);
        assert_eq!(pinned(&mut harness, 3, &[1]), []);
        for id in 4..=6 {
            assert_eq!(harness.register(id, "", Default), []);
        }
        assert_eq!(harness.complete(2), [Settled(2, 1), Dispatched(4, 2)], "{discipline:?}");
        assert_eq!(harness.complete(4), [Settled(4, 1), Dispatched(5, 2)]);
        // It is the oldest, so it goes as soon as it can.
        assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(3, 1)]);
        assert_eq!(harness.complete(3), [Settled(3, 1), Dispatched(6, 1)]);
    }
}

#[test]
fn requests_for_the_same_endpoints_keep_their_order() {
    let mut harness = full(|_| {});
    for (id, endpoints) in [(3, &[1][..]), (4, &[2]), (5, &[1]), (6, &[2, 1]), (7, &[2])] {
        assert_eq!(pinned(&mut harness, id, endpoints), []);
    }
    assert_eq!(harness.complete(2), [Settled(2, 1), Dispatched(4, 2)]);
    assert_eq!(harness.complete(4), [Settled(4, 1), Dispatched(6, 2)]);
    assert_eq!(harness.complete(6), [Settled(6, 1), Dispatched(7, 2)]);
    assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(3, 1)]);
    assert_eq!(harness.complete(3), [Settled(3, 1), Dispatched(5, 1)]);
}

#[test]
fn a_newcomer_bypasses_a_request_of_its_flow_that_waits_for_its_own_endpoint() {
    let mut harness = full(|_| {});
    assert_eq!(pinned(&mut harness, 3, &[1]), []);
    assert_eq!(harness.complete(2), [Settled(2, 1)]);
    assert_eq!(pinned(&mut harness, 4, &[1]), [], "it is behind request 3");
    assert_eq!(harness.register(5, "", Default), [Bypassed(5, 2)]);
}

#[test]
fn other_endpoints_put_a_request_into_another_lane() {
    let mut harness = full(|_| {});
    assert_eq!(pinned(&mut harness, 3, &[1]), []);
    assert_eq!(pinned(&mut harness, 4, &[1]), []);
    assert_eq!(harness.complete(2), [Settled(2, 1)]);
    let amended = Amended { id: RequestId(4), class_set: 0, eligible: Some([EndpointId(2)].into()) };
    assert_eq!(harness.handle(Input::Amend(amended)), [Dispatched(4, 2)]);
    assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(3, 1)]);
}

#[test]
fn a_limit_at_each_endpoint_holds_up_only_what_needs_that_endpoint() {
    let mut policy = policy();
    policy.flows.max_in_flight_per_endpoint = Some(1);
    let mut harness = Harness::new(policy, 2);
    assert_eq!(pinned(&mut harness, 1, &[1]), [Bypassed(1, 1)]);
    assert_eq!(pinned(&mut harness, 2, &[1]), []);
    assert_eq!(harness.register(3, "", Default), [Bypassed(3, 2)]);
    assert_eq!(harness.register(4, "", Default), []);
    assert_eq!(harness.complete(3), [Settled(3, 1), Dispatched(4, 2)]);
    assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(2, 1)]);
}

#[test]
fn suspension_and_a_policy_change_keep_requests_in_their_lanes() {
    let mut harness = full(|_| {});
    assert_eq!(pinned(&mut harness, 3, &[1]), []);
    assert_eq!(pinned(&mut harness, 4, &[2]), []);
    assert_eq!(harness.register(5, "", Default), []);
    for id in [3, 4] {
        assert_eq!(harness.handle(Input::Suspend(RequestId(id))), []);
        assert_eq!(harness.handle(Input::Continue(RequestId(id))), []);
    }
    let mut changed = policy();
    changed.gate = gate(1, 1);
    changed.flows.discipline = Discipline::Drr;
    assert_eq!(harness.handle(Input::Policy(Box::new(changed))), []);
    assert_eq!(harness.complete(2), [Settled(2, 1), Dispatched(4, 2)]);
    assert_eq!(harness.complete(4), [Settled(4, 1), Dispatched(5, 2)]);
    assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(3, 1)]);
}

/// Beyond the limits a flow waits for its first request, and its requests still go in the end.
#[test]
fn many_flows_and_many_sets_of_endpoints_all_go() {
    let mut policy = policy();
    policy.gate = gate(1, 1);
    policy.queue.total_capacity = 100_000;
    policy.queue.flow_capacity = 10_000;
    let endpoints = 40;
    let mut harness = Harness::new(policy, endpoints);
    let mut id = 0;
    let mut next = |harness: &mut Harness, flow: &str, endpoints: &[u32]| {
        id += 1;
        let request = restricted(request(id, flow, Default), endpoints);
        harness.handle(Input::Register(request))
    };
    let mut running: Vec<u64> = Vec::new();
    let note = |running: &mut Vec<u64>, effects: &[ShortEffect]| {
        for effect in effects {
            if let Bypassed(id, _) | Dispatched(id, _) = effect {
                running.push(*id);
            }
        }
    };
    for endpoint in 1..=endpoints {
        let effects = next(&mut harness, "first", &[endpoint]);
        note(&mut running, &effects);
    }
    for flow in 0..100 {
        for endpoint in [1, 1 + flow % endpoints, 1 + flow % 7] {
            let effects = next(&mut harness, &format!("f{flow}"), &[endpoint]);
            note(&mut running, &effects);
        }
    }
    for endpoint in 1..=endpoints {
        for other in [1, 2] {
            let effects = next(&mut harness, "wide", &[endpoint, other]);
            note(&mut running, &effects);
        }
    }
    let mut served = 0;
    while let Some(first) = (!running.is_empty()).then(|| running.remove(0)) {
        let effects = harness.complete(first);
        note(&mut running, &effects);
        served += 1;
    }
    assert_eq!((served, harness.engine.waiting()), (40 + 300 + 80, 0));
}
