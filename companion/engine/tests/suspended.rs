//! Requests whose owner is out of sight: they keep everything but their turn. And what is said again about a request
//! that waits or runs already: adopted, requeued.

#[path = "support/mod.rs"]
mod support;

use std::time::Duration;

use penstock_engine::input::{Band, ClassKey, Service, Usage};
use penstock_engine::policy::{Bucket, Class, ClassMode, ClassSet, Discipline, Overflow};
use penstock_engine::units::Tokens;
use penstock_engine::{EndpointId, Engine, Input, Instant, Outcome as O, Policy, Request, RequestId};

use Band::{Critical, Default, Sheddable};
use support::Said::*;
use support::*;

/// Endpoint 1 runs one at a time: request 1.
fn busy_with(change: impl FnOnce(&mut Policy)) -> Bench {
    let mut policy = policy();
    policy.gate = gate(1, 1);
    change(&mut policy);
    let mut bench = Bench::new(policy, 1);
    assert_eq!(bench.register(1, "other", Default), [Bypassed(1, 1)]);
    bench
}

fn suspend(bench: &mut Bench, id: u64) {
    assert_eq!(bench.say(Input::Suspend(RequestId(id))), []);
}

fn go_on(bench: &mut Bench, id: u64) -> Vec<Said> {
    bench.say(Input::Continue(RequestId(id)))
}

fn counts(bench: &Bench) -> (u64, u64) {
    let snapshot = bench.engine.snapshot();
    (snapshot.waiting, snapshot.suspended)
}

#[test]
fn it_keeps_its_place_and_holds_nobody_back() {
    for discipline in Discipline::ALL {
        let mut bench = busy_with(|policy| policy.flows.discipline = discipline);
        for id in 2..=5 {
            assert_eq!(bench.register(id, "f", Default), []);
        }
        suspend(&mut bench, 2);
        suspend(&mut bench, 3);
        assert_eq!(counts(&bench), (4, 2));
        assert_eq!(
            bench.complete(1),
            [Settled(1, 1), Dispatched(4, 1)],
            "{discipline:?}"
        );
        assert_eq!(bench.engine.position(RequestId(3)).map(|at| at.ahead), Some(1));
        assert_eq!(go_on(&mut bench, 3), []);
        assert_eq!(bench.complete(4), [Settled(4, 1), Dispatched(3, 1)]);
        assert_eq!(go_on(&mut bench, 2), []);
        assert_eq!(bench.complete(3), [Settled(3, 1), Dispatched(2, 1)]);
        suspend(&mut bench, 5);
        assert_eq!(bench.complete(2), [Settled(2, 1)]);
        assert_eq!(counts(&bench), (1, 1));
        assert_eq!(go_on(&mut bench, 5), [Dispatched(5, 1)], "at once");
    }
}

#[test]
fn a_newcomer_passes_what_is_suspended_even_in_its_own_flow() {
    for discipline in Discipline::ALL {
        let mut bench = busy_with(|policy| policy.flows.discipline = discipline);
        bench.register(2, "f", Default);
        bench.register(3, "f", Critical);
        suspend(&mut bench, 2);
        suspend(&mut bench, 3);
        bench.complete(1);
        assert_eq!(bench.register(4, "f", Default), [Bypassed(4, 1)]);
        assert_eq!(bench.register(5, "f", Default), []);
        assert_eq!(go_on(&mut bench, 2), []);
        assert_eq!(bench.complete(4), [Settled(4, 1), Dispatched(2, 1)]);
        bench.complete(2);
        assert_eq!(bench.complete(5), [Settled(5, 1)]);
        assert_eq!(bench.register(6, "g", Sheddable), [Bypassed(6, 1)]);
        assert_eq!(go_on(&mut bench, 3), []);
        assert_eq!(bench.register(7, "g", Sheddable), []);
        assert_eq!(bench.complete(6), [Settled(6, 1), Dispatched(3, 1)]);
    }
}

#[test]
fn said_twice_or_of_others_it_does_nothing() {
    let mut bench = busy_with(|_| ());
    bench.register(2, "f", Default);
    bench.register(3, "f", Default);
    suspend(&mut bench, 1);
    suspend(&mut bench, 99);
    assert_eq!(counts(&bench), (2, 0), "one runs, the other isn't there");
    assert_eq!(go_on(&mut bench, 2), []);
    suspend(&mut bench, 2);
    suspend(&mut bench, 2);
    assert_eq!(counts(&bench), (2, 1));
    assert_eq!(bench.complete(1), [Settled(1, 1), Dispatched(3, 1)]);
    assert_eq!(go_on(&mut bench, 2), []);
    assert_eq!(go_on(&mut bench, 2), []);
    assert_eq!(bench.complete(3), [Settled(3, 1), Dispatched(2, 1)]);
    assert_eq!(bench.say(Input::Requeue(RequestId(2))), [Dispatched(2, 1)]);
    assert_eq!(go_on(&mut bench, 2), []);
}

#[test]
fn it_counts_in_every_limit_of_what_waits() {
    let class = Class {
        requests_per_endpoint: Some(2),
        ..Class::new("c", 100)
    };
    type Limit<'a> = (&'a str, O, &'a dyn Fn(&mut Policy));
    let limits: [Limit<'_>; 4] = [
        ("f", O::RejectedFlowCapacity, &|policy| {
            policy.queue.flow_capacity = 2
        }),
        ("g", O::RejectedTooManyFlows, &|policy| {
            policy.queue.total_capacity = 2
        }),
        ("f", O::RejectedQueueFull, &|policy| {
            policy.queue.total_bytes = 2_500
        }),
        ("g", O::RejectedClassCapacity, &|policy| {
            policy.classes = vec![ClassSet {
                classes: vec![class.clone()],
                ..ClassSet::default()
            }];
        }),
    ];
    for (flow, outcome, limit) in limits {
        let mut bench = busy_with(limit);
        for id in 2..=3 {
            bench.register(id, "f", Default);
            suspend(&mut bench, id);
        }
        assert_eq!(bench.register(4, flow, Default), [Rejected(4, outcome)]);
        assert_eq!(bench.say(Input::Cancel(RequestId(3))), [Cancelled(3)]);
        assert_eq!(bench.register(5, flow, Default), []);
    }
}

#[test]
fn its_time_runs_on() {
    let mut bench = busy_with(|policy| policy.queue.ttl = Duration::from_secs(5));
    bench.register(2, "f", Default);
    let mut hurried = request(3, "f", Default);
    hurried.deadline = Some(at(3.0));
    bench.say(Input::Register(hurried));
    suspend(&mut bench, 2);
    suspend(&mut bench, 3);
    assert_eq!(bench.engine.poll_timeout(), Some(at(3.0)));
    assert_eq!(bench.at(3.0).wait(), [Rejected(3, O::DeadlineExceeded)]);
    assert_eq!(bench.at(4.9).wait(), []);
    assert_eq!(bench.at(5.0).wait(), [Rejected(2, O::ExpiredTtl)]);
    assert_eq!(counts(&bench), (0, 0));
    assert_eq!(bench.engine.poll_timeout(), None);
    assert_eq!(go_on(&mut bench, 2), []);
}

#[test]
fn it_leaves_like_any_other_that_waits() {
    let mut bench = busy_with(|policy| {
        policy.queue.total_capacity = 2;
        policy.queue.overflow = Overflow::Displace;
    });
    bench.register(2, "f", Sheddable);
    bench.register(3, "f", Sheddable);
    suspend(&mut bench, 3);
    assert_eq!(bench.register(4, "f", Critical), [Rejected(3, O::Displaced)]);
    suspend(&mut bench, 2);
    assert_eq!(bench.say(Input::Cancel(RequestId(2))), [Cancelled(2)]);
    bench.register(5, "g", Default);
    suspend(&mut bench, 5);
    assert_eq!(
        bench.say(Input::ModelRemoved(RequestId(5))),
        [Rejected(5, O::RejectedInvalid)]
    );
    suspend(&mut bench, 4);
    assert_eq!(bench.say(Input::Drain(true)), [Rejected(4, O::ShuttingDown)]);
    assert_eq!(counts(&bench), (0, 0));
    assert_eq!(bench.complete(1), [Settled(1, 1)]);
    assert!(bench.engine.snapshot().flows.iter().all(|flow| flow.waiting == 0));
}

#[test]
fn who_runs_already_waits_no_more_suspended_or_not() {
    for suspended in [false, true] {
        let mut bench = busy_with(|_| ());
        bench.register(2, "f", Default);
        bench.register(3, "f", Default);
        if suspended {
            suspend(&mut bench, 2);
        }
        let adopt = Input::Adopt {
            request: request(2, "elsewhere", Critical),
            endpoint: EndpointId(1),
        };
        assert_eq!(bench.say(adopt.clone()), []);
        assert_eq!((counts(&bench), bench.engine.stock()), ((1, 0), 2));
        assert_eq!(bench.say(adopt), [], "it runs already");
        let snapshot = bench.engine.snapshot();
        assert_eq!(
            (
                snapshot.counters.arrivals,
                snapshot.counters.outcome(O::Dispatched)
            ),
            (3, 1)
        );
        assert!(snapshot.flows.iter().all(|flow| &*flow.key != "elsewhere"));
        assert_eq!(go_on(&mut bench, 2), []);
        // Back in the queue it is before the other, and free to go.
        assert_eq!(bench.say(Input::Requeue(RequestId(2))), []);
        assert_eq!(counts(&bench), (2, 0));
        assert_eq!(bench.complete(1), [Settled(1, 1), Dispatched(2, 1)]);
        assert_eq!(bench.complete(2), [Settled(2, 1), Dispatched(3, 1)]);
    }
}

#[test]
fn what_is_requeued_is_above_the_limits_of_its_flow_and_of_the_pool() {
    let mut bench = busy_with(|policy| {
        policy.queue.flow_capacity = 2;
        policy.queue.total_capacity = 2;
    });
    for id in 2..=3 {
        bench.register(id, "other", Default);
    }
    bench.say(Input::EndpointRemoved(EndpointId(1)));
    assert_eq!(bench.say(Input::Requeue(RequestId(1))), []);
    assert_eq!(counts(&bench), (3, 0));
    assert_eq!(
        bench.register(4, "other", Default),
        [Rejected(4, O::RejectedFlowCapacity)]
    );
    assert_eq!(
        bench.endpoint(2, true),
        [Dispatched(1, 2)],
        "its old place: first"
    );
    assert_eq!(bench.complete(1), [Settled(1, 1), Dispatched(2, 2)]);
}

#[test]
fn what_is_requeued_and_may_go_nowhere_any_more_waits_for_that_to_come_back() {
    let mut bench = Bench::new(policy(), 2);
    bench.say(Input::Register(only(request(1, "f", Default), &[2])));
    bench.say(Input::Register(only(request(2, "f", Default), &[2])));
    bench.say(Input::EndpointRemoved(EndpointId(2)));
    for id in 1..=2 {
        assert_eq!(bench.say(Input::Requeue(RequestId(id))), []);
        assert_eq!(bench.say(Input::Requeue(RequestId(id))), [], "once");
    }
    assert_eq!(counts(&bench), (2, 0));
    assert_eq!(bench.engine.snapshot().counters.requeues, 2);
    assert_eq!(bench.register(3, "g", Default), [Bypassed(3, 1)]);
    // New at its address: one at a time.
    assert_eq!(bench.at(10.0).endpoint(2, true), [Dispatched(1, 2)]);
    bench.say(Input::EndpointRemoved(EndpointId(2)));
    assert_eq!(bench.at(30.0).wait(), [Rejected(2, O::ExpiredTtl)]);
    assert_eq!(bench.complete(1), [Settled(1, 1)]);
}

#[test]
fn what_is_requeued_too_late_is_refused_as_if_it_had_waited() {
    let mut bench = busy_with(|policy| policy.queue.ttl = Duration::from_secs(5));
    assert_eq!(
        bench.at(5.0).say(Input::Requeue(RequestId(1))),
        [Rejected(1, O::ExpiredTtl)],
        "from its first arrival"
    );
    assert_eq!(bench.register(2, "f", Default), [Bypassed(2, 1)]);
    bench.say(Input::Drain(true));
    assert_eq!(
        bench.say(Input::Requeue(RequestId(2))),
        [Rejected(2, O::ShuttingDown)]
    );
    let counters = bench.engine.snapshot().counters;
    assert_eq!(
        (counters.outcomes_total(), counters.arrivals, counters.requeues),
        (2, 2, 2)
    );
    assert_eq!(counters.outcome(O::Bypassed), 0);
}

#[test]
fn what_was_settled_is_charged_anew_when_it_goes_again() {
    let mut bench = busy_with(|_| ());
    let used = Service::Served(Usage {
        output: Some(Tokens(7)),
        ..Usage::default()
    });
    let finish = |bench: &Bench| bench.engine.snapshot().flows[0].finish;
    assert_eq!(finish(&bench), 1.0);
    for time in 1..=50 {
        assert_eq!(
            bench.say(Input::Settle {
                id: RequestId(1),
                service: used,
            }),
            []
        );
        assert_eq!(bench.say(Input::Requeue(RequestId(1))), [Dispatched(1, 1)]);
        assert_eq!(finish(&bench), 1.0 + f64::from(time));
    }
    // And what wasn't is given back each time.
    for _ in 0..50 {
        assert_eq!(bench.say(Input::Requeue(RequestId(1))), [Dispatched(1, 1)]);
        assert_eq!(finish(&bench), 51.0);
    }
    let service = Service::Nothing;
    let id = RequestId(1);
    assert_eq!(bench.say(Input::Completed { id, service }), [Settled(1, 0)]);
    let snapshot = bench.engine.snapshot();
    assert_eq!(
        (
            snapshot.counters.requeues,
            snapshot.counters.outcome(O::Dispatched)
        ),
        (100, 1)
    );
    assert_eq!((snapshot.stock, snapshot.waiting), (0, 0));
}

/// Everything in the policy that builds the tree anew, or moves who waits to other classes.
#[test]
fn another_policy_leaves_it_suspended_in_its_place() {
    let class = |name: &str| Class::new(name, 100);
    let sets = [
        Vec::new(),
        vec![ClassSet {
            classes: vec![class("a"), class("b")],
            buckets: vec![Bucket {
                min_tokens: 0,
                name: "all".into(),
            }],
            ..ClassSet::default()
        }],
        vec![ClassSet {
            classes: vec![class("b")],
            ..ClassSet::default()
        }],
    ];
    let mut policies = Vec::new();
    for discipline in Discipline::ALL {
        for per_model in [false, true] {
            for classes in &sets {
                for class_mode in [ClassMode::Exact, ClassMode::Dynamo] {
                    let mut policy = policy();
                    policy.gate = gate(1, 1);
                    policy.flows.discipline = discipline;
                    policy.per_model = per_model;
                    policy.classes.clone_from(classes);
                    policy.class_mode = class_mode;
                    policies.push(policy);
                }
            }
        }
    }
    for from in 0..policies.len() {
        let to = (from * 7 + 5) % policies.len();
        let mut bench = busy_with(|policy| *policy = policies[from].clone());
        for id in 2..=4 {
            let request = Request {
                class: ClassKey::Family("b".into()),
                ..request(id, "f", Default)
            };
            bench.say(Input::Register(request));
        }
        suspend(&mut bench, 2);
        suspend(&mut bench, 4);
        assert_eq!(bench.say(Input::Policy(Box::new(policies[to].clone()))), []);
        assert_eq!(counts(&bench), (3, 2));
        assert_eq!(bench.complete(1), [Settled(1, 1), Dispatched(3, 1)]);
        assert_eq!(bench.say(Input::Policy(Box::new(policies[from].clone()))), []);
        assert_eq!(bench.complete(3), [Settled(3, 1)], "{from} to {to}");
        assert_eq!(go_on(&mut bench, 4), [Dispatched(4, 1)]);
        assert_eq!(go_on(&mut bench, 2), []);
        assert_eq!(bench.complete(4), [Settled(4, 1), Dispatched(2, 1)]);
    }
}

/// A whole session at once: its requests go in the order in which they came, whatever came meanwhile.
#[test]
fn a_thousand_at_once_keep_their_order() {
    for flows in [1, 40] {
        let mut policy = policy();
        policy.gate = gate(1, 1);
        policy.queue.flow_capacity = 10_000;
        policy.queue.total_capacity = 10_000;
        let mut engine = Engine::new(policy, 1, Instant::ZERO);
        let say = |engine: &mut Engine, input: Input| -> Vec<Said> {
            engine.handle(at(1.0), input);
            std::iter::from_fn(|| engine.poll_effect().map(|effect| short(&effect))).collect()
        };
        say(
            &mut engine,
            Input::Endpoint {
                id: EndpointId(1),
                state: penstock_engine::input::EndpointState::default(),
            },
        );
        say(&mut engine, Input::Ready);
        let flow = |id: u64| format!("f{}", id % flows);
        for id in 0..=1_000 {
            say(
                &mut engine,
                Input::Register(request(id, &flow(id), Band::Default)),
            );
        }
        for id in 1..=1_000 {
            say(&mut engine, Input::Suspend(RequestId(id)));
        }
        engine.audit().expect("all invariants hold");
        for id in 2_000..2_010 {
            say(&mut engine, Input::Register(request(id, &flow(0), Band::Default)));
        }
        // As a Hello may name them: in no order.
        for id in (1..=1_000).rev() {
            say(&mut engine, Input::Continue(RequestId(id)));
        }
        engine.audit().expect("all invariants hold");
        let mut last = vec![0; 40];
        let mut runs = 0;
        for _ in 0..1_010 {
            let service = Service::Served(Usage::default());
            let said = say(
                &mut engine,
                Input::Completed {
                    id: RequestId(runs),
                    service,
                },
            );
            let [Settled(..), Dispatched(id, 1)] = said[..] else {
                panic!("{said:?}")
            };
            let before = &mut last[(if id < 2_000 { id % flows } else { 0 }) as usize];
            assert!(*before < id, "{id} after {before}");
            (*before, runs) = (id, id);
        }
        assert_eq!(engine.waiting(), 0);
    }
}
