//! Who may wait, for how long, and who has to leave: given this input at this time, these effects and nothing more.

mod support;

use penstock_engine::input::Band;
use penstock_engine::policy::{Admit, Overflow};
use penstock_engine::{Input, Outcome, RequestId};

use Band::{Critical, Default, Sheddable};
use Outcome as O;
use Said::{Bypassed, Cancelled, Rejected, Settled};
use support::*;

#[test]
fn ttl_counts_from_the_first_arrival_and_fires_on_time() {
    let mut bench = busy();
    assert_eq!(bench.engine.poll_timeout(), None);
    bench.at(1.0).register(2, "f", Default);
    bench.at(2.0).register(3, "f", Default);
    assert_eq!(bench.engine.poll_timeout(), Some(at(31.0)));
    assert_eq!(bench.at(30.999).wait(), []);
    assert_eq!(bench.at(31.0).wait(), [Rejected(2, O::ExpiredTtl)]);
    // What is due is refused before anything else is decided.
    assert_eq!(
        bench.at(32.0).complete(1),
        [Rejected(3, O::ExpiredTtl), Settled(1, 1)]
    );
}

#[test]
fn ttl_stands_still_while_no_endpoint_is_ready() {
    let mut bench = busy();
    bench.at(1.0).register(2, "f", Default);
    bench.at(11.0).endpoint(1, false);
    assert_eq!(
        (bench.engine.stock(), bench.engine.snapshot().draining_stock),
        (0, 1)
    );
    // 60 s from the outage's start for who was here, from its arrival for who comes later.
    assert_eq!(bench.engine.poll_timeout(), Some(at(71.0)));
    bench.at(21.0).register(3, "f", Default);
    bench.at(31.0).endpoint(1, true);
    // 2 has waited 10 of its 30 s; 3 none.
    assert_eq!(bench.engine.poll_timeout(), Some(at(51.0)));
    assert_eq!(bench.at(51.0).wait(), [Rejected(2, O::ExpiredTtl)]);
    bench.at(52.0).endpoint(1, false);
    assert_eq!(bench.at(111.9).wait(), []);
    assert_eq!(bench.at(112.0).wait(), [Rejected(3, O::NoEndpoints)]);
}

#[test]
fn a_deadline_is_the_clients_own() {
    let mut bench = busy();
    let mut request = request(2, "f", Default);
    request.deadline = Some(at(0.5));
    assert_eq!(bench.say(Input::Register(request.clone())), []);
    assert_eq!(bench.engine.poll_timeout(), Some(at(0.5)));
    assert_eq!(bench.at(0.5).wait(), [Rejected(2, O::DeadlineExceeded)]);
    request.id = RequestId(3);
    assert_eq!(
        bench.say(Input::Register(request)),
        [Rejected(3, O::DeadlineExceeded)]
    );
}

#[test]
fn a_full_flow_is_told_before_a_full_queue() {
    let mut bench = busy();
    let mut policy = policy();
    policy.gate = gate(1, 1);
    policy.queue.flow_capacity = 2;
    policy.queue.total_capacity = 3;
    policy.flows.capacities.insert("wide".into(), 3);
    bench.say(Input::Policy(Box::new(policy)));
    bench.register(2, "f", Default);
    bench.register(3, "f", Default);
    assert_eq!(
        bench.register(4, "f", Default),
        [Rejected(4, O::RejectedFlowCapacity)]
    );
    // Another band of the same flow has room of its own.
    bench.register(5, "f", Critical);
    assert_eq!(
        bench.register(6, "f", Default),
        [Rejected(6, O::RejectedFlowCapacity)]
    );
    assert_eq!(
        bench.register(7, "wide", Default),
        [Rejected(7, O::RejectedTooManyFlows)]
    );
    bench.say(Input::Cancel(RequestId(3)));
    bench.register(8, "wide", Default);
    assert_eq!(
        bench.register(9, "wide", Default),
        [Rejected(9, O::RejectedQueueFull)]
    );
    assert_eq!(
        bench.engine.snapshot().counters.outcome(O::RejectedFlowCapacity),
        2
    );
}

#[test]
fn the_least_critical_is_displaced_from_the_least_recently_preempted_flow_its_youngest_first() {
    let mut bench = busy();
    let mut policy = policy();
    policy.gate = gate(1, 1);
    policy.queue.total_capacity = 5;
    bench.say(Input::Policy(Box::new(policy.clone())));
    bench.register(10, "a", Sheddable);
    bench.register(11, "a", Sheddable);
    bench.register(20, "b", Sheddable);
    bench.register(21, "b", Sheddable);
    bench.register(30, "c", Default);
    assert_eq!(bench.register(40, "d", Critical), [Rejected(11, O::Displaced)]);
    assert_eq!(bench.register(41, "d", Default), [Rejected(21, O::Displaced)]);
    assert_eq!(bench.register(42, "d", Default), [Rejected(10, O::Displaced)]);
    assert_eq!(
        bench.register(43, "e", Sheddable),
        [Rejected(43, O::RejectedTooManyFlows)]
    );
    assert_eq!(
        bench.register(44, "b", Sheddable),
        [Rejected(44, O::RejectedQueueFull)]
    );
    assert_eq!(bench.register(45, "d", Critical), [Rejected(20, O::Displaced)]);
    assert_eq!(bench.register(46, "d", Critical), [Rejected(30, O::Displaced)]);
    policy.queue.overflow = Overflow::Reject;
    bench.say(Input::Policy(Box::new(policy)));
    assert_eq!(
        bench.register(47, "d", Critical),
        [Rejected(47, O::RejectedQueueFull)]
    );
}

#[test]
fn bytes_are_a_limit_too_and_nobody_is_displaced_for_nothing() {
    let mut bench = busy();
    let mut policy = policy();
    policy.gate = gate(1, 1);
    policy.queue.total_bytes = 3_000;
    bench.say(Input::Policy(Box::new(policy)));
    bench.register(2, "a", Sheddable);
    bench.register(3, "a", Sheddable);
    bench.register(4, "a", Default);
    let mut large = request(5, "b", Default);
    large.body_bytes = 2_001;
    assert_eq!(
        bench.say(Input::Register(large.clone())),
        [Rejected(5, O::RejectedTooManyFlows)]
    );
    large.id = RequestId(6);
    large.body_bytes = 2_000;
    let both = [Rejected(3, O::Displaced), Rejected(2, O::Displaced)];
    assert_eq!(bench.say(Input::Register(large)), both);
    assert_eq!(bench.engine.snapshot().waiting_bytes, 3_000);
}

#[test]
fn who_may_not_wait_is_refused() {
    let mut bench = busy();
    let mut critical_only = policy();
    critical_only.gate = gate(1, 1);
    critical_only.queue.admit = Admit::CriticalOnly;
    let mut disabled = critical_only.clone();
    disabled.queue.enabled = false;
    let mut none = critical_only.clone();
    none.queue.total_capacity = 0;
    bench.say(Input::Policy(Box::new(critical_only)));
    assert_eq!(bench.register(2, "f", Default), [Rejected(2, O::RejectedPolicy)]);
    assert_eq!(bench.register(3, "f", Critical), []);
    bench.say(Input::Cancel(RequestId(3)));
    bench.say(Input::Policy(Box::new(disabled)));
    assert_eq!(bench.register(4, "f", Critical), [Rejected(4, O::RejectedPolicy)]);
    bench.say(Input::Policy(Box::new(none)));
    assert_eq!(bench.register(5, "f", Critical), [Rejected(5, O::RejectedPolicy)]);
    assert_eq!(bench.complete(1), [Settled(1, 1)]);
    assert_eq!(bench.register(6, "f", Default), [Bypassed(6, 1)]);
}

#[test]
fn a_cancel_frees_the_place_and_does_nothing_to_what_runs() {
    let mut bench = busy();
    bench.register(2, "f", Default);
    assert_eq!(bench.say(Input::Cancel(RequestId(2))), [Cancelled(2)]);
    assert_eq!(bench.say(Input::Cancel(RequestId(2))), []);
    assert_eq!(bench.say(Input::Cancel(RequestId(1))), []);
    assert_eq!(bench.say(Input::Cancel(RequestId(99))), []);
    assert_eq!((bench.engine.stock(), bench.engine.waiting()), (1, 0));
}
