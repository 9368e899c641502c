//! What the model of the servers says of a wait: when to try again, and who would miss its deadline.

mod support;

use std::time::Duration;

use penstock_engine::input::Band;
use penstock_engine::policy::Discipline;
use penstock_engine::{Budget, Effect, Input, Outcome, Policy, Request, RequestId};

use Band::{Critical, Default};
use Said::{Bypassed, Dispatched, Rejected, Settled};
use support::budgets::*;
use support::*;

/// Of the only effect.
fn retry_after(bench: &mut Bench, request: Request) -> Duration {
    match &bench.effects(Input::Register(request))[..] {
        [
            Effect::Reject {
                retry_after: Some(after),
                ..
            },
        ] => *after,
        other => panic!("{other:?}"),
    }
}

#[test]
fn where_nothing_was_measured_the_model_says_when_to_try_again() {
    let rated = |rate| Budget { rate, ..budget(13.0) };
    let refused = |budgets: &[Budget]| {
        let mut policy = auto(8);
        policy.queue.total_capacity = 20;
        let mut bench = bench_of(policy, budgets);
        for id in 1..=20 + budgets.len() as u64 {
            bench.register(id, "f", Default);
        }
        assert_eq!(bench.engine.waiting(), 20);
        bench
    };
    let between = |after: Duration, seconds: f64| {
        let seconds = Duration::from_secs_f64(seconds);
        assert!(after >= seconds && after <= seconds * 11 / 10, "{after:?}");
    };
    let mut known = refused(&[rated(Some(1.5)), rated(Some(0.5))]);
    between(retry_after(&mut known, request(90, "f", Default)), 10.0);
    let position = known.engine.position(RequestId(12)).expect("it waits");
    assert_eq!(
        (position.ahead, position.estimate),
        (9, Duration::from_millis(4_500))
    );
    let mut unknown = refused(&[rated(None), rated(None)]);
    between(retry_after(unknown.at(4.0), request(90, "f", Default)), 80.0);
    let mut half = refused(&[rated(None), rated(Some(1.0))]);
    between(retry_after(half.at(4.0), request(90, "f", Default)), 80.0);
    // Once one was served that counts.
    known.at(4.0).complete(1);
    known.register(92, "f", Default);
    between(retry_after(&mut known, request(91, "f", Default)), 80.0);
}

#[test]
fn who_would_miss_its_deadline_is_refused_at_once() {
    let mut policy = auto(8);
    policy.reject_unmeetable = true;
    // The first token of one that goes alone: 13 + 100 ms, times 2.
    let rated = Budget {
        ttft_bias: 2.0,
        rate: Some(2.0),
        ..budget(13.0)
    };
    let mut bench = bench_of(policy, &[rated]);
    let due = |id, milliseconds: u64| Request {
        deadline: Some(at(milliseconds as f64 / 1e3)),
        ..request(id, "f", Default)
    };
    let unmeetable = |id| [Rejected(id, Outcome::RejectedUnmeetable)];
    assert_eq!(send(&mut bench, due(1, 225)), unmeetable(1));
    assert_eq!(send(&mut bench, due(2, 226)), [Bypassed(2, 1)]);
    // Nothing is before it; it goes at 13 ms of iteration at most.
    assert_eq!(send(&mut bench, due(3, 225)), unmeetable(3));
    assert_eq!(send(&mut bench, due(4, 226)), []);
    // One is before it: half a second.
    assert_eq!(send(&mut bench, due(5, 725)), unmeetable(5));
    assert_eq!(send(&mut bench, due(6, 726)), []);
    assert_eq!(send(&mut bench, request(7, "f", Default)), [], "it has none");
    // What is less critical isn't before it.
    let critical = Request {
        band: Critical,
        ..due(8, 226)
    };
    assert_eq!(send(&mut bench, critical), []);
    let counted = bench.engine.snapshot().counters;
    assert_eq!(counted.outcome(Outcome::RejectedUnmeetable), 3);
}

#[test]
fn the_backlog_of_another_flow_is_nobodys_wait() {
    let mut policy = auto(8);
    policy.reject_unmeetable = true;
    policy.flows.weights.insert("heavy".into(), 3.0);
    let rated = Budget {
        rate: Some(1.0),
        ..budget(13.0)
    };
    let due = |id, flow: &str, seconds| Request {
        deadline: Some(at(seconds)),
        ..request(id, flow, Default)
    };
    let filled = |policy: &Policy| {
        let mut bench = bench_of(policy.clone(), &[rated]);
        for id in 0..=20 {
            bench.register(id, "heavy", Default);
        }
        bench
    };
    let mut bench = filled(&policy);
    // 20 wait; of these 3 go before the first of a flow of a third of their weight, and 6 before its second.
    let unmeetable = |id| [Rejected(id, Outcome::RejectedUnmeetable)];
    assert_eq!(send(&mut bench, due(30, "light", 3.1)), unmeetable(30));
    assert_eq!(send(&mut bench, due(31, "light", 3.2)), []);
    assert_eq!(send(&mut bench, due(32, "light", 7.1)), unmeetable(32));
    assert_eq!(send(&mut bench, due(33, "light", 7.2)), []);
    assert_eq!(
        send(&mut bench, due(34, "heavy", 22.1)),
        unmeetable(34),
        "20 and 2"
    );
    assert_eq!(send(&mut bench, due(35, "heavy", 22.2)), []);
    policy.flows.discipline = Discipline::Fifo;
    assert_eq!(send(&mut filled(&policy), due(30, "light", 20.1)), unmeetable(30));
    assert_eq!(send(&mut filled(&policy), due(30, "light", 20.2)), []);
}

#[test]
fn without_being_asked_for_nobody_is_refused_for_a_prediction() {
    let mut bench = bench(&[Budget {
        rate: Some(0.01),
        ..budget(13.0)
    }]);
    for id in 1..=4 {
        let due = Request {
            deadline: Some(at(0.001)),
            ..request(id, "f", Default)
        };
        assert!(matches!(send(&mut bench, due)[..], [] | [Bypassed(..)]));
    }
}

#[test]
fn without_any_measure_it_waits() {
    let mut policy = policy();
    policy.reject_unmeetable = true;
    policy.gate = gate(1, 1);
    let mut bench = Bench::new(policy, 1);
    let due = |id, seconds| Request {
        deadline: Some(at(seconds)),
        ..request(id, "f", Default)
    };
    assert_eq!(send(&mut bench, due(1, 0.001)), [Bypassed(1, 1)]);
    for id in 2..=5 {
        assert_eq!(send(&mut bench, due(id, 30.0)), []);
    }
    // One in two seconds was measured: three are before it.
    assert_eq!(bench.at(2.0).complete(1), [Settled(1, 1), Dispatched(2, 1)]);
    assert_eq!(
        send(&mut bench, due(6, 7.9)),
        [Rejected(6, Outcome::RejectedUnmeetable)]
    );
    assert_eq!(send(&mut bench, due(7, 8.0)), []);
}
