//! Servers that send no byte for a while.

use std::time::Duration;

use penstock_filter_core::effect::Effect;
use penstock_filter_core::header_sanitizer::HeaderEdit;
use penstock_filter_core::limits::{HEADERS_HELD, LONG_ADMISSION};
use penstock_wire::command::Kind;
use penstock_wire::filter_frame::Event;
use penstock_wire::{EndReason, Grant};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::worker::credits::{admitted, with_credit};
use crate::worker::harness::{Output, Rig, Shared, TEXT_EVENT, config, grant};

const FIRST_BYTE: Duration = Duration::from_secs(30);
const IDLE: Duration = Duration::from_secs(2);
const STREAMED: [(&str, &str); 2] = [(":status", "200"), ("content-type", "text/event-stream")];
const A: &str = "1.1.1.1:1";

/// A worker with these limits in its first pool.
fn limited(first_byte: Option<Duration>, idle: Option<Duration>) -> Rig {
    let millis = |limit: Duration| u64::try_from(limit.as_millis()).expect("short");
    let config = config(|config| {
        config.policy.pools[0].first_byte_ms = first_byte.map(millis);
        config.policy.pools[0].idle_ms = idle.map(millis);
        config.requeue_listener = Some("envoy://requeue/".into());
        config.logs_attempts = true;
    });
    let mut rig = Rig::with(2, &config, &Shared::default());
    rig.open();
    rig.hello_ack(1);
    rig
}

/// The headers that a grant sets for Envoy's router.
fn timeout_headers(rig: &mut Rig, requeue: bool) -> [Option<String>; 2] {
    let (sequence, _) = rig.waiting("m1");
    let grant = Grant { requeue, endpoints: vec![A.into()], ..grant(sequence) };
    let frame = penstock_wire::CompanionFrame {
        seq: 100 + sequence,
        ack: 0,
        commands: vec![penstock_wire::Command { kind: Some(Kind::Grant(grant)) }],
    };
    rig.receive(&prost::Message::encode_to_vec(&frame));
    let mut found = [None, None];
    while let Some(effect) = rig.worker.poll_effect() {
        let Effect::Resume { edits, .. } = effect else {
            continue;
        };
        for edit in edits {
            match edit {
                HeaderEdit::Set("x-envoy-upstream-rq-per-try-timeout-ms", value) => found[0] = Some(value),
                HeaderEdit::SetStatic("x-envoy-hedge-on-per-try-timeout", value) => {
                    found[1] = Some(value.to_owned());
                }
                _ => {}
            }
        }
    }
    found
}

#[test]
fn envoy_has_the_time_until_the_headers() {
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(timeout_headers(&mut limited(None, Some(IDLE)), true), [None, None]);
    assert_eq!(timeout_headers(&mut limited(Some(FIRST_BYTE), None), true), [text("30000"), text("true")]);
    assert_eq!(timeout_headers(&mut limited(Some(FIRST_BYTE), None), false), [text("30000"), None]);
}

/// Whether the response is cut within `time`, in steps of a hundredth.
fn cut_after(rig: &mut Rig, time: Duration) -> Option<Duration> {
    for step in 1..=100 {
        rig.advance(time / 100);
        if rig.tick().contains(&Output::CutResponse(101)) {
            return Some(time / 100 * step);
        }
        // What is held goes on.
        rig.worker.resume_response(1);
    }
    None
}

#[test]
fn pause_after_a_byte_is_limited_and_bytes_extend_it() {
    let mut rig = limited(Some(FIRST_BYTE), Some(IDLE));
    let sequence = rig.running("m1");
    rig.response(sequence, &STREAMED, false);
    for _ in 0..5 {
        rig.response_body(sequence, TEXT_EVENT, false);
        assert_eq!(cut_after(&mut rig, IDLE - Duration::from_millis(100)), None);
    }
    assert!(rig.worker.tick_period(rig.now) <= IDLE);
    assert!(cut_after(&mut rig, IDLE).is_some());
    assert!(rig.worker.may_cut_response(sequence));
    let [Output::Sent(_, Event::Completed(completed))] = &rig.log(sequence)[..] else {
        panic!("not completed");
    };
    assert_eq!((completed.end(), completed.output_chunks), (EndReason::TimedOutInsideAnswer, 5));
}

#[test]
fn headers_alone_are_no_byte_and_a_pause_before_the_first_byte_is_none() {
    let mut rig = limited(Some(FIRST_BYTE), Some(IDLE));
    let sequence = rig.running("m1");
    rig.response(sequence, &STREAMED, false);
    let cut = cut_after(&mut rig, FIRST_BYTE + IDLE).expect("cut");
    assert!(cut >= FIRST_BYTE, "{cut:?}");
    let [Output::Sent(_, Event::Completed(completed))] = &rig.log(sequence)[..] else {
        panic!("not completed");
    };
    assert_eq!(completed.end(), EndReason::TimedOutBeforeAnswer);
}

#[test]
fn client_that_has_received_nothing_gets_an_error() {
    let mut rig = limited(Some(HEADERS_HELD / 2), None);
    let sequence = rig.running("m1");
    assert!(rig.response(sequence, &STREAMED, false).is_held);
    rig.outputs();
    rig.advance(HEADERS_HELD / 2);
    let outputs = rig.tick();
    let reply = outputs.iter().find_map(|output| match output {
        Output::Reply(_, reply) => Some(reply),
        _ => None,
    });
    let reply = reply.unwrap_or_else(|| panic!("{outputs:?}"));
    let body: serde_json::Value = serde_json::from_slice(&reply.body).expect("JSON");
    assert_eq!((reply.status, &body["error"]["code"]), (504, &"upstream_timeout".into()));
    let log = rig.log(sequence);
    let [Output::Sent(_, Event::Completed(completed))] = &log[..] else { panic!("{log:?}") };
    assert_eq!((completed.end(), completed.status), (EndReason::TimedOutBeforeAnswer, 504));
}

#[test]
fn complete_response_and_one_without_a_limit_are_never_cut() {
    let mut rig = limited(None, Some(IDLE));
    let sequence = rig.running("m1");
    rig.response(sequence, &STREAMED, false);
    rig.response_body(sequence, TEXT_EVENT, true);
    assert_eq!(cut_after(&mut rig, 3 * IDLE), None);
    assert!(!rig.worker.may_cut_response(sequence));
    let mut rig = limited(Some(FIRST_BYTE), None);
    let sequence = rig.running("m1");
    rig.response(sequence, &STREAMED, false);
    rig.response_body(sequence, TEXT_EVENT, false);
    assert_eq!(cut_after(&mut rig, 3 * FIRST_BYTE), None);
}

#[test]
fn request_that_runs_by_credit_for_long_is_reported_once() {
    let mut rig = with_credit(&[(A, 9)]);
    let sequence = admitted(&mut rig);
    let reported = |outputs: Vec<Output>| {
        let reports = outputs.into_iter().filter_map(|output| match output {
            Output::Reported(_, report) => report.running.and_then(|running| running.register),
            _ => None,
        });
        reports.map(|register| register.sequence).collect::<Vec<_>>()
    };
    // The credit is renewed meanwhile.
    rig.command(
        0,
        [Kind::Credit(penstock_wire::Credit { ttl_ms: 60_000, ..crate::worker::credits::credit(1, &[]) })],
    );
    rig.advance(LONG_ADMISSION - Duration::from_millis(1));
    assert!(reported(rig.tick()).is_empty());
    rig.advance(Duration::from_millis(1));
    let mut reports = reported(rig.tick());
    rig.advance(Duration::from_secs(1));
    reports.extend(reported(rig.tick()));
    assert_eq!(reports, [sequence]);
}
