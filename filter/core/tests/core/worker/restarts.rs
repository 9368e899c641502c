//! Requests that are queued again because their stream is restarted.

use std::time::Duration;

use penstock_filter_core::config::Config;
use penstock_filter_core::effect::{BodyAction, HeadersAction, ResponseBodyAction};
use penstock_filter_core::headers::{Headers, serialize};
use penstock_filter_core::rewrite::{BufferedBody, Rewrite};
use penstock_wire::command::Kind;
use penstock_wire::filter_frame::Event;
use penstock_wire::{
    Admitted, AttemptFailed, Cancel, Completed, EndReason, Grant, Refused, Register, RequestKey, RequeueOn,
    Running,
};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::worker::credit_reports::{Message, held, reopen};
use crate::worker::credits::{A, arrive, credit};
use crate::worker::harness::{CAN_RESTART, Output, Rig, Shared, config, grant, register};

const ERROR: &[(&str, &str)] = &[("content-type", "text/plain"), ("content-length", "9")];

/// A worker whose host can restart streams, and whose pool requeues after this.
fn restarting(requeue_on: RequeueOn) -> Rig {
    restarting_with(requeue_on, |_| {})
}

/// The same, with a change of the configuration.
fn restarting_with(requeue_on: RequeueOn, change: impl FnOnce(&mut Config)) -> Rig {
    let config = config(|config| {
        config.restarts = true;
        change(config);
        for pool in &mut config.policy.pools {
            pool.requeue_on = Some(requeue_on.clone());
        }
    });
    let mut rig = Rig::with(5, &config, &Shared::default());
    rig.open();
    rig.hello_ack(1);
    rig.host.0.insert(CAN_RESTART, Vec::new());
    rig.host.0.insert("upstream.address", A.as_bytes().to_vec());
    rig
}

fn every() -> RequeueOn {
    RequeueOn { connect: true, reset: true, statuses: vec![429, 500, 502, 503, 504] }
}

/// Grants a request for one endpoint.
fn grants(rig: &mut Rig, sequence: u64) -> Grant {
    let grant = Grant { endpoints: vec![A.into()], requeue: true, ..grant(sequence) };
    let outputs = rig.command(0, [Kind::Grant(grant.clone())]);
    let [Output::Resume(_, edits)] = &outputs[..] else { panic!("{outputs:?}") };
    let only = format!(r#"[Add("x-penstock-pool", "chat"), Add("x-gateway-destination-endpoint", "{A}")]"#);
    assert_eq!(*edits, only, "neither a token nor a list");
    grant
}

/// Sends a request and grants it for one endpoint. Returns its sequence number.
fn granted(rig: &mut Rig) -> u64 {
    let (sequence, _) = rig.waiting("m1");
    grants(rig, sequence);
    sequence
}

/// A response with this status and these details. Returns whether its stream is restarted.
fn answered(rig: &mut Rig, sequence: u64, status: &str, details: &str) -> bool {
    rig.host.0.insert("response.code_details", details.as_bytes().to_vec());
    let headers = [&[(":status", status)], ERROR].concat();
    rig.response(sequence, &headers, false).is_restarted
}

/// The headers of a stream that was restarted. `before`: the request's number.
fn comes_again(rig: &mut Rig, before: u64) -> u64 {
    let map = serialize([
        (":method", "POST"),
        (":path", "/v1/chat/completions"),
        ("x-request-id", "id-1"),
        ("x-penstock-pool", "chat"),
        ("x-gateway-destination-endpoint", A),
    ]);
    let headers = Headers::new(&map);
    let action = rig.worker.handle_restarted_headers(rig.now, 90, headers, false, &rig.host, before);
    let HeadersAction::Pause(sequence, edits) = action else { panic!("{action:?}") };
    assert_eq!(edits.len(), 2, "the edits of the first grant are removed: {edits:?}");
    sequence
}

fn from(sequence: u64) -> Option<RequestKey> {
    Some(RequestKey { epoch_hi: 1, epoch_lo: 5, sequence })
}

/// The end of the first exchange.
fn left(sequence: u64, status: u32) -> Event {
    Event::Completed(Completed {
        sequence,
        endpoint: A.into(),
        status,
        end: EndReason::Unavailable.into(),
        ..Completed::default()
    })
}

fn events(outputs: Vec<Output>) -> Vec<Event> {
    let event = |output| match output {
        Output::Sent(_, event) => event,
        other => panic!("{other:?}"),
    };
    outputs.into_iter().map(event).collect()
}

#[test]
fn refused_request_is_registered_before_its_first_exchange_ends() {
    let mut rig = restarting(every());
    let first = granted(&mut rig);
    rig.advance(Duration::from_millis(30));
    assert!(answered(&mut rig, first, "503", "via_upstream"));
    let attempt = AttemptFailed {
        sequence: first,
        endpoint: A.into(),
        status: 503,
        pool: "chat".into(),
        ..AttemptFailed::default()
    };
    assert_eq!(events(rig.outputs()), [Event::AttemptFailed(attempt.clone())]);
    // The stream ends, and the new one begins.
    assert_eq!(rig.log(first), []);
    let second = comes_again(&mut rig, first);
    assert_eq!(rig.outputs(), []);
    assert_eq!(rig.body(second, r#"{"model":"m1"}"#, true), None);
    let expected = Register {
        age_us: 30_000,
        requeues: 1,
        requeued_from: from(first),
        failed_attempt: Some(attempt),
        ..register(second, "m1")
    };
    assert_eq!(events(rig.outputs()), [Event::Register(expected), left(first, 503)]);
    grants(&mut rig, second);
    assert!(!answered(&mut rig, second, "200", "via_upstream"));
    assert_eq!(rig.worker.exchanges(), 1);
}

#[test]
fn only_failures_of_the_pool_restart_a_stream() {
    const RESET: &str = "upstream_reset_before_response_started{connection_termination}";
    const REFUSED: &str =
        "upstream_reset_before_response_started{remote_connection_failure|Connection_refused}";
    const OVERFLOW: &str = "upstream_reset_before_response_started{overflow}";
    let connect = || RequeueOn { connect: true, ..RequeueOn::default() };
    let only_503 = || RequeueOn { statuses: vec![503], ..RequeueOn::default() };
    for (requeue_on, status, details, expected) in [
        (every(), "503", "via_upstream", true),
        (every(), "404", "via_upstream", false),
        (every(), "503", RESET, true),
        (every(), "503", REFUSED, true),
        (every(), "504", "upstream_per_try_timeout", true),
        (every(), "503", OVERFLOW, false),
        (every(), "503", "cluster_not_found", false),
        (every(), "503", "no_healthy_upstream", true),
        (every(), "408", "request_overall_timeout", false),
        (connect(), "503", REFUSED, true),
        (connect(), "503", RESET, false),
        (connect(), "503", "via_upstream", false),
        (connect(), "504", "upstream_per_try_timeout", false),
        (only_503(), "503", "via_upstream", true),
        (only_503(), "500", "via_upstream", false),
        (only_503(), "503", REFUSED, false),
        // The endpoint isn't in Envoy's cluster yet: it has refused nothing.
        (only_503(), "503", "no_healthy_upstream", true),
    ] {
        let mut rig = restarting(requeue_on.clone());
        let sequence = granted(&mut rig);
        assert_eq!(
            answered(&mut rig, sequence, status, details),
            expected,
            "{status} {details} {requeue_on:?}"
        );
    }
}

#[test]
fn stream_is_not_restarted_without_a_way_back_or_the_whole_body() {
    let mut rig = restarting(every());
    let (sequence, _) = rig.waiting("m1");
    rig.command(0, [Kind::Grant(Grant { endpoints: vec![A.into()], ..grant(sequence) })]);
    assert!(!answered(&mut rig, sequence, "503", "via_upstream"));
    let outputs = events(rig.outputs());
    assert!(matches!(&outputs[..], [Event::AttemptFailed(_)]), "the refusal is reported: {outputs:?}");

    let mut rig = restarting(every());
    let sequence = granted(&mut rig);
    rig.host.0.remove(CAN_RESTART);
    assert!(!answered(
        &mut rig,
        sequence,
        "503",
        "upstream_reset_before_response_started{connection_failure}"
    ));
    let outputs = rig.log(sequence);
    assert!(matches!(&outputs[..], [Output::Sent(_, Event::Completed(_))]), "{outputs:?}");
}

#[test]
fn request_admitted_by_credit_names_its_endpoint() {
    let mut rig = restarting(every());
    let given = penstock_wire::Credit { requeue: true, ..credit(1, &[(A, 1)]) };
    assert_eq!(rig.command(0, [Kind::Credit(given)]), []);
    let (first, edits) = arrive(&mut rig, &[], r#"{"model":"m1"}"#);
    assert!(edits.is_some());
    assert!(answered(
        &mut rig,
        first,
        "503",
        "upstream_reset_before_response_started{remote_connection_failure|Connection_refused}"
    ));
    let second = comes_again(&mut rig, first);
    assert_eq!(rig.body(second, r#"{"model":"m1"}"#, true), None);
    let outputs = rig.outputs();
    let [Output::Sent(_, Event::Register(registered))] = &outputs[..] else { panic!("{outputs:?}") };
    assert_eq!((registered.credit_endpoint.as_str(), registered.requeued_from), (A, from(first)));
    let reports = held(&mut rig);
    let [Message::Reported(Admitted { running: Some(running), credit: 1, completed: Some(completed) })] =
        &reports[..]
    else {
        panic!("{reports:?}")
    };
    let Running { endpoint, .. } = running;
    assert_eq!((endpoint.as_str(), completed.sequence, completed.end()), (A, first, EndReason::Unavailable));
}

#[test]
fn first_exchange_ends_with_the_second_if_that_is_never_registered() {
    // The client leaves while the new stream reads the body.
    let mut rig = restarting(every());
    let first = granted(&mut rig);
    assert!(answered(&mut rig, first, "503", "no_healthy_upstream"));
    let second = comes_again(&mut rig, first);
    assert_eq!(events(rig.log(second)), [left(first, 503)]);
    assert_eq!(rig.worker.exchanges(), 0);

    // Another filter answers the new stream.
    let first = granted(&mut rig);
    assert!(answered(&mut rig, first, "503", "no_healthy_upstream"));
    rig.worker.abandon_restart(rig.now, first);
    assert_eq!(events(rig.outputs()), [left(first, 503)]);
    rig.worker.abandon_restart(rig.now, first);
    assert_eq!(rig.outputs(), []);

    // This filter refuses it.
    let first = granted(&mut rig);
    assert!(answered(&mut rig, first, "503", "no_healthy_upstream"));
    let second = comes_again(&mut rig, first);
    assert!(rig.body(second, "no JSON", true).is_some());
    let outputs = events(rig.outputs());
    let [Event::Refused(Refused { requeued_from, .. }), end] = &outputs[..] else { panic!("{outputs:?}") };
    assert_eq!((*requeued_from, end), (from(first), &left(first, 503)));
}

#[test]
fn client_that_leaves_while_the_request_waits_again_cancels_it() {
    let mut rig = restarting(every());
    let first = granted(&mut rig);
    assert!(answered(&mut rig, first, "503", "no_healthy_upstream"));
    let second = comes_again(&mut rig, first);
    rig.body(second, r#"{"model":"m1"}"#, true);
    rig.outputs();
    assert_eq!(events(rig.log(second)), [Event::Cancel(Cancel { sequence: second })]);
}

#[test]
fn what_the_first_arrival_said_stays() {
    let mut rig = restarting(every());
    let sequence = rig.paused(&[
        ("x-penstock-endpoint", A),
        ("x-penstock-deadline-ms", "5000"),
        ("x-tenant", "acme"),
        ("content-length", "14"),
    ]);
    rig.body(sequence, r#"{"model":"m1"}"#, true);
    let outputs = events(rig.outputs());
    let [Event::Register(first)] = &outputs[..] else { panic!("{outputs:?}") };
    let first = first.clone();
    assert_eq!((first.pin.as_str(), first.fairness_id.as_str()), (A, "acme"));
    grants(&mut rig, sequence);
    assert!(answered(&mut rig, sequence, "503", "no_healthy_upstream"));
    // The filter has removed the headers.
    let second = comes_again(&mut rig, sequence);
    rig.body(second, r#"{"model":"m1"}"#, true);
    let outputs = events(rig.outputs());
    let [Event::Register(again), Event::Completed(_)] = &outputs[..] else { panic!("{outputs:?}") };
    let expected = Register {
        sequence: second,
        requeues: 1,
        requeued_from: from(sequence),
        age_us: again.age_us,
        ..first
    };
    assert_eq!(*again, expected);
}

/// A body in Envoy's buffer.
struct Bytes(Vec<u8>);

impl BufferedBody for &mut Bytes {
    fn read(&mut self, start: usize, length: usize) -> Option<Vec<u8>> {
        self.0.get(start..).map(|rest| rest[..length.min(rest.len())].to_vec())
    }

    fn rewrite(&mut self, rewrite: &Rewrite) -> bool {
        assert!(rewrite.fits(self.0.len()));
        self.0.splice(rewrite.range.clone(), rewrite.text.iter().copied());
        true
    }
}

#[test]
fn counts_that_the_gateway_asked_for_stay_hidden() {
    const BODY: &str = r#"{"model":"m1","stream":true}"#;
    let mut rig = restarting_with(every(), |config| config.policy.pools[0].include_usage = true);
    let first = rig.paused(&[("content-length", "28")]);
    let mut body = Bytes(BODY.as_bytes().to_vec());
    let action = rig.worker.handle_request_body(rig.now, first, BODY.len(), true, &mut body);
    assert_eq!(action, BodyAction::Pause);
    assert!(body.0.len() > BODY.len(), "the gateway has asked for counts");
    rig.outputs();
    let grant = Grant { endpoints: vec![A.into()], requeue: true, ..grant(first) };
    rig.command(0, [Kind::Grant(grant)]);
    assert!(answered(&mut rig, first, "503", "no_healthy_upstream"));
    let second = comes_again(&mut rig, first);
    let length = body.0.len();
    assert_eq!(rig.worker.handle_request_body(rig.now, second, length, true, &mut body), BodyAction::Pause);
    assert_eq!(body.0.len(), length, "once is enough");
    rig.outputs();
    rig.command(0, [Kind::Grant(Grant { endpoints: vec![A.into()], ..self::grant(second) })]);
    rig.host.0.insert("response.code_details", b"via_upstream".to_vec());
    rig.response(second, &[(":status", "200"), ("content-type", "text/event-stream")], false);
    let events = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\n\n";
    let action = rig.response_body(second, events, true);
    let ResponseBodyAction::Edit { bytes, .. } = action else { panic!("{action:?}") };
    let passed = String::from_utf8(bytes).expect("text");
    assert!(passed.contains("content") && !passed.contains("usage"), "{passed}");
}

#[test]
fn hello_lists_a_request_whose_stream_is_being_restarted() {
    let mut rig = restarting(every());
    let first = granted(&mut rig);
    assert!(answered(&mut rig, first, "503", "no_healthy_upstream"));
    rig.outputs();
    let running = |rig: &mut Rig| {
        let (hello, _) = reopen(rig);
        let running = hello.running.iter().filter_map(|running| running.register.as_ref());
        let running: Vec<u64> = running.map(|register| register.sequence).collect();
        (running, hello.waiting.len())
    };
    // Another filter looks at the new stream for a while; then this one reads its body.
    assert_eq!(running(&mut rig), (vec![first], 0));
    let second = comes_again(&mut rig, first);
    assert_eq!(running(&mut rig), (vec![first], 0));
    rig.body(second, r#"{"model":"m1"}"#, true);
    rig.outputs();
    let (hello, _) = reopen(&mut rig);
    assert_eq!((hello.running.len(), hello.waiting.len()), (0, 1));
}

#[test]
fn request_stays_queued_if_its_path_is_passed_meanwhile() {
    let mut rig = restarting(every());
    let first = granted(&mut rig);
    let mut policy = config(|_| {}).policy;
    policy.digest = "later".into();
    for route in &mut policy.routes {
        route.path = "/elsewhere".into();
    }
    rig.command(0, [Kind::Policy(policy)]);
    assert!(answered(&mut rig, first, "503", "no_healthy_upstream"));
    let second = comes_again(&mut rig, first);
    rig.body(second, r#"{"model":"m1"}"#, true);
    let outputs = events(rig.outputs());
    assert!(matches!(&outputs[..], [Event::Register(_), Event::Completed(_)]), "{outputs:?}");
}
