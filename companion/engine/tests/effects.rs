//! Given this input at this time: these effects, in this order, and nothing more. One rule a test.

mod support;

use std::time::Duration;

use penstock_engine::input::{Band, Prompt, Service, Usage};
use penstock_engine::policy::{CostUnit, Gate};
use penstock_engine::units::Tokens;
use penstock_engine::{Effect, EndpointId, Engine, Input, Instant, Outcome, RequestId};

use Band::{Critical, Default, Sheddable};
use Outcome as O;
use Said::{Bypassed, Dispatched, Rejected, Settled};
use support::*;

#[test]
fn nothing_goes_before_the_owner_is_ready() {
    let mut bench = Bench {
        engine: Engine::new(policy(), 7, Instant::ZERO),
        now: Instant::ZERO,
    };
    bench.endpoint(1, true);
    assert_eq!(bench.register(1, "f", Default), []);
    assert_eq!(bench.say(Input::Ready), [Dispatched(1, 1)]);
}

#[test]
fn a_newcomer_bypasses_below_upper_and_dispatch_stops_at_lower() {
    let mut policy = policy();
    policy.gate = gate(2, 4);
    let mut bench = Bench::new(policy, 1);
    for id in 1..=4 {
        assert_eq!(bench.register(id, "f", Default), [Bypassed(id, 1)]);
    }
    assert_eq!(
        (bench.engine.stock(), bench.engine.upper(), bench.engine.lower()),
        (4, 4, 2)
    );
    assert_eq!(bench.register(5, "f", Default), []);
    assert_eq!(bench.complete(1), [Settled(1, 1)]);
    // Stock is below upper, but something waits: nobody overtakes it, however critical.
    assert_eq!(bench.register(6, "g", Critical), []);
    assert_eq!(bench.complete(2), [Settled(2, 1)]);
    assert_eq!(bench.complete(3), [Settled(3, 1), Dispatched(6, 1)]);
    assert_eq!(bench.complete(4), [Settled(4, 1), Dispatched(5, 1)]);
    assert_eq!(bench.register(7, "f", Default), [Bypassed(7, 1)]);
}

#[test]
fn with_stock_zero_one_always_goes() {
    let mut policy = policy();
    policy.gate = gate(0, 1);
    let mut bench = Bench::new(policy, 1);
    assert_eq!(bench.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(bench.register(2, "f", Default), []);
    assert_eq!(bench.complete(1), [Settled(1, 1), Dispatched(2, 1)]);
}

#[test]
fn an_open_gate_bounds_nothing() {
    let mut policy = policy();
    policy.gate = Gate::Open;
    let mut bench = Bench::new(policy, 1);
    for id in 0..1_000 {
        assert_eq!(bench.register(id, "f", Default), [Bypassed(id, 1)]);
    }
    assert_eq!(bench.engine.saturation_milli(), 0);
    assert_eq!((bench.engine.stock(), bench.engine.upper()), (1_000, u64::MAX));
}

#[test]
fn bands_are_strict_and_a_flow_is_first_come_first_served() {
    let mut bench = busy();
    bench.register(2, "f", Sheddable);
    bench.register(3, "f", Default);
    bench.register(4, "f", Default);
    bench.register(5, "f", Critical);
    bench.register(6, "f", Critical);
    let mut order = Vec::new();
    for id in [1, 5, 6, 3, 4] {
        order.extend(bench.complete(id).into_iter().skip(1));
    }
    let expected = [5, 6, 3, 4, 2].map(|id| Dispatched(id, 1));
    assert_eq!(order, expected);
}

#[test]
fn flows_share_by_weight() {
    let mut bench = busy();
    let mut policy = policy();
    policy.gate = gate(1, 1);
    policy.flows.weights.insert("b".into(), 3.0);
    bench.say(Input::Policy(Box::new(policy)));
    for id in 0..4 {
        bench.register(10 + id, "a", Default);
    }
    for id in 0..6 {
        bench.register(20 + id, "b", Default);
    }
    let mut running = 1;
    let mut order = Vec::new();
    while let Some(Dispatched(id, _)) = bench.complete(running).get(1).copied() {
        order.push(id);
        running = id;
    }
    // Tags: a 1, 2, 3, 4; b 1/3, 2/3, 1 (a's first is older), 4/3, 5/3, 2.
    assert_eq!(order, [20, 21, 10, 22, 23, 24, 11, 25, 12, 13]);
}

#[test]
fn a_cost_is_settled_at_once_and_what_nothing_served_is_refunded() {
    let run = |service: Service| {
        let mut bench = busy();
        let mut policy = policy();
        policy.gate = gate(1, 1);
        policy.flows.cost = CostUnit::Tokens;
        bench.say(Input::Policy(Box::new(policy)));
        // Each is estimated at 100 + 2 * 50 = 200.
        bench.register(10, "a", Default);
        bench.register(11, "a", Default);
        bench.register(20, "b", Default);
        bench.register(21, "b", Default);
        bench.register(22, "b", Default);
        assert_eq!(bench.complete(1), [Settled(1, 1), Dispatched(10, 1)]);
        let settled = bench.say(Input::Completed {
            id: RequestId(10),
            service,
        });
        let mut order = settled.clone();
        let mut running = 20;
        for _ in 0..3 {
            let next = bench.complete(running);
            order.extend(next.get(1));
            if let Some(Dispatched(id, _)) = next.get(1) {
                running = *id;
            }
        }
        order
    };
    let usage = Usage {
        prompt: Some(Tokens(400)),
        cached: Some(Tokens(100)),
        output: Some(Tokens(50)),
    };
    // a did 400 in truth: b goes twice before it is even, and then a's is the older at 600.
    let served = [
        Settled(10, 400),
        Dispatched(20, 1),
        Dispatched(21, 1),
        Dispatched(11, 1),
        Dispatched(22, 1),
    ];
    assert_eq!(run(Service::Served(usage)), served);
}

#[test]
fn refunded_is_never_charged() {
    let mut bench = busy();
    bench.register(10, "a", Default);
    bench.register(11, "a", Default);
    bench.register(20, "b", Default);
    bench.complete(1);
    let nothing = Input::Completed {
        id: RequestId(10),
        service: Service::Nothing,
    };
    // a was charged 1 and has it back: its next stands where the first stood, before b's.
    assert_eq!(bench.say(nothing), [Settled(10, 0), Dispatched(11, 1)]);
}

#[test]
fn who_bypasses_is_charged_too() {
    let mut policy = policy();
    policy.gate = gate(2, 2);
    policy.flows.cost = CostUnit::Tokens;
    let mut bench = Bench::new(policy, 1);
    let mut dear = request(1, "a", Default);
    dear.prompt = Prompt::Tokens(Tokens(10_000));
    assert_eq!(bench.say(Input::Register(dear)), [Bypassed(1, 1)]);
    assert_eq!(bench.register(2, "x", Default), [Bypassed(2, 1)]);
    bench.register(10, "a", Default);
    bench.register(20, "b", Default);
    let less = Usage {
        prompt: Some(Tokens(9_000)),
        ..Usage::default()
    };
    // What a ran is settled at 9,100, 1,000 less than V has seen: its next comes first.
    let completed = Input::Completed {
        id: RequestId(1),
        service: Service::Served(less),
    };
    assert_eq!(bench.say(completed), [Settled(1, 9_100), Dispatched(10, 1)]);
}

#[test]
fn what_is_requeued_has_its_old_place_and_its_outcome_is_taken_back() {
    let mut bench = busy();
    bench.at(1.0).register(2, "f", Default);
    bench.at(2.0).register(3, "f", Default);
    assert_eq!(bench.at(3.0).complete(1), [Settled(1, 1), Dispatched(2, 1)]);
    assert_eq!(bench.say(Input::Requeue(RequestId(2))), [Dispatched(2, 1)]);
    let counters = bench.engine.snapshot().counters;
    assert_eq!(
        (
            counters.outcome(O::Dispatched),
            counters.requeues,
            counters.arrivals
        ),
        (1, 1, 3)
    );
    // Its endpoint is gone: it waits where it was, and goes first elsewhere.
    bench.say(Input::EndpointRemoved(EndpointId(1)));
    assert_eq!(bench.say(Input::Requeue(RequestId(2))), []);
    assert_eq!(bench.at(4.0).endpoint(2, true), [Dispatched(2, 2)]);
}

#[test]
fn stock_follows_where_it_was_sent() {
    let mut policy = policy();
    policy.gate = gate(1, 1);
    let mut bench = Bench::new(policy, 2);
    let granted = bench.effects(Input::Register(request(1, "f", Default)));
    let Some(Effect::Grant { endpoints, .. }) = granted.first() else {
        panic!("{granted:?}")
    };
    assert_eq!(endpoints.len(), 2, "the first choice and a fallback");
    let (first, other) = (endpoints[0], endpoints[1]);
    bench.say(Input::Sent {
        id: RequestId(1),
        endpoint: other,
    });
    assert_eq!(bench.register(2, "f", Default), [Bypassed(2, first.0)]);
    // To an address that isn't listed: draining stock, and its place is free.
    bench.register(3, "f", Default);
    let sent = Input::Sent {
        id: RequestId(1),
        endpoint: EndpointId(99),
    };
    assert_eq!(bench.say(sent), [Dispatched(3, other.0)]);
    assert_eq!(bench.engine.snapshot().draining_stock, 1);
    assert_eq!(bench.complete(1), [Settled(1, 1)]);
    assert_eq!(bench.engine.snapshot().endpoints.len(), 2);
}

#[test]
fn least_stock_goes_first_and_nobody_exceeds_its_own_bound() {
    let mut policy = policy();
    policy.gate = gate(2, 2);
    let mut bench = Bench::new(policy, 3);
    for id in 0..6 {
        bench.register(id, "f", Default);
        let stocks: Vec<u64> = bench
            .engine
            .snapshot()
            .endpoints
            .iter()
            .map(|endpoint| endpoint.stock)
            .collect();
        let least = stocks.iter().min().expect("three");
        assert!(stocks.iter().all(|stock| stock - least <= 1), "{stocks:?}");
    }
    assert_eq!(bench.register(6, "f", Default), []);
}

#[test]
fn who_may_go_nowhere_is_told_at_once() {
    let mut bench = busy();
    let nowhere = only(request(2, "f", Default), &[]);
    assert_eq!(bench.say(Input::Register(nowhere)), [Rejected(2, O::NoEndpoints)]);
    let gone = only(request(3, "f", Default), &[42]);
    assert_eq!(bench.say(Input::Register(gone)), [Rejected(3, O::NoEndpoints)]);
}

#[test]
fn what_waits_for_its_own_endpoints_holds_up_nobody() {
    let mut policy = policy();
    policy.gate = gate(2, 2);
    let mut bench = Bench::new(policy, 2);
    assert_eq!(
        bench.say(Input::Register(only(request(1, "p", Default), &[1]))),
        [Bypassed(1, 1)]
    );
    assert_eq!(
        bench.say(Input::Register(only(request(2, "p", Default), &[1]))),
        [Bypassed(2, 1)]
    );
    assert_eq!(
        bench.say(Input::Register(only(request(3, "p", Default), &[1]))),
        []
    );
    // Its own flow waits behind it; others pass, as there is nothing that they could overtake.
    assert_eq!(bench.register(4, "p", Default), []);
    assert_eq!(bench.register(5, "q", Default), [Bypassed(5, 2)]);
    assert_eq!(
        bench.complete(1),
        [Settled(1, 1), Dispatched(3, 1), Dispatched(4, 2)]
    );
}

#[test]
fn a_restricted_flow_is_not_starved_by_cheaper_ones() {
    let mut policy = policy();
    policy.gate = gate(1, 1);
    policy.flows.cost = CostUnit::Tokens;
    let mut bench = Bench::new(policy, 2);
    // Both endpoints are busy with x, which always waits with something cheaper than what p has.
    let cheap = |id| {
        let mut cheap = request(id, "x", Default);
        cheap.prompt = Prompt::Tokens(Tokens(10));
        cheap.expected_output = Some(Tokens(0));
        Input::Register(cheap)
    };
    let mut ends = Vec::new();
    for id in 0..60 {
        for said in bench.say(cheap(id)) {
            let Bypassed(id, _) = said else { panic!("{said:?}") };
            ends.push(id);
        }
    }
    bench.say(Input::Register(only(request(100, "p", Default), &[1])));
    let mut served = 0;
    while !ends.is_empty() && served < 60 {
        let mut next = Vec::new();
        for id in ends {
            for said in bench.complete(id) {
                if let Dispatched(id, _) = said {
                    next.push(id);
                    served += 1;
                    if id == 100 {
                        // 200 against 10 each: about twenty go before it.
                        assert!(served <= 24, "{served}");
                        return;
                    }
                }
            }
        }
        ends = next;
    }
    panic!("p never went, {served} others did");
}

#[test]
fn adopted_and_resumed_are_above_all_limits() {
    let mut bench = busy();
    let mut policy = policy();
    policy.gate = gate(1, 1);
    policy.queue.total_capacity = 1;
    policy.queue.flow_capacity = 1;
    bench.say(Input::Policy(Box::new(policy)));
    bench.at(10.0).register(2, "f", Default);
    let mut earlier = request(3, "f", Default);
    earlier.arrived = at(5.0);
    assert_eq!(bench.say(Input::Resume(earlier)), []);
    assert_eq!(
        bench.say(Input::Adopt {
            request: request(4, "g", Default),
            endpoint: EndpointId(1)
        }),
        []
    );
    assert_eq!((bench.engine.stock(), bench.engine.waiting()), (2, 2));
    // One that waits here and runs there: it runs.
    assert_eq!(
        bench.say(Input::Adopt {
            request: request(2, "f", Default),
            endpoint: EndpointId(1)
        }),
        []
    );
    assert_eq!((bench.engine.stock(), bench.engine.waiting()), (3, 1));
    assert_eq!(bench.engine.snapshot().counters.outcome(O::Dispatched), 2);
    assert_eq!(
        [bench.complete(1), bench.complete(2)].concat(),
        [Settled(1, 1), Settled(2, 1)]
    );
    assert_eq!(bench.complete(4), [Settled(4, 1), Dispatched(3, 1)]);
    let mut expired = request(5, "f", Default);
    expired.arrived = Instant::ZERO;
    assert_eq!(
        bench.at(31.0).say(Input::Resume(expired)),
        [Rejected(5, O::ExpiredTtl)]
    );
}

#[test]
fn a_drain_refuses_what_waits_and_comes_and_lets_finish_what_runs() {
    let mut bench = busy();
    bench.register(2, "f", Sheddable);
    bench.register(3, "f", Critical);
    let refused = [Rejected(2, O::ShuttingDown), Rejected(3, O::ShuttingDown)];
    assert_eq!(bench.say(Input::Drain(true)), refused);
    assert_eq!(bench.register(4, "f", Critical), [Rejected(4, O::ShuttingDown)]);
    assert_eq!(bench.complete(1), [Settled(1, 1)]);
    assert_eq!(bench.register(5, "f", Critical), [Rejected(5, O::ShuttingDown)]);
    assert_eq!(bench.say(Input::Drain(false)), []);
    assert_eq!(bench.register(6, "f", Critical), [Bypassed(6, 1)]);
}

#[test]
fn an_endpoint_that_drains_throttles_nobody_else() {
    let mut policy = policy();
    policy.gate = gate(2, 2);
    let mut bench = Bench::new(policy, 3);
    for id in 0..6 {
        bench.register(id, "f", Default);
    }
    bench.register(6, "f", Default);
    bench.endpoint(3, false);
    let snapshot = bench.engine.snapshot();
    assert_eq!(
        (snapshot.stock, snapshot.draining_stock, snapshot.upper),
        (4, 2, 4)
    );
    let on_first = bench.engine.snapshot().endpoints[0].id;
    let ended = (0..6).find_map(|id| {
        let said = bench.complete(id);
        said.get(1).copied()
    });
    let Some(Dispatched(6, endpoint)) = ended else {
        panic!("{ended:?}")
    };
    assert!(endpoint <= 2 && on_first == EndpointId(1));
}

#[test]
fn the_clock_never_goes_back() {
    let mut bench = busy();
    bench.at(10.0).register(2, "f", Default);
    bench.at(5.0).register(3, "f", Default);
    assert_eq!(bench.engine.snapshot().counters.clock_backwards, 1);
    assert_eq!(
        bench.at(40.0).wait(),
        [Rejected(2, O::ExpiredTtl), Rejected(3, O::ExpiredTtl)]
    );
}

#[test]
fn retry_after_is_what_waits_ahead_over_the_drain_rate() {
    let mut bench = busy();
    let mut policy = policy();
    policy.gate = gate(1, 1);
    policy.queue.total_capacity = 20;
    bench.say(Input::Policy(Box::new(policy)));
    for id in 2..32 {
        bench.register(id, "f", Default);
    }
    // One every two seconds.
    for (step, id) in (1..=10).enumerate() {
        bench.at(2.0 * (step + 1) as f64).complete(id);
    }
    for id in 32..42 {
        bench.register(id, "f", Default);
    }
    let refused = bench.effects(Input::Register(request(99, "f", Default)));
    let [
        Effect::Reject {
            outcome: O::RejectedQueueFull,
            retry_after: Some(wait),
            ..
        },
    ] = refused[..]
    else {
        panic!("{refused:?}")
    };
    assert!(
        wait >= Duration::from_secs(40) && wait <= Duration::from_secs(44),
        "{wait:?}"
    );
}

#[test]
fn a_position_counts_who_would_go_before() {
    let mut bench = busy();
    bench.at(1.0).register(2, "a", Default);
    bench.register(3, "a", Default);
    bench.register(4, "b", Default);
    bench.register(5, "c", Critical);
    bench.register(6, "c", Sheddable);
    let ahead = |id| {
        bench
            .engine
            .position(RequestId(id))
            .map(|position| position.ahead)
    };
    assert_eq!(
        [2, 4, 3, 5, 6].map(ahead),
        [Some(1), Some(2), Some(3), Some(0), Some(4)]
    );
    assert_eq!(ahead(1), None);
}

#[test]
fn a_snapshot_shows_the_whole_state() {
    let mut bench = busy();
    bench.register(2, "f", Default);
    let snapshot = bench.engine.snapshot();
    assert_eq!(
        (snapshot.stock, snapshot.lower, snapshot.upper, snapshot.waiting),
        (1, 1, 1, 1)
    );
    assert_eq!(
        (
            snapshot.saturation_milli,
            snapshot.waiting_bytes,
            snapshot.waiting_cost.0
        ),
        (1_000, 1_000, 1)
    );
    assert_eq!(snapshot.bands.map(|band| band.waiting), [0, 1, 0]);
    let flows: Vec<_> = snapshot
        .flows
        .iter()
        .map(|flow| (&*flow.key, flow.band, flow.waiting, flow.in_flight))
        .collect();
    assert_eq!(flows, [("f", Default, 1, 0), ("x", Critical, 0, 1)]);
    assert_eq!(snapshot.counters.arrivals, 2);
    bench.complete(1);
    bench.complete(2);
    // Both are forgotten by the tree, and what they were served isn't.
    let served: Vec<_> = bench
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
    let mut bench = Bench::new(policy, 1);
    let unknown = |id| {
        let mut unknown = request(id, "f", Default);
        unknown.prompt = Prompt::Bytes(4_000);
        unknown.expected_output = None;
        unknown
    };
    let cost = |effects: Vec<Effect>| match effects[..] {
        [Effect::Grant { cost, .. }] => cost.0,
        _ => panic!("{effects:?}"),
    };
    assert_eq!(cost(bench.effects(Input::Register(unknown(1)))), 1_000 + 2 * 256);
    let usage = Usage {
        prompt: Some(Tokens(2_000)),
        cached: None,
        output: Some(Tokens(10)),
    };
    bench.say(Input::Completed {
        id: RequestId(1),
        service: Service::Served(usage),
    });
    let next = cost(bench.effects(Input::Register(unknown(2))));
    assert!(next > 1_000 + 20 && next < 2_000 + 20, "{next}");
    let mut capped = unknown(3);
    capped.prompt = Prompt::Tokens(Tokens(100));
    capped.max_output = Some(Tokens(3));
    assert_eq!(cost(bench.effects(Input::Register(capped))), 100 + 2 * 3);
}
