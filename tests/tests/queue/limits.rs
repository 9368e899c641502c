//! Limits on headers, connections, waiting bytes and time. A request over a limit reaches no server and leaves no state behind.

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::raw::{Raw, post};
use penstock_tests::{Answer, ClientRequest, Companion, Envoy, Gateway, Upstream, run, until};
use serde_json::json;

/// Connections of one client, each with half of a request.
const CONNECTIONS: usize = 1_000;

async fn start(more: &str) -> (Gateway, Upstream) {
    let server = Upstream::scripted().await;
    let gateway = Gateway::start(&config("", &[pool("p", "'*'", &[&server], more)])).await;
    (gateway, server)
}

/// A request passes; the server has received `reached` requests, and no request waits or runs anywhere.
async fn goes_on(gateway: &Gateway, server: &Upstream, reached: usize) {
    let asked = gateway.spawn(ClientRequest::chat("m", "after it"));
    let call = server.next().await;
    assert_eq!(call.text(), "after it");
    call.answer();
    assert_eq!(asked.await.expect("answered").status, 200);
    assert_eq!(server.total(), reached + 1);
    gateway.stock("p", 0).await;
    until("no session holds a request", || async {
        let sessions = gateway.status().await["sessions"].clone();
        let all = sessions.as_array().cloned().unwrap_or_default();
        let idle = all.iter().all(|session| session["waiting"] == 0 && session["running"] == 0);
        if idle { Ok(()) } else { Err(sessions.to_string()) }
    })
    .await;
}

async fn head(gateway: &Gateway, more: &str) -> Answer {
    let mut raw = Raw::connect(gateway.address()).await;
    let body = r#"{"model":"m"}"#;
    let length = format!("content-length: {}\r\n{more}", body.len());
    raw.send(post("/v1/chat/completions", &length) + body).await;
    raw.answer().await
}

#[test]
fn too_many_headers_are_431_and_reach_no_server() {
    run(async {
        let (gateway, server) = start("").await;
        let many: String = (0..200).map(|n| format!("x-{n}: 1\r\n")).collect();
        let large = format!("x-large: {}\r\n", "x".repeat(70_000));
        let named = format!("x-penstock-tenant: {}\r\n", "t".repeat(70_000));
        for flood in [many, large, named] {
            let answer = head(&gateway, &flood).await;
            assert_eq!(answer.status, 431, "{}", answer.text());
        }
        // A header without end: Envoy ends the request, not the filter.
        let mut raw = Raw::connect(gateway.address()).await;
        raw.send("POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nx-penstock-tenant: ").await;
        raw.send("t".repeat(100_000)).await;
        assert_eq!(raw.answer().await.status, 431);
        goes_on(&gateway, &server, 0).await;
    });
}

#[test]
fn long_identities_are_cut_and_may_be_invalid_utf8() {
    run(async {
        let (gateway, server) = start("").await;
        let long = format!("x-penstock-tenant: {}\r\n", "t".repeat(50_000));
        let mut raw = Raw::connect(gateway.address()).await;
        let body = r#"{"model":"m"}"#;
        let mut request = post(
            "/v1/chat/completions",
            &format!(
                "content-length: {}\r\n{long}x-penstock-priority: {}\r\n",
                body.len(),
                "p".repeat(5_000)
            ),
        );
        request += body;
        raw.send(request).await;
        server.next().await.answer();
        assert_eq!(raw.answer().await.status, 200);
        // Bytes that are not UTF-8.
        let mut request =
            post("/v1/chat/completions", &format!("content-length: {}\r\n", body.len())).into_bytes();
        request.truncate(request.len() - 2);
        request.extend_from_slice(b"x-penstock-tenant: \xff\xfe\xe4\r\nx-penstock-class: \xc3\x28\r\n\r\n");
        request.extend_from_slice(body.as_bytes());
        raw.send(request).await;
        server.next().await.answer();
        assert_eq!(raw.answer().await.status, 200);
        let seen = gateway.pool("p").await;
        let flows = seen["flows"].as_array().expect("flows");
        assert_eq!(flows.len(), 2, "{seen}");
        assert!(flows.iter().all(|flow| flow["key"].as_str().is_some_and(|key| key.len() <= 256)), "{seen}");
        goes_on(&gateway, &server, 2).await;
    });
}

#[test]
fn waiting_requests_are_limited_in_bytes() {
    run(async {
        let queue = format!("{}  queue: {{total_bytes: 64KiB, overflow: reject}}\n", slots(1));
        let (gateway, server) = start(&queue).await;
        let held = gateway.spawn(ClientRequest::chat("m", "held"));
        let call = server.next().await;
        let large = "x".repeat(40_000);
        let first = gateway.spawn(ClientRequest::chat("m", &large).tenant("a"));
        gateway.waiting("p", 1).await;
        for tenant in ["a", "b"] {
            let answer = gateway.send(ClientRequest::chat("m", &large).tenant(tenant)).await;
            let code = if tenant == "a" { "queue_full" } else { "too_many_flows" };
            answer.expect_error(503, code, &format!("rejected_{code}"));
        }
        // A request that still fits waits.
        let small = gateway.spawn(ClientRequest::chat("m", "small").tenant("b"));
        gateway.waiting("p", 2).await;
        let bytes = gateway.metrics().await.sum("penstock_queue_bytes", &[("pool", "p")]);
        assert!((40_000.0..=65_536.0).contains(&bytes), "{bytes}");
        call.answer();
        for _ in 0..2 {
            server.next().await.answer();
        }
        for asked in [held, first, small] {
            assert_eq!(asked.await.expect("answered").status, 200);
        }
        let bytes = gateway.metrics().await.sum("penstock_queue_bytes", &[("pool", "p")]);
        assert!(bytes == 0.0, "{bytes}");
        goes_on(&gateway, &server, 3).await;
    });
}

#[test]
fn connections_with_half_a_request_delay_no_other_client() {
    run(async {
        let (gateway, server) = start("").await;
        let half = post("/v1/chat/completions", "content-length: 1000\r\n") + r#"{"model":"m","messages":["#;
        let mut halves = Vec::with_capacity(CONNECTIONS);
        for _ in 0..CONNECTIONS {
            let mut raw = Raw::connect(gateway.address()).await;
            raw.send(&half).await;
            halves.push(raw);
        }
        let asked = gateway.spawn(ClientRequest::chat("m", "between them"));
        server.next().await.answer();
        assert_eq!(asked.await.expect("answered").status, 200);
        // An incomplete request does not enter the queue.
        assert_eq!(gateway.pool("p").await["waiting"], 0);
        drop(halves);
        goes_on(&gateway, &server, 1).await;
    });
}

#[test]
fn compressed_body_is_rejected_unread() {
    run(async {
        let (gateway, server) = start("").await;
        // The beginning of a gzip bomb; the filter does not read it.
        let request = gateway.client().post(gateway.url("/v1/chat/completions"));
        let request = request.header("content-encoding", "gzip").body(vec![0x1f, 0x8b, 8, 0, 0, 0]);
        let answer = request.send().await.expect("an answer");
        assert_eq!(answer.status(), 400);
        let body: serde_json::Value = answer.json().await.expect("JSON");
        assert_eq!(body["error"]["code"], json!("invalid_request"), "{body}");
        goes_on(&gateway, &server, 0).await;
    });
}

#[test]
fn slow_body_is_408_and_takes_no_place() {
    run(async {
        let server = Upstream::scripted().await;
        let companion = Companion::start("", &[pool("p", "'*'", &[&server], &slots(1))]).await;
        // The shipped limit is one minute; the behaviour is the same.
        let envoy = Envoy::listening(&companion, "slow", None, |listener| {
            let time = listener.pointer_mut("/filter_chains/0/filters/0/typed_config/request_timeout");
            *time.expect("a time limit for requests") = json!("0.3s");
        })
        .await;
        for (path, at) in [("/v1/chat/completions", "/error/code"), ("/v1/messages", "/error/message")] {
            let mut raw = Raw::connect(envoy.gateway()).await;
            raw.send(post(path, "content-length: 1000\r\n") + r#"{"model":"m","messages":["#).await;
            let answer = raw.answer().await;
            assert_eq!(answer.status, 408, "{}", answer.text());
            let body = answer.json();
            let text = body.pointer(at).and_then(|value| value.as_str()).unwrap_or_default();
            assert!(!text.is_empty(), "{body}");
            assert_eq!(body["error"]["type"], "invalid_request_error", "{body}");
        }
        assert_eq!(server.total(), 0);
        assert_eq!(companion.pool("p").await.expect("a pool")["waiting"], 0);
        let body = ClientRequest::chat("m", "in time").body();
        let asked = reqwest::Client::new().post(envoy.url("/v1/chat/completions")).json(&body);
        let asked = tokio::spawn(asked.send());
        server.next().await.answer();
        assert_eq!(asked.await.expect("no panic").expect("an answer").status(), 200);
    });
}
