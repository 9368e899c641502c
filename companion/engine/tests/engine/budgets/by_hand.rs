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
    BudgetUsage {
        flow: "f".into(),
        unit: CostUnit::Tokens,
        period,
        kind,
        used_at,
        settled_ago: Duration::ZERO,
        amount,
    }
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

fn reset(seconds_ago: u64) -> Input {
    Input::BudgetResets(vec![BudgetReset { flow: "f".into(), ago: Duration::from_secs(seconds_ago) }])
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
        [BudgetReport::Reset("f".into()), BudgetReport::Running(running.clone())]
    );
    assert_eq!(reports(&mut harness, used(1, 400)), [], "its settlement is late");
    assert_eq!(
        reports(&mut harness, Input::ResetBudget("f2".into())),
        [BudgetReport::Reset("f2".into())],
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
    let forgotten = reports(&mut harness, reset(1));
    assert_eq!(forgotten[0], BudgetReport::Forgotten("f".into()));
    assert_eq!(amounts(&mut harness, "f"), (0, 0, 100));
    assert_eq!(reports(&mut harness, used(1, 150)), []);
    assert_eq!(amounts(&mut harness, "f"), (0, 0, 100));
    assert_eq!(reports(&mut harness, reset(3)), [], "an older one has nothing to forget any more");
}

#[test]
fn a_held_request_goes_when_another_engine_resets_its_flow() {
    let mut harness = Harness::new(with_budget(Over::Hold, &[requests(1, BudgetPeriod::Day)]), 1);
    assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(harness.register(2, "f", Default), []);
    assert_eq!(harness.handle(reset(0)), [Dispatched(2, 1)]);
}

#[test]
fn what_was_used_before_a_reset_is_ignored_however_late_it_is_reported() {
    let mut harness = minute();
    harness.handle(Input::ResetBudget("f".into()));
    harness.advance_to(1_010.0);
    let used = |seconds, amount| usage(UsageKind::Used, sliding(60), ago(seconds), amount);
    harness.handle(settled(&[used(11, 1), used(10, 20), used(5, 30), used(30, 2)]));
    assert_eq!(amounts(&mut harness, "f"), (50, 0, 50));
    let more = usage(UsageKind::ToppedUp, sliding(60), ago(12), 40);
    harness.handle(settled(&[more]));
    assert_eq!(amounts(&mut harness, "f"), (50, 0, 50), "nor are top-ups kept");
}

#[test]
fn what_was_settled_before_a_reset_is_ignored_also_in_the_same_day() {
    let mut harness = Harness::new(with_budget(Over::Refuse, &[tokens(100, BudgetPeriod::Day)]), 1);
    harness.handle(Input::Utc(Duration::from_secs(20_000 * DAY + 7)));
    harness.handle(Input::ResetBudget("f".into()));
    harness.advance_to(2.0);
    let settled_ago = |seconds, amount| BudgetUsage {
        settled_ago: Duration::from_secs(seconds),
        ..usage(UsageKind::Used, BudgetPeriod::Day, since(20_000), amount)
    };
    harness.handle(settled(&[settled_ago(3, 40), settled_ago(2, 5), settled_ago(1, 6)]));
    assert_eq!(amounts(&mut harness, "f"), (11, 0, 89));
}

#[test]
fn a_day_forgets_what_was_used_in_the_days_before_a_reset() {
    let mut harness = Harness::new(with_budget(Over::Refuse, &[tokens(100, BudgetPeriod::Month)]), 1);
    // 1 March 2024, an hour after midnight.
    harness.handle(Input::Utc(Duration::from_secs(1_709_251_200 + 3_600)));
    harness.handle(reset(600));
    let february = UsedAt::Since(1_706_745_600);
    let march = UsedAt::Since(1_709_251_200);
    let used = |used_at, amount| usage(UsageKind::Used, BudgetPeriod::Month, used_at, amount);
    harness.handle(Input::BudgetHistory(vec![used(february, 250), used(march, 30)]));
    assert_eq!(amounts(&mut harness, "f"), (30, 0, 70), "no debt of February");
}

#[test]
fn a_reset_from_before_the_start_leaves_what_was_used_since() {
    let mut harness = minute();
    harness.handle(Input::Register(sized(1, "f", Default, 60)));
    harness.handle(used(1, 60));
    harness.advance_to(1_020.0);
    // The store answers late: it has a reset of 40 s ago, and what was used after it and before it.
    assert_eq!(reports(&mut harness, reset(40)), []);
    let used = |seconds, amount| usage(UsageKind::Used, sliding(60), ago(seconds), amount);
    harness.handle(Input::BudgetHistory(vec![used(30, 25), used(50, 99)]));
    assert_eq!(amounts(&mut harness, "f"), (85, 0, 15));
}

#[test]
fn a_reset_is_forgotten_after_an_hour() {
    let hours = tokens(100, sliding(10 * 3_600));
    let mut harness = Harness::new(with_budget(Over::Refuse, &[hours]), 1);
    harness.handle(Input::ResetBudget("f".into()));
    let old = || usage(UsageKind::Used, sliding(10 * 3_600), ago(2 * 3_600), 40);
    harness.advance_to(3_000.0);
    harness.handle(settled(&[old()]));
    assert_eq!(harness.engine.budgets(), []);
    harness.advance_to(3_601.0);
    harness.handle(Input::ResetBudget("f2".into()));
    harness.handle(settled(&[old()]));
    assert_eq!(amounts(&mut harness, "f"), (40, 0, 60));
}
