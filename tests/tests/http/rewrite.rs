//! Model rewriting: a body of any shape arrives with the model's value replaced and every other byte unchanged.

use bytes::Bytes;
use http::HeaderMap;
use penstock_tests::gateway::config;
use penstock_tests::h2c::H2c;
use penstock_tests::raw::{self, Raw};
use penstock_tests::{Call, Gateway, Upstream, run};
use tokio::sync::{Mutex, OnceCell};

const CHAT: &str = "/v1/chat/completions";
/// Targets that are longer than the requested name, shorter, and one that JSON must escape.
const REWRITES: [(&str, &str); 3] = [
    ("chat", "meta-llama/Llama-3.3-70B-Instruct"),
    ("chat-with-a-long-name", "m"),
    ("quoted", "a\"b\\\u{e9}"),
];

struct Fixture {
    gateway: Gateway,
    server: Upstream,
    /// Held by the test that expects the next call at the server to be its request.
    turn: Mutex<()>,
}

async fn shared() -> &'static Fixture {
    static SHARED: OnceCell<Fixture> = OnceCell::const_new();
    SHARED
        .get_or_init(|| async {
            let server = Upstream::scripted().await;
            let gateway = Gateway::start(&config("", &[pool(&server)])).await;
            let turn = Mutex::new(());
            Fixture { gateway, server, turn }
        })
        .await
}

/// A pool with all of [`REWRITES`] and one server without health checks.
fn pool(server: &Upstream) -> String {
    let rules: Vec<_> = REWRITES
        .iter()
        .map(|(model, target)| {
            let name = serde_json::to_string(target).expect("text");
            format!("{{model: {model}, targets: [{{name: {name}, weight: 1}}]}}")
        })
        .collect();
    format!(
        "- name: p\n  endpoints: {{static: ['{}']}}\n  health: {{path: null}}\n  down: {{first: 10m, max: 10m}}\n  rewrite: \
         [{}]\n  stock: {{watermark_per_backend: 64}}\n",
        server.address(),
        rules.join(", ")
    )
}

/// A body of about `bytes` with this `"model"` before or after the messages, and the body that the server must receive.
struct Body {
    sent: Vec<u8>,
    expected: Vec<u8>,
}

fn body(written: &str, target: &str, bytes: usize, before: bool) -> Body {
    let text: String =
        "lorem \\u00efpsum \u{20ac} \\\"model\\\":\\\"chat\\\" ".chars().cycle().take(bytes).collect();
    // Ends before an escape that would be cut in two.
    let text = text.rsplit_once("lorem").map_or("", |(whole, _)| whole);
    let build = |model: &str| {
        let messages = format!(r#""messages":[{{"role":"user","content":"{text}","model":"chat"}}]"#);
        let body = if before {
            format!(r#"{{"model" : {model},{messages}}}"#)
        } else {
            format!(r#" {{{messages} , "m\u006fdel":{model}}} "#)
        };
        body.into_bytes()
    };
    Body { sent: build(written), expected: build(&serde_json::to_string(target).expect("text")) }
}

/// Each rewrite in bodies of each size, at both ends, plain and escaped; the largest is more than a slice of any kind.
fn bodies() -> Vec<Body> {
    let mut all = Vec::new();
    for (model, target) in REWRITES {
        let escaped: String =
            model.chars().map(|character| format!("\\u{:04x}", u32::from(character))).collect();
        for bytes in [1_000, 220_000, 3_000_000] {
            all.push(body(&format!("\"{model}\""), target, bytes, true));
            all.push(body(&format!("\"{escaped}\""), target, bytes, false));
        }
    }
    all
}

/// Checks the call's bytes and its Content-Length, if present, and answers it.
fn expect(call: Call, body: &Body) {
    let differ = call.body.iter().zip(&body.expected).position(|(a, b)| a != b);
    assert_eq!((call.body.len(), differ), (body.expected.len(), None), "the first byte that differs");
    let length = call.header("content-length");
    assert!(length.is_empty() || length == body.expected.len().to_string(), "{length}");
    assert_eq!(length.is_empty(), call.header("transfer-encoding") == "chunked");
    call.respond(200, &[("content-type", "application/json")], r#"{"model":"what the server calls it"}"#);
}

#[test]
fn bodies_of_a_known_length() {
    run(async {
        let all = shared().await;
        let _turn = all.turn.lock().await;
        let mut client = Raw::connect(all.gateway.address()).await;
        for body in bodies() {
            let head = format!("content-length: {}\r\ncontent-md5: x\r\n", body.sent.len());
            client.send(raw::post(CHAT, &head)).await;
            client.send(&body.sent).await;
            let call = all.server.next().await;
            assert_eq!(call.header("content-length"), body.expected.len().to_string());
            assert_eq!(call.header("content-md5"), "", "of other bytes");
            expect(call, &body);
            let answer = client.answer().await;
            assert_eq!((answer.status, answer.outcome()), (200, "bypassed"));
            assert_eq!(answer.text(), r#"{"model":"what the server calls it"}"#);
        }
    });
}

#[test]
fn bodies_with_expect_100_continue() {
    run(async {
        let all = shared().await;
        let _turn = all.turn.lock().await;
        let mut client = Raw::connect(all.gateway.address()).await;
        for body in bodies() {
            let head = format!("content-length: {}\r\nexpect: 100-continue\r\n", body.sent.len());
            client.send(raw::post(CHAT, &head)).await;
            assert_eq!(client.answer().await.status, 100);
            client.send(&body.sent).await;
            expect(all.server.next().await, &body);
            assert_eq!(client.answer().await.status, 200);
        }
    });
}

#[test]
fn bodies_in_chunks() {
    run(async {
        let all = shared().await;
        let _turn = all.turn.lock().await;
        let mut client = Raw::connect(all.gateway.address()).await;
        for body in bodies() {
            client.send(raw::post(CHAT, "transfer-encoding: chunked\r\n")).await;
            for piece in body.sent.chunks(body.sent.len() / 3 + 1) {
                client.send(format!("{:x}\r\n", piece.len())).await;
                client.send(piece).await;
                client.send("\r\n").await;
            }
            client.send("0\r\n\r\n").await;
            expect(all.server.next().await, &body);
            assert_eq!(client.answer().await.status, 200);
        }
    });
}

#[test]
fn bodies_of_http2_with_and_without_trailers() {
    run(async {
        let all = shared().await;
        let _turn = all.turn.lock().await;
        let mut client = H2c::connect(all.gateway.address()).await;
        for body in bodies() {
            let sent = Bytes::from(body.sent.clone());
            let halves = [sent.slice(..sent.len() / 2), sent.slice(sent.len() / 2..)];
            let mut checksum = HeaderMap::new();
            checksum.insert("x-checksum", http::HeaderValue::from_static("1"));
            for trailers in [Some(checksum), None] {
                let answer = client.post(CHAT, &halves, trailers).await;
                expect(all.server.next().await, &body);
                let (status, _) = H2c::status(answer).await;
                assert_eq!(status, 200);
            }
        }
    });
}

#[test]
fn requeued_request_is_rewritten_once() {
    run(async {
        let all = shared().await;
        let _turn = all.turn.lock().await;
        let mut client = Raw::connect(all.gateway.address()).await;
        for body in bodies() {
            let head = format!("content-length: {}\r\n", body.sent.len());
            client.send(raw::post(CHAT, &head)).await;
            client.send(&body.sent).await;
            all.server.next().await.cut();
            expect(all.server.next().await, &body);
            let answer = client.answer().await;
            assert_eq!((answer.status, answer.outcome()), (200, "bypassed"), "{}", answer.text());
        }
    });
}

#[test]
fn model_without_a_rule_is_not_rewritten() {
    run(async {
        let all = shared().await;
        let _turn = all.turn.lock().await;
        let mut client = Raw::connect(all.gateway.address()).await;
        let same = body("\"m\\u0061n\"", "man", 1_000, true).sent;
        let body = Body { expected: same.clone(), sent: same };
        let head = format!("content-length: {}\r\ncontent-md5: x\r\n", body.sent.len());
        client.send(raw::post(CHAT, &head)).await;
        client.send(&body.sent).await;
        let call = all.server.next().await;
        assert_eq!(call.header("content-md5"), "x");
        expect(call, &body);
        assert_eq!(client.answer().await.status, 200);
    });
}
