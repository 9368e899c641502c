//! Requeued requests: the route over the requeue listener, the token that it requires, and the response for the client.

use std::time::Duration;

use penstock_filter_core::config::Config;
use penstock_filter_core::effect::{Effect, HeadersAction, ResponseHeadersAction, StreamAction};
use penstock_filter_core::header_sanitizer::HeaderEdit;
use penstock_wire::command::Kind;
use penstock_wire::filter_frame::Event;
use penstock_wire::{
    Command, CompanionFrame, Completed, EndReason, Grant, Refused, Register, RequestKey, RequeueOn,
};
use prost::Message;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::worker::harness::{Output, Rig, Shared, config, grant, identity, register, trust_in};

const LISTENER: &str = "envoy://penstock-requeue/";

/// The configuration of the first listener, with a change.
fn first_listener(change: impl FnOnce(&mut Config)) -> Config {
    config(|config| {
        config.requeue_listener = Some(LISTENER.into());
        change(config);
    })
}

fn connected(epoch: u64, shared: &Shared, change: impl FnOnce(&mut Config)) -> Rig {
    let mut rig = Rig::with(epoch, &first_listener(change), shared);
    rig.open();
    rig.hello_ack(2);
    rig
}

/// A worker of the first listener.
fn first_worker(epoch: u64, shared: &Shared) -> Rig {
    connected(epoch, shared, |_| {})
}

/// A worker of the requeue listener.
fn requeue_worker(epoch: u64, shared: &Shared) -> Rig {
    connected(epoch, shared, |config| config.is_requeue_listener = true)
}

fn may_requeue(sequence: u64) -> Grant {
    Grant { requeue: true, ..grant(sequence) }
}

/// Grants a request. Returns its requeue token.
fn granted(rig: &mut Rig, sequence: u64) -> String {
    let outputs = rig.command(0, [Kind::Grant(may_requeue(sequence))]);
    let [Output::Resume(_, edits)] = &outputs[..] else { panic!("{outputs:?}") };
    let before = format!(
        r#"[Add("x-penstock-pool", "chat"), Add("x-gateway-destination-endpoint", "1.1.1.1:1,2.2.2.2:2"), Add("x-penstock-route", "1.1.1.1:1,2.2.2.2:2,{LISTENER}"), Set("x-penstock-requeue", ""#
    );
    let token = edits.strip_prefix(&before).expect(edits);
    token.strip_suffix(r#"")]"#).expect(edits).to_owned()
}

/// Sends a requeued request. Returns its sequence number.
fn entered(rig: &mut Rig, token: &str) -> u64 {
    let list = format!("1.1.1.1:1,2.2.2.2:2,{LISTENER}");
    let headers = [
        ("x-penstock-requeue", token),
        ("x-gateway-destination-endpoint", "1.1.1.1:1,2.2.2.2:2"),
        ("x-penstock-route", &list),
    ];
    let HeadersAction::Pause(sequence, edits) = rig.headers(&headers, false) else { panic!("paused") };
    let removed = ["x-gateway-destination-endpoint", "x-penstock-requeue", "x-penstock-route"];
    assert_eq!(edits, removed.map(|name| HeaderEdit::Remove(name.into())));
    assert_eq!(rig.body(sequence, r#"{"model":"m1"}"#, true), None);
    sequence
}

fn requeued_from(epoch_lo: u64, sequence: u64) -> Option<RequestKey> {
    Some(RequestKey { epoch_hi: 1, epoch_lo, sequence })
}

#[test]
fn requeueable_request_carries_its_token_and_route() {
    let shared = Shared::default();
    let mut first = first_worker(5, &shared);
    let (sequence, _) = first.waiting("m1");
    let token = granted(&mut first, sequence);

    // It arrives at another worker of this Envoy, from another client address.
    let mut second = requeue_worker(6, &shared);
    second.host.0.insert("source.address", b"192.0.2.2:0".to_vec());
    second.advance(Duration::from_millis(30));
    let entered = entered(&mut second, &token);
    let expected = Register {
        age_us: 30_000,
        requeues: 1,
        requeued_from: requeued_from(5, sequence),
        ..register(entered, "m1")
    };
    assert_eq!(second.outputs(), [Output::Sent(2, Event::Register(expected))]);
}

#[test]
fn request_may_be_requeued_twice() {
    let shared = Shared::default();
    let mut first = first_worker(5, &shared);
    let (a, _) = first.waiting("m1");
    let token = granted(&mut first, a);
    let mut second = requeue_worker(6, &shared);
    second.advance(Duration::from_millis(30));
    let b = entered(&mut second, &token);
    second.outputs();
    let token = granted(&mut second, b);
    second.advance(Duration::from_millis(40));
    let c = entered(&mut second, &token);
    let expected =
        Register { age_us: 70_000, requeues: 2, requeued_from: requeued_from(6, b), ..register(c, "m1") };
    assert_eq!(second.outputs(), [Output::Sent(3, Event::Register(expected))]);
    // The last grant may exclude a requeue.
    let edits =
        r#"[Add("x-penstock-pool", "chat"), Add("x-gateway-destination-endpoint", "1.1.1.1:1,2.2.2.2:2")]"#;
    let outputs = second.command(0, [Kind::Grant(grant(c))]);
    assert!(matches!(&outputs[..], [Output::Resume(_, said)] if said == edits), "{outputs:?}");
}

#[test]
fn without_listener_key_or_endpoints_there_is_no_token() {
    let plain =
        r#"[Add("x-penstock-pool", "chat"), Add("x-gateway-destination-endpoint", "1.1.1.1:1,2.2.2.2:2")]"#;
    let mut no_listener = Rig::connected();
    let keyless = first_listener(|_| {});
    let mut keyless = Rig::with_shared_data(5, &keyless, Box::new(crate::worker::harness::NoSharedData));
    keyless.open();
    keyless.hello_ack(2);
    for rig in [&mut no_listener, &mut keyless] {
        let (sequence, _) = rig.waiting("m1");
        let outputs = rig.command(0, [Kind::Grant(may_requeue(sequence))]);
        assert!(matches!(&outputs[..], [Output::Resume(_, said)] if said == plain), "{outputs:?}");
    }
    let mut rig = first_worker(5, &Shared::default());
    let (sequence, _) = rig.waiting("m1");
    let nowhere = Grant { endpoints: Vec::new(), ..may_requeue(sequence) };
    let outputs = rig.command(0, [Kind::Grant(nowhere)]);
    let pool = r#"[Add("x-penstock-pool", "chat")]"#;
    assert!(matches!(&outputs[..], [Output::Resume(_, said)] if said == pool), "{outputs:?}");
}

#[test]
fn grant_without_requeue_has_no_token() {
    let config = first_listener(|_| {});
    let mut rig = Rig::with(5, &config, &Shared::default());
    rig.open();
    assert_eq!(rig.hello_ack(1), []);
    let (sequence, _) = rig.waiting("m1");
    let plain =
        r#"[Add("x-penstock-pool", "chat"), Add("x-gateway-destination-endpoint", "1.1.1.1:1,2.2.2.2:2")]"#;
    let outputs = rig.command(2, [Kind::Grant(grant(sequence))]);
    assert!(matches!(&outputs[..], [Output::Resume(_, said)] if said == plain), "{outputs:?}");
}

#[test]
fn hello_names_an_envoy_without_a_requeue_listener() {
    let shared = Shared::default();
    for (mut rig, expected) in [
        (Rig::with(5, &first_listener(|_| {}), &shared), false),
        (Rig::with(6, &config(|_| {}), &shared), true),
    ] {
        let outputs = rig.open();
        let [Output::Sent(1, Event::Hello(hello))] = &outputs[..] else { panic!("{outputs:?}") };
        assert_eq!(hello.no_requeue, expected);
    }
}

#[test]
fn requeue_listener_refuses_requests_without_a_valid_token() {
    let mut elsewhere = first_worker(5, &Shared::default());
    // All tests use the same key, so this Envoy gets a different one.
    let shared = Shared::default();
    {
        use penstock_filter_core::shared_data::{SetIf, SharedData};
        let other = [9_u64.to_le_bytes().as_slice(), &[1; 16]].concat();
        assert!(shared.set("penstock/process", &other, SetIf::Absent));
    }
    let (sequence, _) = elsewhere.waiting("m1");
    let foreign = granted(&mut elsewhere, sequence);
    let spoiled = format!("{}0", &foreign[1..]);
    let none: [(&str, &str); 0] = [];
    for headers in [
        &none[..],
        &[("x-penstock-requeue", foreign.as_str())],
        &[("x-penstock-requeue", spoiled.as_str())],
        &[("x-penstock-requeue", "")],
        &[("x-penstock-requeue", "token"), (":path", "/v1/models")],
        &[(":method", "GET"), (":path", "/v1/models")],
    ] {
        let mut rig = requeue_worker(6, &shared);
        let HeadersAction::Reply(sequence, answer) = rig.headers(headers, true) else {
            panic!("answered: {headers:?}")
        };
        assert_eq!(answer.status, 403);
        let body: serde_json::Value = serde_json::from_slice(&answer.body).expect("JSON");
        assert_eq!(body["error"]["code"], "invalid_request");
        assert_eq!(body["error"]["type"], "invalid_request_error");
        let refused = Refused {
            sequence,
            code: "invalid_request".into(),
            outcome: "rejected_invalid".into(),
            status: 403,
            request_id: "id-1".into(),
            ..Refused::default()
        };
        assert_eq!(rig.outputs(), [Output::Sent(2, Event::Refused(refused))], "{headers:?}");
        assert_eq!(rig.log(sequence), []);
    }
}

#[test]
fn first_listener_ignores_tokens() {
    let shared = Shared::default();
    let mut rig = first_worker(5, &shared);
    let (sequence, _) = rig.waiting("m1");
    let token = granted(&mut rig, sequence);
    let sequence = rig.paused(&[("x-penstock-requeue", &token)]);
    rig.body(sequence, r#"{"model":"m1"}"#, true);
    let said = rig.outputs();
    assert_eq!(said, [Output::Sent(3, Event::Register(register(sequence, "m1")))]);
}

#[test]
fn trust_of_a_requeued_request_follows_its_original_client() {
    let shared = Shared::default();
    let mut first = connected(5, &shared, |config| identity(config).trust = trust_in(&["10.0.0.0/8"]));
    let (sequence, _) = first.waiting("m1");
    let token = granted(&mut first, sequence);
    for (trust, untrusted) in [(trust_in(&["10.0.0.0/8"]), false), (trust_in(&["192.0.2.0/24"]), true)] {
        let config = config(|config| {
            config.is_requeue_listener = true;
            identity(config).trust = trust;
        });
        let mut second = Rig::with(6, &config, &shared);
        second.open();
        second.host.0.insert("source.address", b"192.0.2.2:0".to_vec());
        entered(&mut second, &token);
        let [Output::Sent(_, Event::Register(said))] = &second.outputs()[..] else { panic!("a register") };
        assert_eq!((said.client.as_str(), said.untrusted), ("10.0.0.9", untrusted));
    }
}

#[test]
fn response_of_a_requeued_request_passes_unchanged() {
    let mut rig = first_worker(5, &Shared::default());
    let (sequence, _) = rig.waiting("m1");
    granted(&mut rig, sequence);
    rig.host.0.insert("upstream.address", LISTENER.as_bytes().to_vec());
    rig.host.0.insert("upstream.request_attempt_count", 3_u64.to_le_bytes().to_vec());
    rig.host.0.insert("response.code_details", b"via_upstream".to_vec());
    let answer = [
        (":status", "503"),
        ("x-penstock-outcome", "dispatched"),
        ("x-gateway-destination-endpoint-served", "3.3.3.3:3"),
    ];
    assert_eq!(rig.response(sequence, &answer, false), ResponseHeadersAction::default());
    rig.response_body(sequence, r#"{"usage":{"prompt_tokens":7}}"#, true);
    assert_eq!(rig.outputs(), []);

    // The next Hello doesn't list it; only its end is reported.
    rig.closed();
    rig.advance(Duration::from_millis(50));
    let [Output::Sent(1, Event::Hello(hello))] = &rig.open()[..] else { panic!("Hello") };
    assert_eq!((hello.waiting.len(), hello.running.len()), (0, 0));
    let completed = Completed {
        sequence,
        endpoint: LISTENER.into(),
        status: 503,
        attempts: 3,
        end: EndReason::Unavailable.into(),
        ..Completed::default()
    };
    assert_eq!(rig.log(sequence), [Output::Sent(2, Event::Completed(completed))]);
}

/// Passes a response through a worker whose route reports the endpoint. Returns the response headers.
fn through(
    rig: &mut Rig,
    sequence: u64,
    route: &str,
    mut answer: Vec<(&'static str, String)>,
) -> Vec<(&'static str, String)> {
    answer.retain(|(name, _)| *name != SERVED);
    answer.push((SERVED, route.into()));
    let pairs: Vec<_> = answer.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let edits = rig.response(sequence, &pairs, false).edits;
    for edit in edits {
        match edit {
            HeaderEdit::Remove(gone) => answer.retain(|(name, _)| *name != gone),
            HeaderEdit::Add(name, value) | HeaderEdit::Set(name, value) => {
                answer.retain(|(other, _)| *other != name);
                answer.push((name, value));
            }
            HeaderEdit::SetStatic(..) | HeaderEdit::SetProperty(..) => {
                panic!("only requests have these: {edit:?}")
            }
        }
    }
    answer
}

/// The edits of a grant of `endpoints` in a pool with these causes of a requeue, where the routes requeue by themselves.
fn routed_edits(endpoints: &[&str], causes: &str, may_requeue: bool) -> Vec<HeaderEdit> {
    let mut config = first_listener(|config| config.routes_requeue = true);
    config.logs_attempts = true;
    let causes: Vec<serde_json::Value> = serde_json::from_str(causes).expect("JSON");
    for pool in &mut config.policy.pools {
        pool.requeue_on = Some(RequeueOn {
            connect: causes.contains(&"connect".into()),
            reset: causes.contains(&"reset".into()),
            statuses: causes.iter().filter_map(|cause| u32::try_from(cause.as_u64()?).ok()).collect(),
        });
    }
    let mut rig = Rig::with(5, &config, &Shared::default());
    rig.open();
    rig.hello_ack(2);
    let (sequence, _) = rig.waiting("m1");
    let grant = Grant {
        requeue: may_requeue,
        endpoints: endpoints.iter().map(ToString::to_string).collect(),
        ..grant(sequence)
    };
    let frame = CompanionFrame { seq: 2, ack: 0, commands: vec![Command { kind: Some(Kind::Grant(grant)) }] };
    rig.receive(&frame.encode_to_vec());
    match rig.worker.poll_effect() {
        Some(Effect::Stream { action: StreamAction::Resume { edits, .. }, .. }) => edits,
        other => panic!("{other:?}"),
    }
}

#[test]
fn routes_that_requeue_need_no_headers_but_the_pool_and_the_server() {
    const EVERY: &str = r#"["connect", "reset", 429, 500, 502, 503, 504]"#;
    let names = |edits: &[HeaderEdit]| -> Vec<String> {
        let name = |edit: &HeaderEdit| match edit {
            HeaderEdit::Add(name, _) | HeaderEdit::Set(name, _) | HeaderEdit::SetStatic(name, _) => {
                (*name).to_owned()
            }
            HeaderEdit::SetProperty(name, value) => {
                assert!(value.starts_with("token="), "{value}");
                format!("property {name}")
            }
            HeaderEdit::Remove(name) => format!("no {name}"),
        };
        edits.iter().map(name).collect()
    };
    let (pool, server) = ("x-penstock-pool", "x-gateway-destination-endpoint");
    let (list, token) = ("x-penstock-route", "property penstock.requeue");
    let (retry_on, statuses) = ("x-envoy-retry-on", "x-envoy-retriable-status-codes");
    assert_eq!(names(&routed_edits(&["1.1.1.1:1"], EVERY, true)), [pool, server, token]);
    // The route lists one server and has every cause. Headers say what differs, and where the request goes.
    for (endpoints, causes) in
        [(&["1.1.1.1:1", "2.2.2.2:2"][..], EVERY), (&["1.1.1.1:1"], r#"["reset", 429, 503]"#)]
    {
        let edits = names(&routed_edits(endpoints, causes, true));
        for name in [pool, server, list, token, retry_on, statuses] {
            assert!(edits.iter().any(|edit| edit == name), "{name}: {edits:?}");
        }
    }
    // Without a token no route requeues, and a request with one server isn't sent again.
    let (no_retry, no_statuses) = (format!("no {retry_on}"), format!("no {statuses}"));
    assert_eq!(names(&routed_edits(&["1.1.1.1:1"], EVERY, false)), [pool, server, &no_retry, &no_statuses]);
}

#[test]
fn token_from_a_property_is_as_good_as_one_from_a_header() {
    let shared = Shared::default();
    let mut first = first_worker(5, &shared);
    let (sequence, _) = first.waiting("m1");
    let token = granted(&mut first, sequence);
    let mut second = requeue_worker(6, &shared);
    let entered = entered(&mut second, &format!("token={token}"));
    assert!(matches!(
        &second.outputs()[..],
        [Output::Sent(_, Event::Register(register))]
            if register.sequence == entered && register.requeued_from == requeued_from(5, sequence)
    ));
}

const SERVED: &str = "x-gateway-destination-endpoint-served";

#[test]
fn served_endpoint_reaches_the_client_after_any_number_of_requeues() {
    let shared = Shared::default();
    let mut first = connected(5, &shared, |config| config.routes_report_endpoint = true);
    let mut second = connected(6, &shared, |config| {
        config.routes_report_endpoint = true;
        config.is_requeue_listener = true;
    });
    let (a, _) = first.waiting("m1");
    let token = granted(&mut first, a);
    let b = entered(&mut second, &token);
    second.outputs();
    let token = granted(&mut second, b);
    let c = entered(&mut second, &token);
    second.outputs();
    second.command(0, [Kind::Grant(grant(c))]);

    let lies = vec![(":status", "200".to_owned()), ("x-penstock-served-again", "spoofed".into())];
    let answer = through(&mut second, c, "2.2.2.2:2", lies);
    let answer = through(&mut second, b, LISTENER, answer);
    let answer = through(&mut first, a, LISTENER, answer);
    let names: Vec<_> = answer.iter().map(|(name, _)| *name).collect();
    assert!(!names.contains(&"x-penstock-served-again"), "{names:?}");
    assert!(names.contains(&"x-penstock-outcome"), "{names:?}");
    assert!(answer.contains(&(SERVED, "2.2.2.2:2".into())), "{answer:?}");

    // A local reply of the requeue listener's filter has no served endpoint.
    let (a, _) = first.waiting("m1");
    granted(&mut first, a);
    let expired = vec![(":status", "503".to_owned()), ("x-penstock-outcome", "expired_ttl".into())];
    first.host.0.insert("response.code_details", b"via_upstream".to_vec());
    let answer = through(&mut first, a, LISTENER, expired);
    assert!(answer.iter().all(|(name, _)| *name != SERVED), "{answer:?}");
}

#[test]
fn first_exchange_reports_a_response_that_the_requeue_filter_has_not_seen() {
    let mut rig = first_worker(5, &Shared::default());
    let (sequence, _) = rig.waiting("m1");
    granted(&mut rig, sequence);
    rig.host.0.insert("upstream.address", LISTENER.as_bytes().to_vec());
    rig.host.0.insert("response.code_details", b"via_upstream".to_vec());
    // The requeue listener's VM has trapped, so Envoy sends a local reply.
    let answer = [(":status", "503"), ("x-gateway-destination-endpoint-served", "3.3.3.3:3")];
    let edits = rig.response(sequence, &answer, true).edits;
    assert!(
        matches!(
            &edits[..],
            [HeaderEdit::Add("x-penstock-outcome", outcome), HeaderEdit::Add(..), HeaderEdit::Add(..), HeaderEdit::Remove(served)]
                if outcome == "dispatched" && &**served == "x-gateway-destination-endpoint-served"
        ),
        "{edits:?}"
    );
}

#[test]
fn disconnect_of_a_requeued_client_is_reported_by_both_exchanges() {
    let shared = Shared::default();
    let mut first = first_worker(5, &shared);
    let (a, _) = first.waiting("m1");
    let token = granted(&mut first, a);
    let mut second = requeue_worker(6, &shared);
    let b = entered(&mut second, &token);
    second.outputs();
    let [Output::Sent(3, Event::Cancel(cancel))] = &second.log(b)[..] else { panic!("cancelled") };
    assert_eq!(cancel.sequence, b);
    first.host.0.insert("response.code_details", b"downstream_remote_disconnect".to_vec());
    let [Output::Sent(3, Event::Completed(completed))] = &first.log(a)[..] else { panic!("completed") };
    assert_eq!(completed.end(), EndReason::ClientLeft);
}

#[test]
fn refusal_of_a_requeued_request_names_the_request_that_was_granted() {
    let shared = Shared::default();
    let mut first = first_worker(5, &shared);
    let (a, _) = first.waiting("m1");
    let token = granted(&mut first, a);
    let config = config(|config| config.is_requeue_listener = true);
    let mut second = Rig::with(6, &config, &shared);
    second.advance(Duration::from_secs(5));
    let sequence = second.paused(&[("x-penstock-requeue", &token)]);
    let answer = second.body(sequence, r#"{"model":"m1"}"#, true).expect("a reply");
    assert_eq!(answer.status, 503);
    let outcome = ("x-penstock-outcome", "gateway_unavailable".to_owned());
    assert!(answer.headers.contains(&outcome), "{answer:?}");
    assert_eq!(second.log(sequence), []);
    // It is sent after the Hello.
    let outputs = second.open();
    let refused = outputs.iter().find_map(|output| match output {
        Output::Sent(_, Event::Refused(refused)) => Some(refused),
        _ => None,
    });
    let refused = refused.expect("the companion learns of it");
    assert_eq!((&*refused.outcome, refused.requeues), ("gateway_unavailable", 1));
    let origin = refused.requeued_from.expect("it was granted before");
    assert_eq!(origin.sequence, a);
}
