//! Admission credit: what is given counts as stock, and a reported request takes its place.

use Band::Default;
use ShortEffect::{Bypassed, Dispatched};
use penstock_engine::input::{Band, Prompt, Service};
use penstock_engine::policy::{Admit, Bucket, Class, ClassSet, CostUnit, Gate, StockUnit};
use penstock_engine::units::{Decimal, Tokens};
use penstock_engine::{EndpointId, Input, Outcome, Policy, Request, RequestId};

use crate::support::*;

const HERE: EndpointId = EndpointId(1);

fn give(harness: &mut Harness, endpoint: u32, requests: u64) -> Vec<ShortEffect> {
    let endpoint = EndpointId(endpoint);
    harness.handle(Input::GiveCredit { endpoint, requests })
}

fn take_back(harness: &mut Harness, endpoint: u32, requests: u64) -> Vec<ShortEffect> {
    let endpoint = EndpointId(endpoint);
    harness.handle(Input::TakeBack { endpoint, requests })
}

/// A filter has admitted this request at the first endpoint. `takes_place`: one place there ends with it.
fn admitted(harness: &mut Harness, id: u64, takes_place: bool) -> Vec<ShortEffect> {
    harness.handle(Input::AdmittedByCredit {
        request: request(id, "f", Default),
        place: takes_place.then_some(HERE),
        endpoint: HERE,
    })
}

/// Stock with credit, stock alone and credit.
fn counts(harness: &Harness) -> (u64, u64, u64) {
    let snapshot = harness.engine.snapshot();
    (harness.engine.stock(), snapshot.stock, snapshot.credit)
}

#[test]
fn what_is_given_fills_the_bound_and_a_waiting_request_goes_when_it_is_back() {
    let mut harness = Harness::new(with_gate(gate(3, 3)), 1);
    assert_eq!(give(&mut harness, 1, 2), []);
    assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "f", Default), []);
    assert_eq!(counts(&harness), (3, 1, 2));
    assert_eq!(take_back(&mut harness, 1, 1), [Dispatched(2, 1)]);
    assert_eq!(counts(&harness), (3, 2, 1));
}

#[test]
fn a_reported_request_takes_its_place_without_a_gap() {
    let mut harness = Harness::new(with_gate(gate(2, 2)), 1);
    give(&mut harness, 1, 2);
    assert_eq!(harness.register(1, "f", Default), [], "both places may be taken");
    assert_eq!(admitted(&mut harness, 2, true), []);
    assert_eq!(counts(&harness), (2, 1, 1));
    let counters = harness.engine.snapshot().counters;
    assert_eq!((counters.arrivals, counters.outcome(Outcome::Leased)), (2, 1));
}

#[test]
fn a_request_without_a_place_counts_beside_what_is_given() {
    let mut harness = Harness::new(with_gate(gate(2, 2)), 1);
    give(&mut harness, 1, 2);
    admitted(&mut harness, 1, false);
    assert_eq!(counts(&harness), (3, 1, 2), "above the bound, as everything that runs");
    admitted(&mut harness, 1, true);
    assert_eq!(counts(&harness), (3, 1, 2), "it is known");
    take_back(&mut harness, 1, 9);
    admitted(&mut harness, 2, true);
    assert_eq!(counts(&harness), (2, 2, 0), "no more is taken back than was given");
}

#[test]
fn a_leased_request_is_requeued_to_its_place_and_has_one_outcome() {
    let mut harness = Harness::new(with_gate(gate(1, 1)), 1);
    admitted(&mut harness, 1, false);
    harness.register(2, "g", Default);
    assert_eq!(harness.handle(Input::Requeue(RequestId(1))), [Dispatched(1, 1)], "it came first");
    let counters = harness.engine.snapshot().counters;
    assert_eq!((counters.outcome(Outcome::Leased), counters.outcome(Outcome::Dispatched)), (0, 1));
}

#[test]
fn room_for_credit_ends_at_half_of_the_pools_and_of_the_endpoints_bound() {
    let mut harness = Harness::new(with_gate(gate(10, 20)), 2);
    assert_eq!(harness.engine.credit_room(HERE), 10, "half of 2 x 10, and half of 20");
    harness.register(1, "f", Default);
    assert_eq!(harness.engine.credit_room(HERE), 10, "one that runs doesn't count");
    give(&mut harness, 1, 6);
    assert_eq!(harness.engine.credit_room(HERE), 4);
    give(&mut harness, 2, 3);
    assert_eq!(harness.engine.credit_room(HERE), 1);
    harness.register(2, "f", Default);
    assert_eq!(harness.engine.credit_room(HERE), 0);
    for (bound, room) in [(1, 0), (2, 0), (3, 1), (4, 2), (5, 2)] {
        let mut small = Harness::new(with_gate(gate(bound, bound)), 1);
        small.register(1, "f", Default);
        assert_eq!(small.engine.credit_room(HERE), room, "a bound of {bound}");
    }
    let harness = Harness::new(with_gate(gate(10, 10)), 2);
    assert_eq!(harness.engine.credit_room(HERE), 5, "half of 10");
    assert_eq!(harness.engine.credit_room(EndpointId(9)), 0, "it isn't listed");
    let open = Harness::new(with_gate(Gate::Open), 1);
    assert!(open.engine.credit_room(HERE) > 1_000_000);
}

#[test]
fn there_is_no_room_for_credit_while_something_waits_or_the_pool_is_on_hold() {
    type Change = fn(&mut Harness);
    let changes: [Change; 5] = [
        |harness| {
            harness.handle(Input::Resume(restricted(request(9, "f", Default), &[2])));
        },
        |harness| {
            harness.handle(Input::Drain(true));
        },
        |harness| {
            harness.handle(Input::Hold);
        },
        |harness| {
            harness.endpoint(1, false);
        },
        |harness| {
            harness.register(9, "f", Default);
            let (id, endpoint) = (RequestId(9), HERE);
            harness.handle(Input::PushedBack { id, endpoint });
        },
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut harness = Harness::new(with_gate(gate(10, 10)), 2);
        harness.endpoint(2, false);
        assert!(harness.engine.credit_room(HERE) > 0);
        change(&mut harness);
        assert_eq!(harness.engine.credit_room(HERE), 0, "change {index}");
    }
}

#[test]
fn an_endpoint_that_starts_slowly_gets_no_credit() {
    let mut harness = Harness::new(with_gate(gate(10, 10)), 2);
    harness.advance_to(60.0);
    harness.endpoint(1, false);
    harness.endpoint(1, true);
    assert_eq!(harness.engine.credit_room(HERE), 0);
    assert!(!harness.engine.keeps_credit_at(HERE));
}

#[test]
fn credit_is_kept_until_the_stock_is_above_the_lower_bound() {
    let mut harness = Harness::new(with_gate(gate(4, 6)), 1);
    give(&mut harness, 1, 2);
    for id in 1..=2 {
        harness.register(id, "f", Default);
    }
    assert!(harness.engine.keeps_credit());
    harness.register(3, "f", Default);
    assert!(!harness.engine.keeps_credit());
}

#[test]
fn a_bound_that_falls_below_what_is_given_keeps_no_credit_there() {
    let mut harness = Harness::new(with_gate(gate(10, 10)), 1);
    give(&mut harness, 1, 5);
    let load = |running| Input::Load { id: HERE, running };
    harness.handle(load(Some(11)));
    assert!(!harness.engine.keeps_credit_at(HERE), "six are foreign, so four may run");
    harness.handle(load(Some(5)));
    assert!(harness.engine.keeps_credit_at(HERE), "a place given isn't foreign");
}

#[test]
fn an_endpoint_is_known_until_its_last_place_is_back() {
    let mut harness = Harness::new(with_gate(gate(4, 4)), 1);
    give(&mut harness, 1, 2);
    harness.handle(Input::EndpointRemoved(HERE));
    assert!(harness.engine.has_endpoint(HERE));
    let snapshot = harness.engine.snapshot();
    assert_eq!((snapshot.stock, snapshot.draining_stock, snapshot.credit), (0, 0, 2));
    take_back(&mut harness, 1, 2);
    assert!(!harness.engine.has_endpoint(HERE));
    give(&mut harness, 1, 2);
    assert_eq!(harness.engine.credit(), 0, "no place is given at an unknown endpoint");
}

#[test]
fn saturation_counts_credit() {
    let mut harness = Harness::new(with_gate(gate(4, 4)), 1);
    give(&mut harness, 1, 2);
    assert_eq!(harness.engine.saturation_milli(), 500);
}

#[test]
fn a_leased_request_is_charged_and_settled_like_any_other() {
    let run = |is_by_credit: bool| {
        let mut harness = Harness::new(Policy::default(), 1);
        if is_by_credit {
            admitted(&mut harness, 1, false);
        } else {
            harness.register(1, "f", Default);
        }
        let settled = harness.handle(Input::Completed {
            id: RequestId(1),
            service: Service::Served(penstock_engine::input::Usage {
                prompt: Some(Tokens(70)),
                cached: None,
                output: Some(Tokens(5)),
            }),
        });
        let flows = harness.engine.snapshot().flows;
        (settled, flows[0].served_tokens, flows[0].finish.to_bits())
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn a_policy_that_could_decide_otherwise_allows_no_credit() {
    type Change = fn(&mut Policy);
    let changes: [Change; 11] = [
        |policy| policy.gate = Gate::Manual,
        |policy| policy.gate = Gate::Auto { initial: Decimal::whole(9) },
        |policy| {
            policy.gate = Gate::Bounded {
                unit: StockUnit::Tokens,
                lower: Decimal::whole(9),
                upper: Decimal::whole(9),
                watermark: Decimal::whole(9),
            }
        },
        |policy| policy.queue.max_rate = Some(9.0),
        |policy| policy.queue.enabled = false,
        |policy| policy.queue.total_capacity = 0,
        |policy| policy.queue.admit = Admit::CriticalOnly,
        |policy| policy.flows.max_in_flight = Some(9),
        |policy| policy.flows.max_in_flight_per_endpoint = Some(9),
        |policy| policy.bands.ceilings[2] = Some(Decimal::from_billionths(1)),
        |policy| policy.classes = vec![buckets()],
    ];
    assert!(policy().allows_credit() && with_gate(Gate::Open).allows_credit());
    for (index, change) in changes.into_iter().enumerate() {
        let mut policy = policy();
        change(&mut policy);
        assert!(!policy.allows_credit(), "change {index}");
    }
    let mut classes = policy();
    classes.classes = vec![ClassSet { classes: vec![Class::new("chat", 512)], ..ClassSet::default() }];
    assert!(classes.allows_credit(), "the class follows from the family alone");
    classes.classes[0].classes[0].busy_tokens = Some(9);
    assert!(!classes.allows_credit());
}

fn buckets() -> ClassSet {
    ClassSet {
        classes: vec![Class::new("chat", 512)],
        buckets: vec![Bucket { min_tokens: 0, name: "short".into() }],
        ..ClassSet::default()
    }
}

#[test]
fn a_request_admitted_by_credit_is_charged_once_while_its_flow_waits_for_a_full_endpoint() {
    let mut harness = busy_with(|policy| policy.flows.cost = CostUnit::Tokens);
    let waiting = restricted(request(2, "f", Default), &[1]);
    assert_eq!(harness.handle(Input::Register(waiting)), []);
    let finish = |harness: &Harness| {
        let flows = harness.engine.snapshot().flows;
        let found = flows.into_iter().find(|flow| *flow.key == *"f");
        found.expect("a request of the flow waits").finish
    };
    let before = finish(&harness);
    let admitted = Request { prompt: Prompt::Tokens(Tokens(5_000)), ..request(3, "f", Default) };
    harness.handle(Input::AdmittedByCredit { request: admitted, place: None, endpoint: HERE });
    assert_eq!(finish(&harness) - before, 5_100.0, "5,000, and twice 50");
}
