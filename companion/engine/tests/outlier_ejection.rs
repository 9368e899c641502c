//! Endpoints that fail: when they are marked down, for how long, and that the last one never is.

#[path = "support/mod.rs"]
mod support;

use std::time::Duration;

use penstock_engine::input::Band::Default;
use penstock_engine::input::{EndpointState, Service};
use penstock_engine::policy::OutlierEjection;
use penstock_engine::{EndpointId, Input, RequestId};

use support::ShortEffect::*;
use support::{Harness, gate, policy, request, restricted, time};

fn fail(harness: &mut Harness, id: u64, endpoint: u32) -> Vec<support::ShortEffect> {
    harness.handle(Input::Failed {
        id: RequestId(id),
        endpoint: EndpointId(endpoint),
    })
}

/// Until when each endpoint is marked down, in seconds.
fn down(harness: &Harness) -> Vec<Option<f64>> {
    let endpoints = harness.engine.snapshot().endpoints;
    let down = endpoints.iter().map(|endpoint| {
        let until = endpoint.down_until?;
        assert!(!endpoint.ready, "it is marked down");
        Some(until.as_nanos() as f64 / 1e9)
    });
    down.collect()
}

fn bounds(harness: &Harness) -> Vec<u64> {
    let endpoints = harness.engine.snapshot().endpoints;
    endpoints.iter().map(|endpoint| endpoint.bound).collect()
}

#[test]
fn two_different_requests_mark_it_down_and_its_stock_drains() {
    let mut harness = Harness::new(policy(), 2);
    for id in 1..=2 {
        harness.handle(Input::Register(restricted(request(id, "f", Default), &[1])));
    }
    assert_eq!((harness.engine.stock(), harness.engine.upper()), (2, 4));
    assert_eq!(fail(&mut harness, 1, 1), []);
    assert_eq!(fail(&mut harness, 1, 1), []);
    assert_eq!(down(&harness), [None, None], "the same one twice");
    assert_eq!(harness.advance_to(10.0).handle_timeout(), []);
    assert_eq!(fail(&mut harness, 77, 1), [], "who it is needn't be known here");
    assert_eq!(down(&harness), [Some(11.0), None]);
    assert_eq!((harness.engine.stock(), harness.engine.upper()), (0, 2));
    assert_eq!(harness.engine.snapshot().draining_stock, 2);
    assert_eq!(harness.engine.poll_timeout(), Some(time(11.0)));
    // Who may go nowhere else waits for it.
    assert_eq!(
        harness.handle(Input::Register(restricted(request(3, "g", Default), &[1]))),
        []
    );
    assert_eq!(
        harness.register(4, "h", Default),
        [Bypassed(4, 2)],
        "others don't"
    );
    harness.handle(Input::Completed {
        id: RequestId(1),
        service: Service::Nothing,
    });
    harness.handle(Input::Completed {
        id: RequestId(2),
        service: Service::Nothing,
    });
    assert_eq!(harness.advance_to(10.999).handle_timeout(), []);
    assert_eq!(
        harness.advance_to(11.0).handle_timeout(),
        [Dispatched(3, 1)],
        "the probe"
    );
    assert_eq!((down(&harness), bounds(&harness)), (vec![None, None], vec![1, 2]));
}

#[test]
fn the_probe_decides() {
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
        harness.handle(Input::Completed {
            id: RequestId(next),
            service: Service::Nothing,
        });
    }
    now += 30.0;
    harness.advance_to(now).handle_timeout();
    harness.handle(Input::Register(restricted(request(1_000, "f", Default), &[1])));
    assert_eq!(harness.complete(1_000), [Settled(1_000, 1)]);
    assert_eq!(bounds(&harness), [2, 4], "served: twice as many");
    assert_eq!(fail(&mut harness, 1_001, 1), []);
    assert_eq!(down(&harness), [None, None], "it takes two again");
    fail(&mut harness, 1_002, 1);
    assert_eq!(down(&harness), [Some(now + 1.0), None], "and begins at the first");
}

#[test]
fn the_last_one_is_never_marked_down() {
    let mut harness = Harness::new(policy(), 1);
    for id in 1..=20 {
        assert_eq!(fail(&mut harness, id, 1), []);
        assert_eq!((down(&harness), bounds(&harness)), (vec![None], vec![2]));
    }
    // The second comes; now one failure more is enough.
    harness.endpoint(2, true);
    fail(&mut harness, 20, 1);
    assert_eq!(down(&harness), [Some(1.0), None]);
    fail(&mut harness, 21, 2);
    fail(&mut harness, 22, 2);
    assert_eq!(down(&harness), [Some(1.0), None], "it is the last");
    assert_eq!(harness.advance_to(1.0).handle_timeout(), []);
    fail(&mut harness, 23, 2);
    assert_eq!(down(&harness), [None, Some(2.0)]);
    fail(&mut harness, 24, 1);
    assert_eq!(down(&harness), [None, Some(2.0)], "probed, and the last");
}

#[test]
fn when_the_last_goes_the_one_that_is_due_first_is_back_at_once() {
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
    // Endpoint 3 would be first, but its health check fails.
    assert_eq!(harness.endpoint(3, false), []);
    assert_eq!(harness.endpoint(4, false), [Dispatched(3, 1)]);
    assert_eq!(down(&harness), [None, Some(1.2), Some(1.0), None]);
    assert_eq!(
        harness.handle(Input::EndpointRemoved(EndpointId(1))),
        [],
        "2 is back, and idle"
    );
    let snapshot = harness.engine.snapshot();
    let ready = snapshot.endpoints.iter().filter(|endpoint| endpoint.ready);
    assert_eq!(ready.map(|endpoint| endpoint.id.0).collect::<Vec<_>>(), [2]);
    // With none that is healthy there is nobody to bring back, and the outage counts.
    harness.endpoint(2, false);
    assert_eq!(harness.engine.snapshot().ready_endpoints, 0);
    assert_eq!(
        harness.endpoint(3, true),
        [],
        "healthy again: due at 1.0, but the only one"
    );
    assert_eq!(harness.engine.snapshot().ready_endpoints, 1);
}

#[test]
fn health_and_marks_are_two_things() {
    let mut harness = Harness::new(policy(), 2);
    for id in 1..=2 {
        fail(&mut harness, id, 1);
    }
    harness.advance_to(0.5).endpoint(1, false);
    assert_eq!(fail(&mut harness, 3, 1), []);
    harness.endpoint(1, true);
    assert_eq!(
        down(&harness),
        [Some(1.0), None],
        "a passed check doesn't undo it"
    );
    harness.endpoint(1, false);
    assert_eq!(harness.advance_to(1.0).handle_timeout(), []);
    assert_eq!(down(&harness), [None, None]);
    assert_eq!(harness.engine.snapshot().ready_endpoints, 1);
    harness.advance_to(9.0).endpoint(1, true);
    assert_eq!(bounds(&harness), [1, 2]);
    fail(&mut harness, 4, 1);
    assert_eq!(down(&harness), [Some(11.0), None], "it is probed still");
    // Another server at this address: all is forgotten.
    harness.handle(Input::EndpointRemoved(EndpointId(1)));
    assert_eq!(harness.engine.poll_timeout(), None);
    harness.endpoint(1, true);
    fail(&mut harness, 5, 1);
    assert_eq!(down(&harness), [None, None]);
    assert_eq!(fail(&mut harness, 6, 42), [], "nobody knows it");
}

#[test]
fn weights_and_policies_change_under_it() {
    let mut policy = policy();
    policy.outlier_ejection = OutlierEjection {
        first: Duration::from_secs(5),
        max: Duration::from_secs(6),
    };
    let mut harness = Harness::new(policy.clone(), 2);
    for id in 1..=2 {
        fail(&mut harness, id, 1);
    }
    let state = EndpointState {
        weight: penstock_engine::units::Decimal::whole(3),
        ..EndpointState::default()
    };
    harness.handle(Input::Endpoint {
        id: EndpointId(1),
        state,
    });
    policy.outlier_ejection = OutlierEjection {
        first: Duration::from_secs(1),
        max: Duration::from_secs(60),
    };
    policy.gate = gate(3, 3);
    harness.handle(Input::Policy(Box::new(policy)));
    assert_eq!(down(&harness), [Some(5.0), None], "as it was said then");
    assert_eq!(harness.engine.upper(), 3);
    harness.advance_to(5.0).handle_timeout();
    assert_eq!(bounds(&harness), [1, 3]);
    fail(&mut harness, 3, 1);
    assert_eq!(
        down(&harness),
        [Some(7.0), None],
        "the second time by the new one"
    );
}

#[test]
fn what_runs_there_ends_as_ever() {
    let mut policy = policy();
    policy.gate = gate(1, 1);
    let mut harness = Harness::new(policy, 2);
    harness.handle(Input::Register(restricted(request(1, "f", Default), &[1])));
    harness.handle(Input::Register(restricted(request(2, "f", Default), &[2])));
    harness.register(3, "f", Default);
    harness.register(4, "g", Default);
    for id in 8..=9 {
        fail(&mut harness, id, 1);
    }
    // Its place isn't anybody's now; 2's is.
    assert_eq!(harness.complete(1), [Settled(1, 1)]);
    assert_eq!(down(&harness), [Some(1.0), None], "served, but it is marked");
    assert_eq!(harness.complete(2), [Settled(2, 1), Dispatched(3, 2)]);
    assert_eq!(harness.advance_to(1.0).handle_timeout(), [Dispatched(4, 1)]);
    assert_eq!(harness.handle(Input::Requeue(RequestId(4))), [Dispatched(4, 1)]);
    fail(&mut harness, 4, 1);
    assert_eq!(
        down(&harness),
        [Some(2.0), None],
        "served before: the first time again"
    );
    assert_eq!(
        harness.handle(Input::Requeue(RequestId(4))),
        [],
        "its place is elsewhere, later"
    );
    assert_eq!(harness.complete(3), [Settled(3, 1), Dispatched(4, 2)]);
}
