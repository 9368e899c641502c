//! Servers that send no byte for a while.

use std::time::Duration;

use penstock_filter_core::limits::{HEADERS_HELD, LONG_ADMISSION};
use penstock_filter_core::worker::SilentEnd;
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

/// The edits of a granted request's headers.
fn granted_edits(rig: &mut Rig, requeue: bool) -> String {
    let (sequence, _) = rig.waiting("m1");
    let grant = Grant { requeue, endpoints: vec![A.into()], ..grant(sequence) };
    match &rig.command(0, [Kind::Grant(grant)])[..] {
        [Output::Resume(_, edits)] => edits.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn envoy_has_the_time_until_the_headers() {
    let time = r#"Set("x-envoy-upstream-rq-per-try-timeout-ms", "30000")"#;
    let hedge = r#"SetStatic("x-envoy-hedge-on-per-try-timeout", "true")"#;
    let found = |edits: String| [time, hedge].map(|edit| edits.contains(edit));
    assert_eq!(found(granted_edits(&mut limited(None, Some(IDLE)), true)), [false, false]);
    assert_eq!(found(granted_edits(&mut limited(Some(FIRST_BYTE), None), true)), [true, true]);
    assert_eq!(found(granted_edits(&mut limited(Some(FIRST_BYTE), None), false)), [true, false]);
}

/// Whether the response is cut within `time`, in steps of a hundredth.
fn cut_after(rig: &mut Rig, time: Duration) -> Option<Duration> {
    for step in 1..=100 {
        rig.advance(time / 100);
        if rig.tick().contains(&Output::EndSilentResponse(101)) {
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
    assert_eq!(rig.worker.end_silent_response(rig.now, sequence), Some(SilentEnd::Reset));
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
    assert_eq!(rig.worker.end_silent_response(rig.now, sequence), Some(SilentEnd::Reset));
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
    assert!(rig.tick().contains(&Output::EndSilentResponse(101)));
    let Some(SilentEnd::Reply(reply)) = rig.worker.end_silent_response(rig.now, sequence) else {
        panic!("no reply");
    };
    let body: serde_json::Value = serde_json::from_slice(&reply.body).expect("JSON");
    assert_eq!((reply.status, &body["error"]["code"]), (504, &"upstream_timeout".into()));
    let log = rig.log(sequence);
    let [Output::Sent(_, Event::Completed(completed))] = &log[..] else { panic!("{log:?}") };
    assert_eq!((completed.end(), completed.status), (EndReason::TimedOutBeforeAnswer, 504));
}

#[test]
fn byte_that_comes_before_the_host_ends_the_response_saves_it() {
    let mut rig = limited(None, Some(IDLE));
    let sequence = rig.running("m1");
    rig.response(sequence, &STREAMED, false);
    rig.response_body(sequence, TEXT_EVENT, false);
    assert!(cut_after(&mut rig, IDLE).is_some());
    rig.response_body(sequence, TEXT_EVENT, false);
    assert_eq!(rig.worker.end_silent_response(rig.now, sequence), None);
    assert!(cut_after(&mut rig, IDLE).is_some(), "and its silence is limited again");
}

#[test]
fn headers_after_their_time_give_the_server_the_same_time_again() {
    let mut rig = limited(Some(FIRST_BYTE), None);
    let sequence = rig.running("m1");
    rig.advance(FIRST_BYTE + IDLE);
    rig.response(sequence, &STREAMED, false);
    assert_eq!(cut_after(&mut rig, FIRST_BYTE - IDLE), None);
    assert!(cut_after(&mut rig, 2 * IDLE).is_some());
}

#[test]
fn complete_response_and_one_without_a_limit_are_never_cut() {
    let mut rig = limited(None, Some(IDLE));
    let sequence = rig.running("m1");
    rig.response(sequence, &STREAMED, false);
    rig.response_body(sequence, TEXT_EVENT, true);
    assert_eq!(cut_after(&mut rig, 3 * IDLE), None);
    assert_eq!(rig.worker.end_silent_response(rig.now, sequence), None);
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
