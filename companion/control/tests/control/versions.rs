//! Filters of several protocol versions at one companion.

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
    assert_eq!(
        taken.commands,
        [(1, Kind::HelloAck(wire::HelloAck { version: 0, term: 7 }))]
    );
    assert_eq!(taken.closed, [1]);
}

#[test]
fn an_old_filter_gets_its_version() {
    let mut world = World::new();
    let old = Filter {
        version: 1,
        envoy: 0,
        ..filter(2)
    };
    world.greet(1, old, Vec::new(), Vec::new());
    world.send(1, Message::Register(register(1)));
    let taken = world.take();
    assert_eq!(
        taken.commands[0],
        (1, Kind::HelloAck(wire::HelloAck { version: 1, term: 7 }))
    );
    assert!(!taken.grants()[0].1.requeue, "it has nowhere to enter again");
    world.send(1, completed(1));
    assert!(world.control.is_idle());
}

#[test]
fn a_newer_filter_gets_the_companions_version() {
    let mut world = World::new();
    let later = Filter {
        version: 9,
        ..filter(2)
    };
    world.greet(1, later, Vec::new(), Vec::new());
    let taken = world.take();
    assert_eq!(
        taken.commands[0],
        (1, Kind::HelloAck(wire::HelloAck { version: 3, term: 7 }))
    );
}

#[test]
fn filters_of_both_versions_share_a_companion_over_an_upgrade() {
    let mut world = World::new();
    let old = Filter {
        version: 1,
        envoy: 0,
        ..filter(1)
    };
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
