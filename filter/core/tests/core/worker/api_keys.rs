//! API keys: the tenant of a key, refusals on queued and on passed-through paths, and the tenant of a requeued request.

use penstock_filter_core::config::Config;
use penstock_filter_core::effect::HeadersAction;
use penstock_filter_core::header_sanitizer::HeaderEdit;
use penstock_filter_core::local_reply::LocalReply;
use penstock_wire::command::Kind;
use penstock_wire::filter_frame::Event;
use penstock_wire::names::POOL_HEADER;
use penstock_wire::{self as wire, ApiKey, ApiKeys, Grant, Refused, Register};
use sha2::{Digest, Sha256};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::worker::harness::{Output, Rig, Shared, config, grant, identity, register};

const KEY: &str = "pk-secret";

/// A configuration with the key, which is `required` or not, and with a change.
fn keyed(required: bool, change: impl FnOnce(&mut Config)) -> Config {
    config(|config| {
        identity(config).api_keys = Some(ApiKeys {
            headers: vec!["authorization".into(), "x-api-key".into()],
            required,
            forward: false,
            keys: vec![ApiKey { sha256: Sha256::digest(KEY).to_vec(), tenant: "acme".into() }],
        });
        change(config);
    })
}

fn connected(epoch: u64, config: &Config, shared: &Shared) -> Rig {
    let mut rig = Rig::with(epoch, config, shared);
    rig.open();
    rig.hello_ack(2);
    rig
}

const REQUIRED: bool = true;
const OPTIONAL: bool = false;

fn rig(required: bool) -> Rig {
    connected(2, &keyed(required, |_| {}), &Shared::default())
}

/// A request whose every other source names another tenant. Returns its removed headers and its registration.
fn registered(rig: &mut Rig, extra: &[(&str, &str)]) -> (Vec<HeaderEdit>, Register) {
    rig.host.0.insert("metadata.filter_metadata.jwt.sub", b"other".to_vec());
    let extra = [extra, &[("x-tenant", "evil")]].concat();
    let HeadersAction::Pause(sequence, edits) = rig.headers(&extra, false) else { panic!("paused") };
    assert_eq!(rig.body(sequence, r#"{"model":"m1","user":"evil"}"#, true), None);
    match rig.outputs().pop() {
        Some(Output::Sent(_, Event::Register(registered))) => (edits, registered),
        other => panic!("a register: {other:?}"),
    }
}

fn refused(action: HeadersAction) -> LocalReply {
    let HeadersAction::Reply(_, reply) = action else { panic!("refused: {action:?}") };
    assert_eq!(reply.status, 401);
    let body = String::from_utf8_lossy(&reply.body).into_owned();
    assert!(!body.contains("pk-"), "{body}");
    reply
}

fn with_key() -> [(&'static str, &'static str); 1] {
    [("x-api-key", KEY)]
}

#[test]
fn a_key_gives_the_tenant_whatever_the_client_claims() {
    for required in [REQUIRED, OPTIONAL] {
        let (edits, registered) = registered(&mut rig(required), &with_key());
        assert_eq!(edits, [HeaderEdit::Remove("x-api-key".into())]);
        assert_eq!(&*registered.fairness_id, "acme");
        assert!(registered.tenant_verified && !registered.fairness_id_private);
        assert_eq!(&*registered.user, "evil", "other identities are claims");
    }
    let bearer = ("authorization", format!("Bearer {KEY}"));
    let forwarding = keyed(REQUIRED, |config| {
        identity(config).api_keys.get_or_insert_default().forward = true;
    });
    let mut rig = connected(2, &forwarding, &Shared::default());
    let (edits, registered) = registered(&mut rig, &[(bearer.0, &bearer.1)]);
    assert_eq!((edits, &*registered.fairness_id), (vec![], "acme"));
}

#[test]
fn without_a_key_the_other_sources_decide_if_none_is_required() {
    let (edits, registered) = registered(&mut rig(OPTIONAL), &[("authorization", "Basic YTpi")]);
    assert_eq!(edits, []);
    assert_eq!((&*registered.fairness_id, registered.tenant_verified), ("evil", false));
    refused(rig(OPTIONAL).headers(&[("x-api-key", "pk-wrong")], false));
}

#[test]
fn a_refusal_at_the_headers_is_counted_and_has_the_format_of_the_api() {
    let mut rig = rig(REQUIRED);
    let reply = refused(rig.headers(&[], false));
    let challenge = ("www-authenticate", "Bearer".to_owned());
    assert!(reply.headers.contains(&challenge), "{reply:?}");
    let body = String::from_utf8(reply.body).expect("text");
    assert!(
        body.contains(r#""type":"invalid_request_error","param":null,"code":"invalid_api_key""#),
        "{body}"
    );
    let outputs = rig.outputs();
    let [Output::Sent(_, Event::Refused(counted))] = &outputs[..] else { panic!("{outputs:?}") };
    let expected = Refused {
        sequence: 1,
        code: "invalid_api_key".into(),
        outcome: "rejected_invalid".into(),
        status: 401,
        request_id: "id-1".into(),
        ..Refused::default()
    };
    assert_eq!(*counted, expected);
    for path in ["/v1/messages", "/v1/messages/count_tokens?beta=true"] {
        let body = refused(rig.headers(&[(":path", path)], false)).body;
        let body = String::from_utf8(body).expect("text");
        let begins = r#"{"type":"error","error":{"type":"authentication_error""#;
        assert!(body.starts_with(begins), "{path}: {body}");
    }
}

#[test]
fn a_path_that_passes_through_needs_a_key_as_well() {
    let mut rig = rig(REQUIRED);
    let models = [(":method", "GET"), (":path", "/v1/models")];
    refused(rig.headers(&models, true));
    refused(rig.headers(&[&models[..], &[("x-api-key", "pk-wrong")]].concat(), true));
    let action = rig.headers(&[&models[..], &with_key()].concat(), true);
    let HeadersAction::Pass(edits) = action else { panic!("{action:?}") };
    assert!(edits.contains(&HeaderEdit::Remove("x-api-key".into())), "{edits:?}");
    assert!(edits.contains(&HeaderEdit::Add(POOL_HEADER, "chat".into())), "{edits:?}");
}

#[test]
fn a_new_policy_replaces_the_keys() {
    let mut rig = rig(REQUIRED);
    registered(&mut rig, &with_key());
    let mut policy = keyed(REQUIRED, |_| {}).policy;
    policy.digest = "d1".into();
    if let Some(keys) = policy.identity.as_mut().and_then(|identity| identity.api_keys.as_mut()) {
        keys.keys.clear();
    }
    rig.command(0, [Kind::Policy(policy)]);
    refused(rig.headers(&with_key(), false));
}

#[test]
fn a_worker_with_keys_in_its_configuration_does_not_trust_an_older_stored_policy() {
    let shared = Shared::default();
    let mut rig = Rig::with(2, &config(|_| {}), &shared);
    rig.open();
    rig.hello_ack(2);
    let stored = wire::Policy { digest: "d1".into(), ..keyed(REQUIRED, |_| {}).policy };
    let open = wire::Policy { identity: None, ..stored };
    rig.command(0, [Kind::Policy(open)]);
    assert!(matches!(rig.headers(&[], false), HeadersAction::Pause(..)));
    let mut later = Rig::with(3, &keyed(REQUIRED, |_| {}), &shared);
    refused(later.headers(&[], false));
    later.tick();
    let outputs = later.open_requested();
    let [Output::Sent(1, Event::Hello(hello)), ..] = &outputs[..] else { panic!("{outputs:?}") };
    assert_eq!(hello.policy_digest, "");
}

#[test]
fn a_requeued_request_keeps_the_tenant_of_its_key() {
    let (shared, listener) = (Shared::default(), "envoy://penstock-requeue/");
    let mut requeue = keyed(REQUIRED, |config| config.requeue_listener = Some(listener.into()));
    let mut first = connected(5, &requeue, &shared);
    let (_, before) = registered(&mut first, &with_key());
    let granted = Grant { requeue: true, ..grant(before.sequence) };
    let outputs = first.command(0, [Kind::Grant(granted)]);
    let [Output::Resume(_, edits)] = &outputs[..] else { panic!("{outputs:?}") };
    let (_, token) = edits.split_once(r#"Set("x-penstock-requeue", ""#).expect(edits);
    let token = token.split('"').next().expect("a token");
    assert!(!edits.contains(KEY), "{edits}");

    // The key was removed at the first listener.
    requeue.is_requeue_listener = true;
    let mut second = connected(6, &requeue, &shared);
    let (_, after) = registered(&mut second, &[("x-penstock-requeue", token)]);
    let expected = Register {
        fairness_id: "acme".into(),
        tenant_verified: true,
        user: "evil".into(),
        requeues: 1,
        requeued_from: after.requeued_from,
        body_bytes: after.body_bytes,
        ..register(after.sequence, "m1")
    };
    assert_eq!(after, expected);
    let HeadersAction::Reply(_, reply) = second.headers(&with_key(), false) else { panic!("refused") };
    assert_eq!(reply.status, 403, "a key doesn't replace the token");
}
