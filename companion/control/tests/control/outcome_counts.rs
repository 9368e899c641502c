//! One request has one arrival and one outcome, however often messages name it.

use penstock_control::Event;
use penstock_engine::Outcome;
use penstock_wire as wire;
use wire::filter_frame::Event as Message;

use crate::harness::*;

#[test]
fn a_refusal_is_counted_once_however_often_it_is_repeated() {
    let mut world = World::established();
    for (stream, expected) in [(2, (1, 0, 1)), (3, (0, 0, 0)), (4, (0, 0, 0))] {
        world.send(u64::from(stream) - 1, refused(1, false));
        let taken = world.take();
        assert_eq!(taken.counts(), expected);
        // The acknowledgement is lost with its stream.
        world.close(u64::from(stream) - 1);
        world.open_session(stream.into(), stream, Vec::new(), Vec::new());
        world.take();
    }
    world.send(4, refused(2, false));
    assert_eq!(world.take().refused, ["gateway_unavailable".into()], "another one");
}

#[test]
fn a_request_that_another_companion_knew_is_counted_here() {
    let mut world = World::established();
    for expected in [(1, 0, 1), (0, 0, 0)] {
        world.send(1, refused(7, true));
        assert_eq!(world.take().counts(), expected);
    }
}

#[test]
fn a_refused_request_that_waited_is_counted_once_with_the_outcome_that_its_client_got() {
    let mut world = World::established();
    for sequence in 1..=4 {
        world.send(1, Message::Register(register(sequence)));
    }
    assert_eq!(world.take().counts(), (4, 1, 0), "the first goes");
    // The filter refuses the second while the stream is up, the third while it is down. The client of the fourth leaves, and the
    // message is lost.
    world.send(1, refused(2, true));
    assert_eq!(world.take().counts(), (0, 0, 1));
    world.close(1);
    world.open_session(2, 2, Vec::new(), vec![runs(1)]);
    assert_eq!(world.take().counts(), (0, 0, 0), "its end may be reported yet");
    assert_eq!(world.waiting(), 2);
    for sequence in [2, 3] {
        world.send(2, refused(sequence, true));
        assert_eq!(world.take().counts(), (0, 0, usize::from(sequence == 3)));
    }
    assert_eq!((world.stock(), world.waiting()), (1, 1));
    world.send(2, Message::Heartbeat(wire::Heartbeat::default()));
    assert_eq!(world.take().outcomes, [Outcome::Cancelled], "no end was reported");
    world.send(2, refused(3, true));
    assert_eq!(world.take().counts(), (0, 0, 0));
    assert_eq!((world.stock(), world.waiting()), (1, 0));
}

#[test]
fn a_request_that_its_filter_no_longer_lists_is_not_granted() {
    let mut world = World::established();
    for sequence in 1..=2 {
        world.send(1, Message::Register(register(sequence)));
    }
    world.take();
    // The first stream's end isn't known yet.
    world.open_session(2, 2, Vec::new(), vec![runs(1)]);
    world.send(2, completed(1));
    assert_eq!(world.take().granted(), Vec::<u64>::new());
    world.send(2, Message::Heartbeat(wire::Heartbeat::default()));
    assert_eq!(world.take().outcomes, [Outcome::Cancelled]);
    assert!(world.control.is_idle());
}

#[test]
fn a_request_with_a_lost_grant_has_the_outcome_that_its_client_got() {
    let mut world = World::established();
    world.send(1, Message::Register(register(1)));
    assert_eq!(world.take().counts(), (1, 1, 0));
    world.close(1);
    world.open_session(2, 2, Vec::new(), Vec::new());
    world.take();
    let gone: (Box<str>, u32) = ("gateway_unavailable".into(), 0);
    for second in [vec![gone], vec![]] {
        world.send(2, refused(1, true));
        let taken = world.take();
        assert_eq!((taken.counts(), taken.second), ((0, 0, 0), second));
        assert_eq!(world.stock(), 0, "its place is free");
    }
    // A refusal that arrives after the release changes nothing.
    world.send(2, Message::Register(register(2)));
    assert_eq!(world.take().counts(), (1, 1, 0));
    world.close(2);
    world.open_session(3, 3, Vec::new(), Vec::new());
    world.send(3, Message::Heartbeat(wire::Heartbeat::default()));
    world.send(3, refused(2, true));
    let taken = world.take();
    assert_eq!((taken.counts(), taken.second), ((0, 0, 0), vec![]));
}

#[test]
fn a_request_that_both_sides_rejected_has_the_companions_outcome() {
    let mut world = World::established();
    world.send(1, Message::Register(register(1)));
    world.send(1, Message::Register(register(2)));
    world.take();
    world.close(1);
    world.handle(Event::Drain(true));
    assert_eq!(world.take().outcomes, [Outcome::ShuttingDown]);
    world.open_session(2, 2, Vec::new(), vec![runs(1)]);
    world.send(2, refused(2, true));
    assert_eq!(world.take().counts(), (0, 0, 0));
}

#[test]
fn a_lost_rejection_of_an_unknown_model_is_sent_again_and_counted_once() {
    let mut world = World::established();
    let unknown = wire::Register { model: "gpt-9".into(), ..register(1) };
    world.send(1, Message::Register(unknown.clone()));
    assert_eq!(world.take().counts(), (1, 1, 0));
    world.close(1);
    world.open_session(2, 2, vec![unknown], Vec::new());
    let taken = world.take();
    assert_eq!(taken.rejected(), [(1, "model_not_found", 404)]);
    assert_eq!(taken.counts(), (0, 0, 0));
    world.send(2, refused(1, true));
    assert_eq!(world.take().counts(), (0, 0, 0));
}
