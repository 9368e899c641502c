//! The basic rules: for each input at a given time, exactly these effects in this order. One rule a test.

use std::time::Duration;

use Band::{Critical, Default, Sheddable};
use Outcome as O;
use ShortEffect::{Bypassed, Dispatched, Rejected, Settled};
use penstock_engine::effect::{Grant, Reject};
use penstock_engine::input::{Band, Prompt, Service, Usage};
use penstock_engine::policy::{CostUnit, Gate};
use penstock_engine::units::Tokens;
use penstock_engine::{Effect, EndpointId, Engine, Input, Instant, Outcome, RequestId};

use crate::support::*;

#[test]
fn no_request_is_granted_before_ready() {
    let mut harness = Harness { engine: Engine::new(policy(), 7, Instant::ZERO), now: Instant::ZERO };
    harness.endpoint(1, true);
    assert_eq!(harness.register(1, "f", Default), []);
    assert_eq!(harness.handle(Input::Ready), [Dispatched(1, 1)]);
}

#[test]
fn a_newcomer_bypasses_below_upper_and_dispatch_stops_at_lower() {
    let mut policy = policy();
    policy.gate = gate(2, 4);
    let mut harness = Harness::new(policy, 1);
    for id in 1..=4 {
        assert_eq!(harness.register(id, "f", Default), [Bypassed(id, 1)]);
    }
    assert_eq!((harness.engine.stock(), harness.engine.upper(), harness.engine.lower()), (4, 4, 2));
    assert_eq!(harness.register(5, "f", Default), []);
    assert_eq!(harness.complete(1), [Settled(1, 1)]);
    // Stock is below upper, but a request waits: no new request overtakes it, however critical.
    assert_eq!(harness.register(6, "g", Critical), []);
    assert_eq!(harness.complete(2), [Settled(2, 1)]);
    assert_eq!(harness.complete(3), [Settled(3, 1), Dispatched(6, 1)]);
    assert_eq!(harness.complete(4), [Settled(4, 1), Dispatched(5, 1)]);
    assert_eq!(harness.register(7, "f", Default), [Bypassed(7, 1)]);
}

#[test]
fn with_stock_zero_one_request_is_always_granted() {
    let mut policy = policy();
    policy.gate = gate(0, 1);
    let mut harness = Harness::new(policy, 1);
    assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "f", Default), []);
    assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(2, 1)]);
}

#[test]
fn an_open_gate_bounds_nothing() {
    let mut policy = policy();
    policy.gate = Gate::Open;
    let mut harness = Harness::new(policy, 1);
    for id in 0..1_000 {
        assert_eq!(harness.register(id, "f", Default), [Bypassed(id, 1)]);
    }
    assert_eq!(harness.engine.saturation_milli(), 0);
    assert_eq!((harness.engine.stock(), harness.engine.upper()), (1_000, u64::MAX));
}

#[test]
fn bands_are_strict_and_a_flow_is_first_come_first_served() {
    let mut harness = busy();
    harness.register(2, "f", Sheddable);
    harness.register(3, "f", Default);
    harness.register(4, "f", Default);
    harness.register(5, "f", Critical);
    harness.register(6, "f", Critical);
    let mut order = Vec::new();
    for id in [1, 5, 6, 3, 4] {
        order.extend(harness.complete(id).into_iter().skip(1));
    }
    let expected = [5, 6, 3, 4, 2].map(|id| Dispatched(id, 1));
    assert_eq!(order, expected);
}

#[test]
fn flows_share_by_weight() {
    let mut harness = busy();
    let mut policy = policy();
    policy.gate = gate(1, 1);
    policy.flows.weights.insert("b".into(), 3.0);
    harness.handle(Input::Policy(Box::new(policy)));
    for id in 0..4 {
        harness.register(10 + id, "a", Default);
    }
    for id in 0..6 {
        harness.register(20 + id, "b", Default);
    }
    let mut running = 1;
    let mut order = Vec::new();
    while let Some(Dispatched(id, _)) = harness.complete(running).get(1).copied() {
        order.push(id);
        running = id;
    }
    // Virtual finish times: a 1, 2, 3, 4; b 1/3, 2/3, 1 (a's first is older), 4/3, 5/3, 2.
    assert_eq!(order, [20, 21, 10, 22, 23, 24, 11, 25, 12, 13]);
}

#[test]
fn a_settled_cost_replaces_the_estimate_at_once() {
    let run = |service: Service| {
        let mut harness = busy();
        let mut policy = policy();
        policy.gate = gate(1, 1);
        policy.flows.cost = CostUnit::Tokens;
        harness.handle(Input::Policy(Box::new(policy)));
        // The estimate of each is 100 + 2 * 50 = 200.
        harness.register(10, "a", Default);
        harness.register(11, "a", Default);
        harness.register(20, "b", Default);
        harness.register(21, "b", Default);
        harness.register(22, "b", Default);
        // What ran when costs became tokens counts in tokens from then on.
        assert_eq!(harness.complete(1), [Settled(1, 200), Dispatched(10, 1)]);
        let settled = harness.handle(Input::Completed { id: RequestId(10), service });
        let mut order = settled.clone();
        let mut running = 20;
        for _ in 0..3 {
            let next = harness.complete(running);
            order.extend(next.get(1));
            if let Some(Dispatched(id, _)) = next.get(1) {
                running = *id;
            }
        }
        order
    };
    let usage = Usage { prompt: Some(Tokens(400)), cached: Some(Tokens(100)), output: Some(Tokens(50)) };
    // The real cost of a's request is 400: b goes twice before it is even, and then a's request is the older one at
    // 600.
    let served =
        [Settled(10, 400), Dispatched(20, 1), Dispatched(21, 1), Dispatched(11, 1), Dispatched(22, 1)];
    assert_eq!(run(Service::Served(usage)), served);
}

#[test]
fn a_refunded_request_was_never_charged() {
    let mut harness = busy();
    harness.register(10, "a", Default);
    harness.register(11, "a", Default);
    harness.register(20, "b", Default);
    harness.complete(1);
    let nothing = Input::Completed { id: RequestId(10), service: Service::Nothing };
    // The charge of 1 is refunded: a's next request takes the place of its first, before b's.
    assert_eq!(harness.handle(nothing), [Settled(10, 0), Dispatched(11, 1)]);
}

#[test]
fn a_bypassed_request_is_charged_too() {
    let mut policy = policy();
    policy.gate = gate(2, 2);
    policy.flows.cost = CostUnit::Tokens;
    let mut harness = Harness::new(policy, 1);
    let mut expensive = request(1, "a", Default);
    expensive.prompt = Prompt::Tokens(Tokens(10_000));
    assert_eq!(harness.handle(Input::Register(expensive)), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "x", Default), [Bypassed(2, 1)]);
    harness.register(10, "a", Default);
    harness.register(20, "b", Default);
    let usage = Usage { prompt: Some(Tokens(9_000)), ..Usage::default() };
    // a's request is settled at 9,100, which is 1,000 less than virtual time: its next request comes first.
    let completed = Input::Completed { id: RequestId(1), service: Service::Served(usage) };
    assert_eq!(harness.handle(completed), [Settled(1, 9_100), Dispatched(10, 1)]);
}

#[test]
fn a_requeued_request_has_its_old_place_and_its_outcome_is_uncounted() {
    let mut harness = busy();
    harness.advance_to(1.0).register(2, "f", Default);
    harness.advance_to(2.0).register(3, "f", Default);
    assert_eq!(harness.advance_to(3.0).complete(1), [Settled(1, 1), Dispatched(2, 1)]);
    assert_eq!(harness.handle(Input::Requeue(RequestId(2))), [Dispatched(2, 1)]);
    let counters = harness.engine.snapshot().counters;
    assert_eq!((counters.outcome(O::Dispatched), counters.requeues, counters.arrivals), (1, 1, 3));
    // Its endpoint is gone: it waits in its old place, and goes first at another endpoint.
    harness.handle(Input::EndpointRemoved(EndpointId(1)));
    assert_eq!(harness.handle(Input::Requeue(RequestId(2))), []);
    assert_eq!(harness.advance_to(4.0).endpoint(2, true), [Dispatched(2, 2)]);
}

#[test]
fn stock_follows_the_endpoint_that_the_request_was_sent_to() {
    let mut policy = policy();
    policy.gate = gate(1, 1);
    let mut harness = Harness::new(policy, 2);
    let granted = harness.effects(Input::Register(request(1, "f", Default)));
    let Some(Effect::Grant(Grant { endpoints, .. })) = granted.first() else { panic!("{granted:?}") };
    assert_eq!(endpoints.len(), 2, "the first choice and a fallback");
    let (first, other) = (endpoints[0], endpoints[1]);
    harness.handle(Input::Sent { id: RequestId(1), endpoint: other });
    assert_eq!(harness.register(2, "f", Default), [Bypassed(2, first.0)]);
    // An unlisted address: the stock is draining, and the place is free.
    harness.register(3, "f", Default);
    let sent = Input::Sent { id: RequestId(1), endpoint: EndpointId(99) };
    assert_eq!(harness.handle(sent), [Dispatched(3, other.0)]);
    assert_eq!(harness.engine.snapshot().draining_stock, 1);
    assert_eq!(harness.complete(1), [Settled(1, 1)]);
    assert_eq!(harness.engine.snapshot().endpoints.len(), 2);
}

#[test]
fn the_endpoint_with_least_stock_is_first_and_each_keeps_its_bound() {
    let mut policy = policy();
    policy.gate = gate(2, 2);
    let mut harness = Harness::new(policy, 3);
    for id in 0..6 {
        harness.register(id, "f", Default);
        let stocks: Vec<u64> =
            harness.engine.snapshot().endpoints.iter().map(|endpoint| endpoint.stock).collect();
        let least = stocks.iter().min().expect("three");
        assert!(stocks.iter().all(|stock| stock - least <= 1), "{stocks:?}");
    }
    assert_eq!(harness.register(6, "f", Default), []);
}

#[test]
fn a_request_without_eligible_endpoints_is_rejected_at_once() {
    let mut harness = busy();
    let nowhere = restricted(request(2, "f", Default), &[]);
    assert_eq!(harness.handle(Input::Register(nowhere)), [Rejected(2, O::NoEndpoints)]);
    let gone = restricted(request(3, "f", Default), &[42]);
    assert_eq!(harness.handle(Input::Register(gone)), [Rejected(3, O::NoEndpoints)]);
}

#[test]
fn a_request_waiting_for_its_endpoints_blocks_no_other() {
    let mut policy = policy();
    policy.gate = gate(2, 2);
    let mut harness = Harness::new(policy, 2);
    assert_eq!(harness.handle(Input::Register(restricted(request(1, "p", Default), &[1]))), [Bypassed(1, 1)]);
    assert_eq!(harness.handle(Input::Register(restricted(request(2, "p", Default), &[1]))), [Bypassed(2, 1)]);
    assert_eq!(harness.handle(Input::Register(restricted(request(3, "p", Default), &[1]))), []);
    // All that may go elsewhere pass it, in its own flow and in others.
    assert_eq!(harness.register(4, "p", Default), [Bypassed(4, 2)]);
    assert_eq!(harness.register(5, "q", Default), [Bypassed(5, 2)]);
    assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(3, 1)]);
}

#[test]
fn a_restricted_flow_is_not_starved_by_cheaper_ones() {
    let mut policy = policy();
    policy.gate = gate(1, 1);
    policy.flows.cost = CostUnit::Tokens;
    let mut harness = Harness::new(policy, 2);
    // Both endpoints are busy with x, which always has cheaper requests waiting than p.
    let cheap = |id| {
        let mut cheap = request(id, "x", Default);
        cheap.prompt = Prompt::Tokens(Tokens(10));
        cheap.expected_output = Some(Tokens(0));
        Input::Register(cheap)
    };
    let mut running = Vec::new();
    for id in 0..60 {
        for effect in harness.handle(cheap(id)) {
            let Bypassed(id, _) = effect else { panic!("{effect:?}") };
            running.push(id);
        }
    }
    harness.handle(Input::Register(restricted(request(100, "p", Default), &[1])));
    let mut served = 0;
    while !running.is_empty() && served < 60 {
        let mut next = Vec::new();
        for id in running {
            for effect in harness.complete(id) {
                if let Dispatched(id, _) = effect {
                    next.push(id);
                    served += 1;
                    if id == 100 {
                        // 200 against 10 each: about twenty requests go before it.
                        assert!(served <= 24, "{served}");
                        return;
                    }
                }
            }
        }
        running = next;
    }
    panic!("p was never granted, {served} requests of x were");
}

#[test]
fn adopted_and_resumed_requests_exceed_all_limits() {
    let mut harness = busy();
    let mut policy = policy();
    policy.gate = gate(1, 1);
    policy.queue.total_capacity = 1;
    policy.queue.flow_capacity = 1;
    harness.handle(Input::Policy(Box::new(policy)));
    harness.advance_to(10.0).register(2, "f", Default);
    let mut earlier = request(3, "f", Default);
    earlier.arrived = time(5.0);
    assert_eq!(harness.handle(Input::Resume(earlier)), []);
    assert_eq!(
        harness.handle(Input::Adopt { request: request(4, "g", Default), endpoint: EndpointId(1) }),
        []
    );
    assert_eq!((harness.engine.stock(), harness.engine.waiting()), (2, 2));
    // A request that waits and is adopted runs.
    assert_eq!(
        harness.handle(Input::Adopt { request: request(2, "f", Default), endpoint: EndpointId(1) }),
        []
    );
    assert_eq!((harness.engine.stock(), harness.engine.waiting()), (3, 1));
    assert_eq!(harness.engine.snapshot().counters.outcome(O::Dispatched), 2);
    assert_eq!([harness.complete(1), harness.complete(2)].concat(), [Settled(1, 1), Settled(2, 1)]);
    assert_eq!(harness.complete(4), [Settled(4, 1), Dispatched(3, 1)]);
    let mut expired = request(5, "f", Default);
    expired.arrived = Instant::ZERO;
    assert_eq!(harness.advance_to(31.0).handle(Input::Resume(expired)), [Rejected(5, O::ExpiredTtl)]);
}

#[test]
fn a_drain_rejects_waiting_and_new_requests_and_lets_running_ones_finish() {
    let mut harness = busy();
    harness.register(2, "f", Sheddable);
    harness.register(3, "f", Critical);
    let refused = [Rejected(2, O::ShuttingDown), Rejected(3, O::ShuttingDown)];
    assert_eq!(harness.handle(Input::Drain(true)), refused);
    assert_eq!(harness.register(4, "f", Critical), [Rejected(4, O::ShuttingDown)]);
    assert_eq!(harness.complete(1), [Settled(1, 1)]);
    assert_eq!(harness.register(5, "f", Critical), [Rejected(5, O::ShuttingDown)]);
    assert_eq!(harness.handle(Input::Drain(false)), []);
    assert_eq!(harness.register(6, "f", Critical), [Bypassed(6, 1)]);
}

#[test]
fn a_draining_endpoint_does_not_throttle_the_others() {
    let mut policy = policy();
    policy.gate = gate(2, 2);
    let mut harness = Harness::new(policy, 3);
    for id in 0..6 {
        harness.register(id, "f", Default);
    }
    harness.register(6, "f", Default);
    harness.endpoint(3, false);
    let snapshot = harness.engine.snapshot();
    assert_eq!((snapshot.stock, snapshot.draining_stock, snapshot.upper), (4, 2, 4));
    let first_listed = harness.engine.snapshot().endpoints[0].id;
    let dispatched = (0..6).find_map(|id| {
        let effects = harness.complete(id);
        effects.get(1).copied()
    });
    let Some(Dispatched(6, endpoint)) = dispatched else { panic!("{dispatched:?}") };
    assert!(endpoint <= 2 && first_listed == EndpointId(1));
}

#[test]
fn a_clock_that_goes_back_is_ignored_and_counted() {
    let mut harness = busy();
    harness.advance_to(10.0).register(2, "f", Default);
    harness.advance_to(5.0).register(3, "f", Default);
    assert_eq!(harness.engine.snapshot().counters.clock_backwards, 1);
    assert_eq!(
        harness.advance_to(40.0).handle_timeout(),
        [Rejected(2, O::ExpiredTtl), Rejected(3, O::ExpiredTtl)]
    );
}

#[test]
fn retry_after_is_the_requests_ahead_over_the_drain_rate() {
    let mut harness = busy();
    let mut policy = policy();
    policy.gate = gate(1, 1);
    policy.queue.total_capacity = 20;
    harness.handle(Input::Policy(Box::new(policy)));
    for id in 2..32 {
        harness.register(id, "f", Default);
    }
    // One completion every two seconds.
    for (step, id) in (1..=10).enumerate() {
        harness.advance_to(2.0 * (step + 1) as f64).complete(id);
    }
    for id in 32..42 {
        harness.register(id, "f", Default);
    }
    let refused = harness.effects(Input::Register(request(99, "f", Default)));
    let [Effect::Reject(Reject { outcome: O::RejectedQueueFull, retry_after: Some(wait), .. })] = refused[..]
    else {
        panic!("{refused:?}")
    };
    assert!(wait >= Duration::from_secs(40) && wait <= Duration::from_secs(44), "{wait:?}");
}

#[test]
fn a_position_counts_the_requests_that_would_go_first() {
    let mut harness = busy();
    harness.advance_to(1.0).register(2, "a", Default);
    harness.register(3, "a", Default);
    harness.register(4, "b", Default);
    harness.register(5, "c", Critical);
    harness.register(6, "c", Sheddable);
    let ahead = |id| harness.engine.position(RequestId(id)).map(|position| position.ahead);
    assert_eq!([2, 4, 3, 5, 6].map(ahead), [Some(1), Some(2), Some(3), Some(0), Some(4)]);
    assert_eq!(ahead(1), None);
}

#[test]
fn a_snapshot_shows_the_whole_state() {
    let mut harness = busy();
    harness.register(2, "f", Default);
    let snapshot = harness.engine.snapshot();
    assert_eq!((snapshot.stock, snapshot.lower, snapshot.upper, snapshot.waiting), (1, 1, 1, 1));
    assert_eq!(
        (snapshot.saturation_milli, snapshot.waiting_bytes, snapshot.waiting_cost.0),
        (1_000, 1_000, 1)
    );
    assert_eq!(snapshot.bands.map(|band| band.waiting), [0, 1, 0]);
    let flows: Vec<_> =
        snapshot.flows.iter().map(|flow| (&*flow.key, flow.band, flow.waiting, flow.in_flight)).collect();
    assert_eq!(flows, [("f", Default, 1, 0), ("x", Critical, 0, 1)]);
    assert_eq!(snapshot.counters.arrivals, 2);
    harness.complete(1);
    harness.complete(2);
    // The tree forgets both flows; the snapshot keeps their served tokens.
    let served: Vec<_> = harness
        .engine
        .snapshot()
        .flows
        .iter()
        .map(|flow| (flow.key.to_string(), flow.served_tokens.0))
        .collect();
    assert_eq!(served, [("f".to_owned(), 1), ("x".to_owned(), 1)]);
}

#[test]
fn learned_outputs_and_ratios_make_the_next_estimate() {
    let mut policy = policy();
    policy.gate = Gate::Open;
    policy.flows.cost = CostUnit::Tokens;
    let mut harness = Harness::new(policy, 1);
    let unknown = |id| {
        let mut unknown = request(id, "f", Default);
        unknown.prompt = Prompt::Bytes(4_000);
        unknown.expected_output = None;
        unknown
    };
    let cost = |effects: Vec<Effect>| match effects[..] {
        [Effect::Grant(Grant { cost, .. })] => cost.0,
        _ => panic!("{effects:?}"),
    };
    assert_eq!(cost(harness.effects(Input::Register(unknown(1)))), 1_000 + 2 * 256);
    let usage = Usage { prompt: Some(Tokens(2_000)), cached: None, output: Some(Tokens(10)) };
    harness.handle(Input::Completed { id: RequestId(1), service: Service::Served(usage) });
    let next = cost(harness.effects(Input::Register(unknown(2))));
    assert!(next > 1_000 + 20 && next < 2_000 + 20, "{next}");
    let mut capped = unknown(3);
    capped.prompt = Prompt::Tokens(Tokens(100));
    capped.max_output = Some(Tokens(3));
    assert_eq!(cost(harness.effects(Input::Register(capped))), 100 + 2 * 3);
}

#[test]
fn a_cut_request_is_charged_and_teaches_nothing() {
    let mut policy = policy();
    policy.gate = Gate::Open;
    policy.flows.cost = CostUnit::Tokens;
    let mut harness = Harness::new(policy, 1);
    let unknown = |id| {
        let mut unknown = request(id, "f", Default);
        unknown.prompt = Prompt::Bytes(4_000);
        unknown.expected_output = None;
        unknown
    };
    let cost = |effects: Vec<Effect>| match effects[..] {
        [Effect::Grant(Grant { cost, .. })] => cost.0,
        _ => panic!("{effects:?}"),
    };
    harness.effects(Input::Register(unknown(1)));
    let usage = Usage { prompt: Some(Tokens(2_000)), cached: None, output: Some(Tokens(10)) };
    let completed = Input::Completed { id: RequestId(1), service: Service::Cut(usage) };
    assert_eq!(harness.handle(completed), [Settled(1, 2_020)]);
    assert_eq!(cost(harness.effects(Input::Register(unknown(2)))), 1_000 + 2 * 256);
}

#[test]
fn held_engine_dispatches_nothing_until_it_is_ready_again() {
    let mut harness = busy();
    assert_eq!(harness.handle(Input::Hold), []);
    harness.register(2, "f", Default);
    assert_eq!(harness.complete(1), [Settled(1, 1)]);
    assert_eq!(harness.register(3, "f", Default), []);
    assert_eq!(harness.handle(Input::Ready), [Dispatched(2, 1)]);
    assert_eq!(harness.complete(2), [Settled(2, 1), Dispatched(3, 1)]);
}
