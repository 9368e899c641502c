//! The discipline `usage` counts what an identity used of a model in all bands and classes of the pool.

use std::time::Duration;

use penstock_engine::input::{Band, ClassKey, PastUsage, Prompt, Service, Usage};
use penstock_engine::policy::{Class, ClassSet, CostUnit, Discipline};
use penstock_engine::units::Tokens;
use penstock_engine::{Input, Policy, Request, RequestId};

use crate::support::{Harness, ShortEffect, gate, policy, request};

/// Classes `x` and `y`, with one request granted by each visit, and places for `slots` requests.
fn usage(slots: u64) -> Policy {
    let mut policy = policy();
    policy.gate = gate(slots, slots);
    policy.flows.discipline = Discipline::Usage;
    policy.flows.cost = CostUnit::Tokens;
    policy.usage_window = Duration::from_secs(60);
    policy.classes =
        vec![ClassSet { classes: vec![Class::new("x", 100), Class::new("y", 100)], ..ClassSet::default() }];
    policy
}

/// A request of 100 tokens of prompt and no output.
fn asks(id: u64, flow: &str, band: Band, class: &str) -> Request {
    let mut request = request(id, flow, band);
    request.class = ClassKey::Named(class.into());
    request.prompt = Prompt::Tokens(Tokens(100));
    request.expected_output = Some(Tokens(0));
    request
}

/// Ends a request that used so many tokens, and returns the requests that are dispatched then.
fn end(harness: &mut Harness, id: u64, prompt: u64) -> Vec<u64> {
    let service = Service::Served(Usage {
        prompt: Some(Tokens(prompt)),
        cached: Some(Tokens(0)),
        output: Some(Tokens(0)),
    });
    let id = RequestId(id);
    let effects = harness.handle(Input::Completed { id, service });
    let dispatched = effects.into_iter().filter_map(|effect| match effect {
        ShortEffect::Dispatched(id, _) => Some(id),
        _ => None,
    });
    dispatched.collect()
}

fn register(harness: &mut Harness, request: Request) {
    harness.handle(Input::Register(request));
}

#[test]
fn usage_in_one_band_counts_in_another() {
    let mut harness = Harness::new(usage(1), 1);
    register(&mut harness, asks(1, "spread", Band::Critical, "x"));
    register(&mut harness, asks(2, "spread", Band::Default, "x"));
    register(&mut harness, asks(3, "other", Band::Default, "x"));
    assert_eq!(end(&mut harness, 1, 500), [3], "500 tokens against none");
    assert_eq!(end(&mut harness, 3, 400), [2]);
}

#[test]
fn usage_in_one_class_counts_in_another() {
    let mut harness = Harness::new(usage(1), 1);
    register(&mut harness, asks(1, "spread", Band::Default, "y"));
    for id in [2, 3] {
        register(&mut harness, asks(id, "spread", Band::Default, "x"));
    }
    for id in [4, 5] {
        register(&mut harness, asks(id, "other", Band::Default, "x"));
    }
    assert_eq!(end(&mut harness, 1, 250), [4]);
    assert_eq!(end(&mut harness, 4, 100), [5], "100 against 250");
    assert_eq!(end(&mut harness, 5, 200), [2], "300 against 250");
}

#[test]
fn what_runs_in_another_class_counts_at_its_estimate() {
    let mut harness = Harness::new(usage(2), 1);
    register(&mut harness, asks(1, "spread", Band::Default, "y"));
    register(&mut harness, asks(2, "third", Band::Default, "x"));
    register(&mut harness, asks(3, "spread", Band::Default, "x"));
    register(&mut harness, asks(4, "other", Band::Default, "x"));
    assert_eq!(end(&mut harness, 2, 100), [4], "1 runs in the other class");
}

#[test]
fn a_refund_in_another_class_gives_the_place_back() {
    let mut harness = Harness::new(usage(2), 1);
    register(&mut harness, asks(1, "spread", Band::Default, "y"));
    register(&mut harness, asks(2, "third", Band::Default, "x"));
    register(&mut harness, asks(3, "spread", Band::Default, "x"));
    register(&mut harness, asks(4, "other", Band::Default, "x"));
    let refunded = Input::Completed { id: RequestId(1), service: Service::Nothing };
    let effects = harness.handle(refunded);
    assert!(effects.contains(&ShortEffect::Dispatched(3, 1)), "{effects:?}");
}

#[test]
fn usage_of_another_model_or_weight_counts_as_before() {
    let mut policy = usage(1);
    policy.flows.weights.insert("heavy".into(), 10.0);
    let mut harness = Harness::new(policy, 1);
    let past = |flow: &str, model: &str, cost| PastUsage {
        band: Band::Sheddable,
        class: "y".into(),
        flow: flow.into(),
        model: model.into(),
        cost: Tokens(cost),
        ago: Duration::ZERO,
    };
    let model = asks(0, "", Band::Default, "x").model.requested;
    register(&mut harness, asks(1, "third", Band::Critical, "x"));
    for (id, flow) in [(2, "light"), (3, "heavy"), (4, "elsewhere")] {
        register(&mut harness, asks(id, flow, Band::Default, "x"));
    }
    harness.handle(Input::PastUsage(vec![
        past("light", &model, 500),
        past("heavy", &model, 2_000),
        past("elsewhere", "another", 9_000),
    ]));
    assert_eq!(end(&mut harness, 1, 100), [4], "nothing of this model");
    assert_eq!(end(&mut harness, 4, 300), [3], "2,000 at weight 10");
}

#[test]
fn usage_that_leaves_the_window_of_one_class_no_longer_counts_in_another() {
    let mut harness = Harness::new(usage(1), 1);
    register(&mut harness, asks(1, "spread", Band::Default, "y"));
    end(&mut harness, 1, 500);
    harness.advance_to(50.0);
    register(&mut harness, asks(2, "other", Band::Default, "y"));
    register(&mut harness, asks(3, "spread", Band::Default, "x"));
    register(&mut harness, asks(4, "other", Band::Default, "x"));
    assert_eq!(harness.engine.snapshot().usage, Tokens(600));
    harness.advance_to(61.0);
    assert_eq!(end(&mut harness, 2, 100), [3]);
    assert_eq!(harness.engine.snapshot().usage, Tokens(200));
}

#[test]
fn a_tally_survives_changes_of_classes_and_window() {
    let mut harness = Harness::new(usage(1), 1);
    register(&mut harness, asks(1, "spread", Band::Default, "y"));
    register(&mut harness, asks(2, "spread", Band::Default, "x"));
    register(&mut harness, asks(3, "other", Band::Default, "x"));
    let mut policy = usage(1);
    policy.usage_window = Duration::from_secs(600);
    policy.classes[0].classes.push(Class::new("z", 100));
    harness.handle(Input::Policy(Box::new(policy)));
    assert_eq!(end(&mut harness, 1, 500), [3]);
}
