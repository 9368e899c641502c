//! Other endpoints under requests that wait: where these may go changes, their places don't.

#[path = "support/mod.rs"]
mod support;

use penstock_engine::input::{Amended, Band, EndpointState, Relisted};
use penstock_engine::{EndpointId, Input, Outcome as O, RequestId};

use support::Said::*;
use support::*;

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
        listed: listed
            .iter()
            .map(|id| (EndpointId(*id), EndpointState::default()))
            .collect(),
        amended,
    }))
}

/// Two endpoints of one request each; both are taken.
fn full() -> Bench {
    let mut policy = policy();
    policy.gate = gate(1, 1);
    let mut bench = Bench::new(policy, 2);
    bench.say(Input::Register(only(request(1, "f", Band::Default), &[1])));
    bench.say(Input::Register(only(request(2, "f", Band::Default), &[2])));
    bench
}

#[test]
fn who_may_go_elsewhere_keeps_its_place() {
    let mut bench = full();
    bench.say(Input::Register(only(request(3, "f", Band::Default), &[2])));
    bench.register(4, "f", Band::Default);
    assert_eq!(bench.say(Input::Amend(amended(3, Some(&[1])))), []);
    assert_eq!(bench.complete(1), [Settled(1, 1), Dispatched(3, 1)]);
    assert_eq!(bench.say(Input::Amend(amended(4, Some(&[1])))), []);
    assert_eq!(bench.complete(2), [Settled(2, 1)], "it may not go there any more");
    assert_eq!(bench.say(Input::Amend(amended(4, None))), [Dispatched(4, 2)]);
}

#[test]
fn who_fits_nowhere_is_told_so() {
    let mut bench = full();
    bench.register(3, "f", Band::Default);
    bench.register(4, "f", Band::Default);
    assert_eq!(
        bench.say(Input::Amend(amended(3, Some(&[7])))),
        [Rejected(3, O::NoEndpoints)]
    );
    assert_eq!(
        bench.say(Input::Amend(amended(4, Some(&[])))),
        [Rejected(4, O::NoEndpoints)]
    );
    // Of one that runs, or isn't there, nothing is said.
    assert_eq!(bench.say(Input::Amend(amended(1, Some(&[])))), []);
    assert_eq!(bench.say(Input::Amend(amended(9, Some(&[])))), []);
    assert_eq!(bench.complete(1), [Settled(1, 1)]);
}

#[test]
fn one_that_runs_goes_where_it_may_when_it_waits_again() {
    let mut bench = full();
    bench.say(Input::Amend(amended(1, Some(&[2]))));
    assert_eq!(bench.say(Input::Requeue(RequestId(1))), []);
    assert_eq!(bench.complete(2), [Settled(2, 1), Dispatched(1, 2)]);
}

#[test]
fn nothing_goes_to_an_endpoint_of_a_list_that_is_gone() {
    let mut bench = full();
    bench.say(Input::Register(only(request(3, "g", Band::Default), &[2, 3])));
    bench.register(4, "f", Band::Default);
    // With the first one gone there were room at the second, were it not gone, too.
    let said = bench.say(relist(
        &[1, 2],
        &[3],
        vec![amended(3, Some(&[3])), amended(4, Some(&[4]))],
    ));
    assert_eq!(said, [Rejected(4, O::NoEndpoints), Dispatched(3, 3)]);
    let snapshot = bench.engine.snapshot();
    assert_eq!((snapshot.stock, snapshot.draining_stock), (1, 2));
    for id in 1..=2 {
        assert_eq!(bench.complete(id), [Settled(id, 1)]);
    }
    assert!(!bench.engine.has_endpoint(EndpointId(1)) && bench.engine.has_endpoint(EndpointId(3)));
}

#[test]
fn a_model_that_was_asked_for_counts_for_who_shares_and_the_other_for_what_is_learned() {
    let mut policy = policy();
    policy.gate = gate(1, 1);
    policy.per_model = true;
    let mut bench = Bench::new(policy, 1);
    bench.register(1, "f", Band::Default);
    for id in 2..=3 {
        let mut request = request(id, "f", Band::Default);
        request.requested_model = "chat".into();
        request.model = format!("target-{id}").into();
        bench.say(Input::Register(request));
    }
    bench.register(4, "f", Band::Default);
    // Two models, in turns; of one the first that came goes first.
    assert_eq!(bench.complete(1), [Settled(1, 1), Dispatched(2, 1)]);
    assert_eq!(bench.complete(2), [Settled(2, 1), Dispatched(4, 1)]);
    assert_eq!(bench.complete(4), [Settled(4, 1), Dispatched(3, 1)]);
}
