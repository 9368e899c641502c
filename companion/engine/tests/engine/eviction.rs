//! Evictions: a running sheddable request whose answer hasn't begun is asked to end for a critical one that has waited for too long.

use std::time::Duration;

use Band::{Critical, Default, Sheddable};
use ShortEffect::{Bypassed, Dispatched, Evicted, Settled};
use penstock_engine::effect::Evict;
use penstock_engine::input::{AnswerResult, Band, EndpointAnswer, Kind, Service, Usage};
use penstock_engine::policy::{
    BandMode, Bands, Budget, BudgetCalendar, BudgetPeriod, BudgetWindow, CostUnit, ExtraPlaces, FlowGlob,
    Over,
};
use penstock_engine::units::Tokens;
use penstock_engine::{Effect, EndpointId, Input, Policy, RequestId};

use crate::support::*;

/// Each endpoint takes `bound` requests, and critical requests wait for a second.
fn evicting(bound: u64) -> Policy {
    Policy { eviction: Some(Duration::from_secs(1)), ..with_gate(gate(bound, bound)) }
}

/// An endpoint full of the sheddable requests 1 to `bound`.
fn full(policy: Policy, bound: u64) -> Harness {
    let mut harness = Harness::new(policy, 1);
    for id in 1..=bound {
        assert_eq!(harness.register(id, "batch", Sheddable), [Bypassed(id, 1)]);
    }
    harness
}

/// The filter has answered the request, and its server may compute on.
fn ended(id: u64) -> Input {
    Input::Left { id: RequestId(id), service: Service::Nothing }
}

fn report(running: u64) -> Input {
    Input::Load { id: EndpointId(1), running: Some(running) }
}

#[test]
fn the_last_to_be_granted_ends_for_a_critical_request_that_has_waited_for_too_long() {
    let mut harness = full(evicting(2), 2);
    assert_eq!(harness.advance_to(5.0).register(10, "chat", Critical), []);
    assert_eq!(harness.engine.poll_timeout(), Some(time(6.0)));
    assert_eq!(harness.advance_to(5.9).handle_timeout(), []);
    harness.advance_to(6.0).engine.handle_timeout(time(6.0));
    let effect = harness.engine.poll_effect();
    let Some(Effect::Evict(Evict { id, waited, .. })) = effect else { panic!("{effect:?}") };
    assert_eq!((id, waited), (RequestId(2), Duration::from_secs(1)));
    assert_eq!(harness.handle(ended(2)), [Settled(2, 0), Dispatched(10, 1)]);
    assert_eq!(harness.advance_to(60.0).handle_timeout(), [], "request 1 is left alone");
}

#[test]
fn one_request_of_a_pool_ends_at_a_time() {
    let mut harness = full(evicting(3), 3);
    harness.register(10, "chat", Critical);
    harness.register(11, "chat", Critical);
    assert_eq!(harness.advance_to(1.0).handle_timeout(), [Evicted(3)]);
    assert_eq!(harness.advance_to(5.9).handle_timeout(), [], "its server has time to end with it");
    assert_eq!(harness.handle(ended(3)), [Settled(3, 0), Dispatched(10, 1), Evicted(2)]);
    assert_eq!(harness.handle(ended(2)), [Settled(2, 0), Dispatched(11, 1)]);
    assert_eq!(harness.advance_to(60.0).handle_timeout(), []);
}

#[test]
fn a_request_that_does_not_end_blocks_no_other_for_long() {
    let mut harness = full(evicting(2), 2);
    harness.register(10, "chat", Critical);
    assert_eq!(harness.advance_to(1.0).handle_timeout(), [Evicted(2)]);
    assert_eq!(harness.engine.poll_timeout(), Some(time(6.0)));
    assert_eq!(harness.advance_to(6.0).handle_timeout(), [Evicted(1)]);
    assert_eq!(harness.engine.poll_timeout(), Some(time(30.0)), "no other is left, and only the ttl");
}

#[test]
fn a_flow_at_its_limit_gets_no_more_places_than_it_may_have() {
    let mut policy = evicting(4);
    policy.flows.max_in_flight = Some(2);
    let mut harness = Harness::new(policy, 1);
    harness.register(1, "chat", Critical);
    for (id, flow) in [(2, "a"), (3, "b"), (4, "c")] {
        harness.register(id, flow, Sheddable);
    }
    for id in 10..20 {
        harness.register(id, "chat", Critical);
    }
    assert_eq!(harness.advance_to(1.0).handle_timeout(), [Evicted(4)]);
    assert_eq!(harness.handle(ended(4)), [Settled(4, 0), Dispatched(10, 1)], "and no second one ends");
    assert_eq!(harness.advance_to(20.0).handle_timeout(), []);
}

#[test]
fn a_critical_request_that_has_waited_takes_what_is_free_between_the_bounds_first() {
    let policy = Policy { eviction: Some(Duration::from_secs(1)), ..with_gate(gate(2, 4)) };
    let mut harness = full(policy, 4);
    harness.register(10, "chat", Critical);
    assert_eq!(harness.complete(1), [Settled(1, 1)], "stock is above the lower bound");
    assert_eq!(harness.advance_to(1.0).handle_timeout(), [Dispatched(10, 1)]);
}

#[test]
fn a_request_that_answers_is_never_asked_to_end() {
    for begins in [Input::FirstToken(RequestId(1)), Input::Begun(RequestId(1))] {
        let mut harness = full(evicting(1), 1);
        assert_eq!(harness.handle(begins), []);
        harness.register(10, "chat", Critical);
        assert_eq!(harness.advance_to(1.0).handle_timeout(), []);
        assert_eq!(harness.engine.poll_timeout(), Some(time(30.0)), "only its ttl");
        assert_eq!(harness.advance_to(29.0).handle_timeout(), []);
        assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(10, 1)]);
    }
}

#[test]
fn an_answer_that_begins_before_the_request_has_ended_keeps_it() {
    let mut harness = full(evicting(2), 2);
    harness.register(10, "chat", Critical);
    assert_eq!(harness.advance_to(1.0).handle_timeout(), [Evicted(2)]);
    assert_eq!(harness.handle(Input::Begun(RequestId(2))), [Evicted(1)], "another one ends in its place");
    assert_eq!(harness.handle(Input::FirstToken(RequestId(1))), [], "nothing else is silent");
    assert_eq!(harness.complete(2), [Settled(2, 1), Dispatched(10, 1)]);
}

#[test]
fn nothing_else_than_sheddable_requests_ends() {
    let mut harness = Harness::new(evicting(2), 1);
    harness.register(1, "chat", Critical);
    harness.register(2, "usual", Default);
    harness.register(10, "chat", Critical);
    harness.register(11, "usual", Default);
    assert_eq!(harness.advance_to(29.0).handle_timeout(), []);
    let mut harness = full(evicting(1), 1);
    harness.register(11, "usual", Default);
    assert_eq!(harness.advance_to(29.0).handle_timeout(), [], "only critical requests are helped");
}

#[test]
fn a_policy_without_evictions_asks_none_and_a_reload_changes_that_at_once() {
    let off = || with_gate(gate(1, 1));
    let mut harness = full(off(), 1);
    harness.register(10, "chat", Critical);
    assert_eq!(harness.advance_to(5.0).handle_timeout(), []);
    assert_eq!(harness.handle(Input::Policy(Box::new(evicting(1)))), [Evicted(1)]);
    let mut harness = full(evicting(1), 1);
    harness.register(10, "chat", Critical);
    assert_eq!(harness.handle(Input::Policy(Box::new(off()))), []);
    assert_eq!(harness.advance_to(5.0).handle_timeout(), []);
    // What runs and waits by then is known again when it is turned on.
    harness.handle(Input::FirstToken(RequestId(1)));
    assert_eq!(harness.handle(Input::Policy(Box::new(evicting(1)))), [], "it answers");
}

#[test]
fn a_longer_time_after_a_reload_counts_from_the_arrival() {
    let mut harness = full(evicting(1), 1);
    harness.register(10, "chat", Critical);
    let longer = Policy { eviction: Some(Duration::from_secs(3)), ..evicting(1) };
    harness.handle(Input::Policy(Box::new(longer)));
    assert_eq!(harness.engine.poll_timeout(), Some(time(3.0)));
    assert_eq!(harness.advance_to(2.0).handle_timeout(), []);
    assert_eq!(harness.advance_to(3.0).handle_timeout(), [Evicted(1)]);
}

#[test]
fn a_place_counts_until_its_server_has_ended_with_the_request() {
    let mut harness = Harness::new(evicting(2), 1);
    harness.handle(report(0));
    harness.register(1, "batch", Sheddable);
    harness.register(2, "batch", Sheddable);
    harness.register(10, "chat", Critical);
    assert_eq!(harness.advance_to(1.0).handle_timeout(), [Evicted(2)]);
    assert_eq!(harness.handle(ended(2)), [Settled(2, 0)], "its server may compute on");
    assert_eq!(harness.advance_to(2.0).handle_timeout(), [], "and no second one ends for 10");
    assert_eq!(harness.handle(report(2)), []);
    assert_eq!(harness.handle(report(1)), [Dispatched(10, 1)]);
}

#[test]
fn limits_of_its_own_keep_a_request_waiting_and_nothing_ends_for_it() {
    let mut policy = evicting(2);
    policy.flows.max_in_flight = Some(1);
    let mut harness = Harness::new(policy, 1);
    harness.register(1, "batch", Sheddable);
    harness.register(2, "chat", Critical);
    harness.register(10, "chat", Critical);
    assert_eq!(harness.advance_to(20.0).handle_timeout(), [], "the flow runs as many as it may");
    let mut harness = full(evicting(1), 1);
    harness.register(10, "chat", Critical);
    harness.handle(Input::Suspend(RequestId(10)));
    assert_eq!(harness.advance_to(20.0).handle_timeout(), [], "its session is lost");
    assert_eq!(harness.handle(Input::Continue(RequestId(10))), [Evicted(1)]);
}

#[test]
fn a_budget_or_the_rate_that_holds_a_request_ends_no_other() {
    let period = BudgetPeriod::Sliding(Duration::from_secs(3_600));
    for over in [Over::Hold, Over::Demote, Over::Refuse] {
        let mut policy = evicting(2);
        policy.flows.budgets = vec![Budget {
            flows: FlowGlob::new("chat"),
            windows: vec![BudgetWindow { unit: CostUnit::Requests, limit: 2, period }],
            calendar: BudgetCalendar::default(),
            over,
            shadow: false,
        }];
        let mut harness = Harness::new(policy, 1);
        harness.register(1, "chat", Critical);
        harness.register(2, "batch", Sheddable);
        // Both are within the budget when they come; the first one to go uses it up.
        harness.register(10, "chat", Critical);
        harness.register(11, "chat", Critical);
        let after = harness.advance_to(1.0).handle_timeout();
        assert_eq!(after, [Evicted(2)], "{over:?}");
        let ended = harness.handle(ended(2));
        assert!(ended.starts_with(&[Settled(2, 0), Dispatched(10, 1)]), "{over:?}: {ended:?}");
        assert!(!ended.iter().any(|effect| matches!(effect, Evicted(_))), "{over:?}: {ended:?}");
    }
    let mut policy = evicting(1);
    policy.queue.max_rate = Some(0.01);
    let mut harness = full(policy, 1);
    harness.register(10, "chat", Critical);
    assert_eq!(harness.advance_to(20.0).handle_timeout(), []);
}

#[test]
fn only_a_request_whose_place_is_of_use_ends() {
    let mut harness = Harness::new(evicting(1), 3);
    // The last one runs where the critical request may not go.
    for (id, endpoint) in [(1, 1), (2, 2), (3, 3)] {
        let own = restricted(request(id, "batch", Sheddable), &[endpoint]);
        assert_eq!(harness.handle(Input::Register(own)), [Bypassed(id, endpoint)]);
    }
    let own = restricted(request(10, "chat", Critical), &[1, 2]);
    assert_eq!(harness.handle(Input::Register(own)), []);
    // And the second to last where no request goes now.
    harness.endpoint(2, false);
    assert_eq!(harness.advance_to(1.0).handle_timeout(), [Evicted(1)]);
}

#[test]
fn a_request_above_the_bounds_leaves_no_place_and_is_left_alone() {
    let policy = Policy { extra_for_idle_flows: ExtraPlaces::Count(1), ..evicting(1) };
    let mut harness = Harness::new(policy, 1);
    harness.register(1, "usual", Default);
    assert_eq!(harness.register(2, "batch", Sheddable), [Bypassed(2, 1)], "above the bound");
    harness.register(3, "chat", Critical);
    assert_eq!(harness.advance_to(20.0).handle_timeout(), []);
}

#[test]
fn between_the_bounds_of_the_pool_one_eviction_is_enough() {
    // Newcomers pass while stock is below 4, and what waits goes while it is below 2.
    let policy = Policy { eviction: Some(Duration::from_secs(1)), ..with_gate(gate(2, 4)) };
    let mut harness = full(policy, 4);
    harness.register(10, "chat", Critical);
    harness.register(20, "batch", Sheddable);
    assert_eq!(harness.advance_to(1.0).handle_timeout(), [Evicted(4)]);
    assert_eq!(harness.handle(ended(4)), [Settled(4, 0), Dispatched(10, 1)], "not 20, and stock is 4 again");
    assert_eq!(stocks(&harness), [4]);
    assert_eq!(harness.complete(1), [Settled(1, 1)], "any other end leaves the place empty");
}

#[test]
fn where_bands_share_by_weight_a_request_ends_when_the_place_is_for_a_critical_one() {
    let bands = Bands { mode: BandMode::Weighted([1.0, 1.0, 1.0]), ..Bands::default() };
    let mut harness = full(Policy { bands, ..evicting(1) }, 1);
    harness.register(10, "chat", Critical);
    assert_eq!(harness.advance_to(1.0).handle_timeout(), [Evicted(1)]);
    assert_eq!(harness.handle(ended(1)), [Settled(1, 0), Dispatched(10, 1)]);
}

#[test]
fn a_request_that_returns_to_the_queue_is_asked_anew() {
    let mut harness = full(evicting(1), 1);
    harness.register(10, "chat", Critical);
    assert_eq!(harness.advance_to(1.0).handle_timeout(), [Evicted(1)]);
    assert_eq!(harness.handle(Input::Requeue(RequestId(1))), [Dispatched(10, 1)]);
    assert_eq!(harness.complete(10), [Settled(10, 1), Dispatched(1, 1)]);
    harness.register(11, "chat", Critical);
    assert_eq!(harness.advance_to(2.0).handle_timeout(), [Evicted(1)]);
    let service = Service::Served(Usage { output: Some(Tokens(1)), ..Usage::default() });
    let served = Input::Completed { id: RequestId(1), service };
    assert_eq!(harness.handle(served), [Settled(1, 1), Dispatched(11, 1)], "its answer came in time");
}

#[test]
fn what_runs_already_may_be_asked_to_end() {
    let mut harness = Harness::new(evicting(1), 1);
    let adopted = Input::Adopt { request: request(1, "batch", Sheddable), endpoint: EndpointId(1) };
    assert_eq!(harness.handle(adopted), []);
    harness.register(10, "chat", Critical);
    assert_eq!(harness.advance_to(1.0).handle_timeout(), [Evicted(1)]);
}

#[test]
fn nothing_ends_while_the_engine_dispatches_nothing() {
    let mut harness = full(evicting(1), 1);
    harness.register(10, "chat", Critical);
    harness.handle(Input::Hold);
    assert_eq!(harness.advance_to(5.0).handle_timeout(), []);
    assert_eq!(harness.handle(Input::Ready), [Evicted(1)]);
}

#[test]
fn tenants_take_turns() {
    let mut harness = Harness::new(evicting(4), 1);
    for (id, flow) in [(1, "a"), (2, "b"), (3, "b"), (4, "b")] {
        harness.register(id, flow, Sheddable);
    }
    for id in 10..14 {
        harness.register(id, "chat", Critical);
    }
    let asked = harness.advance_to(1.0).handle_timeout();
    assert_eq!(asked, [Evicted(4)], "the last to be granted");
    assert_eq!(harness.handle(ended(4)), [Settled(4, 0), Dispatched(10, 1), Evicted(1)], "not b's again");
    assert_eq!(harness.handle(ended(1)), [Settled(1, 0), Dispatched(11, 1), Evicted(3)], "a has none left");
    assert_eq!(harness.handle(ended(3)), [Settled(3, 0), Dispatched(12, 1), Evicted(2)]);
}

#[test]
fn a_tenant_that_tries_again_after_an_eviction_is_not_the_next_one() {
    let mut harness = Harness::new(evicting(2), 1);
    harness.register(1, "patient", Sheddable);
    harness.register(2, "eager", Sheddable);
    harness.register(10, "chat", Critical);
    assert_eq!(harness.advance_to(1.0).handle_timeout(), [Evicted(2)]);
    assert_eq!(harness.handle(ended(2)), [Settled(2, 0), Dispatched(10, 1)]);
    assert_eq!(harness.register(3, "eager", Sheddable), []);
    assert_eq!(
        harness.complete(10),
        [Settled(10, 1), Dispatched(3, 1)],
        "it is the last to be granted again"
    );
    harness.register(11, "chat", Critical);
    assert_eq!(harness.advance_to(2.0).handle_timeout(), [Evicted(1)]);
}

/// Two endpoints with four places each, the second full of the sheddable requests 21 to 24, and the critical request 30 in the place of 24, which
/// was asked to end for it.
fn after_an_eviction_at_the_second() -> Harness {
    let mut harness = Harness::new(evicting(4), 2);
    for id in 21..=24 {
        harness.handle(Input::Register(restricted(request(id, "batch", Sheddable), &[2])));
    }
    for id in 1..=4 {
        harness.handle(Input::Register(restricted(request(id, "usual", Default), &[1])));
    }
    harness.register(30, "chat", Critical);
    assert_eq!(harness.advance_to(1.0).handle_timeout(), [Evicted(24)]);
    assert_eq!(harness.handle(ended(24)), [Settled(24, 0), Dispatched(30, 2)]);
    harness
}

/// The server of an endpoint has begun to answer, or has served what it had begun.
fn answered(id: u64, endpoint: u32, result: AnswerResult) -> Input {
    Input::Answered(EndpointAnswer {
        request: RequestId(id),
        endpoint: EndpointId(endpoint),
        kind: Kind { model_and_path: 1, flow: 1 },
        sent_ago: Duration::ZERO,
        result,
        has_begun: result == AnswerResult::Served,
        is_hidden: false,
    })
}

/// The first endpoint answers so many requests, from 1 on, and takes others in their places.
fn the_first_answers(harness: &mut Harness, requests: u64) {
    for id in 1..=requests {
        for result in [AnswerResult::Begun, AnswerResult::Served] {
            assert_eq!(harness.handle(answered(id, 1, result)), []);
        }
        assert_eq!(harness.complete(id), [Settled(id, 1)]);
        let next = Input::Register(restricted(request(id + 4, "usual", Default), &[1]));
        assert_eq!(harness.handle(next), [Bypassed(id + 4, 1)]);
    }
}

#[test]
fn a_server_that_hangs_swallows_no_further_critical_request() {
    let mut harness = after_an_eviction_at_the_second();
    // Half of the running requests are at the second, so it should have given four of these answers.
    the_first_answers(&mut harness, 9);
    harness.register(31, "chat", Critical);
    assert_eq!(harness.advance_to(10.0).handle_timeout(), []);
    // A client that gives up shows nothing of the server, and neither does one that has received comments while it waited.
    let left = Input::Left { id: RequestId(30), service: Service::Cut(Usage::default()) };
    assert_eq!(harness.handle(left), [Settled(30, 1), Dispatched(31, 2)]);
    assert_eq!(harness.handle(Input::Begun(RequestId(31))), []);
    harness.register(32, "chat", Critical);
    assert_eq!(harness.advance_to(20.0).handle_timeout(), []);
    // A single answer shows that it lives.
    assert_eq!(harness.handle(answered(31, 2, AnswerResult::Begun)), [Evicted(23)]);
}

#[test]
fn an_endpoint_where_nothing_ran_has_missed_nothing() {
    let mut harness = after_an_eviction_at_the_second();
    for id in 21..24 {
        harness.handle(ended(id));
    }
    harness.handle(ended(30));
    the_first_answers(&mut harness, 9);
    for id in 25..=28 {
        harness.handle(Input::Register(restricted(request(id, "batch", Sheddable), &[2])));
    }
    harness.register(31, "chat", Critical);
    assert_eq!(harness.advance_to(3.0).handle_timeout(), [Evicted(28)]);
}

#[test]
fn a_server_that_takes_long_gives_up_places_while_the_others_have_answered_as_little() {
    let mut harness = after_an_eviction_at_the_second();
    the_first_answers(&mut harness, 8);
    harness.register(31, "chat", Critical);
    assert_eq!(harness.advance_to(2.0).handle_timeout(), [Evicted(23)]);
    assert_eq!(harness.handle(ended(23)), [Settled(23, 0), Dispatched(31, 2)]);
    harness.register(32, "chat", Critical);
    assert_eq!(harness.advance_to(29.0).handle_timeout(), [Evicted(22)], "time alone says nothing");
}
