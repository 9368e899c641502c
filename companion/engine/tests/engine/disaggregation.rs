//! Prefill apart from decoding: which requests are granted two endpoints, where they count, and what one role does without the other.

use ShortEffect::{Bypassed, Dispatched};
use penstock_engine::effect::Grant;
use penstock_engine::input::{Band, EndpointState, Prompt, Role, Service, Usage};
use penstock_engine::units::Tokens;
use penstock_engine::{Effect, EndpointId, Input, Policy, Request, RequestId};

use crate::support::*;

/// The endpoint for prompts.
const PREFILL: u32 = 1;
/// The endpoint that answers.
const DECODE: u32 = 2;

fn list(harness: &mut Harness, id: u32, role: Role, ready: bool) -> Vec<ShortEffect> {
    let state = EndpointState { role, ready, ..EndpointState::default() };
    harness.handle(Input::Endpoint { id: EndpointId(id), state })
}

/// One endpoint of each role, with this bound each. Prompts of 100 tokens are long enough for an endpoint of their own.
fn roles(bound: u64) -> Harness {
    roles_with(bound, |_| {})
}

fn roles_with(bound: u64, change: impl FnOnce(&mut Policy)) -> Harness {
    let mut policy = policy();
    policy.gate = gate(bound, bound);
    policy.min_uncached_tokens = Some(100);
    change(&mut policy);
    let mut harness = Harness::new(policy, 0);
    list(&mut harness, PREFILL, Role::Prefill, true);
    list(&mut harness, DECODE, Role::Decode, true);
    harness
}

/// A request of `tokens` prompt tokens.
fn prompt(id: u64, tokens: u64) -> Request {
    Request { prompt: Prompt::Tokens(Tokens(tokens)), ..request(id, "f", Band::Default) }
}

/// The endpoint that answers and the one for the prompt, of the only grant; `None`: it wasn't granted.
fn grant(harness: &mut Harness, input: Input) -> Option<(u32, Option<u32>)> {
    let grants = harness.effects(input).into_iter().filter_map(|effect| match effect {
        Effect::Grant(Grant { endpoints, prefill, .. }) => Some((endpoints[0].0, prefill.map(|id| id.0))),
        _ => None,
    });
    let grants: Vec<_> = grants.collect();
    assert!(grants.len() <= 1, "{grants:?}");
    grants.first().copied()
}

fn register(harness: &mut Harness, id: u64, tokens: u64) -> Option<(u32, Option<u32>)> {
    grant(harness, Input::Register(prompt(id, tokens)))
}

#[test]
fn a_long_prompt_counts_at_both_until_its_answer_begins() {
    let mut harness = roles(4);
    assert_eq!(register(&mut harness, 1, 100), Some((DECODE, Some(PREFILL))));
    assert_eq!(stocks(&harness), [1, 1]);
    assert_eq!(register(&mut harness, 2, 99), Some((DECODE, None)), "one token too short");
    assert_eq!(stocks(&harness), [1, 2]);
    harness.handle(Input::FirstToken(RequestId(1)));
    assert_eq!(stocks(&harness), [0, 2]);
    harness.handle(Input::FirstToken(RequestId(1)));
    harness.complete(1);
    harness.complete(2);
    assert_eq!(stocks(&harness), [0, 0]);
}

#[test]
fn every_end_of_a_request_releases_its_prompt() {
    let ends: [fn(RequestId) -> Input; 5] = [
        |id| Input::Completed { id, service: Service::Served(Usage::default()) },
        |id| Input::Completed { id, service: Service::Nothing },
        |id| Input::Left { id, service: Service::Nothing },
        |id| Input::Requeue(id),
        |id| Input::Retry(id),
    ];
    for end in ends {
        let mut harness = roles(4);
        assert_eq!(register(&mut harness, 1, 500), Some((DECODE, Some(PREFILL))));
        harness.handle(Input::Hold);
        harness.handle(end(RequestId(1)));
        assert_eq!(stocks(&harness), [0, 0], "{:?}", end(RequestId(1)));
    }
}

#[test]
fn the_cached_part_of_a_prompt_is_no_work() {
    let mut harness = roles(4);
    let cached = |id, tokens| Request { cached: Tokens(tokens), ..prompt(id, 300) };
    assert_eq!(grant(&mut harness, Input::Register(cached(1, 201))), Some((DECODE, None)));
    assert_eq!(grant(&mut harness, Input::Register(cached(2, 200))), Some((DECODE, Some(PREFILL))));
    // Vectors have no answer to decode.
    let vectors = Request { expected_output: Some(Tokens(0)), ..prompt(3, 300) };
    assert_eq!(grant(&mut harness, Input::Register(vectors)), Some((DECODE, None)));
}

#[test]
fn without_room_for_prompts_the_other_role_computes_them() {
    let mut harness = roles(2);
    assert_eq!(register(&mut harness, 1, 500), Some((DECODE, Some(PREFILL))));
    harness.handle(Input::FirstToken(RequestId(1)));
    list(&mut harness, PREFILL, Role::Prefill, false);
    assert_eq!(register(&mut harness, 2, 500), Some((DECODE, None)), "it isn't ready");

    let mut harness = roles_with(2, |_| {});
    list(&mut harness, 3, Role::Decode, true);
    for id in [1, 2] {
        assert_eq!(register(&mut harness, id, 500).and_then(|(_, prefill)| prefill), Some(PREFILL));
    }
    let (endpoint, prefill) = register(&mut harness, 3, 500).expect("granted");
    assert_eq!(prefill, None, "it is full");
    assert_ne!(endpoint, PREFILL);
}

#[test]
fn full_endpoints_that_answer_leave_whole_requests_to_half_of_those_for_prompts() {
    let mut harness = roles(4);
    for id in 1..=4 {
        assert_eq!(register(&mut harness, id, 10), Some((DECODE, None)));
    }
    for id in 5..=6 {
        assert_eq!(register(&mut harness, id, 500), Some((PREFILL, None)));
    }
    assert_eq!(register(&mut harness, 7, 500), None, "two places stay for prompts");
    assert_eq!(harness.complete(1)[1], Dispatched(7, DECODE));
    assert_eq!(stocks(&harness), [3, 4], "the prompt of the last one is computed apart");
    // A bound of one leaves one place to whole requests.
    let mut harness = roles(1);
    assert_eq!(register(&mut harness, 1, 10), Some((DECODE, None)));
    assert_eq!(register(&mut harness, 2, 10), Some((PREFILL, None)));
}

#[test]
fn without_an_endpoint_that_answers_those_for_prompts_take_all_that_they_can() {
    let mut harness = roles(2);
    list(&mut harness, DECODE, Role::Decode, false);
    assert_eq!(register(&mut harness, 1, 500), Some((PREFILL, None)));
    assert_eq!(register(&mut harness, 2, 500), Some((PREFILL, None)));
    assert_eq!(register(&mut harness, 3, 500), None);
    assert_eq!(list(&mut harness, DECODE, Role::Decode, true), [Dispatched(3, DECODE)]);
    assert_eq!(stocks(&harness), [2, 1], "the one for prompts is full");
}

#[test]
fn a_request_that_was_failed_goes_to_one_endpoint_alone() {
    let mut harness = roles(4);
    list(&mut harness, 3, Role::Decode, true);
    let (first, prefill) = register(&mut harness, 1, 500).expect("granted");
    assert_eq!(prefill, Some(PREFILL));
    let again = grant(&mut harness, Input::Retry(RequestId(1))).expect("granted");
    assert_eq!(again.1, None, "the endpoint for prompts may have been the cause");
    assert!(again.0 != first && again.0 != PREFILL);
}

#[test]
fn only_eligible_endpoints_compute_prompts() {
    let mut harness = roles(4);
    let only = restricted(prompt(1, 500), &[DECODE]);
    assert_eq!(grant(&mut harness, Input::Register(only)), Some((DECODE, None)));
    let both = restricted(prompt(2, 500), &[PREFILL, DECODE]);
    assert_eq!(grant(&mut harness, Input::Register(both)), Some((DECODE, Some(PREFILL))));
    let pinned = restricted(prompt(3, 500), &[PREFILL]);
    assert_eq!(grant(&mut harness, Input::Register(pinned)), Some((PREFILL, None)));
}

#[test]
fn a_prompt_goes_where_its_prefix_was_computed() {
    let mut harness = roles(4);
    list(&mut harness, 3, Role::Prefill, true);
    let shared = |id, prefix: &[u64]| Request {
        prompt: Prompt::Bytes(40_000),
        prefix: prefix.into(),
        ..prompt(id, 1)
    };
    let mut prefill_of = |id, prefix: &[u64]| {
        let granted = grant(&mut harness, Input::Register(shared(id, prefix)));
        harness.handle(Input::FirstToken(RequestId(id)));
        harness.complete(id);
        granted.and_then(|(_, prefill)| prefill).expect("computed apart")
    };
    let first = prefill_of(1, &[1]);
    let other = prefill_of(2, &[2]);
    for round in 0..8 {
        // Alike prompts stay together, whatever the ties are.
        assert_eq!(prefill_of(3 + 2 * round, &[1, 10 + round]), first);
        assert_eq!(prefill_of(4 + 2 * round, &[2, 20 + round]), other);
    }
}

#[test]
fn cost_counts_what_the_endpoint_for_the_prompt_had_cached() {
    let mut harness = roles_with(4, |policy| {
        policy.flows.cost = penstock_engine::policy::CostUnit::Tokens;
        policy.weights = penstock_engine::policy::TokenWeights { input: 1.0, output: 1.0 };
    });
    assert_eq!(register(&mut harness, 1, 500), Some((DECODE, Some(PREFILL))));
    // The endpoint that answers counts all of the prompt as cached, because it came from the other one.
    let usage = Usage { prompt: Some(Tokens(500)), cached: Some(Tokens(499)), output: Some(Tokens(50)) };
    let service = Service::Served(usage);
    let settled = harness.handle(Input::Completed { id: RequestId(1), service });
    assert_eq!(settled, [ShortEffect::Settled(1, 550)]);
}

#[test]
fn an_adopted_request_counts_where_its_prompt_is_computed() {
    let mut harness = roles(4);
    let endpoint = EndpointId(DECODE);
    harness.handle(Input::Adopt { request: prompt(1, 500), endpoint });
    harness.handle(Input::Prefills { id: RequestId(1), endpoint: EndpointId(PREFILL) });
    harness.handle(Input::Prefills { id: RequestId(1), endpoint: EndpointId(PREFILL) });
    harness.handle(Input::Prefills { id: RequestId(2), endpoint: EndpointId(PREFILL) });
    harness.handle(Input::Prefills { id: RequestId(1), endpoint: EndpointId(9) });
    assert_eq!(stocks(&harness), [1, 1]);
    assert_eq!(harness.engine.prefill_endpoint_of(RequestId(1)), Some(EndpointId(PREFILL)));
    harness.complete(1);
    assert_eq!(stocks(&harness), [0, 0]);
}

#[test]
fn roles_and_the_length_change_while_requests_run() {
    let mut harness = roles(4);
    assert_eq!(register(&mut harness, 1, 500), Some((DECODE, Some(PREFILL))));
    list(&mut harness, PREFILL, Role::Both, true);
    list(&mut harness, DECODE, Role::Both, true);
    assert_eq!(stocks(&harness), [1, 1], "what runs stays where it is");
    assert!(matches!(harness.register(2, "f", Band::Default)[..], [Bypassed(2, _)]));
    harness.complete(1);
    harness.complete(2);
    list(&mut harness, PREFILL, Role::Prefill, true);
    list(&mut harness, DECODE, Role::Decode, true);
    let changed = Policy { min_uncached_tokens: None, gate: gate(4, 4), ..policy() };
    harness.handle(Input::Policy(Box::new(changed)));
    assert_eq!(register(&mut harness, 3, 500), Some((DECODE, None)));
}

#[test]
fn an_endpoint_for_prompts_that_leaves_the_list_finishes_what_it_has() {
    let mut harness = roles(4);
    assert_eq!(register(&mut harness, 1, 500), Some((DECODE, Some(PREFILL))));
    harness.handle(Input::EndpointRemoved(EndpointId(PREFILL)));
    assert_eq!(harness.engine.taken_at(EndpointId(PREFILL)), 1);
    harness.handle(Input::FirstToken(RequestId(1)));
    assert_eq!(harness.engine.taken_at(EndpointId(PREFILL)), 0);
    harness.complete(1);
}
