//! What computes is queued, whatever its path and however it is spelled, through a real Envoy.

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::raw::Raw;
use penstock_tests::{Answer, Call, ClientRequest, Gateway, Upstream, run};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// Spellings of the path of a chat that one server or another runs.
const SPELLINGS: [&str; 41] = [
    "/v1/chat/completions",
    "/v1/chat/completions/",
    "/v1/chat/completions//",
    "/v1/chat/completions?x=1",
    "/v1/chat/completions/?x=1",
    "/v1/chat/completions%0a",
    "/v1/chat/completions%0A",
    "/v1/chat/completions%0d%0a",
    "/v1/chat/completions%20",
    "/v1/chat/completions%09",
    "/v1/chat/completions%2f",
    "/v1/chat/completions%2F%0a",
    "/v1/chat/completions%3f",
    "/v1/chat/completions%3Fx=1",
    "/v1/chat/completions%23x",
    "/v1/chat/completions;x=1",
    "/v1;x/chat;y/completions;z",
    "/v1/chat/completions%3bx=1",
    "//v1/chat/completions",
    "/v1//chat///completions",
    "/v1/./chat/completions",
    "/v1/x/../chat/completions",
    "/v1/models/../chat/completions",
    "/v1/models/%2e%2e/chat/completions",
    "/health/..%2fv1/chat/completions",
    "/%76%31/chat/completions",
    "/v1/chat/%63ompletions",
    "/v1/chat/%2563ompletions",
    "/v1/chat/%252563ompletions",
    "/v1%2fchat%2fcompletions",
    "/v1%252fchat/completions",
    "/v1/chat%5ccompletions",
    "/V1/chat/completions",
    "/v1/Chat/Completions",
    "/v1/chat/completions/batch",
    "/v1/chat/completions/batch/",
    "/chat/completions",
    "/invocations",
    "/generate",
    "/inference/v1/generate",
    "/",
];

/// Two pools with one place each, of the models `a*` and `b*`. `head`: other keys.
async fn start(a: &Upstream, b: &Upstream, head: &str) -> Gateway {
    let pools = [pool("a", "a*", &[a], &slots(1)), pool("b", "b*", &[b], &slots(1))];
    Gateway::start(&config(head, &pools)).await
}

/// A chat that takes the only place of the pool of its model.
async fn fill(gateway: &Gateway, server: &Upstream, model: &str) -> (JoinHandle<Answer>, Call) {
    let asked = gateway.spawn(ClientRequest::chat(model, "first"));
    (asked, server.next().await)
}

async fn send_raw(gateway: &Gateway, method: &str, path: &str, body: &str) -> Raw {
    let mut raw = Raw::connect(gateway.address()).await;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    raw.send(head).await;
    raw
}

#[test]
fn every_spelling_of_a_path_that_computes_waits_for_a_place() {
    run(async {
        let (a, b) = (Upstream::scripted().await, Upstream::scripted().await);
        let gateway = start(&a, &b, "").await;
        let (first, held) = fill(&gateway, &a, "a1").await;
        let mut waiting = Vec::new();
        for (before, path) in SPELLINGS.iter().enumerate() {
            let method = if before % 2 == 0 { "POST" } else { "PUT" };
            let body = r#"{"model": "a1", "messages": [{"role": "user", "content": "x"}]}"#;
            waiting.push(send_raw(&gateway, method, path, body).await);
            gateway.waiting("a", before as u64 + 1).await;
        }
        assert_eq!((a.total(), b.total()), (1, 0), "only the first one runs");
        held.answer();
        assert_eq!(first.await.expect("answered").status, 200);
        // Each path is sent as it was written.
        let mut sent = Vec::new();
        for _ in SPELLINGS {
            let call = a.next().await;
            sent.push(call.path.clone());
            call.answer();
        }
        assert!(sent.contains(&"/v1/chat/completions%0a".to_owned()), "{sent:?}");
        for mut raw in waiting {
            assert_eq!(raw.answer().await.status, 200);
        }
    });
}

#[test]
fn a_cheap_question_goes_to_the_pool_of_its_model_past_its_queue() {
    run(async {
        let (a, b) = (Upstream::scripted().await, Upstream::scripted().await);
        let gateway = start(&a, &b, "").await;
        let (_first, _held) = fill(&gateway, &b, "b1").await;
        for (path, body, server) in [
            ("/v1/messages/count_tokens", json!({"model": "b1", "messages": []}), &b),
            ("/tokenize", json!({"prompt": "x", "model": "b2"}), &b),
            ("/tokenize?x=1", json!({"model": "a1", "prompt": "x"}), &a),
            ("/detokenize/", json!({"tokens": [1, 2]}), &a),
            ("/v1/responses/resp_1/cancel", json!("no object"), &a),
        ] {
            let asked = gateway.spawn(ClientRequest::to(path, body.clone()));
            let call = server.next().await;
            assert_eq!((call.path.as_str(), call.json()), (path, body));
            call.respond(200, &[], "{}");
            let answer = asked.await.expect("answered");
            assert_eq!((answer.status, answer.outcome()), (200, ""), "{path}");
        }
        let unknown =
            gateway.send(ClientRequest::to("/tokenize", json!({"model": "c", "prompt": "x"}))).await;
        assert_eq!((unknown.status, unknown.code().as_str()), (404, "model_not_found"));
        gateway.stock("a", 0).await;
        gateway.stock("b", 1).await;
    });
}

#[test]
fn controls_and_unknown_paths_are_refused_in_the_form_of_their_api() {
    run(async {
        let (a, b) = (Upstream::scripted().await, Upstream::scripted().await);
        let gateway = start(&a, &b, "").await;
        for (method, path, status, code) in [
            ("POST", "/sleep", 403, "path_refused"),
            ("POST", "/v1/load_lora_adapter", 403, "path_refused"),
            ("GET", "/flush_cache", 403, "path_refused"),
            ("POST", "/%66lush_cache/", 403, "path_refused"),
            ("GET", "/metrics", 403, "path_refused"),
            ("POST", "/v1/unknown", 404, "path_not_found"),
            ("GET", "/favicon.ico", 404, "path_not_found"),
        ] {
            let mut raw = send_raw(&gateway, method, path, "{}").await;
            let answer = raw.answer().await;
            assert_eq!((answer.status, answer.code().as_str()), (status, code), "{method} {path}");
            assert_eq!(answer.header("x-should-retry"), "false");
        }
        let mut raw = send_raw(&gateway, "POST", "/v1/messages/batches", "{}").await;
        let answer = raw.answer().await;
        assert_eq!(answer.json()["type"], "error", "Anthropic's form: {}", answer.text());
        assert_eq!((a.total(), b.total()), (0, 0));
    });
}

#[test]
fn a_websocket_is_refused_so_that_clients_send_their_requests_by_http() {
    run(async {
        let (a, b) = (Upstream::scripted().await, Upstream::scripted().await);
        let gateway = start(&a, &b, "paths: {other: pass}\n").await;
        for path in ["/v1/responses", "/v1/realtime?model=a1", "/v1/models", "/unknown"] {
            let mut raw = Raw::connect(gateway.address()).await;
            let upgrade = "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                           sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==";
            raw.send(format!("GET {path} HTTP/1.1\r\nhost: x\r\n{upgrade}\r\n\r\n")).await;
            let answer = raw.answer().await;
            assert_eq!((answer.status, answer.code().as_str()), (426, "invalid_request"), "{path}");
        }
        assert_eq!((a.total(), b.total()), (0, 0));
    });
}

#[test]
fn the_operators_lists_come_before_the_defaults() {
    run(async {
        let (a, b) = (Upstream::scripted().await, Upstream::scripted().await);
        let head = "paths: {queued: [\"/mine/*\"], passed: [/v1/load_lora_adapter, /V1/Embeddings], refused: [/v1/completions], other: pass}\n";
        let gateway = start(&a, &b, head).await;
        let (_first, held) = fill(&gateway, &a, "a1").await;
        for path in ["/v1/load_lora_adapter", "/v1/embeddings", "/what/ever"] {
            let asked = gateway.spawn(ClientRequest::to(path, json!({"model": "a1"})));
            let call = a.next().await;
            assert_eq!(call.path, path);
            call.respond(200, &[], "{}");
            assert_eq!(asked.await.expect("answered").status, 200);
        }
        let refused = gateway.send(ClientRequest::to("/v1/completions", json!({"model": "a1"}))).await;
        assert_eq!((refused.status, refused.code().as_str()), (403, "path_refused"));
        let mine = gateway.spawn(ClientRequest::to("/mine/generate", json!({"model": "a1", "text": "x"})));
        gateway.waiting("a", 1).await;
        held.answer();
        let call = a.next().await;
        assert_eq!(call.path, "/mine/generate");
        call.respond(
            200,
            &[("content-type", "application/json")],
            r#"{"usage": {"prompt_tokens": 3, "completion_tokens": 5}}"#,
        );
        assert_eq!(mine.await.expect("answered").outcome(), "dispatched");
    });
}

#[test]
fn a_form_is_queued_in_the_pool_of_its_model() {
    run(async {
        let (a, b) = (Upstream::scripted().await, Upstream::scripted().await);
        let gateway = start(&a, &b, "").await;
        let (_first, held) = fill(&gateway, &b, "b1").await;
        let audio = "\u{0}RIFF\r\n--x\r\nname=\"model\"\r\n\r\na1\r\n".repeat(4_000);
        let form = format!(
            "--edge\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\ncontent-type: audio/wav\r\n\r\n{audio}\r\n\
             --edge\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nb-whisper\r\n--edge--\r\n"
        );
        let request = gateway
            .client()
            .post(gateway.url("/v1/audio/transcriptions"))
            .header("content-type", "multipart/form-data; boundary=edge")
            .body(form.clone());
        let asked = tokio::spawn(async move { Answer::read(request.send().await.expect("sent")).await });
        gateway.waiting("b", 1).await;
        assert_eq!((a.total(), b.total()), (0, 1));
        held.answer();
        let call = b.next().await;
        assert_eq!(call.body, form.as_bytes());
        call.respond(200, &[("content-type", "application/json")], r#"{"text": "hi"}"#);
        let answer = asked.await.expect("no panic").expect("answered");
        assert_eq!((answer.status, answer.outcome()), (200, "dispatched"));
        gateway.stock("b", 0).await;
    });
}

#[test]
fn a_request_without_a_model_belongs_to_the_default_pool() {
    run(async {
        let (a, b) = (Upstream::scripted().await, Upstream::scripted().await);
        let bodies = [
            json!({"messages": []}),
            json!({"model": null, "messages": []}),
            json!({"model": "", "messages": []}),
        ];
        let gateway = start(&a, &b, "").await;
        for body in &bodies {
            let answer = gateway.send(ClientRequest::to("/v1/chat/completions", body.clone())).await;
            assert_eq!((answer.status, answer.code().as_str()), (400, "invalid_request"), "{body}");
            assert_eq!(answer.json()["error"]["param"], "model");
        }
        let pools = [
            pool("a", "a*", &[&a], &slots(1)),
            pool("b", "b*", &[&b], &format!("{}  default: true\n", slots(1))),
        ];
        let with_default = Gateway::start(&config("", &pools)).await;
        let only = Gateway::start(&config("", &[pool("only", "b*", &[&b], &slots(1))])).await;
        for gateway in [&with_default, &only] {
            for body in &bodies {
                let asked = gateway.spawn(ClientRequest::to("/v1/chat/completions", body.clone()));
                let call = b.next().await;
                assert_eq!(call.json(), *body);
                call.answer();
                let answer = asked.await.expect("answered");
                assert_eq!((answer.status, answer.outcome()), (200, "bypassed"), "{body}");
            }
        }
        // A model that no pool serves is an error there, too.
        let unknown = only.send(ClientRequest::chat("c1", "x")).await;
        assert_eq!((unknown.status, &unknown.json()["error"]["param"]), (404, &Value::from("model")));
    });
}
