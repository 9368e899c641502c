//! What a flow runs, as its engine reports it to others.

use Band::{Critical, Default, Sheddable};
use penstock_engine::effect::BudgetReport;
use penstock_engine::input::{Band, BudgetRunning, ClassKey, ModelName};
use penstock_engine::policy::{Class, ClassSet, Over};
use penstock_engine::units::Tokens;
use penstock_engine::{Effect, Input, Request};

use super::{budget, sized, sliding, tokens, used, with_budget};
use crate::support::*;

/// A harness whose flows differ by band, class and model, and that reports.
fn harness(over: Over) -> Harness {
    let mut policy = with_budget(over, &[tokens(100, sliding(60))]);
    policy.flows.budgets.push(budget("g", over, &[tokens(100, sliding(60))]));
    let class = |family: &str| Class { family: family.into(), bucket: None, ..Class::new(family, 100) };
    policy.classes = vec![ClassSet {
        default_family: Some("chat".into()),
        buckets: Vec::new(),
        classes: vec![class("chat"), class("batch")],
    }];
    policy.per_model = true;
    let mut harness = Harness::new(policy, 1);
    harness.engine.report_budgets(true);
    harness
}

fn of_class(class: &str, model: &str, request: Request) -> Input {
    Input::Register(Request {
        class: ClassKey::Family(class.into()),
        model: ModelName::from(model),
        ..request
    })
}

/// The flow, tokens and requests of the last report among the effects of `input`.
fn last_running(harness: &mut Harness, input: Input) -> Option<(String, u64, u64)> {
    let effects = harness.effects(input).into_iter();
    let mut running = effects.filter_map(|effect| match effect {
        Effect::Budget(BudgetReport::Running(running)) => Some(running),
        _ => None,
    });
    running
        .next_back()
        .map(|BudgetRunning { flow, tokens: Tokens(tokens), requests }| (flow.into(), tokens, requests))
}

fn of_f(tokens: u64, requests: u64) -> Option<(String, u64, u64)> {
    Some(("f".into(), tokens, requests))
}

#[test]
fn what_a_flow_runs_is_the_sum_over_its_bands_classes_and_models() {
    let mut harness = harness(Over::Refuse);
    let harness = &mut harness;
    let critical = of_class("chat", "m", sized(1, "f", Critical, 10));
    assert_eq!(last_running(harness, critical), of_f(10, 1));
    let batch = of_class("batch", "m", sized(2, "f", Default, 20));
    assert_eq!(last_running(harness, batch), of_f(30, 2));
    let sheddable = of_class("chat", "m", sized(3, "f", Sheddable, 30));
    assert_eq!(last_running(harness, sheddable), of_f(60, 3));
    let other_model = of_class("chat", "n", sized(4, "f", Sheddable, 5));
    assert_eq!(last_running(harness, other_model), of_f(65, 4));
    let other_flow = of_class("chat", "m", sized(5, "g", Default, 7));
    assert_eq!(last_running(harness, other_flow), Some(("g".into(), 7, 1)));
    assert_eq!(last_running(harness, used(2, 1)), of_f(45, 3));
}

#[test]
fn demoted_requests_are_left_out_of_what_a_flow_runs() {
    let mut harness = harness(Over::Demote);
    let harness = &mut harness;
    let whole = of_class("chat", "m", sized(1, "f", Default, 100));
    assert_eq!(last_running(harness, whole), of_f(100, 1));
    let demoted = of_class("chat", "m", sized(2, "f", Default, 20));
    assert_eq!(last_running(harness, demoted), None);
    assert_eq!(last_running(harness, used(2, 20)), None);
    assert_eq!(last_running(harness, used(1, 100)), of_f(0, 0));
}
