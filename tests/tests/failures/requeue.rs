//! Model servers that fail a request: they refuse it, cut it before or inside the response, or never answer. Requests are counted at
//! the servers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use penstock_tests::gateway::config;
use penstock_tests::raw::Raw;
use penstock_tests::{Answer, Call, ClientRequest, Gateway, RefusingServer, Upstream, run, until};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// A pool without health checks, with `slots` concurrent requests per server; a server that is marked down stays so for the length
/// of a test.
fn pool(name: &str, servers: &[SocketAddr], slots: u32, more: &str) -> String {
    let addresses: Vec<_> = servers.iter().map(|server| format!("'{server}'")).collect();
    let down = if more.contains("down:") { "" } else { "  down: {first: 10m, max: 10m}\n" };
    format!(
        "- name: {name}\n  models: [{name}]\n  endpoints: {{static: [{}]}}\n  health: {{path: null}}\n{down}  stock: \
         {{lower_bound_per_backend: {slots}, upper_bound_per_backend: {slots}, watermark_per_backend: {slots}}}\n{more}",
        addresses.join(", ")
    )
}

async fn gateway(pool: String) -> Gateway {
    Gateway::start(&config("", &[pool])).await
}

async fn endpoint(gateway: &Gateway, pool: &str, address: SocketAddr) -> Value {
    let pool = gateway.pool(pool).await;
    let endpoints = pool["endpoints"].as_array().cloned().unwrap_or_default();
    endpoints
        .into_iter()
        .find(|endpoint| endpoint["address"] == address.to_string())
        .unwrap_or_else(|| panic!("{address} isn't in {pool}"))
}

/// Waits until the pool is empty, and checks that each request was counted once: the numbers of arrivals, admissions and requeues.
async fn expect_counts(gateway: &Gateway, pool: &str, requests: f64, requeues: f64) {
    gateway.stock(pool, 0).await;
    gateway.waiting(pool, 0).await;
    let page = gateway.metrics().await;
    let labels = [("pool", pool)];
    let admitted: f64 = ["bypassed", "leased", "dispatched"]
        .map(|outcome| page.sum("penstock_requests_total", &[("pool", pool), ("outcome", outcome)]))
        .iter()
        .sum();
    assert_eq!(
        [
            page.sum("penstock_arrivals_total", &labels),
            page.sum("penstock_requests_total", &labels),
            admitted,
            page.sum("penstock_requeues_total", &labels),
        ],
        [requests, requests, requests, requeues],
        "arrivals, outcomes, admissions, requeues"
    );
}

/// Takes both places of a server.
async fn fill(gateway: &Gateway, pool: &str, server: &Upstream) -> (Vec<JoinHandle<Answer>>, [Call; 2]) {
    let ask = || {
        let pinned =
            ClientRequest::chat(pool, "held").header("x-penstock-endpoint", &server.address().to_string());
        gateway.spawn(pinned)
    };
    let asked = vec![ask(), ask()];
    (asked, [server.next().await, server.next().await])
}

/// The names of Penstock's own headers that reached a server.
fn own_headers(call: &Call) -> Vec<&str> {
    let names = call.headers.keys().map(|name| name.as_str());
    names.filter(|name| name.starts_with("x-penstock-")).collect()
}

fn expect_once(answer: &Answer) {
    for name in ["x-penstock-outcome", "x-penstock-queue-ms", "x-penstock-saturation", "x-request-id"] {
        let values: Vec<_> = answer.headers.get_all(name).iter().collect();
        assert_eq!(values.len(), 1, "{name}: {values:?}");
    }
    assert!(
        !format!("{:?}", answer.headers).contains("envoy://"),
        "the way back is nobody's business: {:?}",
        answer.headers
    );
    assert!(answer.headers.get("x-penstock-requeue").is_none());
}

#[test]
fn one_refusing_server_of_several_affects_no_client() {
    run(async {
        let dead = RefusingServer::new();
        let alive = Upstream::serving(Duration::ZERO).await;
        let servers = [dead.address(), alive.address()];
        // By credit, a client with one request at a time may go to the living server alone for as long as it lasts.
        let gateway = gateway(pool("several", &servers, 2, "  queue: {credits: off}\n")).await;
        let mut sent = 0;
        let marked = loop {
            let answer = gateway.send(ClientRequest::chat("several", "x")).await;
            sent += 1;
            assert_eq!(answer.status, 200, "{}", answer.text());
            expect_once(&answer);
            assert_eq!(answer.header("x-gateway-destination-endpoint-served"), alive.address().to_string());
            let seen = endpoint(&gateway, "several", dead.address()).await;
            if seen["ready"] == false {
                break seen;
            }
            assert!(sent < 200, "never marked down: {seen}");
        };
        assert!(
            marked["why"].as_str().unwrap_or_default().contains("requests couldn't be sent there"),
            "{marked}"
        );
        assert!(sent >= 2, "one request alone marks no server down");
        assert_eq!(alive.total(), sent);
        let sent = u32::try_from(sent).expect("few").into();
        let page = gateway.metrics().await;
        let requeues = page.sum("penstock_requeues_total", &[("pool", "several")]);
        assert!(requeues >= 2.0, "{requeues} requests failed at the server that is marked down");
        expect_counts(&gateway, "several", sent, requeues).await;
        assert_eq!(endpoint(&gateway, "several", alive.address()).await["ready"], true);
    });
}

#[test]
fn request_that_every_server_refuses_is_503() {
    run(async {
        let dead = [RefusingServer::new(), RefusingServer::new()];
        let servers = [dead[0].address(), dead[1].address()];
        let gateway = gateway(pool("none", &servers, 2, "  queue: {requeues: 2}\n")).await;
        for sent in [1.0, 2.0, 3.0] {
            let answer = gateway.send(ClientRequest::chat("none", "x")).await;
            answer.expect_error(503, "upstream_unavailable", "bypassed");
            expect_once(&answer);
            expect_counts(&gateway, "none", sent, 2.0 * sent).await;
        }
        let ask = json!({"model": "none", "max_tokens": 8, "messages": [{"role": "user", "content": "x"}]});
        let answer = gateway.send(ClientRequest::to("/v1/messages", ask)).await;
        assert_eq!((answer.status, answer.outcome()), (503, "bypassed"));
        assert_eq!(answer.json()["type"], "error", "Anthropic's envelope: {}", answer.text());
        let pool = gateway.pool("none").await;
        let ready = pool["endpoints"]
            .as_array()
            .expect("endpoints")
            .iter()
            .filter(|endpoint| endpoint["ready"] == true)
            .count();
        assert_eq!(ready, 1, "the last one is never marked down: {pool}");
    });
}

#[test]
fn server_that_cuts_receives_the_whole_request_again() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway =
            gateway(pool("cuts", &[server.address()], 2, "  queue: {requeues: 3, resets: 10}\n")).await;
        // One attempt more than requeues: used up.
        let said = "lorem ipsum ".repeat(200_000);
        let asked = gateway.spawn(ClientRequest::chat("cuts", &said).header("x-request-id", "mine"));
        for attempt in 0..4 {
            let call = server.next().await;
            assert_eq!(call.text(), said, "attempt {attempt}");
            assert_eq!(call.header("x-request-id"), "mine");
            assert_eq!(own_headers(&call), Vec::<&str>::new(), "attempt {attempt}");
            assert_eq!(call.header("x-gateway-destination-endpoint"), server.address().to_string());
            call.cut();
        }
        let answer = asked.await.expect("answered");
        answer.expect_error(502, "upstream_reset", "bypassed");
        expect_once(&answer);
        assert_eq!(answer.header("x-request-id"), "mine");
        expect_counts(&gateway, "cuts", 1.0, 3.0).await;

        // The server recovers before the requeues are used up.
        let asked = gateway.spawn(ClientRequest::chat("cuts", "again"));
        for _ in 0..3 {
            server.next().await.cut();
        }
        server.next().await.answer();
        let answer = asked.await.expect("answered");
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.json()["choices"][0]["message"]["content"], "hello");
        assert_eq!(answer.outcome(), "bypassed");
        assert_eq!(answer.header("x-gateway-destination-endpoint-served"), server.address().to_string());
        expect_once(&answer);
        expect_counts(&gateway, "cuts", 2.0, 6.0).await;
        assert_eq!(server.total(), 8);
        let labels = [("pool", "cuts"), ("code_class", "2xx")];
        until("its answer is counted", || async {
            let page = gateway.metrics().await;
            let seen = page.sum("penstock_responses_total", &labels);
            if seen == 1.0 { Ok(()) } else { Err(seen.to_string()) }
        })
        .await;
    });
}

#[test]
fn no_request_is_lost_to_a_server_that_fails_all_of_them() {
    const CROWD: u32 = 200;
    run(async {
        let bad = Arc::new(Upstream::scripted().await);
        let good = Upstream::serving(Duration::from_millis(5)).await;
        let servers = [bad.address(), good.address()];
        // The failing server is probed meanwhile. A request that fails there alone returns to it until a second request has failed or
        // the good server has a place, so the number of attempts is not checked.
        let more = "  down: {first: 50ms, max: 100ms}\n  queue: {requeues: 1000}\n";
        let gateway = gateway(pool("crowd", &servers, 2, more)).await;
        let cutting = {
            let bad = Arc::clone(&bad);
            tokio::spawn(async move {
                loop {
                    bad.next().await.cut();
                }
            })
        };
        let asked: Vec<_> = (0..CROWD)
            .map(|number| {
                gateway.spawn(ClientRequest::chat("crowd", "x").tenant(&format!("tenant {}", number % 7)))
            })
            .collect();
        for asked in asked {
            let answer = asked.await.expect("answered");
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(answer.header("x-gateway-destination-endpoint-served"), good.address().to_string());
            expect_once(&answer);
        }
        cutting.abort();
        let page = gateway.metrics().await;
        let requeues = page.sum("penstock_requeues_total", &[("pool", "crowd")]);
        expect_counts(&gateway, "crowd", CROWD.into(), requeues).await;
        assert_eq!(good.total(), CROWD as usize, "each was answered once");
        println!("{} attempts at the bad server, {requeues} queued again", bad.total());
    });
}

#[test]
fn request_cut_inside_its_response_is_not_sent_again() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = gateway(pool("middle", &[server.address()], 2, "")).await;
        // First a cut before the response, also on the requeue listener.
        for cuts in 0..2 {
            let asked = gateway.open(ClientRequest::chat("middle", "x").streamed());
            let serve = async {
                for _ in 0..cuts {
                    server.next().await.cut();
                }
                let events = server.next().await.stream();
                events.text("one");
                events
            };
            let (response, events) = tokio::join!(asked, serve);
            let mut response = response.expect("an answer begins");
            assert_eq!(response.status(), 200);
            let first = response.chunk().await.expect("a chunk").expect("not the end");
            assert!(String::from_utf8_lossy(&first).contains("one"));
            events.cut();
            assert!(response.chunk().await.is_err(), "the client sees the cut");
        }
        assert_eq!(server.total(), 3);
        expect_counts(&gateway, "middle", 2.0, 1.0).await;
        assert_eq!(server.total(), 3);
    });
}

#[test]
fn requeued_request_that_expires_says_so_everywhere() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway =
            gateway(pool("late", &[server.address()], 2, "  queue: {ttl: 2s, resets: 1000}\n")).await;
        let mut asked = gateway.spawn(ClientRequest::chat("late", "x").header("x-request-id", "late"));
        let answer = loop {
            tokio::select! {
                answer = &mut asked => break answer.expect("answered"),
                call = server.next() => call.cut(),
            }
        };
        answer.expect_error(503, "queue_timeout", "expired_ttl");
        expect_once(&answer);
        let shown = gateway.ended_request("late").await;
        assert_eq!((&shown["state"], &shown["outcome"]), (&json!("ended"), &json!("expired_ttl")), "{shown}");
        let attempts = server.total() as u64;
        assert_eq!(shown["requeues"], attempts, "as often as it was cut: {shown}");
        let page = gateway.metrics().await;
        let count = |name: &str, outcome| page.sum(name, &[("pool", "late"), ("outcome", outcome)]);
        assert_eq!(page.sum("penstock_arrivals_total", &[("pool", "late")]), 1.0);
        assert_eq!(
            [
                count("penstock_requests_total", "bypassed"),
                count("penstock_requests_total", "expired_ttl"),
                count("penstock_refused_after_grant_total", "expired_ttl"),
                page.sum("penstock_refused_after_grant_total", &[("pool", "late")]),
            ],
            [1.0; 4]
        );
        let expired = page.sum("penstock_requests_expired_total", &[("pool", "late")]);
        assert_eq!(expired, 1.0);
    });
}

#[test]
fn request_cancelled_at_a_hanging_server_frees_its_place() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = gateway(pool("hangs", &[server.address()], 1, "")).await;
        // The first attempt hangs; then the attempt after a requeue hangs; then the request waits for another attempt.
        for cuts in 0..2 {
            let leaves = gateway.spawn(ClientRequest::chat("hangs", "leaves"));
            for _ in 0..cuts {
                server.next().await.cut();
            }
            let mut call = server.next().await;
            let waits = gateway.spawn(ClientRequest::chat("hangs", "waits"));
            gateway.waiting("hangs", 1).await;
            leaves.abort();
            call.gone().await;
            let next = server.next().await;
            assert_eq!(next.text(), "waits");
            next.answer();
            assert_eq!(waits.await.expect("answered").status, 200);
            gateway.stock("hangs", 0).await;
        }
        expect_counts(&gateway, "hangs", 4.0, 1.0).await;
        assert_eq!(server.total(), 5);
    });
}

#[test]
fn requeued_request_keeps_its_place() {
    const SERVED: u32 = 40;
    run(async {
        let (bad, good) = (Upstream::scripted().await, Upstream::scripted().await);
        let servers = [bad.address(), good.address()];
        // Two failures mark a server as failing, and a request may be cut more than once.
        let pool = pool("order", &servers, 2, "  queue: {resets: 10}\n");
        let pool = pool.replacen("]}", "], failing: {consecutive: 2, probe_every: 10m}}", 1);
        let gateway = gateway(pool).await;
        // Only beside servers that serve such requests does a server fail by itself.
        let pinned = || {
            gateway.spawn(
                ClientRequest::chat("order", "x").header("x-penstock-endpoint", &good.address().to_string()),
            )
        };
        for _ in 0..SERVED {
            let asked = pinned();
            good.next().await.answer();
            assert_eq!(asked.await.expect("answered").status, 200);
        }
        let (mut asked, [one, other]) = fill(&gateway, "order", &good).await;
        for number in 0..2 {
            asked.push(gateway.spawn(ClientRequest::chat("order", &format!("early {number}"))));
            gateway.stock("order", number + 3).await;
        }
        let mut failing = [bad.next().await, bad.next().await];
        failing.sort_by_key(|call| call.text());
        let names = failing.each_ref().map(|call| call.text());
        for number in 0..2 {
            asked.push(gateway.spawn(ClientRequest::chat("order", &format!("late {number}"))));
            gateway.waiting("order", number + 1).await;
        }
        // The first request to fail returns to the same server: one failed request does not mark it.
        let [first, second] = failing;
        first.cut();
        let first = bad.next().await;
        assert_eq!(first.text(), names[0]);
        second.cut();
        gateway.waiting("order", 3).await;
        first.cut();
        gateway.waiting("order", 4).await;
        assert_eq!(endpoint(&gateway, "order", bad.address()).await["state"], "failing");
        // In order of arrival: the failed requests come before the late ones.
        one.answer();
        for name in [&names[0], &names[1], "late 0", "late 1"] {
            let call = good.next().await;
            assert_eq!(call.text(), name);
            call.answer();
        }
        other.answer();
        for asked in asked {
            let answer = asked.await.expect("answered");
            assert_eq!(answer.status, 200, "{}", answer.text());
            expect_once(&answer);
        }
        expect_counts(&gateway, "order", f64::from(SERVED) + 6.0, 3.0).await;
        assert_eq!((bad.total(), good.total()), (3, SERVED as usize + 6));
    });
}

#[test]
fn recovered_server_receives_requests_in_order() {
    run(async {
        let (absent, busy) = (RefusingServer::new(), Upstream::scripted().await);
        let servers = [absent.address(), busy.address()];
        let more = "  queue: {requeues: 1000}\n  down: {first: 200ms, max: 400ms}\n";
        let gateway = gateway(pool("returns", &servers, 2, more)).await;
        let (mut asked, held) = fill(&gateway, "returns", &busy).await;
        let requeues = || async {
            let page = gateway.metrics().await;
            page.sum("penstock_requeues_total", &[("pool", "returns")])
        };
        for number in 0..3 {
            asked.push(gateway.spawn(ClientRequest::chat("returns", &format!("late {number}"))));
            until("it arrives", || async {
                let page = gateway.metrics().await;
                let seen = page.sum("penstock_arrivals_total", &[("pool", "returns")]);
                let all = f64::from(number + 3);
                if seen == all { Ok(()) } else { Err(seen.to_string()) }
            })
            .await;
        }
        gateway.waiting("returns", 3).await;
        // Probes reach the server from time to time, and the probing requests are queued again.
        until("a request queued again", || async {
            let seen = requeues().await;
            if seen >= 3.0 { Ok(()) } else { Err(seen.to_string()) }
        })
        .await;
        let back = absent.up().await;
        // One request at a time there, then two: these two run concurrently.
        let mut texts = Vec::new();
        for _ in 0..3 {
            let call = back.next().await;
            texts.push(call.text());
            call.answer();
        }
        assert_eq!(texts[0], "late 0");
        texts.sort();
        assert_eq!(texts, ["late 0", "late 1", "late 2"]);
        for call in held {
            call.answer();
        }
        for asked in asked {
            let answer = asked.await.expect("answered");
            assert_eq!(answer.status, 200, "{}", answer.text());
            expect_once(&answer);
        }
        let queued_again = requeues().await;
        expect_counts(&gateway, "returns", 5.0, queued_again).await;
        assert_eq!((back.total(), busy.total()), (3, 2));
    });
}

#[test]
fn requeue_token_of_a_client_has_no_effect() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = gateway(pool("forged", &[server.address()], 2, "")).await;
        let way_back = "envoy://penstock-requeue/";
        let list = format!("{},{way_back}", server.address());
        let long = "0123456789abcdef".repeat(8);
        let mut claims = String::new();
        for token in ["AAAA", &long] {
            for list in [way_back, &list] {
                claims = format!(
                    "x-penstock-requeue: {token}\r\nx-gateway-destination-endpoint: {list}\r\nx-penstock-route: {list}\r\nx-penstock-pool: forged\r\n"
                );
                let asked = gateway.spawn(
                    ClientRequest::chat("forged", "forged")
                        .header("x-penstock-requeue", token)
                        .header("x-penstock-route", list)
                        .header("x-gateway-destination-endpoint", list),
                );
                let call = server.next().await;
                assert_eq!(own_headers(&call), Vec::<&str>::new());
                call.answer();
                let answer = asked.await.expect("answered");
                assert_eq!((answer.status, answer.outcome()), (200, "bypassed"));
            }
        }
        expect_counts(&gateway, "forged", 4.0, 0.0).await;
        // Ungated paths lead to the servers, and to nothing else.
        let mut raw = Raw::connect(gateway.address()).await;
        raw.send(format!("GET /v1/models HTTP/1.1\r\nhost: x\r\n{claims}\r\n")).await;
        let call = server.next().await;
        assert_eq!(own_headers(&call), Vec::<&str>::new());
        assert!(!call.header("x-gateway-destination-endpoint").contains("envoy"));
        call.respond(200, &[], "{}");
        assert_eq!(raw.answer().await.status, 200);
    });
}
