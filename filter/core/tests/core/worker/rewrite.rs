//! A grant with a target model: the rewrite of the body, the registration afterwards, and the token of a requeued request.

use penstock_filter_core::rewrite::Rewrite;
use penstock_wire::command::Kind;
use penstock_wire::filter_frame::Event;
use penstock_wire::{Grant, Hello, Register, RequestKey};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::worker::harness::{Output, Rig, Shared, config, grant, register};

const LISTENER: &str = "envoy://penstock-requeue/";

/// A worker of the first listener or of the requeue listener.
fn rig(epoch: u64, is_requeue_listener: bool, shared: &Shared) -> Rig {
    let config = config(|config| {
        config.requeue_listener = Some(LISTENER.into());
        config.is_requeue_listener = is_requeue_listener;
    });
    let mut rig = Rig::with(epoch, &config, shared);
    rig.open();
    rig.hello_ack(2);
    rig
}

fn grant_to(sequence: u64, target: &str) -> Grant {
    Grant { target_model: target.into(), requeue: true, ..grant(sequence) }
}

/// Sends a request with this body, which must wait. Returns its sequence number.
fn waits(rig: &mut Rig, headers: &[(&str, &str)], body: &str) -> u64 {
    let sequence = rig.paused(headers);
    assert_eq!(rig.body(sequence, body, true), None);
    sequence
}

/// Applies a grant. Returns the header edits, the rewrite of the body, and the requeue token.
fn granted(rig: &mut Rig, grant: Grant) -> (String, Option<Rewrite>, String) {
    let outputs = rig.command(0, [Kind::Grant(grant)]);
    let resumed = outputs.into_iter().find_map(|out| match out {
        Output::Resume(_, edits) => Some((edits, None)),
        Output::Rewritten(_, edits, rewrite) => Some((edits, Some(rewrite))),
        _ => None,
    });
    let (edits, rewrite) = resumed.expect("resumed");
    let (_, token) = edits.split_once(r#"Set("x-penstock-requeue", ""#).expect("a token");
    let token = token.split('"').next().expect("its end").to_owned();
    (edits, rewrite, token)
}

#[test]
fn model_in_the_body_is_replaced_and_the_length_updated() {
    let shared = Shared::default();
    for (body, sized, target, after) in [
        (r#"{"model":"m1","n":1}"#, true, "much-longer", r#"{"model":"much-longer","n":1}"#),
        (
            r#"{"n":[{"model":"no"}], "mod\u0065l" : "\u006d\u0031" }"#,
            true,
            "s",
            r#"{"n":[{"model":"no"}], "mod\u0065l" : "s" }"#,
        ),
        (r#"{"model":"m1"}"#, false, "a\"b", r#"{"model":"a\"b"}"#),
    ] {
        let mut rig = rig(5, false, &shared);
        let length = body.len().to_string();
        let headers = [("content-length", length.as_str())];
        let sequence = waits(&mut rig, if sized { &headers } else { &[] }, body);
        let (edits, rewrite, _) = granted(&mut rig, grant_to(sequence, target));
        let rewrite = rewrite.expect("a rewrite");
        let mut bytes = body.as_bytes().to_vec();
        assert_eq!(rewrite.length, bytes.len());
        bytes.splice(rewrite.range, rewrite.text);
        assert_eq!(String::from_utf8_lossy(&bytes), after);
        let length = format!(r#"Set("content-length", "{}")"#, after.len());
        assert_eq!(edits.contains(&length), sized, "{edits}");
        assert!(edits.contains(r#"Remove("content-md5")"#), "{edits}");
    }
}

#[test]
fn body_that_names_the_target_model_stays() {
    let mut rig = rig(5, false, &Shared::default());
    for target in ["", "m1"] {
        let sequence = waits(&mut rig, &[], r#"{"model":"m1"}"#);
        let (edits, rewrite, _) = granted(&mut rig, grant_to(sequence, target));
        assert_eq!(rewrite, None);
        assert!(!edits.contains("content-"), "{edits}");
    }
}

#[test]
fn running_request_is_listed_with_its_target_model() {
    let mut rig = rig(5, false, &Shared::default());
    let sequence = waits(&mut rig, &[], r#"{"model":"m1"}"#);
    granted(&mut rig, grant_to(sequence, "m1-real"));
    rig.closed();
    rig.outputs();
    rig.advance(std::time::Duration::from_secs(2));
    let [Output::Sent(1, Event::Hello(Hello { running, .. }))] = &rig.open()[..] else { panic!("a Hello") };
    let registered: Vec<_> = running.iter().filter_map(|entry| entry.register.as_ref()).collect();
    assert_eq!(registered.len(), 1);
    assert_eq!((registered[0].model.as_str(), registered[0].target_model.as_str()), ("m1", "m1-real"));
}

#[test]
fn requeued_request_keeps_its_requested_model() {
    let shared = Shared::default();
    let mut first = rig(5, false, &shared);
    let asked = waits(&mut first, &[], r#"{"model":"g1","user":"u"}"#);
    let (_, _, token) = granted(&mut first, grant_to(asked, "x-real"));

    // No pool serves `x-real` and no priority applies to it: both follow the requested model.
    let mut second = rig(6, true, &shared);
    let rewritten = r#"{"model":"x-real","user":"u"}"#;
    let again = waits(&mut second, &[("x-penstock-requeue", &token)], rewritten);
    let mut expected = Register {
        requeues: 1,
        requeued_from: Some(RequestKey { epoch_hi: 1, epoch_lo: 5, sequence: asked }),
        target_model: "x-real".into(),
        fairness_id: "u".into(),
        fairness_id_private: true,
        user: "u".into(),
        priority: "critical".into(),
        body_bytes: rewritten.len() as u64,
        ..register(again, "g1")
    };
    assert_eq!(second.outputs(), [Output::Sent(2, Event::Register(expected.clone()))]);

    // The next grant keeps the target model or sets another; the token still has the requested model.
    let (_, none, kept) = granted(&mut second, grant_to(again, "x-real"));
    assert_eq!(none, None);
    let third = waits(&mut second, &[("x-penstock-requeue", &kept)], rewritten);
    expected.sequence = third;
    expected.requeues = 2;
    expected.requeued_from =
        expected.requeued_from.map(|key| RequestKey { epoch_lo: 6, sequence: again, ..key });
    assert_eq!(second.outputs(), [Output::Sent(3, Event::Register(expected))]);
    let (_, other, _) = granted(&mut second, grant_to(third, "g1"));
    assert_eq!(other.expect("back again").text, b"\"g1\"");
}

#[test]
fn token_of_a_request_without_target_model_has_no_model() {
    let shared = Shared::default();
    let mut first = rig(5, false, &shared);
    let sequence = waits(&mut first, &[], r#"{"model":"m1"}"#);
    let (_, _, token) = granted(&mut first, grant_to(sequence, ""));
    // The requested model is then the one in the body.
    let mut second = rig(6, true, &shared);
    let headers = [("x-penstock-requeue", token.as_str())];
    let again = waits(&mut second, &headers, r#"{"model":"m1"}"#);
    let [Output::Sent(_, Event::Register(register))] = &second.outputs()[..] else { panic!("one Register") };
    assert_eq!((register.sequence, register.model.as_str()), (again, "m1"));
    assert_eq!(register.target_model, "");
}
