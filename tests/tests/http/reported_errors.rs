//! Errors that servers report inside answers with status 200, and answers without any.

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::metrics::Metrics;
use penstock_tests::{Answer, ClientRequest, Gateway, Upstream, run};
use serde_json::{Value, json};

const SSE: [(&str, &str); 1] = [("content-type", "text/event-stream")];
const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

async fn gateway(server: &Upstream) -> Gateway {
    Gateway::start(&config("", &[pool("p", "m", &[server], &slots(4))])).await
}

/// The metrics after every request has ended.
async fn metrics(gateway: &Gateway) -> Metrics {
    gateway.stock("p", 0).await;
    gateway.metrics().await
}

/// A streamed request to one of the APIs.
fn streamed(path: &str) -> ClientRequest {
    let body = json!({
        "model": "m", "stream": true, "max_tokens": 50, "prompt": "x", "input": "x",
        "messages": [{"role": "user", "content": "x"}],
    });
    ClientRequest::to(path, body)
}

async fn answered(
    gateway: &Gateway,
    server: &Upstream,
    path: &str,
    kind: &[(&str, &str)],
    body: &str,
) -> Answer {
    let asked = gateway.spawn(streamed(path));
    server.next().await.respond(200, kind, body.to_owned());
    asked.await.expect("answered")
}

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const EMBEDDINGS: &str = "/v1/embeddings";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

#[test]
fn error_in_place_of_an_answer_reaches_the_client_as_an_http_error() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = gateway(&server).await;
        let error =
            |kind: &str, code: &Value| json!({"message": "from the server", "type": kind, "code": code});
        let event = |data: &Value| format!("data: {data}\n\n");
        let openai = |kind: &str, code: Value| event(&json!({"error": error(kind, &code)}));
        let anthropic = |kind: &str| {
            let data = json!({"type": "error", "error": {"type": kind, "message": "from the server"}});
            format!("event: error\n{}", event(&data))
        };
        let failed = |code: &str| {
            let created =
                json!({"type": "response.created", "response": {"status": "in_progress", "error": null}});
            let failed = json!({
                "type": "response.failed",
                "response": {"status": "failed", "error": {"code": code, "message": "from the server"}},
            });
            format!("event: response.created\n{}event: response.failed\n{}", event(&created), event(&failed))
        };
        let role = event(&json!({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}));
        let cases = [
            (CHAT, openai("rate_limit_error", Value::Null), 429),
            (CHAT, format!(": ping\n\n{}", openai("server_error", json!(503))), 503),
            (CHAT, format!("{role}{}", openai("BadRequestError", json!("400"))), 400),
            (COMPLETIONS, openai("NotFoundError", json!(404)), 404),
            (COMPLETIONS, format!("\n\n{}", openai("internal_error", Value::Null)), 500),
            (MESSAGES, anthropic("overloaded_error"), 503),
            (
                MESSAGES,
                format!("event: ping\ndata: {{\"type\": \"ping\"}}\n\n{}", anthropic("api_error")),
                500,
            ),
            (RESPONSES, failed("rate_limit_exceeded"), 429),
            (
                RESPONSES,
                event(&json!({"type": "error", "code": "server_error", "message": "from the server"})),
                500,
            ),
        ];
        for (path, body, status) in cases {
            let answer = answered(&gateway, &server, path, &SSE, &body).await;
            assert_eq!(
                (answer.status, answer.message().as_str()),
                (status, "from the server"),
                "{path} {body}"
            );
            assert_eq!(
                answer.header("retry-after").is_empty(),
                !matches!(status, 429 | 503),
                "{path} {body}"
            );
            assert!(!answer.outcome().is_empty(), "{path} {body}");
        }
        for (path, body, status) in [
            (EMBEDDINGS, json!({"error": error("overloaded_error", &Value::Null)}), 503),
            (CHAT, json!({"object": "error", "message": "from the server", "code": 429}), 429),
            (
                MESSAGES,
                json!({"type": "error", "error": {"type": "not_found_error", "message": "from the server"}}),
                404,
            ),
            (
                RESPONSES,
                json!({"object": "response", "status": "failed", "error": {"code": "server_error", "message": "from the server"}}),
                500,
            ),
        ] {
            let answer = answered(&gateway, &server, path, &JSON, &body.to_string()).await;
            assert_eq!(
                (answer.status, answer.message().as_str()),
                (status, "from the server"),
                "{path} {body}"
            );
        }
        let page = metrics(&gateway).await;
        assert_eq!(page.sum("penstock_responses_total", &[("code_class", "2xx")]), 0.0);
        assert_eq!(page.sum("penstock_output_tokens_total", &[]), 0.0);
        assert_eq!(page.sum("penstock_ttft_seconds_count", &[]), 0.0);
    });
}

#[test]
fn error_of_a_stream_that_goes_on_ends_the_stream() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = gateway(&server).await;
        let asked = gateway.spawn(streamed(CHAT));
        let events = server.next().await.stream();
        events.raw(": ping\n\n");
        events.raw("data: {\"error\":{\"message\":\"full\",\"code\":429}}\n\n");
        let answer = asked.await.expect("answered");
        assert_eq!((answer.status, answer.message().as_str()), (429, "full"));
        events.gone().await;
    });
}

#[test]
fn slow_beginning_keeps_neither_headers_nor_comments() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = gateway(&server).await;
        let opened = tokio::spawn({
            let url = gateway.url(CHAT);
            let client = gateway.client().clone();
            let body = streamed(CHAT).body().to_string();
            async move { client.post(url).header("content-type", "application/json").body(body).send().await }
        });
        let events = server.next().await.stream();
        events.raw(": ping\n\n");
        // The server says nothing else until the client has the headers.
        let mut response = opened.await.expect("no panic").expect("headers");
        assert_eq!(response.status().as_u16(), 200);
        let first = response.chunk().await.expect("a chunk");
        assert_eq!(first.as_deref(), Some(&b": ping\n\n"[..]));
        events.text("hello");
        events.finish(8, 4);
        let mut rest = Vec::new();
        while let Some(chunk) = response.chunk().await.expect("a chunk") {
            rest.extend_from_slice(&chunk);
        }
        let rest = String::from_utf8(rest).expect("text");
        assert!(rest.contains("hello") && rest.ends_with("data: [DONE]\n\n"), "{rest}");
        let page = metrics(&gateway).await;
        assert_eq!(page.sum("penstock_output_tokens_total", &[]), 4.0);
        assert_eq!(page.sum("penstock_ttft_seconds_count", &[]), 1.0);
    });
}

#[test]
fn error_inside_an_answer_passes_and_is_charged_by_what_was_produced() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = gateway(&server).await;
        let asked = gateway.spawn(streamed(CHAT));
        let events = server.next().await.stream();
        for _ in 0..5 {
            events.text("word");
        }
        events.raw("data: {\"error\":{\"message\":\"out of memory\"}}\n\n");
        drop(events);
        let answer = asked.await.expect("answered");
        assert_eq!(answer.status, 200);
        assert!(answer.text().contains("out of memory"));
        let page = metrics(&gateway).await;
        assert_eq!(page.sum("penstock_output_tokens_total", &[]), 5.0);
        assert_eq!(page.sum("penstock_answers_estimated_total", &[("reason", "cut")]), 1.0);
        assert_eq!(page.sum("penstock_ttft_seconds_count", &[]), 0.0);
    });
}

#[test]
fn answer_without_a_token_passes_and_costs_nothing() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = gateway(&server).await;
        for (kind, body) in [
            ("text/html", "<html><body>It works!</body></html>"),
            ("text/event-stream", "data: [DONE]\n\n"),
            ("text/event-stream", ""),
            ("application/json", "{}"),
        ] {
            let answer = answered(&gateway, &server, CHAT, &[("content-type", kind)], body).await;
            assert_eq!((answer.status, answer.text().as_str()), (200, body));
        }
        let page = metrics(&gateway).await;
        for name in
            ["penstock_output_tokens_total", "penstock_input_tokens_total", "penstock_ttft_seconds_count"]
        {
            assert_eq!(page.sum(name, &[]), 0.0, "{name}");
        }
    });
}
