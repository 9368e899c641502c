//! The status of one request.

use std::time::Duration;

use penstock_control::{Event, PoolEvent, RequestState, RequestStatus};
use penstock_engine::Outcome;
use penstock_engine::policy::{Budget, BudgetCalendar, BudgetPeriod, BudgetWindow, CostUnit, FlowGlob, Over};
use penstock_wire as wire;
use wire::filter_frame::Event as Message;

use crate::harness::*;

fn named(sequence: u64) -> wire::Register {
    wire::Register { request_id: format!("r{sequence}"), ..register(sequence) }
}

fn status_of(world: &World, request_id: &str) -> Option<RequestStatus> {
    world.control.request(world.now, request_id)
}

fn why(world: &World, request_id: &str) -> String {
    status_of(world, request_id).map_or_else(|| "nobody".into(), |status| status.why.to_string())
}

/// The first runs; the second and third wait, and then a critical fourth.
fn four() -> World {
    let mut world = World::established();
    for sequence in 1..=3 {
        world.send(1, Message::Register(named(sequence)));
    }
    let critical = wire::Register { priority: "critical".into(), ..named(4) };
    world.send(1, Message::Register(critical));
    world.pass(Duration::from_millis(1_500));
    world
}

#[test]
fn a_waiting_request_shows_its_place_and_the_reason() {
    let world = four();
    let third = status_of(&world, "r3").expect("it waits");
    let RequestState::Waiting { ahead, estimate, tag } = third.state else { panic!("{third:?}") };
    assert_eq!((ahead, tag.is_some()), (2, true));
    assert!(estimate >= Duration::from_secs(1));
    assert_eq!(third.waited, Duration::from_millis(1_500));
    assert_eq!((third.outcome, &*third.labels.flow), (None, "acme"));
    assert_eq!(
        &*third.why,
        "the gate is full: stock 1 of 1; the next request is granted below that; requests before it: 2 (1 more critical, 1 of its band with a lower tag)"
    );
    assert_eq!(why(&world, "r4"), "the gate is full: stock 1 of 1; the next request is granted below that");
}

#[test]
fn a_request_that_its_budget_holds_shows_until_when() {
    let mut settings = settings();
    settings.pools[0].policy.flows.budgets = vec![Budget {
        flows: FlowGlob::new("*"),
        windows: vec![BudgetWindow {
            unit: CostUnit::Requests,
            limit: 1,
            period: BudgetPeriod::Sliding(Duration::from_secs(20)),
        }],
        calendar: BudgetCalendar::default(),
        over: Over::Hold,
        shadow: false,
    }];
    let mut world = World::with(settings);
    world.open_session(1, 1, Vec::new(), Vec::new());
    world.send(1, Message::Register(named(1)));
    world.send(1, completed(1));
    world.send(1, Message::Register(named(2)));
    let why = why(&world, "r2");
    assert!(why.starts_with("its flow has used its budget and is held until there is room, in 20"), "{why}");
    let RequestState::Waiting { estimate, .. } = status_of(&world, "r2").expect("it waits").state else {
        panic!("{why}")
    };
    assert!(estimate >= Duration::from_secs(20), "{estimate:?}");
}

#[test]
fn a_running_request_shows_its_endpoint_and_the_reason() {
    let mut world = four();
    let first = status_of(&world, "r1").expect("it runs");
    assert_eq!(first.state, RequestState::Running { endpoint: SERVER.into() });
    assert_eq!((first.outcome, first.waited), (Some(Outcome::Bypassed), Duration::ZERO));
    assert!(first.why.starts_with("it was granted at once"), "{}", first.why);
    world.send(1, completed(1));
    assert!(status_of(&world, "r1").is_none(), "it has ended");
    let fourth = status_of(&world, "r4").expect("it runs");
    assert_eq!(fourth.outcome, Some(Outcome::Dispatched));
    assert_eq!(&*fourth.why, "it was granted in its turn, after 1500ms");
    assert_eq!(fourth.waited, Duration::from_millis(1_500));
}

#[test]
fn an_orphaned_request_shows_that_reason() {
    let mut world = four();
    world.close(1);
    assert!(why(&world, "r2").starts_with("its session is orphaned"));
}

#[test]
fn a_pool_without_a_ready_endpoint_shows_how_long_requests_wait() {
    let mut world = four();
    world.handle(Event::Pool(
        "chat".into(),
        PoolEvent::EndpointReady { address: SERVER.into(), ready: false },
    ));
    let why = why(&world, "r2");
    assert!(why.starts_with("no endpoint of its pool is ready"), "{why}");
    assert!(why.contains("60s"), "{why}");
}

#[test]
fn of_several_requests_with_one_id_the_last_is_shown() {
    let mut world = World::established();
    for sequence in 1..=2 {
        let same = wire::Register { request_id: "same".into(), ..register(sequence) };
        world.send(1, Message::Register(same));
    }
    let found = status_of(&world, "same").expect("two");
    assert!(matches!(found.state, RequestState::Waiting { .. }));
    assert!(status_of(&world, "other").is_none());
}
