//! Places above the bound, for flows with nothing running.

use Band::{Critical, Default};
use ShortEffect::{Bypassed, Dispatched, Rejected, Settled};
use penstock_engine::effect::Grant;
use penstock_engine::input::{Band, Service, Usage};
use penstock_engine::policy::{BandMode, ExtraPlaces, Gate, StockUnit};
use penstock_engine::units::{Decimal, Tokens};
use penstock_engine::{Effect, EndpointId, Input, Outcome, Policy, Request, RequestId};

use crate::support::*;

/// Each endpoint takes `bound` requests, and `extra` above that.
fn with_extra(bound: u64, extra: u64) -> Policy {
    Policy { extra_for_idle_flows: ExtraPlaces::Count(extra), ..with_gate(gate(bound, bound)) }
}

/// An endpoint that takes one request and one above that, on which the flow `flood` runs request 1 while 2 to 4 wait.
fn flooded() -> Harness {
    let mut harness = Harness::new(with_extra(1, 1), 1);
    assert_eq!(harness.register(1, "flood", Default), [Bypassed(1, 1)]);
    for id in 2..=4 {
        assert_eq!(harness.register(id, "flood", Default), []);
    }
    harness
}

fn extra(harness: &Harness) -> u64 {
    harness.engine.snapshot().extra
}

#[test]
fn a_flow_with_nothing_running_goes_at_once_and_one_place_is_for_all() {
    let mut harness = flooded();
    let granted = harness.effects(Input::Register(request(5, "small", Default)));
    assert!(matches!(&granted[..], [Effect::Grant(Grant { extra: true, outcome: Outcome::Bypassed, .. })]));
    assert_eq!((stocks(&harness), extra(&harness)), (vec![2], 1));
    // The place is taken: whoever comes now waits, however many names it has.
    assert_eq!(harness.register(6, "another", Default), []);
    assert_eq!(harness.register(7, "third", Default), []);
    // What ends within the bound makes room within the bound, for whose turn it is.
    assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(2, 1)]);
    assert_eq!((stocks(&harness), extra(&harness)), (vec![2], 1));
    // What ends above it makes room above it, for the oldest of the flows with nothing running.
    assert_eq!(harness.complete(5), [Settled(5, 1), Dispatched(6, 1)]);
    assert_eq!(harness.complete(6), [Settled(6, 1), Dispatched(7, 1)]);
    assert_eq!(harness.complete(2), [Settled(2, 1), Dispatched(3, 1)]);
    assert_eq!(harness.complete(7), [Settled(7, 1)], "the flood has something running");
}

#[test]
fn it_is_charged_like_any_other() {
    let mut harness = flooded();
    let finish = |harness: &Harness, name: &str| {
        let flows = harness.engine.snapshot().flows;
        flows.iter().find(|flow| &*flow.key == name).map(|flow| flow.finish)
    };
    let flood = finish(&harness, "flood");
    assert_eq!((harness.register(5, "small", Default), flood), (vec![Bypassed(5, 1)], Some(1.0)));
    assert_eq!(finish(&harness, "small"), Some(2.0), "one request more, after what was charged before");
    // Served as often in its turn, a flow has the same.
    let mut harness = Harness::new(with_extra(2, 0), 1);
    assert_eq!(harness.register(1, "flood", Default), [Bypassed(1, 1)]);
    assert_eq!(harness.register(5, "small", Default), [Bypassed(5, 1)]);
    assert_eq!(finish(&harness, "small"), Some(2.0));
}

#[test]
fn the_oldest_waits_the_shortest() {
    let mut harness = flooded();
    assert_eq!(harness.register(5, "a", Default), [Bypassed(5, 1)]);
    for (id, flow) in [(6, "z"), (7, "b"), (8, "c")] {
        assert_eq!(harness.register(id, flow, Default), []);
    }
    assert_eq!(harness.complete(5), [Settled(5, 1), Dispatched(6, 1)]);
    assert_eq!(harness.complete(6), [Settled(6, 1), Dispatched(7, 1)]);
    assert_eq!(harness.complete(7), [Settled(7, 1), Dispatched(8, 1)]);
    assert_eq!(harness.complete(8), [Settled(8, 1)], "the flood runs something");
}

#[test]
fn no_one_goes_above_the_bound_before_a_more_critical_request_that_waits() {
    let mut harness = flooded();
    assert_eq!(harness.register(5, "urgent", Critical), [Bypassed(5, 1)], "it is the most critical one");
    assert_eq!(harness.register(6, "urgent", Critical), []);
    assert_eq!(harness.register(7, "small", Default), []);
    assert_eq!(harness.complete(5), [Settled(5, 1), Dispatched(6, 1)]);
    assert_eq!(harness.complete(6), [Settled(6, 1), Dispatched(7, 1)]);
    // Bands that share by weight don't wait for each other.
    let policy = Policy {
        bands: penstock_engine::policy::Bands {
            mode: BandMode::Weighted([2.0, 1.0, 0.0]),
            ..penstock_engine::policy::Bands::default()
        },
        ..with_extra(1, 1)
    };
    let mut harness = Harness::new(policy, 1);
    assert_eq!(harness.register(1, "urgent", Critical), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "urgent", Critical), []);
    assert_eq!(harness.register(3, "small", Default), [Bypassed(3, 1)]);
    assert_eq!(harness.complete(3), [Settled(3, 1)]);
    assert_eq!(harness.register(4, "batch", Band::Sheddable), [], "it has no weight");
}

#[test]
fn a_flow_that_is_at_a_limit_of_its_own_holds_up_no_less_critical_one() {
    let mut policy = with_extra(2, 1);
    policy.flows.max_in_flight = Some(1);
    let mut harness = Harness::new(policy, 1);
    assert_eq!(harness.register(1, "urgent", Critical), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "urgent", Critical), [], "at its limit");
    assert_eq!(harness.register(3, "a", Default), [Bypassed(3, 1)]);
    assert_eq!(harness.register(4, "b", Default), [Bypassed(4, 1)], "above the bound");
    assert_eq!(extra(&harness), 1);
}

#[test]
fn the_queue_s_limits_reject_no_request_that_goes_above_the_bound() {
    let mut harness = flooded();
    let mut policy = with_extra(1, 1);
    policy.queue.total_capacity = 3;
    assert_eq!(harness.handle(Input::Policy(Box::new(policy))), []);
    assert_eq!(harness.register(5, "flood", Default), [Rejected(5, Outcome::RejectedQueueFull)]);
    assert_eq!(harness.register(6, "small", Default), [Bypassed(6, 1)]);
}

#[test]
fn an_endpoint_that_takes_fewer_requests_than_its_bound_has_no_place_above_it() {
    let mut harness = Harness::new(with_extra(2, 1), 1);
    assert_eq!(harness.register(1, "flood", Default), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "flood", Default), [Bypassed(2, 1)]);
    let refused = Input::PushedBack { id: RequestId(2), endpoint: EndpointId(1) };
    assert_eq!(harness.handle(refused), []);
    assert_eq!(harness.register(3, "small", Default), [], "the server has just refused a second request");
}

#[test]
fn sequences_and_tokens_above_the_bound_are_bounded_too() {
    let in_sequences = |bound| Gate::Bounded {
        unit: StockUnit::Sequences,
        lower: Decimal::whole(bound),
        upper: Decimal::whole(bound),
        watermark: Decimal::whole(bound),
    };
    let of = |id, flow: &str, sequences| Request { sequences, ..request(id, flow, Default) };
    let mut harness = Harness::new(Policy { gate: in_sequences(4), ..with_extra(4, 2) }, 1);
    assert_eq!(harness.handle(Input::Register(of(1, "flood", 4))), [Bypassed(1, 1)]);
    assert_eq!(harness.handle(Input::Register(of(2, "large", 3))), [], "there are two places");
    assert_eq!(harness.handle(Input::Register(of(3, "small", 1))), [Bypassed(3, 1)]);
    assert_eq!(harness.handle(Input::Register(of(4, "two", 2))), [], "one is left");
    assert_eq!(harness.handle(Input::Register(of(5, "one", 1))), [Bypassed(5, 1)]);
    assert_eq!((stocks(&harness), extra(&harness)), (vec![6], 2));
    assert_eq!(harness.complete(3), [Settled(3, 1)]);
    assert_eq!(harness.complete(5), [Settled(5, 1), Dispatched(4, 1)]);

    let tokens = Gate::Bounded {
        unit: StockUnit::Tokens,
        lower: Decimal::whole(1_000),
        upper: Decimal::whole(1_000),
        watermark: Decimal::whole(1_000),
    };
    let half = ExtraPlaces::Part(Decimal::from_billionths(Decimal::ONE / 2));
    let mut harness = Harness::new(Policy { gate: tokens, extra_for_idle_flows: half, ..policy() }, 1);
    // Each has 150 tokens.
    for id in 1..=7 {
        assert_eq!(harness.register(id, "flood", Default), [Bypassed(id, 1)]);
    }
    assert_eq!(harness.register(8, "flood", Default), []);
    for (id, flow) in [(9, "a"), (10, "b"), (11, "c")] {
        assert_eq!(harness.register(id, flow, Default), [Bypassed(id, 1)], "up to 500 tokens");
    }
    assert_eq!(harness.register(12, "d", Default), []);
    assert_eq!(extra(&harness), 450);
}

#[test]
fn accounts_hold_when_it_moves_leaves_or_is_requeued() {
    let mut harness = Harness::new(with_extra(1, 1), 2);
    assert_eq!(
        harness.handle(Input::Register(restricted(request(1, "flood", Default), &[1]))),
        [Bypassed(1, 1)]
    );
    assert_eq!(
        harness.handle(Input::Register(restricted(request(2, "flood", Default), &[2]))),
        [Bypassed(2, 2)]
    );
    assert_eq!(harness.register(3, "flood", Default), []);
    let granted = harness.register(4, "small", Default);
    let [Bypassed(4, at)] = granted[..] else { panic!("{granted:?}") };
    let other = EndpointId(3 - at);
    assert_eq!(harness.handle(Input::Sent { id: RequestId(4), endpoint: other }), []);
    let extras = |harness: &Harness| -> Vec<u64> {
        harness.engine.snapshot().endpoints.iter().map(|endpoint| endpoint.extra).collect()
    };
    assert_eq!(extras(&harness)[other.0 as usize - 1], 1);
    // Its counts are known before its end.
    let usage = Usage { prompt: Some(Tokens(7)), cached: None, output: Some(Tokens(9)) };
    assert_eq!(harness.handle(Input::Settle { id: RequestId(4), service: Service::Served(usage) }), []);
    assert_eq!(extra(&harness), 1);
    // It returns to its old place, and goes above the bound again.
    let requeued = harness.handle(Input::Requeue(RequestId(4)));
    assert!(matches!(requeued[..], [Dispatched(4, _)]), "{requeued:?}");
    assert_eq!(extra(&harness), 1);
    // Its client leaves, and its server computes on: the place stays taken.
    let at = if extras(&harness)[0] == 1 { 1 } else { 2 };
    assert_eq!(harness.handle(Input::Load { id: EndpointId(at), running: Some(2) }), []);
    let left = harness.handle(Input::Left { id: RequestId(4), service: Service::Cut(usage) });
    assert!(matches!(left[..], [Settled(4, _)]), "{left:?}");
    assert_eq!(extra(&harness), 1);
    assert_eq!(harness.handle(Input::Load { id: EndpointId(at), running: Some(1) }), []);
    assert_eq!(extra(&harness), 0);
}

#[test]
fn a_change_of_the_policy_counts_for_what_comes() {
    let mut harness = flooded();
    assert_eq!(harness.register(5, "small", Default), [Bypassed(5, 1)]);
    assert_eq!(harness.register(6, "another", Default), []);
    assert_eq!(harness.handle(Input::Policy(Box::new(with_extra(1, 0)))), []);
    assert_eq!(extra(&harness), 1, "what runs there stays there");
    assert_eq!(harness.complete(5), [Settled(5, 1)]);
    assert_eq!(harness.handle(Input::Policy(Box::new(with_extra(1, 2)))), [Dispatched(6, 1)]);
    let weighted = Policy {
        bands: penstock_engine::policy::Bands {
            mode: BandMode::Weighted([1.0, 1.0, 1.0]),
            ..penstock_engine::policy::Bands::default()
        },
        ..with_extra(1, 2)
    };
    assert_eq!(harness.handle(Input::Policy(Box::new(weighted))), []);
    assert_eq!(harness.register(7, "third", Default), [Bypassed(7, 1)]);
    assert_eq!(harness.handle(Input::Policy(Box::new(with_gate(Gate::Open)))).len(), 3, "the flood goes");
    assert_eq!(extra(&harness), 2);
}

#[test]
fn the_rate_limits_grants_above_the_bound() {
    let mut policy = with_extra(1, 4);
    policy.queue.max_rate = Some(1.0);
    let mut harness = Harness::new(policy, 1);
    assert_eq!(harness.register(1, "flood", Default), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "small", Default), [], "the second of this second");
    assert_eq!(harness.engine.poll_timeout(), Some(time(1.0)));
    assert_eq!(harness.advance_to(1.0).handle_timeout(), [Dispatched(2, 1)]);
}

#[test]
fn a_part_of_the_bound_under_auto_follows_the_bound() {
    let auto = Gate::Auto { initial: Decimal::whole(8) };
    let tenth = ExtraPlaces::Part(Decimal::from_billionths(Decimal::ONE / 10));
    let mut harness = Harness::new(Policy { gate: auto, extra_for_idle_flows: tenth, ..policy() }, 1);
    let bound = |most| Input::Allowance {
        id: EndpointId(1),
        allowance: Some(penstock_engine::Allowance {
            alpha_ms: 10.0,
            beta_ms: 0.0,
            gamma_ms: 0.0,
            iteration_ms_max: f64::INFINITY,
            first_token_ms_max: f64::INFINITY,
            ttft_bias: 1.0,
            kv_tokens_max: None,
            requests_max: Some(most),
            sequences_max: None,
            typical: most,
            rate: None,
        }),
    };
    assert_eq!(harness.handle(bound(20)), []);
    for id in 1..=20 {
        assert_eq!(harness.register(id, "flood", Default), [Bypassed(id, 1)]);
    }
    assert_eq!(harness.register(21, "flood", Default), []);
    assert_eq!(harness.register(22, "a", Default), [Bypassed(22, 1)]);
    assert_eq!(harness.register(23, "b", Default), [Bypassed(23, 1)]);
    assert_eq!(harness.register(24, "c", Default), []);
    // What runs above the bound takes no place within it.
    assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(24, 1)]);
    assert_eq!(harness.register(25, "d", Default), []);
    assert_eq!(harness.handle(bound(30)).len(), 2, "the bound is 30: who waits goes within it");
    assert_eq!(extra(&harness), 2);
}

#[test]
fn of_many_flows_without_an_endpoint_only_the_first_few_are_seen() {
    let mut harness = Harness::new(with_extra(1, 1), 2);
    assert_eq!(
        harness.handle(Input::Register(restricted(request(1, "flood", Default), &[1]))),
        [Bypassed(1, 1)]
    );
    assert_eq!(
        harness.handle(Input::Register(restricted(request(2, "flood", Default), &[2]))),
        [Bypassed(2, 2)]
    );
    assert_eq!(harness.register(3, "x", Default).len(), 1);
    assert_eq!(harness.register(4, "y", Default).len(), 1);
    for id in 10..25 {
        let request = restricted(request(id, &format!("f{id}"), Default), &[1]);
        assert_eq!(harness.handle(Input::Register(request)), []);
    }
    let ends = |harness: &Harness, at: usize| {
        let snapshot = harness.engine.snapshot();
        snapshot.endpoints[at].extra
    };
    assert_eq!(harness.handle(Input::Register(restricted(request(25, "last", Default), &[2]))), []);
    // The place at the second endpoint is free: the sixteenth is seen behind fifteen that may not go there.
    let at_second = if harness.engine.endpoint_of(RequestId(3)) == Some(EndpointId(2)) { 3 } else { 4 };
    assert_eq!(harness.complete(at_second), [Settled(at_second, 1), Dispatched(25, 2)]);
    assert_eq!(ends(&harness, 1), 1);
    // The seventeenth isn't.
    assert_eq!(harness.handle(Input::Register(restricted(request(26, "f26", Default), &[1]))), []);
    assert_eq!(harness.handle(Input::Register(restricted(request(27, "later", Default), &[2]))), []);
    assert_eq!(harness.complete(25), [Settled(25, 1)]);
}

#[test]
fn a_large_request_need_not_wait_for_what_runs_above_the_bound() {
    let gate = Gate::Bounded {
        unit: StockUnit::Sequences,
        lower: Decimal::whole(4),
        upper: Decimal::whole(4),
        watermark: Decimal::whole(4),
    };
    let mut harness = Harness::new(Policy { gate, ..with_extra(4, 1) }, 1);
    let of = |id, flow: &str, sequences| Request { sequences, ..request(id, flow, Default) };
    assert_eq!(harness.handle(Input::Register(of(1, "flood", 4))), [Bypassed(1, 1)]);
    assert_eq!(harness.handle(Input::Register(of(2, "large", 32))), []);
    assert_eq!(harness.handle(Input::Register(of(3, "small", 1))), [Bypassed(3, 1)]);
    // It runs beside what is above the bound, or that would hold it up for ever.
    assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(2, 1)]);
    assert_eq!((stocks(&harness), extra(&harness)), (vec![33], 1));
}

#[test]
fn a_server_that_refuses_what_runs_above_its_bound_takes_none_there_for_a_while() {
    let mut harness = flooded();
    assert_eq!(harness.register(5, "small", Default), [Bypassed(5, 1)]);
    assert_eq!(harness.handle(Input::PushedBack { id: RequestId(5), endpoint: EndpointId(1) }), []);
    assert_eq!(
        harness.handle(Input::Completed { id: RequestId(5), service: Service::Nothing }),
        [Settled(5, 0)]
    );
    assert_eq!(harness.register(6, "another", Default), []);
    // It has served one more, and is tried again.
    assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(2, 1), Dispatched(6, 1)]);
    assert_eq!(extra(&harness), 1);
}

#[test]
fn a_newcomer_overtakes_no_one_whom_only_the_rate_has_held() {
    let mut policy = with_extra(4, 2);
    policy.queue.max_rate = Some(1.0);
    let mut harness = Harness::new(policy, 1);
    assert_eq!(harness.register(1, "a", Default), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "b", Default), []);
    // The token is there before the timer has fired.
    harness.advance_to(1.0);
    assert_eq!(harness.register(3, "c", Default), [Dispatched(2, 1)]);
}
