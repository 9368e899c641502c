//! Which endpoint takes a request, where more than the stock has a vote.

mod support;

use penstock_engine::input::{EndpointState, ServerStats};
use penstock_engine::policy::{Gate, Scorers};
use penstock_engine::{Effect, EndpointId, Input, Policy, Request, RequestId};

use support::budgets::*;
use support::*;

/// Only this counts.
const NONE: Scorers = Scorers {
    stock: 0.0,
    queue: 0.0,
    kv_cache: 0.0,
    prefix: 0.0,
    lora: 0.0,
};

fn bench_with(scheduler: Scorers) -> Bench {
    Bench::new(
        Policy {
            scheduler,
            ..with_gate(gate(10, 10))
        },
        3,
    )
}

fn know(bench: &mut Bench, id: u32, stats: ServerStats) {
    let id = EndpointId(id);
    assert_eq!(bench.say(Input::ServerStats { id, stats }), []);
}

fn waits(waiting: u64) -> ServerStats {
    ServerStats {
        waiting: Some(waiting),
        ..ServerStats::default()
    }
}

fn holds(adapters: &[&str]) -> ServerStats {
    ServerStats {
        adapters: Some(adapters.iter().map(|&it| it.into()).collect()),
        ..ServerStats::default()
    }
}

/// Where it may go, the best first.
fn order(bench: &mut Bench, request: Request) -> Vec<u32> {
    match &bench.effects(Input::Register(request))[..] {
        [Effect::Grant { endpoints, .. }] => endpoints.iter().map(|it| it.0).collect(),
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
fn a_shorter_queue_is_better_and_fallbacks_are_in_order() {
    let mut bench = bench_with(Scorers { queue: 1.0, ..NONE });
    know(&mut bench, 1, waits(3));
    know(&mut bench, 2, waits(0));
    know(&mut bench, 3, waits(1));
    assert_eq!(order(&mut bench, plain(1)), [2, 3, 1]);
    assert_eq!(order(&mut bench, plain(2)), [2, 3, 1], "the stock has no vote");
}

#[test]
fn a_free_cache_is_better() {
    let mut bench = bench_with(Scorers::default());
    for (id, used) in [(1, 0.9), (2, 0.5), (3, 0.1)] {
        let stats = ServerStats {
            kv_used: Some(used),
            ..ServerStats::default()
        };
        know(&mut bench, id, stats);
    }
    assert_eq!(order(&mut bench, plain(1)), [3, 2, 1]);
}

#[test]
fn who_computed_the_beginning_is_better_the_longer_it_is() {
    let mut bench = bench_with(Scorers {
        stock: 0.1,
        prefix: 1.0,
        ..NONE
    });
    let first = order(&mut bench, with_prefix(1, &[1, 2, 3, 4]))[0];
    assert_eq!(order(&mut bench, with_prefix(2, &[1, 2, 3, 4]))[0], first);
    let other = order(&mut bench, with_prefix(3, &[9]))[0];
    assert_ne!(other, first, "nobody holds it: least stock");
    // Of its first half only.
    assert_eq!(order(&mut bench, with_prefix(4, &[1, 2, 8]))[0], first);
    assert_eq!(order(&mut bench, with_prefix(5, &[9, 10]))[0], other);
}

#[test]
fn what_a_server_held_is_gone_when_it_comes_back() {
    let mut bench = bench_with(Scorers {
        stock: 0.1,
        prefix: 1.0,
        ..NONE
    });
    let first = order(&mut bench, with_prefix(1, &[1, 2]))[0];
    for ready in [false, true] {
        let state = EndpointState {
            ready,
            ..EndpointState::default()
        };
        bench.say(Input::Endpoint {
            id: EndpointId(first),
            state,
        });
    }
    assert_ne!(order(&mut bench, with_prefix(2, &[1, 2]))[0], first);
}

#[test]
fn who_has_the_adapter_is_better_and_who_does_not_say_is_not_asked() {
    let mut bench = bench_with(Scorers {
        stock: 1.0,
        lora: 1.0,
        ..NONE
    });
    know(&mut bench, 1, holds(&["other"]));
    know(&mut bench, 2, holds(&["other", "mine"]));
    let mut mine = plain(1);
    mine.model = "mine".into();
    // 2: 1 of 1; 3: its stock alone, 1; 1: a half.
    let order = order(&mut bench, mine);
    assert_eq!(order[2], 1);
}

#[test]
fn what_is_not_said_any_more_does_not_count() {
    let mut bench = bench_with(Scorers::default());
    for id in 1..=3 {
        know(&mut bench, id, waits(u64::from(id)));
    }
    assert_eq!(order(&mut bench, plain(1)), [1, 2, 3]);
    for id in 1..=3 {
        know(&mut bench, id, ServerStats::default());
    }
    assert_ne!(order(&mut bench, plain(2))[0], 1, "least stock again");
}

#[test]
fn a_score_bounds_nobody_and_leaves_nobody_idle() {
    let mut bench = bench_with(Scorers { queue: 1.0, ..NONE });
    know(&mut bench, 1, waits(0));
    know(&mut bench, 2, waits(50));
    know(&mut bench, 3, waits(90));
    let first: Vec<u32> = (1..=30).map(|id| order(&mut bench, plain(id))[0]).collect();
    // A quarter of ten ahead of the least loaded, no more.
    assert_eq!(first[..9], [1, 1, 1, 2, 2, 2, 3, 1, 2]);
    let count = |endpoint: u32| first.iter().filter(|&&it| it == endpoint).count();
    assert_eq!([1, 2, 3].map(count), [10, 10, 10], "each its own bound");
    assert_eq!(bench.say(Input::Register(plain(31))), [], "all are full");
    assert_eq!(bench.engine.waiting(), 1);
}

#[test]
fn with_small_bounds_the_least_stock_decides() {
    let policy = Policy {
        scheduler: Scorers { queue: 9.0, ..NONE },
        ..with_gate(gate(3, 3))
    };
    let mut bench = Bench::new(policy, 3);
    know(&mut bench, 1, waits(0));
    know(&mut bench, 2, waits(9));
    know(&mut bench, 3, waits(9));
    let first: Vec<u32> = (1..=3).map(|id| order(&mut bench, plain(id))[0]).collect();
    assert_eq!(first[0], 1);
    assert_ne!(first[1], 1);
    assert_eq!(first.iter().sum::<u32>(), 6, "each one");
}

#[test]
fn under_budgets_what_fits_is_scored() {
    let policy = Policy {
        scheduler: Scorers {
            stock: 1.0,
            queue: 5.0,
            ..NONE
        },
        ..auto(8)
    };
    let mut bench = bench_of(policy, &[budget(26.0), budget(40.0)]);
    assert!(matches!(bench.engine.snapshot().endpoints.len(), 2));
    know(&mut bench, 1, waits(0));
    know(&mut bench, 2, waits(9));
    let first: Vec<u32> = (1..=3)
        .map(|id| order(&mut bench, sized(id, 100, 50))[0])
        .collect();
    assert_eq!(first, [1, 2, 1], "a quarter of its budget ahead is too far");
}

#[test]
fn weights_change_with_the_policy() {
    let mut bench = bench_with(NONE);
    know(&mut bench, 3, waits(0));
    know(&mut bench, 2, waits(1));
    know(&mut bench, 1, waits(2));
    let policy = Policy {
        scheduler: Scorers { queue: 1.0, ..NONE },
        ..with_gate(Gate::Open)
    };
    bench.say(Input::Policy(Box::new(policy)));
    assert_eq!(order(&mut bench, plain(1)), [3, 2, 1]);
    bench.say(Input::EndpointRemoved(EndpointId(3)));
    assert_eq!(order(&mut bench, plain(2)), [2, 1]);
    bench.say(Input::Cancel(RequestId(1)));
}
