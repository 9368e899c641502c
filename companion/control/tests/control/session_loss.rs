//! Sessions that close: their requests are orphaned, released, or handed over to another companion.

use std::time::Duration;

use penstock_control::{ConnId, Door, Event, Settings};
use penstock_engine::Outcome;
use penstock_wire as wire;
use wire::command::Kind;
use wire::filter_frame::Event as Message;

use crate::harness::*;

#[test]
fn an_orphaned_session_keeps_its_stock_for_the_grace_period() {
    let mut world = World::established();
    world.send(1, Message::Register(register(1)));
    world.send(1, Message::Register(register(2)));
    world.take();
    world.close(1);
    assert_eq!(world.take().orphaned, [(1, 1)]);
    world.pass(Duration::from_millis(4_999));
    assert_eq!((world.stock(), world.waiting()), (1, 1));
    world.pass(Duration::from_millis(1));
    assert_eq!((world.stock(), world.waiting()), (0, 0));
    assert!(world.control.is_idle());
    assert!(world.control.status(world.now).sessions.is_empty());
}

#[test]
fn bye_releases_at_once() {
    let mut world = World::established();
    world.send(1, Message::Register(register(1)));
    world.send(1, Message::Bye(wire::Bye {}));
    assert_eq!(world.stock(), 0);
    let taken = world.take();
    assert_eq!((taken.closed, taken.orphaned), (vec![1], vec![]));
}

#[test]
fn suspended_requests_delay_no_others_and_keep_their_place() {
    let mut world = World::new();
    for conn in [1, 2] {
        world.greet(conn, filter(conn), Vec::new(), Vec::new());
    }
    world.send(1, Message::Register(register(1)));
    for (sequence, conn) in [(2, 1), (3, 2), (4, 1), (5, 2)] {
        world.pass(Duration::from_millis(1));
        world.send(conn, Message::Register(register(sequence)));
    }
    world.take();
    world.close(1);
    let status = world.control.status(world.now);
    let pool = &status.pools[0];
    assert_eq!((pool.orphaned_stock, pool.orphaned_waiting, world.waiting()), (1, 2, 4));
    // The running request can't end without its session, so the session comes back.
    let back = |stream| Filter { stream, ..filter(1) };
    world.greet(3, back(2), vec![register(2), register(4)], vec![runs(1)]);
    assert_eq!(world.take().counts(), (0, 0, 0));
    world.send(3, completed(1));
    assert_eq!(world.take().granted(), [2], "the first to have come");
    world.close(3);
    world.greet(4, back(3), vec![register(4)], Vec::new());
    world.send(4, completed(2));
    world.close(4);
    // The place that becomes free meanwhile goes to the other session's request.
    let taken = world.take();
    assert_eq!(taken.granted(), [3]);
    world.send(2, completed(3));
    assert_eq!(world.take().granted(), [5], "the fourth is passed by");
    world.greet(5, back(4), vec![register(4)], Vec::new());
    world.send(2, completed(5));
    assert_eq!(world.take().granted(), [4]);
}

#[test]
fn a_suspended_request_that_the_hello_does_not_name_is_cancelled() {
    let mut world = World::established();
    for sequence in 1..=3 {
        world.send(1, Message::Register(register(sequence)));
    }
    world.take();
    world.close(1);
    world.open_session(2, 2, vec![register(3)], vec![runs(1)]);
    world.send(2, completed(1));
    assert_eq!(world.take().granted(), [3], "the second is passed by");
    world.send(2, Message::Heartbeat(wire::Heartbeat::default()));
    assert_eq!(world.take().outcomes, [Outcome::Cancelled]);
}

#[test]
fn a_request_that_another_companion_granted_leaves_the_queue_as_the_same_request() {
    for elsewhere in [false, true] {
        let mut world = World::established();
        world.send(1, Message::Register(register(1)));
        world.send(1, Message::Register(register(2)));
        assert_eq!(world.take().counts(), (2, 1, 0));
        world.close(1);
        let address = if elsewhere { "10.0.0.1:1" } else { SERVER };
        world.open_session(2, 2, Vec::new(), vec![runs(1), runs_as(register(2), address)]);
        let taken = world.take();
        assert_eq!(taken.counts(), (0, 1, 0));
        assert_eq!(taken.outcomes, [Outcome::Dispatched]);
        let stock = if elsewhere { 1 } else { 2 };
        assert_eq!((world.stock(), world.waiting()), (stock, 0));
        for sequence in [1, 2] {
            world.send(2, completed_at(sequence, address));
        }
        assert!(world.control.is_idle());
        assert_eq!(world.stock(), 0);
    }
}

#[test]
fn a_request_that_expired_meanwhile_is_rejected_when_it_is_registered_again() {
    let mut world = World::with(Settings { ..settings() });
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.send(1, Message::Register(register(1)));
    let soon = wire::Register { deadline_ms: Some(1_000), ..register(2) };
    world.send(1, Message::Register(soon.clone()));
    world.take();
    world.close(1);
    world.pass(Duration::from_secs(2));
    assert_eq!(world.take().outcomes, [Outcome::DeadlineExceeded]);
    let back = |stream| Filter { stream, ..filter(1) };
    for stream in [2, 3] {
        world.greet(stream.into(), back(stream), vec![soon.clone()], vec![runs(1)]);
        let taken = world.take();
        assert_eq!(taken.rejected(), [(2, "deadline_exceeded", 504)]);
        assert_eq!(taken.counts(), (0, 0, 0), "it has its outcome");
        world.close(stream.into());
    }
}

#[test]
fn a_bye_grants_no_request_of_its_own_session() {
    let mut world = World::established();
    for sequence in 1..=3 {
        world.send(1, Message::Register(register(sequence)));
    }
    world.take();
    world.send(1, Message::Bye(wire::Bye {}));
    let taken = world.take();
    assert_eq!(taken.granted(), [] as [u64; 0]);
    assert_eq!(taken.outcomes, [Outcome::Cancelled; 2]);
    assert!(world.control.is_idle());
}

#[test]
fn a_hand_over_says_bye_to_every_session_and_grants_nothing() {
    let mut world = World::new();
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.send(1, Message::Register(register(1)));
    world.send(1, Message::Register(register(2)));
    world.greet(2, filter(2), Vec::new(), Vec::new());
    world.open(3);
    world.take();
    world.control.handle(world.now, Event::HandOver);
    let taken = world.take();
    let bye = || Kind::Bye(wire::Bye {});
    assert_eq!(taken.commands, [(1, bye()), (2, bye()), (3, bye())]);
    assert_eq!((taken.closed, taken.outcomes), (vec![1, 2, 3], vec![]));
    assert!(world.control.status(world.now).handed_over);
    assert_eq!(world.control.poll_timeout(), None);
    let now = world.now;
    for conn in [1, 2] {
        world.control.handle(now, Event::Closed(ConnId(conn)));
    }
    world.control.handle(now, Event::Opened(ConnId(4), Door::Filter));
    world.control.handle_timeout(now.after(Duration::from_secs(60)));
    let taken = world.take();
    assert_eq!((taken.commands, taken.closed, taken.outcomes), (vec![], vec![4], vec![]));
}

#[test]
fn grants_from_before_the_hand_over_are_sent() {
    let mut world = World::established();
    world.send(1, Message::Register(register(1)));
    world.control.handle(world.now, Event::HandOver);
    let taken = world.take();
    assert_eq!(taken.granted(), [1]);
    assert_eq!(taken.commands.last(), Some(&(1, Kind::Bye(wire::Bye {}))));
}

#[test]
fn time_in_suspend_does_not_count_as_silence() {
    let mut world = World::established();
    world.send(1, Message::Register(register(1)));
    world.send(1, Message::Register(register(2)));
    world.take();
    // Suspended for a minute: the timers fire before the messages that wait are read.
    world.now = world.now.after(Duration::from_secs(60));
    world.control.handle_timeout(world.now);
    let taken = world.take();
    assert_eq!(
        (taken.closed, taken.orphaned, taken.outcomes),
        (vec![], vec![], vec![Outcome::ExpiredTtl]),
        "a client's time runs on, the session's doesn't"
    );
    // The filter has given up the stream meanwhile, and names the requests without an answer.
    world.open_session(2, 2, vec![register(2)], vec![runs(1)]);
    let taken = world.take();
    assert_eq!(taken.counts(), (0, 0, 0), "both are known");
    assert_eq!(world.stock(), 1);
    world.close(2);
    world.now = world.now.after(Duration::from_secs(60));
    world.control.handle_timeout(world.now);
    assert_eq!(world.stock(), 1, "the grace is for the filter, which may be there");
    world.pass(Duration::from_secs(5));
    assert_eq!(world.stock(), 0);
}
