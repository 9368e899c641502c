//! Budgets of flows: what answers say of them, what is shown, and what an operator changes.

use core::time::Duration;

use penstock_control::{BudgetChange, Event, FlowBudget, PoolBudgets, PoolEvent, Settings};
use penstock_engine::policy::{Budget, BudgetCalendar, BudgetPeriod, BudgetWindow, CostUnit, FlowGlob, Over};
use penstock_wire as wire;
use wire::filter_frame::Event as Message;

use crate::harness::*;

/// 100 tokens of prompt at 1, 10 of output at 2, by the default weights of `usage`.
const COST: u64 = 120;

/// A pool in which each flow that begins with `f` has 1,000 tokens an hour.
fn with_budget(over: Over, shadow: bool, unit: CostUnit, limit: u64) -> World {
    let mut settings = Settings { flows_shown: 2, ..settings() };
    let policy = &mut settings.pools[0].policy;
    policy.flows.budgets = vec![Budget {
        flows: FlowGlob::new("f*"),
        windows: vec![BudgetWindow {
            unit,
            limit,
            period: BudgetPeriod::Sliding(Duration::from_secs(3_600)),
        }],
        calendar: BudgetCalendar::default(),
        over,
        shadow,
    }];
    let mut world = World::with(settings);
    world.open_session(1, 1, Vec::new(), Vec::new());
    world.take();
    world
}

fn request_of(flow: &str, sequence: u64) -> wire::Register {
    wire::Register { fairness_id: flow.into(), ..register(sequence) }
}

fn serve(world: &mut World, register: wire::Register) -> Taken {
    let sequence = register.sequence;
    world.send(1, Message::Register(register));
    let taken = world.take();
    world.send(1, completed(sequence));
    world.take();
    taken
}

fn budgets(world: &World) -> PoolBudgets {
    world.control.budgets(world.now).swap_remove(0)
}

fn budget(world: &World, flow: &str) -> Option<FlowBudget> {
    let found = budgets(world).flows;
    found.into_iter().find(|budget| *budget.budget.flow == *flow)
}

fn used(world: &World, flow: &str) -> u64 {
    budget(world, flow).map_or(0, |budget| budget.budget.windows[0].used)
}

fn change(world: &mut World, flow: &str, change: BudgetChange) {
    let (pool, flow) = ("chat".into(), flow.into());
    world.handle(Event::Pool(pool, PoolEvent::ChangeBudget { flow, change }));
}

#[test]
fn grants_and_rejections_say_what_is_left_of_the_flow_s_budget() {
    let mut world = with_budget(Over::Refuse, false, CostUnit::Requests, 2);
    let left = |sequence: u64, world: &mut World| {
        let taken = serve(world, request_of("f", sequence));
        let granted = taken.grants().first().map(|(_, grant)| grant.rate_limit);
        granted.unwrap_or_else(|| taken.rejects()[0].rate_limit)
    };
    let expected = |remaining| {
        Some(wire::RateLimit {
            unit: wire::rate_limit::Unit::Requests.into(),
            limit: 2,
            remaining,
            reset_ms: 3_660_000,
        })
    };
    assert_eq!(left(1, &mut world), expected(1), "the request counts that is granted");
    assert_eq!(left(2, &mut world), expected(0));
    assert_eq!(left(3, &mut world), expected(0), "budget_exceeded");
    world.handle(Event::Drain(true));
    assert_eq!(left(4, &mut world), expected(0), "shutting_down");
}

#[test]
fn flows_without_a_budget_and_shadows_say_nothing() {
    let mut world = with_budget(Over::Refuse, true, CostUnit::Requests, 1);
    for (sequence, flow) in [(1, "f"), (2, "f"), (3, "acme")] {
        let taken = serve(&mut world, request_of(flow, sequence));
        assert_eq!(taken.grants()[0].1.rate_limit, None, "{flow}");
    }
}

#[test]
fn a_grant_that_was_lost_is_sent_again_with_what_is_left() {
    let mut world = with_budget(Over::Refuse, false, CostUnit::Requests, 2);
    world.send(1, Message::Register(request_of("f", 1)));
    world.take();
    world.close(1);
    world.open_session(2, 2, vec![request_of("f", 1)], Vec::new());
    let taken = world.take();
    let left = taken.grants()[0].1.rate_limit.expect("a budget");
    assert_eq!((left.limit, left.remaining), (2, 1));
}

#[test]
fn budgets_show_what_was_used_and_when_windows_have_passed_without_an_event() {
    let mut world = with_budget(Over::Hold, false, CostUnit::Tokens, 1_000);
    serve(&mut world, request_of("f", 1));
    assert_eq!(used(&world, "f"), COST);
    world.now = world.now.after(Duration::from_secs(3_700));
    assert_eq!(used(&world, "f"), 0);
}

#[test]
fn only_names_from_headers_are_public_and_only_as_many_as_labels_are_shown() {
    let mut world = with_budget(Over::Hold, false, CostUnit::Tokens, 1_000);
    let private = wire::Register { fairness_id_private: true, ..request_of("f0", 1) };
    serve(&mut world, private);
    for (sequence, flow) in [(2, "f1"), (3, "f2"), (4, "f3")] {
        serve(&mut world, request_of(flow, sequence));
    }
    let flags = |world: &World| {
        let flows = budgets(world).flows;
        let flags =
            flows.iter().map(|budget| (budget.budget.flow.to_string(), budget.is_public, budget.is_shown));
        flags.collect::<Vec<_>>()
    };
    let named = |name: &str, is_public, is_shown| (name.to_owned(), is_public, is_shown);
    assert_eq!(
        flags(&world),
        [
            named("f0", false, false),
            named("f1", true, true),
            named("f2", true, true),
            named("f3", true, false),
        ]
    );
    world.now = world.now.after(Duration::from_secs(900));
    let shown = flags(&world).into_iter().filter(|(_, _, is_shown)| *is_shown);
    assert_eq!(shown.count(), 0, "idle flows have no label");
    assert!(budget(&world, "f1").is_some_and(|budget| budget.is_public));
}

#[test]
fn shadows_are_counted_by_flow_and_by_what_would_have_happened() {
    let mut world = with_budget(Over::Refuse, true, CostUnit::Requests, 1);
    for sequence in 1..=3 {
        serve(&mut world, request_of("f1", sequence));
    }
    let private = |sequence| wire::Register { fairness_id_private: true, ..request_of("f2", sequence) };
    serve(&mut world, private(4));
    serve(&mut world, private(5));
    let expected = [("f1".into(), Over::Refuse, 2), ("other".into(), Over::Refuse, 1)];
    assert_eq!(budgets(&world).shadowed, expected);
}

#[test]
fn a_top_up_adds_tokens_and_a_reset_forgets_what_was_used() {
    let mut world = with_budget(Over::Refuse, false, CostUnit::Tokens, COST);
    let is_granted = |world: &mut World, sequence| {
        let taken = serve(world, request_of("f", sequence));
        !taken.grants().is_empty()
    };
    assert!(is_granted(&mut world, 1) && !is_granted(&mut world, 2));
    change(&mut world, "f", BudgetChange::AddTokens(COST));
    assert!(is_granted(&mut world, 3) && !is_granted(&mut world, 4));
    change(&mut world, "f", BudgetChange::Reset);
    assert_eq!(used(&world, "f"), 0);
    assert!(is_granted(&mut world, 5) && !is_granted(&mut world, 6));
    change(&mut world, "acme", BudgetChange::Reset);
    assert!(budget(&world, "acme").is_none(), "it has no budget");
}
