//! The choice of an endpoint if scorers other than the stock have a weight.

use penstock_engine::effect::Grant;
use penstock_engine::input::ServerStats;
use penstock_engine::policy::{Gate, Scorers};
use penstock_engine::{Effect, EndpointId, Input, Policy, Request, RequestId};

use crate::support::allowances::*;
use crate::support::*;

/// No scorer has a weight.
const NONE: Scorers = Scorers { stock: 0.0, queue: 0.0, kv_cache: 0.0, prefix: 0.0, lora: 0.0 };

fn harness_with_scorers(scheduler: Scorers) -> Harness {
    Harness::new(Policy { scheduler, ..with_gate(gate(10, 10)) }, 3)
}

fn report(harness: &mut Harness, id: u32, stats: ServerStats) {
    let id = EndpointId(id);
    assert_eq!(harness.handle(Input::ServerStats { id, stats }), []);
}

fn with_queue(waiting: u64) -> ServerStats {
    ServerStats { waiting: Some(waiting), ..ServerStats::default() }
}

fn with_adapters(adapters: &[&str]) -> ServerStats {
    ServerStats { adapters: Some(adapters.iter().map(|&id| id.into()).collect()), ..ServerStats::default() }
}

/// The granted endpoints, best first.
fn endpoint_order(harness: &mut Harness, request: Request) -> Vec<u32> {
    match &harness.effects(Input::Register(request))[..] {
        [Effect::Grant(Grant { endpoints, .. })] => endpoints.iter().map(|id| id.0).collect(),
        other => panic!("{other:?}"),
    }
}

fn with_prefix(id: u64, prefix: &[u64]) -> Request {
    let mut request = request(id, "f", penstock_engine::input::Band::Default);
    request.prompt = penstock_engine::input::Prompt::Bytes(1_024);
    request.prefix = prefix.into();
    request
}

fn plain(id: u64) -> Request {
    with_prefix(id, &[])
}

#[test]
fn a_shorter_queue_scores_higher_and_fallbacks_are_sorted() {
    let mut harness = harness_with_scorers(Scorers { queue: 1.0, ..NONE });
    report(&mut harness, 1, with_queue(3));
    report(&mut harness, 2, with_queue(0));
    report(&mut harness, 3, with_queue(1));
    assert_eq!(endpoint_order(&mut harness, plain(1)), [2, 3, 1]);
    assert_eq!(endpoint_order(&mut harness, plain(2)), [2, 3, 1], "the stock has no weight");
}

#[test]
fn a_free_cache_scores_higher() {
    let mut harness = harness_with_scorers(Scorers::default());
    for (id, used) in [(1, 0.9), (2, 0.5), (3, 0.1)] {
        let stats = ServerStats { kv_used: Some(used), ..ServerStats::default() };
        report(&mut harness, id, stats);
    }
    assert_eq!(endpoint_order(&mut harness, plain(1)), [3, 2, 1]);
}

#[test]
fn a_longer_cached_prefix_scores_higher() {
    let mut harness = harness_with_scorers(Scorers { stock: 0.1, prefix: 1.0, ..NONE });
    let first = endpoint_order(&mut harness, with_prefix(1, &[1, 2, 3, 4]))[0];
    assert_eq!(endpoint_order(&mut harness, with_prefix(2, &[1, 2, 3, 4]))[0], first);
    let other = endpoint_order(&mut harness, with_prefix(3, &[9]))[0];
    assert_ne!(other, first, "no endpoint has this prefix: least stock wins");
    // Only the first half of the prefix matches.
    assert_eq!(endpoint_order(&mut harness, with_prefix(4, &[1, 2, 8]))[0], first);
    assert_eq!(endpoint_order(&mut harness, with_prefix(5, &[9, 10]))[0], other);
}

#[test]
fn a_returning_endpoint_has_no_cached_prefixes() {
    let mut harness = harness_with_scorers(Scorers { stock: 0.1, prefix: 1.0, ..NONE });
    let first = endpoint_order(&mut harness, with_prefix(1, &[1, 2]))[0];
    for ready in [false, true] {
        harness.endpoint(first, ready);
    }
    assert_ne!(endpoint_order(&mut harness, with_prefix(2, &[1, 2]))[0], first);
}

#[test]
fn an_endpoint_that_was_restarted_or_failed_a_request_has_no_cached_prefixes() {
    for is_reported in [true, false] {
        let mut harness = harness_with_scorers(Scorers { stock: 0.1, prefix: 1.0, ..NONE });
        let first = endpoint_order(&mut harness, with_prefix(1, &[1, 2]))[0];
        assert_eq!(endpoint_order(&mut harness, with_prefix(2, &[1, 2]))[0], first);
        let endpoint = EndpointId(first);
        // One failure marks no endpoint down.
        let input = match is_reported {
            true => Input::Restarted(endpoint),
            false => Input::Failed { id: RequestId(9), endpoint },
        };
        assert_eq!(harness.handle(input), []);
        assert_ne!(endpoint_order(&mut harness, with_prefix(3, &[1, 2]))[0], first, "{is_reported}");
    }
    // An endpoint that isn't known has nothing to lose.
    let mut harness = harness_with_scorers(Scorers { prefix: 1.0, ..NONE });
    assert_eq!(harness.handle(Input::Restarted(EndpointId(77))), []);
}

#[test]
fn an_endpoint_with_the_adapter_scores_higher_and_without_a_report_is_not_scored() {
    let mut harness = harness_with_scorers(Scorers { stock: 1.0, lora: 1.0, ..NONE });
    report(&mut harness, 1, with_adapters(&["other"]));
    report(&mut harness, 2, with_adapters(&["other", "mine"]));
    let mut mine = plain(1);
    mine.model = "mine".into();
    // Endpoint 2 scores 1; endpoint 3 scores 1 by its stock alone; endpoint 1 scores a half.
    let endpoint_order = endpoint_order(&mut harness, mine);
    assert_eq!(endpoint_order[2], 1);
}

#[test]
fn a_withdrawn_report_no_longer_counts() {
    let mut harness = harness_with_scorers(Scorers::default());
    for id in 1..=3 {
        report(&mut harness, id, with_queue(u64::from(id)));
    }
    assert_eq!(endpoint_order(&mut harness, plain(1)), [1, 2, 3]);
    for id in 1..=3 {
        report(&mut harness, id, ServerStats::default());
    }
    assert_ne!(endpoint_order(&mut harness, plain(2))[0], 1, "least stock again");
}

#[test]
fn scores_neither_bound_endpoints_nor_leave_them_idle() {
    let mut harness = harness_with_scorers(Scorers { queue: 1.0, ..NONE });
    report(&mut harness, 1, with_queue(0));
    report(&mut harness, 2, with_queue(50));
    report(&mut harness, 3, with_queue(90));
    let first: Vec<u32> = (1..=30).map(|id| endpoint_order(&mut harness, plain(id))[0]).collect();
    // The best endpoint gets at most a quarter of its bound of ten ahead of the least loaded one.
    assert_eq!(first[..9], [1, 1, 1, 2, 2, 2, 3, 1, 2]);
    let count = |endpoint: u32| first.iter().filter(|&&id| id == endpoint).count();
    assert_eq!([1, 2, 3].map(count), [10, 10, 10], "each endpoint fills to its bound");
    assert_eq!(harness.handle(Input::Register(plain(31))), [], "all are full");
    assert_eq!(harness.engine.waiting(), 1);
}

#[test]
fn with_small_bounds_the_least_stock_decides() {
    let policy = Policy { scheduler: Scorers { queue: 9.0, ..NONE }, ..with_gate(gate(3, 3)) };
    let mut harness = Harness::new(policy, 3);
    report(&mut harness, 1, with_queue(0));
    report(&mut harness, 2, with_queue(9));
    report(&mut harness, 3, with_queue(9));
    let first: Vec<u32> = (1..=3).map(|id| endpoint_order(&mut harness, plain(id))[0]).collect();
    assert_eq!(first[0], 1);
    assert_ne!(first[1], 1);
    assert_eq!(first.iter().sum::<u32>(), 6, "each endpoint once");
}

#[test]
fn under_allowances_the_endpoints_that_fit_are_scored() {
    let policy = Policy { scheduler: Scorers { stock: 1.0, queue: 5.0, ..NONE }, ..auto(8) };
    let mut harness = harness_with_policy(policy, &[allowance(26.0), allowance(40.0)]);
    assert!(matches!(harness.engine.snapshot().endpoints.len(), 2));
    report(&mut harness, 1, with_queue(0));
    report(&mut harness, 2, with_queue(9));
    let first: Vec<u32> = (1..=3).map(|id| endpoint_order(&mut harness, sized(id, 100, 50))[0]).collect();
    assert_eq!(first, [1, 2, 1], "more than a quarter of the allowance ahead is too far");
}

#[test]
fn weights_change_with_the_policy() {
    let mut harness = harness_with_scorers(NONE);
    report(&mut harness, 3, with_queue(0));
    report(&mut harness, 2, with_queue(1));
    report(&mut harness, 1, with_queue(2));
    let policy = Policy { scheduler: Scorers { queue: 1.0, ..NONE }, ..with_gate(Gate::Open) };
    harness.handle(Input::Policy(Box::new(policy)));
    assert_eq!(endpoint_order(&mut harness, plain(1)), [3, 2, 1]);
    harness.handle(Input::EndpointRemoved(EndpointId(3)));
    assert_eq!(endpoint_order(&mut harness, plain(2)), [2, 1]);
    harness.handle(Input::Cancel(RequestId(1)));
}
