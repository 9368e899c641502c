//! Predicted waits: the retry-after before anything was measured, and requests that would miss their deadline.

use std::time::Duration;

use Band::{Critical, Default};
use ShortEffect::{Bypassed, Dispatched, Rejected, Settled};
use penstock_engine::effect::Reject;
use penstock_engine::input::{Band, ClassKey};
use penstock_engine::policy::{BandMode, Class, ClassSet, Discipline};
use penstock_engine::{Allowance, Effect, Input, Outcome, Policy, Request, RequestId};

use crate::support::allowances::*;
use crate::support::*;

/// The retry-after of the only effect, a rejection.
fn retry_after(harness: &mut Harness, request: Request) -> Duration {
    match &harness.effects(Input::Register(request))[..] {
        [Effect::Reject(Reject { retry_after: Some(after), .. })] => *after,
        other => panic!("{other:?}"),
    }
}

#[test]
fn before_any_measurement_retry_after_comes_from_the_predicted_rate() {
    let rated = |rate| Allowance { rate, ..allowance(13.0) };
    let refused = |allowances: &[Allowance]| {
        let mut policy = auto(8);
        policy.queue.total_capacity = 20;
        let mut harness = harness_with_policy(policy, allowances);
        for id in 1..=20 + allowances.len() as u64 {
            harness.register(id, "f", Default);
        }
        assert_eq!(harness.engine.waiting(), 20);
        harness
    };
    let between = |after: Duration, seconds: f64| {
        let seconds = Duration::from_secs_f64(seconds);
        assert!(after >= seconds && after <= seconds * 11 / 10, "{after:?}");
    };
    let mut known = refused(&[rated(Some(1.5)), rated(Some(0.5))]);
    between(retry_after(&mut known, request(90, "f", Default)), 10.0);
    let position = known.engine.position(RequestId(12)).expect("request 12 waits");
    assert_eq!((position.ahead, position.estimate), (9, Duration::from_millis(4_500)));
    let mut unknown = refused(&[rated(None), rated(None)]);
    between(retry_after(unknown.advance_to(4.0), request(90, "f", Default)), 80.0);
    let mut half = refused(&[rated(None), rated(Some(1.0))]);
    between(retry_after(half.advance_to(4.0), request(90, "f", Default)), 80.0);
    // Once a request was served, the measured rate counts.
    known.advance_to(4.0).complete(1);
    known.register(92, "f", Default);
    between(retry_after(&mut known, request(91, "f", Default)), 80.0);
}

#[test]
fn a_request_that_would_miss_its_deadline_is_rejected_at_once() {
    let mut policy = auto(8);
    policy.reject_unmeetable = true;
    // The first token of a request alone at its endpoint: 13 + 100 ms, times 2.
    let rated = Allowance { ttft_bias: 2.0, rate: Some(2.0), ..allowance(13.0) };
    let mut harness = harness_with_policy(policy, &[rated]);
    let due = |id, milliseconds: u64| Request {
        deadline: Some(time(milliseconds as f64 / 1e3)),
        ..request(id, "f", Default)
    };
    let unmeetable = |id| [Rejected(id, Outcome::RejectedUnmeetable)];
    assert_eq!(send(&mut harness, due(1, 225)), unmeetable(1));
    assert_eq!(send(&mut harness, due(2, 226)), [Bypassed(2, 1)]);
    // No request is ahead; the iteration takes at most 13 ms when it goes.
    assert_eq!(send(&mut harness, due(3, 225)), unmeetable(3));
    assert_eq!(send(&mut harness, due(4, 226)), []);
    // One request is ahead, which takes half a second.
    assert_eq!(send(&mut harness, due(5, 725)), unmeetable(5));
    assert_eq!(send(&mut harness, due(6, 726)), []);
    assert_eq!(send(&mut harness, request(7, "f", Default)), [], "it has no deadline");
    // Less critical requests aren't ahead of it.
    let critical = Request { band: Critical, ..due(8, 226) };
    assert_eq!(send(&mut harness, critical), []);
    let counted = harness.engine.snapshot().counters;
    assert_eq!(counted.outcome(Outcome::RejectedUnmeetable), 3);
}

#[test]
fn the_wait_counts_only_the_fair_share_of_other_flows() {
    let mut policy = auto(8);
    policy.reject_unmeetable = true;
    policy.flows.weights.insert("heavy".into(), 3.0);
    let rated = Allowance { rate: Some(1.0), ..allowance(13.0) };
    let due =
        |id, flow: &str, seconds| Request { deadline: Some(time(seconds)), ..request(id, flow, Default) };
    let filled = |policy: &Policy| {
        let mut harness = harness_with_policy(policy.clone(), &[rated]);
        for id in 0..=20 {
            harness.register(id, "heavy", Default);
        }
        harness
    };
    let mut harness = filled(&policy);
    // 20 wait; 3 of them go before the first request of a flow with a third of the weight, and 6 before its second.
    let unmeetable = |id| [Rejected(id, Outcome::RejectedUnmeetable)];
    assert_eq!(send(&mut harness, due(30, "light", 3.1)), unmeetable(30));
    assert_eq!(send(&mut harness, due(31, "light", 3.2)), []);
    assert_eq!(send(&mut harness, due(32, "light", 7.1)), unmeetable(32));
    assert_eq!(send(&mut harness, due(33, "light", 7.2)), []);
    assert_eq!(
        send(&mut harness, due(34, "heavy", 22.1)),
        unmeetable(34),
        "20 of its own flow and 2 of the other"
    );
    assert_eq!(send(&mut harness, due(35, "heavy", 22.2)), []);
    policy.flows.discipline = Discipline::Fifo;
    assert_eq!(send(&mut filled(&policy), due(30, "light", 20.1)), unmeetable(30));
    assert_eq!(send(&mut filled(&policy), due(30, "light", 20.2)), []);
}

/// The retry-after of a newcomer of `flow` that is refused behind 100 requests of `heavy`, of which one is served a second.
fn refused_beside_heavy(flow: &str, change: impl FnOnce(&mut Policy)) -> f64 {
    let mut harness = busy_with(|policy| {
        policy.queue.total_capacity = 101;
        change(policy);
    });
    for id in 2..=102 {
        harness.register(id, "heavy", Default);
    }
    harness.advance_to(1.0).complete(1);
    harness.register(103, "heavy", Default);
    let after = retry_after(&mut harness, request(104, flow, Default)).as_secs_f64();
    assert_eq!(harness.engine.waiting(), 101);
    after
}

fn is_about(seconds: f64, expected: f64) {
    let most = (expected * 1.1).min(120.0) + 0.01;
    assert!((expected..=most).contains(&seconds), "{seconds} s, not {expected} s");
}

#[test]
fn retry_after_counts_what_goes_before_the_flow_and_not_the_whole_queue() {
    use Discipline::*;
    for discipline in [Wfq, RoundRobin, Vtc, Drr, Usage] {
        let with = |policy: &mut Policy| {
            policy.flows.discipline = discipline;
            policy.queue.flow_capacity = 1_000;
        };
        is_about(refused_beside_heavy("light", with), 1.0);
        is_about(refused_beside_heavy("heavy", with), 101.0);
    }
    let fifo = |policy: &mut Policy| {
        policy.flows.discipline = Fifo;
        policy.queue.flow_capacity = 1_000;
    };
    is_about(refused_beside_heavy("light", fifo), 101.0);
}

#[test]
fn retry_after_counts_other_bands_by_their_weights() {
    let refused = |mode: BandMode| {
        let mut harness = busy_with(|policy| {
            policy.bands.mode = mode;
            policy.queue.total_capacity = 30;
        });
        for id in 2..=31 {
            harness.register(id, "f", if id <= 11 { Default } else { Critical });
        }
        harness.advance_to(1.0).complete(1);
        harness.register(40, "f", Critical);
        retry_after(&mut harness, request(50, "f", Band::Sheddable)).as_secs_f64()
    };
    is_about(refused(BandMode::Strict), 30.0);
    // In one turn of a sheddable request each other band has two.
    is_about(refused(BandMode::Weighted([2.0, 2.0, 1.0])), 4.0);
    is_about(refused(BandMode::Weighted([100.0, 2.0, 1.0])), 22.0);
}

#[test]
fn retry_after_counts_other_classes_by_their_quanta() {
    let class = |name: &str, quantum| Class::new(name, quantum);
    let mut harness = busy_with(|policy| {
        policy.classes =
            vec![ClassSet { classes: vec![class("heavy", 300), class("light", 100)], ..ClassSet::default() }];
        policy.queue.total_capacity = 50;
    });
    let of_class =
        |id, name: &str| Request { class: ClassKey::Family(name.into()), ..request(id, "f", Default) };
    for id in 2..=51 {
        harness.handle(Input::Register(of_class(id, "heavy")));
    }
    harness.advance_to(1.0).complete(1);
    harness.handle(Input::Register(of_class(52, "heavy")));
    is_about(retry_after(&mut harness, of_class(60, "light")).as_secs_f64(), 3.0);
    is_about(retry_after(&mut harness, of_class(61, "heavy")).as_secs_f64(), 50.0);
}

#[test]
fn predictions_reject_no_request_unless_enabled() {
    let mut harness = harness(&[Allowance { rate: Some(0.01), ..allowance(13.0) }]);
    for id in 1..=4 {
        let due = Request { deadline: Some(time(0.001)), ..request(id, "f", Default) };
        assert!(matches!(send(&mut harness, due)[..], [] | [Bypassed(..)]));
    }
}

#[test]
fn without_a_measured_rate_a_request_waits() {
    let mut policy = policy();
    policy.reject_unmeetable = true;
    policy.gate = gate(1, 1);
    let mut harness = Harness::new(policy, 1);
    let due = |id, seconds| Request { deadline: Some(time(seconds)), ..request(id, "f", Default) };
    assert_eq!(send(&mut harness, due(1, 0.001)), [Bypassed(1, 1)]);
    for id in 2..=5 {
        assert_eq!(send(&mut harness, due(id, 30.0)), []);
    }
    // The measured rate is one request in two seconds, and three are ahead.
    assert_eq!(harness.advance_to(2.0).complete(1), [Settled(1, 1), Dispatched(2, 1)]);
    assert_eq!(send(&mut harness, due(6, 7.9)), [Rejected(6, Outcome::RejectedUnmeetable)]);
    assert_eq!(send(&mut harness, due(7, 8.0)), []);
}
