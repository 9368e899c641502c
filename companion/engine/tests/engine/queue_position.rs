//! The position of a waiting request and the reason that blocks it, as reported to operators.

use Band::{Critical, Default, Sheddable};
use penstock_engine::input::{Band, ClassKey};
use penstock_engine::policy::{Class, ClassSet, Discipline};
use penstock_engine::queue_position::BlockReason;
use penstock_engine::units::{Decimal, Tokens};
use penstock_engine::{EndpointId, Input, RequestId};

use crate::support::ShortEffect::*;
use crate::support::*;

fn block_reason(harness: &Harness, id: u64) -> Option<BlockReason> {
    harness.engine.block_reason(RequestId(id))
}

fn ahead(harness: &Harness, id: u64) -> Option<u64> {
    harness.engine.position(RequestId(id)).map(|position| position.ahead)
}

#[test]
fn a_full_gate_is_reported_with_its_numbers() {
    let mut harness = busy_with(|_| {});
    harness.register(2, "f", Default);
    assert_eq!(block_reason(&harness, 2), Some(BlockReason::Gate { stock: 1, lower: 1 }));
    assert_eq!(block_reason(&harness, 1), None, "request 1 runs");
    assert_eq!(block_reason(&harness, 9), None, "request 9 doesn't exist");
    let endpoint_of = |id| harness.engine.endpoint_of(RequestId(id));
    assert_eq!((endpoint_of(1), endpoint_of(2)), (Some(EndpointId(1)), None));
}

#[test]
fn reasons_of_a_single_request_come_before_the_gate() {
    let mut harness = busy_with(|policy| policy.flows.max_in_flight = Some(1));
    harness.register(2, "other", Default);
    let limit = BlockReason::MaxInFlight { running: 1, most: 1 };
    assert_eq!(block_reason(&harness, 2), Some(limit));
    harness.handle(Input::Suspend(RequestId(2)));
    assert_eq!(block_reason(&harness, 2), Some(BlockReason::Suspended));
}

#[test]
fn unready_endpoints_differ_from_ineligible_ones() {
    let mut policy = policy();
    policy.gate = gate(1, 1);
    let mut harness = Harness::new(policy, 2);
    let mut pinned = request(1, "f", Default);
    pinned.eligible = Some([EndpointId(2)].into());
    harness.endpoint(2, false);
    assert_eq!(harness.handle(Input::Register(pinned)), []);
    assert_eq!(block_reason(&harness, 1), Some(BlockReason::OwnEndpoints));
    harness.endpoint(1, false);
    assert_eq!(block_reason(&harness, 1), Some(BlockReason::NoEndpoint));
}

#[test]
fn a_class_over_its_threshold_is_reported() {
    let mut policy = policy();
    policy.gate = gate(4, 4);
    policy.classes = vec![ClassSet {
        classes: vec![Class { busy_tokens: Some(100), ..Class::new("long", 1_024) }],
        ..ClassSet::default()
    }];
    let mut harness = Harness::new(policy, 1);
    let long = |id| {
        let mut long = request(id, "f", Default);
        long.prompt = penstock_engine::input::Prompt::Tokens(Tokens(500));
        long.class = ClassKey::Family("long".into());
        long
    };
    assert_eq!(harness.engine.prepare(&mut long(1)).class, "long");
    assert_eq!(harness.handle(Input::Register(long(1))), [Bypassed(1, 1)]);
    assert_eq!(harness.handle(Input::Register(long(2))), []);
    assert_eq!(block_reason(&harness, 2), Some(BlockReason::ClassThreshold));
    assert_eq!(&*harness.engine.class(RequestId(2)), "long");
}

#[test]
fn a_ceiling_and_a_rate_block_with_the_gate_open() {
    let mut policy = policy();
    policy.gate = gate(4, 4);
    let half = Decimal::from_billionths(Decimal::ONE / 2);
    policy.bands.ceilings = [None, None, Some(half)];
    let mut harness = Harness::new(policy, 1);
    for id in 1..=2 {
        assert_eq!(harness.register(id, "f", Sheddable), [Bypassed(id, 1)]);
    }
    assert_eq!(harness.register(3, "f", Sheddable), []);
    assert_eq!(block_reason(&harness, 3), Some(BlockReason::Ceiling { stock: 2, lower: 4 }));

    let mut policy = crate::support::policy();
    policy.gate = gate(4, 4);
    policy.queue.max_rate = Some(1.0);
    let mut harness = Harness::new(policy, 1);
    assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "f", Default), []);
    assert_eq!(block_reason(&harness, 2), Some(BlockReason::MaxRate));
}

#[test]
fn a_position_follows_the_discipline() {
    // In order of arrival: two of f, one of g, one anonymous, and a critical one last.
    let positions = |discipline| {
        let mut harness = busy_with(|policy| policy.flows.discipline = discipline);
        for (id, flow) in [(2, "f"), (3, "f"), (4, "g"), (5, "")] {
            harness.advance_to(id as f64).register(id, flow, Default);
        }
        harness.advance_to(9.0).register(6, "f", Critical);
        let tag = harness.engine.position(RequestId(2)).and_then(|position| position.tag);
        let order: Vec<_> = (2..=6).map(|id| ahead(&harness, id)).collect();
        let critical = harness.engine.position(RequestId(2)).map(|position| position.in_other_bands);
        assert_eq!(critical, Some(1), "{discipline:?}");
        (order, tag.is_some())
    };
    let order = |ahead: [u64; 5]| ahead.map(Some).to_vec();
    assert_eq!(positions(Discipline::Fifo), (order([1, 2, 3, 4, 0]), false));
    // f's second request comes behind one of each other flow.
    for discipline in [Discipline::Wfq, Discipline::RoundRobin, Discipline::Vtc] {
        let expected = (order([1, 4, 2, 3, 0]), true);
        assert_eq!(positions(discipline), expected, "{discipline:?}");
    }
    assert_eq!(positions(Discipline::Drr), (order([1, 4, 2, 3, 0]), false));
    // An anonymous request goes last.
    assert_eq!(positions(Discipline::Usage), (order([1, 3, 2, 4, 0]), true));
}
