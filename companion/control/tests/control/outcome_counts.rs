//! One request is one arrival with one outcome, however often it is heard of.

use penstock_control::Event;
use penstock_engine::Outcome;
use penstock_wire as wire;
use wire::filter_frame::Event as Said;

use crate::harness::*;

#[test]
fn what_a_filter_refused_is_counted_once_however_often_it_says_so() {
    let mut world = World::established();
    for (stream, expected) in [(2, (1, 0, 1)), (3, (0, 0, 0)), (4, (0, 0, 0))] {
        world.say(u64::from(stream) - 1, refused(1, false));
        let taken = world.take();
        assert_eq!(taken.counts(), expected);
        // The acknowledgement is lost with its stream.
        world.close(u64::from(stream) - 1);
        world.hello(stream.into(), stream, Vec::new(), Vec::new());
        world.take();
    }
    world.say(4, refused(2, false));
    assert_eq!(
        world.take().refused,
        ["gateway_unavailable".into()],
        "another one"
    );
}

#[test]
fn a_registered_one_that_another_companion_knew_is_counted_here() {
    let mut world = World::established();
    for expected in [(1, 0, 1), (0, 0, 0)] {
        world.say(1, refused(7, true));
        assert_eq!(world.take().counts(), expected);
    }
}

#[test]
fn one_that_waited_here_is_counted_as_cancelled_and_not_again() {
    let mut world = World::established();
    for sequence in 1..=3 {
        world.say(1, Said::Register(register(sequence)));
    }
    assert_eq!(world.take().counts(), (3, 1, 0), "the first goes");
    // The second is refused while the stream is up, the third while it is down.
    world.say(1, refused(2, true));
    assert_eq!(world.take().outcomes, [Outcome::Cancelled]);
    world.close(1);
    world.hello(2, 2, Vec::new(), vec![runs(1)]);
    assert_eq!(world.take().outcomes, [Outcome::Cancelled], "no longer named");
    for sequence in [2, 3] {
        world.say(2, refused(sequence, true));
        assert_eq!(world.take().counts(), (0, 0, 0));
    }
    assert_eq!((world.stock(), world.waiting()), (1, 0));
}

#[test]
fn one_whose_grant_was_lost_keeps_its_outcome() {
    let mut world = World::established();
    world.say(1, Said::Register(register(1)));
    assert_eq!(world.take().counts(), (1, 1, 0));
    world.close(1);
    world.hello(2, 2, Vec::new(), Vec::new());
    world.take();
    for _ in 0..2 {
        world.say(2, refused(1, true));
        assert_eq!(world.take().counts(), (0, 0, 0));
        assert_eq!(world.stock(), 0, "its place is free");
    }
    // The same, if the refusal comes only after it was released.
    world.say(2, Said::Register(register(2)));
    assert_eq!(world.take().counts(), (1, 1, 0));
    world.close(2);
    world.hello(3, 3, Vec::new(), Vec::new());
    world.say(3, Said::Heartbeat(wire::Heartbeat {}));
    world.say(3, refused(2, true));
    assert_eq!(world.take().counts(), (0, 0, 0));
}

#[test]
fn one_that_both_sides_refused_is_counted_as_what_was_decided_here() {
    let mut world = World::established();
    world.say(1, Said::Register(register(1)));
    world.say(1, Said::Register(register(2)));
    world.take();
    world.close(1);
    world.handle(Event::Drain(true));
    assert_eq!(world.take().outcomes, [Outcome::ShuttingDown]);
    world.hello(2, 2, Vec::new(), vec![runs(1)]);
    world.say(2, refused(2, true));
    assert_eq!(world.take().counts(), (0, 0, 0));
}

#[test]
fn a_lost_answer_to_an_unknown_model_is_said_again_and_counted_once() {
    let mut world = World::established();
    let unknown = wire::Register {
        model: "gpt-9".into(),
        ..register(1)
    };
    world.say(1, Said::Register(unknown.clone()));
    assert_eq!(world.take().counts(), (1, 1, 0));
    world.close(1);
    world.hello(2, 2, vec![unknown], Vec::new());
    let taken = world.take();
    assert_eq!(taken.rejected(), [(1, "model_not_found", 404)]);
    assert_eq!(taken.counts(), (0, 0, 0));
    world.say(2, refused(1, true));
    assert_eq!(world.take().counts(), (0, 0, 0));
}
