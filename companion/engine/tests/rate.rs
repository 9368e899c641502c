//! `max_rate`: how many may go a second, whatever the stock.

mod support;

use std::time::Duration;

use penstock_engine::input::Band;
use penstock_engine::policy::Gate;
use penstock_engine::{EndpointId, Input, Policy, RequestId};

use Band::Default;
use Said::{Bypassed, Dispatched, Settled};
use support::*;

fn rated(max_rate: f64) -> Policy {
    let mut policy = with_gate(gate(100, 100));
    policy.queue.max_rate = Some(max_rate);
    policy
}

#[test]
fn max_rate_lets_a_second_go_at_once_and_then_opens_by_timer_only() {
    let mut bench = Bench::new(rated(4.0), 1);
    for id in 1..=4 {
        assert_eq!(bench.register(id, "f", Default), [Bypassed(id, 1)]);
    }
    for id in 5..=7 {
        assert_eq!(bench.register(id, "f", Default), []);
    }
    assert_eq!(bench.engine.poll_timeout(), Some(at(0.25)));
    assert_eq!(bench.complete(1), [Settled(1, 1)], "a free place opens nothing");
    bench.now = at(0.25).before(Duration::from_nanos(1));
    assert_eq!(bench.wait(), [], "nor does a timer that comes too early");
    assert_eq!(bench.at(0.25).wait(), [Dispatched(5, 1)]);
    assert_eq!(bench.wait(), [], "the clock stands still");
    assert_eq!(bench.engine.poll_timeout(), Some(at(0.5)));
    // Late, both go; the third token is for a newcomer, which overtakes nobody.
    assert_eq!(bench.at(1.0).wait(), [Dispatched(6, 1), Dispatched(7, 1)]);
    assert_eq!(bench.register(8, "f", Default), [Bypassed(8, 1)]);
    assert_eq!(bench.register(9, "f", Default), []);
    assert_eq!(bench.engine.poll_timeout(), Some(at(1.25)));
    bench.say(Input::Cancel(RequestId(9)));
    assert_eq!(bench.engine.poll_timeout(), None, "nobody waits for a token");
}

#[test]
fn max_rate_asks_for_no_timer_while_something_else_holds() {
    let mut policy = rated(2.0);
    policy.gate = gate(1, 1);
    let mut bench = Bench::new(policy, 1);
    let ttl = Some(at(30.0));
    assert_eq!(bench.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(bench.register(2, "f", Default), []);
    assert_eq!(bench.engine.poll_timeout(), ttl, "the gate holds it");
    assert_eq!(bench.complete(1), [Settled(1, 1), Dispatched(2, 1)]);
    bench.say(Input::Register(only(request(3, "f", Default), &[1])));
    assert_eq!(bench.complete(2), [Settled(2, 1)], "two went in this second");
    assert_eq!(bench.engine.poll_timeout(), Some(at(0.5)));
    bench.endpoint(1, false);
    assert_eq!(
        bench.engine.poll_timeout(),
        Some(at(60.0)),
        "its server isn't ready"
    );
    bench.at(10.0);
    assert_eq!(bench.endpoint(1, true), [Dispatched(3, 1)]);
}

#[test]
fn max_rate_below_one_is_still_one_at_first() {
    let mut bench = Bench::new(rated(0.5), 1);
    assert_eq!(bench.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(bench.register(2, "f", Default), []);
    assert_eq!(bench.at(1.999).wait(), []);
    assert_eq!(bench.at(2.0).wait(), [Dispatched(2, 1)]);
    bench.at(100.0);
    assert_eq!(bench.register(3, "f", Default), [Bypassed(3, 1)]);
    assert_eq!(
        bench.register(4, "f", Default),
        [],
        "an idle pool saves up no more"
    );
}

#[test]
fn max_rate_counts_what_goes_and_not_what_runs_already() {
    let mut bench = Bench::new(rated(1.0), 1);
    for id in 1..=5 {
        bench.say(Input::Adopt {
            request: request(id, "f", Default),
            endpoint: EndpointId(1),
        });
    }
    assert_eq!(bench.register(6, "f", Default), [Bypassed(6, 1)]);
    assert_eq!(bench.register(7, "f", Default), []);
    // Another policy: as much as was there, or all at once.
    assert_eq!(bench.say(Input::Policy(Box::new(rated(2.0)))), []);
    assert_eq!(bench.engine.poll_timeout(), Some(at(0.5)));
    let free = with_gate(gate(100, 100));
    assert_eq!(bench.say(Input::Policy(Box::new(free))), [Dispatched(7, 1)]);
}

#[test]
fn max_rate_in_an_open_gate_holds_as_well() {
    let mut policy = rated(1.0);
    policy.gate = Gate::Open;
    let mut bench = Bench::new(policy, 1);
    assert_eq!(bench.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(bench.register(2, "f", Default), []);
    assert_eq!(bench.at(1.0).wait(), [Dispatched(2, 1)]);
}
