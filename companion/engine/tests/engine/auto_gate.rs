//! The `auto` gate: with given allowances, which endpoint a request goes to and which requests wait.

use Band::{Critical, Default, Sheddable};
use ShortEffect::{Bypassed, Dispatched, Rejected, Settled};
use penstock_engine::effect::Grant;
use penstock_engine::input::{Band, EndpointState, Prompt, Service, Usage};
use penstock_engine::policy::Admit;
use penstock_engine::units::{Decimal, Tokens};
use penstock_engine::{Allowance, Effect, EndpointId, Input, Outcome, Policy, Request, RequestId};

use crate::support::allowances::*;
use crate::support::*;

/// The number of such requests that go at once, one after another. The first that has to wait is cancelled.
fn count_granted(harness: &mut Harness, first: u64, prompt: u64, output: u64) -> u64 {
    let mut granted = 0;
    let request = |id| Request { flow: "goes".into(), ..sized(id, prompt, output) };
    while !send(harness, request(first + granted)).is_empty() {
        granted += 1;
        assert!(granted < 1_000, "no limit applies");
    }
    harness.handle(Input::Cancel(RequestId(first + granted)));
    granted
}

#[test]
fn without_allowances_each_endpoint_takes_the_initial_count() {
    let mut harness = Harness::new(auto(3), 2);
    for id in 1..=6 {
        assert!(matches!(harness.register(id, "f", Default)[..], [Bypassed(..)]));
    }
    assert_eq!(stocks(&harness), [3, 3]);
    assert_eq!(harness.register(7, "f", Default), []);
    assert_eq!((harness.engine.lower(), harness.engine.upper()), (6, 6));
    assert_eq!(harness.engine.saturation_milli(), 1_000);
    assert!(matches!(harness.complete(1)[..], [Settled(1, 1), Dispatched(7, _)]));
}

#[test]
fn the_predicted_iteration_time_gates() {
    // 10 + 3 n ms.
    let mut harness = harness(&[allowance(25.0)]);
    for id in 1..=5 {
        assert_eq!(harness.register(id, "f", Default), [Bypassed(id, 1)]);
    }
    assert_eq!(harness.register(6, "f", Default), [], "28 ms");
    assert_eq!(harness.complete(3), [Settled(3, 1), Dispatched(6, 1)]);
    assert_eq!(harness.register(7, "f", Default), []);
    assert_eq!(
        set_allowance(&mut harness, 1, Some(allowance(28.0))),
        [Dispatched(7, 1)],
        "exactly the allowance"
    );
}

#[test]
fn a_prompt_is_spread_over_the_mean_output() {
    // C + P/o: 1 + 800/100 = 9 for each, whatever their number.
    assert_eq!(count_granted(&mut harness(&[allowance(10.0 + 36.0)]), 1, 800, 100), 4);
    // Cached tokens aren't processed.
    let mut harness = harness(&[allowance(10.0 + 36.0)]);
    let mut cached = sized(1, 800, 100);
    cached.cached = Tokens(800);
    assert_eq!(send(&mut harness, cached), [Bypassed(1, 1)]);
    // 1 + 9 n with two of them, 3 + 16, 4 + 24: the fourth would be 5 + 32.
    assert_eq!(count_granted(&mut harness, 2, 800, 100), 3);
}

#[test]
fn running_requests_count_half_of_their_output() {
    let gamma = Allowance { beta_ms: 0.0, gamma_ms: 0.5, ..allowance(10.0 + 0.5 * 460.0) };
    // Resident tokens: 100 of the new request, 100 + 20 of each running one.
    let mut harness = harness(&[gamma]);
    assert_eq!(count_granted(&mut harness, 1, 100, 40), 4);
    // Settling reports a longer output than expected: 140 tokens more.
    let service = Service::Served(Usage { output: Some(Tokens(320)), ..Usage::default() });
    harness.handle(Input::Settle { id: RequestId(1), service });
    assert_eq!(harness.complete(2), [Settled(2, 1)]);
    assert_eq!(send(&mut harness, sized(9, 100, 40)), [], "600 of 460");
}

#[test]
fn an_idle_endpoint_takes_one_request_of_any_size() {
    let mut harness = harness(&[allowance(1.0), allowance(1.0)]);
    let huge = |id| sized(id, 1_000_000, 1);
    assert!(matches!(send(&mut harness, huge(1))[..], [Bypassed(1, _)]));
    assert!(matches!(send(&mut harness, huge(2))[..], [Bypassed(2, _)]));
    assert_eq!(stocks(&harness), [1, 1]);
    assert_eq!(send(&mut harness, sized(3, 1, 1_000)), []);
    assert!(matches!(harness.complete(2)[..], [Settled(2, 1), Dispatched(3, _)]));
}

#[test]
fn resident_tokens_and_batch_size_are_separate_limits() {
    let resident = Allowance { kv_tokens_max: Some(400), ..allowance(1e9) };
    // 150 tokens of the new request, 125 of each running one.
    assert_eq!(count_granted(&mut harness(&[resident]), 1, 100, 50), 3);
    let batch = Allowance { requests_max: Some(7), ..allowance(1e9) };
    assert_eq!(count_granted(&mut harness(&[batch]), 1, 100, 50), 7);
    // Foreign requests count in both, at the mean size of this pool's requests.
    for (limited, expected) in [(resident, 1), (batch, 4)] {
        let mut harness = harness(&[limited]);
        assert_eq!(harness.register(100, "f", Default), [Bypassed(100, 1)]);
        harness.handle(Input::Load { id: EndpointId(1), running: Some(1 + 3) });
        assert_eq!(1 + count_granted(&mut harness, 1, 100, 50), expected);
    }
}

#[test]
fn foreign_load_uses_up_iteration_time_and_never_stops_dispatch() {
    let mut harness = harness(&[allowance(25.0)]);
    let load = |running| Input::Load { id: EndpointId(1), running };
    harness.handle(load(Some(1_000)));
    assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "f", Default), []);
    assert_eq!(harness.engine.upper(), 0, "foreign load uses up the bound of 5");
    harness.handle(load(Some(1 + 2)));
    assert_eq!(stocks(&harness), [2], "2 own and 2 foreign requests: 10 + 2 x 6 = 22 ms at the next");
    assert_eq!(count_granted(&mut harness, 3, 100, 50), 1);
    assert_eq!(harness.engine.upper(), 3);
}

#[test]
fn each_endpoint_fills_to_its_own_limit() {
    let slow = Allowance { alpha_ms: 20.0, beta_ms: 2.0, ..allowance(50.0) };
    // 10 + 3 n of 50, and 20 + 6 n.
    let mut harness = harness(&[allowance(50.0), slow]);
    assert_eq!(count_granted(&mut harness, 1, 100, 50), 13 + 5);
    assert_eq!(stocks(&harness), [13, 5]);
}

#[test]
fn the_endpoint_with_the_least_used_allowance_is_first() {
    let slow = Allowance { alpha_ms: 20.0, beta_ms: 2.0, ..allowance(50.0) };
    let mut harness = harness(&[slow, allowance(50.0)]);
    // With one request more: 26 of 50 ms against 13, 16, 19, 22, 25, 28 ms.
    let granted: Vec<ShortEffect> = (1..=7).flat_map(|id| harness.register(id, "f", Default)).collect();
    let expected = [2, 2, 2, 2, 2, 1, 2];
    let expected: Vec<ShortEffect> =
        (1..).zip(expected).map(|(id, endpoint)| Bypassed(id, endpoint)).collect();
    assert_eq!(granted, expected);
}

#[test]
fn an_endpoint_limited_in_requests_fills_in_proportion() {
    let few = Allowance { requests_max: Some(4), ..allowance(f64::INFINITY) };
    let mut harness = harness(&[few]);
    harness.endpoint(2, true);
    for (count, expected) in [(3, [1, 2]), (6, [2, 4]), (12, [4, 8])] {
        while harness.engine.stock() < count {
            harness.register(harness.engine.stock(), "f", Default);
        }
        assert_eq!(stocks(&harness), expected, "of 4 and of 8");
    }
}

#[test]
fn without_limits_the_shortest_iteration_is_first() {
    let mut harness = harness(&[allowance(f64::INFINITY); 3]);
    for id in 1..=9 {
        harness.register(id, "f", Default);
    }
    assert_eq!(stocks(&harness), [3, 3, 3]);
}

#[test]
fn fallbacks_are_the_endpoints_where_the_request_fits() {
    let mut harness =
        harness(&[allowance(13.0), allowance(25.0), allowance(28.0), allowance(60.0), allowance(90.0)]);
    let effects = harness.effects(Input::Register(request(1, "f", Default)));
    let [Effect::Grant(Grant { endpoints, .. })] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(*endpoints, [5, 4, 3].map(EndpointId));
    for (id, endpoint) in [(2, 1), (3, 2), (4, 4)] {
        harness.handle(Input::Register(restricted(request(id, "f", Default), &[endpoint])));
    }
    // With a request of 600 tokens more: 26 ms at 1, 2 and 4, 23 ms at the rest.
    let long = sized(5, 600, 50);
    let effects = harness.effects(Input::Register(long));
    let [Effect::Grant(Grant { endpoints, .. })] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(*endpoints, [5, 4, 3].map(EndpointId));
    let effects = harness.effects(Input::Register(restricted(sized(6, 600, 50), &[1, 2, 4])));
    let [Effect::Grant(Grant { endpoints, .. })] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(*endpoints, [EndpointId(4)]);
}

#[test]
fn the_next_request_is_not_overtaken_because_of_its_size() {
    let mut harness = harness(&[allowance(40.0)]);
    for (id, flow) in (1..).zip(["a", "b", "c", "d", "e"]) {
        assert_eq!(harness.register(id, flow, Default), [Bypassed(id, 1)]);
    }
    // 25 ms now; with 900 tokens more, 10 + 6 + 1400/50.
    assert_eq!(send(&mut harness, sized(6, 900, 50)), []);
    assert_eq!(harness.register(7, "f", Default), [], "it would fit, but request 6 is first");
    assert_eq!(harness.register(8, "g", Default), [], "the same holds for another flow");
    // Request 7 follows request 6 in its flow; request 8 goes first by virtual time.
    assert_eq!(harness.complete(1), [Settled(1, 1)], "10 + 5 + 1300/50 = 41");
    assert_eq!(harness.complete(2), [Settled(2, 1), Dispatched(6, 1)]);
    assert_eq!(harness.complete(3), [Settled(3, 1), Dispatched(8, 1)]);
}

#[test]
fn a_higher_band_passes_a_large_request() {
    let mut harness = harness(&[allowance(40.0)]);
    for id in 1..=5 {
        harness.register(id, "f", Default);
    }
    send(&mut harness, sized(6, 900, 50));
    harness.register(7, "f", Sheddable);
    assert_eq!(harness.register(8, "f", Critical), [Dispatched(8, 1)], "a critical request passes it");
    assert_eq!(
        harness.handle(Input::Cancel(RequestId(6))),
        [ShortEffect::Cancelled(6), Dispatched(7, 1)],
        "once the long request is cancelled, request 7 goes"
    );
}

#[test]
fn a_large_request_sets_aside_only_its_eligible_endpoints() {
    let mut harness = harness(&[allowance(40.0), allowance(40.0)]);
    for (id, flow) in (1..).zip(["a", "b", "c", "d", "e"]) {
        harness.handle(Input::Register(restricted(request(id, flow, Default), &[1])));
    }
    let long = |id| restricted(sized(id, 900, 50), &[1]);
    assert_eq!(send(&mut harness, long(6)), []);
    assert_eq!(
        send(&mut harness, restricted(request(7, "g", Default), &[1])),
        [],
        "it needs the endpoint that is set aside"
    );
    assert_eq!(send(&mut harness, request(8, "h", Default)), [Bypassed(8, 2)], "endpoint 2 is not set aside");
    assert_eq!(count_granted(&mut harness, 10, 100, 50), 9, "endpoint 2 fills to its limit");
    assert_eq!(stocks(&harness), [5, 10]);
    assert_eq!(harness.register(30, "h", Default), []);
    assert_eq!(harness.complete(1), [Settled(1, 1)]);
    assert_eq!(
        harness.complete(8),
        [Settled(8, 1), Dispatched(30, 2)],
        "not to endpoint 1, which is set aside"
    );
    assert_eq!(harness.complete(2), [Settled(2, 1), Dispatched(6, 1)]);
    assert_eq!(harness.complete(3), [Settled(3, 1), Dispatched(7, 1)]);
}

#[test]
fn an_endpoint_is_released_when_its_large_request_expires() {
    let mut policy = auto(8);
    policy.queue.admit = Admit::CriticalOnly;
    let mut harness = harness_with_policy(policy, &[allowance(40.0), allowance(40.0)]);
    for id in 1..=5 {
        harness.handle(Input::Register(restricted(request(id, "f", Default), &[1])));
    }
    let mut long = restricted(sized(6, 900, 50), &[1]);
    long.band = Critical;
    long.deadline = Some(time(5.0));
    assert_eq!(send(&mut harness, long), []);
    let short = |id| restricted(request(id, "g", Default), &[1]);
    assert_eq!(send(&mut harness, short(7)), [Rejected(7, Outcome::RejectedPolicy)]);
    assert_eq!(
        harness.advance_to(5.0).handle(Input::Register(short(8))),
        [Rejected(6, Outcome::DeadlineExceeded), Bypassed(8, 1)]
    );
}

#[test]
fn the_first_token_target_limits_only_where_it_can_be_met() {
    // A prompt token takes 1 ms beside the iteration: a prompt of 100 tokens leaves 30 ms.
    let first = |most| Allowance { first_token_ms_max: most, ..allowance(1e9) };
    assert_eq!(count_granted(&mut harness(&[first(130.0)]), 1, 100, 50), 6);
    // A prompt longer than the mean in flight is limited by the mean only; otherwise the server would have to drain
    // first.
    let mut harness = harness(&[first(130.0)]);
    assert_eq!(count_granted(&mut harness, 1, 100, 50), 6);
    harness.complete(1);
    harness.complete(2);
    assert_eq!(send(&mut harness, sized(9, 115, 50)), [Bypassed(9, 1)], "10 + 5 + 515/50");
    // A target that not even an idle server meets is ignored.
    let unmeetable = Allowance { iteration_ms_max: 160.0, ..first(109.0) };
    assert_eq!(count_granted(&mut self::harness(&[unmeetable]), 1, 100, 50), 50);
}

#[test]
fn shown_bounds_are_the_typical_counts() {
    let mut harness = harness(&[allowance(25.0), allowance(25.0)]);
    harness.endpoint(3, true);
    assert_eq!(bounds(&harness), [5, 5, 8]);
    assert_eq!(
        (harness.engine.lower(), harness.engine.upper(), harness.engine.full_bound()),
        (18, 18, Some(18))
    );
    assert_eq!(harness.engine.snapshot().watermark, Decimal::whole(18));
    let light =
        EndpointState { weight: Decimal::from_billionths(Decimal::ONE / 2), ..EndpointState::default() };
    for id in [1, 3] {
        harness.handle(Input::Endpoint { id: EndpointId(id), state: light });
    }
    assert_eq!(bounds(&harness), [5, 5, 4], "an allowance doesn't depend on the weight");
    set_allowance(&mut harness, 1, None);
    assert_eq!(bounds(&harness), [4, 5, 4]);
    harness.handle(Input::Policy(Box::new(Policy { gate: gate(2, 2), ..policy() })));
    assert_eq!(bounds(&harness), [1, 2, 1], "allowances don't apply under another gate");
    harness.handle(Input::Policy(Box::new(auto(8))));
    assert_eq!(bounds(&harness), [4, 5, 4], "allowances survive a policy change");
    harness.handle(Input::EndpointRemoved(EndpointId(2)));
    harness.endpoint(2, true);
    assert_eq!(bounds(&harness), [4, 8, 4], "removing the endpoint removes its allowance");
}

#[test]
fn ceilings_are_parts_of_the_typical_count() {
    let mut policy = auto(8);
    policy.bands.ceilings[Sheddable as usize] = Some(Decimal::from_billionths(Decimal::ONE / 2));
    let mut harness = harness_with_policy(policy, &[Allowance { typical: 6, ..allowance(1e9) }]);
    for id in 1..=3 {
        assert_eq!(harness.register(id, "f", Sheddable), [Bypassed(id, 1)]);
    }
    assert_eq!(harness.register(4, "f", Sheddable), []);
    for id in 5..=30 {
        assert_eq!(harness.register(id, "f", Default), [Bypassed(id, 1)], "a typical count doesn't gate");
    }
}

#[test]
fn a_slow_start_also_applies_under_an_allowance() {
    let mut harness = harness(&[allowance(25.0)]);
    harness.advance_to(5.0).endpoint(1, false);
    harness.endpoint(1, true);
    let mut first = 0;
    let granted = [(); 5].map(|()| {
        first += 100;
        let granted = count_granted(&mut harness, first, 100, 50);
        for id in first..first + granted {
            harness.complete(id);
        }
        granted
    });
    assert_eq!(granted, [1, 2, 4, 5, 5]);
}

#[test]
fn an_allowance_of_an_unlisted_endpoint_is_ignored() {
    let mut harness = harness(&[allowance(25.0)]);
    assert_eq!(set_allowance(&mut harness, 9, Some(allowance(1.0))), []);
    assert_eq!(harness.engine.snapshot().endpoints.len(), 1);
}

#[test]
fn a_smaller_allowance_stops_dispatch_and_evicts_nothing() {
    let mut harness = harness(&[allowance(40.0)]);
    assert_eq!(count_granted(&mut harness, 1, 100, 50), 10);
    assert_eq!(set_allowance(&mut harness, 1, Some(allowance(19.0))), []);
    assert_eq!(harness.register(50, "f", Default), []);
    for id in 1..=7 {
        assert_eq!(harness.complete(id), [Settled(id, 1)]);
    }
    assert_eq!(harness.complete(8), [Settled(8, 1), Dispatched(50, 1)]);
}

#[test]
fn limits_other_than_size_set_no_endpoint_aside() {
    let mut policy = auto(8);
    policy.flows.max_in_flight_per_endpoint = Some(1);
    let mut harness = harness_with_policy(policy, &[allowance(40.0), allowance(40.0)]);
    for id in 1..=2 {
        harness.register(id, "f", Default);
    }
    assert_eq!(stocks(&harness), [1, 1]);
    assert_eq!(harness.register(3, "f", Default), [], "its flow is at its limit on every endpoint");
    for id in 4..=5 {
        assert!(matches!(harness.register(id, &format!("{id}"), Default)[..], [Bypassed(..)]));
    }
}

#[test]
fn max_rate_also_limits_under_allowances() {
    let mut policy = auto(8);
    policy.queue.max_rate = Some(1.0);
    let mut harness = harness_with_policy(policy, &[allowance(13.0)]);
    assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(harness.advance_to(1.0).register(2, "f", Default), [], "it doesn't fit");
    assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(2, 1)]);
    assert_eq!(harness.register(3, "f", Default), []);
    assert_eq!(harness.complete(2), [Settled(2, 1)], "not within a second");
    assert_eq!(harness.engine.poll_timeout(), Some(time(2.0)));
    assert_eq!(harness.advance_to(2.0).handle_timeout(), [Dispatched(3, 1)]);
}

/// A prompt of 800 tokens, at four bytes each, which all requests share. Its longest hashed prefix has 724 tokens.
fn shared_prompt(id: u64, endpoint: u32) -> Request {
    Request {
        prompt: Prompt::Bytes(3_200),
        prefix: (1..=8).collect(),
        eligible: Some([EndpointId(endpoint)].into()),
        ..sized(id, 0, 100)
    }
}

fn served_with(harness: &mut Harness, id: u64, cached: Option<u64>) {
    let usage =
        Usage { prompt: cached.map(|_| Tokens(800)), cached: cached.map(Tokens), output: Some(Tokens(100)) };
    harness.handle(Input::Completed { id: RequestId(id), service: Service::Served(usage) });
}

/// How many requests with that prompt one of the endpoints takes after 20 answers with these cached tokens.
fn taken_after(cached: Option<u64>, endpoint: u32) -> u64 {
    let mut harness = harness(&[allowance(10.0 + 36.0), allowance(10.0 + 36.0)]);
    for (id, endpoint) in (1..=42).zip([1, 2].into_iter().cycle()) {
        let granted = send(&mut harness, shared_prompt(id, endpoint));
        assert_eq!(granted, [Bypassed(id, endpoint)]);
        // The second endpoint always has what it is predicted to have.
        served_with(&mut harness, id, if endpoint == 1 { cached } else { Some(724) });
    }
    let mut taken = 0;
    while !send(&mut harness, shared_prompt(100 + taken, endpoint)).is_empty() {
        taken += 1;
        assert!(taken < 1_000, "no limit applies");
    }
    taken
}

#[test]
fn an_endpoint_takes_as_many_equal_prompts_as_its_own_answers_leave_room_for() {
    // 1 + 800 / 100 for each that is computed, and 1 + 76 / 100 for each that is cached.
    for none in [Some(0), None] {
        assert_eq!((taken_after(none, 1), taken_after(none, 2)), (4, 20), "{none:?}");
    }
    assert_eq!(taken_after(Some(724), 1), 20);
    assert_eq!(taken_after(Some(362), 1), 6, "half of the prediction: 1 + 438 / 100");
}

#[test]
fn a_request_that_goes_elsewhere_has_cached_what_that_endpoint_has() {
    let mut harness = harness(&[allowance(1e9), allowance(1e9)]);
    for id in [1, 2] {
        assert_eq!(send(&mut harness, shared_prompt(id, 1)), [Bypassed(id, 1)]);
    }
    let cached = |harness: &Harness| harness.engine.expected(RequestId(2)).and_then(|usage| usage.cached);
    assert_eq!(cached(&harness), Some(Tokens(724)));
    for (endpoint, expected) in [(2, 0), (1, 724)] {
        harness.handle(Input::Sent { id: RequestId(2), endpoint: EndpointId(endpoint) });
        assert_eq!(cached(&harness), Some(Tokens(expected)));
    }
}
