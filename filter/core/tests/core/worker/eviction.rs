//! Requests that the companion asks to end, because a critical request waits for their place.

use penstock_filter_core::effect::ResponseHeadersAction;
use penstock_filter_core::local_reply::LocalReply;
use penstock_wire::command::Kind;
use penstock_wire::filter_frame::Event;
use penstock_wire::{Completed, EndReason, Evict, Reject, Started};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::worker::harness::{Output, Rig, TEXT_EVENT, grant};

const A: &str = "1.1.1.1:1";
const STREAMED: [(&str, &str); 2] = [(":status", "200"), ("content-type", "text/event-stream")];
const EVICTED: [(&str, &str); 2] = [(":status", "429"), ("content-type", "application/json")];

fn evict(sequence: u64) -> [Kind; 1] {
    let answer = Reject {
        sequence,
        status: 429,
        code: "evicted".into(),
        outcome: "evicted".into(),
        message: "A critical request waited.".into(),
        retry_after_ms: Some(2_500),
        queue_us: 12_345,
        ..Reject::default()
    };
    [Kind::Evict(Evict { answer: Some(answer) })]
}

/// A request that runs at a server, which is silent.
fn silent() -> (Rig, u64) {
    let mut rig = Rig::connected();
    rig.host.0.insert("upstream.address", A.as_bytes().to_vec());
    let sequence = rig.running("m1");
    (rig, sequence)
}

/// The reply with which the host is to end a request.
fn asked(rig: &mut Rig, sequence: u64) -> LocalReply {
    match &rig.command(0, evict(sequence))[..] {
        [Output::Evict(101, reply)] => reply.clone(),
        other => panic!("not asked: {other:?}"),
    }
}

fn expect_start(outputs: &[Output], sequence: u64, first_token: bool) {
    let [Output::Sent(_, Event::Started(started))] = outputs else { panic!("{outputs:?}") };
    let Started { endpoint, status, .. } = started;
    assert_eq!((started.sequence, started.first_token), (sequence, first_token));
    assert_eq!((endpoint.as_str(), *status), (A, 200));
}

#[test]
fn client_gets_the_error_and_the_companion_learns_of_the_end() {
    let (mut rig, sequence) = silent();
    let reply = asked(&mut rig, sequence);
    let body: serde_json::Value = serde_json::from_slice(&reply.body).expect("JSON");
    assert_eq!((reply.status, &body["error"]["code"]), (429, &"evicted".into()));
    let header =
        |name: &str| reply.headers.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str());
    let found = ["retry-after", "x-penstock-outcome", "x-penstock-queue-ms"].map(header);
    assert_eq!(found, [Some("3"), Some("evicted"), Some("12")]);
    assert!(rig.worker.evict(rig.now, sequence, reply.status));
    assert!(!rig.worker.evict(rig.now, sequence, reply.status), "once");
    // Envoy passes the reply through the filter, which leaves it as it is.
    let action = rig.response(sequence, &EVICTED, false);
    assert_eq!(format!("{:?}", action.edits), r#"[Remove("x-gateway-destination-endpoint-served")]"#);
    assert_eq!(ResponseHeadersAction { edits: Vec::new(), ..action }, ResponseHeadersAction::default());
    let completed = Completed {
        sequence,
        endpoint: A.into(),
        status: 429,
        end: EndReason::Evicted.into(),
        ..Completed::default()
    };
    let log = rig.log(sequence);
    let [Output::Sent(_, event)] = &log[..] else { panic!("{log:?}") };
    assert_eq!(*event, Event::Completed(completed));
}

#[test]
fn server_that_responds_keeps_its_request() {
    let (mut rig, sequence) = silent();
    rig.response(sequence, &STREAMED, false);
    rig.outputs();
    expect_start(&rig.command(0, evict(sequence)), sequence, false);
    rig.response_body(sequence, TEXT_EVENT, false);
    rig.outputs();
    expect_start(&rig.command(0, evict(sequence)), sequence, true);
    rig.response_body(sequence, TEXT_EVENT, true);
    let log = rig.log(sequence);
    let [Output::Sent(_, Event::Completed(completed))] = &log[..] else { panic!("{log:?}") };
    assert_eq!((completed.end(), completed.status), (EndReason::Served, 200));
}

#[test]
fn response_that_comes_before_the_host_ends_the_request_saves_it() {
    let (mut rig, sequence) = silent();
    let reply = asked(&mut rig, sequence);
    rig.response(sequence, &[(":status", "200"), ("content-length", "2")], false);
    assert_eq!(rig.outputs(), [], "a document of known length is reported at its end");
    assert!(!rig.worker.evict(rig.now, sequence, reply.status));
    expect_start(&rig.outputs(), sequence, false);
}

#[test]
fn requests_that_wait_or_are_gone_are_left_alone() {
    let mut rig = Rig::connected();
    let (waiting, _) = rig.waiting("m1");
    assert_eq!(rig.command(0, evict(waiting)), []);
    assert_eq!(rig.command(0, evict(99)), []);
    assert_eq!(rig.command(0, [Kind::Evict(Evict { answer: None })]), []);
    let running = rig.running("m1");
    rig.command(0, evict(running));
    rig.log(running);
    assert!(!rig.worker.evict(rig.now, running, 429), "its client has left");
}

#[test]
fn each_api_has_its_own_form_of_the_error() {
    let mut rig = Rig::connected();
    let sequence = rig.paused(&[(":path", "/v1/messages")]);
    rig.body(sequence, r#"{"model":"m1"}"#, true);
    rig.command(0, [Kind::Grant(grant(sequence))]);
    let reply = asked(&mut rig, sequence);
    let body: serde_json::Value = serde_json::from_slice(&reply.body).expect("JSON");
    assert_eq!((&body["type"], &body["error"]["type"]), (&"error".into(), &"rate_limit_error".into()));
}
