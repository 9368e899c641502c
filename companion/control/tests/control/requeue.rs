//! A request that no endpoint took is requeued under another key: one request, one outcome, its old place.

use std::time::Duration;

use penstock_control::{Event, PoolEvent};
use penstock_wire as wire;
use wire::filter_frame::Event as Message;

use crate::harness::*;

/// Two filters of one Envoy, on streams 1 and 2, and two servers that take one request each. Request 1 of the first filter
/// is granted.
fn world() -> World {
    let mut world = World::with(settings_of(&[SERVER, SECOND]));
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.greet(2, filter(2), Vec::new(), Vec::new());
    world.take();
    world.send(1, Message::Register(register(1)));
    let taken = world.take();
    assert_eq!((taken.granted(), taken.counts()), (vec![1], (1, 1, 0)));
    assert!(taken.grants()[0].1.requeue);
    world
}

/// [`world`], where the request waits again as 9 of the second filter: one server has gone, the other is busy with that
/// filter's 1.
fn waiting_again() -> World {
    let mut world = world();
    world.send(2, Message::Register(register(1)));
    world.handle(Event::Pool(
        "chat".into(),
        PoolEvent::EndpointReady { address: SERVER.into(), ready: false },
    ));
    world.send(2, Message::Register(again(9, 1, 1)));
    let taken = world.take();
    assert_eq!((taken.granted(), taken.counts()), (vec![1], (1, 1, 0)));
    assert_eq!((world.stock(), world.waiting()), (1, 1));
    world
}

/// The end of the first exchange: its response came through the gateway itself.
fn ended(sequence: u64, end: wire::EndReason) -> Message {
    Message::Completed(wire::Completed {
        sequence,
        endpoint: AGAIN.into(),
        status: 200,
        attempts: 3,
        end: end.into(),
        ..Default::default()
    })
}

#[test]
fn a_requeued_request_keeps_its_outcome_under_its_new_key() {
    let mut world = world();
    world.send(2, Message::Register(again(9, 1, 1)));
    let taken = world.take();
    assert_eq!((taken.requeued, taken.counts()), (1, (0, 0, 0)));
    let grants = taken.grants();
    assert_eq!(grants.len(), 1);
    let (conn, grant) = grants[0];
    assert_eq!((conn, grant.sequence, grant.outcome.as_str()), (2, 9, "bypassed"));
    let endpoint = grant.endpoints[0].clone();
    assert!(grant.requeue, "it may fail twice more");
    assert_eq!(world.stock(), 1);
    let status = world.control.status(world.now);
    assert_eq!((status.sessions[0].moved, status.sessions[1].moved), (1, 0));
    // The response of the first exchange is that of the second.
    world.send(1, started(1, AGAIN, 3));
    world.send(1, ended(1, wire::EndReason::Served));
    assert_eq!((world.take(), world.stock()), (Taken::default(), 1));
    assert_eq!(world.control.status(world.now).sessions[0].moved, 0);
    world.send(2, completed_at(9, &endpoint));
    assert_eq!((world.take(), world.stock()), (Taken::default(), 0));
    assert!(world.control.is_idle());
}

/// The request waits on under another key, and no endpoint has anything to do with that.
fn moved(sequence: u64, epoch: u64, before: u64) -> wire::Register {
    wire::Register { requeues: 0, moved: true, ..again(sequence, epoch, before) }
}

#[test]
fn a_request_that_is_moved_while_it_waits_keeps_its_place_and_is_counted_once() {
    let mut world = world();
    for sequence in 2..=4 {
        world.pass(Duration::from_millis(1));
        world.send(1, Message::Register(register(sequence)));
    }
    assert_eq!(world.take().granted(), [2], "on the second server");
    world.send(2, Message::Register(moved(9, 1, 3)));
    let taken = world.take();
    assert_eq!((taken.granted(), taken.counts(), taken.requeued), (vec![], (0, 0, 0), 0));
    assert_eq!(world.waiting(), 2);
    // Its first exchange may end at any time.
    world.send(1, completed(1));
    assert_eq!(world.take().granted(), [9], "before the one that came after it");
    world.send(1, Message::Cancel(wire::Cancel { sequence: 3 }));
    assert_eq!(
        (world.take().counts(), world.stock()),
        ((0, 0, 0), 2),
        "that key isn't the request's any more"
    );
}

#[test]
fn a_grant_that_crosses_a_move_is_given_again_and_blames_no_endpoint() {
    let mut world = World::with(settings_of(&[SERVER]));
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.greet(2, filter(2), Vec::new(), Vec::new());
    world.send(1, Message::Register(register(1)));
    assert_eq!(world.take().granted(), [1]);
    world.send(2, Message::Register(moved(9, 1, 1)));
    let taken = world.take();
    assert_eq!(taken.granted(), [9], "at once and at the same endpoint, because it has failed nothing");
    assert_eq!(taken.grants()[0].1.outcome, "bypassed");
    assert_eq!(world.stock(), 1);
    world.send(2, completed(9));
    assert!(world.control.is_idle());
}

#[test]
fn a_rejection_that_crosses_a_move_is_given_again() {
    let mut settings = settings_of(&[SERVER]);
    settings.pools[0].policy.queue.ttl = Duration::from_secs(1);
    let mut world = World::with(settings);
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.greet(2, filter(2), Vec::new(), Vec::new());
    world.send(1, Message::Register(register(1)));
    world.send(1, Message::Register(register(2)));
    world.take();
    world.pass(Duration::from_secs(1));
    let taken = world.take();
    assert_eq!(taken.rejected(), [(2, "queue_timeout", 503)]);
    world.send(2, Message::Register(moved(9, 1, 2)));
    let taken = world.take();
    assert_eq!(
        (taken.rejected(), taken.counts()),
        (vec![(9, "queue_timeout", 503)], (0, 0, 0)),
        "counted once"
    );
}

#[test]
fn requeues_have_a_limit() {
    let mut settings = settings_of(&[SERVER]);
    settings.pools[0].requeues = Some(1);
    let mut world = World::with(settings);
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.send(1, Message::Register(register(1)));
    assert!(world.take().grants()[0].1.requeue);
    world.send(1, Message::Register(again(2, 1, 1)));
    world.pass(Duration::from_millis(100));
    assert!(!world.take().grants()[0].1.requeue);
}

#[test]
fn a_requeued_request_takes_its_old_place() {
    let mut world = world();
    for sequence in 2..=4 {
        world.pass(Duration::from_millis(1));
        world.send(1, Message::Register(register(sequence)));
    }
    assert_eq!(world.take().granted(), [2], "on the second server");
    // It waits for another endpoint, or for the end of its pause: the one that failed it isn't down for one request.
    world.send(2, Message::Register(again(9, 1, 1)));
    assert_eq!(world.take().granted(), Vec::<u64>::new());
    world.pass(Duration::from_millis(100));
    assert_eq!(world.take().granted(), [9], "the first to have come is the first to go");
    world.send(1, completed(2));
    assert_eq!(world.take().granted(), [3]);
}

#[test]
fn a_client_that_left_before_the_requeue_is_not_waited_for() {
    let mut world = world();
    world.send(1, ended(1, wire::EndReason::ClientLeft));
    assert_eq!(world.take().counts(), (0, 0, 0));
    assert_eq!(world.stock(), 0);
    world.send(2, Message::Register(again(9, 1, 1)));
    let taken = world.take();
    assert_eq!(taken.rejected(), [(9, "cancelled", 499)]);
    assert_eq!(taken.counts(), (0, 0, 0));
    // The rejection is lost, and the filter registers the request again.
    world.close(2);
    let back = Filter { stream: 2, ..filter(2) };
    world.greet(3, back, vec![again(9, 1, 1)], Vec::new());
    let taken = world.take();
    assert_eq!(taken.rejected(), [(9, "cancelled", 499)]);
    assert_eq!(taken.counts(), (0, 0, 0));
    assert!(world.control.is_idle());
}

#[test]
fn a_client_that_leaves_after_the_requeue_is_counted_once() {
    for first_leg_first in [true, false] {
        let mut world = waiting_again();
        let mut leave =
            [(1, ended(1, wire::EndReason::ClientLeft)), (2, Message::Cancel(wire::Cancel { sequence: 9 }))];
        if !first_leg_first {
            leave.reverse();
        }
        for (conn, said) in leave {
            world.send(conn, said);
        }
        assert_eq!(world.take().counts(), (0, 0, 0));
        assert_eq!((world.stock(), world.waiting()), (1, 0));
        assert_eq!(world.control.status(world.now).sessions[0].moved, 0);
    }
}

#[test]
fn a_new_hello_of_the_old_session_changes_nothing() {
    for runs_now in [false, true] {
        let mut world = if runs_now {
            let mut world = world();
            world.send(2, Message::Register(again(9, 1, 1)));
            world.take();
            world
        } else {
            waiting_again()
        };
        let before = (world.stock(), world.waiting());
        world.close(1);
        let stream = |stream| Filter { stream, ..filter(1) };
        world.greet(3, stream(2), Vec::new(), vec![runs(1)]);
        assert_eq!(world.take().counts(), (0, 0, 0));
        world.send(3, Message::Heartbeat(wire::Heartbeat::default()));
        assert_eq!((world.stock(), world.waiting()), before);
        // The request has ended, and the message is lost: the Hello doesn't name it.
        world.close(3);
        world.greet(4, stream(3), Vec::new(), Vec::new());
        world.send(4, Message::Heartbeat(wire::Heartbeat::default()));
        assert_eq!((world.stock(), world.waiting()), before);
        assert_eq!(world.control.status(world.now).sessions[0].moved, 0);
    }
}

#[test]
fn the_old_session_may_be_released_and_come_back() {
    let mut world = world();
    world.close(1);
    world.send(2, Message::Register(again(9, 1, 1)));
    assert_eq!(world.take().granted(), [9], "of an orphaned session as well");
    world.pass_beating(6, &[2]);
    assert_eq!(world.control.status(world.now).sessions.len(), 1);
    assert_eq!(world.stock(), 1, "it isn't that session's any more");
    let back = Filter { stream: 2, ..filter(1) };
    world.greet(3, back, Vec::new(), vec![runs(1)]);
    assert_eq!(world.take().counts(), (0, 0, 0));
    assert_eq!(world.stock(), 1);
    world.send(2, completed(9));
    world.send(3, ended(1, wire::EndReason::Served));
    assert!(world.control.is_idle());
}

#[test]
fn the_new_session_may_be_orphaned_and_released() {
    let mut world = waiting_again();
    world.close(2);
    world.pass_beating(6, &[1]);
    assert_eq!(world.take().counts(), (0, 0, 0), "it has its outcome");
    assert!(world.control.is_idle());
    // The first exchange ends with it.
    world.send(1, ended(1, wire::EndReason::Unavailable));
    assert_eq!(world.take().counts(), (0, 0, 0));
    assert_eq!(world.control.status(world.now).sessions[0].moved, 0);
}

#[test]
fn an_unconfirmed_request_is_taken_over_too() {
    let mut world = world();
    world.close(1);
    let back = Filter { stream: 2, ..filter(1) };
    world.greet(3, back, Vec::new(), Vec::new());
    world.send(2, Message::Register(again(9, 1, 1)));
    assert_eq!(world.take().granted(), [9]);
    world.send(3, Message::Heartbeat(wire::Heartbeat::default()));
    assert_eq!(world.stock(), 1, "what took its place isn't released with it");
}

#[test]
fn another_envoy_cannot_take_a_request_over() {
    let mut world = world();
    let other = Filter { envoy: 78, ..filter(3) };
    world.greet(3, other, Vec::new(), Vec::new());
    world.take();
    world.send(3, Message::Register(again(9, 1, 1)));
    let taken = world.take();
    assert_eq!((taken.requeued, taken.counts()), (0, (1, 1, 0)), "a request like any other");
    world.send(1, completed(1));
    world.send(3, completed(9));
    assert!(world.control.is_idle());
}

#[test]
fn a_request_is_taken_over_once() {
    let mut world = world();
    world.send(2, Message::Register(again(9, 1, 1)));
    world.send(2, Message::Register(again(9, 1, 1)));
    world.send(2, Message::Register(again(10, 1, 1)));
    let taken = world.take();
    assert_eq!((taken.requeued, taken.counts()), (1, (1, 1, 0)), "the other stands for itself");
    assert_eq!(taken.granted(), [9, 10]);
}

#[test]
fn a_third_exchange_follows_the_second() {
    let mut world = world();
    world.send(2, Message::Register(again(9, 1, 1)));
    let third = wire::Register { requeues: 2, ..again(2, 2, 9) };
    world.send(1, Message::Register(third));
    world.pass(Duration::from_millis(200));
    let taken = world.take();
    assert_eq!((taken.requeued, taken.granted(), taken.counts()), (2, vec![9, 2], (0, 0, 0)));
    world.send(2, ended(9, wire::EndReason::Served));
    world.send(1, ended(1, wire::EndReason::Served));
    assert_eq!(world.stock(), 1);
    world.send(1, completed(2));
    assert!(world.control.is_idle());
}
