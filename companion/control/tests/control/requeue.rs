//! A request that no server took enters again under another name: one request, one outcome, its old place.

use std::time::Duration;

use penstock_control::Event;
use penstock_wire as wire;
use wire::filter_frame::Event as Said;

use crate::harness::*;

/// Two filters of one Envoy, on streams 1 and 2, and two servers that take one request each. What the first filter
/// calls 1 is granted.
fn world() -> World {
    let mut world = World::with(settings_of(&[SERVER, SECOND]));
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.greet(2, filter(2), Vec::new(), Vec::new());
    world.take();
    world.say(1, Said::Register(register(1)));
    let taken = world.take();
    assert_eq!((taken.granted(), taken.counts()), (vec![1], (1, 1, 0)));
    assert!(taken.grants()[0].1.requeue);
    world
}

/// The same, where it waits again as 9 of the second filter: one server has gone, the other is busy with that
/// filter's 1.
fn waiting_again() -> World {
    let mut world = world();
    world.say(2, Said::Register(register(1)));
    world.handle(Event::EndpointReady {
        pool: "chat".into(),
        address: SERVER.into(),
        ready: false,
    });
    world.say(2, Said::Register(again(9, 1, 1)));
    let taken = world.take();
    assert_eq!((taken.granted(), taken.counts()), (vec![1], (1, 1, 0)));
    assert_eq!((world.stock(), world.waiting()), (1, 1));
    world
}

/// The first leg's own end: its answer came through the gateway itself.
fn ended(sequence: u64, end: wire::EndReason) -> Said {
    Said::Completed(wire::Completed {
        sequence,
        endpoint: AGAIN.into(),
        status: 200,
        attempts: 3,
        end: end.into(),
        ..Default::default()
    })
}

#[test]
fn it_goes_on_under_its_new_name_with_its_old_outcome() {
    let mut world = world();
    world.say(2, Said::Register(again(9, 1, 1)));
    let taken = world.take();
    assert_eq!((taken.requeued, taken.counts()), (1, (0, 0, 0)));
    let grants = taken.grants();
    assert_eq!(grants.len(), 1);
    let (conn, grant) = grants[0];
    assert_eq!((conn, grant.sequence, grant.outcome.as_str()), (2, 9, "bypassed"));
    assert!(grant.requeue, "it may fail twice more");
    assert_eq!(world.stock(), 1);
    let status = world.control.status(world.now);
    assert_eq!((status.sessions[0].moved, status.sessions[1].moved), (1, 0));
    // The first leg's answer is the second's.
    world.say(1, started(1, AGAIN, 3));
    world.say(1, ended(1, wire::EndReason::Served));
    assert_eq!((world.take(), world.stock()), (Taken::default(), 1));
    assert_eq!(world.control.status(world.now).sessions[0].moved, 0);
    world.say(2, completed(9));
    assert_eq!((world.take(), world.stock()), (Taken::default(), 0));
    assert!(world.control.is_idle());
}

#[test]
fn it_is_used_up() {
    let mut settings = settings_of(&[SERVER]);
    settings.pools[0].requeues = 1;
    let mut world = World::with(settings);
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.say(1, Said::Register(register(1)));
    assert!(world.take().grants()[0].1.requeue);
    world.say(1, Said::Register(again(2, 1, 1)));
    assert!(!world.take().grants()[0].1.requeue);
}

#[test]
fn it_takes_its_old_place() {
    let mut world = world();
    for sequence in 2..=4 {
        world.pass(Duration::from_millis(1));
        world.say(1, Said::Register(register(sequence)));
    }
    assert_eq!(world.take().granted(), [2], "on the second server");
    // It failed on both: neither is down for one request.
    world.say(2, Said::Register(again(9, 1, 1)));
    assert_eq!(
        world.take().granted(),
        [9],
        "the first to have come is the first to go"
    );
    world.say(1, completed(2));
    assert_eq!(world.take().granted(), [3]);
}

#[test]
fn whoever_left_before_it_entered_again_is_not_waited_for() {
    let mut world = world();
    world.say(1, ended(1, wire::EndReason::ClientLeft));
    assert_eq!(world.take().counts(), (0, 0, 0));
    assert_eq!(world.stock(), 0);
    world.say(2, Said::Register(again(9, 1, 1)));
    let taken = world.take();
    assert_eq!(taken.rejected(), [(9, "cancelled", 499)]);
    assert_eq!(taken.counts(), (0, 0, 0));
    // The answer is lost, it asks again.
    world.close(2);
    let back = Filter {
        stream: 2,
        ..filter(2)
    };
    world.greet(3, back, vec![again(9, 1, 1)], Vec::new());
    let taken = world.take();
    assert_eq!(taken.rejected(), [(9, "cancelled", 499)]);
    assert_eq!(taken.counts(), (0, 0, 0));
    assert!(world.control.is_idle());
}

#[test]
fn a_client_that_leaves_while_it_waits_again_is_counted_once() {
    for first_leg_first in [true, false] {
        let mut world = waiting_again();
        let mut leave = [
            (1, ended(1, wire::EndReason::ClientLeft)),
            (2, Said::Cancel(wire::Cancel { sequence: 9 })),
        ];
        if !first_leg_first {
            leave.reverse();
        }
        for (conn, said) in leave {
            world.say(conn, said);
        }
        assert_eq!(world.take().counts(), (0, 0, 0));
        assert_eq!((world.stock(), world.waiting()), (1, 0));
        assert_eq!(world.control.status(world.now).sessions[0].moved, 0);
    }
}

#[test]
fn its_old_session_may_come_again_and_change_nothing() {
    for runs_now in [false, true] {
        let mut world = if runs_now {
            let mut world = world();
            world.say(2, Said::Register(again(9, 1, 1)));
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
        world.say(3, Said::Heartbeat(wire::Heartbeat {}));
        assert_eq!((world.stock(), world.waiting()), before);
        // Ended, and its end was lost: it is no longer named.
        world.close(3);
        world.greet(4, stream(3), Vec::new(), Vec::new());
        world.say(4, Said::Heartbeat(wire::Heartbeat {}));
        assert_eq!((world.stock(), world.waiting()), before);
        assert_eq!(world.control.status(world.now).sessions[0].moved, 0);
    }
}

#[test]
fn its_old_session_may_go_for_good_and_come_back() {
    let mut world = world();
    world.close(1);
    world.say(2, Said::Register(again(9, 1, 1)));
    assert_eq!(world.take().granted(), [9], "of an orphaned session as well");
    world.pass_beating(6, &[2]);
    assert_eq!(world.control.status(world.now).sessions.len(), 1);
    assert_eq!(world.stock(), 1, "it isn't that session's any more");
    let back = Filter {
        stream: 2,
        ..filter(1)
    };
    world.greet(3, back, Vec::new(), vec![runs(1)]);
    assert_eq!(world.take().counts(), (0, 0, 0));
    assert_eq!(world.stock(), 1);
    world.say(2, completed(9));
    world.say(3, ended(1, wire::EndReason::Served));
    assert!(world.control.is_idle());
}

#[test]
fn its_new_session_may_be_orphaned_and_released() {
    let mut world = waiting_again();
    world.close(2);
    world.pass_beating(6, &[1]);
    assert_eq!(world.take().counts(), (0, 0, 0), "it has its outcome");
    assert!(world.control.is_idle());
    // The first leg ends with it.
    world.say(1, ended(1, wire::EndReason::Unavailable));
    assert_eq!(world.take().counts(), (0, 0, 0));
    assert_eq!(world.control.status(world.now).sessions[0].moved, 0);
}

#[test]
fn one_whose_first_leg_is_awaited_the_end_of_is_taken_over_too() {
    let mut world = world();
    world.close(1);
    let back = Filter {
        stream: 2,
        ..filter(1)
    };
    world.greet(3, back, Vec::new(), Vec::new());
    world.say(2, Said::Register(again(9, 1, 1)));
    assert_eq!(world.take().granted(), [9]);
    world.say(3, Said::Heartbeat(wire::Heartbeat {}));
    assert_eq!(world.stock(), 1, "what took its place isn't released with it");
}

#[test]
fn another_envoy_takes_nothing_over() {
    let mut world = world();
    let other = Filter {
        envoy: 78,
        ..filter(3)
    };
    world.greet(3, other, Vec::new(), Vec::new());
    world.take();
    world.say(3, Said::Register(again(9, 1, 1)));
    let taken = world.take();
    assert_eq!(
        (taken.requeued, taken.counts()),
        (0, (1, 1, 0)),
        "a request like any other"
    );
    world.say(1, completed(1));
    world.say(3, completed(9));
    assert!(world.control.is_idle());
}

#[test]
fn a_place_is_taken_once() {
    let mut world = world();
    world.say(2, Said::Register(again(9, 1, 1)));
    world.say(2, Said::Register(again(9, 1, 1)));
    world.say(2, Said::Register(again(10, 1, 1)));
    let taken = world.take();
    assert_eq!(
        (taken.requeued, taken.counts()),
        (1, (1, 1, 0)),
        "the other stands for itself"
    );
    assert_eq!(taken.granted(), [9, 10]);
}

#[test]
fn a_second_wait_that_ends_is_told_and_not_counted_again() {
    let mut world = waiting_again();
    world.handle(Event::Drain(true));
    let taken = world.take();
    let told = taken.rejects();
    assert_eq!(told.len(), 1);
    assert_eq!(
        (told[0].sequence, told[0].code.as_str(), told[0].outcome.as_str()),
        (9, "shutting_down", "bypassed")
    );
    assert_eq!(taken.counts(), (0, 0, 0));
}

#[test]
fn a_third_leg_follows_the_second() {
    let mut world = world();
    world.say(2, Said::Register(again(9, 1, 1)));
    let third = wire::Register {
        requeues: 2,
        ..again(2, 2, 9)
    };
    world.say(1, Said::Register(third));
    let taken = world.take();
    assert_eq!(
        (taken.requeued, taken.granted(), taken.counts()),
        (2, vec![9, 2], (0, 0, 0))
    );
    world.say(2, ended(9, wire::EndReason::Served));
    world.say(1, ended(1, wire::EndReason::Served));
    assert_eq!(world.stock(), 1);
    world.say(1, completed(2));
    assert!(world.control.is_idle());
}
