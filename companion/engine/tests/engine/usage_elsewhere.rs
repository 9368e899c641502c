//! A flow's requests that run at other engines count in the windows of the discipline `usage`, and engines report what they run.

use std::time::Duration;

use penstock_engine::input::{Band, ClassKey, PastUsage, Prompt, RunningUsage, Service, Usage};
use penstock_engine::policy::{Class, ClassSet, CostUnit, Discipline};
use penstock_engine::units::Tokens;
use penstock_engine::{Effect, Input, Policy, Request, RequestId};

use crate::support::{Harness, ShortEffect, gate, policy, request};

/// A window of 60 seconds, the classes `x` and `y`, and places for `slots` requests.
fn usage(slots: u64) -> Policy {
    let mut policy = policy();
    policy.gate = gate(slots, slots);
    policy.flows.discipline = Discipline::Usage;
    policy.flows.cost = CostUnit::Tokens;
    policy.usage_window = Duration::from_secs(60);
    policy.classes = classes(&["x", "y"]);
    policy
}

fn classes(names: &[&str]) -> Vec<ClassSet> {
    vec![ClassSet {
        classes: names.iter().map(|name| Class::new(name, 100)).collect(),
        ..ClassSet::default()
    }]
}

/// A request of 100 tokens of prompt and no output.
fn asks(id: u64, flow: &str, class: &str) -> Request {
    Request {
        class: ClassKey::Named(class.into()),
        prompt: Prompt::Tokens(Tokens(100)),
        expected_output: Some(Tokens(0)),
        ..request(id, flow, Band::Default)
    }
}

fn register(harness: &mut Harness, id: u64, flow: &str, class: &str) {
    harness.handle(Input::Register(asks(id, flow, class)));
}

fn running(flow: &str, class: &str, running: u64) -> RunningUsage {
    RunningUsage {
        band: Band::Sheddable,
        class: class.into(),
        flow: flow.into(),
        model: "m".into(),
        running: Tokens(running),
    }
}

fn elsewhere(harness: &mut Harness, changed: Vec<RunningUsage>) -> Vec<ShortEffect> {
    harness.handle(Input::SharedUsage { settled: Vec::new(), running: changed })
}

fn served(prompt: u64) -> Service {
    Service::Served(Usage { prompt: Some(Tokens(prompt)), cached: Some(Tokens(0)), output: Some(Tokens(0)) })
}

/// Ends a request at its estimate, and returns the requests that are dispatched then.
fn end(harness: &mut Harness, id: u64) -> Vec<u64> {
    let id = RequestId(id);
    let service = served(100);
    let effects = harness.handle(Input::Completed { id, service });
    let dispatched = effects.into_iter().filter_map(|effect| match effect {
        ShortEffect::Dispatched(id, _) => Some(id),
        _ => None,
    });
    dispatched.collect()
}

#[test]
fn what_runs_elsewhere_counts_until_it_ends_there() {
    let mut harness = Harness::new(usage(1), 1);
    register(&mut harness, 1, "third", "x");
    register(&mut harness, 2, "busy", "x");
    register(&mut harness, 3, "idle", "x");
    register(&mut harness, 4, "busy", "x");
    register(&mut harness, 5, "idle", "x");
    elsewhere(&mut harness, vec![running("busy", "y", 1_000)]);
    assert_eq!(harness.engine.snapshot().running_elsewhere, Tokens(1_000));
    assert_eq!(end(&mut harness, 1), [3]);
    elsewhere(&mut harness, vec![running("busy", "y", 150)]);
    assert_eq!(end(&mut harness, 3), [5], "100 against 150");
    elsewhere(&mut harness, vec![running("busy", "y", 0)]);
    assert_eq!(end(&mut harness, 5), [2]);
    assert_eq!(harness.engine.snapshot().running_elsewhere, Tokens(0));
}

#[test]
fn the_final_cost_replaces_the_estimate_in_one_step() {
    let mut harness = Harness::new(usage(1), 1);
    elsewhere(&mut harness, vec![running("busy", "x", 1_000)]);
    let settled = PastUsage {
        band: Band::Sheddable,
        class: "x".into(),
        flow: "busy".into(),
        model: "m".into(),
        cost: Tokens(700),
        ago: Duration::ZERO,
    };
    harness.handle(Input::SharedUsage { settled: vec![settled], running: vec![running("busy", "x", 0)] });
    let snapshot = harness.engine.snapshot();
    assert_eq!((snapshot.usage, snapshot.running_elsewhere), (Tokens(700), Tokens(0)));
}

#[test]
fn a_flow_is_kept_while_it_runs_elsewhere_and_no_longer() {
    let mut harness = Harness::new(usage(1), 1);
    elsewhere(&mut harness, vec![running("busy", "x", 5), running("busy", "unknown", 5)]);
    harness.advance_to(10_000.0);
    assert_eq!(harness.engine.snapshot().flows.len(), 1);
    elsewhere(&mut harness, vec![running("busy", "x", 0), running("never", "x", 0)]);
    assert_eq!(harness.engine.snapshot().flows.len(), 0);
    let mut fair = usage(1);
    fair.flows.discipline = Discipline::Wfq;
    let mut harness = Harness::new(fair, 1);
    elsewhere(&mut harness, vec![running("busy", "x", 5)]);
    assert_eq!(harness.engine.snapshot().flows.len(), 0, "there is no window");
}

/// The reported sums, in order: class and tokens.
fn reported(harness: &mut Harness, input: Input) -> Vec<(String, u64)> {
    let effects = harness.effects(input).into_iter();
    let sums = effects.filter_map(|effect| match effect {
        Effect::UsageRunning(usage) => {
            assert_eq!((usage.band, &*usage.flow, &*usage.model), (Band::Default, "acme", "m"));
            Some((usage.class.into(), usage.running.0))
        }
        _ => None,
    });
    sums.collect()
}

#[test]
fn every_change_of_what_runs_is_reported_with_the_new_sum() {
    let mut harness = Harness::new(usage(9), 1);
    harness.engine.report_running_usage(true);
    let sum = |tokens: u64| vec![("x".to_owned(), tokens)];
    let ask = |id| Input::Register(asks(id, "acme", "x"));
    assert_eq!(reported(&mut harness, ask(1)), sum(100));
    assert_eq!(reported(&mut harness, ask(2)), sum(200));
    assert_eq!(reported(&mut harness, ask(3)), sum(300));
    let (id, service) = (RequestId(1), served(7));
    assert_eq!(reported(&mut harness, Input::Settle { id, service }), sum(200));
    assert_eq!(reported(&mut harness, Input::Completed { id, service }), []);
    let id = RequestId(2);
    let refunded = Input::Completed { id, service: Service::Nothing };
    assert_eq!(reported(&mut harness, refunded), sum(100));
    let requeued = reported(&mut harness, Input::Requeue(RequestId(3)));
    assert_eq!(requeued, [sum(0), sum(100)].concat(), "it goes again at once");
}

#[test]
fn a_class_that_a_policy_removes_is_reported_to_run_nothing() {
    let mut harness = Harness::new(usage(9), 1);
    harness.engine.report_running_usage(true);
    for (id, class) in [(1, "x"), (2, "y"), (3, "y")] {
        reported(&mut harness, Input::Register(asks(id, "acme", class)));
    }
    let mut policy = usage(9);
    policy.classes = classes(&["x"]);
    let mut last = std::collections::BTreeMap::new();
    last.extend(reported(&mut harness, Input::Policy(Box::new(policy))));
    assert_eq!(last, [("x".to_owned(), 300), ("y".to_owned(), 0)].into());
}

#[test]
fn an_engine_reports_what_runs_only_on_request_and_with_windows() {
    for (discipline, requested) in [(Discipline::Usage, false), (Discipline::Wfq, true)] {
        let mut policy = usage(9);
        policy.flows.discipline = discipline;
        let mut harness = Harness::new(policy, 1);
        harness.engine.report_running_usage(requested);
        assert_eq!(reported(&mut harness, Input::Register(asks(1, "acme", "x"))), []);
    }
}
