//! A gateway without waiting requests: requests pass at once, and every page shows the expected content.

use std::time::Duration;

use penstock_tests::gateway::{config, pool};
use penstock_tests::{ClientRequest, Gateway, Upstream, run, until};
use serde_json::Value;
use tokio::sync::OnceCell;

struct Fixture {
    gateway: Gateway,
    scripted: Upstream,
    serving: Upstream,
}

/// One gateway for all tests of this file: the first pool's server answers by itself, the second's on command.
async fn shared() -> &'static Fixture {
    static SHARED: OnceCell<Fixture> = OnceCell::const_new();
    SHARED
        .get_or_init(|| async {
            let (serving, scripted) = (Upstream::serving(Duration::ZERO).await, Upstream::scripted().await);
            let more = "  stock: {watermark_per_backend: 64}\n";
            let pools = [pool("served", "'s*'", &[&serving], more), pool("told", "'t*'", &[&scripted], more)];
            Fixture { gateway: Gateway::start(&config("", &pools)).await, scripted, serving }
        })
        .await
}

#[test]
fn request_bypasses_the_empty_queue() {
    run(async {
        let all = shared().await;
        let answer = all.gateway.send(ClientRequest::chat("s", "hello")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.outcome(), "bypassed");
        assert_eq!(answer.json()["choices"][0]["message"]["content"], "hello");
        assert_eq!(answer.header("x-gateway-destination-endpoint-served"), all.serving.address().to_string());
        assert!(answer.header("x-penstock-queue-ms").parse::<u64>().is_ok(), "{:?}", answer.headers);
        let saturation = answer.header("x-penstock-saturation");
        let (whole, hundredths) = saturation.split_once('.').expect("a decimal point");
        assert!(whole.parse::<u32>().is_ok() && hundredths.len() == 2, "{saturation}");
        for name in ["x-penstock-outcome", "x-penstock-queue-ms", "x-penstock-saturation"] {
            assert_eq!(answer.headers.get_all(name).iter().count(), 1, "{name}");
        }
    });
}

#[test]
fn server_receives_the_client_request_unchanged() {
    run(async {
        let all = shared().await;
        let ask = ClientRequest::chat("t-body", "h\u{e9}llo \u{1f6b0}")
            .with("temperature", 0.25)
            .header("x-request-id", "mine-1");
        let sent = serde_json::json!({
            "model": "t-body", "temperature": 0.25,
            "messages": [{"role": "user", "content": "h\u{e9}llo \u{1f6b0}"}],
        });
        let asked = all.gateway.spawn(ask);
        let call = all.scripted.next().await;
        assert_eq!(call.json(), sent);
        assert_eq!(call.path, "/v1/chat/completions");
        assert_eq!(call.header("x-request-id"), "mine-1");
        let first =
            call.header("x-gateway-destination-endpoint").split(',').next().unwrap_or_default().to_owned();
        assert_eq!(first, all.scripted.address().to_string());
        call.answer();
        assert_eq!(asked.await.expect("answered").status, 200);

        let asked = all.gateway.spawn(ClientRequest::chat("t-id", "x"));
        let call = all.scripted.next().await;
        assert!(!call.header("x-request-id").is_empty(), "an id is made where there is none");
        call.answer();
        assert_eq!(asked.await.expect("answered").status, 200);
    });
}

#[test]
fn stream_events_pass_one_by_one() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = Gateway::start(&config("", &[pool("p", "'*'", &[&server], "")])).await;
        let client = gateway.client().clone();
        let ask = client
            .post(gateway.url("/v1/chat/completions"))
            .json(&ClientRequest::chat("m", "x").streamed().body());
        let opened = tokio::spawn(ask.send());
        let events = server.next().await.stream();
        events.text("one");
        let mut response = opened.await.expect("no panic").expect("an answer");
        assert_eq!(response.headers()["x-penstock-outcome"], "bypassed");
        let mut text = String::new();
        for word in ["one", "two"] {
            while !text.contains(word) {
                let chunk = response.chunk().await.expect("an open stream").expect("not yet ended");
                text.push_str(&String::from_utf8_lossy(&chunk));
            }
            assert_eq!(text.matches("data: ").count(), if word == "one" { 1 } else { 2 });
            if word == "one" {
                events.text("two");
            }
        }
        gateway.stock("p", 1).await;
        events.finish(11, 2);
        while let Some(chunk) = response.chunk().await.expect("whole") {
            text.push_str(&String::from_utf8_lossy(&chunk));
        }
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
        gateway.stock("p", 0).await;

        // The tokens in the server's usage are counted, streamed or not.
        until("tokens of the stream", || async {
            let page = gateway.metrics().await;
            let seen =
                (page.sum("penstock_input_tokens_total", &[]), page.sum("penstock_output_tokens_total", &[]));
            if seen == (11.0, 2.0) { Ok(()) } else { Err(format!("{seen:?}")) }
        })
        .await;
        let asked = gateway.spawn(ClientRequest::chat("m", "y"));
        server.next().await.answer_with(100, 50);
        assert_eq!(asked.await.expect("answered").status, 200);
        until("tokens of both", || async {
            let page = gateway.metrics().await;
            let seen =
                (page.sum("penstock_input_tokens_total", &[]), page.sum("penstock_output_tokens_total", &[]));
            if seen == (111.0, 52.0) { Ok(()) } else { Err(format!("{seen:?}")) }
        })
        .await;
    });
}

#[test]
fn every_inference_path_is_queued_and_other_paths_pass() {
    run(async {
        let all = shared().await;
        let queued = [
            ClientRequest::to("/v1/completions", serde_json::json!({"model": "s", "prompt": "x"})),
            ClientRequest::to("/v1/embeddings", serde_json::json!({"model": "s", "input": ["x", "y"]})),
            ClientRequest::to("/v1/responses", serde_json::json!({"model": "s", "input": "x"})),
            ClientRequest::to(
                "/v1/messages",
                serde_json::json!({"model": "s", "max_tokens": 1, "messages": []}),
            ),
            ClientRequest::to(
                "/v1/chat/completions?trace=1",
                serde_json::json!({"model": "s", "messages": []}),
            ),
        ];
        for ask in queued {
            let answer = all.gateway.send(ask.clone()).await;
            assert_eq!((answer.status, answer.outcome()), (200, "bypassed"), "{ask:?} {}", answer.text());
        }
        let before = all.serving.total();
        let models = all.gateway.client().get(all.gateway.url("/v1/models")).send().await.expect("passes");
        assert_eq!(models.status(), 200);
        let posted =
            all.gateway.send(ClientRequest::to("/tokenize", serde_json::json!({"prompt": "x"}))).await;
        assert_eq!(posted.status, 200, "{}", posted.text());
        let got =
            all.gateway.client().get(all.gateway.url("/v1/chat/completions")).send().await.expect("passes");
        assert_eq!(got.status(), 200, "only POST is queued");
        assert!(all.serving.total() >= before + 3);
    });
}

#[test]
fn status_shows_sessions_pools_and_endpoints() {
    run(async {
        let all = shared().await;
        let status = all.gateway.status().await;
        assert!(status["version"].is_string() && status["uptime_s"].is_number(), "{status}");
        let sessions = status["sessions"].as_array().expect("sessions");
        assert!(sessions.len() >= 2, "a worker and the main thread: {status}");
        for key in ["id", "worker", "waiting", "running", "last_seen_ms"] {
            assert!(sessions.iter().all(|s| s.get(key).is_some()), "{key}: {status}");
        }
        let pool = all.gateway.pool("served").await;
        for key in ["saturation", "stock", "lower", "upper", "watermark", "waiting"] {
            assert!(pool[key].is_number(), "{key}: {pool}");
        }
        for key in ["bands", "classes", "flows", "endpoints", "model", "advice"] {
            assert!(pool[key].is_array(), "{key}: {pool}");
        }
        let endpoint = &pool["endpoints"][0];
        assert_eq!(endpoint["address"], all.serving.address().to_string());
        assert_eq!(endpoint["ready"], true);
        for key in ["variant", "why", "stock", "bound", "queue", "kv"] {
            assert!(endpoint.get(key).is_some(), "{key}: {endpoint}");
        }
        // 64 +- 10 %.
        assert_eq!((pool["lower"].as_u64(), pool["upper"].as_u64()), (Some(58), Some(71)), "{pool}");
    });
}

#[test]
fn metrics_carry_their_names_and_help() {
    run(async {
        let all = shared().await;
        assert_eq!(all.gateway.send(ClientRequest::chat("s", "x")).await.status, 200);
        let names = [
            "queue_length",
            "requests_total",
            "arrivals_total",
            "bypass_total",
            "stock_level",
            "upper_bound",
            "lower_bound",
            "watermark",
            "saturation",
            "ready_endpoints",
            "sessions",
            "build_info",
        ];
        let page = until("every series", || async {
            let page = all.gateway.metrics().await;
            let missing: Vec<_> = names.iter().filter(|n| !page.has(&format!("penstock_{n}"))).collect();
            if missing.is_empty() { Ok(page) } else { Err(format!("missing: {missing:?}")) }
        })
        .await;
        for name in names {
            assert!(page.text().contains(&format!("# HELP penstock_{name} ")), "{name} has no help");
        }
        let served = [("pool", "served")];
        assert_eq!(page.sum("penstock_upper_bound", &served), 71.0);
        assert_eq!(page.sum("penstock_ready_endpoints", &served), 1.0);
        assert!(page.sum("penstock_requests_total", &[("pool", "served"), ("outcome", "bypassed")]) >= 1.0);
        let buckets =
            page.samples.iter().filter(|s| s.name == "penstock_queue_latency_seconds_bucket").count();
        assert!(buckets > 0, "{}", page.text());
    });
}

#[test]
fn companion_reports_live_and_ready() {
    run(async {
        let all = shared().await;
        for page in ["/livez", "/readyz", "/", "/readyz?pool=served&max_saturation=0.9"] {
            let answer = all.gateway.get(page).await.expect("answers");
            assert_eq!(answer.status, 200, "{page}: {}", answer.text());
        }
        let dashboard = all.gateway.get("/").await.expect("answers");
        assert!(dashboard.header("content-type").starts_with("text/html"), "{:?}", dashboard.headers);
        let status: Value = all.gateway.get("/status").await.expect("answers").json();
        assert!(status.is_object());
    });
}
