//! Filters with other ranges of protocol versions than the companion.

use penstock_wire as wire;
use wire::command::Kind;
use wire::filter_frame::Event as Message;
use wire::limits::{VERSION_MAX, VERSION_MIN};

use crate::harness::*;

/// What a companion sends to a filter with these versions, and whether it closes the stream.
fn greeted(version_min: u32, version_max: u32) -> (Kind, bool) {
    let mut world = World::new();
    world.open(1);
    let hello = wire::Hello { version_min, version_max, ..hello(filter(2), Vec::new(), Vec::new()) };
    world.send(1, Message::Hello(hello));
    let mut taken = world.take();
    (taken.commands.remove(0).1, taken.closed == [1])
}

fn hello_ack(version: u32) -> Kind {
    Kind::HelloAck(wire::HelloAck { version, term: 7 })
}

#[test]
fn without_a_common_version_the_session_is_closed() {
    assert_eq!(greeted(VERSION_MAX + 1, VERSION_MAX + 2), (hello_ack(0), true));
    assert_eq!(greeted(0, VERSION_MIN - 1), (hello_ack(0), true));
}

#[test]
fn a_newer_filter_gets_the_companions_version() {
    assert_eq!(greeted(VERSION_MIN, VERSION_MAX + 2), (hello_ack(VERSION_MAX), false));
}

#[test]
fn an_older_filter_gets_its_version() {
    assert_eq!(greeted(0, VERSION_MIN), (hello_ack(VERSION_MIN), false));
}
