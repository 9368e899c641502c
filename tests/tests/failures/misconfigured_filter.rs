//! An Envoy whose plugin configuration lacks `allow_on_headers_stop_iteration` keeps the bodies of paused requests from the filter.

use std::time::{Duration, Instant};

use penstock_tests::envoy::{WASM, WASM_SESSIONS};
use penstock_tests::gateway::pool;
use penstock_tests::raw::Raw;
use penstock_tests::wait::until;
use penstock_tests::{Answer, Companion, Envoy, Upstream, run};
use serde_json::Value;

const BODY: &str = r#"{"model":"m","messages":[]}"#;
const FLAG: &str = "allow_on_headers_stop_iteration";
/// Longer than the filter waits before it looks for a body.
const LATE: Duration = Duration::from_millis(2_500);

async fn companion(server: &Upstream) -> Companion {
    Companion::start("", &[pool("chat", "m", &[server], "  health: {path: null}\n")]).await
}

/// An Envoy without the flag.
async fn misconfigured(companion: &Companion) -> Envoy {
    let envoy = Envoy::listening(companion, "strange", Some(WASM.as_ref()), |listener| {
        assert!(remove(listener, FLAG), "{listener}");
    })
    .await;
    companion.sessions("strange", WASM_SESSIONS).await;
    envoy
}

/// Removes a key wherever it is. Returns whether it was there.
fn remove(value: &mut Value, key: &str) -> bool {
    let mut was_there = false;
    match value {
        Value::Object(map) => {
            was_there = map.remove(key).is_some();
            for value in map.values_mut() {
                was_there |= remove(value, key);
            }
        }
        Value::Array(list) => {
            for value in list {
                was_there |= remove(value, key);
            }
        }
        _ => {}
    }
    was_there
}

/// Sends the headers of a request with a body of `length` bytes.
async fn headers(envoy: &Envoy, length: usize) -> Raw {
    let mut raw = Raw::connect(envoy.gateway()).await;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    raw.send(head).await;
    raw
}

fn expect_refused(answer: &Answer) {
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert_eq!(answer.json()["error"]["code"], "filter_misconfigured");
    assert!(answer.text().contains(FLAG), "{}", answer.text());
}

#[test]
fn an_envoy_that_keeps_bodies_from_the_filter_answers_with_the_cause() {
    run(async {
        let server = Upstream::scripted().await;
        let companion = companion(&server).await;
        let envoy = misconfigured(&companion).await;
        let started = Instant::now();
        let mut clients = Vec::new();
        for _ in 0..12 {
            let mut client = headers(&envoy, BODY.len()).await;
            client.send(BODY).await;
            clients.push(client);
        }
        for mut client in clients {
            expect_refused(&client.answer().await);
        }
        println!("figure: 12 requests without the flag are answered after {:?}", started.elapsed());
        // A body that Envoy has in part.
        let mut half = headers(&envoy, 100).await;
        half.send("{\"model\"").await;
        expect_refused(&half.answer().await);
        assert_eq!(server.total(), 0);

        let log = envoy.process.log();
        let lines = log.lines().filter(|line| line.contains(FLAG) && line.contains("[error]"));
        // One a minute for each worker.
        assert!((1..=2).contains(&lines.count()), "{log}");
        until("the companion knows the cause", || async {
            let log = companion.log();
            if log.contains(FLAG) && log.contains("node=\"strange\"") { Ok(()) } else { Err(log) }
        })
        .await;
        let status = companion.get("/status").await.expect("a page").json();
        let advice = status["advice"].to_string();
        assert!(advice.contains(FLAG) && advice.contains("strange"), "{advice}");
        let metrics = companion.get("/metrics").await.expect("a page").text();
        assert!(metrics.contains("filter_misconfigured"), "{metrics}");
    });
}

#[test]
fn a_client_that_sends_its_body_late_is_no_sign_of_it() {
    run(async {
        let server = Upstream::scripted().await;
        let companion = companion(&server).await;
        // The first request of its worker, so no body has come before.
        let envoy = Envoy::start(&companion, "one").await;
        let mut client = headers(&envoy, BODY.len()).await;
        tokio::time::sleep(LATE).await;
        client.send(BODY).await;
        server.next().await.answer();
        assert_eq!(client.answer().await.status, 200);

        let envoy = misconfigured(&companion).await;
        let mut client = headers(&envoy, BODY.len()).await;
        tokio::time::sleep(LATE).await;
        assert!(!client.is_answered(), "its body may be on its way");
        client.send(BODY).await;
        expect_refused(&client.answer().await);
    });
}
