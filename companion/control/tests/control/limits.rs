//! Limits: a filter with wrong messages can't make the companion keep more.

use penstock_control::{ConnId, Door, Event};
use penstock_engine::Instant;
use penstock_wire as wire;
use wire::filter_frame::Event as Message;

use crate::harness::*;

const STREAMS: u64 = 65_536;
const CONTEXTS: u64 = 32_768;
const REQUESTS: u64 = 65_536;

/// Without the audit after each event, whose time grows with the state.
fn send(world: &mut World, conn: u64, seq: u64, message: Message) {
    let frame = wire::FilterFrame { seq, ack: 0, admitted: Vec::new(), event: Some(message) };
    let event = Event::Frame(ConnId(conn), Box::new(frame));
    world.control.handle(Instant::ZERO, event);
}

#[test]
fn streams_have_a_limit() {
    let mut world = World::new();
    for conn in 0..=STREAMS {
        world.control.handle(Instant::ZERO, Event::Opened(ConnId(conn), Door::Filter));
    }
    assert_eq!(world.take().closed, [STREAMS]);
    world.close(0);
    world.open(STREAMS + 1);
    assert_eq!(world.take().closed, [] as [u64; 0]);
}

#[test]
fn root_contexts_have_a_limit() {
    let mut world = World::new();
    for conn in 0..=CONTEXTS {
        world.control.handle(Instant::ZERO, Event::Opened(ConnId(conn), Door::Filter));
        send(&mut world, conn, 1, Message::Hello(hello(filter(conn), Vec::new(), Vec::new())));
    }
    assert_eq!(world.take().closed, [CONTEXTS]);
    world.audit();
    // A known root context may always open another stream.
    let again = Filter { stream: 2, ..filter(0) };
    world.greet(CONTEXTS + 1, again, Vec::new(), Vec::new());
    assert_eq!(world.take().closed, [0]);
}

#[test]
fn the_requests_of_a_filter_have_a_limit() {
    let mut world = World::new();
    world.open(1);
    let mut sequences = 1..=REQUESTS;
    let parts = REQUESTS / wire::limits::HELLO_PART_REQUESTS as u64;
    for part in 0..parts {
        let named = sequences.by_ref().take(wire::limits::HELLO_PART_REQUESTS);
        let said = wire::Hello {
            part: u32::try_from(part).expect("few parts"),
            last: part == parts - 1,
            ..hello(filter(1), named.map(register).collect(), Vec::new())
        };
        send(&mut world, 1, part + 1, Message::Hello(said));
    }
    assert_eq!(world.take().arrived as u64, REQUESTS);
    send(&mut world, 1, parts + 1, Message::Register(register(REQUESTS + 1)));
    let taken = world.take();
    assert_eq!(taken.rejected(), [(REQUESTS + 1, "queue_full", 503)]);
    assert_eq!(taken.counts(), (1, 1, 0));
    world.audit();
}
