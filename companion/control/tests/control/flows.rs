//! Visible flows: which have a name, for how long, and at which cost.

use core::time::Duration;

use penstock_control::{Event, PoolEvent, PoolStatus, Settings};
use penstock_engine::input::{Band, PastUsage, RunningUsage};
use penstock_engine::policy::Discipline;
use penstock_engine::units::Tokens;
use penstock_wire as wire;
use wire::filter_frame::Event as Message;

use crate::harness::*;

/// 100 tokens of prompt at 1, 10 of output at 2, by the default weights of `usage`.
const COST: u64 = 120;

fn pool(world: &World) -> PoolStatus {
    world.control.status(world.now).pools.swap_remove(0)
}

fn served(world: &World) -> (Vec<(String, u64)>, u64) {
    let pool = pool(world);
    let mut served: Vec<(String, u64)> =
        pool.served.into_iter().map(|(flow, cost)| (flow.into(), cost)).collect();
    served.sort();
    (served, pool.other_served)
}

fn request_of(flow: &str, sequence: u64) -> wire::Register {
    wire::Register { fairness_id: flow.into(), ..register(sequence) }
}

fn serve(world: &mut World, register: wire::Register) {
    let sequence = register.sequence;
    world.send(1, Message::Register(register));
    world.send(1, completed(sequence));
    world.take();
}

fn world(flows_shown: usize) -> World {
    let mut world = World::with(Settings { flows_shown, ..settings() });
    world.open_session(1, 1, Vec::new(), Vec::new());
    world.take();
    world
}

#[test]
fn cost_is_counted_once_by_flow() {
    let mut world = world(3);
    serve(&mut world, request_of("acme", 1));
    serve(&mut world, request_of("acme", 2));
    serve(&mut world, request_of("", 3));
    let named =
        |pairs: &[(&str, u64)]| pairs.iter().map(|&(flow, cost)| (flow.to_owned(), cost)).collect::<Vec<_>>();
    assert_eq!(served(&world), (named(&[("acme", 2 * COST), ("anonymous", COST)]), 0));
    // A flow from the body is private, even if a header has the same name.
    let private = wire::Register { fairness_id_private: true, ..request_of("acme", 4) };
    serve(&mut world, private);
    let hidden = wire::Register { fairness_id_private: true, ..request_of("secret", 5) };
    serve(&mut world, hidden);
    // One place is left.
    serve(&mut world, request_of("beta", 6));
    serve(&mut world, request_of("gamma", 7));
    let shown = named(&[("acme", 2 * COST), ("anonymous", COST), ("beta", COST)]);
    assert_eq!(served(&world), (shown, 3 * COST));
    // The repeated message costs nothing more.
    world.send(1, completed(7));
    assert_eq!(served(&world).1, 3 * COST);
    let pool = pool(&world);
    assert_eq!(pool.shown("gamma"), "other");
    assert_eq!((pool.shown("beta"), pool.shown("")), ("beta", "anonymous"));
}

#[test]
fn an_error_page_costs_nothing() {
    let mut world = world(3);
    world.send(1, Message::Register(request_of("acme", 1)));
    let failed = wire::Completed {
        sequence: 1,
        endpoint: SERVER.into(),
        status: 500,
        end: wire::EndReason::Served.into(),
        ..Default::default()
    };
    world.send(1, Message::Completed(failed));
    assert_eq!(served(&world), (vec![("acme".into(), 0)], 0));
}

#[test]
fn an_idle_flow_gives_its_place_to_another_after_ten_minutes() {
    let mut world = world(2);
    for (sequence, flow) in [(1, "a"), (2, "b"), (3, "c")] {
        serve(&mut world, request_of(flow, sequence));
    }
    let names = |world: &World| served(world).0.into_iter().map(|(flow, _)| flow).collect::<Vec<_>>();
    assert_eq!(names(&world), ["a", "b"]);
    world.pass_beating(300, &[1]);
    serve(&mut world, request_of("b", 4));
    // A flow with a running request isn't idle.
    world.send(1, Message::Register(request_of("a", 5)));
    world.pass_beating(599, &[1]);
    assert_eq!(names(&world), ["a", "b"]);
    world.pass(Duration::from_secs(1));
    world.send(1, Message::Heartbeat(wire::Heartbeat::default()));
    assert_eq!(names(&world), ["a"]);
    world.send(1, completed(5));
    serve(&mut world, request_of("c", 6));
    assert_eq!(names(&world), ["a", "c"]);
}

fn past(flow: &str, cost: u64) -> PastUsage {
    PastUsage {
        band: Band::Default,
        class: "".into(),
        flow: flow.into(),
        model: "llama-3".into(),
        cost: Tokens(cost),
        ago: Duration::ZERO,
    }
}

/// A pool whose flows share by recent usage.
fn by_usage() -> World {
    let mut settings = settings();
    settings.pools[0].policy.flows.discipline = Discipline::Usage;
    let mut world = World::with(settings);
    world.open_session(1, 1, Vec::new(), Vec::new());
    world.take();
    world
}

#[test]
fn settled_costs_are_observed_where_they_count_in_a_window() {
    let mut world = by_usage();
    let private = wire::Register { fairness_id_private: true, ..request_of("acme", 1) };
    world.send(1, Message::Register(private));
    assert!(world.take().used.is_empty(), "it isn't settled");
    world.send(1, completed(1));
    let used = world.take().used;
    let model: Box<str> = register(1).model.into();
    let expected = PastUsage { model, ..past("acme", COST) };
    assert_eq!(used, [("chat".into(), expected)]);
    let mut plain = self::world(10);
    plain.send(1, Message::Register(request_of("acme", 1)));
    plain.send(1, completed(1));
    assert!(plain.take().used.is_empty(), "there is no window");
}

#[test]
fn what_a_flow_runs_is_observed_until_it_ends() {
    let mut world = by_usage();
    world.send(1, Message::Register(request_of("acme", 1)));
    let sums = |world: &mut World| -> Vec<u64> {
        let running = world.take().running.into_iter();
        running
            .map(|(pool, running)| {
                assert_eq!((&*pool, &*running.flow), ("chat", "acme"));
                running.running.0
            })
            .collect()
    };
    let [estimate] = sums(&mut world)[..] else { panic!("one grant") };
    assert!(estimate > 0);
    world.send(1, completed(1));
    assert_eq!(sums(&mut world), [0]);
}

#[test]
fn what_runs_at_another_companion_puts_its_flow_last_until_it_ends_there() {
    let mut world = by_usage();
    let elsewhere = |tokens| {
        Event::Pool(
            "chat".into(),
            PoolEvent::Usage {
                settled: Vec::new(),
                running: vec![RunningUsage {
                    band: Band::Default,
                    class: "".into(),
                    flow: "heavy".into(),
                    model: register(1).model.into(),
                    running: Tokens(tokens),
                }],
            },
        )
    };
    world.handle(elsewhere(1_000));
    for (sequence, flow) in (1..).zip(["first", "heavy", "light", "heavy", "light"]) {
        world.send(1, Message::Register(request_of(flow, sequence)));
    }
    world.take();
    world.send(1, completed(1));
    assert_eq!(world.take().granted(), [3]);
    world.handle(elsewhere(0));
    world.send(1, completed(3));
    assert_eq!(world.take().granted(), [2]);
}

#[test]
fn past_usage_puts_its_flow_last_and_shows_no_flow() {
    let mut world = by_usage();
    let model: Box<str> = register(1).model.into();
    let told = |pool: &str| {
        Event::Pool(
            pool.into(),
            PoolEvent::Usage {
                settled: vec![PastUsage { model: model.clone(), ..past("heavy", 1_000) }],
                running: Vec::new(),
            },
        )
    };
    world.handle(told("nobody's"));
    world.handle(told("chat"));
    assert_eq!(served(&world), (Vec::new(), 0));
    let hidden = pool(&world);
    assert_eq!(hidden.shown("heavy"), "other");
    world.send(1, Message::Register(request_of("first", 1)));
    world.send(1, Message::Register(request_of("heavy", 2)));
    world.send(1, Message::Register(request_of("light", 3)));
    world.take();
    world.send(1, completed(1));
    assert_eq!(world.take().granted(), [3]);
}
