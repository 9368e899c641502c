//! Resync: a Hello brings both sides to the same state.

use penstock_control::Event;
use penstock_engine::Outcome;
use penstock_wire as wire;
use wire::filter_frame::Event as Message;

use crate::harness::*;

#[test]
fn a_lost_grant_is_sent_again() {
    let mut world = World::established();
    world.send(1, Message::Register(register(1)));
    assert_eq!(world.take().granted(), [1]);
    world.close(1);
    world.open_session(2, 2, vec![register(1)], Vec::new());
    let taken = world.take();
    assert_eq!(taken.granted(), [1]);
    assert_eq!(taken.outcomes, [], "its outcome was counted before");
    assert_eq!(world.stock(), 1);
}

#[test]
fn running_requests_are_adopted_above_the_bound_and_waiting_ones_queue_behind_them() {
    let mut world = World::new();
    world.open_session(1, 1, vec![register(3)], vec![runs(1), runs(2)]);
    let taken = world.take();
    assert_eq!(taken.granted(), [] as [u64; 0]);
    assert_eq!(taken.outcomes, [Outcome::Dispatched, Outcome::Dispatched]);
    assert_eq!((world.stock(), world.waiting()), (2, 1));
    world.send(1, completed(1));
    assert_eq!(world.take().granted(), [] as [u64; 0], "still at the bound");
    world.send(1, completed(2));
    assert_eq!(world.take().granted(), [3]);
}

#[test]
fn a_request_that_runs_at_an_unknown_address_is_not_counted() {
    let mut world = World::new();
    let elsewhere = wire::Running {
        endpoint: "127.0.0.9:1".into(),
        ..runs(1)
    };
    world.open_session(1, 1, Vec::new(), vec![elsewhere]);
    assert_eq!(world.take().outcomes, []);
    assert!(world.control.is_idle());
    assert_eq!(
        world.control.status(world.now).pools[0]
            .snapshot
            .counters
            .arrivals,
        0
    );
}

#[test]
fn requests_that_a_hello_does_not_name_are_cancelled_or_settled_by_their_repeated_end() {
    let mut world = World::established();
    for sequence in 1..=3 {
        world.send(1, Message::Register(register(sequence)));
    }
    world.take();
    world.close(1);
    world.open_session(2, 2, vec![register(3)], Vec::new());
    world.send(2, completed(1));
    let taken = world.take();
    assert_eq!(taken.granted(), [3], "the repeated end frees the place");
    assert_eq!(taken.outcomes, [Outcome::Dispatched]);
    world.send(2, Message::Heartbeat(wire::Heartbeat {}));
    assert_eq!(
        world.take().outcomes,
        [Outcome::Cancelled],
        "the second, which waited, and whose end wasn't repeated"
    );
    world.close(2);
    world.open_session(3, 3, Vec::new(), Vec::new());
    assert_eq!(world.stock(), 1);
    world.send(3, Message::Heartbeat(wire::Heartbeat {}));
    assert_eq!(
        world.stock(),
        0,
        "no end was repeated: released with the first beat"
    );
}

#[test]
fn a_rejected_request_that_its_filter_let_go_runs_with_its_counted_outcome() {
    let mut world = World::established();
    world.send(1, Message::Register(register(1)));
    world.send(1, Message::Register(register(2)));
    world.take();
    world.handle(Event::Drain(true));
    assert_eq!(world.take().rejected(), [(2, "shutting_down", 503)]);
    world.close(1);
    world.open_session(2, 2, Vec::new(), vec![runs(1), runs(2)]);
    let taken = world.take();
    assert_eq!((taken.rejected(), taken.counts()), (vec![], (0, 0, 0)));
    assert_eq!(world.stock(), 2);
    for sequence in [1, 2] {
        world.send(2, completed(sequence));
    }
    assert!(world.control.is_idle());
    assert_eq!(world.take().counts(), (0, 0, 0));
}

#[test]
fn a_hello_repeats_where_a_request_runs() {
    let mut world = World::with(settings_of(&[SERVER, SECOND]));
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.send(1, Message::Register(register(1)));
    let first = world.take().grants()[0].1.endpoints[0].clone();
    let other = if first == SERVER { SECOND } else { SERVER };
    // The message that it went to the second endpoint of its list is lost with the stream.
    world.close(1);
    let back = Filter {
        stream: 2,
        ..filter(1)
    };
    world.greet(2, back, Vec::new(), vec![runs_as(register(1), other)]);
    let status = world.control.status(world.now);
    let stock: Vec<(&str, u64)> = status.pools[0]
        .snapshot
        .endpoints
        .iter()
        .map(|endpoint| (status.pools[0].address(endpoint.id), endpoint.stock))
        .collect();
    assert!(stock.contains(&(other, 1)) && stock.contains(&(first.as_str(), 0)));
    assert_eq!(world.take().counts(), (0, 0, 0));
}
