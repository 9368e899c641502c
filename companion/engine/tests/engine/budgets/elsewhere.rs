//! Usage of other engines, and from before the engine started.

use std::time::Duration;

use Band::Default;
use ShortEffect::{Bypassed, Dispatched, Rejected};
use penstock_engine::effect::BudgetReport;
use penstock_engine::input::{Band, BudgetRunning, BudgetUsage, UsageKind, UsedAt};
use penstock_engine::policy::{BudgetPeriod, CostUnit, Over};
use penstock_engine::units::Tokens;
use penstock_engine::{Effect, Input, Outcome};

use super::{amounts, requests, sized, sliding, tokens, used, window, with_budget};
use crate::support::*;

fn running(flow: &str, tokens: u64, requests: u64) -> BudgetRunning {
    BudgetRunning { flow: flow.into(), tokens: Tokens(tokens), requests }
}

fn settled(period: BudgetPeriod, used_at: UsedAt, amount: u64) -> BudgetUsage {
    BudgetUsage { flow: "f".into(), unit: CostUnit::Tokens, period, kind: UsageKind::Used, used_at, amount }
}

fn shared(settled: &[BudgetUsage], running: &[BudgetRunning]) -> Input {
    Input::BudgetUsage { settled: settled.to_vec(), running: running.to_vec() }
}

/// The budget's reports among the effects of an input.
pub(super) fn reports(harness: &mut Harness, input: Input) -> Vec<BudgetReport> {
    let effects = harness.effects(input).into_iter();
    let reports = effects.filter_map(|effect| match effect {
        Effect::Budget(report) => Some(report),
        _ => None,
    });
    reports.collect()
}

#[test]
fn what_other_engines_settle_and_run_leaves_less_room() {
    let mut harness = Harness::new(with_budget(Over::Refuse, &[tokens(100, sliding(60))]), 1);
    harness.advance_to(100.0);
    let ago = |seconds| UsedAt::Ago(Duration::from_secs(seconds));
    let used = [settled(sliding(60), ago(10), 30), settled(sliding(60), ago(90), 99)];
    harness.handle(shared(&used, &[running("f", 50, 1)]));
    assert_eq!(amounts(&mut harness, "f"), (30, 50, 20));
    harness.handle(shared(&[], &[running("f", 70, 1)]));
    assert_eq!(harness.register(1, "f", Default), [Rejected(1, Outcome::RejectedBudget)]);
    harness.handle(shared(&[settled(sliding(60), ago(0), 20)], &[running("f", 0, 0)]));
    assert_eq!(amounts(&mut harness, "f"), (50, 0, 50));
    harness.advance_to(151.0);
    assert_eq!(amounts(&mut harness, "f"), (20, 0, 80));
}

#[test]
fn a_held_flow_goes_when_other_engines_run_less() {
    let mut harness = Harness::new(with_budget(Over::Hold, &[requests(2, BudgetPeriod::Day)]), 1);
    harness.handle(shared(&[], &[running("f", 9, 2)]));
    assert_eq!(harness.register(1, "f", Default), []);
    assert_eq!(harness.handle(shared(&[], &[running("f", 9, 1)])), [Dispatched(1, 1)]);
}

#[test]
fn restored_usage_above_the_limit_and_debts_are_paid_back() {
    let mut harness = Harness::new(with_budget(Over::Refuse, &[tokens(100, sliding(60))]), 1);
    harness.advance_to(1_000.0);
    let ago = |seconds| UsedAt::Ago(Duration::from_secs(seconds));
    let used = [settled(sliding(60), ago(30), 130), settled(sliding(60), UsedAt::Debt, 50)];
    harness.handle(shared(&used, &[]));
    assert_eq!(window(&mut harness, "f").map(|window| (window.used, window.debt)), Some((180, 80)));
    harness.advance_to(1_031.0);
    assert_eq!(amounts(&mut harness, "f").2, 20);
}

#[test]
fn usage_of_a_day_counts_only_in_that_day() {
    let mut harness = Harness::new(with_budget(Over::Refuse, &[tokens(100, BudgetPeriod::Day)]), 1);
    let day = 20_000 * 86_400;
    harness.handle(Input::Utc(Duration::from_secs(day + 10)));
    let since = |second: u64| UsedAt::Since(i64::try_from(second).expect("small"));
    let used = [
        settled(BudgetPeriod::Day, since(day), 30),
        settled(BudgetPeriod::Day, since(day - 86_400), 40),
        settled(BudgetPeriod::Month, since(day), 50),
    ];
    harness.handle(shared(&used, &[]));
    assert_eq!(amounts(&mut harness, "f"), (30, 0, 70));
}

#[test]
fn usage_of_flows_without_a_budget_is_ignored() {
    let mut harness = Harness::new(with_budget(Over::Refuse, &[tokens(100, BudgetPeriod::Day)]), 1);
    harness.handle(shared(&[], &[running("g", 50, 1), running("f", 0, 0)]));
    assert_eq!(harness.engine.budgets(), []);
}

#[test]
fn an_engine_that_takes_the_reports_of_another_one_counts_the_same() {
    let policy = with_budget(Over::Refuse, &[tokens(100, sliding(60)), requests(9, BudgetPeriod::Day)]);
    let (mut first, mut second) = (Harness::new(policy.clone(), 1), Harness::new(policy, 1));
    first.engine.report_budgets(true);
    for harness in [&mut first, &mut second] {
        harness.handle(Input::Utc(Duration::from_secs(20_000 * 86_400 - 30)));
    }
    let mut exchange = |first: &mut Harness, input: Input| {
        let (mut settled, mut running) = (Vec::new(), Vec::new());
        for report in reports(first, input) {
            match report {
                BudgetReport::Used(used) => settled.push(used),
                BudgetReport::Running(now) => running.push(now),
                other => panic!("neither a shadow nor a reset: {other:?}"),
            }
        }
        second.now = first.now;
        first.engine.handle_timeout(first.now);
        second.handle(Input::BudgetUsage { settled, running });
        let windows = |harness: &Harness| {
            let budgets = harness.engine.budgets();
            let windows = budgets.into_iter().flat_map(|budget| budget.windows);
            windows.map(|window| (window.used, window.reserved, window.debt)).collect::<Vec<_>>()
        };
        assert_eq!(windows(first), windows(&second));
    };
    exchange(&mut first, Input::Register(sized(1, "f", Default, 70)));
    first.advance_to(10.0);
    exchange(&mut first, Input::Register(sized(2, "f", Default, 20)));
    first.advance_to(29.0);
    exchange(&mut first, used(1, 60));
    first.advance_to(40.0);
    exchange(&mut first, used(2, 200));
    first.advance_to(100.0);
    exchange(&mut first, Input::Register(sized(3, "g", Default, 70)));
}

/// What a flow has used of its windows, is owed, and what remains.
fn counted(harness: &mut Harness) -> Vec<(u64, u64, u64)> {
    harness.engine.handle_timeout(harness.now);
    let budgets = harness.engine.budgets().into_iter();
    let windows = budgets.flat_map(|budget| budget.windows);
    windows.map(|window| (window.used + window.reserved, window.debt, window.remaining)).collect()
}

#[test]
fn a_debt_of_a_request_that_outlives_its_window_counts_at_other_engines_and_after_a_restart() {
    // Two minutes before midnight.
    let utc = |passed: u64| Input::Utc(Duration::from_secs(20_000 * 86_400 - 120 + passed));
    let windows = [tokens(100, sliding(60)), tokens(400, BudgetPeriod::Day), requests(9, sliding(60))];
    let policy = with_budget(Over::Refuse, &windows);
    for real in [40, 450, 520] {
        let mut first = Harness::new(policy.clone(), 1);
        let mut second = Harness::new(policy.clone(), 1);
        first.engine.report_budgets(true);
        first.handle(utc(0));
        second.handle(utc(0));
        let mut reported = Vec::new();
        let mut exchange = |first: &mut Harness, second: &mut Harness, input: Input| {
            let (mut settled, mut running) = (Vec::new(), Vec::new());
            for report in reports(first, input) {
                match report {
                    BudgetReport::Used(used) => settled.push(used),
                    BudgetReport::Running(now) => running.push(now),
                    other => panic!("neither a shadow nor a reset: {other:?}"),
                }
            }
            reported.extend(settled.iter().cloned());
            second.now = first.now;
            second.handle(Input::BudgetUsage { settled, running });
        };
        exchange(&mut first, &mut second, Input::Register(sized(1, "f", Default, 450)));
        first.advance_to(200.0);
        exchange(&mut first, &mut second, used(1, real));
        let mut third = Harness::new(policy.clone(), 1);
        third.advance_to(200.0);
        third.handle(utc(200));
        third.handle(Input::BudgetHistory(reported));
        for seconds in [200.0, 230.0, 245.0, 300.0, 310.0, 400.0, 90_000.0] {
            let of_each = [&mut first, &mut second, &mut third].map(|harness| {
                harness.advance_to(seconds);
                counted(harness)
            });
            let all: Vec<_> = of_each.iter().filter(|windows| !windows.is_empty()).collect();
            assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{real} at {seconds}: {of_each:?}");
            if seconds == 200.0 && real > 400 {
                assert!(of_each[1][0].1 > 0, "a debt is known elsewhere: {of_each:?}");
            }
        }
    }
}

#[test]
fn what_was_owed_before_a_restart_counts_however_late_the_store_answers() {
    let policy = with_budget(Over::Refuse, &[tokens(100, sliding(60))]);
    let mut harness = Harness::new(policy, 1);
    harness.advance_to(1_000.0);
    harness.handle(Input::Register(sized(1, "f", Default, 30)));
    harness.advance_to(1_003.0);
    let ago = UsedAt::Ago(Duration::from_secs(90));
    harness.handle(Input::BudgetHistory(vec![settled(sliding(60), ago, 260)]));
    // 100 of it have left, and 100 were paid when they did: 60 are owed, and the request that came first.
    let now = window(&mut harness, "f").expect("it is used");
    assert_eq!((now.used, now.reserved, now.debt, now.remaining), (160, 30, 90, 0));
    harness.handle(used(1, 10));
    let now = window(&mut harness, "f").expect("it is used");
    assert_eq!((now.used, now.reserved, now.debt), (170, 0, 70));
}

#[test]
fn nothing_is_reported_unless_it_is_asked_for() {
    let mut harness = Harness::new(with_budget(Over::Refuse, &[tokens(100, sliding(60))]), 1);
    assert_eq!(harness.register(1, "f", Default), [Bypassed(1, 1)]);
    assert_eq!(reports(&mut harness, used(1, 5)), []);
}
