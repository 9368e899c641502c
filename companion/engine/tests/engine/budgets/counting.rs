//! What counts in the windows of a budget, and when.

use std::time::Duration;

use Band::Default;
use ShortEffect::{Bypassed, Dispatched, Rejected, Settled};
use penstock_engine::effect::Reject;
use penstock_engine::input::{Band, Service, Usage};
use penstock_engine::policy::{BudgetPeriod, CostUnit, Discipline, FlowGlob, Over};
use penstock_engine::snapshot::BudgetWindowSnapshot;
use penstock_engine::units::Tokens;
use penstock_engine::{Effect, EndpointId, Input, Instant, Outcome, RequestId};

use super::{amounts, requests, sized, sliding, tokens, used, window, with_budget};
use crate::support::*;

#[test]
fn a_request_reserves_its_estimate_and_settles_what_it_used_under_every_discipline() {
    for discipline in Discipline::ALL {
        for cost in [CostUnit::Tokens, CostUnit::Requests] {
            let mut policy = with_budget(Over::Refuse, &[tokens(1_000, sliding(60))]);
            policy.flows.discipline = discipline;
            policy.flows.cost = cost;
            let mut harness = Harness::new(policy, 1);
            harness.handle(Input::Register(sized(1, "f", Default, 300)));
            assert_eq!(amounts(&mut harness, "f"), (0, 300, 700), "{discipline:?} {cost:?}");
            harness.handle(used(1, 450));
            assert_eq!(amounts(&mut harness, "f"), (450, 0, 550), "{discipline:?} {cost:?}");
        }
    }
}

#[test]
fn tokens_are_weighted_and_cached_ones_are_free() {
    let mut policy = with_budget(Over::Refuse, &[tokens(1_000, sliding(60))]);
    (policy.weights.input, policy.weights.output) = (1.0, 2.0);
    let mut harness = Harness::new(policy, 1);
    harness.register(1, "f", Default);
    let usage =
        |cached| Usage { prompt: Some(Tokens(100)), cached: Some(Tokens(cached)), output: Some(Tokens(30)) };
    harness.handle(Input::Settle { id: RequestId(1), service: Service::Served(usage(40)) });
    assert_eq!(amounts(&mut harness, "f"), (120, 0, 880), "before the end");
    harness.handle(Input::Completed { id: RequestId(1), service: Service::Served(usage(0)) });
    assert_eq!(amounts(&mut harness, "f"), (120, 0, 880), "settled once");
}

#[test]
fn a_request_larger_than_what_is_left_goes_once_and_is_paid_back() {
    let mut harness = Harness::new(with_budget(Over::Refuse, &[tokens(100, sliding(60))]), 1);
    assert_eq!(harness.handle(Input::Register(sized(1, "f", Default, 99))), [Bypassed(1, 1)]);
    assert_eq!(harness.handle(Input::Register(sized(2, "f", Default, 161))), [Bypassed(2, 1)]);
    assert_eq!(window(&mut harness, "f").map(|window| (window.debt, window.remaining)), Some((160, 0)));
    harness.advance_to(121.9);
    assert_eq!(harness.register(3, "f", Default), [Rejected(3, Outcome::RejectedBudget)]);
    harness.advance_to(122.0);
    assert_eq!(amounts(&mut harness, "f").2, 40, "100 and then 60 were paid");
    assert_eq!(harness.register(4, "f", Default), [Bypassed(4, 1)]);
}

/// A 60th of a window, with the rounding of each step of the window to whole nanoseconds.
fn a_step(window: Duration) -> Duration {
    window / 60 + Duration::from_nanos(61)
}

#[test]
fn within_any_time_as_long_as_the_window_no_more_than_the_limit_is_used() {
    for (seconds, limit) in [(1, 3), (4, 1), (4, 5), (10, 7), (61, 4), (3_600, 20)] {
        let mut harness = Harness::new(with_budget(Over::Refuse, &[requests(limit, sliding(seconds))]), 1);
        let length = Duration::from_secs(seconds);
        let mut granted: Vec<Instant> = Vec::new();
        let mut drawn = 77_u64;
        for id in 1..=3_000 {
            drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // At most every tenth of the time in which the limit lasts, and mostly much sooner.
            let most = length.as_nanos() as u64 / (10 * limit);
            harness.now = harness.now.after(Duration::from_nanos((drawn >> 20) % most));
            let asked_at = harness.now;
            if harness.register(id, "f", Default) == [Bypassed(id, 1)] {
                granted.push(asked_at);
                harness.complete(id);
            }
        }
        let limit = usize::try_from(limit).expect("small");
        assert!(granted.len() > 3 * limit, "{length:?}: {}", granted.len());
        for (first, later) in granted.iter().zip(&granted[limit..]) {
            let apart = later.since(*first);
            assert!(apart >= length, "more than {limit} in {length:?}: {apart:?}");
            // Room of a step returns at once. The requests that take it ask one after the other.
            let asking = length / 10;
            assert!(apart <= length + a_step(length) + asking, "late: {apart:?} of {length:?}");
        }
    }
}

#[test]
fn room_returns_at_most_a_step_after_the_request_has_left_the_window() {
    for (seconds, at) in
        [(1, 12.34), (4, 12.34), (4, 12.0), (4, 12.066_666), (90, 1.4), (90, 1.5), (3_600, 59.9)]
    {
        let mut harness = Harness::new(with_budget(Over::Refuse, &[requests(1, sliding(seconds))]), 1);
        harness.advance_to(at);
        assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
        let length = Duration::from_secs(seconds);
        let back = window(&mut harness, "f").expect("it is used").resets_at;
        let after = back.since(harness.now);
        assert!(after >= length && after <= length + a_step(length), "{after:?} of {length:?}");
        let refused = harness.effects(Input::Register(request(2, "f", Default)));
        assert!(
            matches!(&refused[..], [Effect::Reject(Reject { retry_after: Some(said), .. })] if *said == after),
            "{after:?}: {refused:?}"
        );
        harness.now = back.before(Duration::from_nanos(1));
        assert_eq!(harness.register(3, "f", Default), [Rejected(3, Outcome::RejectedBudget)]);
        harness.now = back;
        assert_eq!(harness.register(4, "f", Default), [Bypassed(4, 1)]);
    }
}

#[test]
fn a_day_begins_with_the_debt_of_the_last_one() {
    let mut harness = Harness::new(with_budget(Over::Refuse, &[tokens(100, BudgetPeriod::Day)]), 1);
    harness.handle(Input::Utc(Duration::from_secs(20_000 * 86_400 - 10)));
    harness.handle(Input::Register(sized(1, "f", Default, 130)));
    harness.handle(used(1, 130));
    harness.advance_to(10.0);
    assert_eq!(amounts(&mut harness, "f"), (30, 0, 70));
}

#[test]
fn a_month_ends_on_the_last_day_of_february_in_a_leap_year() {
    let mut harness = Harness::new(with_budget(Over::Refuse, &[requests(1, BudgetPeriod::Month)]), 1);
    // 28 February 2028, 23:59:50.
    harness.handle(Input::Utc(Duration::from_secs(1_835_395_190)));
    assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
    harness.advance_to(86_409.9);
    assert_eq!(harness.register(2, "f", Default), [Rejected(2, Outcome::RejectedBudget)]);
    harness.advance_to(86_410.0);
    assert_eq!(harness.register(3, "f", Default), [Bypassed(3, 1)]);
}

#[test]
fn a_request_that_is_adopted_or_admitted_by_credit_is_charged_once() {
    let mut harness = Harness::new(with_budget(Over::Refuse, &[requests(5, sliding(60))]), 1);
    let adopt = || Input::Adopt { request: request(1, "f", Default), endpoint: EndpointId(1) };
    harness.handle(adopt());
    harness.handle(adopt());
    harness.handle(Input::AdmittedByCredit {
        request: request(2, "f", Default),
        place: None,
        endpoint: EndpointId(1),
    });
    assert_eq!(amounts(&mut harness, "f"), (0, 2, 3));
}

#[test]
fn a_request_that_is_requeued_is_charged_once() {
    let mut harness = Harness::new(with_budget(Over::Refuse, &[requests(5, sliding(60))]), 1);
    harness.register(1, "f", Default);
    assert_eq!(harness.handle(Input::Requeue(RequestId(1))), [Dispatched(1, 1)]);
    assert_eq!(amounts(&mut harness, "f"), (0, 1, 4));
    assert_eq!(harness.complete(1), [Settled(1, 1)]);
    assert_eq!(amounts(&mut harness, "f"), (1, 0, 4));
}

#[test]
fn a_resumed_request_is_charged_at_its_dispatch() {
    let mut harness = Harness::new(with_budget(Over::Refuse, &[requests(1, sliding(60))]), 1);
    assert_eq!(harness.handle(Input::Resume(request(1, "f", Default))), [Dispatched(1, 1)]);
    assert_eq!(
        harness.handle(Input::Resume(request(2, "f", Default))),
        [Rejected(2, Outcome::RejectedBudget)]
    );
}

#[test]
fn a_reset_forgets_also_what_runs() {
    let mut harness = Harness::new(with_budget(Over::Refuse, &[tokens(100, sliding(60))]), 1);
    harness.handle(Input::Register(sized(1, "f", Default, 500)));
    harness.handle(Input::ResetBudget("f".into()));
    harness.handle(Input::Register(sized(2, "f", Default, 30)));
    harness.handle(used(1, 10));
    assert_eq!(amounts(&mut harness, "f"), (0, 30, 70), "request 1 no longer counts");
}

#[test]
fn the_tightest_window_has_the_smallest_part_left() {
    let windows = [tokens(1_000, sliding(60)), requests(4, BudgetPeriod::Day)];
    let mut harness = Harness::new(with_budget(Over::Refuse, &windows), 1);
    let tightest = |harness: &mut Harness| {
        let window = harness.engine.tightest_window("f").expect("it has a budget");
        (window.unit, window.remaining)
    };
    assert_eq!(tightest(&mut harness), (CostUnit::Tokens, 1_000));
    harness.handle(Input::Register(sized(1, "f", Default, 100)));
    assert_eq!(tightest(&mut harness), (CostUnit::Requests, 3));
    harness.handle(used(1, 500));
    assert_eq!(tightest(&mut harness), (CostUnit::Tokens, 500));
    assert_eq!(harness.engine.tightest_window("g"), None);
}

#[test]
fn a_request_that_shares_a_flow_has_the_window_of_that_flow() {
    let mut policy = with_budget(Over::Refuse, &[tokens(100, sliding(60))]);
    policy.flows.budgets[0].flows = FlowGlob::new("*");
    policy.flows.identities_max = 1;
    let mut harness = Harness::new(policy, 1);
    harness.handle(Input::Register(sized(1, "f", Default, 10)));
    harness.handle(Input::Register(sized(2, "g", Default, 30)));
    let engine = &mut harness.engine;
    let left = |window: Option<BudgetWindowSnapshot>| window.map(|window| window.remaining);
    assert_eq!(left(engine.tightest_window_of(RequestId(1))), Some(90));
    assert_eq!(left(engine.tightest_window_of(RequestId(2))), Some(70));
    assert_eq!(
        left(engine.tightest_window("g")),
        Some(70),
        "its next request would be charged to the shared flow too"
    );
    assert_eq!(engine.tightest_window_of(RequestId(3)), None, "it doesn't exist");
}

#[test]
fn a_window_resets_when_nothing_of_it_counts_any_more() {
    let mut harness = Harness::new(with_budget(Over::Refuse, &[tokens(100, sliding(60))]), 1);
    harness.handle(Input::Register(sized(1, "f", Default, 40)));
    harness.advance_to(10.0);
    harness.handle(Input::Register(sized(2, "f", Default, 40)));
    assert_eq!(window(&mut harness, "f").map(|window| window.resets_at), Some(time(71.0)));
}
