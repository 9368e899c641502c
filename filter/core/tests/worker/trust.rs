//! Whose claims count: what is registered of a client that is trusted, and of one that isn't, and what a server sees.

use crate::harness::{Output, Rig, Shared, config, register};
use penstock_filter_core::{effect::HeadersAction, header_sanitizer::HeaderEdit};
use penstock_wire::{Register, filter_frame::Event};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const CLAIMS: [(&str, &str); 13] = [
    ("x-tenant", "acme"),
    ("x-priority", "critical"),
    ("x-class", "batch"),
    ("x-strict", "3"),
    ("x-jump", "60"),
    ("x-gateway-destination-endpoint", "6.6.6.6:6"),
    ("x-penstock-route", "6.6.6.6:6"),
    ("x-gateway-destination-endpoint-subset", "1.1.1.1:1"),
    ("x-penstock-pool", "evil"),
    ("x-penstock-endpoint", "1.1.1.1:1"),
    ("x-penstock-tolerate", "spot"),
    ("x-penstock-requeue", "token"),
    ("x-penstock-deadline-ms", "1500"),
];

/// A worker that trusts these, connected.
fn rig(trust: &str) -> Rig {
    let identity = format!(r#""identity": {{"trust": {trust}, "#);
    let config = config(r#""identity": {"#, &identity);
    let mut rig = Rig::with(2, &config, &Shared::default());
    rig.open();
    rig.hello_ack(2);
    rig
}

fn removals(names: &[&'static str]) -> Vec<HeaderEdit> {
    names
        .iter()
        .map(|name| HeaderEdit::Remove((*name).into()))
        .collect()
}

/// What the request's headers lose, and what is registered of it.
fn said(rig: &mut Rig) -> (Vec<HeaderEdit>, Register) {
    let HeadersAction::Pause(sequence, edits) = rig.headers(&CLAIMS, false) else {
        panic!("held")
    };
    assert_eq!(rig.body(sequence, r#"{"model":"m1"}"#, true), None);
    match rig.outputs().pop() {
        Some(Output::Sent(_, Event::Register(said))) => (edits, said),
        other => panic!("a register: {other:?}"),
    }
}

/// In the order of the rules.
const ALWAYS: [&str; 7] = [
    "x-gateway-destination-endpoint",
    "x-penstock-pool",
    "x-penstock-requeue",
    "x-penstock-route",
    "x-gateway-destination-endpoint-subset",
    "x-penstock-endpoint",
    "x-penstock-tolerate",
];

#[test]
fn of_a_client_that_isnt_trusted_only_identities_and_priority_are_heard() {
    for (trust, client) in [
        (r#"{"networks": []}"#, "10.0.0.9:555"),
        (r#"{"networks": ["10.0.1.0/24", "::/0"]}"#, "10.0.0.9:555"),
        (r#"{"networks": ["10.0.0.0/8"]}"#, "[2001:db8::1]:555"),
        (r#"{"networks": ["0.0.0.0/0", "::/0"]}"#, "envoy://internal/"),
    ] {
        let mut rig = rig(trust);
        rig.host.0.insert("source.address", client.as_bytes().to_vec());
        let (edits, said) = said(&mut rig);
        let lost = [&ALWAYS[..], &["x-class", "x-strict", "x-jump"]].concat();
        assert_eq!(edits, removals(&lost), "{trust} {client}");
        let expected = Register {
            fairness_id: "acme".into(),
            priority: "critical".into(),
            deadline_ms: Some(1_500),
            untrusted: true,
            client: said.client.clone(),
            ..register(1, "m1")
        };
        assert_eq!(said, expected, "{trust} {client}");
    }
}

#[test]
fn of_a_client_that_is_trusted_all_is_heard() {
    // Who it is matters to nobody where everybody is trusted.
    for (trust, client) in [
        (r#""all""#, ""),
        (r#"{"networks": ["192.168.0.0/16", "10.0.0.9/32"]}"#, "10.0.0.9"),
    ] {
        let (edits, said) = said(&mut rig(trust));
        assert_eq!(edits, removals(&ALWAYS), "{trust}");
        let expected = Register {
            fairness_id: "acme".into(),
            priority: "critical".into(),
            class: "batch".into(),
            strict: Some(3),
            jump_s: Some(60),
            subset: vec!["1.1.1.1:1".into()],
            pin: "1.1.1.1:1".into(),
            tolerations: vec!["spot".into()],
            deadline_ms: Some(1_500),
            client: client.into(),
            ..register(1, "m1")
        };
        assert_eq!(said, expected, "{trust}");
    }
}

#[test]
fn what_passes_through_loses_the_same() {
    let passing = [&CLAIMS[..], &[(":method", "GET")]].concat();
    for (trust, lost) in [
        (r#""all""#, &[][..]),
        (r#"{"networks": []}"#, &["x-class", "x-strict", "x-jump"]),
    ] {
        let HeadersAction::Pass(mut edits) = rig(trust).headers(&passing, true) else {
            panic!("passes")
        };
        assert_eq!(
            edits.pop(),
            Some(HeaderEdit::Set("x-penstock-pool", "chat".into()))
        );
        assert_eq!(edits, removals(&[&ALWAYS[..], lost].concat()));
    }
}

#[test]
fn a_pseudo_header_is_never_removed() {
    let config = config(
        r#""class": [{"header": "x-class"}]"#,
        r#""class": [{"header": ":authority"}], "trust": {"networks": []}"#,
    );
    let mut rig = Rig::with(2, &config, &Shared::default());
    let HeadersAction::Pause(_, edits) = rig.headers(&[(":authority", "a"), ("x-jump", "1")], false) else {
        panic!("held")
    };
    assert_eq!(edits, removals(&["x-jump"]));
}
