//! `over: hold`: flows without room wait until there is room.

use std::time::Duration;

use Band::Default;
use ShortEffect::{Bypassed, Dispatched, Rejected, Settled};
use penstock_engine::effect::Reject;
use penstock_engine::input::{Band, Service};
use penstock_engine::policy::{BudgetPeriod, Discipline, Over, Policy};
use penstock_engine::queue_position::BlockReason;
use penstock_engine::units::Tokens;
use penstock_engine::{Effect, Input, Outcome, Request, RequestId};

use super::{requests, sized, sliding, tokens, used, with_budget};
use crate::support::*;

fn long_ttl(mut policy: Policy) -> Policy {
    policy.queue.ttl = Duration::from_secs(100_000);
    policy
}

#[test]
fn a_flow_without_room_waits_until_there_is_room_and_no_other_flow_waits_for_it() {
    for discipline in Discipline::ALL {
        let mut policy = with_budget(Over::Hold, &[requests(1, sliding(15))]);
        policy.flows.discipline = discipline;
        let mut harness = Harness::new(policy, 1);
        assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
        assert_eq!(harness.register(2, "f", Default), []);
        assert_eq!(harness.register(3, "f", Band::Critical), [], "{discipline:?}");
        assert_eq!(harness.register(4, "g", Band::Sheddable), [Bypassed(4, 1)]);
        assert_eq!(harness.engine.poll_timeout(), Some(time(15.25)));
        harness.advance_to(15.2);
        assert_eq!(harness.handle_timeout(), []);
        harness.advance_to(15.25);
        assert_eq!(harness.handle_timeout(), [Dispatched(3, 1)], "{discipline:?}");
        assert_eq!(harness.engine.poll_timeout(), Some(time(30.0)), "the ttl of request 2 comes first");
        harness.advance_to(30.0);
        assert_eq!(harness.handle_timeout(), [Rejected(2, Outcome::ExpiredTtl)]);
    }
}

#[test]
fn a_settled_cost_below_its_estimate_lets_the_next_request_go() {
    let mut harness = Harness::new(with_budget(Over::Hold, &[tokens(100, sliding(60))]), 1);
    assert_eq!(harness.handle(Input::Register(sized(1, "f", Default, 100))), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "f", Default), []);
    assert_eq!(harness.handle(used(1, 99)), [Settled(1, 1), Dispatched(2, 1)]);
}

#[test]
fn a_refund_lets_the_next_request_go() {
    let mut harness = Harness::new(with_budget(Over::Hold, &[requests(1, BudgetPeriod::Month)]), 1);
    assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "f", Default), []);
    let refunded = Input::Completed { id: RequestId(1), service: Service::Nothing };
    assert_eq!(harness.handle(refunded), [Settled(1, 0), Dispatched(2, 1)]);
}

#[test]
fn a_top_up_and_a_reset_let_the_next_request_go() {
    let mut harness = Harness::new(with_budget(Over::Hold, &[tokens(10, BudgetPeriod::Day)]), 1);
    assert_eq!(harness.handle(Input::Register(sized(1, "f", Default, 60))), [Bypassed(1, 1)]);
    assert_eq!(harness.handle(Input::Register(sized(2, "f", Default, 5))), []);
    assert_eq!(harness.handle(Input::Register(sized(3, "f", Default, 5))), []);
    let top_up = |tokens| Input::TopUp { flow: "f".into(), tokens: Tokens(tokens) };
    assert_eq!(harness.handle(top_up(50)), [], "it pays the debt");
    assert_eq!(harness.handle(top_up(5)), [Dispatched(2, 1)]);
    assert_eq!(harness.handle(Input::ResetBudget("f".into())), [Dispatched(3, 1)]);
}

#[test]
fn a_held_flow_goes_at_midnight_utc() {
    let mut harness = Harness::new(long_ttl(with_budget(Over::Hold, &[requests(1, BudgetPeriod::Day)])), 1);
    harness.handle(Input::Utc(Duration::from_secs(20_000 * 86_400 - 100)));
    assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "f", Default), []);
    assert_eq!(harness.engine.poll_timeout(), Some(time(100.0)));
    harness.advance_to(100.0);
    assert_eq!(harness.handle_timeout(), [Dispatched(2, 1)]);
}

#[test]
fn a_clock_that_jumps_changes_when_a_held_flow_goes() {
    let mut harness = Harness::new(long_ttl(with_budget(Over::Hold, &[requests(1, BudgetPeriod::Day)])), 1);
    let midnight = 20_000 * 86_400;
    harness.handle(Input::Utc(Duration::from_secs(midnight - 100)));
    assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "f", Default), []);
    assert_eq!(harness.register(3, "f", Default), []);
    assert_eq!(harness.handle(Input::Utc(Duration::from_secs(midnight - 200))), []);
    assert_eq!(harness.engine.poll_timeout(), Some(time(200.0)));
    assert_eq!(harness.handle(Input::Utc(Duration::from_secs(midnight + 10))), [Dispatched(2, 1)]);
    assert_eq!(
        harness.handle(Input::Utc(Duration::from_secs(midnight - 10))),
        [],
        "no new day by a small step back"
    );
    harness.advance_to(20.0);
    assert_eq!(harness.handle_timeout(), [], "midnight again");
    assert_eq!(harness.engine.poll_timeout(), Some(time(86_410.0)));
}

#[test]
fn a_sliding_window_does_not_see_the_clock_jump() {
    let mut harness = Harness::new(with_budget(Over::Hold, &[requests(1, sliding(15))]), 1);
    assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "f", Default), []);
    assert_eq!(harness.handle(Input::Utc(Duration::from_secs(2_000_000_000))), []);
    assert_eq!(harness.engine.poll_timeout(), Some(time(15.25)));
}

#[test]
fn what_is_held_says_why_and_until_when() {
    let mut harness = Harness::new(long_ttl(with_budget(Over::Hold, &[requests(1, sliding(600))])), 1);
    assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "f", Default), []);
    harness.advance_to(10.0);
    harness.handle_timeout();
    let left = Some(Duration::from_secs(600));
    let reason = harness.engine.block_reason(RequestId(2));
    assert_eq!(reason, Some(BlockReason::Held { left }));
    let position = harness.engine.position(RequestId(2)).expect("it waits");
    assert_eq!(position.estimate, Duration::from_secs(600));
    let snapshot = harness.engine.snapshot();
    let held = snapshot.bands.map(|band| (band.waiting, band.held_by_flow));
    assert_eq!(held, [(0, 0), (1, 1), (0, 0)]);
}

#[test]
fn a_rejection_of_a_held_flow_says_when_its_budget_has_room() {
    let mut policy = with_budget(Over::Hold, &[requests(1, sliding(600))]);
    policy.queue.flow_capacity = 1;
    let mut harness = Harness::new(policy, 1);
    assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "f", Default), []);
    let retry_after = |effects: &[Effect]| match effects {
        [Effect::Reject(Reject { retry_after, .. })] => retry_after.expect("a rejection has one"),
        other => panic!("{other:?}"),
    };
    let full = harness.effects(Input::Register(request(3, "f", Default)));
    assert_eq!(retry_after(&full), Duration::from_secs(610), "its flow is full");
    harness.advance_to(30.0);
    harness.engine.handle_timeout(harness.now);
    let expired: Vec<Effect> = std::iter::from_fn(|| harness.engine.poll_effect()).collect();
    assert_eq!(retry_after(&expired), Duration::from_secs(580), "its ttl has ended");
}

#[test]
fn an_idle_pool_that_only_holds_requests_does_not_measure_how_fast_it_drains() {
    for is_held in [true, false] {
        let mut policy = long_ttl(with_budget(Over::Hold, &[requests(1, sliding(6_000))]));
        if !is_held {
            policy.flows.budgets.clear();
            policy.flows.max_in_flight = Some(1);
        }
        policy.gate = gate(2, 2);
        policy.reject_unmeetable = true;
        let mut harness = Harness::new(policy, 1);
        // The pool is saturated for a second, and serves two requests in it: its rate is known.
        for id in [91, 92, 93] {
            harness.register(id, &format!("g{id}"), Default);
        }
        harness.advance_to(1.0);
        for id in [91, 92, 93] {
            harness.complete(id);
        }
        assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
        assert_eq!(harness.register(2, "f", Default), [], "it waits for a limit of its flow");
        if is_held {
            harness.complete(1);
        }
        harness.advance_to(3_000.0);
        harness.engine.handle_timeout(harness.now);
        // A burst from others, each with time for ten requests before it.
        let ids = 10..20;
        let burst = ids.map(|id| {
            let request =
                Request { deadline: Some(time(3_020.0)), ..request(id, &format!("h{id}"), Default) };
            harness.handle(Input::Register(request))
        });
        let rejected: Vec<_> =
            burst.flatten().filter(|effect| matches!(effect, ShortEffect::Rejected(..))).collect();
        assert_eq!(rejected, [], "held by a budget: {is_held}");
    }
}

#[test]
fn a_held_request_whose_deadline_comes_before_its_room_is_rejected_at_once() {
    let mut policy = long_ttl(with_budget(Over::Hold, &[requests(1, sliding(600))]));
    policy.reject_unmeetable = true;
    let mut harness = Harness::new(policy, 1);
    assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
    let until =
        |id, seconds| Input::Register(Request { deadline: Some(time(seconds)), ..request(id, "f", Default) });
    let rejected = harness.effects(until(2, 609.0));
    assert!(
        matches!(
            rejected[..],
            [Effect::Reject(Reject { outcome: Outcome::RejectedUnmeetable, retry_after: Some(wait), .. })]
                if wait == Duration::from_secs(610)
        ),
        "{rejected:?}"
    );
    assert_eq!(harness.handle(until(3, 611.0)), []);
}

#[test]
fn only_requests_that_their_own_limits_let_go_wait_for_room() {
    let mut policy = with_budget(Over::Hold, &[requests(1, sliding(20))]);
    policy.gate = gate(1, 1);
    policy.flows.max_in_flight = Some(1);
    let mut harness = Harness::new(policy, 1);
    assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
    for (id, flow) in [(2, "f"), (3, "f"), (4, "g"), (5, "g"), (6, "")] {
        assert_eq!(harness.register(id, flow, Default), []);
    }
    let engine = &harness.engine;
    assert_eq!((engine.waiting(), engine.waiting_for_room()), (5, 3));
    let limited = ["f", "g", "", "unknown"].map(|flow| engine.is_flow_at_limit(flow));
    assert_eq!(limited, [true, false, false, false]);
    // The budget still holds the first flow, though it runs nothing any more, and the next flow runs as much as it may.
    harness.advance_to(1.0);
    assert_eq!(harness.handle(used(1, 1)), [Settled(1, 1), Dispatched(4, 1)]);
    let engine = &harness.engine;
    assert_eq!((engine.waiting(), engine.waiting_for_room()), (4, 1));
    let limited = ["f", "g", ""].map(|flow| engine.is_flow_at_limit(flow));
    assert_eq!(limited, [true, true, false]);
}
