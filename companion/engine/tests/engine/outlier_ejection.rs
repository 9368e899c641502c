//! Failing endpoints: when they are marked down, for how long, and that the last ready endpoint never is.

use std::time::Duration;

use penstock_engine::input::Band::Default;
use penstock_engine::input::{EndpointState, Service};
use penstock_engine::policy::OutlierEjection;
use penstock_engine::{EndpointId, Input, RequestId};

use crate::support::ShortEffect::*;
use crate::support::{Harness, bounds, gate, policy, request, restricted, time};

fn fail(harness: &mut Harness, id: u64, endpoint: u32) -> Vec<crate::support::ShortEffect> {
    harness.handle(Input::Failed { id: RequestId(id), endpoint: EndpointId(endpoint) })
}

/// Time until which each endpoint is marked down, in seconds.
fn down(harness: &Harness) -> Vec<Option<f64>> {
    let endpoints = harness.engine.snapshot().endpoints;
    let down = endpoints.iter().map(|endpoint| {
        let until = endpoint.down_until?;
        assert!(!endpoint.ready, "an endpoint that is marked down isn't ready");
        Some(until.as_nanos() as f64 / 1e9)
    });
    down.collect()
}

#[test]
fn two_failed_requests_mark_an_endpoint_down_and_its_stock_drains() {
    let mut harness = Harness::new(policy(), 2);
    for id in 1..=2 {
        harness.handle(Input::Register(restricted(request(id, "f", Default), &[1])));
    }
    assert_eq!((harness.engine.stock(), harness.engine.upper()), (2, 4));
    assert_eq!(fail(&mut harness, 1, 1), []);
    assert_eq!(fail(&mut harness, 1, 1), []);
    assert_eq!(down(&harness), [None, None], "the same request failed twice");
    assert_eq!(harness.advance_to(10.0).handle_timeout(), []);
    assert_eq!(fail(&mut harness, 77, 1), [], "the failed request need not be known to the engine");
    assert_eq!(down(&harness), [Some(11.0), None]);
    assert_eq!((harness.engine.stock(), harness.engine.upper()), (0, 2));
    assert_eq!(harness.engine.snapshot().draining_stock, 2);
    assert_eq!(harness.engine.poll_timeout(), Some(time(11.0)));
    // A request that is only eligible there waits for it.
    assert_eq!(harness.handle(Input::Register(restricted(request(3, "g", Default), &[1]))), []);
    assert_eq!(
        harness.register(4, "h", Default),
        [Bypassed(4, 2)],
        "a request that is eligible elsewhere doesn't wait"
    );
    harness.handle(Input::Completed { id: RequestId(1), service: Service::Nothing });
    harness.handle(Input::Completed { id: RequestId(2), service: Service::Nothing });
    assert_eq!(harness.advance_to(10.999).handle_timeout(), []);
    assert_eq!(harness.advance_to(11.0).handle_timeout(), [Dispatched(3, 1)], "the probe");
    assert_eq!((down(&harness), bounds(&harness)), (vec![None, None], vec![1, 2]));
}

#[test]
fn the_probe_decides_and_each_failure_doubles_the_time() {
    let mut policy = policy();
    policy.gate = gate(4, 4);
    let mut harness = Harness::new(policy, 2);
    let mut now = 0.0;
    let mut next = 100;
    for id in 1..=2 {
        fail(&mut harness, id, 1);
    }
    for rest in [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0] {
        now += rest;
        assert_eq!(down(&harness), [Some(now), None], "after {rest} s");
        assert_eq!(harness.advance_to(now).handle_timeout(), []);
        next += 2;
        let probe = restricted(request(next, "f", Default), &[1]);
        assert_eq!(harness.handle(Input::Register(probe)), [Bypassed(next, 1)]);
        let second = restricted(request(next + 1, "f", Default), &[1]);
        assert_eq!(harness.handle(Input::Register(second)), [], "one at a time");
        harness.handle(Input::Cancel(RequestId(next + 1)));
        fail(&mut harness, next, 1);
        harness.handle(Input::Completed { id: RequestId(next), service: Service::Nothing });
    }
    now += 30.0;
    harness.advance_to(now).handle_timeout();
    harness.handle(Input::Register(restricted(request(1_000, "f", Default), &[1])));
    assert_eq!(harness.complete(1_000), [Settled(1_000, 1)]);
    assert_eq!(bounds(&harness), [2, 4], "a served request doubles the ramp");
    assert_eq!(fail(&mut harness, 1_001, 1), []);
    assert_eq!(down(&harness), [None, None], "two failures are needed again");
    fail(&mut harness, 1_002, 1);
    assert_eq!(down(&harness), [Some(now + 1.0), None], "the time starts over");
}

#[test]
fn the_last_ready_endpoint_is_never_marked_down() {
    let mut harness = Harness::new(policy(), 1);
    for id in 1..=20 {
        assert_eq!(fail(&mut harness, id, 1), []);
        assert_eq!((down(&harness), bounds(&harness)), (vec![None], vec![2]));
    }
    // With a second endpoint, one more failure is enough.
    harness.endpoint(2, true);
    fail(&mut harness, 20, 1);
    assert_eq!(down(&harness), [Some(1.0), None]);
    fail(&mut harness, 21, 2);
    fail(&mut harness, 22, 2);
    assert_eq!(down(&harness), [Some(1.0), None], "it is the last ready endpoint");
    assert_eq!(harness.advance_to(1.0).handle_timeout(), []);
    fail(&mut harness, 23, 2);
    assert_eq!(down(&harness), [None, Some(2.0)]);
    fail(&mut harness, 24, 1);
    assert_eq!(down(&harness), [None, Some(2.0)], "the probe failed, but it is the last ready endpoint");
}

#[test]
fn losing_the_last_ready_endpoint_brings_back_the_one_due_first() {
    let mut harness = Harness::new(policy(), 4);
    for (second, endpoint) in [(0.0, 3), (0.1, 1), (0.2, 2)] {
        harness.advance_to(second);
        for id in 1..=2 {
            fail(&mut harness, id, endpoint);
        }
    }
    assert_eq!(down(&harness), [Some(1.1), Some(1.2), Some(1.0), None]);
    assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 4)]);
    assert_eq!(harness.register(2, "f", Default), [Bypassed(2, 4)]);
    assert_eq!(harness.register(3, "f", Default), []);
    // Endpoint 3 is due first, but its health check fails.
    assert_eq!(harness.endpoint(3, false), []);
    assert_eq!(harness.endpoint(4, false), [Dispatched(3, 1)]);
    assert_eq!(down(&harness), [None, Some(1.2), Some(1.0), None]);
    assert_eq!(harness.handle(Input::EndpointRemoved(EndpointId(1))), [], "endpoint 2 is back, and idle");
    let snapshot = harness.engine.snapshot();
    let ready = snapshot.endpoints.iter().filter(|endpoint| endpoint.ready);
    assert_eq!(ready.map(|endpoint| endpoint.id.0).collect::<Vec<_>>(), [2]);
    // Without a healthy endpoint none is brought back, and the outage counts.
    harness.endpoint(2, false);
    assert_eq!(harness.engine.snapshot().ready_endpoints, 0);
    assert_eq!(
        harness.endpoint(3, true),
        [],
        "healthy again, and brought back before it is due as the only one"
    );
    assert_eq!(harness.engine.snapshot().ready_endpoints, 1);
}

#[test]
fn health_checks_and_outlier_ejection_are_independent() {
    let mut harness = Harness::new(policy(), 2);
    for id in 1..=2 {
        fail(&mut harness, id, 1);
    }
    harness.advance_to(0.5).endpoint(1, false);
    assert_eq!(fail(&mut harness, 3, 1), []);
    harness.endpoint(1, true);
    assert_eq!(down(&harness), [Some(1.0), None], "a passed health check doesn't end the ejection");
    harness.endpoint(1, false);
    assert_eq!(harness.advance_to(1.0).handle_timeout(), []);
    assert_eq!(down(&harness), [None, None]);
    assert_eq!(harness.engine.snapshot().ready_endpoints, 1);
    harness.advance_to(9.0).endpoint(1, true);
    assert_eq!(bounds(&harness), [1, 2]);
    fail(&mut harness, 4, 1);
    assert_eq!(down(&harness), [Some(11.0), None], "the probe is still pending");
    // Removing the endpoint discards its failures.
    harness.handle(Input::EndpointRemoved(EndpointId(1)));
    assert_eq!(harness.engine.poll_timeout(), None);
    harness.endpoint(1, true);
    fail(&mut harness, 5, 1);
    assert_eq!(down(&harness), [None, None]);
    assert_eq!(fail(&mut harness, 6, 42), [], "the endpoint isn't listed");
}

#[test]
fn an_ejection_survives_changes_of_weight_and_policy() {
    let mut policy = policy();
    policy.outlier_ejection = OutlierEjection { first: Duration::from_secs(5), max: Duration::from_secs(6) };
    let mut harness = Harness::new(policy.clone(), 2);
    for id in 1..=2 {
        fail(&mut harness, id, 1);
    }
    let state =
        EndpointState { weight: penstock_engine::units::Decimal::whole(3), ..EndpointState::default() };
    harness.handle(Input::Endpoint { id: EndpointId(1), state });
    policy.outlier_ejection = OutlierEjection { first: Duration::from_secs(1), max: Duration::from_secs(60) };
    policy.gate = gate(3, 3);
    harness.handle(Input::Policy(Box::new(policy)));
    assert_eq!(down(&harness), [Some(5.0), None], "the policy at the time of the failure counts");
    assert_eq!(harness.engine.upper(), 3);
    harness.advance_to(5.0).handle_timeout();
    assert_eq!(bounds(&harness), [1, 3]);
    fail(&mut harness, 3, 1);
    assert_eq!(down(&harness), [Some(7.0), None], "the second ejection follows the new policy");
}

#[test]
fn requests_on_an_ejected_endpoint_end_normally() {
    let mut policy = policy();
    policy.gate = gate(1, 1);
    let mut harness = Harness::new(policy, 2);
    harness.handle(Input::Register(restricted(request(1, "f", Default), &[1])));
    harness.handle(Input::Register(restricted(request(2, "e", Default), &[2])));
    harness.register(3, "f", Default);
    harness.register(4, "g", Default);
    for id in 8..=9 {
        fail(&mut harness, id, 1);
    }
    // The place of request 1 is not free while its endpoint is down; that of request 2 is.
    assert_eq!(harness.complete(1), [Settled(1, 1)]);
    assert_eq!(down(&harness), [Some(1.0), None], "a served request doesn't end the ejection");
    assert_eq!(harness.complete(2), [Settled(2, 1), Dispatched(3, 2)]);
    assert_eq!(harness.advance_to(1.0).handle_timeout(), [Dispatched(4, 1)]);
    assert_eq!(harness.handle(Input::Requeue(RequestId(4))), [Dispatched(4, 1)]);
    fail(&mut harness, 4, 1);
    assert_eq!(down(&harness), [Some(2.0), None], "a request was served before, so the time starts over");
    assert_eq!(
        harness.handle(Input::Requeue(RequestId(4))),
        [],
        "it waits for a place at the other endpoint"
    );
    assert_eq!(harness.complete(3), [Settled(3, 1), Dispatched(4, 2)]);
}
