//! The gate that a model of the servers sets: given these budgets, who goes where, and who waits for what.

mod support;

use penstock_engine::input::{Band, EndpointState, Service, Usage};
use penstock_engine::policy::Admit;
use penstock_engine::units::{Decimal, Tokens};
use penstock_engine::{Budget, Effect, EndpointId, Input, Outcome, Policy, Request, RequestId};

use Band::{Critical, Default, Sheddable};
use Said::{Bypassed, Dispatched, Rejected, Settled};
use support::budgets::*;
use support::*;

/// How many of these go at once, one after another; the first that doesn't is taken back.
fn goes(bench: &mut Bench, first: u64, prompt: u64, output: u64) -> u64 {
    let mut went = 0;
    let request = |id| Request {
        flow: "goes".into(),
        ..sized(id, prompt, output)
    };
    while !send(bench, request(first + went)).is_empty() {
        went += 1;
        assert!(went < 1_000, "nothing limits it");
    }
    bench.say(Input::Cancel(RequestId(first + went)));
    went
}

fn bounds(bench: &Bench) -> Vec<u64> {
    let endpoints = bench.engine.snapshot().endpoints;
    endpoints.iter().map(|endpoint| endpoint.bound).collect()
}

fn stocks(bench: &Bench) -> Vec<u64> {
    let endpoints = bench.engine.snapshot().endpoints;
    endpoints.iter().map(|endpoint| endpoint.stock).collect()
}

#[test]
fn without_budgets_each_takes_the_initial_count() {
    let mut bench = Bench::new(auto(3), 2);
    for id in 1..=6 {
        assert!(matches!(bench.register(id, "f", Default)[..], [Bypassed(..)]));
    }
    assert_eq!(stocks(&bench), [3, 3]);
    assert_eq!(bench.register(7, "f", Default), []);
    assert_eq!((bench.engine.lower(), bench.engine.upper()), (6, 6));
    assert_eq!(bench.engine.saturation_milli(), 1_000);
    assert!(matches!(bench.complete(1)[..], [Settled(1, 1), Dispatched(7, _)]));
}

#[test]
fn the_predicted_iteration_gates() {
    // 10 + 3 n ms.
    let mut bench = bench(&[budget(25.0)]);
    for id in 1..=5 {
        assert_eq!(bench.register(id, "f", Default), [Bypassed(id, 1)]);
    }
    assert_eq!(bench.register(6, "f", Default), [], "28 ms");
    assert_eq!(bench.complete(3), [Settled(3, 1), Dispatched(6, 1)]);
    assert_eq!(bench.register(7, "f", Default), []);
    assert_eq!(
        allow(&mut bench, 1, Some(budget(28.0))),
        [Dispatched(7, 1)],
        "just as much as it may take"
    );
}

#[test]
fn a_prompt_is_spread_over_the_mean_answer() {
    // C + P/o: 1 + 800/100 = 9 each, however many there are.
    assert_eq!(goes(&mut bench(&[budget(10.0 + 36.0)]), 1, 800, 100), 4);
    // Cached tokens aren't processed.
    let mut bench = bench(&[budget(10.0 + 36.0)]);
    let mut cached = sized(1, 800, 100);
    cached.cached = Tokens(800);
    assert_eq!(send(&mut bench, cached), [Bypassed(1, 1)]);
    // 1 + 9 n with two of them, 3 + 16, 4 + 24: the fourth would be 5 + 32.
    assert_eq!(goes(&mut bench, 2, 800, 100), 3);
}

#[test]
fn answers_are_half_written_in_the_mean() {
    let gamma = Budget {
        beta_ms: 0.0,
        gamma_ms: 0.5,
        ..budget(10.0 + 0.5 * 460.0)
    };
    // Residents: 100 of the newcomer, 100 + 20 of each that runs.
    let mut bench = bench(&[gamma]);
    assert_eq!(goes(&mut bench, 1, 100, 40), 4);
    // Said to be longer than expected, once it is known: 140 more.
    let service = Service::Served(Usage {
        output: Some(Tokens(320)),
        ..Usage::default()
    });
    bench.say(Input::Settle {
        id: RequestId(1),
        service,
    });
    assert_eq!(bench.complete(2), [Settled(2, 1)]);
    assert_eq!(send(&mut bench, sized(9, 100, 40)), [], "600 of 460");
}

#[test]
fn with_nothing_in_flight_one_always_goes() {
    let mut bench = bench(&[budget(1.0), budget(1.0)]);
    let huge = |id| sized(id, 1_000_000, 1);
    assert!(matches!(send(&mut bench, huge(1))[..], [Bypassed(1, _)]));
    assert!(matches!(send(&mut bench, huge(2))[..], [Bypassed(2, _)]));
    assert_eq!(stocks(&bench), [1, 1]);
    assert_eq!(send(&mut bench, sized(3, 1, 1_000)), []);
    assert!(matches!(bench.complete(2)[..], [Settled(2, 1), Dispatched(3, _)]));
}

#[test]
fn resident_tokens_and_the_batch_are_limits_of_their_own() {
    let held = Budget {
        kv_tokens_max: Some(400),
        ..budget(1e9)
    };
    // 150 of the newcomer, 125 of each that runs.
    assert_eq!(goes(&mut bench(&[held]), 1, 100, 50), 3);
    let batch = Budget {
        requests_max: Some(7),
        ..budget(1e9)
    };
    assert_eq!(goes(&mut bench(&[batch]), 1, 100, 50), 7);
    // What isn't ours counts in both, as large as ours is.
    for (limited, expected) in [(held, 1), (batch, 4)] {
        let mut bench = bench(&[limited]);
        assert_eq!(bench.register(100, "f", Default), [Bypassed(100, 1)]);
        bench.say(Input::Load {
            id: EndpointId(1),
            running: Some(1 + 3),
        });
        assert_eq!(1 + goes(&mut bench, 1, 100, 50), expected);
    }
}

#[test]
fn what_is_not_ours_takes_of_the_iteration_and_never_stops_dispatch() {
    let mut bench = bench(&[budget(25.0)]);
    let load = |running| Input::Load {
        id: EndpointId(1),
        running,
    };
    bench.say(load(Some(1_000)));
    assert_eq!(bench.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(bench.register(2, "f", Default), []);
    assert_eq!(bench.engine.upper(), 0, "of 5 is nothing left");
    bench.say(load(Some(1 + 2)));
    assert_eq!(
        stocks(&bench),
        [2],
        "2 of ours and 2 of theirs: 10 + 2 x 6 = 22 at the next"
    );
    assert_eq!(goes(&mut bench, 3, 100, 50), 1);
    assert_eq!(bench.engine.upper(), 3);
}

#[test]
fn each_is_used_to_its_own_limit() {
    let slow = Budget {
        alpha_ms: 20.0,
        beta_ms: 2.0,
        ..budget(50.0)
    };
    // 10 + 3 n of 50, and 20 + 6 n.
    let mut bench = bench(&[budget(50.0), slow]);
    assert_eq!(goes(&mut bench, 1, 100, 50), 13 + 5);
    assert_eq!(stocks(&bench), [13, 5]);
}

#[test]
fn who_uses_least_of_its_budget_is_first() {
    let slow = Budget {
        alpha_ms: 20.0,
        beta_ms: 2.0,
        ..budget(50.0)
    };
    let mut bench = bench(&[slow, budget(50.0)]);
    // With one more: 26 of 50 against 13, 16, 19, 22, 25, 28.
    let went: Vec<Said> = (1..=7).flat_map(|id| bench.register(id, "f", Default)).collect();
    let expected = [2, 2, 2, 2, 2, 1, 2];
    let expected: Vec<Said> = (1..)
        .zip(expected)
        .map(|(id, endpoint)| Bypassed(id, endpoint))
        .collect();
    assert_eq!(went, expected);
}

#[test]
fn who_is_held_to_few_requests_is_filled_in_proportion() {
    let few = Budget {
        requests_max: Some(4),
        ..budget(f64::INFINITY)
    };
    let mut bench = bench(&[few]);
    bench.endpoint(2, true);
    for (count, expected) in [(3, [1, 2]), (6, [2, 4]), (12, [4, 8])] {
        while bench.engine.stock() < count {
            bench.register(bench.engine.stock(), "f", Default);
        }
        assert_eq!(stocks(&bench), expected, "of 4 and of 8");
    }
}

#[test]
fn where_nothing_limits_the_shortest_iteration_is_first() {
    let mut bench = bench(&[budget(f64::INFINITY); 3]);
    for id in 1..=9 {
        bench.register(id, "f", Default);
    }
    assert_eq!(stocks(&bench), [3, 3, 3]);
}

#[test]
fn fallbacks_are_those_where_it_fits() {
    let mut bench = bench(&[
        budget(13.0),
        budget(25.0),
        budget(28.0),
        budget(60.0),
        budget(90.0),
    ]);
    let effects = bench.effects(Input::Register(request(1, "f", Default)));
    let [Effect::Grant { endpoints, .. }] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(*endpoints, [5, 4, 3].map(EndpointId));
    for (id, at) in [(2, 1), (3, 2), (4, 4)] {
        bench.say(Input::Register(only(request(id, "f", Default), &[at])));
    }
    // 26 ms with one of 600 more at 1, 2 and 4, 23 at the others.
    let long = sized(5, 600, 50);
    let effects = bench.effects(Input::Register(long));
    let [Effect::Grant { endpoints, .. }] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(*endpoints, [5, 4, 3].map(EndpointId));
    let effects = bench.effects(Input::Register(only(sized(6, 600, 50), &[1, 2, 4])));
    let [Effect::Grant { endpoints, .. }] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(*endpoints, [EndpointId(4)]);
}

#[test]
fn the_next_one_is_not_overtaken_for_its_size() {
    let mut bench = bench(&[budget(40.0)]);
    for id in 1..=5 {
        assert_eq!(bench.register(id, "f", Default), [Bypassed(id, 1)]);
    }
    // 25 ms now; with 900 tokens more 10 + 6 + 1400/50.
    assert_eq!(send(&mut bench, sized(6, 900, 50)), []);
    assert_eq!(bench.register(7, "f", Default), [], "it would fit");
    assert_eq!(bench.register(8, "g", Default), [], "of another flow, too");
    // After the sixth, in its flow and by virtual time.
    assert_eq!(bench.complete(1), [Settled(1, 1)], "10 + 5 + 1300/50 = 41");
    assert_eq!(bench.complete(2), [Settled(2, 1), Dispatched(6, 1)]);
    assert_eq!(bench.complete(3), [Settled(3, 1), Dispatched(8, 1)]);
}

#[test]
fn who_comes_before_it_goes_before_it() {
    let mut bench = bench(&[budget(40.0)]);
    for id in 1..=5 {
        bench.register(id, "f", Default);
    }
    send(&mut bench, sized(6, 900, 50));
    bench.register(7, "f", Sheddable);
    assert_eq!(
        bench.register(8, "f", Critical),
        [Dispatched(8, 1)],
        "it waited for nobody"
    );
    assert_eq!(
        bench.say(Input::Cancel(RequestId(6))),
        [Said::Cancelled(6), Dispatched(7, 1)],
        "with the long one gone what it kept back goes"
    );
}

#[test]
fn only_its_own_endpoints_are_set_aside() {
    let mut bench = bench(&[budget(40.0), budget(40.0)]);
    for id in 1..=5 {
        bench.say(Input::Register(only(request(id, "f", Default), &[1])));
    }
    let long = |id| only(sized(id, 900, 50), &[1]);
    assert_eq!(send(&mut bench, long(6)), []);
    assert_eq!(
        send(&mut bench, only(request(7, "g", Default), &[1])),
        [],
        "it shares the endpoint"
    );
    assert_eq!(
        send(&mut bench, request(8, "h", Default)),
        [Bypassed(8, 2)],
        "it overtakes nobody"
    );
    assert_eq!(
        goes(&mut bench, 10, 100, 50),
        9,
        "endpoint 2 is used to its limit"
    );
    assert_eq!(stocks(&bench), [5, 10]);
    assert_eq!(bench.register(30, "h", Default), []);
    assert_eq!(bench.complete(1), [Settled(1, 1)]);
    assert_eq!(
        bench.complete(8),
        [Settled(8, 1), Dispatched(30, 2)],
        "not to 1, where it would fit"
    );
    assert_eq!(bench.complete(2), [Settled(2, 1), Dispatched(6, 1)]);
    assert_eq!(bench.complete(3), [Settled(3, 1), Dispatched(7, 1)]);
}

#[test]
fn who_is_set_aside_for_somebody_is_free_when_that_leaves() {
    let mut policy = auto(8);
    policy.queue.admit = Admit::CriticalOnly;
    let mut bench = bench_of(policy, &[budget(40.0), budget(40.0)]);
    for id in 1..=5 {
        bench.say(Input::Register(only(request(id, "f", Default), &[1])));
    }
    let mut long = only(sized(6, 900, 50), &[1]);
    long.band = Critical;
    long.deadline = Some(at(5.0));
    assert_eq!(send(&mut bench, long), []);
    let short = |id| only(request(id, "g", Default), &[1]);
    assert_eq!(send(&mut bench, short(7)), [Rejected(7, Outcome::RejectedPolicy)]);
    assert_eq!(
        bench.at(5.0).say(Input::Register(short(8))),
        [Rejected(6, Outcome::DeadlineExceeded), Bypassed(8, 1)]
    );
}

#[test]
fn the_first_token_is_a_limit_for_those_whose_prompts_leave_time_for_it() {
    // 1 ms per prompt token on top of the iteration: 100 of these leave 30 ms.
    let first = |most| Budget {
        first_token_ms_max: most,
        ..budget(1e9)
    };
    assert_eq!(goes(&mut bench(&[first(130.0)]), 1, 100, 50), 6);
    // One that is longer than what is in flight isn't held to its own length: a server would be drained for it.
    let mut bench = bench(&[first(130.0)]);
    assert_eq!(goes(&mut bench, 1, 100, 50), 6);
    bench.complete(1);
    bench.complete(2);
    assert_eq!(
        send(&mut bench, sized(9, 115, 50)),
        [Bypassed(9, 1)],
        "10 + 5 + 515/50"
    );
    // Where not even an idle server meets it, it holds nobody.
    let unmeetable = Budget {
        iteration_ms_max: 160.0,
        ..first(109.0)
    };
    assert_eq!(goes(&mut self::bench(&[unmeetable]), 1, 100, 50), 50);
}

#[test]
fn what_is_shown_is_what_is_typical() {
    let mut bench = bench(&[budget(25.0), budget(25.0)]);
    bench.endpoint(3, true);
    assert_eq!(bounds(&bench), [5, 5, 8]);
    assert_eq!(
        (
            bench.engine.lower(),
            bench.engine.upper(),
            bench.engine.full_bound()
        ),
        (18, 18, Some(18))
    );
    assert_eq!(bench.engine.snapshot().watermark, Decimal::whole(18));
    let light = EndpointState {
        weight: Decimal::from_billionths(Decimal::ONE / 2),
        ..EndpointState::default()
    };
    for id in [1, 3] {
        bench.say(Input::Endpoint {
            id: EndpointId(id),
            state: light,
        });
    }
    assert_eq!(
        bounds(&bench),
        [5, 5, 4],
        "a budget is of the server, whatever its weight"
    );
    allow(&mut bench, 1, None);
    assert_eq!(bounds(&bench), [4, 5, 4]);
    bench.say(Input::Policy(Box::new(Policy {
        gate: gate(2, 2),
        ..policy()
    })));
    assert_eq!(bounds(&bench), [1, 2, 1], "no budget counts under another gate");
    bench.say(Input::Policy(Box::new(auto(8))));
    assert_eq!(bounds(&bench), [4, 5, 4], "and none is forgotten");
    bench.say(Input::EndpointRemoved(EndpointId(2)));
    bench.endpoint(2, true);
    assert_eq!(bounds(&bench), [4, 8, 4], "but with the endpoint");
}

#[test]
fn ceilings_are_parts_of_what_is_typical() {
    let mut policy = auto(8);
    policy.bands.ceilings[Sheddable as usize] = Some(Decimal::from_billionths(Decimal::ONE / 2));
    let mut bench = bench_of(
        policy,
        &[Budget {
            typical: 6,
            ..budget(1e9)
        }],
    );
    for id in 1..=3 {
        assert_eq!(bench.register(id, "f", Sheddable), [Bypassed(id, 1)]);
    }
    assert_eq!(bench.register(4, "f", Sheddable), []);
    for id in 5..=30 {
        assert_eq!(
            bench.register(id, "f", Default),
            [Bypassed(id, 1)],
            "a typical count doesn't gate"
        );
    }
}

#[test]
fn a_slow_start_holds_back_under_a_budget_too() {
    let mut bench = bench(&[budget(25.0)]);
    bench.at(5.0).endpoint(1, false);
    bench.endpoint(1, true);
    let mut first = 0;
    let went = [(); 5].map(|()| {
        first += 100;
        let went = goes(&mut bench, first, 100, 50);
        for id in first..first + went {
            bench.complete(id);
        }
        went
    });
    assert_eq!(went, [1, 2, 4, 5, 5]);
}

#[test]
fn a_budget_of_what_is_not_listed_is_nothing() {
    let mut bench = bench(&[budget(25.0)]);
    assert_eq!(allow(&mut bench, 9, Some(budget(1.0))), []);
    assert_eq!(bench.engine.snapshot().endpoints.len(), 1);
}

#[test]
fn a_smaller_budget_stops_and_takes_nothing_back() {
    let mut bench = bench(&[budget(40.0)]);
    assert_eq!(goes(&mut bench, 1, 100, 50), 10);
    assert_eq!(allow(&mut bench, 1, Some(budget(19.0))), []);
    assert_eq!(bench.register(50, "f", Default), []);
    for id in 1..=7 {
        assert_eq!(bench.complete(id), [Settled(id, 1)]);
    }
    assert_eq!(bench.complete(8), [Settled(8, 1), Dispatched(50, 1)]);
}

#[test]
fn limits_that_are_not_of_size_set_nothing_aside() {
    let mut policy = auto(8);
    policy.flows.max_in_flight_per_endpoint = Some(1);
    let mut bench = bench_of(policy, &[budget(40.0), budget(40.0)]);
    for id in 1..=2 {
        bench.register(id, "f", Default);
    }
    assert_eq!(stocks(&bench), [1, 1]);
    assert_eq!(bench.register(3, "f", Default), [], "its flow runs everywhere");
    for id in 4..=5 {
        assert!(matches!(
            bench.register(id, &format!("{id}"), Default)[..],
            [Bypassed(..)]
        ));
    }
}

#[test]
fn the_rate_is_kept() {
    let mut policy = auto(8);
    policy.queue.max_rate = Some(1.0);
    let mut bench = bench_of(policy, &[budget(13.0)]);
    assert_eq!(bench.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(bench.at(1.0).register(2, "f", Default), [], "it doesn't fit");
    assert_eq!(bench.complete(1), [Settled(1, 1), Dispatched(2, 1)]);
    assert_eq!(bench.register(3, "f", Default), []);
    assert_eq!(bench.complete(2), [Settled(2, 1)], "not within a second");
    assert_eq!(bench.engine.poll_timeout(), Some(at(2.0)));
    assert_eq!(bench.at(2.0).wait(), [Dispatched(3, 1)]);
}
