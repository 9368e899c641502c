//! Where a request stands and what keeps it there, as whoever asks is told.

#[path = "support/mod.rs"]
mod support;

use penstock_engine::input::{Band, ClassKey};
use penstock_engine::policy::{Class, ClassSet, Discipline};
use penstock_engine::queue_position::BlockReason;
use penstock_engine::units::{Decimal, Tokens};
use penstock_engine::{EndpointId, Input, Policy, RequestId};

use Band::{Critical, Default, Sheddable};
use support::Said::*;
use support::*;

/// Endpoint 1 runs one at a time: request 1, of flow `other`.
fn busy_with(change: impl FnOnce(&mut Policy)) -> Bench {
    let mut policy = policy();
    policy.gate = gate(1, 1);
    change(&mut policy);
    let mut bench = Bench::new(policy, 1);
    assert_eq!(bench.register(1, "other", Default), [Bypassed(1, 1)]);
    bench
}

fn hold(bench: &Bench, id: u64) -> Option<BlockReason> {
    bench.engine.block_reason(RequestId(id))
}

fn ahead(bench: &Bench, id: u64) -> Option<u64> {
    bench.engine.position(RequestId(id)).map(|at| at.ahead)
}

#[test]
fn a_full_gate_is_said_with_its_numbers() {
    let mut bench = busy_with(|_| {});
    bench.register(2, "f", Default);
    assert_eq!(hold(&bench, 2), Some(BlockReason::Gate { stock: 1, lower: 1 }));
    assert_eq!(hold(&bench, 1), None, "it runs");
    assert_eq!(hold(&bench, 9), None, "nobody");
    let place = |id| bench.engine.endpoint_of(RequestId(id));
    assert_eq!((place(1), place(2)), (Some(EndpointId(1)), None));
}

#[test]
fn what_holds_one_alone_comes_before_the_gate() {
    let mut bench = busy_with(|policy| policy.flows.max_in_flight = Some(1));
    bench.register(2, "other", Default);
    let limit = BlockReason::MaxInFlight { running: 1, most: 1 };
    assert_eq!(hold(&bench, 2), Some(limit));
    bench.say(Input::Suspend(RequestId(2)));
    assert_eq!(hold(&bench, 2), Some(BlockReason::Suspended));
}

#[test]
fn endpoints_that_are_not_ready_are_told_apart_from_those_it_may_not_use() {
    let mut policy = policy();
    policy.gate = gate(1, 1);
    let mut bench = Bench::new(policy, 2);
    let mut pinned = request(1, "f", Default);
    pinned.eligible = Some([EndpointId(2)].into());
    bench.say(Input::Endpoint {
        id: EndpointId(2),
        state: not_ready(),
    });
    assert_eq!(bench.say(Input::Register(pinned)), []);
    assert_eq!(hold(&bench, 1), Some(BlockReason::OwnEndpoints));
    bench.say(Input::Endpoint {
        id: EndpointId(1),
        state: not_ready(),
    });
    assert_eq!(hold(&bench, 1), Some(BlockReason::NoEndpoint));
}

fn not_ready() -> penstock_engine::input::EndpointState {
    penstock_engine::input::EndpointState {
        ready: false,
        ..std::default::Default::default()
    }
}

#[test]
fn a_class_is_held_by_its_threshold() {
    let mut policy = policy();
    policy.gate = gate(4, 4);
    policy.classes = vec![ClassSet {
        classes: vec![Class {
            busy_tokens: Some(100),
            ..Class::new("long", 1_024)
        }],
        ..ClassSet::default()
    }];
    let mut bench = Bench::new(policy, 1);
    let long = |id| {
        let mut it = request(id, "f", Default);
        it.prompt = penstock_engine::input::Prompt::Tokens(Tokens(500));
        it.class = ClassKey::Family("long".into());
        it
    };
    assert_eq!(bench.engine.class_of(&long(1)), "long");
    assert_eq!(bench.say(Input::Register(long(1))), [Bypassed(1, 1)]);
    assert_eq!(bench.say(Input::Register(long(2))), []);
    assert_eq!(hold(&bench, 2), Some(BlockReason::ClassThreshold));
    assert_eq!(&*bench.engine.class(RequestId(2)), "long");
}

#[test]
fn a_ceiling_and_a_rate_hold_with_the_gate_open() {
    let mut policy = policy();
    policy.gate = gate(4, 4);
    let half = Decimal::from_billionths(Decimal::ONE / 2);
    policy.bands.ceilings = [None, None, Some(half)];
    let mut bench = Bench::new(policy, 1);
    for id in 1..=2 {
        assert_eq!(bench.register(id, "f", Sheddable), [Bypassed(id, 1)]);
    }
    assert_eq!(bench.register(3, "f", Sheddable), []);
    assert_eq!(hold(&bench, 3), Some(BlockReason::Ceiling { stock: 2, lower: 4 }));

    let mut policy = support::policy();
    policy.gate = gate(4, 4);
    policy.queue.max_rate = Some(1.0);
    let mut bench = Bench::new(policy, 1);
    assert_eq!(bench.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(bench.register(2, "f", Default), []);
    assert_eq!(hold(&bench, 2), Some(BlockReason::MaxRate));
}

#[test]
fn a_position_goes_by_the_rule_of_the_flows() {
    // In order of arrival: two of f, one of g, one of nobody; and a critical one last.
    let positions = |discipline| {
        let mut bench = busy_with(|policy| policy.flows.discipline = discipline);
        for (id, flow) in [(2, "f"), (3, "f"), (4, "g"), (5, "")] {
            bench.at(id as f64).register(id, flow, Default);
        }
        bench.at(9.0).register(6, "f", Critical);
        let tag = bench.engine.position(RequestId(2)).and_then(|at| at.tag);
        let order: Vec<_> = (2..=6).map(|id| ahead(&bench, id)).collect();
        let critical = bench.engine.position(RequestId(2)).map(|at| at.more_critical);
        assert_eq!(critical, Some(1), "{discipline:?}");
        (order, tag.is_some())
    };
    let order = |of: [u64; 5]| of.map(Some).to_vec();
    assert_eq!(positions(Discipline::Fifo), (order([1, 2, 3, 4, 0]), false));
    // f's second comes behind one each of the others.
    for discipline in [Discipline::Wfq, Discipline::RoundRobin, Discipline::Vtc] {
        let expected = (order([1, 4, 2, 3, 0]), true);
        assert_eq!(positions(discipline), expected, "{discipline:?}");
    }
    assert_eq!(positions(Discipline::Drr), (order([1, 4, 2, 3, 0]), false));
    // Who says nothing of himself goes last.
    assert_eq!(positions(Discipline::Usage), (order([1, 3, 2, 4, 0]), true));
}
