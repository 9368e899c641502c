//! One request through the worker: its replies, its header edits, and exactly the events that the companion receives.

use std::time::Duration;

use penstock_filter_core::effect::{HeadersAction, ResponseHeadersAction};
use penstock_filter_core::header_sanitizer::HeaderEdit;
use penstock_filter_core::limits::HEADERS_HELD;
use penstock_filter_core::local_reply::LocalReply;
use penstock_wire::command::Kind;
use penstock_wire::filter_frame::Event;
use penstock_wire::rate_limit::Unit;
use penstock_wire::{
    self as wire, Cancel, Completed, EndReason, Endpoints, Grant, Policy, Pool, Refused, Register, Reject,
    Route, Started,
};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::worker::harness::{
    Ended, Output, Rig, Shared, TEXT_DOCUMENT, TEXT_EVENT, config, grant, register, without_retry,
};

fn header<'a>(answer: &'a LocalReply, name: &str) -> Option<&'a str> {
    answer.headers.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
}

fn message(answer: &LocalReply) -> String {
    let json: serde_json::Value = serde_json::from_slice(&answer.body).expect("JSON");
    json["error"]["message"].as_str().expect("a message").to_owned()
}

fn set(name: &'static str, value: &str) -> HeaderEdit {
    HeaderEdit::Set(name, value.to_owned())
}

fn add(name: &'static str, value: &str) -> HeaderEdit {
    HeaderEdit::Add(name, value.to_owned())
}

#[test]
fn request_from_headers_to_log_entry() {
    let mut rig = Rig::connected();
    let (sequence, registered) = rig.waiting("m1");
    assert_eq!(registered, [Output::Sent(2, Event::Register(register(1, "m1")))]);

    rig.advance(Duration::from_millis(10));
    let edits =
        r#"[Add("x-penstock-pool", "chat"), Add("x-gateway-destination-endpoint", "1.1.1.1:1,2.2.2.2:2")]"#;
    assert_eq!(rig.command(2, [Kind::Grant(grant(sequence))]), [Output::Resume(101, edits.into())]);

    rig.advance(Duration::from_millis(3));
    rig.host.0.insert("upstream.address", b"2.2.2.2:2".to_vec());
    rig.host.0.insert("upstream.request_attempt_count", 2_u64.to_le_bytes().to_vec());
    let responded =
        rig.response(sequence, &[(":status", "200"), ("content-type", "application/json")], false);
    assert_eq!(
        responded.edits,
        [
            add("x-penstock-outcome", "dispatched"),
            add("x-penstock-queue-ms", "12"),
            add("x-penstock-saturation", "0.42"),
            add("x-gateway-destination-endpoint-served", "2.2.2.2:2"),
        ]
    );
    let started = Started {
        sequence,
        endpoint: "2.2.2.2:2".into(),
        status: 200,
        attempts: 2,
        after_us: 3_000,
        first_token: false,
    };
    assert_eq!(rig.outputs(), [Output::Sent(3, Event::Started(started))]);

    rig.advance(Duration::from_millis(4));
    rig.response_body(sequence, r#"{"choices":[{"text":"ab"}],"usage":{"prompt_tokens":7,"#, false);
    rig.advance(Duration::from_millis(5));
    rig.response_body(sequence, r#""completion_tokens":9}}"#, false);
    rig.advance(Duration::from_millis(6));
    rig.response_body(sequence, "", true);
    assert_eq!(rig.outputs(), []);
    let completed = Completed {
        sequence,
        endpoint: "2.2.2.2:2".into(),
        status: 200,
        attempts: 2,
        end: EndReason::Served.into(),
        first_token_us: Some(7_000),
        last_byte_us: Some(12_000),
        prompt_tokens: Some(7),
        output_tokens: Some(9),
        ..Completed::default()
    };
    assert_eq!(rig.log(sequence), [Output::Sent(4, Event::Completed(completed))]);
    assert_eq!(rig.ended, Ended { text_bytes: Some(2), body_bytes: 77, ended_us: 18_000 });
    assert_eq!(rig.log(sequence), []);
}

#[test]
fn claims_are_registered_and_their_headers_removed() {
    let mut rig = Rig::connected();
    rig.host.0.insert("metadata.filter_metadata.jwt.sub", b"sub-1".to_vec());
    let claims = [
        ("x-priority", " High "),
        ("x-strict", "3"),
        ("x-gateway-destination-endpoint", "6.6.6.6:6"),
        ("x-gateway-destination-endpoint-subset", "1.1.1.1:1, 2.2.2.2:2"),
        ("x-penstock-pool", "evil"),
        ("x-penstock-endpoint", "1.1.1.1:1"),
        ("x-penstock-tolerate", "spot"),
        ("x-penstock-requeue", "token"),
        ("x-penstock-deadline-ms", "1500"),
        ("x-slo-ttft-ms", "soon"),
        ("accept-encoding", "gzip"),
    ];
    let HeadersAction::Pause(sequence, edits) = rig.headers(&claims, false) else { panic!("held") };
    let removed = [
        "x-gateway-destination-endpoint",
        "x-penstock-pool",
        "x-penstock-requeue",
        "x-gateway-destination-endpoint-subset",
        "x-penstock-endpoint",
        "x-penstock-tolerate",
        "accept-encoding",
    ];
    assert_eq!(edits, removed.map(|name| HeaderEdit::Remove(name.into())));
    assert_eq!(
        rig.body(
            sequence,
            r#"{"model":"g1","user":"bob","max_tokens":5,"stream":true,"prompt":"abc"}"#,
            true
        ),
        None
    );
    let expected = Register {
        max_tokens: Some(5),
        prompt_bytes: 3,
        stream: true,
        body_bytes: 71,
        fairness_id: "sub-1".into(),
        user: "bob".into(),
        priority: "High".into(),
        strict: Some(3),
        subset: vec!["1.1.1.1:1".into(), "2.2.2.2:2".into()],
        pin: "1.1.1.1:1".into(),
        tolerations: vec!["spot".into()],
        deadline_ms: Some(1_500),
        bad_slo_ttft: true,
        ..register(sequence, "g1")
    };
    assert_eq!(rig.outputs(), [Output::Sent(2, Event::Register(expected))]);
}

#[test]
fn identities_fall_back_to_body_and_model_table() {
    let mut rig = Rig::connected();
    let sequence = rig.paused(&[]);
    rig.body(sequence, r#"{"model":"g1","user":"bob"}"#, true);
    let [Output::Sent(_, Event::Register(registered))] = &rig.outputs()[..] else { panic!("a register") };
    assert_eq!((registered.fairness_id.as_str(), registered.fairness_id_private), ("bob", true));
    assert_eq!(registered.priority, "critical");
}

#[test]
fn tiers_and_head_starts_out_of_range_are_ignored() {
    let mut rig = Rig::connected();
    let mut registered = |strict: &'static str, jump: &'static str| {
        let sequence = rig.paused(&[("x-strict", strict), ("x-jump", jump), ("x-class", "batch")]);
        rig.body(sequence, r#"{"model":"g1"}"#, true);
        let [Output::Sent(_, Event::Register(registered))] = &rig.outputs()[..] else { panic!("a register") };
        assert_eq!(registered.class, "batch");
        (registered.strict, registered.jump_s)
    };
    assert_eq!(registered("15", "3600"), (Some(15), Some(3_600)));
    assert_eq!(registered("16", "3601"), (None, None));
    assert_eq!(registered("0", "0"), (Some(0), Some(0)));
    assert_eq!(registered("-1", "1.5"), (None, None));
    assert_eq!(registered("high", "99999999999999999999"), (None, None));
}

#[test]
fn deadline_must_be_a_whole_number_of_at_least_one() {
    let mut rig = Rig::connected();
    let mut registered = |deadline: &'static str| {
        let sequence = rig.paused(&[("x-penstock-deadline-ms", deadline)]);
        rig.body(sequence, r#"{"model":"g1"}"#, true);
        let [Output::Sent(_, Event::Register(registered))] = &rig.outputs()[..] else { panic!("a register") };
        (registered.deadline_ms, registered.bad_deadline)
    };
    assert_eq!(registered(" 1 "), (Some(1), false));
    for bad in ["0", "-5", "1.5", "5s", "", "184467440737095516160"] {
        assert_eq!(registered(bad), (None, true), "{bad}");
    }
}

#[test]
fn reject_is_sent_in_the_format_of_the_api() {
    let mut rig = Rig::connected();
    let (sequence, _) = rig.waiting("m1");
    let reject = Reject {
        sequence,
        status: 504,
        code: "deadline_exceeded".into(),
        outcome: "deadline_exceeded".into(),
        message: "late".into(),
        retry_after_ms: Some(2_100),
        r#final: true,
        queue_us: 9_999,
        saturation_milli: 1_500,
        ..Reject::default()
    };
    let outputs = rig.command(2, [Kind::Reject(reject)]);
    let [Output::Reply(101, answer)] = &outputs[..] else { panic!("an answer: {outputs:?}") };
    assert_eq!(answer.status, 504);
    for (name, value) in [
        ("retry-after", "3"),
        ("retry-after-ms", "2100"),
        ("x-should-retry", "false"),
        ("x-penstock-outcome", "deadline_exceeded"),
        ("x-penstock-queue-ms", "9"),
        ("x-penstock-saturation", "1.50"),
    ] {
        assert_eq!(header(answer, name), Some(value), "{name}");
    }
    // The filter leaves its own reply unchanged on the response path, and reports nothing more.
    assert_eq!(rig.response(sequence, &[(":status", "504")], false), ResponseHeadersAction::default());
    assert_eq!(rig.log(sequence), []);
}

#[test]
fn answers_carry_what_is_left_of_a_budget() {
    let left = |unit: Unit| {
        Some(wire::RateLimit { unit: unit.into(), limit: 1_000, remaining: 250, reset_ms: 90_000 })
    };
    let mut rig = Rig::connected();
    let (sequence, _) = rig.waiting("m1");
    let granted = Grant { rate_limit: left(Unit::Tokens), ..grant(sequence) };
    rig.command(2, [Kind::Grant(granted)]);
    let edits = rig.response(sequence, &[(":status", "200")], false).edits;
    for (name, value) in [
        ("x-ratelimit-limit-tokens", "1000"),
        ("x-ratelimit-remaining-tokens", "250"),
        ("x-ratelimit-reset-tokens", "1m30s"),
    ] {
        assert!(edits.contains(&add(name, value)), "{edits:?}");
    }

    let mut rig = Rig::connected();
    let (sequence, _) = rig.waiting("m1");
    let reject = Reject { sequence, status: 429, rate_limit: left(Unit::Requests), ..Reject::default() };
    let outputs = rig.command(2, [Kind::Reject(reject)]);
    let [Output::Reply(_, answer)] = &outputs[..] else { panic!("an answer: {outputs:?}") };
    assert_eq!(header(answer, "x-ratelimit-remaining-requests"), Some("250"));
    assert_eq!(header(answer, "x-ratelimit-limit-tokens"), None);
}

#[test]
fn malformed_requests_are_refused_and_reported() {
    for (headers, body, status, code, word) in [
        (&[("content-length", "1001")][..], "", 413, "request_too_large", "limits.body_bytes"),
        (&[("content-encoding", "gzip")], "", 400, "invalid_request", "envoy.filters.http.decompressor"),
        (&[], "{", 400, "invalid_request", "at byte 1"),
        (&[], "", 400, "invalid_request", "empty"),
        (&[], r#"{"model":"z"}"#, 404, "model_not_found", "No pool serves the model \"z\""),
        (&[], &" ".repeat(1_001), 413, "request_too_large", "larger than 1000 bytes"),
    ] {
        let mut rig = Rig::connected();
        let (sequence, answer) = match rig.headers(headers, false) {
            HeadersAction::Reply(sequence, answer) => (sequence, answer),
            HeadersAction::Pause(sequence, _) => (sequence, rig.body(sequence, body, true).unwrap()),
            other => panic!("{other:?}"),
        };
        assert_eq!(answer.status, status);
        assert!(message(&answer).contains(word), "{}", message(&answer));
        assert_eq!(header(&answer, "x-penstock-outcome"), Some("rejected_invalid"));
        let refused = Refused {
            sequence,
            code: code.into(),
            outcome: "rejected_invalid".into(),
            status,
            model: if status == 404 { "z".into() } else { String::new() },
            request_id: "id-1".into(),
            registered: false,
            requeued_from: None,
            requeues: 0,
        };
        assert_eq!(rig.outputs(), [Output::Sent(2, Event::Refused(refused))]);
        assert_eq!(rig.log(sequence), []);
    }
}

#[test]
fn request_without_a_body_is_refused_at_once() {
    let mut rig = Rig::connected();
    let HeadersAction::Reply(_, answer) = rig.headers(&[], true) else { panic!("answered") };
    assert_eq!(answer.status, 400);
}

#[test]
fn disconnect_of_the_client_is_reported() {
    let mut rig = Rig::connected();
    let unread = rig.paused(&[]);
    assert_eq!(rig.log(unread), []);

    let (waiting, _) = rig.waiting("m1");
    assert_eq!(rig.log(waiting), [Output::Sent(3, Event::Cancel(Cancel { sequence: waiting }))]);

    let running = rig.running("m1");
    rig.host.0.insert("response.code_details", b"downstream_remote_disconnect".to_vec());
    rig.host.0.insert("upstream.address", b"1.1.1.1:1".to_vec());
    let completed = Completed {
        sequence: running,
        endpoint: "1.1.1.1:1".into(),
        end: EndReason::ClientLeft.into(),
        ..Completed::default()
    };
    assert_eq!(rig.log(running), [Output::Sent(5, Event::Completed(completed))]);
}

#[test]
fn grant_for_a_request_that_is_gone_is_cancelled() {
    let mut rig = Rig::connected();
    let (sequence, _) = rig.waiting("m1");
    rig.log(sequence);
    assert_eq!(
        rig.command(3, [Kind::Grant(grant(sequence))]),
        [Output::Sent(4, Event::Cancel(Cancel { sequence }))]
    );
    let running = rig.running("m1");
    assert_eq!(rig.command(4, [Kind::Grant(grant(running))]), []);
}

#[test]
fn errors_of_envoy_are_replaced_by_penstocks() {
    for (details, status, code, end) in [
        (
            "upstream_reset_before_response_started{remote_connection_failure}",
            503,
            "upstream_unavailable",
            EndReason::Unavailable,
        ),
        ("no_healthy_upstream", 503, "upstream_unavailable", EndReason::Unavailable),
        (
            "upstream_reset_before_response_started{connection_termination}",
            502,
            "upstream_reset",
            EndReason::ResetBeforeAnswer,
        ),
    ] {
        let mut rig = Rig::connected();
        let sequence = rig.running("m1");
        rig.host.0.insert("response.code_details", details.as_bytes().to_vec());
        let ResponseHeadersAction { edits, body, .. } =
            rig.response(sequence, &[(":status", "503"), ("content-type", "text/plain")], false);
        let body: serde_json::Value = serde_json::from_slice(&body.unwrap()).unwrap();
        assert_eq!(body["error"]["code"], code);
        for edit in [
            set(":status", &status.to_string()),
            set("content-type", "application/json"),
            add("x-penstock-outcome", "dispatched"),
        ] {
            assert!(edits.contains(&edit), "{edits:?}");
        }
        assert!(edits.contains(&set("retry-after", "1")) == (status == 503));
        let completed = Completed { sequence, status, end: end.into(), ..Completed::default() };
        assert_eq!(rig.log(sequence), [Output::Sent(3, Event::Completed(completed))]);
    }
}

#[test]
fn errors_of_a_server_pass_unchanged() {
    let mut rig = Rig::connected();
    let sequence = rig.running("m1");
    rig.host.0.insert("response.code_details", b"via_upstream".to_vec());
    let responded = rig.response(sequence, &[(":status", "503"), ("content-type", "application/json")], true);
    assert_eq!(responded.body, None);
    assert_eq!(responded.edits.len(), 4);
    assert_eq!(rig.outputs(), [], "it has ended with its headers");
    let [Output::Sent(_, Event::Completed(completed))] = &rig.log(sequence)[..] else { panic!("completed") };
    assert_eq!((completed.status, completed.end()), (503, EndReason::Served));
}

#[test]
fn interrupted_response_reports_the_tokens_seen() {
    let mut rig = Rig::connected();
    let sequence = rig.running("m1");
    rig.response(sequence, &[(":status", "200"), ("content-type", "text/event-stream")], false);
    rig.response_body(sequence, "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n", false);
    rig.outputs();
    rig.host
        .0
        .insert("response.code_details", b"upstream_reset_after_response_started{remote_reset}".to_vec());
    let [Output::Sent(_, Event::Completed(completed))] = &rig.log(sequence)[..] else { panic!("completed") };
    assert_eq!((completed.end(), completed.output_chunks), (EndReason::ResetInsideAnswer, 1));
    assert_eq!(completed.output_tokens, None);
}

#[test]
fn other_paths_pass_round_robin_over_the_ready_endpoints() {
    let mut rig = Rig::connected();
    let pass = |rig: &mut Rig| rig.headers(&[(":method", "GET"), ("x-penstock-pool", "evil")], true);
    let pool = add("x-penstock-pool", "chat");
    let HeadersAction::Pass(edits) = pass(&mut rig) else { panic!("passes") };
    assert!(
        edits.contains(&set("x-envoy-max-retries", "2")),
        "Envoy chooses, and tries three servers: {edits:?}"
    );
    assert_eq!(without_retry(edits), [HeaderEdit::Remove("x-penstock-pool".into()), pool.clone()]);

    let ready = |ready: &[&str]| {
        Kind::Endpoints(Endpoints {
            keep_ready: false,
            pool: "chat".into(),
            ready: ready.iter().map(ToString::to_string).collect(),
            fallback_bound: None,
        })
    };
    rig.command(1, [ready(&["a:1", "b:2"])]);
    let mut seen = Vec::new();
    for _ in 0..4 {
        let HeadersAction::Pass(edits) = pass(&mut rig) else { panic!("passes") };
        seen.push(format!("{:?}", edits.last().unwrap()));
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 2);

    rig.command(1, [ready(&[])]);
    let HeadersAction::Answer(answer) = pass(&mut rig) else { panic!("nowhere") };
    assert_eq!(answer.status, 503);
    assert!(String::from_utf8_lossy(&answer.body).contains("no_endpoints"));
    assert_eq!(header(&answer, "x-penstock-outcome"), None);
    assert_eq!(rig.outputs(), []);
}

#[test]
fn traceparent_is_registered_if_the_policy_asks_for_it() {
    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let mut rig = Rig::connected();
    let mut registered = |tracing: bool, given: &str| {
        let path = [Route {
            path: "/v1/chat/completions".into(),
            api: penstock_wire::Api::ChatCompletions.into(),
            ..Route::default()
        }];
        let policy = Policy { tracing, body_bytes_max: 1_000, routes: path.into(), ..Policy::default() };
        rig.command(0, [Kind::Policy(policy)]);
        let sequence = rig.paused(&[("traceparent", given)]);
        rig.body(sequence, r#"{"model":"m"}"#, true);
        match &rig.outputs()[..] {
            [Output::Sent(_, Event::Register(register))] => register.traceparent.clone(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(registered(true, PARENT), PARENT);
    assert_eq!(registered(false, PARENT), "");
    assert_eq!(registered(true, ""), "");
    // A longer value of a later version is cut at the limit.
    assert_eq!(registered(true, &format!("{PARENT}-{}", "7".repeat(99))).len(), 64);
}

#[test]
fn prompt_hashes_are_registered_if_the_pool_wants_them() {
    let mut rig = Rig::connected();
    let mut policy = Policy {
        body_bytes_max: 1_000,
        routes: vec![Route {
            path: "/v1/chat/completions".into(),
            api: penstock_wire::Api::ChatCompletions.into(),
            ..Route::default()
        }],
        ..Policy::default()
    };
    policy.pools = ["wants", "not"]
        .map(|name| Pool {
            name: name.into(),
            models: vec![name.into()],
            prefix_hashes: name == "wants",
            ..Pool::default()
        })
        .into();
    rig.command(0, [Kind::Policy(policy)]);
    let mut registered = |model: &str| {
        let body = format!(r#"{{"prompt":"{}","model":"{model}"}}"#, "x".repeat(600));
        let sequence = rig.paused(&[]);
        rig.body(sequence, &body, true);
        match &rig.outputs()[..] {
            [Output::Sent(_, Event::Register(register))] => register.prefix_hashes.clone(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(registered("wants").len(), 3);
    assert!(registered("not").is_empty());
}

/// A worker whose pool asks for the first byte of streamed responses.
fn asking_for_first_tokens() -> Rig {
    let config = config(|config| config.policy.pools[0].first_token = true);
    let mut rig = Rig::with(2, &config, &Shared::default());
    rig.open();
    rig.hello_ack(1);
    rig
}

fn first_token(outputs: &[Output]) -> Vec<(&str, bool)> {
    let started = outputs.iter().map(|output| match output {
        Output::Sent(_, Event::Started(started)) => (started.endpoint.as_str(), started.first_token),
        other => panic!("{other:?}"),
    });
    started.collect()
}

const STREAMED: [(&str, &str); 2] = [(":status", "200"), ("content-type", "text/event-stream")];

#[test]
fn the_first_token_of_a_stream_is_reported_in_the_only_message_of_its_start() {
    let mut rig = asking_for_first_tokens();
    let sequence = rig.running("m1");
    rig.host.0.insert("upstream.address", b"1.1.1.1:1".to_vec());
    rig.response(sequence, &STREAMED, false);
    assert_eq!(rig.outputs(), [], "the headers tell nothing new");
    rig.response_body(sequence, "", false);
    assert_eq!(rig.outputs(), []);
    rig.response_body(sequence, TEXT_EVENT, false);
    assert_eq!(first_token(&rig.outputs()), [("1.1.1.1:1", true)]);
    rig.response_body(sequence, TEXT_EVENT, false);
    assert_eq!(rig.outputs(), [], "it is sent once");
}

#[test]
fn the_start_at_another_endpoint_is_reported_before_its_first_token() {
    let mut rig = asking_for_first_tokens();
    let sequence = rig.running("m1");
    rig.host.0.insert("upstream.address", b"2.2.2.2:2".to_vec());
    rig.host.0.insert("upstream.request_attempt_count", 2_u64.to_le_bytes().to_vec());
    rig.response(sequence, &STREAMED, false);
    assert_eq!(first_token(&rig.outputs()), [("2.2.2.2:2", false)]);
    rig.response_body(sequence, TEXT_EVENT, false);
    assert_eq!(first_token(&rig.outputs()), [("2.2.2.2:2", true)]);
}

#[test]
fn a_hello_says_whether_the_first_token_has_arrived() {
    let mut rig = asking_for_first_tokens();
    let sequence = rig.running("m1");
    let silent = rig.running("m1");
    rig.host.0.insert("upstream.address", b"1.1.1.1:1".to_vec());
    for sequence in [sequence, silent] {
        rig.response(sequence, &STREAMED, false);
    }
    rig.response_body(sequence, TEXT_EVENT, false);
    rig.outputs();
    // The headers of the silent one go on.
    rig.advance(HEADERS_HELD);
    rig.tick();
    rig.closed();
    rig.outputs();
    rig.advance(Duration::from_secs(1));
    let opened = rig.open();
    let [Output::Sent(1, Event::Hello(hello))] = &opened[..] else { panic!("{opened:?}") };
    let running = hello.running.iter().map(|running| (running.started, running.first_token));
    assert_eq!(running.collect::<Vec<_>>(), [(true, true), (true, false)]);
}

#[test]
fn a_response_of_known_length_reports_its_end_alone() {
    let mut rig = asking_for_first_tokens();
    let sequence = rig.running("m1");
    rig.host.0.insert("upstream.address", b"1.1.1.1:1".to_vec());
    let headers = [(":status", "200"), ("content-type", "application/json"), ("content-length", "2")];
    rig.response(sequence, &headers, false);
    rig.response_body(sequence, TEXT_DOCUMENT, true);
    assert_eq!(rig.outputs(), []);
}

#[test]
fn clients_are_advised_to_wait_as_long_as_no_server_has_accepted_a_request() {
    let mut rig = Rig::connected();
    let refused = b"upstream_reset_before_response_started{remote_connection_failure}";
    rig.host.0.insert("response.code_details", refused.to_vec());
    let fail = |rig: &mut Rig, after: u64| {
        rig.advance(Duration::from_secs(after));
        let sequence = rig.running("m1");
        let edits = rig.response(sequence, &[(":status", "503")], false).edits;
        rig.log(sequence);
        edits
    };
    assert!(fail(&mut rig, 0).contains(&set("retry-after-ms", "1000")));
    // The request's number varies the advice by two percent of the part over a second.
    let edits = fail(&mut rig, 5);
    assert!(
        edits.contains(&set("retry-after-ms", "5080")) && edits.contains(&set("retry-after", "6")),
        "{edits:?}"
    );
    let served = rig.running("m1");
    rig.response(served, &[(":status", "200")], true);
    let edits = fail(&mut rig, 5);
    assert!(edits.contains(&set("retry-after-ms", "1000")), "{edits:?}");
}
