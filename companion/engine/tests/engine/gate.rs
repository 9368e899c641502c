//! The bounded gate: for each input at a given time, the dispatched requests and the bounds.

use Band::Default;
use ShortEffect::{Bypassed, Dispatched, Settled};
use penstock_engine::input::{Band, ClassKey, EndpointState, Prompt, Service, Usage};
use penstock_engine::policy::{Class, ClassSet, Gate, StockUnit};
use penstock_engine::units::{Decimal, Tokens};
use penstock_engine::{EndpointId, Input, Policy, Request, RequestId};

use crate::support::*;

fn tokens(lower: u64, upper: u64) -> Gate {
    Gate::Bounded {
        unit: StockUnit::Tokens,
        lower: Decimal::whole(lower),
        upper: Decimal::whole(upper),
        watermark: Decimal::whole(lower),
    }
}

/// Stock, lower bound and upper bound.
fn gate_state(harness: &Harness) -> (u64, u64, u64) {
    (harness.engine.stock(), harness.engine.lower(), harness.engine.upper())
}

fn bound(harness: &Harness, id: u32) -> u64 {
    let endpoints = harness.engine.snapshot().endpoints;
    let endpoint = endpoints.iter().find(|endpoint| endpoint.id == EndpointId(id));
    endpoint.expect("the endpoint is listed").bound
}

fn load(harness: &mut Harness, id: u32, running: Option<u64>) -> Vec<ShortEffect> {
    harness.handle(Input::Load { id: EndpointId(id), running })
}

fn fail(harness: &mut Harness, id: u64) -> Vec<ShortEffect> {
    harness.handle(Input::Completed { id: RequestId(id), service: Service::Nothing })
}

/// Sends requests to `endpoint` until one has to wait, lets all of them be served, and returns their number.
fn serve_until_full(harness: &mut Harness, endpoint: u32, first: u64) -> u64 {
    let ids: Vec<u64> = (first..first + 100).collect();
    let granted: Vec<u64> = ids
        .iter()
        .copied()
        .take_while(|&id| {
            let effects = harness.handle(Input::Register(restricted(request(id, "f", Default), &[endpoint])));
            effects == [Bypassed(id, endpoint)]
        })
        .collect();
    // The request that had to wait is cancelled.
    harness.handle(Input::Cancel(RequestId(first + granted.len() as u64)));
    for &id in &granted {
        assert_eq!(harness.complete(id), [Settled(id, 1)]);
    }
    granted.len() as u64
}

#[test]
fn a_new_endpoint_starts_with_one_request_and_doubles_after_each_full_bound() {
    let mut harness = Harness::new(with_gate(gate(11, 11)), 1);
    harness.advance_to(2.0).endpoint(2, true);
    assert_eq!(gate_state(&harness), (0, 12, 12));
    let mut first = 0;
    let granted = [(); 6].map(|()| {
        first += 1_000;
        serve_until_full(&mut harness, 2, first)
    });
    assert_eq!(granted, [1, 2, 4, 8, 11, 11]);
    assert_eq!(gate_state(&harness), (0, 22, 22));
}

#[test]
fn bounds_are_exact_sums_of_ramps_and_weights() {
    let mut harness = Harness::new(Policy { gate: Gate::default(), ..policy() }, 2);
    assert_eq!(gate_state(&harness), (0, 4, 5), "3.6 and 4.4");
    harness.advance_to(2.0).endpoint(3, true);
    assert_eq!(gate_state(&harness), (0, 5, 6), "4.6 and 5.4");
    assert_eq!(serve_until_full(&mut harness, 3, 1_000), 1);
    assert_eq!(gate_state(&harness), (0, 6, 7), "5.4 and 6.4");
    assert_eq!(bound(&harness, 3), 2);
    assert_eq!(serve_until_full(&mut harness, 3, 2_000), 2);
    assert_eq!(
        (gate_state(&harness), bound(&harness, 3)),
        ((0, 6, 7), 3),
        "5.4 and 6.6: endpoint 3 is at its full bound"
    );
    let light =
        EndpointState { weight: Decimal::from_billionths(Decimal::ONE / 10), ..EndpointState::default() };
    harness.handle(Input::Endpoint { id: EndpointId(3), state: light });
    assert_eq!(gate_state(&harness), (0, 4, 5), "3.78 and 4.62");
    assert_eq!(bound(&harness, 3), 1);
}

#[test]
fn a_returning_endpoint_starts_slowly_and_one_of_the_first_second_does_not() {
    let mut harness = Harness::new(with_gate(gate(4, 4)), 2);
    harness.advance_to(0.4).endpoint(1, false);
    harness.advance_to(1.0).endpoint(1, true);
    harness.endpoint(3, true);
    assert_eq!(gate_state(&harness), (0, 12, 12), "within the first second there is no slow start");
    harness.advance_to(1.001).endpoint(4, true);
    assert_eq!(gate_state(&harness), (0, 13, 13));
    harness.endpoint(1, false);
    assert_eq!(gate_state(&harness), (0, 9, 9));
    harness.endpoint(1, true);
    assert_eq!(gate_state(&harness), (0, 10, 10));
    assert_eq!(serve_until_full(&mut harness, 1, 100), 1);
    assert_eq!(gate_state(&harness), (0, 11, 11));
    harness.endpoint(1, false);
    harness.endpoint(1, true);
    assert_eq!(gate_state(&harness), (0, 10, 10), "the slow start begins again");
    harness.handle(Input::EndpointRemoved(EndpointId(2)));
    harness.endpoint(2, true);
    assert_eq!(gate_state(&harness), (0, 7, 7), "4 + 1 + 1 + 1: an endpoint listed again is new");
}

#[test]
fn the_first_second_begins_when_dispatching_begins() {
    let mut harness =
        Harness { engine: penstock_engine::Engine::new(with_gate(gate(4, 4)), 7, time(0.0)), now: time(0.0) };
    harness.endpoint(1, true);
    harness.advance_to(60.0).endpoint(2, true);
    harness.handle(Input::Ready);
    harness.advance_to(61.0).endpoint(3, true);
    assert_eq!(gate_state(&harness), (0, 12, 12));
    harness.advance_to(61.1).handle(Input::Ready);
    harness.endpoint(4, true);
    assert_eq!(gate_state(&harness), (0, 13, 13), "a second ready input changes nothing");
}

#[test]
fn the_full_bound_ignores_slow_starts_and_foreign_load() {
    let mut harness = Harness::new(with_gate(gate(4, 4)), 0);
    assert_eq!(harness.engine.full_bound(), Some(0));
    harness.endpoint(1, true);
    harness.advance_to(60.0).endpoint(2, true);
    harness.handle(Input::Load { id: EndpointId(1), running: Some(3) });
    assert_eq!((harness.engine.upper(), harness.engine.full_bound()), (2, Some(8)));
    let state = EndpointState {
        weight: penstock_engine::units::Decimal::from_billionths(250_000_000),
        ..EndpointState::default()
    };
    let id = EndpointId(3);
    harness.handle(Input::Endpoint { id, state });
    harness.endpoint(4, false);
    assert_eq!(harness.engine.full_bound(), Some(9), "endpoint 4 isn't ready");
    for request in 1..=2 {
        harness.handle(Input::Failed { id: RequestId(request), endpoint: EndpointId(1) });
    }
    assert_eq!(harness.engine.full_bound(), Some(5), "an endpoint that is marked down isn't ready");
    harness.handle(Input::Policy(Box::new(with_gate(tokens(300, 400)))));
    assert_eq!(harness.engine.full_bound(), Some(500), "in the unit of the stock");
    for gate in [Gate::Open, Gate::Manual] {
        harness.handle(Input::Policy(Box::new(with_gate(gate))));
        assert_eq!(harness.engine.full_bound(), None);
    }
}

#[test]
fn failed_requests_do_not_advance_a_slow_start() {
    let mut harness = Harness::new(with_gate(gate(4, 4)), 0);
    harness.endpoint(1, true);
    harness.advance_to(5.0).endpoint(2, true);
    for id in 0..10 {
        harness.handle(Input::Register(restricted(request(id, "f", Default), &[2])));
        fail(&mut harness, id);
    }
    assert_eq!(bound(&harness, 2), 1);
    assert_eq!(
        harness.handle(Input::Register(restricted(request(90, "f", Default), &[2]))),
        [Bypassed(90, 2)]
    );
    harness.handle(Input::Requeue(RequestId(90)));
    assert_eq!(bound(&harness, 2), 1, "a requeued request doesn't advance it either");
    harness.complete(90);
    assert_eq!(bound(&harness, 2), 2);
}

#[test]
fn requests_held_back_by_a_slow_start_go_when_it_doubles() {
    let mut harness = Harness::new(with_gate(gate(3, 3)), 0);
    harness.endpoint(1, true);
    harness.advance_to(9.0).endpoint(1, false);
    harness.endpoint(1, true);
    assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
    for id in 2..=7 {
        assert_eq!(harness.register(id, "f", Default), []);
    }
    assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(2, 1), Dispatched(3, 1)]);
    assert_eq!(harness.complete(2), [Settled(2, 1), Dispatched(4, 1)]);
    // Two were served at a ramp of 2: the next, 4, is above the bound of 3, so the slow start ends.
    assert_eq!(harness.complete(3), [Settled(3, 1), Dispatched(5, 1), Dispatched(6, 1)]);
}

#[test]
fn stock_in_tokens_counts_prompt_and_expected_output() {
    // Each request counts 100 + 50 tokens.
    let mut harness = Harness::new(with_gate(tokens(300, 400)), 1);
    for id in 1..=3 {
        assert_eq!(harness.register(id, "f", Default), [Bypassed(id, 1)]);
    }
    assert_eq!(gate_state(&harness), (450, 300, 400), "the request that crosses the bound is granted");
    assert_eq!(harness.register(4, "f", Default), []);
    assert_eq!(harness.complete(1), [Settled(1, 1)], "300 is not below 300");
    assert_eq!(harness.complete(2), [Settled(2, 1), Dispatched(4, 1)]);
    assert_eq!(harness.engine.stock(), 300);
    let mut large = request(5, "f", Default);
    large.prompt = Prompt::Tokens(Tokens(100_000));
    assert_eq!(harness.handle(Input::Register(large)), [Bypassed(5, 1)]);
    assert_eq!(harness.register(6, "f", Default), []);
    harness.complete(3);
    harness.complete(4);
    assert_eq!(harness.engine.stock(), 100_050);
    assert_eq!(harness.complete(5), [Settled(5, 1), Dispatched(6, 1)]);
}

#[test]
fn stock_in_tokens_follows_the_settled_usage() {
    let mut harness = Harness::new(with_gate(tokens(300, 300)), 1);
    for id in 1..=2 {
        assert_eq!(harness.register(id, "f", Default), [Bypassed(id, 1)]);
    }
    assert_eq!(harness.register(3, "f", Default), []);
    let settle = |output| Input::Settle {
        id: RequestId(1),
        service: Service::Served(Usage { output: Some(Tokens(output)), ..Usage::default() }),
    };
    assert_eq!(
        harness.handle(settle(10)),
        [Dispatched(3, 1)],
        "40 tokens fewer, while the request still runs"
    );
    assert_eq!(harness.engine.stock(), 410);
    assert_eq!(harness.handle(settle(500)), [], "a second settle does nothing");
    assert_eq!(harness.engine.stock(), 410);
    harness.complete(1);
    assert_eq!(harness.engine.stock(), 300);
    // Nothing was served: the size stays the estimate, and the request runs on.
    harness.handle(Input::Settle { id: RequestId(2), service: Service::Nothing });
    assert_eq!(harness.engine.stock(), 300);
    harness.handle(Input::Requeue(RequestId(3)));
    assert_eq!(harness.engine.stock(), 300, "granted again, at its estimate");
    harness.complete(2);
    harness.complete(3);
    assert_eq!(harness.engine.stock(), 0);
}

#[test]
fn with_stock_in_tokens_one_request_is_always_granted() {
    let mut harness = Harness::new(with_gate(tokens(1, 1)), 1);
    assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "f", Default), []);
    assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(2, 1)]);
}

#[test]
fn the_least_loaded_endpoint_has_the_fewest_tokens() {
    let mut harness = Harness::new(with_gate(tokens(10_000, 10_000)), 2);
    let mut large = restricted(request(1, "f", Default), &[1]);
    large.prompt = Prompt::Tokens(Tokens(1_000));
    harness.handle(Input::Register(large));
    for id in 2..=7 {
        assert_eq!(harness.register(id, "f", Default), [Bypassed(id, 2)]);
    }
    assert_eq!(harness.engine.stock(), 1_050 + 6 * 150);
}

#[test]
fn a_changed_unit_recounts_running_requests() {
    let mut harness = Harness::new(with_gate(gate(4, 4)), 1);
    for id in 1..=4 {
        harness.register(id, "f", Default);
    }
    harness.register(5, "f", Default);
    assert_eq!(gate_state(&harness), (4, 4, 4));
    let effects = harness.handle(Input::Policy(Box::new(with_gate(tokens(700, 700)))));
    assert_eq!(effects, [Dispatched(5, 1)]);
    assert_eq!(gate_state(&harness), (750, 700, 700));
    harness.handle(Input::Policy(Box::new(with_gate(gate(6, 6)))));
    assert_eq!(gate_state(&harness), (5, 6, 6));
}

#[test]
fn with_stock_in_tokens_a_slow_start_counts_requests() {
    let mut harness = Harness::new(with_gate(tokens(1_000, 1_000)), 0);
    harness.endpoint(1, true);
    harness.advance_to(5.0).endpoint(1, false);
    harness.endpoint(1, true);
    assert_eq!(gate_state(&harness), (0, 1_000, 1_000));
    let mut first = 0;
    let granted = [(); 5].map(|()| {
        first += 1_000;
        serve_until_full(&mut harness, 1, first)
    });
    assert_eq!(granted, [1, 2, 4, 7, 7], "7 x 150 is the first sum of at least 1,000");
}

#[test]
fn draining_stock_does_not_count_at_the_gate() {
    let mut harness = Harness::new(with_gate(gate(2, 2)), 3);
    for id in 1..=6 {
        let request = request(id, "f", Default);
        harness.handle(Input::Adopt { request, endpoint: EndpointId(3) });
    }
    assert_eq!(harness.register(7, "f", Default), []);
    assert_eq!(gate_state(&harness), (6, 6, 6), "the pool is full");
    assert!(matches!(harness.endpoint(3, false)[..], [Dispatched(7, 1 | 2)]));
    assert_eq!(gate_state(&harness), (1, 4, 4));
    assert_eq!(harness.engine.snapshot().draining_stock, 6);
    for id in 8..=10 {
        assert!(matches!(harness.register(id, "f", Default)[..], [Bypassed(_, 1 | 2)]));
    }
    assert_eq!(harness.register(11, "f", Default), []);
    assert_eq!(harness.complete(1), [Settled(1, 1)], "a completion on a draining endpoint frees no place");
    harness.handle(Input::EndpointRemoved(EndpointId(3)));
    assert_eq!((gate_state(&harness), harness.engine.snapshot().draining_stock), ((4, 4, 4), 5));
    assert!(matches!(harness.complete(7)[..], [Settled(7, 1), Dispatched(11, _)]));
    for id in 2..=6 {
        harness.complete(id);
    }
    assert_eq!(harness.engine.snapshot().draining_stock, 0);
    assert_eq!(harness.engine.snapshot().endpoints.len(), 2, "no state of the removed endpoint is kept");
}

fn endpoint_stock(harness: &Harness, id: u32) -> u64 {
    let endpoints = harness.engine.snapshot().endpoints;
    let endpoint = endpoints.iter().find(|endpoint| endpoint.id == EndpointId(id));
    endpoint.expect("the endpoint is listed").stock
}

#[test]
fn foreign_load_lowers_the_bound_of_its_endpoint() {
    let mut harness = Harness::new(with_gate(gate(4, 4)), 2);
    for id in 1..=4 {
        harness.register(id, "f", Default);
    }
    let stocks = [1, 2].map(|id| endpoint_stock(&harness, id));
    assert_eq!(stocks, [2, 2]);
    assert_eq!(load(&mut harness, 1, Some(2)), []);
    assert_eq!(gate_state(&harness), (4, 8, 8), "both running requests are this pool's");
    load(&mut harness, 1, Some(0));
    assert_eq!(gate_state(&harness), (4, 8, 8), "a scraped load never raises a bound");
    load(&mut harness, 1, Some(4));
    assert_eq!(gate_state(&harness), (4, 6, 6));
    assert_eq!(bound(&harness, 1), 2);
    for id in 5..=6 {
        assert_eq!(harness.register(id, "f", Default), [Bypassed(id, 2)]);
    }
    assert_eq!(harness.register(7, "f", Default), []);
    assert_eq!(load(&mut harness, 1, Some(3)), [Dispatched(7, 1)], "one foreign request has ended");
    assert_eq!(harness.register(8, "f", Default), []);
    assert_eq!(load(&mut harness, 1, None), [Dispatched(8, 1)], "the load is not known any more");
    assert_eq!(gate_state(&harness), (8, 8, 8));
}

#[test]
fn no_scraped_load_stops_dispatch() {
    let mut harness = Harness::new(with_gate(gate(4, 4)), 2);
    load(&mut harness, 1, Some(u64::MAX));
    load(&mut harness, 2, Some(1_000));
    assert_eq!(gate_state(&harness), (0, 0, 0));
    assert!(matches!(harness.register(1, "f", Default)[..], [Bypassed(1, _)]));
    assert_eq!(harness.register(2, "f", Default), []);
    assert!(matches!(harness.complete(1)[..], [Settled(1, 1), Dispatched(2, _)]));
    // The load of an unlisted endpoint is ignored, and a removed endpoint that returns doesn't keep its load.
    load(&mut harness, 9, Some(5));
    harness.handle(Input::EndpointRemoved(EndpointId(2)));
    harness.endpoint(2, true);
    assert_eq!(harness.engine.upper(), 4);
}

#[test]
fn with_stock_in_tokens_foreign_requests_do_not_count() {
    let mut harness = Harness::new(with_gate(tokens(1_000, 1_000)), 1);
    load(&mut harness, 1, Some(100));
    assert_eq!(gate_state(&harness), (0, 1_000, 1_000));
}

/// Two classes: `long`, with a threshold, and `short`.
fn with_threshold(tokens: Option<u64>, fraction: Option<f64>) -> Policy {
    let long = Class { busy_tokens: tokens, busy_fraction: fraction, ..Class::new("long", 1_000) };
    let set = ClassSet { classes: vec![long, Class::new("short", 1_000)], ..ClassSet::default() };
    Policy { classes: vec![set], ..with_gate(gate(10, 10)) }
}

fn request_of_class(class: &str, id: u64) -> Request {
    let mut request = request(id, class, Default);
    request.class = ClassKey::Family(class.into());
    request
}

#[test]
fn a_class_goes_while_an_endpoint_is_not_above_its_threshold() {
    let mut harness = Harness::new(with_threshold(Some(150), None), 2);
    // 100 uncached prompt tokens each: 0 and 100 are not above 150, 200 is.
    for id in 1..=4 {
        let effects = harness.handle(Input::Register(request_of_class("long", id)));
        assert!(matches!(effects[..], [Bypassed(_, 1 | 2)]), "{effects:?}");
    }
    assert_eq!(harness.handle(Input::Register(request_of_class("long", 5))), []);
    let mut cached = request_of_class("short", 6);
    cached.cached = Tokens(90);
    let effects = harness.handle(Input::Register(cached));
    let [Bypassed(6, endpoint)] = effects[..] else {
        panic!("the waiting request is blocked by its threshold only: {effects:?}")
    };
    let stock_at = |harness: &Harness, id| endpoint_stock(harness, id);
    assert_eq!((stock_at(&harness, endpoint), stock_at(&harness, 3 - endpoint)), (3, 2));
    // Wherever a request ends, 100 or 110 tokens are left, which is not above 150.
    let effects = harness.complete(1);
    assert!(matches!(effects[..], [Settled(1, 1), Dispatched(5, _)]), "{effects:?}");
    assert_eq!(harness.handle(Input::Register(request_of_class("long", 7))), []);
    // A higher threshold admits it at once.
    let effects = harness.handle(Input::Policy(Box::new(with_threshold(Some(1_000), None))));
    assert!(matches!(effects[..], [Dispatched(7, _)]), "{effects:?}");
}

#[test]
fn a_threshold_is_a_part_of_the_batched_tokens_if_they_are_known() {
    let mut harness = Harness::new(with_threshold(None, Some(0.1)), 1);
    for id in 1..=3 {
        assert_eq!(
            harness.handle(Input::Register(request_of_class("long", id))),
            [Bypassed(id, 1)],
            "the endpoint's batched tokens are not known"
        );
    }
    let with_batched_tokens = |batched_tokens_max| Input::Endpoint {
        id: EndpointId(1),
        state: EndpointState { batched_tokens_max: Some(batched_tokens_max), ..EndpointState::default() },
    };
    harness.handle(with_batched_tokens(2_990));
    assert_eq!(harness.handle(Input::Register(request_of_class("long", 4))), [], "300 is above 299");
    assert_eq!(harness.handle(with_batched_tokens(3_000)), [Dispatched(4, 1)], "300 is not above 300");
    assert_eq!(harness.handle(Input::Register(request_of_class("long", 5))), []);
    assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(5, 1)]);
}
