//! Top-ups and resets, here and at other engines.

use std::time::Duration;

use Band::Default;
use ShortEffect::{Bypassed, Dispatched, Rejected};
use penstock_engine::effect::BudgetReport;
use penstock_engine::input::{Band, BudgetReset, BudgetRunning, BudgetUsage, UsageKind, UsedAt};
use penstock_engine::policy::{BudgetPeriod, CostUnit, Over};
use penstock_engine::units::Tokens;
use penstock_engine::{Input, Outcome};

use super::{amounts, requests, sized, sliding, tokens, used, window, with_budget};
use crate::support::*;

const DAY: u64 = 86_400;

fn usage(kind: UsageKind, period: BudgetPeriod, used_at: UsedAt, amount: u64) -> BudgetUsage {
    BudgetUsage { flow: "f".into(), unit: CostUnit::Tokens, period, kind, used_at, amount }
}

fn ago(seconds: u64) -> UsedAt {
    UsedAt::Ago(Duration::from_secs(seconds))
}

fn since(day: u64) -> UsedAt {
    UsedAt::Since(i64::try_from(day * DAY).expect("small"))
}

fn settled(used: &[BudgetUsage]) -> Input {
    Input::BudgetUsage { settled: used.to_vec(), running: Vec::new() }
}

fn top_up(amount: u64) -> Input {
    Input::TopUp { flow: "f".into(), tokens: Tokens(amount) }
}

fn reset(number: u64) -> Input {
    Input::BudgetResets(vec![BudgetReset::Elsewhere { flow: "f".into(), number }])
}

/// What an input reports of budgets.
fn reports(harness: &mut Harness, input: Input) -> Vec<BudgetReport> {
    harness.engine.report_budgets(true);
    let reports = super::elsewhere::reports(harness, input);
    harness.engine.report_budgets(false);
    reports
}

/// A budget of 100 tokens in a minute.
fn minute() -> Harness {
    let mut harness = Harness::new(with_budget(Over::Refuse, &[tokens(100, sliding(60))]), 1);
    harness.advance_to(1_000.0);
    harness
}

#[test]
fn a_top_up_is_reported_for_each_window_of_tokens() {
    let windows = [tokens(100, sliding(60)), requests(9, sliding(60)), tokens(500, BudgetPeriod::Day)];
    let mut harness = Harness::new(with_budget(Over::Refuse, &windows), 1);
    harness.handle(Input::Utc(Duration::from_secs(20_000 * DAY + 7)));
    let expected = [
        usage(UsageKind::ToppedUp, sliding(60), ago(0), 30),
        usage(UsageKind::ToppedUp, BudgetPeriod::Day, since(20_000), 30),
    ];
    assert_eq!(reports(&mut harness, top_up(30)), expected.map(BudgetReport::Used));
    let other = Input::TopUp { flow: "g".into(), tokens: Tokens(5) };
    assert_eq!(reports(&mut harness, other), [], "it has no budget");
}

#[test]
fn a_top_up_at_another_engine_is_room_here_until_it_ends_there() {
    let mut harness = minute();
    harness.handle(Input::Register(sized(1, "f", Default, 130)));
    harness.handle(used(1, 130));
    harness.handle(settled(&[usage(UsageKind::ToppedUp, sliding(60), ago(40), 50)]));
    let now = window(&mut harness, "f").expect("it is used");
    assert_eq!((now.used, now.debt, now.remaining), (130, 0, 20));
    harness.advance_to(1_020.9);
    assert_eq!(amounts(&mut harness, "f").2, 20);
    harness.advance_to(1_021.0);
    assert_eq!(amounts(&mut harness, "f").2, 0);
}

#[test]
fn a_top_up_of_a_day_ends_with_it_also_where_it_is_restored() {
    let mut harness = Harness::new(with_budget(Over::Refuse, &[tokens(100, BudgetPeriod::Day)]), 1);
    harness.handle(Input::Utc(Duration::from_secs(20_001 * DAY - 10)));
    harness.handle(Input::BudgetHistory(vec![
        usage(UsageKind::ToppedUp, BudgetPeriod::Day, since(20_000), 50),
        usage(UsageKind::Used, BudgetPeriod::Day, since(20_000), 120),
        usage(UsageKind::ToppedUp, BudgetPeriod::Day, since(19_999), 70),
    ]));
    let now = window(&mut harness, "f").expect("it is used");
    assert_eq!((now.used, now.remaining), (120, 30));
    harness.advance_to(10.0);
    assert_eq!(amounts(&mut harness, "f").2, 100, "no debt is left of that day");
}

#[test]
fn a_refund_goes_back_to_the_top_up() {
    let mut harness = minute();
    harness.handle(Input::Register(sized(1, "f", Default, 60)));
    harness.handle(used(1, 60));
    harness.handle(top_up(50));
    harness.handle(Input::Register(sized(2, "f", Default, 40)));
    harness.handle(used(2, 10));
    assert_eq!(amounts(&mut harness, "f"), (70, 0, 80));
    harness.advance_to(1_061.0);
    assert_eq!(amounts(&mut harness, "f").2, 100);
}

#[test]
fn a_reset_is_reported_and_what_runs_is_no_longer() {
    let mut harness = minute();
    harness.handle(Input::Register(sized(1, "f", Default, 500)));
    let running = BudgetRunning { flow: "f".into(), tokens: Tokens(0), requests: 0 };
    assert_eq!(
        reports(&mut harness, Input::ResetBudget("f".into())),
        [BudgetReport::Reset { flow: "f".into(), number: 1 }, BudgetReport::Running(running.clone())]
    );
    assert_eq!(reports(&mut harness, used(1, 400)), [], "its settlement is late");
    assert_eq!(
        reports(&mut harness, Input::ResetBudget("f2".into())),
        [BudgetReport::Reset { flow: "f2".into(), number: 2 }],
        "other engines may know it"
    );
    assert_eq!(reports(&mut harness, Input::ResetBudget("g".into())), []);
}

#[test]
fn a_reset_at_another_engine_forgets_what_was_used_and_runs_here() {
    let mut harness = minute();
    harness.handle(Input::Register(sized(1, "f", Default, 150)));
    assert_eq!(harness.register(2, "f", Default), [Rejected(2, Outcome::RejectedBudget)]);
    harness.advance_to(1_005.0);
    let forgotten = reports(&mut harness, reset(7));
    assert_eq!(forgotten[0], BudgetReport::Forgotten { flow: "f".into(), number: 7 });
    assert_eq!(amounts(&mut harness, "f"), (0, 0, 100));
    assert_eq!(reports(&mut harness, used(1, 150)), []);
    assert_eq!(amounts(&mut harness, "f"), (0, 0, 100));
    for flow in ["f2", "without a budget"] {
        let unknown = BudgetReset::Elsewhere { flow: flow.into(), number: 8 };
        assert_eq!(
            reports(&mut harness, Input::BudgetResets(vec![unknown])),
            [BudgetReport::Forgotten { flow: flow.into(), number: 8 }],
            "what was reported of it may still be on its way"
        );
    }
}

#[test]
fn a_held_request_goes_when_another_engine_resets_its_flow() {
    let mut harness = Harness::new(with_budget(Over::Hold, &[requests(1, BudgetPeriod::Day)]), 1);
    assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "f", Default), []);
    assert_eq!(harness.handle(reset(0)), [Dispatched(2, 1)]);
}

/// The budget of [`minute`], which other engines share, and have used 30 tokens of.
fn shared_minute() -> Harness {
    let mut harness = minute();
    harness.engine.share_budgets(true);
    harness.handle(used_elsewhere(30));
    harness
}

/// Resets the flow here; returns the reset's number.
fn reset_here(harness: &mut Harness) -> u64 {
    match &reports(harness, Input::ResetBudget("f".into()))[..] {
        [BudgetReport::Reset { number, .. }, ..] => *number,
        other => panic!("{other:?}"),
    }
}

fn reset_comes(number: u64) -> Input {
    Input::BudgetResets(vec![BudgetReset::Here { flow: "f".into(), number }])
}

fn used_elsewhere(amount: u64) -> Input {
    settled(&[usage(UsageKind::Used, sliding(60), ago(0), amount)])
}

#[test]
fn usage_elsewhere_is_ignored_from_a_reset_on_until_the_reset_comes() {
    let mut harness = shared_minute();
    let number = reset_here(&mut harness);
    harness.handle(used_elsewhere(40));
    harness.handle(settled(&[usage(UsageKind::ToppedUp, sliding(60), ago(0), 1)]));
    harness.handle(Input::BudgetHistory(vec![usage(UsageKind::Used, sliding(60), ago(5), 50)]));
    assert_eq!(amounts(&mut harness, "f"), (0, 0, 100));
    let other = BudgetUsage { flow: "f2".into(), ..usage(UsageKind::Used, sliding(60), ago(0), 3) };
    harness.handle(settled(&[other]));
    assert_eq!(amounts(&mut harness, "f2"), (3, 0, 97), "no other flow is reset");
    harness.handle(reset_comes(number));
    harness.handle(used_elsewhere(5));
    assert_eq!(amounts(&mut harness, "f"), (5, 0, 95));
}

#[test]
fn only_the_last_of_two_resets_ends_the_wait() {
    let mut harness = shared_minute();
    let first = reset_here(&mut harness);
    let second = reset_here(&mut harness);
    harness.handle(reset_comes(first));
    harness.handle(used_elsewhere(40));
    assert_eq!(amounts(&mut harness, "f").0, 0);
    harness.handle(reset_comes(second));
    harness.handle(used_elsewhere(5));
    assert_eq!(amounts(&mut harness, "f").0, 5);
}

#[test]
fn an_earlier_reset_elsewhere_forgets_nothing_that_was_used_after_the_one_here() {
    let mut harness = shared_minute();
    let number = reset_here(&mut harness);
    harness.handle(Input::Register(sized(1, "f", Default, 30)));
    harness.handle(used(1, 30));
    assert_eq!(reports(&mut harness, reset(7)), [], "what was reported since then is later");
    assert_eq!(amounts(&mut harness, "f").0, 30);
    harness.handle(reset_comes(number));
    reports(&mut harness, reset(8));
    assert_eq!(amounts(&mut harness, "f").0, 0);
}

#[test]
fn a_reset_that_never_comes_is_waited_for_an_hour() {
    let mut harness = shared_minute();
    reset_here(&mut harness);
    harness.advance_to(4_599.0);
    harness.handle(used_elsewhere(5));
    assert_eq!(amounts(&mut harness, "f").0, 0);
    harness.advance_to(4_601.0);
    harness.handle(used_elsewhere(5));
    assert_eq!(amounts(&mut harness, "f").0, 5);
}

#[test]
fn a_reset_is_not_waited_for_where_no_engine_shares_the_budget() {
    let mut harness = minute();
    reset_here(&mut harness);
    harness.handle(used_elsewhere(5));
    assert_eq!(amounts(&mut harness, "f").0, 5);
}
