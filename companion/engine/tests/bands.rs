//! Bands by weight and under ceilings, and a tree for each model. One rule a test.

mod support;

use penstock_engine::input::{Band, Prompt};
use penstock_engine::policy::{BandMode, CostUnit, Gate};
use penstock_engine::units::{Decimal, Tokens};
use penstock_engine::{Input, Policy};

use Band::{Critical, Default, Sheddable};
use Said::{Bypassed, Dispatched, Settled};
use support::*;

fn manual(mode: BandMode) -> Policy {
    let mut policy = policy();
    policy.gate = Gate::Manual;
    policy.bands.mode = mode;
    policy.queue.flow_capacity = 1_000;
    policy
}

/// The next `count` that go.
fn order(bench: &mut Bench, count: usize) -> Vec<u64> {
    let next = |_| match bench.say(Input::Dispatch { blocked: vec![] })[..] {
        [Dispatched(id, _)] => id,
        ref other => panic!("{other:?}"),
    };
    (0..count).map(next).collect()
}

#[test]
fn weighted_bands_take_turns_by_requests() {
    let mut bench = Bench::new(manual(BandMode::Weighted([3.0, 2.0, 0.5])), 1);
    for id in 0..10 {
        bench.register(100 + id, "f", Critical);
        bench.register(200 + id, "f", Default);
        bench.register(300 + id, "f", Sheddable);
    }
    let order = order(&mut bench, 11);
    // Half a request a visit is one every other visit.
    assert_eq!(order, [100, 101, 102, 200, 201, 103, 104, 105, 202, 203, 300]);
}

#[test]
fn weighted_bands_take_turns_by_tokens() {
    let mut policy = manual(BandMode::Weighted([1.0, 2.0, 0.0]));
    policy.flows.cost = CostUnit::Tokens;
    let mut bench = Bench::new(policy, 1);
    for id in 0..6 {
        for (first, band) in [(100, Critical), (200, Default), (300, Sheddable)] {
            let mut request = request(first + id, "f", band);
            request.prompt = Prompt::Tokens(Tokens(50));
            request.expected_output = Some(Tokens(25));
            bench.say(Input::Register(request));
        }
    }
    // 100 tokens each: one, two; and who has no weight goes when nobody else can.
    let order = order(&mut bench, 13);
    assert_eq!(order[..9], [100, 200, 201, 101, 202, 203, 102, 204, 205]);
    assert_eq!(order[9..], [103, 104, 105, 300]);
}

#[test]
fn bands_change_their_mode_with_requests_waiting() {
    let mut bench = Bench::new(manual(BandMode::Strict), 1);
    for id in 0..4 {
        bench.register(100 + id, "f", Critical);
        bench.register(200 + id, "f", Default);
    }
    assert_eq!(order(&mut bench, 1), [100]);
    bench.say(Input::Policy(Box::new(manual(BandMode::Weighted([
        1.0, 1.0, 1.0,
    ])))));
    assert_eq!(order(&mut bench, 3), [101, 200, 102]);
    bench.say(Input::Policy(Box::new(manual(BandMode::Weighted([
        1.0, 2.0, 1.0,
    ])))));
    assert_eq!(order(&mut bench, 2), [201, 202]);
    bench.say(Input::Policy(Box::new(manual(BandMode::Strict))));
    assert_eq!(order(&mut bench, 2), [103, 203]);
}

/// Sheddable requests go up to a part of the bound, which is `places`.
fn capped(places: u64, hundredths: u128) -> Bench {
    let mut policy = policy();
    policy.gate = gate(places, places);
    policy.bands.ceilings[2] = Some(Decimal::from_billionths(hundredths * Decimal::ONE / 100));
    Bench::new(policy, 1)
}

#[test]
fn over_its_ceiling_a_band_waits_and_the_others_go() {
    let mut bench = capped(4, 50);
    assert_eq!(bench.register(1, "f", Sheddable), [Bypassed(1, 1)]);
    assert_eq!(bench.register(2, "f", Sheddable), [Bypassed(2, 1)]);
    assert_eq!(bench.register(3, "f", Sheddable), []);
    // What waits is held by its own limit.
    assert_eq!(bench.register(4, "f", Default), [Bypassed(4, 1)]);
    assert_eq!(bench.register(5, "f", Critical), [Bypassed(5, 1)]);
    assert_eq!(bench.complete(4), [Settled(4, 1)]);
    assert_eq!(bench.complete(5), [Settled(5, 1)]);
    assert_eq!(bench.complete(1), [Settled(1, 1), Dispatched(3, 1)]);
}

#[test]
fn under_a_ceiling_a_place_stays_free_where_there_is_more_than_one() {
    let mut bench = capped(2, 99);
    assert_eq!(bench.register(1, "f", Sheddable), [Bypassed(1, 1)]);
    assert_eq!(bench.register(2, "f", Sheddable), []);
    assert_eq!(bench.register(3, "g", Critical), [Bypassed(3, 1)]);
    let mut bench = capped(1, 10);
    assert_eq!(bench.register(1, "f", Sheddable), [Bypassed(1, 1)]);
    assert_eq!(bench.register(2, "f", Sheddable), []);
    assert_eq!(bench.complete(1), [Settled(1, 1), Dispatched(2, 1)]);
}

#[test]
fn a_ceiling_of_one_is_none() {
    let mut bench = capped(2, 100);
    assert_eq!(bench.register(1, "f", Sheddable), [Bypassed(1, 1)]);
    assert_eq!(bench.register(2, "f", Sheddable), [Bypassed(2, 1)]);
}

#[test]
fn each_model_has_a_tree_of_its_own() {
    let mut policy = manual(BandMode::Strict);
    policy.per_model = true;
    let mut bench = Bench::new(policy.clone(), 1);
    for id in 0..4 {
        for (first, flow, model) in [(100, "a", "m"), (200, "b", "m"), (300, "c", "n")] {
            let mut request = request(first + id, flow, Default);
            request.model = model.into();
            bench.say(Input::Register(request));
        }
    }
    // One of m, one of n: two flows of one model share its half.
    assert_eq!(order(&mut bench, 6), [100, 300, 200, 301, 101, 302]);
    policy.per_model = false;
    bench.say(Input::Policy(Box::new(policy)));
    assert_eq!(bench.engine.waiting(), 6);
    let mut rest = order(&mut bench, 6);
    rest.sort_unstable();
    assert_eq!(rest, [102, 103, 201, 202, 203, 303]);
}
