//! Tests of the mock server through an HTTP client.

use std::time::Duration;

use futures_util::future::join_all;
use penstock_errors::Failure as _;
use penstock_model_server::Hardware;
use serde_json::{Value, json};

use super::{Error, Pushback, Running, Settings, start};

/// Fast enough that tests don't have to wait.
fn fast() -> Settings {
    Settings {
        hardware: Hardware { alpha_ms: 0.2, beta_ms: 0.001, gamma_ms: 0.0, ..Hardware::default() },
        ..Settings::default()
    }
}

async fn server(settings: Settings) -> Running {
    start(settings).await.unwrap()
}

async fn post(server: &Running, path: &str, body: &Value) -> reqwest::Response {
    let url = format!("http://{}{path}", server.address());
    reqwest::Client::new().post(url).json(body).send().await.unwrap()
}

async fn get(server: &Running, path: &str) -> reqwest::Response {
    reqwest::get(format!("http://{}{path}", server.address())).await.unwrap()
}

/// Waits until the counters satisfy the condition; fails after 10 s.
async fn until(server: &Running, condition: &str, satisfied: impl Fn(super::Stats) -> bool) {
    let wait = async {
        while !satisfied(server.stats().await.unwrap()) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), wait)
        .await
        .unwrap_or_else(|_| panic!("timeout: {condition}"));
}

fn chat(max_tokens: u64, stream: bool) -> Value {
    json!({
        "model": "m", "max_tokens": max_tokens, "stream": stream, "stream_options": {"include_usage": true},
        "messages": [{"role": "user", "content": "how long is a piece of string?"}],
    })
}

/// The `data:` lines of an event stream.
fn data(stream: &str) -> Vec<&str> {
    stream.lines().filter_map(|line| line.strip_prefix("data: ")).collect()
}

#[tokio::test]
async fn chat_returns_a_complete_response() {
    let server = server(fast()).await;
    let url = format!("http://{}/v1/chat/completions", server.address());
    let request = reqwest::Client::new().post(url).header("x-request-id", "r-1").json(&chat(5, false));
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["x-mock-server"], server.address().to_string());
    assert_eq!(response.headers()["x-mock-inflight"], "1");
    assert_eq!(response.headers()["x-mock-request-id"], "r-1");
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    assert_eq!(body["choices"][0]["message"]["content"].as_str().unwrap().split_whitespace().count(), 5);
    assert_eq!(body["usage"], json!({"prompt_tokens": 8, "completion_tokens": 5, "total_tokens": 13}));
}

#[tokio::test]
async fn chat_streams_one_chunk_per_token_then_usage_then_done() {
    let server = server(fast()).await;
    let response = post(&server, "/v1/chat/completions", &chat(3, true)).await;
    assert!(response.headers()["content-type"].to_str().unwrap().starts_with("text/event-stream"));
    let text = response.text().await.unwrap();
    let data = data(&text);
    assert_eq!(data.last(), Some(&"[DONE]"));
    let chunks: Vec<Value> =
        data[..data.len() - 1].iter().map(|d| serde_json::from_str(d).unwrap()).collect();
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let tokens = chunks[1..].iter().filter(|c| c["choices"][0]["delta"]["content"].is_string()).count();
    assert_eq!(tokens, 3);
    assert_eq!(chunks[4]["choices"][0]["finish_reason"], "length");
    assert_eq!(chunks[5]["choices"], json!([]));
    assert_eq!(chunks[5]["usage"]["completion_tokens"], 3);
    assert_eq!(chunks.len(), 6);
}

#[tokio::test]
async fn other_dialects_answer_in_their_formats() {
    let server = server(fast()).await;
    let body: Value =
        post(&server, "/v1/completions", &json!({"model": "m", "prompt": "abc", "max_tokens": 2}))
            .await
            .json()
            .await
            .unwrap();
    assert_eq!(
        (&body["object"], &body["usage"]["completion_tokens"]),
        (&json!("text_completion"), &json!(2))
    );

    let body: Value = post(&server, "/v1/embeddings", &json!({"model": "m", "input": ["a", "b"]}))
        .await
        .json()
        .await
        .unwrap();
    assert_eq!(body["data"].as_array().unwrap().len(), 2);
    assert_eq!(body["data"][1]["embedding"].as_array().unwrap().len(), 8);

    let request = json!({"model": "m", "input": "abc", "max_output_tokens": 2});
    let body: Value = post(&server, "/v1/responses", &request).await.json().await.unwrap();
    assert_eq!((&body["status"], &body["usage"]["output_tokens"]), (&json!("incomplete"), &json!(2)));
    assert_eq!(body["output"][0]["content"][0]["type"], "output_text");

    let request = json!({"model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": "abc"}]});
    let body: Value = post(&server, "/v1/messages", &request).await.json().await.unwrap();
    assert_eq!((&body["stop_reason"], &body["usage"]["output_tokens"]), (&json!("max_tokens"), &json!(2)));

    let request = json!({"model": "m", "system": "abcd", "messages": [{"role": "user", "content": "abc"}]});
    let body: Value = post(&server, "/v1/messages/count_tokens", &request).await.json().await.unwrap();
    assert_eq!(body, json!({"input_tokens": 2}));
}

#[tokio::test]
async fn responses_and_messages_stream_their_events_in_order() {
    let server = server(fast()).await;
    let kinds = async |path: &str, request: Value| {
        let text = post(&server, path, &request).await.text().await.unwrap();
        let named: Vec<String> =
            text.lines().filter_map(|line| line.strip_prefix("event: ")).map(str::to_owned).collect();
        for (index, (name, data)) in named.iter().zip(data(&text)).enumerate() {
            let data: Value = serde_json::from_str(data).unwrap();
            assert_eq!(&data["type"], name);
            if path == "/v1/responses" {
                assert_eq!(data["sequence_number"], index);
            }
        }
        named
    };
    let events =
        kinds("/v1/responses", json!({"model": "m", "input": "abc", "stream": true, "max_output_tokens": 2}))
            .await;
    assert_eq!(
        events,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.incomplete",
        ]
    );
    let request = json!({"model": "m", "max_tokens": 2, "stream": true, "messages": [{"role": "user", "content": "a"}]});
    assert_eq!(
        kinds("/v1/messages", request).await,
        [
            "message_start",
            "content_block_start",
            "ping",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
    );
}

#[tokio::test]
async fn errors_have_the_format_of_their_dialect() {
    let server = server(Settings { models: vec!["here".to_owned()], ..fast() }).await;
    let response = post(&server, "/v1/chat/completions", &json!({"model": "here"})).await;
    assert_eq!(response.status(), 400);
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["error"]["type"], "invalid_request_error");
    assert_eq!(body["error"]["message"], "`messages` is missing or empty");

    let response = post(&server, "/v1/chat/completions", &chat(1, false)).await;
    assert_eq!(response.status(), 404);
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["error"]["code"], "model_not_found");

    let request = json!({"model": "here", "messages": [{"role": "user", "content": "abc"}]});
    let body: Value = post(&server, "/v1/messages", &request).await.json().await.unwrap();
    assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!("invalid_request_error")));

    let request = json!({"model": "here", "prompt": "abc", "max_tokens": 1_000_000_000});
    let response = post(&server, "/v1/completions", &request).await;
    assert_eq!(response.status(), 400);
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["error"]["code"], "context_length_exceeded");
    assert_eq!(server.stats().await.unwrap().refused, 4);
    assert_eq!(server.stats().await.unwrap().served, 0);
}

#[tokio::test]
async fn disconnecting_client_cancels_its_job() {
    // So slow that only a cancellation ends the job.
    let slow = Hardware { alpha_ms: 1_000.0, ..Hardware::default() };
    for stream in [true, false] {
        let server = server(Settings { hardware: slow, ..fast() }).await;
        let url = format!("http://{}/v1/chat/completions", server.address());
        let request = reqwest::Client::new().post(url).json(&chat(1_000, stream));
        let sent = tokio::spawn(async move {
            let response = request.send().await.unwrap();
            response.bytes().await
        });
        until(&server, "the job has arrived", |s| s.in_flight == 1).await;
        sent.abort();
        until(&server, "the job has ended", |s| s.in_flight == 0).await;
        let stats = server.stats().await.unwrap();
        assert_eq!((stats.peak, stats.served, stats.cancelled), (1, 0, 1));
    }
}

#[tokio::test]
async fn log_records_requests_in_order_with_the_number_in_flight() {
    let slow = Hardware { alpha_ms: 20.0, seqs_max: 2, ..Hardware::default() };
    let server = server(Settings { hardware: slow, ..fast() }).await;
    let client = reqwest::Client::new();
    let url = format!("http://{}/v1/chat/completions", server.address());
    let requests = (0..4).map(|n| {
        let request =
            client.post(&url).header("x-request-id", format!("r-{n}")).header("x-penstock-tenant", "acme");
        let request = request.header("x-penstock-priority", "critical").header("x-gateway-foo", "bar");
        request.json(&chat(3, n % 2 == 0)).send()
    });
    for response in join_all(requests).await {
        response.unwrap().bytes().await.unwrap();
    }
    until(&server, "all are served", |s| s.served == 4).await;
    let log: Value = get(&server, "/mock/log").await.json().await.unwrap();
    assert_eq!(log["stats"], json!({"in_flight": 0, "peak": 4, "served": 4, "cancelled": 0, "refused": 0}));
    let requests = log["requests"].as_array().unwrap();
    for (order, entry) in requests.iter().enumerate() {
        assert_eq!(entry["order"], order);
        assert_eq!((&entry["state"], &entry["output_tokens"]), (&json!("served"), &json!(3)));
        assert_eq!(entry["request"]["tenant"], "acme");
        assert_eq!(entry["request"]["priority"], "critical");
        assert_eq!(entry["request"]["headers"]["x-gateway-foo"], "bar");
        assert!(entry["ended_ms"].as_f64() > entry["first_token_ms"].as_f64());
    }
    let mut ids: Vec<_> = requests.iter().map(|e| e["request"]["request_id"].as_str().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["r-0", "r-1", "r-2", "r-3"]);
}

#[tokio::test]
async fn metrics_have_the_names_of_vllm() {
    let server = server(Settings { models: vec!["m".to_owned()], ..fast() }).await;
    post(&server, "/v1/chat/completions", &chat(4, false)).await.bytes().await.unwrap();
    until(&server, "the request is served", |s| s.served == 1).await;
    let text = get(&server, "/metrics").await.text().await.unwrap();
    let value = |series: &str| {
        let line =
            text.lines().find(|line| line.starts_with(series)).unwrap_or_else(|| panic!("{series}: {text}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let labels = r#"{engine="0",model_name="m"}"#;
    for (name, expected) in [
        ("num_requests_running", 0.0),
        ("num_requests_waiting", 0.0),
        ("kv_cache_usage_perc", 0.0),
        ("prompt_tokens_total", 8.0),
        ("generation_tokens_total", 4.0),
        ("time_to_first_token_seconds_count", 1.0),
        ("inter_token_latency_seconds_count", 3.0),
        ("num_preemptions_total", 0.0),
    ] {
        assert_eq!(value(&format!("vllm:{name}{labels}")), expected, "{name}");
    }
    assert_eq!(
        value(r#"vllm:request_success_total{engine="0",finished_reason="length",model_name="m"}"#),
        1.0
    );
}

#[tokio::test]
async fn models_and_health_are_served() {
    let server = server(Settings { models: vec!["a".to_owned(), "b".to_owned()], ..fast() }).await;
    assert_eq!(get(&server, "/health").await.status(), 200);
    assert_eq!(get(&server, "/nowhere").await.status(), 404);
    let models: Value = get(&server, "/v1/models").await.json().await.unwrap();
    let ids: Vec<_> = models["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["a", "b"]);
}

#[tokio::test]
async fn port_in_use_and_invalid_hardware_are_start_errors() {
    let first = server(fast()).await;
    let second = start(Settings { listen: first.address(), ..fast() }).await.unwrap_err();
    assert!(matches!(second, Error::InUse(address) if address == first.address()), "{second}");
    assert_eq!(second.exit_code(), 1);
    let invalid = Settings { hardware: Hardware { alpha_ms: -1.0, ..Hardware::default() }, ..fast() };
    assert_eq!(start(invalid).await.unwrap_err().exit_code(), 2);
}

#[tokio::test]
async fn shutdown_lets_running_requests_end_and_dropping_cuts_them() {
    let slow = Hardware { alpha_ms: 20.0, ..Hardware::default() };
    let start_request = async |settings: Settings| {
        let server = server(settings).await;
        let url = format!("http://{}/v1/chat/completions", server.address());
        let request = reqwest::Client::new().post(url).json(&chat(10, true));
        let sent = tokio::spawn(async move { request.send().await.unwrap().text().await });
        until(&server, "the job has arrived", |s| s.in_flight == 1).await;
        (server, sent)
    };
    let (server, sent) = start_request(Settings { hardware: slow, ..fast() }).await;
    server.shutdown(Duration::from_secs(60)).await;
    assert!(sent.await.unwrap().unwrap().ends_with("data: [DONE]\n\n"));

    let forever = Hardware { alpha_ms: 10_000.0, ..slow };
    let (server, sent) = start_request(Settings { hardware: forever, ..fast() }).await;
    drop(server);
    assert!(sent.await.unwrap().is_err());
}

#[tokio::test]
async fn requests_above_the_limit_are_refused_with_the_status() {
    for status in [429, 503] {
        let server = server(Settings {
            hardware: Hardware { alpha_ms: 20.0, ..fast().hardware },
            pushback: Some(Pushback { requests_max: 2, status }),
            ..fast()
        })
        .await;
        let (a, b) = (chat(50, false), chat(50, false));
        let running = async {
            join_all([post(&server, "/v1/chat/completions", &a), post(&server, "/v1/chat/completions", &b)])
                .await
        };
        let refused = async {
            until(&server, "two requests run", |stats| stats.in_flight == 2).await;
            post(&server, "/v1/chat/completions", &chat(1, false)).await
        };
        let (served, refused) = tokio::join!(running, refused);
        assert!(served.iter().all(|answer| answer.status() == 200));
        assert_eq!(refused.status(), status);
        let text = refused.text().await.unwrap();
        assert!(text.contains("2 requests are in flight here"), "{text}");
        assert_eq!(
            post(&server, "/v1/chat/completions", &chat(1, false)).await.status(),
            200,
            "there is room again"
        );
    }
}
