//! Responses whose headers wait until the body shows whether it is an answer or an error.

use std::time::Duration;

use penstock_filter_core::effect::ResponseBodyAction;
use penstock_filter_core::limits::{HEADERS_HELD, HELD_BYTES_MAX};
use penstock_filter_core::local_reply::LocalReply;
use penstock_wire::filter_frame::Event;
use penstock_wire::{Completed, EndReason};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::worker::harness::{Output, Rig, TEXT_EVENT};

const STREAMED: [(&str, &str); 2] = [(":status", "200"), ("content-type", "text/event-stream")];
const ERROR: &str = "data: {\"error\":{\"message\":\"slow down\",\"type\":\"rate_limit_error\"}}\n\n";

/// A request whose response is held.
fn held() -> (Rig, u64) {
    let mut rig = Rig::connected();
    let sequence = rig.running("m1");
    assert!(rig.response(sequence, &STREAMED, false).is_held);
    rig.outputs();
    (rig, sequence)
}

fn replaced(action: ResponseBodyAction) -> LocalReply {
    match action {
        ResponseBodyAction::Replace(reply) => reply,
        other => panic!("not replaced: {other:?}"),
    }
}

fn completed(rig: &mut Rig, sequence: u64) -> Completed {
    match &rig.log(sequence)[..] {
        [Output::Sent(_, Event::Completed(completed))] => completed.clone(),
        other => panic!("not completed: {other:?}"),
    }
}

#[test]
fn first_token_lets_the_response_go_on() {
    let (mut rig, sequence) = held();
    assert_eq!(rig.response_body(sequence, ": ping\n\n", false), ResponseBodyAction::Hold);
    let both = format!(": ping\n\n{TEXT_EVENT}");
    assert_eq!(rig.response_body(sequence, &both, false), ResponseBodyAction::Pass);
    assert_eq!(rig.response_body(sequence, TEXT_EVENT, true), ResponseBodyAction::Pass);
    rig.advance(HEADERS_HELD);
    assert!(!rig.tick().contains(&Output::ResumeResponse(101)), "it isn't held any more");
    let completed = completed(&mut rig, sequence);
    assert_eq!((completed.end(), completed.output_chunks), (EndReason::Served, 2));
    assert_eq!(rig.ended.body_bytes, 8 + 2 * TEXT_EVENT.len() as u64, "held bytes count once");
}

#[test]
fn error_becomes_an_http_error_with_the_message_of_the_server() {
    let (mut rig, sequence) = held();
    let reply = replaced(rig.response_body(sequence, ERROR, false));
    let body: serde_json::Value = serde_json::from_slice(&reply.body).expect("JSON");
    assert_eq!((reply.status, &body["error"]["message"]), (429, &"slow down".into()));
    for name in ["retry-after", "x-penstock-outcome", "x-gateway-destination-endpoint-served"] {
        assert!(reply.headers.iter().any(|(known, _)| *known == name), "{name}: {:?}", reply.headers);
    }
    let completed = completed(&mut rig, sequence);
    assert_eq!((completed.end(), completed.status), (EndReason::ReportedError, 429));
    assert_eq!((completed.first_token_us, completed.output_chunks), (None, 0));
}

#[test]
fn response_waits_a_quarter_of_a_second_at_most() {
    let (mut rig, sequence) = held();
    assert!(rig.worker.tick_period(rig.now) <= HEADERS_HELD);
    rig.advance(HEADERS_HELD - Duration::from_millis(1));
    assert!(!rig.tick().contains(&Output::ResumeResponse(101)));
    rig.advance(Duration::from_millis(1));
    assert!(rig.tick().contains(&Output::ResumeResponse(101)));
    assert!(rig.worker.resume_response(sequence));
    assert!(!rig.worker.resume_response(sequence), "once");
    // The client has the headers, so the error passes as it is.
    assert_eq!(rig.response_body(sequence, ERROR, true), ResponseBodyAction::Pass);
    let completed = completed(&mut rig, sequence);
    assert_eq!((completed.end(), completed.status), (EndReason::ReportedError, 429));
}

/// Envoy keeps what follows a pause in a body callback until it is resumed, or until two parts come together.
#[test]
fn rest_of_a_response_that_was_resumed_with_a_part_of_its_body_is_resumed_part_by_part() {
    let (mut rig, sequence) = held();
    assert_eq!(rig.response_body(sequence, ": ping\n\n", false), ResponseBodyAction::Hold);
    rig.advance(HEADERS_HELD);
    assert!(rig.tick().contains(&Output::ResumeResponse(101)));
    assert!(rig.worker.resume_response(sequence));
    for _ in 0..2 {
        assert_eq!(rig.response_body(sequence, TEXT_EVENT, false), ResponseBodyAction::Hold);
        assert_eq!(rig.outputs(), [Output::ResumeResponse(101)]);
        assert!(rig.worker.resume_response(sequence));
    }
    assert_eq!(rig.response_body(sequence, TEXT_EVENT, false), ResponseBodyAction::Hold);
    let both = TEXT_EVENT.repeat(2);
    assert_eq!(rig.response_body(sequence, &both, false), ResponseBodyAction::Pass);
    assert!(!rig.worker.resume_response(sequence), "everything has gone on");
    assert_eq!(rig.response_body(sequence, TEXT_EVENT, true), ResponseBodyAction::Pass);
    rig.outputs();
    let completed = completed(&mut rig, sequence);
    assert_eq!((completed.end(), completed.output_chunks), (EndReason::Served, 5));
    assert_eq!(rig.ended.body_bytes, 8 + 5 * TEXT_EVENT.len() as u64);
}

#[test]
fn error_after_the_first_token_passes() {
    let (mut rig, sequence) = held();
    assert_eq!(rig.response_body(sequence, TEXT_EVENT, false), ResponseBodyAction::Pass);
    assert_eq!(rig.response_body(sequence, ERROR, true), ResponseBodyAction::Pass);
    let completed = completed(&mut rig, sequence);
    assert_eq!((completed.end(), completed.status), (EndReason::ErrorInsideAnswer, 200));
    assert_eq!(completed.output_chunks, 1);
}

#[test]
fn only_so_many_bytes_wait() {
    let (mut rig, sequence) = held();
    let comments = ": ping\n\n".repeat(HELD_BYTES_MAX / 8);
    assert_eq!(rig.response_body(sequence, &comments, false), ResponseBodyAction::Hold);
    let more = format!("{comments}: ping\n\n");
    assert_eq!(rig.response_body(sequence, &more, false), ResponseBodyAction::Pass);
}

#[test]
fn document_with_an_error_is_replaced_at_its_end() {
    let mut rig = Rig::connected();
    let sequence = rig.running("m1");
    let headers = [(":status", "200"), ("content-type", "application/json"), ("retry-after", "7")];
    assert!(rig.response(sequence, &headers, false).is_held);
    let body = r#"{"error":{"message":"busy","code":"503"}}"#;
    assert_eq!(rig.response_body(sequence, &body[..20], false), ResponseBodyAction::Hold);
    let reply = replaced(rig.response_body(sequence, body, true));
    assert_eq!(reply.status, 503);
    assert!(reply.headers.contains(&("retry-after", "7".to_owned())), "{:?}", reply.headers);
}

#[test]
fn body_without_an_answer_is_reported() {
    for (kind, body) in [
        ("text/html", "<html>It works!</html>"),
        ("text/event-stream", "data: [DONE]\n\n"),
        ("application/json", "{}"),
    ] {
        let mut rig = Rig::connected();
        let sequence = rig.running("m1");
        rig.response(sequence, &[(":status", "200"), ("content-type", kind)], false);
        rig.outputs();
        assert_eq!(rig.response_body(sequence, body, true), ResponseBodyAction::Pass, "{kind}");
        let completed = completed(&mut rig, sequence);
        assert_eq!((completed.end(), completed.first_token_us), (EndReason::NoAnswer, None), "{kind}");
    }
}

#[test]
fn other_responses_are_not_held() {
    for headers in [
        &[(":status", "503"), ("content-type", "application/json")][..],
        &[(":status", "302")],
        &[(":status", "200"), ("content-type", "application/json"), ("content-encoding", "gzip")],
    ] {
        let mut rig = Rig::connected();
        let sequence = rig.running("m1");
        assert!(!rig.response(sequence, headers, false).is_held, "{headers:?}");
    }
    let mut rig = Rig::connected();
    let sequence = rig.running("m1");
    assert!(!rig.response(sequence, &STREAMED, true).is_held, "it has no body");
}
