//! Every shape that a request's bytes can have: a well-formed request arrives unchanged; a malformed one is rejected at once and
//! affects no other request.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use penstock_tests::gateway::{config, pool};
use penstock_tests::h2c::H2c;
use penstock_tests::raw::{self, Raw};
use penstock_tests::{Answer, ClientRequest, Gateway, Upstream, run};
use serde_json::json;
use tokio::sync::{Mutex, OnceCell};

const CHAT: &str = "/v1/chat/completions";
/// `limits.body_bytes` of this file's gateway.
const BODY_BYTES_MAX: usize = 1 << 20;

struct Fixture {
    gateway: Gateway,
    server: Upstream,
    /// Held by the test that expects the next call at the server to be its request.
    turn: Mutex<()>,
}

impl Fixture {
    async fn post(&self, body: impl Into<reqwest::Body>, headers: &[(&str, &str)]) -> Answer {
        let mut request = self.gateway.client().post(self.gateway.url(CHAT)).body(body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Answer::read(request.send().await.expect("an answer")).await.expect("a whole answer")
    }

    async fn invalid(&self, body: impl Into<reqwest::Body>, headers: &[(&str, &str)]) -> Answer {
        let answer = self.post(body, headers).await;
        answer.expect_error(400, "invalid_request", "rejected_invalid");
        answer
    }

    /// Sends the pieces on one connection; the request must arrive at the server and is answered.
    async fn arrives(&self, pieces: Vec<Vec<u8>>) -> Seen {
        let _turn = self.turn.lock().await;
        let mut client = Raw::connect(self.gateway.address()).await;
        for piece in pieces {
            client.send(piece).await;
        }
        let call = self.server.next().await;
        let seen = Seen { body: call.body.clone(), coding: call.header("content-encoding").to_owned() };
        call.answer();
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.outcome()), (200, "bypassed"), "{}", answer.text());
        seen
    }
}

/// The parts of a call that a test checks after the answer.
struct Seen {
    body: Bytes,
    /// The header `content-encoding`.
    coding: String,
}

async fn shared() -> &'static Fixture {
    static SHARED: OnceCell<Fixture> = OnceCell::const_new();
    SHARED
        .get_or_init(|| async {
            let server = Upstream::scripted().await;
            let pools = [pool("p", "'m*'", &[&server], "  stock: {watermark_per_backend: 64}\n")];
            let gateway = Gateway::start(&config("limits: {body_bytes: 1MiB}\n", &pools)).await;
            Fixture { gateway, server, turn: Mutex::new(()) }
        })
        .await
}

/// A chat request whose text has UTF-8 characters of every length, and escapes that a split can cut in two.
fn tearable() -> Vec<u8> {
    let text = "h\u{e9}llo \u{20ac} \u{1f6b0}";
    let body = format!(
        r#" {{ "messages":[{{"role":"user","content":"{text} \u00e9\ud83d\udeb0\n\\\""}}],"n":1e0, "model" : "m\u002d1" }} "#
    );
    body.into_bytes()
}

#[test]
fn malformed_request_is_400() {
    run(async {
        let all = shared().await;
        let bodies: [&[u8]; 14] = [
            b"",
            b"{",
            b"[]",
            b"\"x\"",
            b"null",
            b"hello",
            br#"{"model":1}"#,
            br#"{"model":"m","model":"m2"}"#,
            br#"{"model":"m"} x"#,
            br#"{"model":"m",}"#,
            br#"{"model":"m" "messages":[]}"#,
            br#"{"model":"m","messages":[}"#,
            b"{\"model\":\"m\xff\"}",
            b"\x00\x01\x02",
        ];
        for body in bodies {
            let answer = all.post(body.to_vec(), &[]).await;
            let shown = String::from_utf8_lossy(body);
            assert_eq!(answer.status, 400, "{shown}: {}", answer.text());
            answer.expect_error(400, "invalid_request", "rejected_invalid");
        }
        // The connection and the gateway still work.
        let _turn = all.turn.lock().await;
        let asked = all.gateway.spawn(ClientRequest::chat("m", "x"));
        all.server.next().await.answer();
        assert_eq!(asked.await.expect("answered").status, 200);
    });
}

#[test]
fn invalid_utf8_is_400() {
    run(async {
        let all = shared().await;
        all.invalid(
            b"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a\xc3(\"}]}".to_vec(),
            &[],
        )
        .await;
        all.invalid(b"\xff\xfe{\x00".to_vec(), &[]).await;
    });
}

/// A chat request in each coding that Envoy decodes.
const PLAIN: &str = r#"{"model":"m","messages":[{"role":"user","content":"hello hello hello"}]}"#;
const CODED: [(&str, &str); 3] = [
    (
        "gzip",
        "H4sIAAAAAAACA6tWys1PSc1RslLKVdJRyk0tLk5MTy1WsoquVirKz0kFipcWpxYBpZLz80pS80qAAhmpOTn5CkikUm1sLQDt3taVSAAAAA==",
    ),
    ("br", "G0cAcJwHdgyZBlpYwOneapE9tq3VJtc6LF19U6TsDRxyInBsSQJxzMEGHEbeuCw8SQ0yvCx/qCwiPLjEdw=="),
    (
        "zstd",
        "KLUv/SBIQQIAeyJtb2RlbCI6Im0iLCJtZXNzYWdlcyI6W3sicm9sZSI6InVzZXIiLCJjb250ZW50IjoiaGVsbG8gaGVsbG8gaGVsbG8ifV19",
    ),
];
/// A chat request with 4 MiB of text.
const BOMBS: [(&str, &str); 2] = [
    ("br", "mzYAQICM0xXzI4R1r0X28LY2i05XH6ccsBbkbVkQnFDuOTz8cmItyY3JwTigy8jSH0aq0/jc+5/r3A=="),
    (
        "zstd",
        "KLUv/aA3AEAA1AEAsgIKEcC3AWBLxLw7EkhC/d5T6bovyOAN5tDvuaU6hfK+iN2fgc9lO8lzCgQAyf+4XNAEjE+AvMB0AgIAEHgCABB4AgAQeAIAEHgCABB4AgAQeAIAEHgCABB4AgAQeAIAEHgCABB4AgAQeAIAEHgCABB4AgAQeAIAEHgCABB4AgAQeAIAEHgCABB4AgAQeAIAEHgCABB4AgAQeAIAEHgCABB4AgAQeAIAEHgCABB4AgAQeAIAEHhVAAAgIn1dfQEAOAEQ",
    ),
];

fn decoded(text: &str) -> Vec<u8> {
    BASE64_STANDARD.decode(text).expect("base64")
}

#[test]
fn compressed_body_reaches_the_server_decoded() {
    run(async {
        let all = shared().await;
        for (coding, body) in CODED {
            for name in [coding.to_owned(), coding.to_uppercase()] {
                let body = decoded(body);
                let headers = format!("content-length: {}\r\ncontent-encoding: {name}\r\n", body.len());
                let seen = all.arrives(vec![raw::post(CHAT, &headers).into_bytes(), body]).await;
                assert_eq!(String::from_utf8_lossy(&seen.body), PLAIN, "{name}");
                assert_eq!(seen.coding, "", "{name}");
            }
        }
    });
}

#[test]
fn body_that_cannot_be_decoded_is_refused_and_the_message_says_why() {
    run(async {
        let all = shared().await;
        for coding in ["deflate", "compress", "gzip, br", "gzip, gzip"] {
            let answer = all.invalid(PLAIN, &[("content-encoding", coding)]).await;
            assert!(answer.message().contains("gzip, br or zstd"), "{}", answer.message());
        }
        for (coding, body) in CODED {
            let json = ("content-type", "application/json; charset=utf-8");
            let answer = all.invalid(PLAIN, &[json, ("content-encoding", coding)]).await;
            assert!(answer.message().contains("can't be decoded"), "{coding}: {}", answer.message());
            let cut = decoded(body)[..20].to_vec();
            all.invalid(cut, &[json, ("content-encoding", coding)]).await;
            for header in [("cache-control", "no-transform"), ("x-penstock-pool", "p")] {
                let answer = all.invalid(decoded(body), &[json, ("content-encoding", coding), header]).await;
                assert!(answer.message().contains("compressed"), "{coding} {header:?}: {}", answer.message());
            }
            // A body of another type isn't decoded.
            let answer = all.invalid(decoded(body), &[("content-encoding", coding)]).await;
            assert!(answer.message().contains("compressed"), "{coding}: {}", answer.message());
        }
        for (coding, body) in BOMBS {
            let headers = [("content-type", "application/json"), ("content-encoding", coding)];
            let answer = all.post(decoded(body), &headers).await;
            answer.expect_error(413, "request_too_large", "rejected_invalid");
        }
    });
}

#[test]
fn byte_order_mark_is_accepted() {
    run(async {
        let all = shared().await;
        let body = [b"\xef\xbb\xbf", PLAIN.as_bytes()].concat();
        let head = raw::post(CHAT, &format!("content-length: {}\r\n", body.len()));
        assert_eq!(all.arrives(vec![head.into_bytes(), body.clone()]).await.body, body);
        all.invalid(b"\xef\xbb\xbf".to_vec(), &[]).await;
        all.invalid([PLAIN.as_bytes(), b"\xef\xbb\xbf"].concat(), &[]).await;
    });
}

#[test]
fn http_1_0_is_served_with_and_without_a_host() {
    run(async {
        let all = shared().await;
        for host in ["", "host: gateway\r\n"] {
            let head = format!("POST {CHAT} HTTP/1.0\r\n{host}content-length: {}\r\n\r\n", PLAIN.len());
            let seen = all.arrives(vec![head.into_bytes(), PLAIN.into()]).await;
            assert_eq!(seen.body, PLAIN.as_bytes());
        }
    });
}

#[test]
fn too_many_and_too_long_headers_are_431_in_the_form_of_the_api() {
    run(async {
        let all = shared().await;
        let many = |count: usize| (0..count).map(|index| format!("x-h{index}: 1\r\n")).collect::<String>();
        let long = (0..8).map(|index| format!("x-h{index}: {}\r\n", "x".repeat(8_000))).collect::<String>();
        // Above 500 headers and 96 KiB, Envoy answers by itself.
        for more in [many(101), long.clone(), many(600), long.replace('x', "xx")] {
            let mut client = Raw::connect(all.gateway.address()).await;
            client.send(raw::post(CHAT, &format!("content-length: {}\r\n{more}", PLAIN.len()))).await;
            client.answer().await.expect_error(431, "invalid_request", "rejected_invalid");
        }
        let head = raw::post(CHAT, &format!("content-length: {}\r\n{}", PLAIN.len(), many(90)));
        all.arrives(vec![head.into_bytes(), PLAIN.into()]).await;

        let mut client = H2c::connect(all.gateway.address()).await;
        for (count, value) in [(150, "1"), (8, &*"x".repeat(8_000))] {
            let mut ask = ClientRequest::chat("m", "x");
            for index in 0..count {
                ask = ask.header(&format!("x-h{index}"), value);
            }
            let answer = H2c::answer(client.ask(&ask).await).await.expect("an answer");
            answer.expect_error(431, "invalid_request", "rejected_invalid");
        }
    });
}

#[test]
fn model_without_a_pool_is_404() {
    run(async {
        let all = shared().await;
        let body = json!({"model": "unheard-of", "messages": []}).to_string();
        let answer = all.post(body, &[]).await;
        answer.expect_error(404, "model_not_found", "rejected_invalid");
        assert!(answer.message().contains("unheard-of"), "{}", answer.message());

        let message = ClientRequest::to(
            "/v1/messages",
            json!({"model": "unheard-of", "max_tokens": 1, "messages": []}),
        );
        let answer = all.gateway.send(message).await;
        assert_eq!((answer.status, answer.outcome()), (404, "rejected_invalid"));
        assert_eq!(answer.json()["type"], "error", "{}", answer.text());
        assert!(answer.json()["error"]["message"].is_string(), "{}", answer.text());
    });
}

#[test]
fn body_over_the_limit_is_413_and_body_at_the_limit_passes() {
    run(async {
        let all = shared().await;
        let fill = |bytes: usize| {
            let frame = r#"{"model":"m","messages":[{"role":"user","content":""}]}"#;
            frame.replace(r#"content":""#, &format!(r#"content":"{}"#, "x".repeat(bytes - frame.len())))
        };
        // The Content-Length alone is enough: the client sends no byte of the body.
        let mut client = Raw::connect(all.gateway.address()).await;
        client.send(raw::post(CHAT, &format!("content-length: {}\r\n", BODY_BYTES_MAX + 1))).await;
        client.answer().await.expect_error(413, "request_too_large", "rejected_invalid");

        let mut client = Raw::connect(all.gateway.address()).await;
        client.send(raw::post(CHAT, "transfer-encoding: chunked\r\n")).await;
        let body = fill(BODY_BYTES_MAX + 1);
        client.send(format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len())).await;
        client.answer().await.expect_error(413, "request_too_large", "rejected_invalid");

        let body = fill(BODY_BYTES_MAX);
        let head = raw::post(CHAT, &format!("content-length: {}\r\n", body.len()));
        let seen = all.arrives(vec![head.into_bytes(), body.clone().into_bytes()]).await;
        assert!(seen.body == body.as_bytes(), "{} bytes arrived of {}", seen.body.len(), body.len());
    });
}

#[test]
fn deep_nesting_does_not_trap() {
    run(async {
        let all = shared().await;
        let nested = |depth: usize| {
            format!(r#"{{"model":"m","messages":{}{}}}"#, "[".repeat(depth), "]".repeat(depth)).into_bytes()
        };
        let body = nested(60);
        let head = raw::post(CHAT, &format!("content-length: {}\r\n", body.len()));
        assert_eq!(all.arrives(vec![head.into_bytes(), body.clone()]).await.body, body);

        // Far deeper than real requests: rejected or passed, but answered, and so is the next request.
        let _turn = all.turn.lock().await;
        let body = nested(400_000);
        let deep = tokio::spawn(all.gateway.client().post(all.gateway.url(CHAT)).body(body).send());
        let status = tokio::select! {
            call = all.server.next() => { call.answer(); 200 }
            response = deep => response.expect("no panic").expect("an answer").status().as_u16(),
        };
        assert!([200, 400].contains(&status), "{status}");
        let asked = all.gateway.spawn(ClientRequest::chat("m", "x"));
        all.server.next().await.answer();
        assert_eq!(asked.await.expect("answered").status, 200);
    });
}

#[test]
fn body_may_arrive_in_any_pieces() {
    run(async {
        let all = shared().await;
        let body = tearable();
        for size in [1, 2, 3, 7, 64] {
            let mut pieces = vec![raw::post(CHAT, "transfer-encoding: chunked\r\n").into_bytes()];
            for piece in body.chunks(size) {
                pieces.push([format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat());
            }
            pieces.push(b"0\r\n\r\n".to_vec());
            assert_eq!(all.arrives(pieces).await.body, body, "chunks of {size}");

            let mut whole = raw::post(CHAT, &format!("content-length: {}\r\n", body.len())).into_bytes();
            whole.extend_from_slice(&body);
            let pieces = whole.chunks(size).map(<[u8]>::to_vec).collect();
            assert_eq!(all.arrives(pieces).await.body, body, "pieces of {size}");
        }
    });
}

#[test]
fn expect_100_continue_is_answered() {
    run(async {
        let all = shared().await;
        let _turn = all.turn.lock().await;
        let body = tearable();
        let mut client = Raw::connect(all.gateway.address()).await;
        client
            .send(raw::post(CHAT, &format!("content-length: {}\r\nexpect: 100-continue\r\n", body.len())))
            .await;
        assert_eq!(client.answer().await.status, 100);
        client.send(&body).await;
        let call = all.server.next().await;
        assert_eq!(call.body, body);
        call.answer();
        assert_eq!(client.answer().await.status, 200);
    });
}

#[test]
fn rejection_states_whether_the_connection_stays_open() {
    run(async {
        let all = shared().await;
        let mut client = Raw::connect(all.gateway.address()).await;
        for body in ["nope", "[  ]", "null"] {
            client.send(format!("{}{body}", raw::post(CHAT, "content-length: 4\r\n"))).await;
            let refused = client.answer().await;
            refused.expect_error(400, "invalid_request", "rejected_invalid");
            if refused.header("connection") == "close" {
                assert!(client.closed().await);
                client = Raw::connect(all.gateway.address()).await;
            }
        }
        let _turn = all.turn.lock().await;
        let body = tearable();
        client.send(raw::post(CHAT, &format!("content-length: {}\r\n", body.len()))).await;
        client.send(&body).await;
        all.server.next().await.answer();
        assert_eq!(client.answer().await.status, 200);
    });
}

#[test]
fn invalid_http_closes_only_its_connection() {
    run(async {
        let all = shared().await;
        let mut client = Raw::connect(all.gateway.address()).await;
        client.send("\x16\x03\x01 this is no HTTP\r\n\r\n").await;
        client.answer().await.expect_error(400, "invalid_request", "rejected_invalid");
        assert!(client.closed().await);
        all.gateway.ready().await;
    });
}

#[test]
fn http2_requests_with_and_without_trailers_arrive() {
    run(async {
        let all = shared().await;
        let _turn = all.turn.lock().await;
        let mut client = H2c::connect(all.gateway.address()).await;
        let body = Bytes::from(tearable());
        let halves = [body.slice(..body.len() / 2), body.slice(body.len() / 2..)];
        let mut checksum = http::HeaderMap::new();
        checksum.insert("x-checksum", http::HeaderValue::from_static("1"));
        for trailers in [Some(checksum), None] {
            let answer = client.post(CHAT, &halves, trailers).await;
            let call = all.server.next().await;
            assert_eq!(call.body, body);
            call.answer();
            let (status, headers) = H2c::status(answer).await;
            assert_eq!(status, 200);
            assert_eq!(headers["x-penstock-outcome"], "bypassed");
        }
    });
}

#[test]
fn invalid_requests_are_counted_under_pool_none() {
    run(async {
        let all = shared().await;
        let count = || async {
            let page = all.gateway.metrics().await;
            let outcome = [("pool", "none"), ("outcome", "rejected_invalid")];
            (
                page.sum("penstock_arrivals_total", &[("pool", "none")]),
                page.sum("penstock_requests_total", &outcome),
            )
        };
        all.invalid("{", &[]).await;
        penstock_tests::until("arrivals and outcomes agree", || async {
            let (arrivals, outcomes) = count().await;
            if arrivals >= 1.0 && arrivals == outcomes {
                Ok(())
            } else {
                Err(format!("{arrivals} {outcomes}"))
            }
        })
        .await;
    });
}
