//! Evictions: a filter is asked to end a sheddable request for a critical one, and reports what became of it.

use std::time::Duration;

use penstock_control::{Event, Settings};
use penstock_wire as wire;
use wire::command::Kind;
use wire::filter_frame::Event as Message;

use crate::harness::*;

fn evicting() -> Settings {
    let mut settings = settings();
    settings.pools[0].policy.eviction = Some(Duration::from_secs(1));
    settings
}

/// Request 1.
fn sheddable() -> wire::Register {
    wire::Register { priority: "sheddable".into(), ..register(1) }
}

/// Request 1 as a stream that has received comments while it waited.
fn kept_alive() -> wire::Register {
    wire::Register { moved: true, ..sheddable() }
}

/// Request 2, which has waited for long.
fn critical() -> wire::Register {
    wire::Register { priority: "critical".into(), age_us: 5_000_000, ..register(2) }
}

/// The sheddable request 1 runs at the only place, and the critical request 2 has waited for a second.
fn overdue() -> World {
    let mut world = World::with(evicting());
    world.open_session(1, 1, Vec::new(), Vec::new());
    world.send(1, Message::Register(sheddable()));
    world.send(1, Message::Register(wire::Register { age_us: 0, ..critical() }));
    assert_eq!(world.take().granted(), [1]);
    world.pass(Duration::from_millis(1_100));
    world
}

/// The answers with which requests are to end, by stream.
fn evicted(taken: &Taken) -> Vec<(u64, wire::Reject)> {
    let evicted = taken.commands.iter().filter_map(|(conn, kind)| match kind {
        Kind::Evict(evict) => Some((*conn, evict.answer.clone()?)),
        _ => None,
    });
    evicted.collect()
}

/// The filter has answered the client of request 1.
fn ended() -> Message {
    Message::Completed(wire::Completed {
        sequence: 1,
        endpoint: SERVER.into(),
        status: 429,
        end: wire::EndReason::Evicted.into(),
        ..Default::default()
    })
}

#[test]
fn the_filter_gets_the_answer_and_reports_the_end() {
    let mut world = overdue();
    let taken = world.take();
    let asked = evicted(&taken);
    let [(1, answer)] = &asked[..] else { panic!("{taken:?}") };
    assert_eq!((answer.sequence, answer.status), (1, 429));
    assert_eq!([&answer.code, &answer.outcome], ["evicted", "evicted"]);
    assert!(answer.retry_after_ms.is_some() && !answer.r#final && answer.message.contains("(eviction)"));
    assert_eq!((world.stock(), world.waiting()), (1, 1), "it runs until its filter says otherwise");
    world.send(1, ended());
    let taken = world.take();
    assert_eq!(taken.granted(), [2]);
    assert_eq!(taken.second, [("evicted".into(), 0)]);
    assert_eq!((world.stock(), world.waiting()), (1, 0));
}

#[test]
fn a_request_whose_server_responds_runs_on() {
    let mut world = overdue();
    assert_eq!(evicted(&world.take()).len(), 1);
    world.send(1, started(1, SERVER, 0));
    world.pass_beating(5, &[1]);
    let taken = world.take();
    assert!(evicted(&taken).is_empty() && taken.granted().is_empty(), "{taken:?}");
    world.send(1, completed(1));
    let taken = world.take();
    assert_eq!((taken.granted(), taken.second), (vec![2], vec![]));
}

#[test]
fn a_command_that_was_lost_with_its_stream_is_repeated() {
    let mut world = overdue();
    world.take();
    world.close(1);
    let running = wire::Running { started: false, ..runs_as(sheddable(), SERVER) };
    let waiting = wire::Register { age_us: 0, ..critical() };
    world.open_session(2, 2, vec![waiting.clone()], vec![running.clone()]);
    let taken = world.take();
    let asked = evicted(&taken);
    let [(2, answer)] = &asked[..] else { panic!("{taken:?}") };
    assert_eq!(answer.sequence, 1);
    // Its server responds by the next time.
    world.close(2);
    world.open_session(3, 3, vec![waiting], vec![wire::Running { started: true, ..running }]);
    assert!(evicted(&world.take()).is_empty());
}

#[test]
fn a_new_companion_asks_for_the_end_of_what_runs_already() {
    let mut world = World::with(evicting());
    let running = wire::Running { started: false, ..runs_as(sheddable(), SERVER) };
    world.pass(Duration::from_secs(10));
    world.open_session(1, 1, vec![critical()], vec![running]);
    assert_eq!(evicted(&world.take()).len(), 1, "request 2 has waited for long, at another companion");
}

#[test]
fn a_stream_that_was_kept_alive_runs_on() {
    let mut world = World::with(evicting());
    world.open_session(1, 1, vec![kept_alive()], Vec::new());
    assert_eq!(world.take().granted(), [1]);
    world.send(1, Message::Register(critical()));
    world.pass_beating(5, &[1]);
    assert!(evicted(&world.take()).is_empty());
    // Also at a new companion, which hears that no server has begun to respond.
    let mut world = World::with(evicting());
    world.pass(Duration::from_secs(10));
    let running = wire::Running { started: false, ..runs_as(kept_alive(), SERVER) };
    world.open_session(1, 1, vec![critical()], vec![running]);
    world.pass_beating(5, &[1]);
    assert!(evicted(&world.take()).is_empty());
}

#[test]
fn eviction_that_is_switched_on_later_spares_what_has_begun() {
    // What runs, whether its server has begun to respond, and how many are evicted.
    let cases = [(kept_alive(), false, 0), (sheddable(), true, 0), (sheddable(), false, 1)];
    for (running, has_begun, expected) in cases {
        let mut world = World::new();
        world.open_session(1, 1, vec![running], Vec::new());
        if has_begun {
            world.send(1, started(1, SERVER, 0));
        }
        world.send(1, Message::Register(critical()));
        world.handle(Event::Settings(Box::new(evicting())));
        world.pass_beating(5, &[1]);
        assert_eq!(evicted(&world.take()).len(), expected);
    }
}
