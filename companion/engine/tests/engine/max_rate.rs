//! `max_rate`: the number of requests granted a second, independent of the stock.

use std::time::Duration;

use Band::Default;
use ShortEffect::{Bypassed, Dispatched, Settled};
use penstock_engine::input::Band;
use penstock_engine::policy::Gate;
use penstock_engine::{EndpointId, Input, Policy, RequestId};

use crate::support::*;

fn rated(max_rate: f64) -> Policy {
    let mut policy = with_gate(gate(100, 100));
    policy.queue.max_rate = Some(max_rate);
    policy
}

#[test]
fn max_rate_allows_a_burst_of_one_second_and_then_opens_by_timer_only() {
    let mut harness = Harness::new(rated(4.0), 1);
    for id in 1..=4 {
        assert_eq!(harness.register(id, "f", Default), [Bypassed(id, 1)]);
    }
    for id in 5..=7 {
        assert_eq!(harness.register(id, "f", Default), []);
    }
    assert_eq!(harness.engine.poll_timeout(), Some(time(0.25)));
    assert_eq!(harness.complete(1), [Settled(1, 1)], "a free place gives no token");
    harness.now = time(0.25).before(Duration::from_nanos(1));
    assert_eq!(harness.handle_timeout(), [], "an early timer gives no token either");
    assert_eq!(harness.advance_to(0.25).handle_timeout(), [Dispatched(5, 1)]);
    assert_eq!(harness.handle_timeout(), [], "no time has passed");
    assert_eq!(harness.engine.poll_timeout(), Some(time(0.5)));
    // A late timer grants both; the third token serves a new request, which overtakes none.
    assert_eq!(harness.advance_to(1.0).handle_timeout(), [Dispatched(6, 1), Dispatched(7, 1)]);
    assert_eq!(harness.register(8, "f", Default), [Bypassed(8, 1)]);
    assert_eq!(harness.register(9, "f", Default), []);
    assert_eq!(harness.engine.poll_timeout(), Some(time(1.25)));
    harness.handle(Input::Cancel(RequestId(9)));
    assert_eq!(harness.engine.poll_timeout(), None, "no request waits for a token");
}

#[test]
fn max_rate_sets_no_timer_while_another_limit_blocks() {
    let mut policy = rated(2.0);
    policy.gate = gate(1, 1);
    let mut harness = Harness::new(policy, 1);
    let ttl = Some(time(30.0));
    assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "f", Default), []);
    assert_eq!(harness.engine.poll_timeout(), ttl, "the gate blocks request 2");
    assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(2, 1)]);
    harness.handle(Input::Register(restricted(request(3, "f", Default), &[1])));
    assert_eq!(harness.complete(2), [Settled(2, 1)], "two were granted in this second");
    assert_eq!(harness.engine.poll_timeout(), Some(time(0.5)));
    harness.endpoint(1, false);
    assert_eq!(harness.engine.poll_timeout(), Some(time(60.0)), "its endpoint isn't ready");
    harness.advance_to(10.0);
    assert_eq!(harness.endpoint(1, true), [Dispatched(3, 1)]);
}

#[test]
fn max_rate_below_one_still_allows_one_request_at_first() {
    let mut harness = Harness::new(rated(0.5), 1);
    assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "f", Default), []);
    assert_eq!(harness.advance_to(1.999).handle_timeout(), []);
    assert_eq!(harness.advance_to(2.0).handle_timeout(), [Dispatched(2, 1)]);
    harness.advance_to(100.0);
    assert_eq!(harness.register(3, "f", Default), [Bypassed(3, 1)]);
    assert_eq!(harness.register(4, "f", Default), [], "an idle pool saves up no more than one token");
}

#[test]
fn max_rate_counts_grants_and_not_adopted_requests() {
    let mut harness = Harness::new(rated(1.0), 1);
    for id in 1..=5 {
        harness.handle(Input::Adopt { request: request(id, "f", Default), endpoint: EndpointId(1) });
    }
    assert_eq!(harness.register(6, "f", Default), [Bypassed(6, 1)]);
    assert_eq!(harness.register(7, "f", Default), []);
    // A changed rate keeps the tokens; without a rate all waiting requests go.
    assert_eq!(harness.handle(Input::Policy(Box::new(rated(2.0)))), []);
    assert_eq!(harness.engine.poll_timeout(), Some(time(0.5)));
    let free = with_gate(gate(100, 100));
    assert_eq!(harness.handle(Input::Policy(Box::new(free))), [Dispatched(7, 1)]);
}

#[test]
fn max_rate_also_limits_under_an_open_gate() {
    let mut policy = rated(1.0);
    policy.gate = Gate::Open;
    let mut harness = Harness::new(policy, 1);
    assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "f", Default), []);
    assert_eq!(harness.advance_to(1.0).handle_timeout(), [Dispatched(2, 1)]);
}
