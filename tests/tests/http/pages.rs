//! Web pages of other origins (`listen.cors`): a browser's preflight is answered without a key, and every answer, Penstock's own errors too,
//! has the headers by which the browser shows it to the page.

use penstock_tests::gateway::{config, pool};
use penstock_tests::{Answer, Gateway, Upstream, run};

use super::api_keys::{Key, KeyFile};

const CHAT: &str = "/v1/chat/completions";
const PAGE: &str = "https://chat.example";

async fn gateway(cors: &str, more: &str, server: &Upstream) -> Gateway {
    let text = config(more, &[pool("p", "'m*'", &[server], "")]);
    Gateway::start(&text.replacen("listen: {", &format!("listen: {{cors: {cors}, "), 1)).await
}

/// What a browser asks before a page's request.
async fn preflight(gateway: &Gateway, origin: &str, path: &str) -> Answer {
    let request = gateway.client().request(http::Method::OPTIONS, gateway.url(path));
    let request = request
        .header("origin", origin)
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization,content-type");
    Answer::read(request.send().await.expect("an answer")).await.expect("a whole answer")
}

async fn post(gateway: &Gateway, origin: &str, key: &str, body: &'static str) -> Answer {
    let request = gateway.client().post(gateway.url(CHAT)).header("origin", origin);
    let request = request.header("authorization", format!("Bearer {key}")).body(body);
    Answer::read(request.send().await.expect("an answer")).await.expect("a whole answer")
}

fn has(list: &str, name: &str) -> bool {
    list.split(',').any(|entry| entry.trim().eq_ignore_ascii_case(name))
}

#[test]
fn pages_of_listed_origins_may_ask_and_read_and_others_may_not() {
    run(async {
        let server = Upstream::scripted().await;
        let key = Key::of("acme");
        let file = KeyFile::with(&[&key]);
        let cors =
            "{origins: [https://chat.example, 'http://localhost:*', 'https://*.apps.example'], max_age: 1h}";
        let gateway = gateway(cors, &file.identity(""), &server).await;
        for origin in [PAGE, "http://localhost:3000", "https://a.b.apps.example"] {
            for path in [CHAT, "/v1/messages", "/v1/models"] {
                let answer = preflight(&gateway, origin, path).await;
                assert!((200..300).contains(&answer.status), "{origin} {path}: {}", answer.status);
                assert_eq!(answer.header("access-control-allow-origin"), origin);
                assert!(has(answer.header("access-control-allow-methods"), "POST"), "{:?}", answer.headers);
                let headers = answer.header("access-control-allow-headers");
                for name in ["authorization", "content-type", "x-api-key", "x-stainless-os", "*"] {
                    assert!(has(headers, name), "{name}: {headers}");
                }
                assert_eq!(answer.header("access-control-max-age"), "3600");
            }
        }
        for origin in
            ["https://evil.example", "http://chat.example", "https://chat.example.evil.example", "null"]
        {
            let answer = preflight(&gateway, origin, CHAT).await;
            assert_eq!(answer.header("access-control-allow-origin"), "", "{origin}");
        }

        let expect_readable = |answer: &Answer| {
            assert_eq!(answer.header("access-control-allow-origin"), PAGE, "{:?}", answer.headers);
            let exposed = answer.header("access-control-expose-headers");
            for name in ["retry-after", "x-request-id", "x-penstock-outcome"] {
                assert!(has(exposed, name), "{name}: {exposed}");
            }
        };
        let refused = post(&gateway, PAGE, "wrong", r#"{"model":"m","messages":[]}"#).await;
        refused.expect_error(401, "invalid_api_key", "rejected_invalid");
        expect_readable(&refused);
        let invalid = post(&gateway, PAGE, &key.key, "{").await;
        invalid.expect_error(400, "invalid_request", "rejected_invalid");
        expect_readable(&invalid);
        assert_eq!(server.total(), 0, "no preflight reaches a server");

        let answered = async |origin| {
            let asked = post(&gateway, origin, &key.key, r#"{"model":"m","messages":[]}"#);
            let served = async {
                let call = server.next().await;
                // Servers that would allow every page are overruled.
                call.respond(200, &[("access-control-allow-origin", "*"), ("x-own", "1")], "{}");
            };
            futures_util::join!(asked, served).0
        };
        let answer = answered(PAGE).await;
        assert_eq!((answer.status, answer.header("x-own")), (200, "1"));
        expect_readable(&answer);
        let answer = answered("https://evil.example").await;
        assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, ""));
    });
}

#[test]
fn listed_headers_replace_any_and_any_origin_is_an_asterisk() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = gateway("{origins: ['*'], headers: [X-Tenant]}", "", &server).await;
        let answer = preflight(&gateway, "https://anywhere.example", CHAT).await;
        assert_eq!(answer.header("access-control-allow-origin"), "https://anywhere.example");
        let headers = answer.header("access-control-allow-headers");
        assert!(has(headers, "x-tenant") && has(headers, "authorization") && !has(headers, "*"), "{headers}");
        assert_eq!(answer.header("access-control-max-age"), "600");
    });
}
