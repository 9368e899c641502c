//! A request that was granted, came back from its server, and leaves the queue without another grant: its answer, its observation and
//! its status say how it ended.

use std::time::Duration;

use penstock_control::{Event, PoolEvent, RequestState};
use penstock_engine::Outcome;
use penstock_wire as wire;
use wire::filter_frame::Event as Message;

use crate::harness::*;

/// Two filters of one Envoy on streams 1 and 2, two servers, one of which is down, and a queue of one place. Request 1 of the
/// second filter runs at the other server. A request of the first filter was granted and waits again as 9 of the second.
fn waits_again(request: wire::Register) -> World {
    let mut settings = settings_of(&[SERVER, SECOND]);
    settings.pools[0].policy.queue.total_capacity = 1;
    let mut world = World::with(settings);
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.greet(2, filter(2), Vec::new(), Vec::new());
    world.send(1, Message::Register(request.clone()));
    world.send(2, Message::Register(register(1)));
    assert_eq!(world.take().counts(), (2, 2, 0));
    set_ready(&mut world, SERVER, false);
    let came_back =
        wire::Register { sequence: 9, requeues: 1, requeued_from: again(9, 1, 1).requeued_from, ..request };
    world.send(2, Message::Register(came_back));
    assert_eq!(world.take().requeued, 1);
    assert_eq!((world.stock(), world.waiting()), (1, 1));
    world
}

fn set_ready(world: &mut World, address: &str, ready: bool) {
    world.handle(Event::Pool("chat".into(), PoolEvent::EndpointReady { address: address.into(), ready }));
}

/// The request that waits again was rejected with this outcome and code, and no other outcome was counted.
fn expect_rejected(world: &mut World, outcome: Outcome, code: &str) {
    let taken = world.take();
    let rejects: Vec<_> = taken
        .rejects()
        .iter()
        .map(|reject| (reject.sequence, reject.code.as_str(), reject.outcome.as_str()))
        .collect();
    assert_eq!(rejects, [(9, code, outcome.as_str())]);
    assert_eq!(taken.second, [(outcome.as_str().into(), 1)]);
    assert!(!taken.outcomes.contains(&outcome), "it isn't a first outcome: {taken:?}");
    // The end of its first exchange comes last, and is no news.
    world.send(1, completed_at(1, AGAIN));
    assert_eq!(world.take(), Taken::default());
}

fn refused_again(sequence: u64) -> Message {
    let Message::Refused(refusal) = refused(sequence, true) else {
        panic!("a refusal");
    };
    Message::Refused(wire::Refused {
        outcome: "expired_ttl".into(),
        code: "queue_timeout".into(),
        requeued_from: again(9, 1, 1).requeued_from,
        requeues: 1,
        ..refusal
    })
}

#[test]
fn a_requeued_request_expires_as_expired() {
    let mut world = waits_again(register(1));
    world.pass_beating(31, &[1, 2]);
    expect_rejected(&mut world, Outcome::ExpiredTtl, "queue_timeout");
}

#[test]
fn a_requeued_request_misses_its_deadline() {
    let mut world = waits_again(wire::Register { deadline_ms: Some(700), ..register(1) });
    world.pass(Duration::from_millis(800));
    expect_rejected(&mut world, Outcome::DeadlineExceeded, "deadline_exceeded");
}

#[test]
fn a_requeued_request_is_displaced() {
    let mut world = waits_again(wire::Register { priority: "sheddable".into(), ..register(1) });
    let critical = wire::Register { priority: "critical".into(), ..register(2) };
    world.send(1, Message::Register(critical));
    expect_rejected(&mut world, Outcome::Displaced, "displaced");
}

#[test]
fn a_requeued_request_finds_no_endpoint() {
    let mut world = waits_again(register(1));
    set_ready(&mut world, SECOND, false);
    world.pass_beating(91, &[1, 2]);
    expect_rejected(&mut world, Outcome::NoEndpoints, "no_endpoints");
}

#[test]
fn a_requeued_request_is_told_of_the_shutdown() {
    let mut world = waits_again(register(1));
    world.handle(Event::Drain(true));
    expect_rejected(&mut world, Outcome::ShuttingDown, "shutting_down");
}

#[test]
fn a_requeued_request_loses_its_model() {
    let mut world = waits_again(register(1));
    let mut settings = settings_of(&[SERVER, SECOND]);
    settings.pools[0].models = vec!["qwen-*".into()];
    world.handle(Event::Settings(Box::new(settings)));
    expect_rejected(&mut world, Outcome::RejectedInvalid, "model_not_found");
}

#[test]
fn the_client_of_a_requeued_request_leaves() {
    let mut world = waits_again(register(1));
    world.send(2, Message::Cancel(wire::Cancel { sequence: 9 }));
    let taken = world.take();
    assert_eq!((taken.counts(), taken.rejects().len()), ((0, 0, 0), 0));
    assert_eq!(taken.second, [("cancelled".into(), 1)]);
}

#[test]
fn the_filter_of_a_requeued_request_answers_it() {
    let mut world = waits_again(register(1));
    for second in [vec![("expired_ttl".into(), 1)], vec![]] {
        world.send(2, refused_again(9));
        let taken = world.take();
        assert_eq!((taken.counts(), taken.second), ((0, 0, 0), second));
    }
    assert_eq!(world.waiting(), 0);
}

#[test]
fn a_filter_answers_a_request_that_was_never_registered_again() {
    // The first exchange ends after the second, or before.
    for ends_first in [false, true] {
        let mut world = World::with(settings());
        world.greet(1, filter(1), Vec::new(), Vec::new());
        world.greet(2, filter(2), Vec::new(), Vec::new());
        world.send(1, Message::Register(register(1)));
        assert_eq!(world.take().counts(), (1, 1, 0));
        let mut messages = [(2, refused_again(9)), (1, completed_at(1, AGAIN))];
        if ends_first {
            messages.reverse();
        }
        for (conn, message) in messages {
            world.send(conn, message);
        }
        world.send(2, refused_again(9));
        let taken = world.take();
        assert_eq!(taken.counts(), (0, 0, 0), "ends first: {ends_first}");
        assert_eq!(taken.second, [("expired_ttl".into(), 1)], "ends first: {ends_first}");
        assert!(world.control.is_idle());
    }
}

#[test]
fn a_companion_that_never_knew_the_request_counts_it_once() {
    let mut world = World::with(settings());
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.greet(2, filter(2), Vec::new(), Vec::new());
    world.send(2, refused_again(9));
    world.send(1, completed_at(1, AGAIN));
    let taken = world.take();
    assert_eq!((taken.counts(), taken.second), ((1, 0, 1), vec![]));
    assert_eq!(taken.refused, ["expired_ttl".into()]);
}

#[test]
fn a_request_that_waits_again_has_no_outcome_yet() {
    let mut world = waits_again(wire::Register { request_id: "r".into(), ..register(1) });
    let status = |world: &World| world.control.request(world.now, "r").expect("it hasn't ended");
    let waits = status(&world);
    assert!(matches!(waits.state, RequestState::Waiting { .. }));
    assert_eq!((waits.outcome, waits.requeues), (None, 1));
    set_ready(&mut world, SERVER, true);
    world.pass(Duration::from_secs(1));
    let runs = status(&world);
    assert_eq!((runs.outcome, runs.requeues), (Some(Outcome::Bypassed), 1));
}
