//! Which flows are shown by name, for how long, and what each is counted to have been served.

use core::time::Duration;

use penstock_control::{Event, PoolStatus, Settings};
use penstock_engine::input::{Band, PastUsage};
use penstock_engine::policy::Discipline;
use penstock_engine::units::Tokens;
use penstock_wire as wire;
use wire::filter_frame::Event as Said;

use crate::harness::*;

/// 100 tokens of prompt at 1, 10 of output at 2, by the default weights of `usage`.
const COST: u64 = 120;

fn pool(world: &World) -> PoolStatus {
    world.control.status(world.now).pools.swap_remove(0)
}

fn served(world: &World) -> (Vec<(String, u64)>, u64) {
    let pool = pool(world);
    let mut served: Vec<(String, u64)> = pool.served.into_iter().map(|(it, n)| (it.into(), n)).collect();
    served.sort();
    (served, pool.other_served)
}

fn of(flow: &str, sequence: u64) -> wire::Register {
    wire::Register {
        fairness_id: flow.into(),
        ..register(sequence)
    }
}

fn serve(world: &mut World, register: wire::Register) {
    let sequence = register.sequence;
    world.say(1, Said::Register(register));
    world.say(1, completed(sequence));
    world.take();
}

fn world(flows_shown: usize) -> World {
    let mut world = World::with(Settings {
        flows_shown,
        ..settings()
    });
    world.hello(1, 1, Vec::new(), Vec::new());
    world.take();
    world
}

#[test]
fn what_was_served_is_counted_by_flow_and_once() {
    let mut world = world(3);
    serve(&mut world, of("acme", 1));
    serve(&mut world, of("acme", 2));
    serve(&mut world, of("", 3));
    let named = |pairs: &[(&str, u64)]| {
        pairs
            .iter()
            .map(|&(it, n)| (it.to_owned(), n))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        served(&world),
        (named(&[("acme", 2 * COST), ("anonymous", COST)]), 0)
    );
    // From the body: nobody is told whose it is, though a header says the same name.
    let private = wire::Register {
        fairness_id_private: true,
        ..of("acme", 4)
    };
    serve(&mut world, private);
    let hidden = wire::Register {
        fairness_id_private: true,
        ..of("secret", 5)
    };
    serve(&mut world, hidden);
    // One place is left.
    serve(&mut world, of("beta", 6));
    serve(&mut world, of("gamma", 7));
    let shown = named(&[("acme", 2 * COST), ("anonymous", COST), ("beta", COST)]);
    assert_eq!(served(&world), (shown, 3 * COST));
    // Said again, it is no more.
    world.say(1, completed(7));
    assert_eq!(served(&world).1, 3 * COST);
    let pool = pool(&world);
    assert_eq!(pool.shown("gamma"), "other");
    assert_eq!((pool.shown("beta"), pool.shown("")), ("beta", "anonymous"));
}

#[test]
fn an_error_page_is_no_service() {
    let mut world = world(3);
    world.say(1, Said::Register(of("acme", 1)));
    let failed = wire::Completed {
        sequence: 1,
        endpoint: SERVER.into(),
        status: 500,
        end: wire::EndReason::Served.into(),
        ..Default::default()
    };
    world.say(1, Said::Completed(failed));
    assert_eq!(served(&world), (vec![("acme".into(), 0)], 0));
}

#[test]
fn a_flow_that_is_idle_for_ten_minutes_gives_its_place_to_another() {
    let mut world = world(2);
    for (sequence, flow) in [(1, "a"), (2, "b"), (3, "c")] {
        serve(&mut world, of(flow, sequence));
    }
    let names = |world: &World| served(world).0.into_iter().map(|(it, _)| it).collect::<Vec<_>>();
    assert_eq!(names(&world), ["a", "b"]);
    world.pass_beating(300, &[1]);
    serve(&mut world, of("b", 4));
    // One that runs for so long isn't idle.
    world.say(1, Said::Register(of("a", 5)));
    world.pass_beating(599, &[1]);
    assert_eq!(names(&world), ["a", "b"]);
    world.pass(Duration::from_secs(1));
    world.say(1, Said::Heartbeat(wire::Heartbeat {}));
    assert_eq!(names(&world), ["a"]);
    world.say(1, completed(5));
    serve(&mut world, of("c", 6));
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

/// The same pool whose flows share by what they used of late.
fn by_usage() -> World {
    let mut settings = settings();
    settings.pools[0].policy.flows.discipline = Discipline::Usage;
    let mut world = World::with(settings);
    world.hello(1, 1, Vec::new(), Vec::new());
    world.take();
    world
}

#[test]
fn what_is_settled_is_said_where_it_counts_in_a_window() {
    let mut world = by_usage();
    let private = wire::Register {
        fairness_id_private: true,
        ..of("acme", 1)
    };
    world.say(1, Said::Register(private));
    assert!(world.take().used.is_empty(), "it isn't settled");
    world.say(1, completed(1));
    let used = world.take().used;
    let model: Box<str> = register(1).model.into();
    let expected = PastUsage {
        model,
        ..past("acme", COST)
    };
    assert_eq!(used, [("chat".into(), expected)]);
    let mut plain = self::world(10);
    plain.say(1, Said::Register(of("acme", 1)));
    plain.say(1, completed(1));
    assert!(plain.take().used.is_empty(), "there is no window");
}

#[test]
fn what_is_told_of_the_past_puts_its_flow_last_and_shows_nobody() {
    let mut world = by_usage();
    let model: Box<str> = register(1).model.into();
    let told = |pool: &str| Event::Used {
        pool: pool.into(),
        past: vec![PastUsage {
            model: model.clone(),
            ..past("heavy", 1_000)
        }],
    };
    world.handle(told("nobody's"));
    world.handle(told("chat"));
    assert_eq!(served(&world), (Vec::new(), 0));
    let hidden = pool(&world);
    assert_eq!(hidden.shown("heavy"), "other");
    world.say(1, Said::Register(of("first", 1)));
    world.say(1, Said::Register(of("heavy", 2)));
    world.say(1, Said::Register(of("light", 3)));
    world.take();
    world.say(1, completed(1));
    assert_eq!(world.take().granted(), [3]);
}
