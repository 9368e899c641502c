//! How much the servers work on at a time: given this input at this time, what goes and what the bounds are.

mod support;

use penstock_engine::input::{Band, ClassKey, EndpointState, Prompt, Service, Usage};
use penstock_engine::policy::{Class, ClassSet, Gate, StockUnit};
use penstock_engine::units::{Decimal, Tokens};
use penstock_engine::{EndpointId, Input, Policy, Request, RequestId};

use Band::Default;
use Said::{Bypassed, Dispatched, Settled};
use support::*;

fn tokens(lower: u64, upper: u64) -> Gate {
    Gate::Bounded {
        unit: StockUnit::Tokens,
        lower: Decimal::whole(lower),
        upper: Decimal::whole(upper),
        watermark: Decimal::whole(lower),
    }
}

/// Stock, lower and upper.
fn level(bench: &Bench) -> (u64, u64, u64) {
    (bench.engine.stock(), bench.engine.lower(), bench.engine.upper())
}

fn bound(bench: &Bench, id: u32) -> u64 {
    let endpoints = bench.engine.snapshot().endpoints;
    let endpoint = endpoints.iter().find(|endpoint| endpoint.id == EndpointId(id));
    endpoint.expect("it is listed").bound
}

fn load(bench: &mut Bench, id: u32, running: Option<u64>) -> Vec<Said> {
    bench.say(Input::Load {
        id: EndpointId(id),
        running,
    })
}

fn fail(bench: &mut Bench, id: u64) -> Vec<Said> {
    bench.say(Input::Completed {
        id: RequestId(id),
        service: Service::Nothing,
    })
}

/// Sends what may go, to `endpoint` only, and lets all of it be served. Returns how many went.
fn boundful(bench: &mut Bench, endpoint: u32, first: u64) -> u64 {
    let ids: Vec<u64> = (first..first + 100).collect();
    let went: Vec<u64> = ids
        .iter()
        .copied()
        .take_while(|&id| {
            let said = bench.say(Input::Register(only(request(id, "f", Default), &[endpoint])));
            said == [Bypassed(id, endpoint)]
        })
        .collect();
    // The one that had to wait goes away.
    bench.say(Input::Cancel(RequestId(first + went.len() as u64)));
    for &id in &went {
        assert_eq!(bench.complete(id), [Settled(id, 1)]);
    }
    went.len() as u64
}

#[test]
fn a_new_endpoint_starts_with_one_and_doubles_for_each_boundful_served() {
    let mut bench = Bench::new(with_gate(gate(11, 11)), 1);
    bench.at(2.0).endpoint(2, true);
    assert_eq!(level(&bench), (0, 12, 12));
    let mut first = 0;
    let went = [(); 6].map(|()| {
        first += 1_000;
        boundful(&mut bench, 2, first)
    });
    assert_eq!(went, [1, 2, 4, 8, 11, 11]);
    assert_eq!(level(&bench), (0, 22, 22));
}

#[test]
fn bounds_are_exact_sums_of_ramps_and_weights() {
    let mut bench = Bench::new(
        Policy {
            gate: Gate::default(),
            ..policy()
        },
        2,
    );
    assert_eq!(level(&bench), (0, 4, 5), "3.6 and 4.4");
    bench.at(2.0).endpoint(3, true);
    assert_eq!(level(&bench), (0, 5, 6), "4.6 and 5.4");
    assert_eq!(boundful(&mut bench, 3, 1_000), 1);
    assert_eq!(level(&bench), (0, 6, 7), "5.4 and 6.4");
    assert_eq!(bound(&bench, 3), 2);
    assert_eq!(boundful(&mut bench, 3, 2_000), 2);
    assert_eq!(
        (level(&bench), bound(&bench, 3)),
        ((0, 6, 7), 3),
        "5.4 and 6.6: at its full bound"
    );
    let light = EndpointState {
        weight: Decimal::from_billionths(Decimal::ONE / 10),
        ..EndpointState::default()
    };
    bench.say(Input::Endpoint {
        id: EndpointId(3),
        state: light,
    });
    assert_eq!(level(&bench), (0, 4, 5), "3.78 and 4.62");
    assert_eq!(bound(&bench, 3), 1);
}

#[test]
fn one_that_comes_back_starts_over_and_one_of_the_start_does_not() {
    let mut bench = Bench::new(with_gate(gate(4, 4)), 2);
    bench.at(0.4).endpoint(1, false);
    bench.at(1.0).endpoint(1, true);
    bench.endpoint(3, true);
    assert_eq!(level(&bench), (0, 12, 12), "the pool has only begun");
    bench.at(1.001).endpoint(4, true);
    assert_eq!(level(&bench), (0, 13, 13));
    bench.endpoint(1, false);
    assert_eq!(level(&bench), (0, 9, 9));
    bench.endpoint(1, true);
    assert_eq!(level(&bench), (0, 10, 10));
    assert_eq!(boundful(&mut bench, 1, 100), 1);
    assert_eq!(level(&bench), (0, 11, 11));
    bench.endpoint(1, false);
    bench.endpoint(1, true);
    assert_eq!(level(&bench), (0, 10, 10), "from the beginning");
    bench.say(Input::EndpointRemoved(EndpointId(2)));
    bench.endpoint(2, true);
    assert_eq!(
        level(&bench),
        (0, 7, 7),
        "4 + 1 + 1 + 1: what is listed anew is new"
    );
}

#[test]
fn the_first_second_begins_when_dispatching_does() {
    let mut bench = Bench {
        engine: penstock_engine::Engine::new(with_gate(gate(4, 4)), 7, at(0.0)),
        now: at(0.0),
    };
    bench.endpoint(1, true);
    bench.at(60.0).endpoint(2, true);
    bench.say(Input::Ready);
    bench.at(61.0).endpoint(3, true);
    assert_eq!(level(&bench), (0, 12, 12));
    bench.at(61.1).say(Input::Ready);
    bench.endpoint(4, true);
    assert_eq!(level(&bench), (0, 13, 13), "said again, it changes nothing");
}

#[test]
fn the_full_bound_knows_no_slow_starts_and_no_foreign_load() {
    let mut bench = Bench::new(with_gate(gate(4, 4)), 0);
    assert_eq!(bench.engine.full_bound(), Some(0));
    bench.endpoint(1, true);
    bench.at(60.0).endpoint(2, true);
    bench.say(Input::Load {
        id: EndpointId(1),
        running: Some(3),
    });
    assert_eq!((bench.engine.upper(), bench.engine.full_bound()), (2, Some(8)));
    let state = EndpointState {
        weight: penstock_engine::units::Decimal::from_billionths(250_000_000),
        ..EndpointState::default()
    };
    let id = EndpointId(3);
    bench.say(Input::Endpoint { id, state });
    bench.endpoint(4, false);
    assert_eq!(bench.engine.full_bound(), Some(9), "4 isn't ready");
    for request in 1..=2 {
        bench.say(Input::Failed {
            id: RequestId(request),
            endpoint: EndpointId(1),
        });
    }
    assert_eq!(bench.engine.full_bound(), Some(5), "nor is what is marked down");
    bench.say(Input::Policy(Box::new(with_gate(tokens(300, 400)))));
    assert_eq!(
        bench.engine.full_bound(),
        Some(500),
        "in what stock is counted in"
    );
    for gate in [Gate::Open, Gate::Manual] {
        bench.say(Input::Policy(Box::new(with_gate(gate))));
        assert_eq!(bench.engine.full_bound(), None);
    }
}

#[test]
fn what_failed_does_not_speed_up_a_slow_start() {
    let mut bench = Bench::new(with_gate(gate(4, 4)), 0);
    bench.endpoint(1, true);
    bench.at(5.0).endpoint(2, true);
    for id in 0..10 {
        bench.say(Input::Register(only(request(id, "f", Default), &[2])));
        fail(&mut bench, id);
    }
    assert_eq!(bound(&bench, 2), 1);
    assert_eq!(
        bench.say(Input::Register(only(request(90, "f", Default), &[2]))),
        [Bypassed(90, 2)]
    );
    bench.say(Input::Requeue(RequestId(90)));
    assert_eq!(bound(&bench, 2), 1, "nor what never got there");
    bench.complete(90);
    assert_eq!(bound(&bench, 2), 2);
}

#[test]
fn what_a_slow_start_holds_back_goes_as_it_doubles() {
    let mut bench = Bench::new(with_gate(gate(3, 3)), 0);
    bench.endpoint(1, true);
    bench.at(9.0).endpoint(1, false);
    bench.endpoint(1, true);
    assert_eq!(bench.register(1, "f", Default), [Bypassed(1, 1)]);
    for id in 2..=7 {
        assert_eq!(bench.register(id, "f", Default), []);
    }
    assert_eq!(
        bench.complete(1),
        [Settled(1, 1), Dispatched(2, 1), Dispatched(3, 1)]
    );
    assert_eq!(bench.complete(2), [Settled(2, 1), Dispatched(4, 1)]);
    // Two were served at 2: 4 is above its bound of 3, which it has from now on.
    assert_eq!(
        bench.complete(3),
        [Settled(3, 1), Dispatched(5, 1), Dispatched(6, 1)]
    );
}

#[test]
fn stock_in_tokens_counts_prompt_and_expected_output() {
    // Each is 100 + 50.
    let mut bench = Bench::new(with_gate(tokens(300, 400)), 1);
    for id in 1..=3 {
        assert_eq!(bench.register(id, "f", Default), [Bypassed(id, 1)]);
    }
    assert_eq!(level(&bench), (450, 300, 400), "the one that crosses goes");
    assert_eq!(bench.register(4, "f", Default), []);
    assert_eq!(bench.complete(1), [Settled(1, 1)], "300 aren't below 300");
    assert_eq!(bench.complete(2), [Settled(2, 1), Dispatched(4, 1)]);
    assert_eq!(bench.engine.stock(), 300);
    let mut large = request(5, "f", Default);
    large.prompt = Prompt::Tokens(Tokens(100_000));
    assert_eq!(bench.say(Input::Register(large)), [Bypassed(5, 1)]);
    assert_eq!(bench.register(6, "f", Default), []);
    bench.complete(3);
    bench.complete(4);
    assert_eq!(bench.engine.stock(), 100_050);
    assert_eq!(bench.complete(5), [Settled(5, 1), Dispatched(6, 1)]);
}

#[test]
fn stock_in_tokens_is_settled_like_any_cost() {
    let mut bench = Bench::new(with_gate(tokens(300, 300)), 1);
    for id in 1..=2 {
        assert_eq!(bench.register(id, "f", Default), [Bypassed(id, 1)]);
    }
    assert_eq!(bench.register(3, "f", Default), []);
    let settle = |output| Input::Settle {
        id: RequestId(1),
        service: Service::Served(Usage {
            output: Some(Tokens(output)),
            ..Usage::default()
        }),
    };
    assert_eq!(
        bench.say(settle(10)),
        [Dispatched(3, 1)],
        "40 fewer, and all of it still runs"
    );
    assert_eq!(bench.engine.stock(), 410);
    assert_eq!(bench.say(settle(500)), [], "once");
    assert_eq!(bench.engine.stock(), 410);
    bench.complete(1);
    assert_eq!(bench.engine.stock(), 300);
    // Nothing was served: what it weighs is unknown still, and it runs on.
    bench.say(Input::Settle {
        id: RequestId(2),
        service: Service::Nothing,
    });
    assert_eq!(bench.engine.stock(), 300);
    bench.say(Input::Requeue(RequestId(3)));
    assert_eq!(bench.engine.stock(), 300, "went again, at its estimate");
    bench.complete(2);
    bench.complete(3);
    assert_eq!(bench.engine.stock(), 0);
}

#[test]
fn in_tokens_one_always_goes() {
    let mut bench = Bench::new(with_gate(tokens(1, 1)), 1);
    assert_eq!(bench.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(bench.register(2, "f", Default), []);
    assert_eq!(bench.complete(1), [Settled(1, 1), Dispatched(2, 1)]);
}

#[test]
fn the_least_loaded_is_that_with_the_fewest_tokens() {
    let mut bench = Bench::new(with_gate(tokens(10_000, 10_000)), 2);
    let mut large = only(request(1, "f", Default), &[1]);
    large.prompt = Prompt::Tokens(Tokens(1_000));
    bench.say(Input::Register(large));
    for id in 2..=7 {
        assert_eq!(bench.register(id, "f", Default), [Bypassed(id, 2)]);
    }
    assert_eq!(bench.engine.stock(), 1_050 + 6 * 150);
}

#[test]
fn another_unit_counts_anew_what_runs() {
    let mut bench = Bench::new(with_gate(gate(4, 4)), 1);
    for id in 1..=4 {
        bench.register(id, "f", Default);
    }
    bench.register(5, "f", Default);
    assert_eq!(level(&bench), (4, 4, 4));
    let said = bench.say(Input::Policy(Box::new(with_gate(tokens(700, 700)))));
    assert_eq!(said, [Dispatched(5, 1)]);
    assert_eq!(level(&bench), (750, 700, 700));
    bench.say(Input::Policy(Box::new(with_gate(gate(6, 6)))));
    assert_eq!(level(&bench), (5, 6, 6));
}

#[test]
fn a_slow_start_in_tokens_holds_back_requests() {
    let mut bench = Bench::new(with_gate(tokens(1_000, 1_000)), 0);
    bench.endpoint(1, true);
    bench.at(5.0).endpoint(1, false);
    bench.endpoint(1, true);
    assert_eq!(level(&bench), (0, 1_000, 1_000));
    let mut first = 0;
    let went = [(); 5].map(|()| {
        first += 1_000;
        boundful(&mut bench, 1, first)
    });
    assert_eq!(went, [1, 2, 4, 7, 7], "7 x 150 are the first that reach 1,000");
}

#[test]
fn draining_stock_gates_nothing() {
    let mut bench = Bench::new(with_gate(gate(2, 2)), 3);
    for id in 1..=6 {
        let request = request(id, "f", Default);
        bench.say(Input::Adopt {
            request,
            endpoint: EndpointId(3),
        });
    }
    assert_eq!(bench.register(7, "f", Default), []);
    assert_eq!(level(&bench), (6, 6, 6), "the pool is full");
    assert!(matches!(bench.endpoint(3, false)[..], [Dispatched(7, 1 | 2)]));
    assert_eq!(level(&bench), (1, 4, 4));
    assert_eq!(bench.engine.snapshot().draining_stock, 6);
    for id in 8..=10 {
        assert!(matches!(
            bench.register(id, "f", Default)[..],
            [Bypassed(_, 1 | 2)]
        ));
    }
    assert_eq!(bench.register(11, "f", Default), []);
    assert_eq!(
        bench.complete(1),
        [Settled(1, 1)],
        "what ends on a drained one lets nobody go"
    );
    bench.say(Input::EndpointRemoved(EndpointId(3)));
    assert_eq!(
        (level(&bench), bench.engine.snapshot().draining_stock),
        ((4, 4, 4), 5)
    );
    assert!(matches!(
        bench.complete(7)[..],
        [Settled(7, 1), Dispatched(11, _)]
    ));
    for id in 2..=6 {
        bench.complete(id);
    }
    assert_eq!(bench.engine.snapshot().draining_stock, 0);
    assert_eq!(
        bench.engine.snapshot().endpoints.len(),
        2,
        "nothing of it is kept"
    );
}

fn endpoint_stock(bench: &Bench, id: u32) -> u64 {
    let endpoints = bench.engine.snapshot().endpoints;
    let endpoint = endpoints.iter().find(|endpoint| endpoint.id == EndpointId(id));
    endpoint.expect("it is listed").stock
}

#[test]
fn load_that_is_not_ours_lowers_the_bound_of_its_endpoint() {
    let mut bench = Bench::new(with_gate(gate(4, 4)), 2);
    for id in 1..=4 {
        bench.register(id, "f", Default);
    }
    let there = [1, 2].map(|id| endpoint_stock(&bench, id));
    assert_eq!(there, [2, 2]);
    assert_eq!(load(&mut bench, 1, Some(2)), []);
    assert_eq!(level(&bench), (4, 8, 8), "these are ours");
    load(&mut bench, 1, Some(0));
    assert_eq!(level(&bench), (4, 8, 8), "nothing scraped raises a bound");
    load(&mut bench, 1, Some(4));
    assert_eq!(level(&bench), (4, 6, 6));
    assert_eq!(bound(&bench, 1), 2);
    for id in 5..=6 {
        assert_eq!(bench.register(id, "f", Default), [Bypassed(id, 2)]);
    }
    assert_eq!(bench.register(7, "f", Default), []);
    assert_eq!(
        load(&mut bench, 1, Some(3)),
        [Dispatched(7, 1)],
        "one of theirs has ended"
    );
    assert_eq!(bench.register(8, "f", Default), []);
    assert_eq!(
        load(&mut bench, 1, None),
        [Dispatched(8, 1)],
        "nobody knows any more"
    );
    assert_eq!(level(&bench), (8, 8, 8));
}

#[test]
fn nothing_scraped_stops_dispatch() {
    let mut bench = Bench::new(with_gate(gate(4, 4)), 2);
    load(&mut bench, 1, Some(u64::MAX));
    load(&mut bench, 2, Some(1_000));
    assert_eq!(level(&bench), (0, 0, 0));
    assert!(matches!(bench.register(1, "f", Default)[..], [Bypassed(1, _)]));
    assert_eq!(bench.register(2, "f", Default), []);
    assert!(matches!(bench.complete(1)[..], [Settled(1, 1), Dispatched(2, _)]));
    // Who isn't listed says nothing, and a removed one that comes back isn't held to what it said.
    load(&mut bench, 9, Some(5));
    bench.say(Input::EndpointRemoved(EndpointId(2)));
    bench.endpoint(2, true);
    assert_eq!(bench.engine.upper(), 4);
}

#[test]
fn in_tokens_foreign_requests_have_no_known_length() {
    let mut bench = Bench::new(with_gate(tokens(1_000, 1_000)), 1);
    load(&mut bench, 1, Some(100));
    assert_eq!(level(&bench), (0, 1_000, 1_000));
}

/// Two classes: `long`, with a threshold, and `short`.
fn with_threshold(tokens: Option<u64>, fraction: Option<f64>) -> Policy {
    let long = Class {
        busy_tokens: tokens,
        busy_fraction: fraction,
        ..Class::new("long", 1_000)
    };
    let set = ClassSet {
        classes: vec![long, Class::new("short", 1_000)],
        ..ClassSet::default()
    };
    Policy {
        classes: vec![set],
        ..with_gate(gate(10, 10))
    }
}

fn of_class(class: &str, id: u64) -> Request {
    let mut request = request(id, class, Default);
    request.class = ClassKey::Family(class.into());
    request
}

#[test]
fn a_class_goes_while_an_endpoint_is_below_its_threshold() {
    let mut bench = Bench::new(with_threshold(Some(150), None), 2);
    // 100 uncached prompt tokens each: 0 and 100 are below 150, 200 isn't.
    for id in 1..=4 {
        let said = bench.say(Input::Register(of_class("long", id)));
        assert!(matches!(said[..], [Bypassed(_, 1 | 2)]), "{said:?}");
    }
    assert_eq!(bench.say(Input::Register(of_class("long", 5))), []);
    let mut cached = of_class("short", 6);
    cached.cached = Tokens(90);
    let said = bench.say(Input::Register(cached));
    let [Bypassed(6, there)] = said[..] else {
        panic!("what waits is held by its own threshold: {said:?}")
    };
    let on = |bench: &Bench, id| endpoint_stock(bench, id);
    assert_eq!((on(&bench, there), on(&bench, 3 - there)), (3, 2));
    // Wherever one ends, 100 or 110 are left there, and that is below 150.
    let said = bench.complete(1);
    assert!(matches!(said[..], [Settled(1, 1), Dispatched(5, _)]), "{said:?}");
    assert_eq!(bench.say(Input::Register(of_class("long", 7))), []);
    // Another threshold opens it at once.
    let said = bench.say(Input::Policy(Box::new(with_threshold(Some(1_000), None))));
    assert!(matches!(said[..], [Dispatched(7, _)]), "{said:?}");
}

#[test]
fn a_threshold_is_a_part_of_what_the_endpoint_takes_at_once_where_that_is_known() {
    let mut bench = Bench::new(with_threshold(None, Some(0.1)), 1);
    for id in 1..=3 {
        assert_eq!(
            bench.say(Input::Register(of_class("long", id))),
            [Bypassed(id, 1)],
            "it isn't known"
        );
    }
    let known = |of| Input::Endpoint {
        id: EndpointId(1),
        state: EndpointState {
            batched_tokens_max: Some(of),
            ..EndpointState::default()
        },
    };
    bench.say(known(3_000));
    assert_eq!(
        bench.say(Input::Register(of_class("long", 4))),
        [],
        "300 aren't below 300"
    );
    assert_eq!(
        bench.say(known(3_010)),
        [Dispatched(4, 1)],
        "but they are below 301"
    );
    assert_eq!(bench.say(Input::Register(of_class("long", 5))), []);
    assert_eq!(bench.complete(1), [Settled(1, 1), Dispatched(5, 1)]);
}
