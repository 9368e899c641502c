//! Queue limits: which requests may wait, for how long, and which are displaced. Each test expects exact effects.

use std::time::Duration;

use Band::{Critical, Default, Sheddable};
use Outcome as O;
use ShortEffect::{Bypassed, Cancelled, Rejected, Settled};
use penstock_engine::input::Band;
use penstock_engine::policy::{Admit, Class, ClassSet, Overflow};
use penstock_engine::{Input, Outcome, RequestId};

use crate::support::*;

#[test]
fn ttl_counts_from_the_first_arrival_and_fires_on_time() {
    let mut harness = busy();
    assert_eq!(harness.engine.poll_timeout(), None);
    harness.advance_to(1.0).register(2, "f", Default);
    harness.advance_to(2.0).register(3, "f", Default);
    assert_eq!(harness.engine.poll_timeout(), Some(time(31.0)));
    assert_eq!(harness.advance_to(30.999).handle_timeout(), []);
    assert_eq!(harness.advance_to(31.0).handle_timeout(), [Rejected(2, O::ExpiredTtl)]);
    // Expired requests are rejected before anything else is decided.
    assert_eq!(harness.advance_to(32.0).complete(1), [Rejected(3, O::ExpiredTtl), Settled(1, 1)]);
}

#[test]
fn while_no_endpoint_is_ready_a_request_waits_longer_and_from_its_arrival() {
    let mut harness = busy();
    harness.advance_to(1.0).register(2, "f", Default);
    harness.advance_to(11.0).endpoint(1, false);
    assert_eq!((harness.engine.stock(), harness.engine.snapshot().draining_stock), (0, 1));
    assert_eq!(harness.engine.poll_timeout(), Some(time(61.0)));
    harness.advance_to(21.0).register(3, "f", Default);
    harness.advance_to(22.0).register(4, "f", Default);
    assert_eq!(harness.advance_to(51.5).handle_timeout(), []);
    // Once an endpoint is ready, what is older than 30 s expires at once.
    let expired = [Rejected(2, O::ExpiredTtl), Rejected(3, O::ExpiredTtl)];
    assert_eq!(harness.endpoint(1, true), expired);
    assert_eq!(harness.engine.poll_timeout(), Some(time(52.0)));
    harness.endpoint(1, false);
    assert_eq!(harness.advance_to(81.9).handle_timeout(), []);
    assert_eq!(harness.advance_to(82.0).handle_timeout(), [Rejected(4, O::NoEndpoints)]);
}

#[test]
fn endpoints_that_come_and_go_never_extend_a_wait() {
    let mut harness = busy();
    harness.advance_to(1.0).register(2, "f", Default);
    for second in 2..31 {
        harness.advance_to(f64::from(second)).endpoint(1, second % 2 == 0);
    }
    assert_eq!(harness.advance_to(30.9).handle_timeout(), []);
    assert_eq!(harness.advance_to(31.0).handle_timeout(), [Rejected(2, O::ExpiredTtl)]);
}

#[test]
fn a_shorter_no_endpoint_ttl_ends_no_wait_early() {
    let mut harness = busy_with(|policy| policy.queue.no_endpoint_ttl = Duration::from_secs(5));
    harness.advance_to(1.0).register(2, "f", Default);
    harness.advance_to(2.0).endpoint(1, false);
    assert_eq!(harness.advance_to(30.9).handle_timeout(), []);
    assert_eq!(harness.advance_to(31.0).handle_timeout(), [Rejected(2, O::NoEndpoints)]);
}

#[test]
fn another_engine_lets_a_request_wait_no_longer() {
    // Taken over with its age, before the first health check passes and after it.
    let mut first = busy();
    first.advance_to(1.0).register(2, "f", Default);
    first.advance_to(2.0).endpoint(1, false);
    let mut second = Harness::new(policy(), 0);
    second.advance_to(40.0);
    let mut resumed = request(2, "f", Default);
    resumed.arrived = time(1.0);
    assert_eq!(second.handle(Input::Resume(resumed.clone())), []);
    assert_eq!(second.engine.poll_timeout(), first.engine.poll_timeout());
    assert_eq!(second.engine.poll_timeout(), Some(time(61.0)));
    assert_eq!(second.endpoint(1, true), [Rejected(2, O::ExpiredTtl)]);
    resumed.id = RequestId(3);
    assert_eq!(second.handle(Input::Resume(resumed)), [Rejected(3, O::ExpiredTtl)]);
}

#[test]
fn a_request_that_comes_back_waits_from_its_first_arrival() {
    let mut harness = busy();
    assert_eq!(harness.advance_to(29.0).handle(Input::Retry(RequestId(1))), []);
    harness.endpoint(1, false);
    assert_eq!(harness.advance_to(39.0).handle_timeout(), []);
    assert_eq!(harness.engine.poll_timeout(), Some(time(60.0)));
    assert_eq!(harness.advance_to(40.0).endpoint(1, true), [Rejected(1, O::ExpiredTtl)]);
}

#[test]
fn a_request_expires_at_its_deadline() {
    let mut harness = busy();
    let mut request = request(2, "f", Default);
    request.deadline = Some(time(0.5));
    assert_eq!(harness.handle(Input::Register(request.clone())), []);
    assert_eq!(harness.engine.poll_timeout(), Some(time(0.5)));
    assert_eq!(harness.advance_to(0.5).handle_timeout(), [Rejected(2, O::DeadlineExceeded)]);
    request.id = RequestId(3);
    assert_eq!(harness.handle(Input::Register(request)), [Rejected(3, O::DeadlineExceeded)]);
}

#[test]
fn a_full_flow_is_reported_before_a_full_queue() {
    let mut harness = busy();
    let mut policy = policy();
    policy.gate = gate(1, 1);
    policy.queue.flow_capacity = 2;
    policy.queue.total_capacity = 3;
    policy.flows.capacities.insert("wide".into(), 3);
    harness.handle(Input::Policy(Box::new(policy)));
    harness.register(2, "f", Default);
    harness.register(3, "f", Default);
    assert_eq!(harness.register(4, "f", Default), [Rejected(4, O::RejectedFlowCapacity)]);
    // The same flow has a separate capacity in another band.
    harness.register(5, "f", Critical);
    assert_eq!(harness.register(6, "f", Default), [Rejected(6, O::RejectedFlowCapacity)]);
    assert_eq!(harness.register(7, "wide", Default), [Rejected(7, O::RejectedTooManyFlows)]);
    harness.handle(Input::Cancel(RequestId(3)));
    harness.register(8, "wide", Default);
    assert_eq!(harness.register(9, "wide", Default), [Rejected(9, O::RejectedQueueFull)]);
    assert_eq!(harness.engine.snapshot().counters.outcome(O::RejectedFlowCapacity), 2);
}

#[test]
fn displacement_takes_the_lowest_band_then_the_least_recently_preempted_flow_then_its_youngest() {
    let mut harness = busy();
    let mut policy = policy();
    policy.gate = gate(1, 1);
    policy.queue.total_capacity = 5;
    harness.handle(Input::Policy(Box::new(policy.clone())));
    harness.register(10, "a", Sheddable);
    harness.register(11, "a", Sheddable);
    harness.register(20, "b", Sheddable);
    harness.register(21, "b", Sheddable);
    harness.register(30, "c", Default);
    assert_eq!(harness.register(40, "d", Critical), [Rejected(11, O::Displaced)]);
    assert_eq!(harness.register(41, "d", Default), [Rejected(21, O::Displaced)]);
    assert_eq!(harness.register(42, "d", Default), [Rejected(10, O::Displaced)]);
    assert_eq!(harness.register(43, "e", Sheddable), [Rejected(43, O::RejectedTooManyFlows)]);
    assert_eq!(harness.register(44, "b", Sheddable), [Rejected(44, O::RejectedQueueFull)]);
    assert_eq!(harness.register(45, "d", Critical), [Rejected(20, O::Displaced)]);
    assert_eq!(harness.register(46, "d", Critical), [Rejected(30, O::Displaced)]);
    policy.queue.overflow = Overflow::Reject;
    harness.handle(Input::Policy(Box::new(policy)));
    assert_eq!(harness.register(47, "d", Critical), [Rejected(47, O::RejectedQueueFull)]);
}

#[test]
fn a_flow_that_empties_keeps_its_turn_of_displacement() {
    let mut harness = busy_with(|policy| policy.queue.total_capacity = 4);
    for (id, flow) in [(20, "b"), (21, "b"), (10, "a"), (40, "c")] {
        let band = if flow == "c" { Default } else { Sheddable };
        assert_eq!(harness.register(id, flow, band), []);
    }
    assert_eq!(harness.register(50, "d", Critical), [Rejected(21, O::Displaced)]);
    assert_eq!(harness.register(51, "d", Critical), [Rejected(10, O::Displaced)]);
    // Nothing of a waits or runs. It comes back, and was displaced later than b.
    assert_eq!(harness.handle(Input::Cancel(RequestId(51))), [Cancelled(51)]);
    assert_eq!(harness.register(11, "a", Sheddable), []);
    assert_eq!(harness.register(52, "d", Critical), [Rejected(20, O::Displaced)]);
    // A flow that was never displaced comes first.
    assert_eq!(harness.handle(Input::Cancel(RequestId(52))), [Cancelled(52)]);
    assert_eq!(harness.register(60, "e", Sheddable), []);
    assert_eq!(harness.register(53, "d", Critical), [Rejected(60, O::Displaced)]);
}

#[test]
fn bytes_are_a_limit_and_no_request_is_displaced_in_vain() {
    let mut harness = busy();
    let mut policy = policy();
    policy.gate = gate(1, 1);
    policy.queue.total_bytes = 3_000;
    harness.handle(Input::Policy(Box::new(policy)));
    harness.register(2, "a", Sheddable);
    harness.register(3, "a", Sheddable);
    harness.register(4, "a", Default);
    let mut large = request(5, "b", Default);
    large.body_bytes = 2_001;
    assert_eq!(harness.handle(Input::Register(large.clone())), [Rejected(5, O::RejectedTooManyFlows)]);
    large.id = RequestId(6);
    large.body_bytes = 2_000;
    let both = [Rejected(3, O::Displaced), Rejected(2, O::Displaced)];
    assert_eq!(harness.handle(Input::Register(large)), both);
    assert_eq!(harness.engine.snapshot().waiting_bytes, 3_000);
}

#[test]
fn a_newcomer_displaces_what_it_needs_and_not_what_a_lowered_limit_has_left_over() {
    let mut harness = busy();
    for id in 10..20 {
        harness.register(id, "a", Sheddable);
    }
    let mut policy = policy();
    policy.gate = gate(1, 1);
    policy.queue.total_capacity = 3;
    assert_eq!(harness.handle(Input::Policy(Box::new(policy.clone()))), []);
    assert_eq!(harness.register(20, "b", Sheddable), [Rejected(20, O::RejectedTooManyFlows)]);
    assert_eq!(harness.register(21, "b", Critical), [Rejected(19, O::Displaced)]);
    assert_eq!(harness.register(22, "b", Critical), [Rejected(18, O::Displaced)]);

    policy.queue.total_capacity = 1_000;
    policy.queue.total_bytes = 3_000;
    assert_eq!(harness.handle(Input::Policy(Box::new(policy))), []);
    let mut large = request(23, "b", Critical);
    large.body_bytes = 1_500;
    let two = [Rejected(17, O::Displaced), Rejected(16, O::Displaced)];
    assert_eq!(harness.handle(Input::Register(large)), two);
    assert_eq!(harness.engine.snapshot().waiting, 9);
}

/// The limits of flows and classes refuse newcomers only.
#[test]
fn lowered_limits_of_flows_and_classes_reject_no_request_that_waits() {
    let mut harness = busy();
    for id in 10..15 {
        harness.register(id, "a", Sheddable);
    }
    let mut policy = policy();
    policy.gate = gate(1, 1);
    policy.queue.flow_capacity = 1;
    assert_eq!(harness.handle(Input::Policy(Box::new(policy.clone()))), []);
    assert_eq!(harness.register(20, "a", Sheddable), [Rejected(20, O::RejectedFlowCapacity)]);
    assert_eq!(harness.register(21, "b", Critical), []);

    policy.classes = vec![ClassSet {
        classes: vec![Class { requests_per_endpoint: Some(1), ..Class::new("only", 100) }],
        ..ClassSet::default()
    }];
    assert_eq!(harness.handle(Input::Policy(Box::new(policy.clone()))), []);
    assert_eq!(harness.register(22, "c", Critical), [Rejected(22, O::RejectedClassCapacity)]);
    policy.queue.total_capacity = 0;
    assert_eq!(harness.handle(Input::Policy(Box::new(policy))), []);
    assert_eq!(harness.register(23, "c", Critical), [Rejected(23, O::RejectedPolicy)]);
    assert_eq!(harness.engine.snapshot().waiting, 6);
}

#[test]
fn requests_that_may_not_wait_are_rejected() {
    let mut harness = busy();
    let mut critical_only = policy();
    critical_only.gate = gate(1, 1);
    critical_only.queue.admit = Admit::CriticalOnly;
    let mut disabled = critical_only.clone();
    disabled.queue.enabled = false;
    let mut none = critical_only.clone();
    none.queue.total_capacity = 0;
    harness.handle(Input::Policy(Box::new(critical_only)));
    assert_eq!(harness.register(2, "f", Default), [Rejected(2, O::RejectedPolicy)]);
    assert_eq!(harness.register(3, "f", Critical), []);
    harness.handle(Input::Cancel(RequestId(3)));
    harness.handle(Input::Policy(Box::new(disabled)));
    assert_eq!(harness.register(4, "f", Critical), [Rejected(4, O::RejectedPolicy)]);
    harness.handle(Input::Policy(Box::new(none)));
    assert_eq!(harness.register(5, "f", Critical), [Rejected(5, O::RejectedPolicy)]);
    assert_eq!(harness.complete(1), [Settled(1, 1)]);
    assert_eq!(harness.register(6, "f", Default), [Bypassed(6, 1)]);
}

#[test]
fn a_cancel_removes_a_waiting_request_and_ignores_a_running_one() {
    let mut harness = busy();
    harness.register(2, "f", Default);
    assert_eq!(harness.handle(Input::Cancel(RequestId(2))), [Cancelled(2)]);
    assert_eq!(harness.handle(Input::Cancel(RequestId(2))), []);
    assert_eq!(harness.handle(Input::Cancel(RequestId(1))), []);
    assert_eq!(harness.handle(Input::Cancel(RequestId(99))), []);
    assert_eq!((harness.engine.stock(), harness.engine.waiting()), (1, 0));
}
