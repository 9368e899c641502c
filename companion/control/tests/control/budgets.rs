//! Budgets of flows: what is reported for the store, what a companion restores, and the calendar's days.

use core::time::Duration;

use penstock_control::{Event, PoolEvent};
use penstock_engine::Outcome;
use penstock_engine::effect::BudgetReport;
use penstock_engine::input::{BudgetReset, BudgetRunning, BudgetUsage, UsageKind, UsedAt};
use penstock_engine::policy::{Budget, BudgetCalendar, BudgetPeriod, BudgetWindow, CostUnit, FlowGlob, Over};
use penstock_engine::units::Tokens;
use penstock_wire as wire;
use wire::filter_frame::Event as Message;

use crate::harness::*;

const HOUR: BudgetPeriod = BudgetPeriod::Sliding(Duration::from_secs(3_600));
/// 23:59:50 on 14 November 2023, in UTC.
const BEFORE_MIDNIGHT: Duration = Duration::from_secs(1_700_006_400 - 10);

/// A pool in which every flow may use so many requests in this time.
fn with_budget(limit: u64, period: BudgetPeriod) -> World {
    let mut settings = settings();
    settings.pools[0].policy.flows.budgets = vec![Budget {
        flows: FlowGlob::new("*"),
        windows: vec![BudgetWindow { unit: CostUnit::Requests, limit, period }],
        calendar: BudgetCalendar::default(),
        over: Over::Refuse,
        shadow: false,
    }];
    World::with(settings)
}

fn used(period: BudgetPeriod, used_at: UsedAt, amount: u64) -> BudgetUsage {
    BudgetUsage {
        flow: "acme".into(),
        unit: CostUnit::Requests,
        period,
        kind: UsageKind::Used,
        used_at,
        amount,
    }
}

fn history(past: BudgetUsage) -> Event {
    Event::Pool("chat".into(), PoolEvent::BudgetHistory(vec![past]))
}

/// What a request of acme gets, and all that was reported of budgets until then.
fn ask(world: &mut World, sequence: u64) -> (Vec<Outcome>, Vec<BudgetReport>) {
    world.send(1, Message::Register(register(sequence)));
    let mut taken = world.take();
    if taken.outcomes == [Outcome::Bypassed] {
        world.send(1, completed(sequence));
        taken.budgets.extend(world.take().budgets);
    }
    let reports = taken.budgets.into_iter().map(|(_, report)| report);
    (taken.outcomes, reports.collect())
}

#[test]
fn what_a_flow_uses_and_runs_is_reported() {
    let mut world = with_budget(2, HOUR);
    world.open_session(1, 1, Vec::new(), Vec::new());
    let (outcomes, reports) = ask(&mut world, 1);
    assert_eq!(outcomes, [Outcome::Bypassed]);
    let running = |requests: u64, reports: &[BudgetReport]| {
        let is = |report: &&BudgetReport| matches!(report, BudgetReport::Running(BudgetRunning { requests: now, .. }) if *now == requests);
        reports.iter().filter(is).count()
    };
    assert_eq!((running(1, &reports), running(0, &reports)), (1, 1));
    let ago = UsedAt::Ago(Duration::ZERO);
    assert!(reports.contains(&BudgetReport::Used(used(HOUR, ago, 1))), "{reports:?}");
}

#[test]
fn a_budget_that_was_used_before_the_start_is_used_up() {
    let mut world = with_budget(3, HOUR);
    world.handle(history(used(HOUR, UsedAt::Ago(Duration::from_secs(60)), 2)));
    world.open_session(1, 1, Vec::new(), Vec::new());
    assert_eq!(ask(&mut world, 1).0, [Outcome::Bypassed]);
    assert_eq!(ask(&mut world, 2).0, [Outcome::RejectedBudget]);
    world.handle(Event::Pool("unknown".into(), PoolEvent::BudgetHistory(Vec::new())));
}

#[test]
fn what_exceeded_a_budget_before_the_start_is_owed() {
    let mut world = with_budget(3, HOUR);
    // Six requests two hours ago: three of them counted then, and three in the hour that begins an hour ago.
    let hours = |hours: u64| UsedAt::Ago(Duration::from_secs(hours * 3_600 - 120));
    world.handle(history(used(HOUR, hours(2), 6)));
    world.open_session(1, 1, Vec::new(), Vec::new());
    assert_eq!(ask(&mut world, 1).0, [Outcome::RejectedBudget]);
    world.pass_beating(300, &[1]);
    assert_eq!(ask(&mut world, 2).0, [Outcome::Bypassed]);
}

#[test]
fn what_runs_at_another_companion_is_reserved_until_it_ends() {
    let mut world = with_budget(2, HOUR);
    world.open_session(1, 1, Vec::new(), Vec::new());
    let elsewhere = |requests| {
        Event::Pool(
            "chat".into(),
            PoolEvent::BudgetUsage {
                settled: Vec::new(),
                running: vec![BudgetRunning { flow: "acme".into(), tokens: Tokens(0), requests }],
            },
        )
    };
    world.handle(elsewhere(2));
    assert_eq!(ask(&mut world, 1).0, [Outcome::RejectedBudget]);
    world.handle(elsewhere(0));
    assert_eq!(ask(&mut world, 2).0, [Outcome::Bypassed]);
}

#[test]
fn a_reset_at_another_companion_forgets_what_was_used_here() {
    let mut world = with_budget(1, HOUR);
    world.open_session(1, 1, Vec::new(), Vec::new());
    assert_eq!(ask(&mut world, 1).0, [Outcome::Bypassed]);
    assert_eq!(ask(&mut world, 2).0, [Outcome::RejectedBudget]);
    let resets = vec![BudgetReset::Elsewhere { flow: "acme".into(), number: 7 }];
    for pool in ["unknown", "chat"] {
        let (pool, resets) = (pool.into(), resets.clone());
        world.handle(Event::Pool(pool, PoolEvent::BudgetResets(resets)));
    }
    let reports = world.take().budgets;
    assert_eq!(reports[0], ("chat".into(), BudgetReport::Forgotten { flow: "acme".into(), number: 7 }));
    assert_eq!(ask(&mut world, 3).0, [Outcome::Bypassed]);
}

#[test]
fn a_running_request_that_is_registered_again_is_charged_once() {
    let mut world = with_budget(3, HOUR);
    world.handle(history(used(HOUR, UsedAt::Ago(Duration::from_secs(60)), 1)));
    let running =
        wire::Running { register: Some(register(1)), endpoint: SERVER.into(), ..Default::default() };
    world.open_session(1, 1, Vec::new(), vec![running]);
    world.take();
    world.send(1, completed(1));
    let reports = world.take().budgets;
    let settled: Vec<u64> = reports
        .iter()
        .filter_map(|(_, report)| match report {
            BudgetReport::Used(used) => Some(used.amount),
            _ => None,
        })
        .collect();
    assert_eq!(settled, [1], "it is settled once: {reports:?}");
    assert_eq!(ask(&mut world, 2).0, [Outcome::Bypassed]);
    assert_eq!(ask(&mut world, 3).0, [Outcome::RejectedBudget], "1, 1 and 1");
}

#[test]
fn a_day_ends_at_midnight_in_utc_also_by_a_clock_that_jumps() {
    let mut world = with_budget(1, BudgetPeriod::Day);
    world.handle(Event::Utc(BEFORE_MIDNIGHT));
    let midnight = UsedAt::Since(1_699_920_000);
    world.handle(history(used(BudgetPeriod::Day, midnight, 1)));
    world.open_session(1, 1, Vec::new(), Vec::new());
    assert_eq!(ask(&mut world, 1).0, [Outcome::RejectedBudget], "it was used today");
    world.pass_beating(10, &[1]);
    assert_eq!(ask(&mut world, 2).0, [Outcome::Bypassed], "midnight has passed");
    assert_eq!(ask(&mut world, 3).0, [Outcome::RejectedBudget]);
    world.handle(Event::Utc(BEFORE_MIDNIGHT + Duration::from_secs(86_400)));
    assert_eq!(ask(&mut world, 4).0, [Outcome::RejectedBudget], "it is still that day");
    world.handle(Event::Utc(BEFORE_MIDNIGHT + Duration::from_secs(86_400 + 20)));
    assert_eq!(ask(&mut world, 5).0, [Outcome::Bypassed]);
}
