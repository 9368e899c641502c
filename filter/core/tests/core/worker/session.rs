//! The session: the events of each stream, their repetition after a reconnect, and waiting requests while the companion is
//! down.

use std::time::Duration;

use penstock_wire::command::Kind;
use penstock_wire::filter_frame::Event;
use penstock_wire::limits::{HELLO_PART_REQUESTS, UNACKED_EVENTS_MAX, VERSION_MAX, VERSION_MIN};
use penstock_wire::{Bye, Cancel, Endpoints, Heartbeat, Hello, HelloAck, Policy, Register, Running, Started};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::worker::harness::{Output, Rig, Shared, config, grant, register};

fn hello(stream: u32) -> Hello {
    Hello {
        epoch_hi: 1,
        epoch_lo: 2,
        stream,
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        policy_digest: "d0".into(),
        node: "n".into(),
        envoy: 72,
        no_requeue: true,
        last: true,
        // The first stream's HelloAck carries term 1.
        term: u64::from(stream > 1),
        ..Hello::default()
    }
}

const TICK: Duration = Duration::from_millis(50);

/// Ends the stream and opens the next one. Returns the outputs on it.
fn reopen(rig: &mut Rig) -> Vec<Output> {
    rig.closed();
    rig.advance(TICK);
    rig.open()
}

#[test]
fn hello_and_heartbeats_are_sent() {
    let mut rig = Rig::new();
    assert_eq!(rig.open(), [Output::Sent(1, Event::Hello(hello(1)))]);
    assert_eq!(rig.hello_ack(1), []);
    // No body has come yet.
    assert_eq!(rig.worker.tick_period(rig.now), Duration::from_millis(500));
    rig.advance(Duration::from_millis(500));
    assert_eq!(rig.tick(), []);
    rig.advance(Duration::from_millis(499));
    assert_eq!(rig.tick(), [Output::Sent(2, Event::Heartbeat(Heartbeat::default()))]);
    rig.worker.handle_shutdown();
    assert_eq!(rig.outputs(), [Output::Sent(3, Event::Bye(Bye {}))]);
}

#[test]
fn hello_lists_waiting_and_running_requests() {
    let mut rig = Rig::connected();
    let running = rig.running("m1");
    rig.advance(Duration::from_millis(7));
    let (waiting, _) = rig.waiting("m2");
    rig.response(running, &[(":status", "200")], false);
    rig.outputs();
    let sent = reopen(&mut rig);
    let expected = Hello {
        waiting: vec![Register { age_us: 50_000, ..register(waiting, "m2") }],
        running: vec![Running {
            register: Some(Register { age_us: 57_000, ..register(running, "m1") }),
            pool: "chat".into(),
            endpoint: "1.1.1.1:1".into(),
            age_us: 57_000,
            started: true,
            first_token: false,
            prefill_endpoint: String::new(),
        }],
        ..hello(2)
    };
    assert_eq!(sent, [Output::Sent(1, Event::Hello(expected))]);
    // A request that arrives before the HelloAck is registered after the Hello.
    let (early, sent) = rig.waiting("m3");
    assert_eq!(sent, [Output::Sent(2, Event::Register(register(early, "m3")))]);
}

#[test]
fn hello_gives_the_clock_by_which_its_ages_are_counted() {
    let mut rig = Rig::connected();
    let (waiting, _) = rig.waiting("m1");
    let arrived = rig.now;
    rig.advance(Duration::from_millis(7));
    let sent = reopen(&mut rig);
    let [Output::Sent(1, Event::Hello(hello))] = &sent[..] else {
        panic!("a Hello: {sent:?}");
    };
    assert_eq!(hello.waiting[0].sequence, waiting);
    assert_eq!(
        rig.hello_clock_us - hello.waiting[0].age_us,
        arrived.as_nanos() / 1_000,
        "the moment of its arrival, by the host's clock"
    );
}

#[test]
fn large_hello_is_sent_in_parts() {
    let mut rig = Rig::new();
    let count = HELLO_PART_REQUESTS + 3;
    for _ in 0..count {
        rig.waiting("m1");
    }
    let parts: Vec<Hello> = rig
        .open()
        .into_iter()
        .map(|output| {
            if let Output::Sent(_, Event::Hello(hello)) = output {
                hello
            } else {
                panic!("only Hello: {output:?}")
            }
        })
        .collect();
    let shape: Vec<_> = parts.iter().map(|part| (part.part, part.last, part.waiting.len())).collect();
    assert_eq!(shape, [(0, false, HELLO_PART_REQUESTS), (1, true, 3)]);
    let sequences: Vec<u64> = parts.iter().flat_map(|part| &part.waiting).map(|r| r.sequence).collect();
    assert!(sequences.is_sorted());
    assert_eq!(sequences.len(), count);
}

#[test]
fn terminal_events_are_repeated_until_acknowledged() {
    let mut rig = Rig::connected();
    let ids: Vec<u64> = (0..3).map(|_| rig.waiting("m1").0).collect();
    for id in &ids {
        rig.log(*id);
    }
    // Frames 1 to 4 are the Hello and the Registers, 5 to 7 the Cancels, of which the first is acknowledged.
    rig.command(5, []);
    let cancel = |seq, id: u64| Output::Sent(seq, Event::Cancel(Cancel { sequence: id }));
    assert_eq!(
        reopen(&mut rig),
        [Output::Sent(1, Event::Hello(hello(2))), cancel(2, ids[1]), cancel(3, ids[2])]
    );
    rig.hello_ack(1);
    rig.command(3, []);
    rig.closed();
    rig.advance(TICK);
    assert_eq!(rig.open(), [Output::Sent(1, Event::Hello(hello(3)))]);
}

#[test]
fn ends_without_a_stream_are_reported_on_the_next_one() {
    let mut rig = Rig::connected();
    let (waiting, _) = rig.waiting("m1");
    rig.closed();
    assert_eq!(rig.log(waiting), []);
    rig.advance(TICK);
    let sent = rig.open();
    assert_eq!(sent[1..], [Output::Sent(2, Event::Cancel(Cancel { sequence: waiting }))]);
}

#[test]
fn unregistered_request_is_not_cancelled() {
    let mut rig = Rig::new();
    let (waiting, sent) = rig.waiting("m1");
    assert_eq!(sent, []);
    rig.log(waiting);
    assert_eq!(rig.open(), [Output::Sent(1, Event::Hello(hello(1)))]);
}

#[test]
fn unacknowledged_events_are_bounded_and_their_resend_is_no_reason_to_reconnect() {
    let mut rig = Rig::connected();
    rig.closed();
    let body = format!(r#"{{"model":"{}"}}"#, "z".repeat(256));
    for _ in 0..UNACKED_EVENTS_MAX + 5 {
        let sequence = rig.paused(&[]);
        assert!(rig.body(sequence, &body, true).is_some());
    }
    rig.advance(TICK);
    assert_eq!(rig.open().len(), 1 + UNACKED_EVENTS_MAX);
    rig.hello_ack(1);
    let (sequence, sent) = rig.waiting("m1");
    let seq = 2 + UNACKED_EVENTS_MAX as u64;
    assert_eq!(sent, [Output::Sent(seq, Event::Register(register(sequence, "m1")))]);
}

#[test]
fn companion_that_acknowledges_nothing_is_unreachable() {
    let mut rig = Rig::connected();
    let running = rig.running("m1");
    let mut outputs = Vec::new();
    for _ in 0..80_000 {
        rig.response(running, &[(":status", "200")], false);
        outputs = rig.outputs();
        if outputs.len() > 1 {
            break;
        }
    }
    assert_eq!(
        outputs[1],
        Output::Warning("companion session 1 closed: the companion acknowledges nothing".into())
    );
    assert_eq!(rig.tick(), [Output::ResetStream]);
    rig.advance(TICK);
    assert_eq!(rig.tick(), [Output::OpenStream]);
}

#[test]
fn reconnects_back_off() {
    let mut rig = Rig::new();
    assert_eq!(rig.tick(), [Output::OpenStream]);
    for wait_ms in [50, 100, 200, 400, 800, 1_000, 1_000] {
        rig.open_failed();
        rig.advance(Duration::from_millis(wait_ms - 1));
        assert_eq!(rig.tick(), []);
        rig.advance(Duration::from_millis(1));
        assert_eq!(rig.tick(), [Output::OpenStream]);
    }
}

#[test]
fn without_a_common_version_the_reconnect_is_much_later() {
    let mut rig = Rig::new();
    rig.open();
    let outputs = rig.command(0, [Kind::HelloAck(HelloAck { version: 0, term: 1 })]);
    assert_eq!(
        outputs,
        [Output::Warning(
            "companion session 1 closed: companion and filter have no protocol version in common: update the older one".into()
        )]
    );
    assert_eq!(rig.tick(), [Output::ResetStream]);
    rig.advance(Duration::from_secs(29));
    assert_eq!(rig.tick(), []);
    rig.advance(Duration::from_secs(1));
    rig.open();
    // Logged once, however often the filter reconnects.
    assert_eq!(rig.command(0, [Kind::HelloAck(HelloAck { version: 0, term: 1 })]), []);
}

#[test]
fn companion_with_a_lower_term_is_refused() {
    let mut rig = Rig::connected();
    rig.closed();
    rig.advance(TICK);
    rig.open();
    rig.hello_ack(5);
    rig.closed();
    rig.advance(TICK);
    rig.open();
    let (sequence, _) = rig.waiting("m1");
    assert_eq!(
        rig.hello_ack(4),
        [Output::Warning("companion session 3 closed: its companion is older than the last one".into())]
    );
    assert_eq!(rig.command(1, [Kind::Grant(grant(sequence))]), []);
    assert_eq!(rig.tick(), [Output::ResetStream]);
}

#[test]
fn frames_out_of_order_reset_the_stream() {
    let mut rig = Rig::connected();
    rig.receive(b"\xff\xff");
    assert_eq!(
        rig.outputs(),
        [Output::Warning("companion session 1 closed: the companion sent a malformed frame".into())]
    );
    let mut rig = Rig::connected();
    assert_eq!(
        rig.command(99, []),
        [Output::Warning("companion session 1 closed: the companion's frames are out of order".into())]
    );
}

#[test]
fn bye_of_the_companion_lets_the_filter_reconnect_to_its_successor() {
    let mut rig = Rig::connected();
    rig.waiting("m1");
    assert_eq!(
        rig.command(2, [Kind::Bye(Bye {})]),
        [Output::Info("companion session 1 closed: the companion ends, or stands by".into())]
    );
    assert_eq!(rig.tick(), [Output::ResetStream]);
    rig.advance(TICK);
    let sent = rig.open();
    let [Output::Sent(1, Event::Hello(hello))] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(hello.waiting.len(), 1);
}

#[test]
fn requests_wait_for_hold_and_no_longer() {
    let mut rig = Rig::connected();
    let (waiting, _) = rig.waiting("m1");
    rig.closed();
    assert_eq!(rig.worker.tick_period(rig.now), TICK);
    rig.advance(Duration::from_millis(4_999));
    assert_eq!(rig.tick(), [Output::OpenStream]);
    rig.open_failed();
    let (late, _) = rig.waiting("m1");
    rig.advance(Duration::from_millis(1));
    let outputs = rig.tick();
    let [Output::Reply(101, first), Output::Reply(102, second)] = &outputs[..] else { panic!("{outputs:?}") };
    assert_eq!((first.status, second.status), (503, 503));
    assert!(String::from_utf8_lossy(&first.body).contains("gateway_unavailable"));
    assert_eq!(rig.log(waiting), []);
    assert_eq!(rig.log(late), []);
    // From now on requests don't wait at all, except in a pool with a longer hold.
    let sequence = rig.paused(&[]);
    assert_eq!(rig.body(sequence, r#"{"model":"m1"}"#, true).unwrap().status, 503);
    let (patient, _) = rig.waiting("p1");
    rig.advance(Duration::from_secs(1));
    let sent = rig.open();
    let [
        Output::Sent(1, Event::Hello(hello)),
        Output::Sent(2, Event::Refused(first)),
        Output::Sent(3, _),
        Output::Sent(4, Event::Refused(last)),
    ] = &sent[..]
    else {
        panic!("{sent:?}")
    };
    assert_eq!(hello.waiting[0].sequence, patient);
    assert_eq!((first.code.as_str(), first.registered), ("gateway_unavailable", true));
    assert!(!last.registered);
}

#[test]
fn hold_counts_from_the_configuration_at_a_cold_start() {
    let mut rig = Rig::new();
    rig.advance(Duration::from_millis(4_999));
    rig.waiting("m1");
    rig.advance(Duration::from_millis(1));
    let outputs = rig.tick();
    assert!(matches!(outputs[..], [Output::Reply(101, _), Output::OpenStream]), "{outputs:?}");
}

#[test]
fn ttl_and_deadline_are_enforced_while_the_companion_is_down() {
    let mut rig = Rig::new();
    let deadline = rig.paused(&[("x-penstock-deadline-ms", "200")]);
    rig.body(deadline, r#"{"model":"p1"}"#, true);
    rig.waiting("p1");
    rig.tick();
    rig.open_failed();
    rig.advance(Duration::from_millis(200));
    let outputs = rig.tick();
    let Output::Reply(101, answer) = &outputs[0] else { panic!("{outputs:?}") };
    assert_eq!(answer.status, 504);
    assert!(answer.headers.contains(&("x-should-retry", "false".into())));
    rig.open_failed();
    rig.advance(Duration::from_millis(29_800));
    let outputs = rig.tick();
    let Output::Reply(102, answer) = &outputs[0] else { panic!("{outputs:?}") };
    assert!(String::from_utf8_lossy(&answer.body).contains("Request timed out after 30s in queue"));
    assert!(String::from_utf8_lossy(&answer.body).contains("queue_timeout"));
}

#[test]
fn without_a_ready_endpoint_the_longer_ttl_counts_from_the_arrival_while_the_companion_is_down() {
    for (endpoint_ttl, answered_after) in [(60_000, 60_000), (10_000, 30_000)] {
        let config = config(|config| {
            let patient = &mut config.policy.pools[1];
            (patient.no_endpoint_ttl_ms, patient.capacity_status) = (endpoint_ttl, 429);
        });
        let mut rig = Rig::with(1, &config, &Shared::default());
        rig.open();
        rig.hello_ack(2);
        let none = Endpoints { pool: "patient".into(), ..Endpoints::default() };
        rig.command(1, [Kind::Endpoints(none)]);
        rig.waiting("p1");
        rig.closed();
        rig.advance(Duration::from_millis(answered_after - 1));
        rig.tick();
        rig.open_failed();
        rig.advance(Duration::from_millis(1));
        let outputs = rig.tick();
        let Some(Output::Reply(101, answer)) = outputs.first() else { panic!("{outputs:?}") };
        assert_eq!(answer.status, 503, "{answer:?}");
        assert!(answer.headers.contains(&("x-penstock-outcome", "no_endpoints".into())));
        assert!(String::from_utf8_lossy(&answer.body).contains("no_endpoints"));
    }
}

#[test]
fn filter_enforces_no_deadlines_while_the_companion_is_up() {
    let mut rig = Rig::connected();
    rig.waiting("m1");
    rig.advance(Duration::from_secs(100));
    assert_eq!(rig.tick(), [Output::Sent(3, Event::Heartbeat(Heartbeat::default()))]);
}

#[test]
fn new_policy_applies_from_the_next_request_on() {
    let mut rig = Rig::connected();
    let before = rig.paused(&[]);
    let policy = Policy { digest: "d1".into(), body_bytes_max: 10, others_pass: true, ..Policy::default() };
    rig.command(1, [Kind::Policy(policy)]);
    assert_eq!(rig.body(before, r#"{"model":"m1"}"#, true), None);
    assert!(matches!(rig.headers(&[], true), penstock_filter_core::effect::HeadersAction::Pass(_)));
    rig.outputs();
    let sent = reopen(&mut rig);
    let [Output::Sent(1, Event::Hello(hello))] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(hello.policy_digest, "d1");
}

#[test]
fn only_terminal_events_are_repeated() {
    let mut rig = Rig::connected();
    let running = rig.running("m1");
    rig.response(running, &[(":status", "200")], false);
    let sent = rig.outputs();
    assert!(matches!(sent[..], [Output::Sent(3, Event::Started(Started { .. }))]), "{sent:?}");
    assert_eq!(reopen(&mut rig).len(), 1);
}

#[test]
fn refused_clients_are_advised_to_wait_as_long_as_the_companion_has_been_away() {
    let mut rig = Rig::connected();
    rig.closed();
    let advice = |rig: &mut Rig, away: u64| {
        rig.advance(Duration::from_secs(away));
        let sequence = rig.paused(&[]);
        let reply = rig.body(sequence, r#"{"model":"m1"}"#, true).expect("refused");
        let advice = reply.headers.iter().find(|(name, _)| *name == "retry-after-ms");
        advice.expect("an advice").1.clone()
    };
    // Each request's number varies the advice by one percent more of the part over a second.
    assert_eq!(advice(&mut rig, 8), "8070");
    assert_eq!(advice(&mut rig, 12), "20380");
    assert_eq!(advice(&mut rig, 1_000), "30870", "at most half a minute");
}
