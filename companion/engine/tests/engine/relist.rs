//! Changes of the endpoint list while requests wait: their eligible endpoints change, their places don't.

use penstock_engine::input::{Amended, Band, EndpointState, Relisted};
use penstock_engine::{EndpointId, Input, ModelName, Outcome as O, RequestId};

use crate::support::ShortEffect::*;
use crate::support::*;

fn amended(id: u64, eligible: Option<&[u32]>) -> Amended {
    Amended {
        id: RequestId(id),
        class_set: 0,
        eligible: eligible.map(|ids| ids.iter().copied().map(EndpointId).collect()),
    }
}

fn relist(removed: &[u32], listed: &[u32], amended: Vec<Amended>) -> Input {
    Input::Relist(Box::new(Relisted {
        removed: removed.iter().copied().map(EndpointId).collect(),
        listed: listed.iter().map(|id| (EndpointId(*id), EndpointState::default())).collect(),
        amended,
    }))
}

/// Two endpoints with one place each, both taken.
fn full() -> Harness {
    let mut policy = policy();
    policy.gate = gate(1, 1);
    let mut harness = Harness::new(policy, 2);
    harness.handle(Input::Register(restricted(request(1, "f", Band::Default), &[1])));
    harness.handle(Input::Register(restricted(request(2, "f", Band::Default), &[2])));
    harness
}

#[test]
fn a_request_with_changed_endpoints_keeps_its_place() {
    let mut harness = full();
    harness.handle(Input::Register(restricted(request(3, "f", Band::Default), &[2])));
    harness.register(4, "f", Band::Default);
    assert_eq!(harness.handle(Input::Amend(amended(3, Some(&[1])))), []);
    assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(3, 1)]);
    assert_eq!(harness.handle(Input::Amend(amended(4, Some(&[1])))), []);
    assert_eq!(harness.complete(2), [Settled(2, 1)], "it is no longer eligible there");
    assert_eq!(harness.handle(Input::Amend(amended(4, None))), [Dispatched(4, 2)]);
}

#[test]
fn a_waiting_request_without_listed_endpoints_is_rejected() {
    let mut harness = full();
    harness.register(3, "f", Band::Default);
    harness.register(4, "f", Band::Default);
    assert_eq!(harness.handle(Input::Amend(amended(3, Some(&[7])))), [Rejected(3, O::NoEndpoints)]);
    assert_eq!(harness.handle(Input::Amend(amended(4, Some(&[])))), [Rejected(4, O::NoEndpoints)]);
    // A running or unknown request causes no effect.
    assert_eq!(harness.handle(Input::Amend(amended(1, Some(&[])))), []);
    assert_eq!(harness.handle(Input::Amend(amended(9, Some(&[])))), []);
    assert_eq!(harness.complete(1), [Settled(1, 1)]);
}

#[test]
fn changed_endpoints_of_a_running_request_apply_after_a_requeue() {
    let mut harness = full();
    harness.handle(Input::Amend(amended(1, Some(&[2]))));
    assert_eq!(harness.handle(Input::Requeue(RequestId(1))), []);
    assert_eq!(harness.complete(2), [Settled(2, 1), Dispatched(1, 2)]);
}

#[test]
fn a_relist_is_applied_as_a_whole_before_any_dispatch() {
    let mut harness = full();
    harness.handle(Input::Register(restricted(request(3, "g", Band::Default), &[2, 3])));
    harness.register(4, "f", Band::Default);
    // Removing only endpoint 1 would let a request go to endpoint 2, which is removed too.
    let effects = harness.handle(relist(&[1, 2], &[3], vec![amended(3, Some(&[3])), amended(4, Some(&[4]))]));
    assert_eq!(effects, [Rejected(4, O::NoEndpoints), Dispatched(3, 3)]);
    let snapshot = harness.engine.snapshot();
    assert_eq!((snapshot.stock, snapshot.draining_stock), (1, 2));
    for id in 1..=2 {
        assert_eq!(harness.complete(id), [Settled(id, 1)]);
    }
    assert!(!harness.engine.has_endpoint(EndpointId(1)) && harness.engine.has_endpoint(EndpointId(3)));
}

#[test]
fn fair_sharing_goes_by_the_requested_model() {
    let mut policy = policy();
    policy.gate = gate(1, 1);
    policy.per_model = true;
    let mut harness = Harness::new(policy, 1);
    harness.register(1, "f", Band::Default);
    for id in 2..=3 {
        let mut request = request(id, "f", Band::Default);
        request.model = ModelName::new("chat", &format!("target-{id}"));
        harness.handle(Input::Register(request));
    }
    harness.register(4, "f", Band::Default);
    // The two models take turns; within one, the first arrival goes first.
    assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(2, 1)]);
    assert_eq!(harness.complete(2), [Settled(2, 1), Dispatched(4, 1)]);
    assert_eq!(harness.complete(4), [Settled(4, 1), Dispatched(3, 1)]);
}
