//! Policy classes: which one a request is of, who goes, and what each limits. One rule a test.

mod support;

use penstock_engine::input::{Band, ClassKey, EndpointState, Prompt};
use penstock_engine::policy::{Bucket, Class, ClassSet, Gate, Order};
use penstock_engine::units::Tokens;
use penstock_engine::{Effect, EndpointId, Input, Outcome, Policy, Request, RequestId};

use Band::{Critical, Default};
use Said::{Bypassed, Dispatched, Rejected, Settled};
use support::*;

fn set(classes: Vec<Class>) -> ClassSet {
    ClassSet {
        classes,
        ..ClassSet::default()
    }
}

fn with(classes: Vec<Class>) -> Policy {
    Policy {
        gate: Gate::Manual,
        classes: vec![set(classes)],
        ..policy()
    }
}

fn of(class: &str, id: u64, prompt: u64) -> Request {
    Request {
        class: ClassKey::Family(class.into()),
        prompt: Prompt::Tokens(Tokens(prompt)),
        ..request(id, "f", Default)
    }
}

/// Lets one go, if one can: which, and the deficits after it.
fn next(bench: &mut Bench, blocked: &[&str]) -> Option<(u64, Vec<u64>)> {
    bench.engine.trace(true);
    let blocked = blocked.iter().map(|&name| name.into()).collect();
    let effects = bench.effects(Input::Dispatch { blocked });
    let [Effect::Grant { .. }, Effect::Traced { id, deficits, .. }] = &effects[..] else {
        assert_eq!(effects, []);
        return None;
    };
    Some((id.0, deficits.iter().map(|&(_, deficit)| deficit).collect()))
}

#[test]
fn a_visit_grants_one_quantum_and_lasts_while_the_deficit_covers_the_head() {
    let mut bench = Bench::new(with(vec![Class::new("a", 200), Class::new("b", 100)]), 1);
    for id in 0..5 {
        bench.say(Input::Register(of("a", 10 + id, 100)));
        bench.say(Input::Register(of("b", 20 + id, 100)));
    }
    let order: Vec<_> = (0..6)
        .map(|_| next(&mut bench, &[]).expect("some wait"))
        .collect();
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
    let mut bench = Bench::new(with(vec![Class::new("a", 200), Class::new("b", 100)]), 1);
    for id in 0..4 {
        bench.say(Input::Register(of("a", 10 + id, 100)));
        bench.say(Input::Register(of("b", 20 + id, 100)));
    }
    assert_eq!(next(&mut bench, &[]), Some((10, vec![100, 0])));
    assert_eq!(next(&mut bench, &["a"]), Some((20, vec![100, 0])));
    assert_eq!(next(&mut bench, &["a"]), Some((21, vec![100, 0])));
    assert_eq!(next(&mut bench, &["a", "b"]), None);
    assert_eq!(next(&mut bench, &[]), Some((11, vec![0, 0])));
}

#[test]
fn a_family_and_its_uncached_tokens_make_the_class() {
    let bucket = |name: &str, min_tokens| Bucket {
        min_tokens,
        name: name.into(),
    };
    let class = |name: &str, family: &str, bucket: Option<&str>| Class {
        family: family.into(),
        bucket: bucket.map(Into::into),
        ..Class::new(name, 1_000)
    };
    let mut policy = with(vec![
        class("chat-short", "chat", Some("short")),
        class("chat-long", "chat", Some("long")),
        class("rag", "rag", None),
    ]);
    policy.classes[0].default_family = Some("rag".into());
    policy.classes[0].buckets = vec![bucket("long", 100), bucket("short", 0)];
    let mut bench = Bench::new(policy, 1);
    let mut class_of = |key: ClassKey, prompt, cached, id| {
        let mut request = of("", id, prompt);
        request.class = key;
        request.cached = Tokens(cached);
        bench.say(Input::Register(request));
        bench.engine.trace(true);
        let effects = bench.effects(Input::Dispatch { blocked: vec![] });
        match &effects[1] {
            Effect::Traced {
                class, class_cost, ..
            } => (class.to_string(), class_cost.0),
            other => panic!("{other:?}"),
        }
    };
    let family = |name: &str| ClassKey::Family(name.into());
    let found = [
        class_of(family("chat"), 100, 0, 1),
        class_of(family("chat"), 100, 1, 2),
        class_of(family("chat"), 10, 400, 3),
        class_of(family("unheard"), 10, 0, 4),
        class_of(family(""), 100, 0, 5),
        class_of(ClassKey::Named("chat-long".into()), 1, 0, 6),
        class_of(ClassKey::Named("unheard".into()), 1, 0, 7),
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

/// One endpoint that takes one at a time; request 1 runs there.
fn busy(classes: Vec<Class>) -> Bench {
    let mut policy = with(classes);
    policy.gate = gate(1, 1);
    let mut bench = Bench::new(policy, 1);
    assert_eq!(bench.register(1, "x", Critical), [Bypassed(1, 1)]);
    bench
}

#[test]
fn a_limit_is_checked_before_adding_so_the_request_that_crosses_is_taken() {
    let mut bench = busy(vec![
        Class {
            prompt_tokens_per_endpoint: Some(150),
            ..Class::new("a", 100)
        },
        Class {
            requests_per_endpoint: Some(1),
            ..Class::new("b", 100)
        },
    ]);
    assert_eq!(bench.say(Input::Register(of("a", 2, 100))), []);
    assert_eq!(bench.say(Input::Register(of("a", 3, 100))), []);
    let refused = Rejected(4, Outcome::RejectedClassCapacity);
    assert_eq!(bench.say(Input::Register(of("a", 4, 1))), [refused]);
    assert_eq!(bench.say(Input::Register(of("b", 5, 100))), []);
    let refused = Rejected(6, Outcome::RejectedClassCapacity);
    assert_eq!(bench.say(Input::Register(of("b", 6, 100))), [refused]);
    // Another endpoint makes room for as much again; it starts with one, which goes there.
    bench.at(5.0).endpoint(2, true);
    assert_eq!(bench.say(Input::Register(of("b", 7, 100))), []);
    let snapshot = bench.engine.snapshot();
    let waiting: Vec<_> = snapshot.classes.iter().map(|class| class.waiting).collect();
    assert_eq!(waiting, [1, 2]);
}

#[test]
fn a_class_goes_while_an_endpoint_is_below_its_threshold() {
    let mut policy = with(vec![
        Class {
            busy_tokens: Some(100),
            ..Class::new("a", 100)
        },
        Class {
            busy_fraction: Some(0.5),
            ..Class::new("b", 100)
        },
        Class::new("c", 100),
    ]);
    policy.gate = gate(10, 10);
    let mut bench = Bench::new(policy, 0);
    let state = EndpointState {
        batched_tokens_max: Some(400),
        ..EndpointState::default()
    };
    let id = EndpointId(1);
    bench.say(Input::Endpoint { id, state });
    assert_eq!(bench.say(Input::Register(of("a", 1, 100))), [Bypassed(1, 1)]);
    // 100 tokens of prompt are being read there: none more of a, one more of b.
    assert_eq!(bench.say(Input::Register(of("a", 2, 1))), []);
    assert_eq!(bench.say(Input::Register(of("b", 3, 100))), [Bypassed(3, 1)]);
    assert_eq!(bench.say(Input::Register(of("b", 4, 100))), []);
    // What waits is held by its own limits, so nobody is overtaken.
    assert_eq!(bench.say(Input::Register(of("c", 5, 100))), [Bypassed(5, 1)]);
    assert_eq!(bench.complete(1), [Settled(1, 1)]);
    assert_eq!(bench.complete(3), [Settled(3, 1), Dispatched(4, 1)]);
    assert_eq!(bench.complete(5), [Settled(5, 1)]);
    assert_eq!(bench.complete(4), [Settled(4, 1), Dispatched(2, 1)]);
}

#[test]
fn a_class_has_an_order_of_its_own() {
    let mut policy = with(vec![
        Class {
            order: Some(Order::Wspt),
            ..Class::new("a", 1_000)
        },
        Class::new("b", 1_000),
    ]);
    policy.order = Order::Fcfs;
    let mut bench = Bench::new(policy, 1);
    for (id, class, prompt) in [(1, "a", 30), (2, "a", 10), (3, "b", 30), (4, "b", 10)] {
        bench.say(Input::Register(of(class, id, prompt)));
    }
    let order: Vec<_> = (0..4)
        .map(|_| next(&mut bench, &[]).expect("some wait").0)
        .collect();
    assert_eq!(order, [2, 1, 3, 4]);
}

#[test]
fn what_waits_in_a_class_that_is_taken_away_is_classed_anew_and_keeps_its_arrival() {
    let mut bench = Bench::new(with(vec![Class::new("a", 100), Class::new("b", 100)]), 1);
    bench.at(1.0).say(Input::Register(of("b", 1, 100)));
    bench.at(2.0).say(Input::Register(of("a", 2, 100)));
    bench.say(Input::Register(of("b", 3, 100)));
    bench.say(Input::Policy(Box::new(with(vec![
        Class::new("a", 100),
        Class::new("c", 100),
    ]))));
    let waiting = |bench: &Bench| -> Vec<_> {
        let classes = bench.engine.snapshot().classes;
        classes
            .iter()
            .map(|class| (class.name.to_string(), class.waiting))
            .collect()
    };
    assert_eq!(waiting(&bench), [("a".to_owned(), 3), ("c".to_owned(), 0)]);
    let order: Vec<_> = (0..3)
        .map(|_| next(&mut bench, &[]).expect("some wait").0)
        .collect();
    assert_eq!(order, [1, 2, 3]);
}

#[test]
fn a_quantum_changes_in_place() {
    let mut bench = Bench::new(with(vec![Class::new("a", 100), Class::new("b", 100)]), 1);
    for id in 0..4 {
        bench.say(Input::Register(of("a", 10 + id, 100)));
        bench.say(Input::Register(of("b", 20 + id, 100)));
    }
    assert_eq!(next(&mut bench, &[]), Some((10, vec![0, 0])));
    bench.say(Input::Policy(Box::new(with(vec![
        Class::new("a", 200),
        Class::new("b", 150),
    ]))));
    assert_eq!(next(&mut bench, &[]), Some((20, vec![0, 50])));
    assert_eq!(next(&mut bench, &[]), Some((11, vec![100, 50])));
}

#[test]
fn under_a_manual_gate_nothing_goes_and_nothing_expires_by_itself() {
    let mut bench = Bench::new(with(vec![]), 1);
    assert_eq!(bench.register(1, "f", Default), []);
    assert_eq!(bench.register(2, "f", Default), []);
    bench.at(100.0);
    assert_eq!(bench.say(Input::Ready), []);
    assert_eq!(bench.say(Input::Dispatch { blocked: vec![] }), [Dispatched(1, 1)]);
    assert_eq!(bench.wait(), [Rejected(2, Outcome::ExpiredTtl)]);
    let settled = Input::Settle {
        id: RequestId(1),
        service: penstock_engine::input::Service::Nothing,
    };
    assert_eq!(bench.say(settled), [Settled(1, 0)]);
    assert_eq!(bench.engine.stock(), 0);
}
