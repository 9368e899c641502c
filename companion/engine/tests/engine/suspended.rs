//! Suspended requests (their session is unreachable) keep their place and can't be dispatched. Also inputs that
//! repeat for a request that waits or runs already: adopt and requeue.

use std::time::Duration;

use Band::{Critical, Default, Sheddable};
use penstock_engine::input::{Band, ClassKey, Service, Usage};
use penstock_engine::policy::{Bucket, Class, ClassMode, ClassSet, Discipline, Overflow};
use penstock_engine::units::Tokens;
use penstock_engine::{EndpointId, Engine, Input, Instant, Outcome as O, Policy, Request, RequestId};

use crate::support::ShortEffect::*;
use crate::support::*;

fn suspend(harness: &mut Harness, id: u64) {
    assert_eq!(harness.handle(Input::Suspend(RequestId(id))), []);
}

fn resume(harness: &mut Harness, id: u64) -> Vec<ShortEffect> {
    harness.handle(Input::Continue(RequestId(id)))
}

fn counts(harness: &Harness) -> (u64, u64) {
    let snapshot = harness.engine.snapshot();
    (snapshot.waiting, snapshot.suspended)
}

#[test]
fn a_suspended_request_keeps_its_place_and_blocks_no_other() {
    for discipline in Discipline::ALL {
        let mut harness = busy_with(|policy| policy.flows.discipline = discipline);
        for id in 2..=5 {
            assert_eq!(harness.register(id, "f", Default), []);
        }
        suspend(&mut harness, 2);
        suspend(&mut harness, 3);
        assert_eq!(counts(&harness), (4, 2));
        assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(4, 1)], "{discipline:?}");
        assert_eq!(harness.engine.position(RequestId(3)).map(|position| position.ahead), Some(1));
        assert_eq!(resume(&mut harness, 3), []);
        assert_eq!(harness.complete(4), [Settled(4, 1), Dispatched(3, 1)]);
        assert_eq!(resume(&mut harness, 2), []);
        assert_eq!(harness.complete(3), [Settled(3, 1), Dispatched(2, 1)]);
        suspend(&mut harness, 5);
        assert_eq!(harness.complete(2), [Settled(2, 1)]);
        assert_eq!(counts(&harness), (1, 1));
        assert_eq!(resume(&mut harness, 5), [Dispatched(5, 1)], "at once");
    }
}

#[test]
fn a_new_request_passes_suspended_ones_even_in_its_own_flow() {
    for discipline in Discipline::ALL {
        let mut harness = busy_with(|policy| policy.flows.discipline = discipline);
        harness.register(2, "f", Default);
        harness.register(3, "f", Critical);
        suspend(&mut harness, 2);
        suspend(&mut harness, 3);
        harness.complete(1);
        assert_eq!(harness.register(4, "f", Default), [Bypassed(4, 1)]);
        assert_eq!(harness.register(5, "f", Default), []);
        assert_eq!(resume(&mut harness, 2), []);
        assert_eq!(harness.complete(4), [Settled(4, 1), Dispatched(2, 1)]);
        harness.complete(2);
        assert_eq!(harness.complete(5), [Settled(5, 1)]);
        assert_eq!(harness.register(6, "g", Sheddable), [Bypassed(6, 1)]);
        assert_eq!(resume(&mut harness, 3), []);
        assert_eq!(harness.register(7, "g", Sheddable), []);
        assert_eq!(harness.complete(6), [Settled(6, 1), Dispatched(3, 1)]);
    }
}

#[test]
fn repeated_or_inapplicable_suspends_do_nothing() {
    let mut harness = busy_with(|_| ());
    harness.register(2, "f", Default);
    harness.register(3, "f", Default);
    suspend(&mut harness, 1);
    suspend(&mut harness, 99);
    assert_eq!(counts(&harness), (2, 0), "request 1 runs, request 99 doesn't exist");
    assert_eq!(resume(&mut harness, 2), []);
    suspend(&mut harness, 2);
    suspend(&mut harness, 2);
    assert_eq!(counts(&harness), (2, 1));
    assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(3, 1)]);
    assert_eq!(resume(&mut harness, 2), []);
    assert_eq!(resume(&mut harness, 2), []);
    assert_eq!(harness.complete(3), [Settled(3, 1), Dispatched(2, 1)]);
    assert_eq!(harness.handle(Input::Requeue(RequestId(2))), [Dispatched(2, 1)]);
    assert_eq!(resume(&mut harness, 2), []);
}

#[test]
fn suspended_requests_count_in_every_queue_limit() {
    let class = Class { requests_per_endpoint: Some(2), ..Class::new("c", 100) };
    type Limit<'a> = (&'a str, O, &'a dyn Fn(&mut Policy));
    let limits: [Limit<'_>; 4] = [
        ("f", O::RejectedFlowCapacity, &|policy| policy.queue.flow_capacity = 2),
        ("g", O::RejectedTooManyFlows, &|policy| policy.queue.total_capacity = 2),
        ("f", O::RejectedQueueFull, &|policy| policy.queue.total_bytes = 2_500),
        ("g", O::RejectedClassCapacity, &|policy| {
            policy.classes = vec![ClassSet { classes: vec![class.clone()], ..ClassSet::default() }];
        }),
    ];
    for (flow, outcome, limit) in limits {
        let mut harness = busy_with(limit);
        for id in 2..=3 {
            harness.register(id, "f", Default);
            suspend(&mut harness, id);
        }
        assert_eq!(harness.register(4, flow, Default), [Rejected(4, outcome)]);
        assert_eq!(harness.handle(Input::Cancel(RequestId(3))), [Cancelled(3)]);
        assert_eq!(harness.register(5, flow, Default), []);
    }
}

#[test]
fn ttl_and_deadline_of_a_suspended_request_run_on() {
    let mut harness = busy_with(|policy| policy.queue.ttl = Duration::from_secs(5));
    harness.register(2, "f", Default);
    let mut with_deadline = request(3, "f", Default);
    with_deadline.deadline = Some(time(3.0));
    harness.handle(Input::Register(with_deadline));
    suspend(&mut harness, 2);
    suspend(&mut harness, 3);
    assert_eq!(harness.engine.poll_timeout(), Some(time(3.0)));
    assert_eq!(harness.advance_to(3.0).handle_timeout(), [Rejected(3, O::DeadlineExceeded)]);
    assert_eq!(harness.advance_to(4.9).handle_timeout(), []);
    assert_eq!(harness.advance_to(5.0).handle_timeout(), [Rejected(2, O::ExpiredTtl)]);
    assert_eq!(counts(&harness), (0, 0));
    assert_eq!(harness.engine.poll_timeout(), None);
    assert_eq!(resume(&mut harness, 2), []);
}

#[test]
fn a_suspended_request_can_be_displaced_cancelled_and_drained() {
    let mut harness = busy_with(|policy| {
        policy.queue.total_capacity = 2;
        policy.queue.overflow = Overflow::Displace;
    });
    harness.register(2, "f", Sheddable);
    harness.register(3, "f", Sheddable);
    suspend(&mut harness, 3);
    assert_eq!(harness.register(4, "f", Critical), [Rejected(3, O::Displaced)]);
    suspend(&mut harness, 2);
    assert_eq!(harness.handle(Input::Cancel(RequestId(2))), [Cancelled(2)]);
    harness.register(5, "g", Default);
    suspend(&mut harness, 5);
    assert_eq!(harness.handle(Input::ModelRemoved(RequestId(5))), [Rejected(5, O::RejectedInvalid)]);
    suspend(&mut harness, 4);
    assert_eq!(harness.handle(Input::Drain(true)), [Rejected(4, O::ShuttingDown)]);
    assert_eq!(counts(&harness), (0, 0));
    assert_eq!(harness.complete(1), [Settled(1, 1)]);
    assert!(harness.engine.snapshot().flows.iter().all(|flow| flow.waiting == 0));
}

#[test]
fn adopting_a_waiting_request_makes_it_run_suspended_or_not() {
    for suspended in [false, true] {
        let mut harness = busy_with(|_| ());
        harness.register(2, "f", Default);
        harness.register(3, "f", Default);
        if suspended {
            suspend(&mut harness, 2);
        }
        let adopt = Input::Adopt { request: request(2, "elsewhere", Critical), endpoint: EndpointId(1) };
        assert_eq!(harness.handle(adopt.clone()), []);
        assert_eq!((counts(&harness), harness.engine.stock()), ((1, 0), 2));
        assert_eq!(harness.handle(adopt), [], "it runs already");
        let snapshot = harness.engine.snapshot();
        assert_eq!((snapshot.counters.arrivals, snapshot.counters.outcome(O::Dispatched)), (3, 1));
        assert!(snapshot.flows.iter().all(|flow| &*flow.key != "elsewhere"));
        assert_eq!(resume(&mut harness, 2), []);
        // After a requeue it precedes the other request, and it isn't suspended.
        assert_eq!(harness.handle(Input::Requeue(RequestId(2))), []);
        assert_eq!(counts(&harness), (2, 0));
        assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(2, 1)]);
        assert_eq!(harness.complete(2), [Settled(2, 1), Dispatched(3, 1)]);
    }
}

#[test]
fn requeued_requests_exceed_flow_and_pool_limits() {
    let mut harness = busy_with(|policy| {
        policy.queue.flow_capacity = 2;
        policy.queue.total_capacity = 2;
    });
    for id in 2..=3 {
        harness.register(id, "other", Default);
    }
    harness.handle(Input::EndpointRemoved(EndpointId(1)));
    assert_eq!(harness.handle(Input::Requeue(RequestId(1))), []);
    assert_eq!(counts(&harness), (3, 0));
    assert_eq!(harness.register(4, "other", Default), [Rejected(4, O::RejectedFlowCapacity)]);
    assert_eq!(harness.endpoint(2, true), [Dispatched(1, 2)], "it has its old place, the first");
    assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(2, 2)]);
}

#[test]
fn a_requeued_request_waits_for_its_endpoint_to_return() {
    let mut harness = Harness::new(policy(), 2);
    harness.handle(Input::Register(restricted(request(1, "f", Default), &[2])));
    harness.handle(Input::Register(restricted(request(2, "f", Default), &[2])));
    harness.handle(Input::EndpointRemoved(EndpointId(2)));
    for id in 1..=2 {
        assert_eq!(harness.handle(Input::Requeue(RequestId(id))), []);
        assert_eq!(harness.handle(Input::Requeue(RequestId(id))), [], "a second requeue does nothing");
    }
    assert_eq!(counts(&harness), (2, 0));
    assert_eq!(harness.engine.snapshot().counters.requeues, 2);
    assert_eq!(harness.register(3, "g", Default), [Bypassed(3, 1)]);
    // The endpoint is new, so its slow start takes one request at a time.
    assert_eq!(harness.advance_to(10.0).endpoint(2, true), [Dispatched(1, 2)]);
    harness.handle(Input::EndpointRemoved(EndpointId(2)));
    assert_eq!(harness.advance_to(30.0).handle_timeout(), [Rejected(2, O::ExpiredTtl)]);
    assert_eq!(harness.complete(1), [Settled(1, 1)]);
}

#[test]
fn a_request_requeued_after_its_ttl_is_rejected() {
    let mut harness = busy_with(|policy| policy.queue.ttl = Duration::from_secs(5));
    assert_eq!(
        harness.advance_to(5.0).handle(Input::Requeue(RequestId(1))),
        [Rejected(1, O::ExpiredTtl)],
        "the TTL counts from its first arrival"
    );
    assert_eq!(harness.register(2, "f", Default), [Bypassed(2, 1)]);
    harness.handle(Input::Drain(true));
    assert_eq!(harness.handle(Input::Requeue(RequestId(2))), [Rejected(2, O::ShuttingDown)]);
    let counters = harness.engine.snapshot().counters;
    assert_eq!((counters.outcomes_total(), counters.arrivals, counters.requeues), (2, 2, 2));
    assert_eq!(counters.outcome(O::Bypassed), 0);
}

#[test]
fn a_settled_request_is_charged_again_after_a_requeue() {
    let mut harness = busy_with(|_| ());
    let used = Service::Served(Usage { output: Some(Tokens(7)), ..Usage::default() });
    let finish = |harness: &Harness| harness.engine.snapshot().flows[0].finish;
    assert_eq!(finish(&harness), 1.0);
    for time in 1..=50 {
        assert_eq!(harness.handle(Input::Settle { id: RequestId(1), service: used }), []);
        assert_eq!(harness.handle(Input::Requeue(RequestId(1))), [Dispatched(1, 1)]);
        assert_eq!(finish(&harness), 1.0 + f64::from(time));
    }
    // An unsettled charge is refunded at each requeue.
    for _ in 0..50 {
        assert_eq!(harness.handle(Input::Requeue(RequestId(1))), [Dispatched(1, 1)]);
        assert_eq!(finish(&harness), 51.0);
    }
    let service = Service::Nothing;
    let id = RequestId(1);
    assert_eq!(harness.handle(Input::Completed { id, service }), [Settled(1, 0)]);
    let snapshot = harness.engine.snapshot();
    assert_eq!((snapshot.counters.requeues, snapshot.counters.outcome(O::Dispatched)), (100, 1));
    assert_eq!((snapshot.stock, snapshot.waiting), (0, 0));
}

/// Covers every part of the policy that rebuilds the tree or moves waiting requests to other classes.
#[test]
fn a_policy_change_keeps_suspended_requests_in_their_place() {
    let class = |name: &str| Class::new(name, 100);
    let sets = [
        Vec::new(),
        vec![ClassSet {
            classes: vec![class("a"), class("b")],
            buckets: vec![Bucket { min_tokens: 0, name: "all".into() }],
            ..ClassSet::default()
        }],
        vec![ClassSet { classes: vec![class("b")], ..ClassSet::default() }],
    ];
    let mut policies = Vec::new();
    for discipline in Discipline::ALL {
        for per_model in [false, true] {
            for classes in &sets {
                for class_mode in [ClassMode::Exact, ClassMode::Dynamo] {
                    let mut policy = policy();
                    policy.gate = gate(1, 1);
                    policy.flows.discipline = discipline;
                    policy.per_model = per_model;
                    policy.classes.clone_from(classes);
                    policy.class_mode = class_mode;
                    policies.push(policy);
                }
            }
        }
    }
    for first in 0..policies.len() {
        let second = (first * 7 + 5) % policies.len();
        let mut harness = busy_with(|policy| *policy = policies[first].clone());
        for id in 2..=4 {
            let request = Request { class: ClassKey::Family("b".into()), ..request(id, "f", Default) };
            harness.handle(Input::Register(request));
        }
        suspend(&mut harness, 2);
        suspend(&mut harness, 4);
        assert_eq!(harness.handle(Input::Policy(Box::new(policies[second].clone()))), []);
        assert_eq!(counts(&harness), (3, 2));
        assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(3, 1)]);
        assert_eq!(harness.handle(Input::Policy(Box::new(policies[first].clone()))), []);
        assert_eq!(harness.complete(3), [Settled(3, 1)], "{first} to {second}");
        assert_eq!(resume(&mut harness, 4), [Dispatched(4, 1)]);
        assert_eq!(resume(&mut harness, 2), []);
        assert_eq!(harness.complete(4), [Settled(4, 1), Dispatched(2, 1)]);
    }
}

/// A whole session is suspended and resumed: its requests go in order of arrival, even if other requests arrived
/// meanwhile.
#[test]
fn a_thousand_resumed_requests_keep_their_order() {
    for flows in [1, 40] {
        let mut policy = policy();
        policy.gate = gate(1, 1);
        policy.queue.flow_capacity = 10_000;
        policy.queue.total_capacity = 10_000;
        let mut engine = Engine::new(policy, 1, Instant::ZERO);
        let handle = |engine: &mut Engine, input: Input| -> Vec<ShortEffect> {
            engine.handle(time(1.0), input);
            std::iter::from_fn(|| engine.poll_effect().map(|effect| shorten(&effect))).collect()
        };
        handle(
            &mut engine,
            Input::Endpoint { id: EndpointId(1), state: penstock_engine::input::EndpointState::default() },
        );
        handle(&mut engine, Input::Ready);
        let flow = |id: u64| format!("f{}", id % flows);
        for id in 0..=1_000 {
            handle(&mut engine, Input::Register(request(id, &flow(id), Band::Default)));
        }
        for id in 1..=1_000 {
            handle(&mut engine, Input::Suspend(RequestId(id)));
        }
        engine.audit().expect("all invariants hold");
        for id in 2_000..2_010 {
            handle(&mut engine, Input::Register(request(id, &flow(0), Band::Default)));
        }
        // A `Hello` may list them in any order.
        for id in (1..=1_000).rev() {
            handle(&mut engine, Input::Continue(RequestId(id)));
        }
        engine.audit().expect("all invariants hold");
        let mut last = vec![0; 40];
        let mut running = 0;
        for _ in 0..1_010 {
            let service = Service::Served(Usage::default());
            let effects = handle(&mut engine, Input::Completed { id: RequestId(running), service });
            let [Settled(..), Dispatched(id, 1)] = effects[..] else { panic!("{effects:?}") };
            let before = &mut last[(if id < 2_000 { id % flows } else { 0 }) as usize];
            assert!(*before < id, "{id} after {before}");
            (*before, running) = (id, id);
        }
        assert_eq!(engine.waiting(), 0);
    }
}
