//! Attempts that a server refuses by itself: the headers by which Envoy sends the request again, and the report to the companion.

use penstock_filter_core::config::Config;
use penstock_filter_core::effect::{Effect, HeadersAction, StreamAction};
use penstock_filter_core::failed_attempts::FailedAttempts;
use penstock_filter_core::header_sanitizer::HeaderEdit;
use penstock_filter_core::headers::{Headers, serialize};
use penstock_wire::command::Kind;
use penstock_wire::filter_frame::Event;
use penstock_wire::{AttemptFailed, Grant, RequeueOn};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::worker::harness::{Output, Rig, Shared, config, grant};

const LISTENER: &str = "envoy://requeue/";
const SERVER: &str = "1.1.1.1:1";

/// A filter with these causes in its first pool, with a requeue listener.
fn with_causes(causes: RequeueOn) -> Config {
    config(|config| {
        config.policy.pools[0].requeue_on = Some(causes);
        config.requeue_listener = Some(LISTENER.into());
        config.logs_attempts = true;
    })
}

fn causes(connect: bool, reset: bool, statuses: &[u32]) -> RequeueOn {
    RequeueOn { connect, reset, statuses: statuses.to_vec() }
}

fn connected(config: &Config) -> Rig {
    let mut rig = Rig::with(2, config, &Shared::default());
    rig.open();
    rig.hello_ack(1);
    rig
}

/// Envoy logs an attempt.
fn logged(rig: &mut Rig, id: &str, address: &str, response: &[(&str, &str)]) -> Vec<Event> {
    let request = serialize([(":path", "/v1/chat/completions"), ("x-request-id", id)]);
    let response = serialize(response.iter().copied());
    rig.host.0.insert("upstream.address", address.as_bytes().to_vec());
    rig.worker.handle_attempt_log(rig.now, Headers::new(&request), Headers::new(&response), &rig.host);
    let outputs = rig.outputs().into_iter();
    outputs
        .map(|output| match output {
            Output::Sent(_, event) => event,
            other => panic!("{other:?}"),
        })
        .collect()
}

fn refusal(sequence: u64, status: u32, retry_after_ms: Option<u64>) -> Event {
    Event::AttemptFailed(AttemptFailed {
        sequence,
        endpoint: SERVER.into(),
        status,
        retry_after_ms,
        pool: "chat".into(),
        ..AttemptFailed::default()
    })
}

#[test]
fn granted_request_tells_envoy_when_to_send_it_again() {
    for (logs_attempts, causes, retry_on, statuses) in [
        (
            true,
            causes(true, true, &[429, 503]),
            Some("connect-failure,refused-stream,reset,retriable-status-codes"),
            Some("429,503"),
        ),
        // The companion couldn't tell a refusal from a failed connection.
        (false, causes(true, true, &[429, 503]), Some("connect-failure,refused-stream,reset"), None),
        (true, causes(true, false, &[]), Some("connect-failure,refused-stream"), None),
        (true, causes(false, false, &[]), None, None),
    ] {
        let mut config = with_causes(causes.clone());
        config.logs_attempts = logs_attempts;
        let mut rig = connected(&config);
        let (sequence, _) = rig.waiting("m1");
        let frame = penstock_wire::CompanionFrame {
            seq: 2,
            ack: 0,
            commands: vec![penstock_wire::Command { kind: Some(Kind::Grant(grant(sequence))) }],
        };
        rig.receive(&prost::Message::encode_to_vec(&frame));
        let Some(Effect::Stream { action: StreamAction::Resume { edits, .. }, .. }) =
            rig.worker.poll_effect()
        else {
            panic!("resumed")
        };
        let edit = |name: &'static str, value: Option<&'static str>| match value {
            Some(value) => HeaderEdit::SetStatic(name, value),
            None => HeaderEdit::Remove(name.into()),
        };
        let codes = match statuses {
            Some(statuses) => HeaderEdit::Set("x-envoy-retriable-status-codes", statuses.to_owned()),
            None => HeaderEdit::Remove("x-envoy-retriable-status-codes".into()),
        };
        for expected in [edit("x-envoy-retry-on", retry_on), codes] {
            assert!(edits.contains(&expected), "{causes:?}: {edits:?}");
        }
    }
}

#[test]
fn refused_attempt_is_reported_with_its_status_and_pause() {
    let mut rig = connected(&with_causes(causes(false, false, &[429])));
    let sequence = rig.running("m1");
    let head = |status| [(":status", status), ("retry-after", "7")];
    assert_eq!(logged(&mut rig, "id-1", SERVER, &head("429")), [refusal(sequence, 429, Some(7_000))]);
    assert_eq!(
        logged(&mut rig, "id-1", SERVER, &[(":status", "429"), ("retry-after", "soon")]),
        [refusal(sequence, 429, None)],
        "a date or a word is no number of seconds"
    );
    for (id, address, status) in [
        ("id-1", SERVER, "503"),
        ("id-1", SERVER, "200"),
        ("id-1", LISTENER, "429"),
        ("id-2", SERVER, "429"),
        ("", SERVER, "429"),
    ] {
        assert_eq!(logged(&mut rig, id, address, &head(status)), [], "{id} {address} {status}");
    }
    rig.log(sequence);
    assert_eq!(logged(&mut rig, "id-1", SERVER, &head("429")), [], "it has ended");
}

#[test]
fn cut_connection_is_reported_as_one_and_a_failed_one_is_not() {
    let mut rig = connected(&with_causes(causes(true, true, &[])));
    let sequence = rig.running("m1");
    let cut = |reused| {
        Event::AttemptFailed(AttemptFailed {
            sequence,
            endpoint: SERVER.into(),
            pool: "chat".into(),
            cut: true,
            reused,
            ..AttemptFailed::default()
        })
    };
    let flag = |rig: &mut Rig, bit: u64| {
        rig.host.0.insert("response.flags", (1_u64 << bit).to_le_bytes().to_vec());
    };
    flag(&mut rig, 2);
    let Event::AttemptFailed(expected) = cut(false) else { panic!("another event") };
    let expected = AttemptFailed { cut: false, timed_out: true, ..expected };
    assert_eq!(logged(&mut rig, "id-1", SERVER, &[]), [Event::AttemptFailed(expected)]);
    for (bit, is_cut) in [(4, true), (6, true), (5, false)] {
        flag(&mut rig, bit);
        let expected: Vec<Event> = is_cut.then(|| cut(false)).into_iter().collect();
        assert_eq!(logged(&mut rig, "id-1", SERVER, &[]), expected, "bit {bit}");
    }
    flag(&mut rig, 6);
    for (took_ns, is_reused) in [(900_i64, true), (80_000, false)] {
        rig.host.0.insert("upstream.cx_pool_ready_duration", took_ns.to_le_bytes().to_vec());
        assert_eq!(logged(&mut rig, "id-1", SERVER, &[]), [cut(is_reused)]);
    }
}

#[test]
fn a_404_is_reported_where_the_grant_asks_for_another_endpoint() {
    let mut rig = connected(&with_causes(causes(true, true, &[500])));
    let head = [(":status", "404")];
    rig.running("m1");
    assert_eq!(logged(&mut rig, "id-1", SERVER, &head), []);
    let (sequence, _) = rig.waiting("m1");
    rig.command(0, [Kind::Grant(Grant { retry_not_found: true, ..grant(sequence) })]);
    assert_eq!(logged(&mut rig, "id-1", SERVER, &head), [refusal(sequence, 404, None)]);
}

#[test]
fn refusal_belongs_to_the_latest_grant_under_its_id() {
    let mut rig = connected(&with_causes(causes(false, false, &[429])));
    let (first, second) = (rig.running("m1"), rig.running("m1"));
    let head = [(":status", "429")];
    assert_eq!(logged(&mut rig, "id-1", SERVER, &head), [refusal(second, 429, None)]);
    rig.log(first);
    assert_eq!(logged(&mut rig, "id-1", SERVER, &head), [refusal(second, 429, None)]);
    let (waiting, _) = rig.waiting("m1");
    assert_eq!(
        logged(&mut rig, "id-1", SERVER, &head),
        [refusal(second, 429, None)],
        "{waiting} isn't granted"
    );
}

#[test]
fn requeued_request_carries_the_report_of_its_last_attempt() {
    let shared = Shared::default();
    let failed_attempts = FailedAttempts::default();
    let mut front =
        Rig::with(2, &with_causes(causes(false, false, &[429])), &shared).sharing(&failed_attempts);
    front.open();
    front.hello_ack(1);
    let (sequence, _) = front.waiting("m1");
    let grant = Grant { requeue: true, ..grant(sequence) };
    let outputs = front.command(0, [Kind::Grant(grant)]);
    let [Output::Resume(_, edits)] = &outputs[..] else { panic!("{outputs:?}") };
    let (_, token) = edits.split_once(r#"Set("x-penstock-requeue", ""#).expect("it has a token");
    let token = token.split('"').next().expect("quoted");
    let mut requeue = with_causes(causes(false, false, &[429]));
    requeue.is_requeue_listener = true;
    let registered = |was_refused: bool| {
        let mut rig = Rig::with(3, &requeue, &shared).sharing(&failed_attempts);
        rig.open();
        rig.hello_ack(1);
        let mut headers = vec![("x-penstock-requeue", token)];
        if was_refused {
            headers.push(("x-penstock-refused", "via_upstream"));
        }
        let HeadersAction::Pause(sequence, edits) = rig.headers(&headers, false) else { panic!("paused") };
        let removed = HeaderEdit::Remove("x-penstock-refused".into());
        assert_eq!(edits.contains(&removed), was_refused, "{edits:?}");
        assert_eq!(rig.body(sequence, r#"{"model":"m1"}"#, true), None);
        let outputs = rig.outputs();
        let [Output::Sent(_, Event::Register(register))] = &outputs[..] else { panic!("{outputs:?}") };
        register.failed_attempt.clone().map(Event::AttemptFailed)
    };
    let unknown = Event::AttemptFailed(AttemptFailed { sequence, status: 429, ..AttemptFailed::default() });
    assert_eq!(registered(false), None);
    assert_eq!(registered(true), Some(unknown.clone()));
    let refused = refusal(sequence, 429, Some(2_000));
    let head = [(":status", "429"), ("retry-after", "2")];
    assert_eq!(logged(&mut front, "id-1", SERVER, &head), vec![refused.clone()]);
    assert_eq!(registered(true), Some(refused));
    assert_eq!(registered(false), None, "the log meant another request with its id");
    let own = b"socket creation failure".to_vec();
    front.host.0.insert("upstream.transport_failure_reason", own);
    let unsent = refusal(sequence, 0, None);
    assert_eq!(logged(&mut front, "id-1", SERVER, &[]), vec![unsent.clone()]);
    assert_eq!(registered(false), Some(unsent));
    assert_eq!(registered(true), Some(unknown));
    assert_eq!(failed_attempts.count(), 1);
    front.log(sequence);
    assert_eq!(failed_attempts.count(), 0, "the request has ended");
    assert_eq!(registered(false), None);
}

#[test]
fn client_cannot_say_that_its_request_was_refused() {
    let mut rig = connected(&with_causes(causes(false, false, &[429])));
    let HeadersAction::Pause(sequence, edits) = rig.headers(&[("x-penstock-refused", "1")], false) else {
        panic!("paused")
    };
    assert!(edits.contains(&HeaderEdit::Remove("x-penstock-refused".into())));
    assert_eq!(rig.body(sequence, r#"{"model":"m1"}"#, true), None);
    let outputs = rig.outputs();
    assert!(
        matches!(&outputs[..], [Output::Sent(_, Event::Register(register))] if register.failed_attempt.is_none()),
        "{outputs:?}"
    );
}

#[test]
fn attempt_for_which_envoy_had_no_socket_is_reported_as_none_of_the_servers() {
    for causes in [causes(true, true, &[429, 503]), causes(true, false, &[])] {
        let mut rig = connected(&with_causes(causes.clone()));
        let sequence = rig.running("m1");
        // A server that refuses the connection is another matter.
        let remote = b"delayed connect error: Connection refused".to_vec();
        rig.host.0.insert("upstream.transport_failure_reason", remote);
        assert_eq!(logged(&mut rig, "id-1", SERVER, &[]), []);
        let own = b"socket creation failure".to_vec();
        rig.host.0.insert("upstream.transport_failure_reason", own);
        assert_eq!(logged(&mut rig, "id-1", SERVER, &[]), [refusal(sequence, 0, None)], "{causes:?}");
    }
}
