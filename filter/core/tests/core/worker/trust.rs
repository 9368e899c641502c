//! Trusted and untrusted clients: the claims that are registered, and the headers that reach a server.

use penstock_filter_core::effect::HeadersAction;
use penstock_filter_core::header_sanitizer::HeaderEdit;
use penstock_wire::filter_frame::Event;
use penstock_wire::{Register, Trust};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::worker::harness::{
    Output, Rig, Shared, config, header, identity, register, trust_in, without_retry,
};

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

/// A worker with this trust setting and an established session.
fn rig(trust: Option<Trust>) -> Rig {
    let config = config(|config| identity(config).trust = trust);
    let mut rig = Rig::with(2, &config, &Shared::default());
    rig.open();
    rig.hello_ack(2);
    rig
}

fn removals(names: &[&'static str]) -> Vec<HeaderEdit> {
    names.iter().map(|name| HeaderEdit::Remove((*name).into())).collect()
}

/// Sends a request with all claims. Returns the removed headers and the registration.
fn register_with_claims(rig: &mut Rig) -> (Vec<HeaderEdit>, Register) {
    let HeadersAction::Pause(sequence, edits) = rig.headers(&CLAIMS, false) else { panic!("held") };
    assert_eq!(rig.body(sequence, r#"{"model":"m1"}"#, true), None);
    match rig.outputs().pop() {
        Some(Output::Sent(_, Event::Register(registered))) => (edits, registered),
        other => panic!("a register: {other:?}"),
    }
}

/// The headers that are always removed, in the order of removal.
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
fn untrusted_client_may_claim_only_identities_and_priority() {
    for (trust, client) in [
        (&[][..], "10.0.0.9:555"),
        (&["10.0.1.0/24", "::/0"], "10.0.0.9:555"),
        (&["10.0.0.0/8"], "[2001:db8::1]:555"),
        (&["0.0.0.0/0", "::/0"], "envoy://internal/"),
    ] {
        let mut rig = rig(trust_in(trust));
        rig.host.0.insert("source.address", client.as_bytes().to_vec());
        let (edits, registered) = register_with_claims(&mut rig);
        let lost = [&ALWAYS[..], &["x-class", "x-strict", "x-jump"]].concat();
        assert_eq!(edits, removals(&lost), "{trust:?} {client}");
        let expected = Register {
            fairness_id: "acme".into(),
            priority: "critical".into(),
            deadline_ms: Some(1_500),
            untrusted: true,
            client: registered.client.clone(),
            ..register(1, "m1")
        };
        assert_eq!(registered, expected, "{trust:?} {client}");
    }
}

#[test]
fn trusted_client_may_make_all_claims() {
    // If all clients are trusted, the address isn't registered.
    let all = Some(Trust { all: true, networks: Vec::new() });
    for (trust, client) in [(all, ""), (trust_in(&["192.168.0.0/16", "10.0.0.9/32"]), "10.0.0.9")] {
        let (edits, registered) = register_with_claims(&mut rig(trust.clone()));
        assert_eq!(edits, removals(&ALWAYS), "{trust:?}");
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
        assert_eq!(registered, expected, "{trust:?}");
    }
}

#[test]
fn requests_that_pass_through_lose_the_same_headers() {
    let passing = [&CLAIMS[..], &[(":method", "GET")]].concat();
    for (trust, lost) in [(None, &[][..]), (trust_in(&[]), &["x-class", "x-strict", "x-jump"])] {
        let HeadersAction::Pass(edits) = rig(trust).headers(&passing, true) else { panic!("passes") };
        let mut edits = without_retry(edits);
        assert_eq!(edits.pop(), Some(HeaderEdit::Add("x-penstock-pool", "chat".into())));
        assert_eq!(edits, removals(&[&ALWAYS[..], lost].concat()));
    }
}

#[test]
fn pseudo_headers_are_never_removed() {
    let config = config(|config| {
        let identity = identity(config);
        identity.class = vec![header(":authority")];
        identity.trust = trust_in(&[]);
    });
    let mut rig = Rig::with(2, &config, &Shared::default());
    let HeadersAction::Pause(_, edits) = rig.headers(&[(":authority", "a"), ("x-jump", "1")], false) else {
        panic!("held")
    };
    assert_eq!(edits, removals(&["x-jump"]));
}
