//! Bands by weight and with ceilings, and a tree for each model. One rule a test.

use Band::{Critical, Default, Sheddable};
use ShortEffect::{Bypassed, Dispatched, Settled};
use penstock_engine::input::{Band, Prompt};
use penstock_engine::policy::{BandMode, CostUnit, Gate};
use penstock_engine::units::{Decimal, Tokens};
use penstock_engine::{Input, Policy};

use crate::support::*;

fn manual(mode: BandMode) -> Policy {
    let mut policy = policy();
    policy.gate = Gate::Manual;
    policy.bands.mode = mode;
    policy.queue.flow_capacity = 1_000;
    policy
}

/// The next `count` dispatched requests.
fn order(harness: &mut Harness, count: usize) -> Vec<u64> {
    let next = |_| match harness.handle(Input::Dispatch { blocked: vec![] })[..] {
        [Dispatched(id, _)] => id,
        ref other => panic!("{other:?}"),
    };
    (0..count).map(next).collect()
}

#[test]
fn weighted_bands_take_turns_by_requests() {
    let mut harness = Harness::new(manual(BandMode::Weighted([3.0, 2.0, 0.5])), 1);
    for id in 0..10 {
        harness.register(100 + id, "f", Critical);
        harness.register(200 + id, "f", Default);
        harness.register(300 + id, "f", Sheddable);
    }
    let order = order(&mut harness, 11);
    // Half a request a visit means one request every other visit.
    assert_eq!(order, [100, 101, 102, 200, 201, 103, 104, 105, 202, 203, 300]);
}

#[test]
fn weighted_bands_take_turns_by_tokens() {
    let mut policy = manual(BandMode::Weighted([1.0, 2.0, 0.0]));
    policy.flows.cost = CostUnit::Tokens;
    let mut harness = Harness::new(policy, 1);
    for id in 0..6 {
        for (first, band) in [(100, Critical), (200, Default), (300, Sheddable)] {
            let mut request = request(first + id, "f", band);
            request.prompt = Prompt::Tokens(Tokens(50));
            request.expected_output = Some(Tokens(25));
            harness.handle(Input::Register(request));
        }
    }
    // 100 tokens each: one, then two. The band without weight goes when no other can.
    let order = order(&mut harness, 13);
    assert_eq!(order[..9], [100, 200, 201, 101, 202, 203, 102, 204, 205]);
    assert_eq!(order[9..], [103, 104, 105, 300]);
}

#[test]
fn bands_change_their_mode_with_requests_waiting() {
    let mut harness = Harness::new(manual(BandMode::Strict), 1);
    for id in 0..4 {
        harness.register(100 + id, "f", Critical);
        harness.register(200 + id, "f", Default);
    }
    assert_eq!(order(&mut harness, 1), [100]);
    harness.handle(Input::Policy(Box::new(manual(BandMode::Weighted([1.0, 1.0, 1.0])))));
    assert_eq!(order(&mut harness, 3), [101, 200, 102]);
    harness.handle(Input::Policy(Box::new(manual(BandMode::Weighted([1.0, 2.0, 1.0])))));
    assert_eq!(order(&mut harness, 2), [201, 202]);
    harness.handle(Input::Policy(Box::new(manual(BandMode::Strict))));
    assert_eq!(order(&mut harness, 2), [103, 203]);
}

/// A gate of `places`, with a ceiling for sheddable requests in hundredths of it.
fn capped(places: u64, hundredths: u128) -> Harness {
    let mut policy = policy();
    policy.gate = gate(places, places);
    policy.bands.ceilings[2] = Some(Decimal::from_billionths(hundredths * Decimal::ONE / 100));
    Harness::new(policy, 1)
}

#[test]
fn a_band_over_its_ceiling_waits_and_the_others_go() {
    let mut harness = capped(4, 50);
    assert_eq!(harness.register(1, "f", Sheddable), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "f", Sheddable), [Bypassed(2, 1)]);
    assert_eq!(harness.register(3, "f", Sheddable), []);
    // The waiting request is blocked by its ceiling only, so other bands don't overtake it.
    assert_eq!(harness.register(4, "f", Default), [Bypassed(4, 1)]);
    assert_eq!(harness.register(5, "f", Critical), [Bypassed(5, 1)]);
    assert_eq!(harness.complete(4), [Settled(4, 1)]);
    assert_eq!(harness.complete(5), [Settled(5, 1)]);
    assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(3, 1)]);
}

#[test]
fn a_ceiling_keeps_a_place_free_if_there_is_more_than_one() {
    let mut harness = capped(2, 99);
    assert_eq!(harness.register(1, "f", Sheddable), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "f", Sheddable), []);
    assert_eq!(harness.register(3, "g", Critical), [Bypassed(3, 1)]);
    let mut harness = capped(1, 10);
    assert_eq!(harness.register(1, "f", Sheddable), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "f", Sheddable), []);
    assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(2, 1)]);
}

#[test]
fn a_ceiling_of_one_does_not_limit() {
    let mut harness = capped(2, 100);
    assert_eq!(harness.register(1, "f", Sheddable), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "f", Sheddable), [Bypassed(2, 1)]);
}

#[test]
fn each_model_has_a_tree_of_its_own() {
    let mut policy = manual(BandMode::Strict);
    policy.per_model = true;
    let mut harness = Harness::new(policy.clone(), 1);
    for id in 0..4 {
        for (first, flow, model) in [(100, "a", "m"), (200, "b", "m"), (300, "c", "n")] {
            let mut request = request(first + id, flow, Default);
            request.model = model.into();
            harness.handle(Input::Register(request));
        }
    }
    // One of m, one of n: the two flows of model m share its half.
    assert_eq!(order(&mut harness, 6), [100, 300, 200, 301, 101, 302]);
    policy.per_model = false;
    harness.handle(Input::Policy(Box::new(policy)));
    assert_eq!(harness.engine.waiting(), 6);
    let mut rest = order(&mut harness, 6);
    rest.sort_unstable();
    assert_eq!(rest, [102, 103, 201, 202, 203, 303]);
}
