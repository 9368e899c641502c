//! Sessions and the usual way of requests: the exact outputs of each event.

use std::time::Duration;

use penstock_control::{ConnId, Event, Settings};
use penstock_engine::Outcome;
use penstock_wire as wire;
use wire::command::Kind;
use wire::filter_frame::Event as Message;

use crate::harness::*;

#[test]
fn a_hello_is_answered_with_policy_and_endpoints() {
    let mut world = World::new();
    world.open_session(1, 1, Vec::new(), Vec::new());
    let taken = world.take();
    assert_eq!(
        taken.commands,
        [
            (1, Kind::HelloAck(wire::HelloAck { version: 1, term: 7 })),
            (1, Kind::Policy(settings().policy)),
            (
                1,
                Kind::Endpoints(wire::Endpoints {
                    keep_ready: false,
                    pool: "chat".into(),
                    ready: vec![SERVER.into()],
                    fallback_bound: Some(1),
                })
            ),
        ]
    );
}

#[test]
fn the_second_request_waits_until_the_first_has_ended() {
    let mut world = World::established();
    world.send(1, Message::Register(register(1)));
    world.send(1, Message::Register(register(2)));
    let taken = world.take();
    assert_eq!(taken.granted(), [1]);
    assert_eq!(taken.outcomes, [Outcome::Bypassed]);
    assert_eq!((world.stock(), world.waiting()), (1, 1));
    world.send(1, completed(1));
    let taken = world.take();
    assert_eq!(taken.granted(), [2]);
    assert_eq!(taken.outcomes, [Outcome::Dispatched]);
    world.send(1, completed(2));
    assert!(world.control.is_idle());
    assert_eq!((world.stock(), world.waiting()), (0, 0));
}

#[test]
fn an_invalid_deadline_is_counted_and_the_request_is_granted() {
    let mut world = World::established();
    let bad = wire::Register {
        bad_deadline: true,
        // Ignored in a pool that doesn't order by it.
        bad_slo_ttft: true,
        ..register(1)
    };
    world.send(1, Message::Register(bad));
    let taken = world.take();
    assert_eq!(taken.outcomes, [Outcome::Bypassed]);
    assert_eq!(taken.bad_deadlines, 1);
}

#[test]
fn every_filter_has_the_list_of_models_and_is_told_of_changes_alone() {
    let list = |ids: &[&str]| {
        let model = |id: &&str| wire::ListedModel { id: (*id).into(), object: "{}".into() };
        wire::ModelList { models: ids.iter().map(model).collect() }
    };
    let sent = |taken: &Taken| -> Vec<(u64, wire::ModelList)> {
        let lists = taken.commands.iter().filter_map(|(conn, kind)| match kind {
            Kind::ModelList(list) => Some((*conn, list.clone())),
            _ => None,
        });
        lists.collect()
    };
    let mut world = World::established();
    world.handle(Event::ModelList(list(&["a"]).into()));
    assert_eq!(sent(&world.take()), [(1, list(&["a"]))]);
    world.handle(Event::ModelList(list(&["a"]).into()));
    assert_eq!(sent(&world.take()), []);
    world.open(2);
    world.send(
        2,
        Message::Hello(hello(
            Filter { epoch: 8, stream: 1, envoy: 0, can_requeue: true },
            Vec::new(),
            Vec::new(),
        )),
    );
    assert_eq!(sent(&world.take()), [(2, list(&["a"]))]);
    world.handle(Event::ModelList(list(&[]).into()));
    assert_eq!(sent(&world.take()), [(1, list(&[])), (2, list(&[]))]);
}

#[test]
fn retries_of_clients_are_counted_once_for_each_arrival() {
    let mut world = World::established();
    for (sequence, client_retries) in [(1, 0), (2, 1), (3, 7)] {
        let register = wire::Register { client_retries, ..register(sequence) };
        world.send(1, Message::Register(register.clone()));
        world.send(1, Message::Register(register));
    }
    assert_eq!(world.take().client_retries, [1, 7]);
}

#[test]
fn a_repeated_message_changes_nothing() {
    let mut world = World::established();
    for _ in 0..2 {
        world.send(1, Message::Register(register(1)));
    }
    assert_eq!(world.take().granted(), [1]);
    for _ in 0..2 {
        world.send(1, completed(1));
        world.send(1, Message::Cancel(wire::Cancel { sequence: 9 }));
    }
    assert_eq!(world.stock(), 0);
    assert_eq!(world.take(), Taken::default());
}

#[test]
fn a_model_that_no_pool_serves_is_not_found() {
    let mut world = World::established();
    world.send(1, Message::Register(wire::Register { model: "gpt-9".into(), ..register(1) }));
    let taken = world.take();
    assert_eq!(taken.rejected(), [(1, "model_not_found", 404)]);
    assert_eq!(taken.outcomes, [Outcome::RejectedInvalid]);
}

#[test]
fn a_cancelled_request_is_never_granted_and_one_that_crossed_its_grant_is_refunded() {
    let mut world = World::established();
    world.send(1, Message::Register(register(1)));
    world.send(1, Message::Register(register(2)));
    world.send(1, Message::Cancel(wire::Cancel { sequence: 2 }));
    world.send(1, Message::Cancel(wire::Cancel { sequence: 1 }));
    let taken = world.take();
    assert_eq!(taken.granted(), [1]);
    assert_eq!(taken.outcomes, [Outcome::Bypassed, Outcome::Cancelled]);
    assert_eq!((world.stock(), world.waiting()), (0, 0));
    assert!(world.control.is_idle());
}

#[test]
fn silence_ends_a_session_and_heartbeats_keep_it() {
    let mut world = World::established();
    for _ in 0..12 {
        world.pass(Duration::from_secs(1));
        world.send(1, Message::Heartbeat(wire::Heartbeat::default()));
    }
    assert_eq!(world.take().closed, [] as [u64; 0]);
    world.pass(Duration::from_secs(11));
    assert_eq!(world.take().closed, [1]);
}

#[test]
fn a_later_stream_replaces_an_older_one_and_not_the_reverse() {
    let mut world = World::established();
    world.open_session(2, 3, Vec::new(), Vec::new());
    assert_eq!(world.take().closed, [1]);
    world.open_session(3, 2, Vec::new(), Vec::new());
    assert_eq!(world.take().closed, [3]);
    world.send(2, Message::Register(register(1)));
    assert_eq!(world.take().granted(), [1]);
}

#[test]
fn a_protocol_violation_closes_the_stream() {
    let mut world = World::new();
    world.open(1);
    world.send(1, Message::Heartbeat(wire::Heartbeat::default()));
    world.open(2);
    let gap = wire::FilterFrame {
        seq: 2,
        ack: 0,
        admitted: Vec::new(),
        event: Some(Message::Hello(hello(filter(2), Vec::new(), Vec::new()))),
    };
    world.handle(Event::Frame(ConnId(2), Box::new(gap)));
    world.open(3);
    world.handle(Event::Frame(
        ConnId(3),
        Box::new(wire::FilterFrame { seq: 1, ack: 0, admitted: Vec::new(), event: None }),
    ));
    assert_eq!(world.take().closed, [1, 2, 3]);
}

#[test]
fn a_drain_rejects_waiting_requests_and_lets_running_ones_finish() {
    let mut world = World::established();
    world.send(1, Message::Register(register(1)));
    world.send(1, Message::Register(register(2)));
    world.take();
    world.handle(Event::Drain(true));
    assert_eq!(world.take().rejected(), [(2, "shutting_down", 503)]);
    world.send(1, Message::Register(register(3)));
    assert_eq!(world.take().rejected(), [(3, "shutting_down", 503)]);
    assert!(!world.control.is_idle());
    world.send(1, completed(1));
    assert!(world.control.is_idle());
}

#[test]
fn dispatch_begins_with_the_expected_sessions_or_after_the_startup_wait() {
    let settings = Settings { sessions_expected: Some(2), ..settings() };
    let mut world = World::with(settings);
    world.open_session(1, 1, Vec::new(), Vec::new());
    world.take();
    world.send(1, Message::Register(register(1)));
    assert_eq!(world.take().granted(), [] as [u64; 0]);
    world.pass(Duration::from_secs(2));
    assert_eq!(world.take().granted(), [1]);
}

#[test]
fn the_startup_wait_begins_when_sessions_can_be_opened() {
    let opens_within = Duration::from_secs(2);
    let settings = || Settings { sessions_expected: Some(2), opens_within, ..settings() };
    for opens_after in [Some(1_000), Some(1_900), None] {
        let mut world = World::with(settings());
        if let Some(opens_after) = opens_after {
            world.pass(Duration::from_millis(opens_after));
            world.handle(Event::Serving);
        } else {
            world.pass(opens_within);
        }
        world.open_session(1, 1, Vec::new(), Vec::new());
        world.take();
        world.send(1, Message::Register(register(1)));
        world.pass(Duration::from_millis(1_900));
        assert_eq!(world.take().granted(), [] as [u64; 0], "{opens_after:?}");
        world.pass(Duration::from_millis(100));
        assert_eq!(world.take().granted(), [1], "{opens_after:?}");
    }
}

#[test]
fn an_expired_request_gets_the_documented_answer() {
    let mut world = World::established();
    world.send(1, Message::Register(register(1)));
    world.send(1, Message::Register(register(2)));
    world.take();
    for _ in 0..31 {
        world.pass(Duration::from_secs(1));
        world.send(1, Message::Heartbeat(wire::Heartbeat::default()));
    }
    let taken = world.take();
    assert_eq!(taken.outcomes, [Outcome::ExpiredTtl]);
    let Some((_, Kind::Reject(reject))) =
        taken.commands.iter().find(|(_, kind)| matches!(kind, Kind::Reject(_)))
    else {
        panic!("rejected")
    };
    assert_eq!(reject.message, "Request timed out after 30s in queue");
    assert_eq!((reject.status, reject.code.as_str()), (503, "queue_timeout"));
    assert!(reject.retry_after_ms.is_some_and(|wait| (1_000..=120_000).contains(&wait)));
}

#[test]
fn a_name_above_the_limit_is_rejected_and_not_kept() {
    let long = "x".repeat(wire::limits::NAME_BYTES_MAX + 1);
    let named = |model: &str, fairness_id: &str, subset: usize| wire::Register {
        model: model.into(),
        fairness_id: fairness_id.into(),
        subset: vec![SERVER.into(); subset],
        ..register(1)
    };
    for said in [
        named(&long, "a", 0),
        named("llama-8b", &long, 0),
        named("llama-8b", "a", wire::limits::LIST_MAX + 1),
    ] {
        let mut world = World::established();
        world.send(1, Message::Register(said));
        let taken = world.take();
        assert_eq!(taken.rejected(), [(1, "invalid_request", 400)]);
        assert_eq!(taken.counts(), (1, 1, 0));
        assert!(world.control.is_idle());
    }
}

#[test]
fn all_expected_sessions_must_be_open_at_the_same_time() {
    let mut world = World::with(Settings { sessions_expected: Some(2), ..settings() });
    let gathered = |world: &World| world.control.status(world.now).gathered;
    world.greet(1, filter(1), Vec::new(), Vec::new());
    assert!(!gathered(&world));
    world.greet(2, filter(2), Vec::new(), Vec::new());
    assert!(gathered(&world));
    world.control.handle(world.now, Event::Closed(ConnId(2)));
    assert!(gathered(&world), "from there on it is known that they come");
}
