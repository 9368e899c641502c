//! Requests that an endpoint failed or refused before a response: where they go next, and when.

use std::time::Duration;

use penstock_engine::input::Band::Default;
use penstock_engine::queue_position::BlockReason;
use penstock_engine::{EndpointId, Input, Outcome, Policy, RequestId};

use crate::support::ShortEffect::*;
use crate::support::{Harness, ShortEffect, gate, policy, request, restricted, with_gate};

/// The endpoint where request `id` runs fails it.
fn fail(harness: &mut Harness, id: u64) -> Vec<ShortEffect> {
    let endpoint = harness.engine.endpoint_of(RequestId(id)).expect("it runs");
    let mut effects = harness.handle(Input::Failed { id: RequestId(id), endpoint });
    effects.extend(harness.handle(Input::Retry(RequestId(id))));
    effects
}

/// The endpoint where request `id` runs refuses it.
fn refuse(harness: &mut Harness, id: u64) -> Vec<ShortEffect> {
    refuse_for(harness, id, 0)
}

/// The endpoint where request `id` runs refuses it, and asks for a pause.
fn refuse_for(harness: &mut Harness, id: u64, milliseconds: u64) -> Vec<ShortEffect> {
    let endpoint = harness.engine.endpoint_of(RequestId(id)).expect("it runs");
    let mut effects = harness.handle(Input::PushedBack { id: RequestId(id), endpoint });
    effects.extend(
        harness
            .handle(Input::Refused { id: RequestId(id), retry_after: Duration::from_millis(milliseconds) }),
    );
    effects
}

/// The bound of an endpoint, and the bound that its refusals set.
fn bounds(harness: &Harness, endpoint: usize) -> (u64, Option<u64>) {
    let endpoint = harness.engine.snapshot().endpoints[endpoint - 1];
    (endpoint.bound, endpoint.pushback)
}

fn pinned(harness: &mut Harness, id: u64, flow: &str, endpoint: u32) -> Vec<ShortEffect> {
    harness.handle(Input::Register(restricted(request(id, flow, Default), &[endpoint])))
}

/// The time of the next timer, in milliseconds.
fn timer(harness: &Harness) -> Option<u64> {
    let due = harness.engine.poll_timeout()?;
    Some(due.as_nanos() / 1_000_000)
}

fn one_each() -> Policy {
    with_gate(gate(1, 1))
}

#[test]
fn failed_request_goes_to_another_endpoint_at_once() {
    let mut harness = Harness::new(policy(), 5);
    let granted = harness.register(1, "f", Default);
    let [Bypassed(1, first)] = granted[..] else { panic!("{granted:?}") };
    let mut tried = vec![first];
    for _ in 1..5 {
        let granted = fail(&mut harness, 1);
        let [Dispatched(1, next)] = granted[..] else { panic!("{granted:?}") };
        assert!(!tried.contains(&next), "{next} after {tried:?}");
        tried.push(next);
    }
    assert_eq!(fail(&mut harness, 1), [], "all have failed it");
}

#[test]
fn failed_request_waits_in_its_place_for_a_busy_endpoint() {
    let mut harness = Harness::new(one_each(), 2);
    pinned(&mut harness, 1, "f", 1);
    let granted = harness.register(2, "f", Default);
    assert_eq!(granted, [Bypassed(2, 2)]);
    assert_eq!(harness.register(3, "f", Default), []);
    assert_eq!(fail(&mut harness, 2), [], "not on 2 again, and 1 is full");
    let completed = harness.complete(1);
    assert!(completed.contains(&Dispatched(2, 1)), "{completed:?}");
    assert!(
        completed.contains(&Dispatched(3, 2)),
        "the request behind it may use the endpoint: {completed:?}"
    );
}

#[test]
fn pause_at_a_lone_endpoint_grows_from_100_ms_to_1_s() {
    let mut harness = Harness::new(one_each(), 1);
    harness.register(1, "f", Default);
    let mut now = 0;
    for pause in [100, 200, 400, 800, 1_000, 1_000] {
        assert_eq!(fail(&mut harness, 1), []);
        now += pause;
        assert_eq!(timer(&harness), Some(now));
        harness.advance_to((now - 1) as f64 / 1e3);
        assert_eq!(harness.handle_timeout(), []);
        harness.advance_to(now as f64 / 1e3);
        assert_eq!(harness.handle_timeout(), [Dispatched(1, 1)], "after {pause} ms");
    }
    assert_eq!(harness.complete(1), [Settled(1, 1)]);
}

#[test]
fn requests_keep_their_order_while_a_lone_endpoint_fails_them_all() {
    let mut harness = Harness::new(with_gate(gate(2, 2)), 1);
    for id in 1..=4 {
        harness.register(id, "f", Default);
    }
    // The first failure may be the fault of the request, so another one is tried. The second failure is the endpoint's.
    assert_eq!(fail(&mut harness, 1), [Dispatched(3, 1)]);
    assert_eq!(fail(&mut harness, 2), [], "the requests behind it wait with it");
    assert_eq!(fail(&mut harness, 3), []);
    let due = timer(&harness).expect("a pause ends");
    assert_eq!(due, 100);
    harness.advance_to(0.1);
    assert_eq!(harness.handle_timeout(), [Dispatched(1, 1), Dispatched(2, 1)]);
    assert_eq!(fail(&mut harness, 1), []);
    assert_eq!(fail(&mut harness, 2), []);
    // The endpoint recovers.
    harness.advance_to(0.3);
    assert_eq!(harness.handle_timeout(), [Dispatched(1, 1), Dispatched(2, 1)]);
    assert!(harness.complete(1).contains(&Dispatched(3, 1)));
    assert!(harness.complete(2).contains(&Dispatched(4, 1)));
}

#[test]
fn request_that_alone_fails_does_not_hold_up_its_flow() {
    let mut harness = Harness::new(one_each(), 1);
    harness.register(1, "f", Default);
    harness.register(2, "f", Default);
    let mut now = 0.0;
    let mut next = 2;
    for pause in [0.1, 0.2, 0.4, 0.8, 1.0] {
        assert_eq!(fail(&mut harness, 1), [Dispatched(next, 1)]);
        next += 1;
        harness.register(next, "f", Default);
        now += pause;
        harness.advance_to(now);
        assert_eq!(harness.handle_timeout(), []);
        let completed = harness.complete(next - 1);
        assert!(completed.contains(&Dispatched(1, 1)), "its old place: {completed:?}");
    }
}

#[test]
fn other_flows_pass_a_request_that_pauses() {
    let mut harness = Harness::new(one_each(), 1);
    harness.register(1, "f", Default);
    assert_eq!(fail(&mut harness, 1), []);
    assert_eq!(harness.register(2, "g", Default), [Bypassed(2, 1)]);
    assert_eq!(fail(&mut harness, 2), []);
    assert_eq!(harness.register(3, "g", Default), []);
    assert_eq!(harness.register(4, "h", Default), [Bypassed(4, 1)]);
}

#[test]
fn ttl_ends_the_pause() {
    let mut policy = one_each();
    policy.queue.ttl = Duration::from_millis(250);
    let mut harness = Harness::new(policy, 1);
    harness.register(1, "f", Default);
    fail(&mut harness, 1);
    harness.advance_to(0.1);
    assert_eq!(harness.handle_timeout(), [Dispatched(1, 1)]);
    fail(&mut harness, 1);
    harness.advance_to(0.25);
    assert_eq!(harness.handle_timeout(), [Rejected(1, Outcome::ExpiredTtl)]);
    assert_eq!(harness.engine.poll_timeout(), None);
}

#[test]
fn pause_survives_other_endpoints_policies_and_a_lost_session() {
    let mut harness = Harness::new(one_each(), 1);
    harness.register(1, "f", Default);
    harness.register(2, "g", Default);
    assert_eq!(fail(&mut harness, 1), [Dispatched(2, 1)]);
    assert_eq!(fail(&mut harness, 2), []);
    harness.handle(Input::Policy(Box::new(one_each())));
    harness.handle(Input::Suspend(RequestId(1)));
    harness.advance_to(0.1);
    assert_eq!(harness.handle_timeout(), [Dispatched(2, 1)], "1 is suspended");
    assert_eq!(harness.handle(Input::Continue(RequestId(1))), []);
    assert_eq!(fail(&mut harness, 2), [Dispatched(1, 1)]);
    assert_eq!(fail(&mut harness, 1), []);
    assert_eq!(
        harness.engine.block_reason(RequestId(1)),
        Some(BlockReason::Pause { left: Duration::from_millis(200) })
    );
    assert_eq!(harness.endpoint(2, true), [Dispatched(1, 2)]);
    assert_eq!(harness.handle(Input::Cancel(RequestId(2))), [Cancelled(2)]);
    assert_eq!(harness.complete(1), [Settled(1, 1)]);
}

#[test]
fn lost_grant_is_no_failure() {
    let mut harness = Harness::new(one_each(), 1);
    harness.register(1, "f", Default);
    assert_eq!(harness.handle(Input::Requeue(RequestId(1))), [Dispatched(1, 1)]);
}

#[test]
fn endpoint_that_failed_a_request_serves_requests_that_are_pinned_to_it() {
    let mut harness = Harness::new(policy(), 2);
    pinned(&mut harness, 1, "f", 1);
    assert_eq!(fail(&mut harness, 1), [], "its only endpoint");
    harness.advance_to(0.1);
    assert_eq!(harness.handle_timeout(), [Dispatched(1, 1)]);
    assert_eq!(harness.engine.endpoint_of(RequestId(1)), Some(EndpointId(1)));
}

#[test]
fn refused_request_goes_elsewhere_and_the_bound_falls_and_rises() {
    let mut harness = Harness::new(with_gate(gate(4, 4)), 2);
    for id in 1..=3 {
        pinned(&mut harness, id, "f", 1);
    }
    assert_eq!(refuse(&mut harness, 3), [], "it may only go to 1");
    assert_eq!(bounds(&harness, 1), (2, Some(2)));
    harness.handle(Input::Cancel(RequestId(3)));
    for id in 4..=7 {
        assert_eq!(harness.register(id, "g", Default), [Bypassed(id, 2)], "1 is full");
    }
    assert_eq!(harness.register(8, "g", Default), []);
    let completed = harness.complete(1);
    assert!(completed.contains(&Dispatched(8, 1)), "{completed:?}");
    assert_eq!(bounds(&harness, 1), (3, Some(3)));
    harness.complete(2);
    assert_eq!(bounds(&harness, 1), (4, None), "the configured bound holds again");
    for endpoint in [1, 2] {
        assert!(harness.engine.is_ready(EndpointId(endpoint)), "nothing was marked down");
    }
}

#[test]
fn refusals_mark_no_endpoint_down() {
    let mut harness = Harness::new(with_gate(gate(2, 2)), 2);
    for id in 1..=10 {
        pinned(&mut harness, id, "f", 1);
        let now = id as f64 / 10.0;
        harness.advance_to(now);
        harness.handle_timeout();
        if harness.engine.endpoint_of(RequestId(id)).is_some() {
            refuse(&mut harness, id);
        }
        harness.handle(Input::Cancel(RequestId(id)));
        assert!(harness.engine.is_ready(EndpointId(1)), "{id}");
    }
}

#[test]
fn requests_keep_their_order_while_a_lone_endpoint_refuses_what_exceeds_its_own_limit() {
    // The server takes two requests, the gate allows four.
    let mut harness = Harness::new(with_gate(gate(4, 4)), 1);
    for id in 1..=8 {
        harness.register(id, "f", Default);
    }
    assert_eq!(refuse(&mut harness, 3), []);
    assert_eq!(refuse(&mut harness, 4), []);
    assert_eq!(bounds(&harness, 1), (2, Some(2)));
    // Each completion makes room for the first that was refused, and tries one more.
    for id in 1..=4 {
        let completed = harness.complete(id);
        let dispatched: Vec<_> = completed.iter().filter(|effect| matches!(effect, Dispatched(..))).collect();
        let (first, second) = (Dispatched(id + 2, 1), Dispatched(id + 3, 1));
        assert_eq!(dispatched, [&first, &second], "after {id}");
        assert_eq!(refuse(&mut harness, id + 3), []);
        assert_eq!(bounds(&harness, 1), (2, Some(2)));
    }
}

#[test]
fn idle_endpoint_that_refuses_is_tried_again_after_growing_pauses() {
    let mut harness = Harness::new(with_gate(gate(4, 4)), 1);
    harness.register(1, "f", Default);
    let mut now = 0;
    for pause in [100, 200, 400, 800, 1_000, 1_000] {
        assert_eq!(refuse(&mut harness, 1), []);
        assert_eq!(bounds(&harness, 1), (1, Some(1)));
        now += pause;
        assert_eq!(timer(&harness), Some(now));
        harness.advance_to(now as f64 / 1e3);
        assert_eq!(harness.handle_timeout(), [Dispatched(1, 1)], "after {pause} ms");
    }
    assert_eq!(harness.complete(1), [Settled(1, 1)]);
    assert_eq!(bounds(&harness, 1), (2, Some(2)));
}

#[test]
fn pause_of_a_refused_request_is_as_long_as_the_server_asks_and_at_most_1_s() {
    for (asked, pause) in [(0, 100), (700, 700), (60_000, 1_000)] {
        let mut harness = Harness::new(one_each(), 1);
        harness.register(1, "f", Default);
        assert_eq!(refuse_for(&mut harness, 1, asked), []);
        assert_eq!(timer(&harness), Some(pause), "{asked} ms");
    }
}

#[test]
fn requests_behind_a_refused_one_wait_with_it() {
    let mut harness = Harness::new(with_gate(gate(2, 2)), 1);
    for id in 1..=4 {
        harness.register(id, "f", Default);
    }
    assert_eq!(refuse(&mut harness, 1), [], "one place, which 2 has");
    assert_eq!(refuse(&mut harness, 2), [], "two refusals in a row are no fault of the requests");
    harness.advance_to(0.1);
    assert_eq!(harness.handle_timeout(), [Dispatched(1, 1)]);
}

#[test]
fn ttl_ends_the_wait_for_an_endpoint_that_refuses() {
    let mut policy = one_each();
    policy.queue.ttl = Duration::from_millis(250);
    let mut harness = Harness::new(policy, 1);
    harness.register(1, "f", Default);
    refuse(&mut harness, 1);
    harness.advance_to(0.1);
    assert_eq!(harness.handle_timeout(), [Dispatched(1, 1)]);
    refuse(&mut harness, 1);
    harness.advance_to(0.25);
    assert_eq!(harness.handle_timeout(), [Rejected(1, Outcome::ExpiredTtl)]);
    assert_eq!(harness.engine.poll_timeout(), None);
}

#[test]
fn pushback_needs_no_request_of_this_engine() {
    let mut harness = Harness::new(with_gate(gate(4, 4)), 1);
    for id in 1..=2 {
        harness.register(id, "f", Default);
    }
    harness.handle(Input::PushedBack { id: RequestId(99), endpoint: EndpointId(1) });
    assert_eq!(bounds(&harness, 1), (2, Some(2)));
    harness.handle(Input::PushedBack { id: RequestId(99), endpoint: EndpointId(7) });
}
