//! The messages about requests that were admitted by credit.

use std::time::Duration;

use penstock_filter_core::headers::{Headers, serialize};
use penstock_filter_core::limits::{REPORT_HOLD, REPORTS_MAX};
use penstock_wire::command::Kind;
use penstock_wire::filter_frame::Event;
use penstock_wire::{Admitted, Completed, EndReason, Hello, Register, RequeueOn, Running, Started};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::worker::credits::{A, BODY, admitted, arrive, connected, credit, registered, with_credit};
use crate::worker::harness::{Output, Rig, Shared, TEXT_DOCUMENT, TEXT_EVENT, config, register, slice};

const STREAMED: [(&str, &str); 2] = [(":status", "200"), ("content-type", "text/event-stream")];
const WHOLE: [(&str, &str); 2] = [(":status", "200"), ("content-length", "2")];
const MILLI: Duration = Duration::from_millis(1);

fn millis(count: u32) -> Duration {
    MILLI * count
}

/// Ends the stream, opens the next one, and establishes the session. Returns the Hello and the events after it.
pub(crate) fn reopen(rig: &mut Rig) -> (Hello, Vec<Message>) {
    rig.closed();
    open_next(rig)
}

/// Opens the next stream, and establishes the session. Returns the Hello and the events after it.
fn open_next(rig: &mut Rig) -> (Hello, Vec<Message>) {
    rig.advance(millis(50));
    let mut sent = messages(rig.open());
    let Message::Event(Event::Hello(hello)) = sent.remove(0) else { panic!("{sent:?}") };
    assert!(!hello.probe);
    assert_eq!(rig.hello_ack(1), []);
    (hello, sent)
}

/// What the frames of a worker carry.
#[expect(clippy::large_enum_variant, reason = "compared, never stored")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Message {
    Reported(Admitted),
    Event(Event),
}

pub(crate) fn messages(outputs: Vec<Output>) -> Vec<Message> {
    let sent = outputs.into_iter().map(|output| match output {
        Output::Reported(_, report) => Message::Reported(report),
        Output::Sent(_, event) => Message::Event(event),
        other => panic!("{other:?}"),
    });
    sent.collect()
}

/// Checks that a worker sends nothing, and passes the time for which it holds reports. Returns what it sends then.
pub(crate) fn held(rig: &mut Rig) -> Vec<Message> {
    assert_eq!(rig.outputs(), []);
    assert!(rig.worker.tick_period(rig.now) <= REPORT_HOLD);
    rig.advance(REPORT_HOLD);
    messages(rig.tick())
}

/// The exchange of a request ends. Returns what the worker sends, held reports included.
pub(crate) fn log(rig: &mut Rig, sequence: u64) -> Vec<Message> {
    let mut sent = messages(rig.log(sequence));
    if sent.is_empty() {
        sent = held(rig);
    }
    sent
}

/// The report of a request that runs, admitted by credit 1 so many microseconds ago.
pub(crate) fn running(sequence: u64, age_us: u64) -> Admitted {
    Admitted {
        running: Some(Running {
            register: Some(Register { age_us, ..register(sequence, "m1") }),
            pool: "chat".into(),
            endpoint: A.into(),
            age_us,
            started: false,
            first_token: false,
            prefill_endpoint: String::new(),
        }),
        credit: 1,
        completed: None,
    }
}

/// The server's response has no body.
fn empty(sequence: u64) -> Completed {
    Completed {
        sequence,
        endpoint: A.into(),
        status: 200,
        end: EndReason::NoAnswer.into(),
        ..Completed::default()
    }
}

/// The response arrives as a whole, and the exchange ends. Returns what the worker sends.
fn end(rig: &mut Rig, sequence: u64) -> Vec<Message> {
    rig.response(sequence, &WHOLE, true);
    log(rig, sequence)
}

#[test]
fn response_of_known_length_costs_one_message() {
    let mut rig = with_credit(&[(A, 1)]);
    let sequence = rig.paused(&[]);
    rig.advance(MILLI);
    let read = |start, length| slice(BODY, start, length);
    rig.worker.handle_request_body(rig.now, sequence, BODY.len(), true, read);
    rig.advance(millis(2));
    rig.response(sequence, &WHOLE, false);
    rig.response_body(sequence, TEXT_DOCUMENT, true);
    assert_eq!(rig.outputs(), []);
    rig.advance(millis(3));
    let mut admitted = running(sequence, 5_000);
    let running = admitted.running.as_mut().expect("some");
    running.started = true;
    running.first_token = true;
    // The headers arrived before the body, with which the request was admitted.
    running.register.as_mut().expect("some").age_us = 6_000;
    admitted.completed = Some(Completed {
        end: EndReason::Served.into(),
        first_token_us: Some(2_000),
        last_byte_us: Some(2_000),
        ..empty(sequence)
    });
    assert_eq!(log(&mut rig, sequence), [Message::Reported(admitted)]);
    assert_eq!(rig.log(sequence), []);
}

#[test]
fn request_whose_client_leaves_costs_one_message() {
    let mut rig = with_credit(&[(A, 1)]);
    let sequence = admitted(&mut rig);
    let admitted = Admitted {
        completed: Some(Completed {
            sequence,
            endpoint: A.into(),
            end: EndReason::ClientLeft.into(),
            ..Completed::default()
        }),
        ..running(sequence, 0)
    };
    assert_eq!(log(&mut rig, sequence), [Message::Reported(admitted)]);
}

#[test]
fn streamed_response_is_reported_at_its_start_and_at_its_end() {
    let mut rig = with_credit(&[(A, 1)]);
    let sequence = admitted(&mut rig);
    rig.advance(MILLI);
    rig.response(sequence, &STREAMED, false);
    let mut expected = running(sequence, 1_000);
    expected.running.as_mut().expect("some").started = true;
    assert_eq!(held(&mut rig), [Message::Reported(expected)]);
    rig.response_body(sequence, "", true);
    assert_eq!(log(&mut rig, sequence), [Message::Event(Event::Completed(empty(sequence)))]);
}

#[test]
fn streamed_response_removes_its_place() {
    let mut rig = with_credit(&[(A, 2)]);
    let streamed = admitted(&mut rig);
    rig.response(streamed, &STREAMED, false);
    rig.outputs();
    let other = admitted(&mut rig);
    rig.log(streamed);
    rig.outputs();
    registered(&mut rig);
    assert!(matches!(&log(&mut rig, other)[..], [Message::Reported(_)]));
}

/// A worker whose pool asks for the first byte of streamed responses.
fn asking_for_first_tokens() -> Rig {
    let config = config(|config| config.policy.pools[0].first_token = true);
    let mut rig = Rig::with(2, &config, &Shared::default());
    rig.open();
    rig.hello_ack(1);
    rig.command(0, [Kind::Credit(credit(1, &[(A, 1)]))]);
    rig
}

#[test]
fn first_token_of_a_stream_is_reported_in_the_only_message_of_its_start() {
    let mut rig = asking_for_first_tokens();
    rig.host.0.insert("upstream.address", A.as_bytes().to_vec());
    let sequence = admitted(&mut rig);
    rig.response(sequence, &STREAMED, false);
    assert_eq!(rig.outputs(), []);
    rig.response_body(sequence, TEXT_EVENT, false);
    let mut expected = running(sequence, 0);
    let running = expected.running.as_mut().expect("some");
    running.started = true;
    running.first_token = true;
    assert_eq!(held(&mut rig), [Message::Reported(expected)]);
}

#[test]
fn first_token_after_a_recall_is_reported_as_that_of_a_granted_request() {
    let mut rig = asking_for_first_tokens();
    rig.host.0.insert("upstream.address", A.as_bytes().to_vec());
    let sequence = admitted(&mut rig);
    rig.response(sequence, &STREAMED, false);
    rig.command(0, [crate::worker::credit_returns::recall(1)]);
    rig.response_body(sequence, TEXT_EVENT, false);
    let outputs = messages(rig.outputs());
    assert!(
        matches!(&outputs[..], [Message::Event(Event::Started(Started { first_token: true, .. }))]),
        "{outputs:?}"
    );
}

#[test]
fn report_names_the_endpoint_of_the_place_and_another_one_the_server_that_responds() {
    let mut rig = with_credit(&[(A, 1)]);
    let sequence = admitted(&mut rig);
    rig.host.0.insert("upstream.address", b"3.3.3.3:3".to_vec());
    rig.response(sequence, &STREAMED, false);
    let outputs = messages(rig.outputs());
    let [Message::Reported(Admitted { running: Some(running), .. }), Message::Event(Event::Started(started))] =
        &outputs[..]
    else {
        panic!("{outputs:?}")
    };
    assert_eq!((running.endpoint.as_str(), started.endpoint.as_str()), (A, "3.3.3.3:3"));
}

#[test]
fn end_is_repeated_until_it_is_acknowledged() {
    let mut rig = with_credit(&[(A, 2)]);
    let (a, b) = (admitted(&mut rig), admitted(&mut rig));
    let mut sent = end(&mut rig, a);
    sent.extend(end(&mut rig, b));
    let (_, repeated) = reopen(&mut rig);
    assert_eq!(repeated, sent);
    // The Hello, and the frame with both.
    rig.command(2, []);
    let (_, repeated) = reopen(&mut rig);
    assert_eq!(repeated, []);
}

#[test]
fn end_of_a_reported_request_is_repeated_with_its_admission() {
    let mut rig = with_credit(&[(A, 1)]);
    let sequence = admitted(&mut rig);
    rig.response(sequence, &STREAMED, false);
    rig.response_body(sequence, "", true);
    held(&mut rig);
    assert!(matches!(&log(&mut rig, sequence)[..], [Message::Event(Event::Completed(_))]));
    let (_, repeated) = reopen(&mut rig);
    let [Message::Reported(admitted)] = &repeated[..] else { panic!("{repeated:?}") };
    assert_eq!(admitted.completed, Some(empty(sequence)));
    assert!(admitted.running.is_some());
}

#[test]
fn end_without_a_stream_is_reported_with_its_admission() {
    let mut rig = with_credit(&[(A, 2)]);
    let (reported, other) = (admitted(&mut rig), admitted(&mut rig));
    rig.response(reported, &STREAMED, false);
    rig.outputs();
    rig.closed();
    assert_eq!(rig.log(reported), []);
    assert_eq!(rig.log(other), []);
    let (hello, events) = open_next(&mut rig);
    assert_eq!(hello.running, []);
    assert!(
        matches!(
            &events[..],
            [Message::Reported(Admitted { completed: Some(a), .. }), Message::Reported(Admitted { completed: Some(b), .. })]
                if (a.sequence, b.sequence) == (reported, other)
        ),
        "{events:?}"
    );
}

#[test]
fn hello_lists_running_requests_whose_end_is_then_all_that_is_reported() {
    let mut rig = with_credit(&[(A, 1)]);
    let sequence = admitted(&mut rig);
    let (hello, events) = reopen(&mut rig);
    assert_eq!(events, []);
    let listed: Vec<&Running> = hello.running.iter().collect();
    assert_eq!(listed, [&running(sequence, 50_000).running.expect("some")]);
    assert_eq!(end(&mut rig, sequence), [Message::Event(Event::Completed(empty(sequence)))]);
}

#[test]
fn request_of_an_earlier_stream_takes_no_place_of_the_next_credit() {
    let mut rig = with_credit(&[(A, 1)]);
    let old = admitted(&mut rig);
    reopen(&mut rig);
    rig.command(0, [Kind::Credit(credit(1, &[(A, 1)]))]);
    admitted(&mut rig);
    end(&mut rig, old);
    registered(&mut rig);
}

#[test]
fn stream_of_an_earlier_credit_is_reported_as_that_of_a_granted_request() {
    let mut rig = with_credit(&[(A, 1)]);
    let sequence = admitted(&mut rig);
    reopen(&mut rig);
    rig.response(sequence, &STREAMED, false);
    assert!(matches!(&messages(rig.outputs())[..], [Message::Event(Event::Started(_))]));
}

#[test]
fn requeued_request_frees_its_place_at_its_end() {
    let config = config(|config| config.requeue_listener = Some("envoy://requeue/".into()));
    let mut rig = Rig::with(2, &config, &Shared::default());
    rig.open();
    rig.hello_ack(1);
    rig.command(0, [Kind::Credit(credit(1, &[(A, 1)]))]);
    let sequence = admitted(&mut rig);
    rig.host.0.insert("upstream.address", b"envoy://requeue/".to_vec());
    rig.response(sequence, &STREAMED, false);
    assert_eq!(rig.outputs(), [], "the requeue listener's filter reports the response");
    let outputs = log(&mut rig, sequence);
    assert!(
        matches!(
            &outputs[..],
            [Message::Reported(Admitted { completed: Some(completed), .. })] if completed.end() == EndReason::Unavailable
        ),
        "{outputs:?}"
    );
    admitted(&mut rig);
}

#[test]
fn refusal_by_a_server_is_reported_after_the_admission() {
    let config = config(|config| {
        config.policy.pools[0].requeue_on = Some(RequeueOn { statuses: vec![429], ..RequeueOn::default() });
        config.logs_attempts = true;
    });
    let mut rig = Rig::with(2, &config, &Shared::default());
    rig.open();
    rig.hello_ack(1);
    rig.host.0.insert("upstream.address", A.as_bytes().to_vec());
    rig.command(0, [Kind::Credit(credit(1, &[(A, 1)]))]);
    let (sequence, edits) = arrive(&mut rig, &[], BODY);
    assert!(edits.is_some());
    let request = serialize([("x-request-id", "id-1")]);
    let response = serialize([(":status", "429")]);
    let headers = (Headers::new(&request), Headers::new(&response));
    rig.worker.handle_attempt_log(rig.now, headers.0, headers.1, &rig.host);
    let outputs = messages(rig.outputs());
    let [Message::Reported(admitted), Message::Event(Event::AttemptFailed(refusal))] = &outputs[..] else {
        panic!("{outputs:?}")
    };
    assert_eq!(*admitted, running(sequence, 0));
    assert_eq!(refusal.sequence, sequence);
}

#[test]
fn request_that_was_granted_is_reported_as_ever() {
    let mut rig = connected();
    let sequence = rig.running("m1");
    rig.command(0, [Kind::Credit(credit(1, &[(A, 1)]))]);
    rig.response(sequence, &STREAMED, false);
    assert!(matches!(&messages(rig.outputs())[..], [Message::Event(Event::Started(_))]));
    assert!(matches!(&log(&mut rig, sequence)[..], [Message::Event(Event::Completed(_))]));
    admitted(&mut rig);
}

#[test]
fn reports_share_a_frame_and_go_before_the_next_event() {
    let mut rig = with_credit(&[(A, 2)]);
    let (streamed, whole) = (admitted(&mut rig), admitted(&mut rig));
    rig.response(streamed, &STREAMED, false);
    rig.response(whole, &WHOLE, true);
    assert_eq!(rig.log(whole), []);
    let frames: Vec<(u64, &str)> = rig
        .log(streamed)
        .iter()
        .map(|output| match output {
            Output::Reported(frame, Admitted { completed: None, .. }) => (*frame, "streamed runs"),
            Output::Reported(frame, _) => (*frame, "whole ended"),
            Output::Sent(frame, Event::Completed(_)) => (*frame, "streamed ended"),
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = ["streamed runs", "whole ended", "streamed ended"].map(|what| (2, what));
    assert_eq!(frames, expected);
}

#[test]
fn a_full_frame_of_reports_is_sent_at_once() {
    let mut rig = with_credit(&[(A, 1)]);
    for _ in 1..REPORTS_MAX {
        let sequence = admitted(&mut rig);
        assert_eq!(rig.log(sequence), []);
    }
    let sequence = admitted(&mut rig);
    assert_eq!(rig.log(sequence).len(), REPORTS_MAX);
    rig.advance(REPORT_HOLD);
    assert_eq!(rig.tick(), [], "each is sent once");
}

#[test]
fn held_reports_of_a_lost_stream_go_over_the_next_one_if_their_requests_have_ended() {
    let mut rig = with_credit(&[(A, 2)]);
    let (streamed, whole) = (admitted(&mut rig), admitted(&mut rig));
    rig.response(streamed, &STREAMED, false);
    rig.response(whole, &WHOLE, true);
    assert_eq!(rig.log(whole), []);
    assert_eq!(rig.worker.unacknowledged(), 1);
    let (hello, sent) = reopen(&mut rig);
    assert_eq!(hello.running.len(), 1, "the Hello lists the one that runs");
    let [Message::Reported(Admitted { completed: Some(completed), .. })] = &sent[..] else {
        panic!("{sent:?}")
    };
    assert_eq!(completed.sequence, whole);
    rig.command(2, []);
    assert_eq!(rig.worker.unacknowledged(), 0);
}

#[test]
fn the_last_frame_before_a_shutdown_carries_the_held_reports() {
    let mut rig = with_credit(&[(A, 1)]);
    let sequence = admitted(&mut rig);
    assert_eq!(rig.log(sequence), []);
    rig.worker.handle_shutdown();
    let sent = messages(rig.outputs());
    assert!(matches!(&sent[..], [Message::Reported(_), Message::Event(Event::Bye(_))]), "{sent:?}");
}
