//! Policy classes: which class a request belongs to, the order of dispatch, and the limits of a class. One rule a
//! test.

use Band::{Critical, Default};
use ShortEffect::{Bypassed, Dispatched, Rejected, Settled};
use penstock_engine::effect::Trace;
use penstock_engine::input::{Band, ClassKey, EndpointState, Prompt};
use penstock_engine::policy::{Bucket, Class, ClassMode, ClassSet, Gate, Order};
use penstock_engine::units::Tokens;
use penstock_engine::{Effect, EndpointId, Input, Outcome, Policy, Request, RequestId};

use crate::support::*;

fn class_set(classes: Vec<Class>) -> ClassSet {
    ClassSet { classes, ..ClassSet::default() }
}

fn manual_policy(classes: Vec<Class>) -> Policy {
    Policy { gate: Gate::Manual, classes: vec![class_set(classes)], ..policy() }
}

fn request_of(class: &str, id: u64, prompt: u64) -> Request {
    Request {
        class: ClassKey::Family(class.into()),
        prompt: Prompt::Tokens(Tokens(prompt)),
        ..request(id, "f", Default)
    }
}

/// Dispatches one request if possible: its id, and the deficits after it.
fn next(harness: &mut Harness, blocked: &[&str]) -> Option<(u64, Vec<u64>)> {
    harness.engine.trace(true);
    let blocked = blocked.iter().map(|&name| name.into()).collect();
    let effects = harness.effects(Input::Dispatch { blocked });
    let [Effect::Grant(_), Effect::Traced(Trace { id, deficits, .. })] = &effects[..] else {
        assert_eq!(effects, []);
        return None;
    };
    Some((id.0, deficits.iter().map(|&(_, deficit)| deficit).collect()))
}

#[test]
fn a_visit_grants_one_quantum_and_lasts_while_the_deficit_covers_the_head() {
    let mut harness = Harness::new(manual_policy(vec![Class::new("a", 200), Class::new("b", 100)]), 1);
    for id in 0..5 {
        harness.handle(Input::Register(request_of("a", 10 + id, 100)));
        harness.handle(Input::Register(request_of("b", 20 + id, 100)));
    }
    let order: Vec<_> = (0..6).map(|_| next(&mut harness, &[]).expect("requests wait")).collect();
    let expected = [
        (10, vec![100, 0]),
        (11, vec![0, 0]),
        (20, vec![0, 0]),
        (12, vec![100, 0]),
        (13, vec![0, 0]),
        (21, vec![0, 0]),
    ];
    assert_eq!(order, expected);
}

#[test]
fn a_blocked_class_keeps_its_visit_and_earns_nothing() {
    let mut harness = Harness::new(manual_policy(vec![Class::new("a", 200), Class::new("b", 100)]), 1);
    for id in 0..4 {
        harness.handle(Input::Register(request_of("a", 10 + id, 100)));
        harness.handle(Input::Register(request_of("b", 20 + id, 100)));
    }
    assert_eq!(next(&mut harness, &[]), Some((10, vec![100, 0])));
    assert_eq!(next(&mut harness, &["a"]), Some((20, vec![100, 0])));
    assert_eq!(next(&mut harness, &["a"]), Some((21, vec![100, 0])));
    assert_eq!(next(&mut harness, &["a", "b"]), None);
    assert_eq!(next(&mut harness, &[]), Some((11, vec![0, 0])));
}

#[test]
fn family_and_uncached_tokens_select_the_class() {
    let bucket = |name: &str, min_tokens| Bucket { min_tokens, name: name.into() };
    let class = |name: &str, family: &str, bucket: Option<&str>| Class {
        family: family.into(),
        bucket: bucket.map(Into::into),
        ..Class::new(name, 1_000)
    };
    let mut policy = manual_policy(vec![
        class("chat-short", "chat", Some("short")),
        class("chat-long", "chat", Some("long")),
        class("rag", "rag", None),
    ]);
    policy.classes[0].default_family = Some("rag".into());
    policy.classes[0].buckets = vec![bucket("long", 100), bucket("short", 0)];
    let mut harness = Harness::new(policy, 1);
    let mut class_of = |key: ClassKey, prompt, cached, id| {
        let mut request = request_of("", id, prompt);
        request.class = key;
        request.cached = Tokens(cached);
        harness.handle(Input::Register(request));
        harness.engine.trace(true);
        let effects = harness.effects(Input::Dispatch { blocked: vec![] });
        match &effects[1] {
            Effect::Traced(Trace { class, class_cost, .. }) => (class.to_string(), class_cost.0),
            other => panic!("{other:?}"),
        }
    };
    let family = |name: &str| ClassKey::Family(name.into());
    let found = [
        class_of(family("chat"), 100, 0, 1),
        class_of(family("chat"), 100, 1, 2),
        class_of(family("chat"), 10, 400, 3),
        class_of(family("unknown"), 10, 0, 4),
        class_of(family(""), 100, 0, 5),
        class_of(ClassKey::Named("chat-long".into()), 1, 0, 6),
        class_of(ClassKey::Named("unknown".into()), 1, 0, 7),
    ];
    let expected = [
        ("chat-long", 100),
        ("chat-short", 99),
        ("chat-short", 1),
        ("rag", 10),
        ("rag", 100),
        ("chat-long", 1),
        ("rag", 1),
    ];
    assert_eq!(found, expected.map(|(name, cost)| (name.to_owned(), cost)));
}

/// An engine with these classes and one endpoint that takes one request at a time; request 1 runs there.
fn busy(classes: Vec<Class>) -> Harness {
    let mut policy = manual_policy(classes);
    policy.gate = gate(1, 1);
    let mut harness = Harness::new(policy, 1);
    assert_eq!(harness.register(1, "x", Critical), [Bypassed(1, 1)]);
    harness
}

#[test]
fn a_class_limit_is_checked_before_adding_the_request() {
    let mut harness = busy(vec![
        Class { prompt_tokens_per_endpoint: Some(150), ..Class::new("a", 100) },
        Class { requests_per_endpoint: Some(1), ..Class::new("b", 100) },
    ]);
    assert_eq!(harness.handle(Input::Register(request_of("a", 2, 100))), []);
    assert_eq!(harness.handle(Input::Register(request_of("a", 3, 100))), []);
    let refused = Rejected(4, Outcome::RejectedClassCapacity);
    assert_eq!(harness.handle(Input::Register(request_of("a", 4, 1))), [refused]);
    assert_eq!(harness.handle(Input::Register(request_of("b", 5, 100))), []);
    let refused = Rejected(6, Outcome::RejectedClassCapacity);
    assert_eq!(harness.handle(Input::Register(request_of("b", 6, 100))), [refused]);
    // A second endpoint doubles the limit; its slow start takes one request, which goes there.
    harness.advance_to(5.0).endpoint(2, true);
    assert_eq!(harness.handle(Input::Register(request_of("b", 7, 100))), []);
    let snapshot = harness.engine.snapshot();
    let waiting: Vec<_> = snapshot.classes.iter().map(|class| class.waiting).collect();
    assert_eq!(waiting, [1, 2]);
}

#[test]
fn a_class_limit_is_one_for_all_its_requests_wherever_they_may_go() {
    let mut harness = busy(vec![Class { requests_per_endpoint: Some(1), ..Class::new("a", 100) }]);
    harness.advance_to(5.0).endpoint(2, true);
    assert_eq!(harness.handle(Input::Register(request_of("a", 2, 100))), [Bypassed(2, 2)]);
    let pinned = |id| restricted(request_of("a", id, 100), &[2]);
    assert_eq!(harness.handle(Input::Register(pinned(3))), []);
    assert_eq!(harness.handle(Input::Register(pinned(4))), [], "one for each endpoint of the pool");
    let refused = |id| [Rejected(id, Outcome::RejectedClassCapacity)];
    assert_eq!(harness.handle(Input::Register(pinned(5))), refused(5));
    assert_eq!(harness.handle(Input::Register(request_of("a", 6, 100))), refused(6));
}

#[test]
fn a_class_goes_while_an_endpoint_is_not_above_its_threshold() {
    let mut policy = manual_policy(vec![
        Class { busy_tokens: Some(99), ..Class::new("a", 100) },
        Class { busy_fraction: Some(0.49), ..Class::new("b", 100) },
        Class::new("c", 100),
    ]);
    policy.gate = gate(10, 10);
    let mut harness = Harness::new(policy, 0);
    let state = EndpointState { batched_tokens_max: Some(400), ..EndpointState::default() };
    let id = EndpointId(1);
    harness.handle(Input::Endpoint { id, state });
    assert_eq!(harness.handle(Input::Register(request_of("a", 1, 100))), [Bypassed(1, 1)]);
    // 100 prompt tokens are in prefill there: class a is above its threshold, class b takes one more.
    assert_eq!(harness.handle(Input::Register(request_of("a", 2, 1))), []);
    assert_eq!(harness.handle(Input::Register(request_of("b", 3, 100))), [Bypassed(3, 1)]);
    assert_eq!(harness.handle(Input::Register(request_of("b", 4, 100))), []);
    // The waiting requests are blocked by their class limits only, so class c doesn't overtake them.
    assert_eq!(harness.handle(Input::Register(request_of("c", 5, 100))), [Bypassed(5, 1)]);
    assert_eq!(harness.complete(1), [Settled(1, 1)]);
    assert_eq!(harness.complete(3), [Settled(3, 1), Dispatched(4, 1)]);
    assert_eq!(harness.complete(5), [Settled(5, 1)]);
    assert_eq!(harness.complete(4), [Settled(4, 1), Dispatched(2, 1)]);
}

/// One endpoint for ten requests, and a class that goes while at most 100 tokens are in prefill there.
fn with_prefill_threshold() -> Harness {
    let mut policy = manual_policy(vec![Class { busy_tokens: Some(100), ..Class::new("a", 100) }]);
    policy.gate = gate(10, 10);
    Harness::new(policy, 1)
}

#[test]
fn a_prompt_is_in_prefill_until_the_first_token_of_its_answer() {
    let mut harness = with_prefill_threshold();
    let mut register = |id, prompt| harness.handle(Input::Register(request_of("a", id, prompt)));
    assert_eq!(register(1, 100), [Bypassed(1, 1)]);
    assert_eq!(register(2, 50), [Bypassed(2, 1)], "100 is not above 100");
    assert_eq!(register(3, 1), []);
    assert_eq!(harness.handle(Input::FirstToken(RequestId(9))), [], "an unknown request");
    assert_eq!(harness.handle(Input::FirstToken(RequestId(3))), [], "it waits");
    assert_eq!(harness.handle(Input::FirstToken(RequestId(2))), [Dispatched(3, 1)]);
    // 101 are in prefill.
    assert_eq!(harness.handle(Input::Register(request_of("a", 4, 1))), []);
    assert_eq!(harness.handle(Input::FirstToken(RequestId(2))), [], "it counts once");
    assert_eq!(harness.complete(2), [Settled(2, 1)], "it was out of prefill before");
    assert_eq!(harness.handle(Input::FirstToken(RequestId(1))), [Dispatched(4, 1)]);
    assert_eq!(harness.engine.stock(), 3, "the stock stays until the end");
    for id in [1, 3, 4] {
        harness.complete(id);
    }
}

#[test]
fn a_prompt_that_goes_elsewhere_is_in_prefill_there() {
    let mut harness = with_prefill_threshold();
    assert_eq!(harness.handle(Input::Register(request_of("a", 1, 500))), [Bypassed(1, 1)]);
    harness.endpoint(2, true);
    let move_to = |endpoint| Input::Sent { id: RequestId(1), endpoint: EndpointId(endpoint) };
    harness.handle(move_to(2));
    assert_eq!(harness.handle(Input::Register(request_of("a", 2, 500))), [Bypassed(2, 1)]);
    assert_eq!(harness.handle(Input::Register(request_of("a", 3, 1))), []);
    harness.handle(Input::FirstToken(RequestId(2)));
    // A request that is sent again computes its prompt again.
    assert_eq!(harness.handle(Input::Register(request_of("a", 4, 500))), [Bypassed(4, 1)]);
    harness.handle(Input::FirstToken(RequestId(4)));
    harness.handle(Input::Requeue(RequestId(4)));
    assert_eq!(harness.handle(Input::Register(request_of("a", 5, 1))), []);
}

/// The two worked examples of Dynamo's page on deficit round robin.
#[test]
fn the_examples_of_dynamos_page_hold_in_both_modes() {
    for mode in [ClassMode::Exact, ClassMode::Dynamo] {
        let with_mode = |classes| Policy { class_mode: mode, ..manual_policy(classes) };
        // One quantum of 10 pays for three requests of 3; then the cursor advances.
        let mut harness = Harness::new(with_mode(vec![Class::new("a", 10), Class::new("b", 10)]), 1);
        for id in 10..14 {
            harness.handle(Input::Register(request_of("a", id, 3)));
        }
        for id in 20..22 {
            harness.handle(Input::Register(request_of("b", id, 3)));
        }
        let order = [(); 4].map(|()| next(&mut harness, &[]).expect("requests wait"));
        let deficits = order.map(|(id, deficits)| (id, deficits[0]));
        assert_eq!(deficits, [(10, 7), (11, 4), (12, 1), (20, 1)], "{mode:?}");

        // After one ring, four rounds at once: `latency` can pay 9,000 and keeps 1,000.
        let classes = vec![Class::new("standard", 1_000), Class::new("latency", 2_000)];
        let mut harness = Harness::new(with_mode(classes), 1);
        harness.handle(Input::Register(request_of("standard", 1, 7_000)));
        for id in [2, 3] {
            harness.handle(Input::Register(request_of("latency", id, 9_000)));
        }
        assert_eq!(next(&mut harness, &[]), Some((2, vec![5_000, 1_000])), "{mode:?}");
    }
}

#[test]
fn a_class_can_have_a_different_order() {
    let mut policy = manual_policy(vec![
        Class { order: Some(Order::Wspt), ..Class::new("a", 1_000) },
        Class::new("b", 1_000),
    ]);
    policy.order = Order::Fcfs;
    let mut harness = Harness::new(policy, 1);
    for (id, class, prompt) in [(1, "a", 30), (2, "a", 10), (3, "b", 30), (4, "b", 10)] {
        harness.handle(Input::Register(request_of(class, id, prompt)));
    }
    let order: Vec<_> = (0..4).map(|_| next(&mut harness, &[]).expect("requests wait").0).collect();
    assert_eq!(order, [2, 1, 3, 4]);
}

#[test]
fn requests_of_a_removed_class_are_reclassified_and_keep_their_arrival() {
    let mut harness = Harness::new(manual_policy(vec![Class::new("a", 100), Class::new("b", 100)]), 1);
    harness.advance_to(1.0).handle(Input::Register(request_of("b", 1, 100)));
    harness.advance_to(2.0).handle(Input::Register(request_of("a", 2, 100)));
    harness.handle(Input::Register(request_of("b", 3, 100)));
    harness.handle(Input::Policy(Box::new(manual_policy(vec![Class::new("a", 100), Class::new("c", 100)]))));
    let waiting = |harness: &Harness| -> Vec<_> {
        let classes = harness.engine.snapshot().classes;
        classes.iter().map(|class| (class.name.to_string(), class.waiting)).collect()
    };
    assert_eq!(waiting(&harness), [("a".to_owned(), 3), ("c".to_owned(), 0)]);
    let order: Vec<_> = (0..3).map(|_| next(&mut harness, &[]).expect("requests wait").0).collect();
    assert_eq!(order, [1, 2, 3]);
}

#[test]
fn a_quantum_changes_in_place() {
    let mut harness = Harness::new(manual_policy(vec![Class::new("a", 100), Class::new("b", 100)]), 1);
    for id in 0..4 {
        harness.handle(Input::Register(request_of("a", 10 + id, 100)));
        harness.handle(Input::Register(request_of("b", 20 + id, 100)));
    }
    assert_eq!(next(&mut harness, &[]), Some((10, vec![0, 0])));
    harness.handle(Input::Policy(Box::new(manual_policy(vec![Class::new("a", 200), Class::new("b", 150)]))));
    assert_eq!(next(&mut harness, &[]), Some((20, vec![0, 50])));
    assert_eq!(next(&mut harness, &[]), Some((11, vec![100, 50])));
}

#[test]
fn under_a_manual_gate_requests_go_and_expire_only_on_input() {
    let mut harness = Harness::new(manual_policy(vec![]), 1);
    assert_eq!(harness.register(1, "f", Default), []);
    assert_eq!(harness.register(2, "f", Default), []);
    harness.advance_to(100.0);
    assert_eq!(harness.handle(Input::Ready), []);
    assert_eq!(harness.handle(Input::Dispatch { blocked: vec![] }), [Dispatched(1, 1)]);
    assert_eq!(harness.handle_timeout(), [Rejected(2, Outcome::ExpiredTtl)]);
    let settled = Input::Settle { id: RequestId(1), service: penstock_engine::input::Service::Nothing };
    assert_eq!(harness.handle(settled), [Settled(1, 0)]);
    assert_eq!(harness.engine.stock(), 0);
}
