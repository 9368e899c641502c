//! Filters of several protocol versions at one companion.

use penstock_control::{Event, Settings};
use penstock_wire as wire;
use wire::command::Kind;
use wire::filter_frame::Event as Message;

use crate::harness::*;

#[test]
fn without_a_common_version_the_session_is_closed() {
    let mut world = World::new();
    world.open(1);
    let mut hello = hello(filter(2), Vec::new(), Vec::new());
    (hello.version_min, hello.version_max) = (9, 9);
    world.send(1, Message::Hello(hello));
    let taken = world.take();
    assert_eq!(taken.commands, [(1, Kind::HelloAck(wire::HelloAck { version: 0, term: 7 }))]);
    assert_eq!(taken.closed, [1]);
}

#[test]
fn an_old_filter_gets_its_version() {
    let mut world = World::new();
    let old = Filter { version: 1, envoy: 0, ..filter(2) };
    world.greet(1, old, Vec::new(), Vec::new());
    world.send(1, Message::Register(register(1)));
    let taken = world.take();
    assert_eq!(taken.commands[0], (1, Kind::HelloAck(wire::HelloAck { version: 1, term: 7 })));
    assert!(!taken.grants()[0].1.requeue, "it has nowhere to enter again");
    world.send(1, completed(1));
    assert!(world.control.is_idle());
}

#[test]
fn a_newer_filter_gets_the_companions_version() {
    let mut world = World::new();
    let later = Filter { version: 9, ..filter(2) };
    world.greet(1, later, Vec::new(), Vec::new());
    let taken = world.take();
    assert_eq!(taken.commands[0], (1, Kind::HelloAck(wire::HelloAck { version: 4, term: 7 })));
}

#[test]
fn filters_of_both_versions_share_a_companion_over_an_upgrade() {
    let mut world = World::new();
    let old = Filter { version: 1, envoy: 0, ..filter(1) };
    world.greet(1, old, Vec::new(), vec![runs(1)]);
    world.greet(2, filter(2), vec![register(1)], Vec::new());
    assert_eq!((world.stock(), world.waiting()), (1, 1));
    assert_eq!(world.control.status(world.now).envoys, 2);
    world.take();
    world.send(1, completed(1));
    let taken = world.take();
    assert_eq!(taken.grants()[0].0, 2);
    // The same filter, reloaded in the newer version: another root context of the same Envoy.
    world.send(1, Message::Bye(wire::Bye {}));
    world.greet(3, filter(3), Vec::new(), Vec::new());
    assert_eq!(world.control.status(world.now).envoys, 1);
}

/// The settings of a gateway whose tenants have API keys.
fn with_api_keys() -> Settings {
    let mut settings = settings();
    settings.policy.digest = "d2".into();
    settings.policy.identity =
        Some(wire::Identity { api_keys: Some(wire::ApiKeys::default()), ..Default::default() });
    settings
}

fn checking(filter: Filter) -> wire::Hello {
    wire::Hello { checks_api_keys: true, ..hello(filter, Vec::new(), Vec::new()) }
}

const REFUSED: Kind = Kind::HelloAck(wire::HelloAck { version: 0, term: 7 });

#[test]
fn with_api_keys_a_filter_that_does_not_check_them_gets_no_session() {
    let mut world = World::with(with_api_keys());
    world.open(1);
    world.send(1, Message::Hello(hello(filter(1), Vec::new(), Vec::new())));
    let taken = world.take();
    assert_eq!(taken.commands, [(1, REFUSED)]);
    assert_eq!((taken.closed, taken.outdated), (vec![1], 1));
    world.open(2);
    world.send(2, Message::Hello(checking(filter(2))));
    let taken = world.take();
    assert_eq!((taken.closed, taken.outdated), (vec![], 0));
    assert_eq!(world.control.status(world.now).envoys, 1);
}

#[test]
fn new_api_keys_end_the_sessions_of_filters_that_do_not_check_them() {
    let mut world = World::new();
    for (conn, hello) in [(1, hello(filter(1), Vec::new(), Vec::new())), (2, checking(filter(2)))] {
        world.open(conn);
        world.send(conn, Message::Hello(hello));
    }
    world.take();
    world.handle(Event::Settings(Box::new(with_api_keys())));
    let taken = world.take();
    assert_eq!((taken.closed, taken.outdated), (vec![1], 1));
    assert!(taken.commands.contains(&(1, REFUSED)), "{:?}", taken.commands);
    let policies = taken.commands.iter().filter(|(_, kind)| matches!(kind, Kind::Policy(_)));
    assert_eq!(policies.map(|(conn, _)| *conn).collect::<Vec<_>>(), [2]);
}
