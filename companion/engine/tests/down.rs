//! Endpoints that fail: when they are marked down, for how long, and that the last one never is.

#[path = "support/mod.rs"]
mod support;

use std::time::Duration;

use penstock_engine::input::Band::Default;
use penstock_engine::input::{EndpointState, Service};
use penstock_engine::policy::OutlierEjection;
use penstock_engine::{EndpointId, Input, RequestId};

use support::Said::*;
use support::{Bench, at, gate, only, policy, request};

fn fail(bench: &mut Bench, id: u64, endpoint: u32) -> Vec<support::Said> {
    bench.say(Input::Failed {
        id: RequestId(id),
        endpoint: EndpointId(endpoint),
    })
}

/// Until when each endpoint is marked down, in seconds.
fn down(bench: &Bench) -> Vec<Option<f64>> {
    let endpoints = bench.engine.snapshot().endpoints;
    let down = endpoints.iter().map(|endpoint| {
        let until = endpoint.down_until?;
        assert!(!endpoint.ready, "it is marked down");
        Some(until.as_nanos() as f64 / 1e9)
    });
    down.collect()
}

fn bounds(bench: &Bench) -> Vec<u64> {
    let endpoints = bench.engine.snapshot().endpoints;
    endpoints.iter().map(|endpoint| endpoint.bound).collect()
}

#[test]
fn two_different_requests_mark_it_down_and_its_stock_drains() {
    let mut bench = Bench::new(policy(), 2);
    for id in 1..=2 {
        bench.say(Input::Register(only(request(id, "f", Default), &[1])));
    }
    assert_eq!((bench.engine.stock(), bench.engine.upper()), (2, 4));
    assert_eq!(fail(&mut bench, 1, 1), []);
    assert_eq!(fail(&mut bench, 1, 1), []);
    assert_eq!(down(&bench), [None, None], "the same one twice");
    assert_eq!(bench.at(10.0).wait(), []);
    assert_eq!(fail(&mut bench, 77, 1), [], "who it is needn't be known here");
    assert_eq!(down(&bench), [Some(11.0), None]);
    assert_eq!((bench.engine.stock(), bench.engine.upper()), (0, 2));
    assert_eq!(bench.engine.snapshot().draining_stock, 2);
    assert_eq!(bench.engine.poll_timeout(), Some(at(11.0)));
    // Who may go nowhere else waits for it.
    assert_eq!(
        bench.say(Input::Register(only(request(3, "g", Default), &[1]))),
        []
    );
    assert_eq!(bench.register(4, "h", Default), [Bypassed(4, 2)], "others don't");
    bench.say(Input::Completed {
        id: RequestId(1),
        service: Service::Nothing,
    });
    bench.say(Input::Completed {
        id: RequestId(2),
        service: Service::Nothing,
    });
    assert_eq!(bench.at(10.999).wait(), []);
    assert_eq!(bench.at(11.0).wait(), [Dispatched(3, 1)], "the probe");
    assert_eq!((down(&bench), bounds(&bench)), (vec![None, None], vec![1, 2]));
}

#[test]
fn the_probe_decides() {
    let mut policy = policy();
    policy.gate = gate(4, 4);
    let mut bench = Bench::new(policy, 2);
    let mut now = 0.0;
    let mut next = 100;
    for id in 1..=2 {
        fail(&mut bench, id, 1);
    }
    for rest in [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0] {
        now += rest;
        assert_eq!(down(&bench), [Some(now), None], "after {rest} s");
        assert_eq!(bench.at(now).wait(), []);
        next += 2;
        let probe = only(request(next, "f", Default), &[1]);
        assert_eq!(bench.say(Input::Register(probe)), [Bypassed(next, 1)]);
        let second = only(request(next + 1, "f", Default), &[1]);
        assert_eq!(bench.say(Input::Register(second)), [], "one at a time");
        bench.say(Input::Cancel(RequestId(next + 1)));
        fail(&mut bench, next, 1);
        bench.say(Input::Completed {
            id: RequestId(next),
            service: Service::Nothing,
        });
    }
    now += 30.0;
    bench.at(now).wait();
    bench.say(Input::Register(only(request(1_000, "f", Default), &[1])));
    assert_eq!(bench.complete(1_000), [Settled(1_000, 1)]);
    assert_eq!(bounds(&bench), [2, 4], "served: twice as many");
    assert_eq!(fail(&mut bench, 1_001, 1), []);
    assert_eq!(down(&bench), [None, None], "it takes two again");
    fail(&mut bench, 1_002, 1);
    assert_eq!(down(&bench), [Some(now + 1.0), None], "and begins at the first");
}

#[test]
fn the_last_one_is_never_marked_down() {
    let mut bench = Bench::new(policy(), 1);
    for id in 1..=20 {
        assert_eq!(fail(&mut bench, id, 1), []);
        assert_eq!((down(&bench), bounds(&bench)), (vec![None], vec![2]));
    }
    // The second comes; now one failure more is enough.
    bench.endpoint(2, true);
    fail(&mut bench, 20, 1);
    assert_eq!(down(&bench), [Some(1.0), None]);
    fail(&mut bench, 21, 2);
    fail(&mut bench, 22, 2);
    assert_eq!(down(&bench), [Some(1.0), None], "it is the last");
    assert_eq!(bench.at(1.0).wait(), []);
    fail(&mut bench, 23, 2);
    assert_eq!(down(&bench), [None, Some(2.0)]);
    fail(&mut bench, 24, 1);
    assert_eq!(down(&bench), [None, Some(2.0)], "probed, and the last");
}

#[test]
fn when_the_last_goes_the_one_that_is_due_first_is_back_at_once() {
    let mut bench = Bench::new(policy(), 4);
    for (second, endpoint) in [(0.0, 3), (0.1, 1), (0.2, 2)] {
        bench.at(second);
        for id in 1..=2 {
            fail(&mut bench, id, endpoint);
        }
    }
    assert_eq!(down(&bench), [Some(1.1), Some(1.2), Some(1.0), None]);
    assert_eq!(bench.register(1, "f", Default), [Bypassed(1, 4)]);
    assert_eq!(bench.register(2, "f", Default), [Bypassed(2, 4)]);
    assert_eq!(bench.register(3, "f", Default), []);
    // Endpoint 3 would be first, but its health check fails.
    assert_eq!(bench.endpoint(3, false), []);
    assert_eq!(bench.endpoint(4, false), [Dispatched(3, 1)]);
    assert_eq!(down(&bench), [None, Some(1.2), Some(1.0), None]);
    assert_eq!(
        bench.say(Input::EndpointRemoved(EndpointId(1))),
        [],
        "2 is back, and idle"
    );
    let snapshot = bench.engine.snapshot();
    let ready = snapshot.endpoints.iter().filter(|endpoint| endpoint.ready);
    assert_eq!(ready.map(|endpoint| endpoint.id.0).collect::<Vec<_>>(), [2]);
    // With none that is healthy there is nobody to bring back, and the outage counts.
    bench.endpoint(2, false);
    assert_eq!(bench.engine.snapshot().ready_endpoints, 0);
    assert_eq!(
        bench.endpoint(3, true),
        [],
        "healthy again: due at 1.0, but the only one"
    );
    assert_eq!(bench.engine.snapshot().ready_endpoints, 1);
}

#[test]
fn health_and_marks_are_two_things() {
    let mut bench = Bench::new(policy(), 2);
    for id in 1..=2 {
        fail(&mut bench, id, 1);
    }
    bench.at(0.5).endpoint(1, false);
    assert_eq!(fail(&mut bench, 3, 1), []);
    bench.endpoint(1, true);
    assert_eq!(down(&bench), [Some(1.0), None], "a passed check doesn't undo it");
    bench.endpoint(1, false);
    assert_eq!(bench.at(1.0).wait(), []);
    assert_eq!(down(&bench), [None, None]);
    assert_eq!(bench.engine.snapshot().ready_endpoints, 1);
    bench.at(9.0).endpoint(1, true);
    assert_eq!(bounds(&bench), [1, 2]);
    fail(&mut bench, 4, 1);
    assert_eq!(down(&bench), [Some(11.0), None], "it is probed still");
    // Another server at this address: all is forgotten.
    bench.say(Input::EndpointRemoved(EndpointId(1)));
    assert_eq!(bench.engine.poll_timeout(), None);
    bench.endpoint(1, true);
    fail(&mut bench, 5, 1);
    assert_eq!(down(&bench), [None, None]);
    assert_eq!(fail(&mut bench, 6, 42), [], "nobody knows it");
}

#[test]
fn weights_and_policies_change_under_it() {
    let mut policy = policy();
    policy.outlier_ejection = OutlierEjection {
        first: Duration::from_secs(5),
        max: Duration::from_secs(6),
    };
    let mut bench = Bench::new(policy.clone(), 2);
    for id in 1..=2 {
        fail(&mut bench, id, 1);
    }
    let state = EndpointState {
        weight: penstock_engine::units::Decimal::whole(3),
        ..EndpointState::default()
    };
    bench.say(Input::Endpoint {
        id: EndpointId(1),
        state,
    });
    policy.outlier_ejection = OutlierEjection {
        first: Duration::from_secs(1),
        max: Duration::from_secs(60),
    };
    policy.gate = gate(3, 3);
    bench.say(Input::Policy(Box::new(policy)));
    assert_eq!(down(&bench), [Some(5.0), None], "as it was said then");
    assert_eq!(bench.engine.upper(), 3);
    bench.at(5.0).wait();
    assert_eq!(bounds(&bench), [1, 3]);
    fail(&mut bench, 3, 1);
    assert_eq!(down(&bench), [Some(7.0), None], "the second time by the new one");
}

#[test]
fn what_runs_there_ends_as_ever() {
    let mut policy = policy();
    policy.gate = gate(1, 1);
    let mut bench = Bench::new(policy, 2);
    bench.say(Input::Register(only(request(1, "f", Default), &[1])));
    bench.say(Input::Register(only(request(2, "f", Default), &[2])));
    bench.register(3, "f", Default);
    bench.register(4, "g", Default);
    for id in 8..=9 {
        fail(&mut bench, id, 1);
    }
    // Its place isn't anybody's now; 2's is.
    assert_eq!(bench.complete(1), [Settled(1, 1)]);
    assert_eq!(down(&bench), [Some(1.0), None], "served, but it is marked");
    assert_eq!(bench.complete(2), [Settled(2, 1), Dispatched(3, 2)]);
    assert_eq!(bench.at(1.0).wait(), [Dispatched(4, 1)]);
    assert_eq!(bench.say(Input::Requeue(RequestId(4))), [Dispatched(4, 1)]);
    fail(&mut bench, 4, 1);
    assert_eq!(
        down(&bench),
        [Some(2.0), None],
        "served before: the first time again"
    );
    assert_eq!(
        bench.say(Input::Requeue(RequestId(4))),
        [],
        "its place is elsewhere, later"
    );
    assert_eq!(bench.complete(3), [Settled(3, 1), Dispatched(4, 2)]);
}
