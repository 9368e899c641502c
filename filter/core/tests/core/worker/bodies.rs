//! The request body: fetched in slices, checked, and refused at the first error.

use penstock_filter_core::effect::BodyAction;
use penstock_filter_core::limits::SLICE_BYTES;
use penstock_wire::filter_frame::Event;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::worker::harness::{Output, Rig, Shared, config, register, slice};

#[test]
fn trailers_end_the_body() {
    let mut rig = Rig::connected();
    let sequence = rig.paused(&[]);
    let body = r#"{"model":"m1"}"#;
    assert_eq!(rig.body(sequence, body, false), None);
    assert_eq!(rig.outputs(), []);
    let ended = rig.worker.handle_request_end(rig.now, sequence, |start, length| slice(body, start, length));
    assert_eq!(ended, BodyAction::Pause);
    assert_eq!(rig.outputs(), [Output::Sent(2, Event::Register(register(sequence, "m1")))]);
}

/// A worker that accepts long bodies.
fn roomy() -> Rig {
    let roomy = config(|config| config.policy.body_bytes_max = 1_000_000);
    let mut rig = Rig::with(2, &roomy, &Shared::default());
    rig.open();
    rig.hello_ack(1);
    rig
}

#[test]
fn body_is_fetched_in_slices() {
    let mut rig = roomy();
    let sequence = rig.paused(&[]);
    let body = format!(r#"{{"model":"m1","prompt":"{}"}}"#, "x".repeat(2 * SLICE_BYTES));
    let mut reads = Vec::new();
    for size in [100, SLICE_BYTES - 1, SLICE_BYTES, SLICE_BYTES + 1, body.len() - 5, body.len()] {
        let read = |start, length| {
            reads.push((start, length));
            slice(&body, start, length)
        };
        let end = size == body.len();
        let held = rig.worker.handle_request_body(rig.now, sequence, size, end, read);
        assert_eq!(held, BodyAction::Pause, "{size}");
    }
    let rest = body.len() - 2 * SLICE_BYTES;
    assert_eq!(reads, [(0, SLICE_BYTES), (SLICE_BYTES, SLICE_BYTES), (2 * SLICE_BYTES, rest)]);
    let outputs = rig.outputs();
    let [Output::Sent(_, Event::Register(register))] = outputs.as_slice() else { panic!("{outputs:?}") };
    assert_eq!(register.body_bytes, body.len() as u64);
    assert_eq!(register.prompt_bytes, 2 * SLICE_BYTES as u64);
}

#[test]
fn body_is_refused_at_its_first_invalid_slice() {
    let mut rig = roomy();
    let sequence = rig.paused(&[]);
    let body = "x".repeat(SLICE_BYTES + 1);
    assert_eq!(rig.body(sequence, &body[..SLICE_BYTES - 1], false), None);
    let answer = rig.body(sequence, &body, false).expect("refused before its end");
    assert_eq!(answer.status, 400);
}

#[test]
fn missing_bytes_are_fetched_again() {
    let mut rig = roomy();
    let sequence = rig.paused(&[]);
    let body = format!(r#"{{"model":"m1","prompt":"{}"}}"#, "x".repeat(SLICE_BYTES));
    let held = rig.worker.handle_request_body(rig.now, sequence, SLICE_BYTES, false, |_, _| None);
    assert_eq!(held, BodyAction::Pause);
    assert_eq!(rig.body(sequence, &body, true), None);
    let outputs = rig.outputs();
    let [Output::Sent(_, Event::Register(register))] = outputs.as_slice() else { panic!("{outputs:?}") };
    assert_eq!(register.prompt_bytes, SLICE_BYTES as u64);
}
