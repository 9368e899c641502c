//! Long JSON responses, of which only the end is read.

use penstock_filter_core::effect::ResponseBodyAction;
use penstock_wire::Completed;
use penstock_wire::filter_frame::Event;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::worker::harness::{Output, Rig, slice};

/// Answers a request of the model `m1` with `body`, in pieces of `piece` bytes. Returns the bytes that the worker fetched, and the
/// prompt's tokens that it reports.
fn answered(rig: &mut Rig, body: &str, piece: usize) -> (usize, Option<u64>) {
    let sequence = rig.running("m1");
    rig.outputs();
    let length = body.len().to_string();
    let headers =
        [(":status", "200"), ("content-type", "application/json"), ("content-length", length.as_str())];
    rig.response(sequence, &headers, false);
    let mut fetched = 0;
    for begin in (0..body.len()).step_by(piece) {
        let present = &body[begin..body.len().min(begin + piece)];
        let end = begin + piece >= body.len();
        let read = |start, length| {
            let bytes = slice(present, start, length)?;
            fetched += bytes.len();
            Some(bytes)
        };
        rig.worker.handle_response_body(rig.now, sequence, present.len(), end, read);
    }
    let outputs = rig.log(sequence);
    let [Output::Sent(_, Event::Completed(Completed { prompt_tokens, .. }))] = outputs[..] else {
        panic!("{outputs:?}");
    };
    (fetched, prompt_tokens)
}

fn embedding(end: &str) -> String {
    format!(r#"{{"data":[{{"embedding":[{}0]}}]{end}}}"#, "0.25,".repeat(10_000))
}

#[test]
fn counts_at_the_end_are_reported() {
    let body = embedding(r#","usage":{"prompt_tokens":7}"#);
    for piece in [100, 16_384, body.len()] {
        let mut rig = Rig::connected();
        assert_eq!(answered(&mut rig, &body, piece), (body.len(), Some(7)), "the first one is read whole");
        // The beginning shows that the document is no error.
        assert_eq!(answered(&mut rig, &body, piece), (4_096 + piece.min(512), Some(7)), "{piece}");
    }
}

#[test]
fn counts_of_the_first_answer_are_found_wherever_they_are() {
    let mut rig = Rig::connected();
    let before = format!(r#"{{"usage":{{"prompt_tokens":8}},{}"#, &embedding("")[1..]);
    for _ in 0..3 {
        assert_eq!(answered(&mut rig, &before, 16_384), (before.len(), Some(8)));
    }
}

#[test]
fn long_error_is_read_whole() {
    let mut rig = Rig::connected();
    answered(&mut rig, &embedding(r#","usage":{"prompt_tokens":7}"#), 16_384);
    let sequence = rig.running("m1");
    rig.outputs();
    let body = format!(r#"{{"error":{{"message":"{}","code":503}}}}"#, "x".repeat(20_000));
    let length = body.len().to_string();
    let headers =
        [(":status", "200"), ("content-type", "application/json"), ("content-length", length.as_str())];
    assert!(rig.response(sequence, &headers, false).is_held);
    let ResponseBodyAction::Replace(reply) = rig.response_body(sequence, &body, true) else {
        panic!("no error");
    };
    assert_eq!(reply.status, 503);
}

#[test]
fn responses_of_a_pool_are_read_whole_after_one_without_counts_at_its_end() {
    let mut rig = Rig::connected();
    let at_the_end = embedding(r#","usage":{"prompt_tokens":7}"#);
    assert_eq!(answered(&mut rig, &at_the_end, 16_384), (at_the_end.len(), Some(7)));
    let before = format!(r#"{{"usage":{{"prompt_tokens":8}},{}"#, &embedding("")[1..]);
    assert_eq!(answered(&mut rig, &before, 16_384), (4_608, None));
    assert_eq!(answered(&mut rig, &before, 16_384), (before.len(), Some(8)));
}

#[test]
fn an_interrupted_response_says_nothing_about_where_counts_are() {
    let mut rig = Rig::connected();
    let body = embedding(r#","usage":{"prompt_tokens":7}"#);
    answered(&mut rig, &body, 16_384);
    let sequence = rig.running("m1");
    let length = body.len().to_string();
    let headers =
        [(":status", "200"), ("content-type", "application/json"), ("content-length", length.as_str())];
    rig.response(sequence, &headers, false);
    rig.response_body(sequence, &body[..20_000], false);
    rig.log(sequence);
    assert_eq!(answered(&mut rig, &body, 16_384), (4_608, Some(7)));
}
