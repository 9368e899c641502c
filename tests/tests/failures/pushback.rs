//! Model servers that refuse requests by themselves, with 429 or 503: the request goes elsewhere or waits, and the server's bound falls
//! and rises. Requests are counted at the servers.

use std::net::SocketAddr;
use std::time::Duration;

use penstock_tests::gateway::config;
use penstock_tests::{Answer, Call, ClientRequest, Gateway, Upstream, run, until};
use serde_json::Value;
use tokio::task::JoinHandle;

/// A gateway with one pool without health checks, with `slots` concurrent requests per server; a server that is marked down stays so
/// for the length of a test.
async fn gateway(servers: &[&Upstream], slots: u32, queue: &str) -> Gateway {
    let addresses: Vec<_> = servers.iter().map(|server| format!("'{}'", server.address())).collect();
    let pool = format!(
        "- name: p\n  models: [p]\n  endpoints: {{static: [{}]}}\n  health: {{path: null}}\n  down: {{first: 10m, max: 10m}}\n  \
         stock: {{lower_bound_per_backend: {slots}, upper_bound_per_backend: {slots}, watermark_per_backend: {slots}}}\n  \
         queue: {{{queue}}}\n",
        addresses.join(", ")
    );
    Gateway::start(&config("", &[pool])).await
}

fn ask(gateway: &Gateway, text: &str) -> JoinHandle<Answer> {
    gateway.spawn(ClientRequest::chat("p", text))
}

/// Refuses as vLLM does when its queue is full.
fn refuse(call: Call, status: u16) {
    refuse_with(call, status, &[]);
}

fn refuse_with(call: Call, status: u16, headers: &[(&str, &str)]) {
    let headers = [&[("content-type", "application/json")], headers].concat();
    call.respond(status, &headers, r#"{"error": {"message": "too busy", "code": 429}}"#);
}

async fn expect_served(asked: Vec<JoinHandle<Answer>>) {
    for asked in asked {
        let answer = asked.await.expect("answered");
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

async fn endpoint(gateway: &Gateway, address: SocketAddr) -> Value {
    let pool = gateway.pool("p").await;
    let endpoints = pool["endpoints"].as_array().cloned().unwrap_or_default();
    endpoints
        .into_iter()
        .find(|endpoint| endpoint["address"] == address.to_string())
        .unwrap_or_else(|| panic!("{address} isn't in {pool}"))
}

/// Waits until the server's bound is `bound`, and the bound by its refusals is `pushback`.
async fn bounded(gateway: &Gateway, server: &Upstream, bound: u64, pushback: Option<u64>) -> Value {
    let expected = (Value::from(bound), pushback.map_or(Value::Null, Value::from));
    until(&format!("a bound of {bound}, {pushback:?}"), || async {
        let shown = endpoint(gateway, server.address()).await;
        if (&shown["bound"], &shown["pushback"]) == (&expected.0, &expected.1) {
            Ok(())
        } else {
            Err(shown.to_string())
        }
    })
    .await;
    endpoint(gateway, server.address()).await
}

/// Waits until so many requests have been refused by this server with this status, and checks that there are no more.
async fn counted(gateway: &Gateway, server: &Upstream, status: &str, count: f64) {
    let address = server.address().to_string();
    let labels = [("pool", "p"), ("endpoint", address.as_str()), ("status", status)];
    until("the refusals are counted", || async {
        let seen = gateway.metrics().await.sum("penstock_endpoint_pushback_total", &labels);
        if seen >= count { Ok(()) } else { Err(seen.to_string()) }
    })
    .await;
    let seen = gateway.metrics().await;
    assert_eq!(seen.sum("penstock_endpoint_pushback_total", &labels), count);
}

async fn requeued(gateway: &Gateway) -> f64 {
    gateway.metrics().await.sum("penstock_requeues_total", &[("pool", "p")])
}

#[test]
fn request_that_one_server_refuses_is_served_by_another() {
    run(async {
        let (busy, free) = (Upstream::scripted().await, Upstream::scripted().await);
        let gateway = gateway(&[&busy, &free], 3, "").await;
        let mut refused = 0;
        // While it runs, the busy server has less to do than the free one, and so is every request's first choice.
        let running = ask(&gateway, "running");
        let running_call = tokio::select! {
            call = busy.next() => {
                refused += 1;
                refuse(call, 503);
                free.next().await
            }
            call = free.next() => call,
        };
        let mut asked = Vec::new();
        for number in 0..12 {
            let status = if number % 2 == 0 { 429 } else { 503 };
            let request = ClientRequest::chat("p", &number.to_string());
            // Some are streams: the head of a refusal is the head of an answer like any other.
            let request = if number % 3 == 0 { request.streamed() } else { request };
            let answer = gateway.spawn(request);
            refuse(busy.next().await, status);
            refused += 1;
            let call = free.next().await;
            assert_eq!(call.text(), number.to_string());
            let names = call.headers.keys().map(|name| name.as_str());
            let own: Vec<_> = names
                .filter(|name| name.starts_with("x-penstock-") || name.starts_with("x-envoy-ret"))
                .collect();
            assert_eq!(own, Vec::<&str>::new());
            call.answer();
            asked.push(answer);
        }
        running_call.answer();
        asked.push(running);
        for asked in asked {
            let answer = asked.await.expect("answered");
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(answer.header("x-gateway-destination-endpoint-served"), free.address().to_string());
        }
        assert_eq!(requeued(&gateway).await, f64::from(refused));
        let shown = endpoint(&gateway, busy.address()).await;
        assert_eq!(shown["ready"], true, "it is not marked down: {shown}");
        let why = shown["why"].as_str().unwrap_or_default();
        assert!(why.contains("takes 1 requests at a time"), "{why}");
        let page = gateway.metrics().await;
        let all = page.sum("penstock_endpoint_pushback_total", &[("pool", "p")]);
        assert_eq!(all, f64::from(refused));
    });
}

#[test]
fn bound_falls_to_what_was_in_flight_and_rises_with_each_request_served() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = gateway(&[&server], 4, "ttl: 60s").await;
        let mut asked = Vec::new();
        let mut running = Vec::new();
        for text in ["a", "b"] {
            asked.push(ask(&gateway, text));
            running.push(server.next().await);
        }
        asked.push(ask(&gateway, "c"));
        refuse(server.next().await, 429);
        bounded(&gateway, &server, 2, Some(2)).await;
        counted(&gateway, &server, "429", 1.0).await;
        // What comes now waits behind it, and the server isn't asked again.
        asked.push(ask(&gateway, "d"));
        gateway.waiting("p", 2).await;
        let shown = gateway.pool("p").await;
        assert_eq!((&shown["lower"], &shown["stock"]), (&2.into(), &2.into()), "{shown}");
        assert!(server.arrived().await.is_none());
        // One is served: the refused request has its place, and one more is tried.
        running.remove(0).answer();
        let (third, fourth) = (server.next().await, server.next().await);
        let mut texts = [third.text(), fourth.text()];
        texts.sort_unstable();
        assert_eq!(texts, ["c", "d"]);
        bounded(&gateway, &server, 3, Some(3)).await;
        third.answer();
        bounded(&gateway, &server, 4, None).await;
        fourth.answer();
        running.remove(0).answer();
        expect_served(asked).await;
        counted(&gateway, &server, "429", 1.0).await;
        counted(&gateway, &server, "503", 0.0).await;
    });
}

#[test]
fn no_client_sees_the_refusals_of_a_lone_server() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = gateway(&[&server], 8, "ttl: 60s").await;
        let asked: Vec<_> = (0..20).map(|number| ask(&gateway, &number.to_string())).collect();
        // The server takes three requests at a time and refuses others; it answers none before it has refused one.
        let (mut running, mut served, mut refused) = (Vec::new(), 0, 0);
        while served < 20 {
            let call = tokio::select! {
                biased;
                call = server.next() => call,
                () = tokio::time::sleep(Duration::from_millis(20)), if refused > 0 && !running.is_empty() => {
                    let call: Call = running.remove(0);
                    call.answer();
                    served += 1;
                    continue;
                }
            };
            if running.len() < 3 {
                running.push(call);
            } else {
                refused += 1;
                refuse(call, 503);
            }
        }
        expect_served(asked).await;
        counted(&gateway, &server, "503", f64::from(refused)).await;
        assert_eq!(endpoint(&gateway, server.address()).await["ready"], true);
    });
}

#[test]
fn request_that_an_idle_server_always_refuses_gets_its_answer_and_costs_others_nothing() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = gateway(&[&server], 4, "ttl: 60s").await;
        for round in 0..3 {
            let mut refused = ask(&gateway, "too large");
            let mut times = 0;
            // The server serves others between the attempts, and has nothing else to do then.
            let answer = loop {
                tokio::select! {
                    answer = &mut refused => break answer.expect("answered"),
                    call = server.next() => {
                        assert_eq!(call.text(), "too large");
                        times += 1;
                        refuse(call, 503);
                        let asked = ask(&gateway, "other");
                        loop {
                            let call = server.next().await;
                            if call.text() == "other" {
                                call.answer();
                                break;
                            }
                            times += 1;
                            refuse(call, 503);
                        }
                        assert_eq!(asked.await.expect("answered").status, 200);
                    }
                }
            };
            assert_eq!((answer.status, answer.json()["error"]["message"].as_str()), (503, Some("too busy")));
            assert!(times <= 4, "round {round}: {times} attempts");
        }
        // The first refusal of a request lowers the bound, and each request that is served raises it.
        for number in 0..3 {
            let asked = ask(&gateway, &number.to_string());
            server.next().await.answer();
            expect_served(vec![asked]).await;
        }
        let running: Vec<_> = (0..4).map(|number| ask(&gateway, &number.to_string())).collect();
        until("four run at once again", || async {
            let count = server.in_flight();
            if count == 4 { Ok(()) } else { Err(format!("{count} in flight")) }
        })
        .await;
        for _ in 0..4 {
            server.next().await.answer();
        }
        expect_served(running).await;
    });
}

#[test]
fn ttl_ends_the_wait_for_servers_that_refuse() {
    run(async {
        let servers = [Upstream::scripted().await, Upstream::scripted().await];
        let gateway = gateway(&[&servers[0], &servers[1]], 2, "ttl: 1s").await;
        let mut asked = ask(&gateway, "a");
        let answer = loop {
            tokio::select! {
                answer = &mut asked => break answer.expect("answered"),
                call = servers[0].next() => refuse_with(call, 429, &[("retry-after", "30")]),
                call = servers[1].next() => refuse(call, 503),
            }
        };
        answer.expect_error(503, "queue_timeout", "expired_ttl");
        assert!(!answer.header("retry-after").is_empty());
        assert!(servers.iter().all(|server| server.total() > 0));
        // A refusal of Penstock's own is none of a server.
        let (first, second) = (servers[0].total(), servers[1].total());
        counted(&gateway, &servers[0], "429", f64::from(u32::try_from(first).expect("few"))).await;
        counted(&gateway, &servers[1], "503", f64::from(u32::try_from(second).expect("few"))).await;
    });
}

#[test]
fn client_gets_a_status_that_is_not_in_requeue_on() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = gateway(&[&server], 2, "requeue_on: [connect, reset]").await;
        for status in [429, 503] {
            let asked = ask(&gateway, "a");
            refuse_with(server.next().await, status, &[("retry-after", "7")]);
            let answer = asked.await.expect("answered");
            assert_eq!(answer.status, status, "{}", answer.text());
            assert_eq!(answer.json()["error"]["message"], "too busy", "{}", answer.text());
            assert_eq!(answer.header("retry-after"), "7");
        }
        // A connection that is cut is in the list.
        let asked = ask(&gateway, "b");
        server.next().await.cut();
        server.next().await.answer();
        expect_served(vec![asked]).await;
        gateway.stock("p", 0).await;
        let shown = endpoint(&gateway, server.address()).await;
        assert_eq!(
            (&shown["bound"], &shown["pushback"]),
            (&2.into(), &Value::Null),
            "its answers are no refusals: {shown}"
        );
        counted(&gateway, &server, "429", 0.0).await;
    });
}

#[test]
fn only_the_listed_failures_send_a_request_again() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = gateway(&[&server], 2, "requeue_on: [503]").await;
        let asked = ask(&gateway, "a");
        refuse(server.next().await, 503);
        server.next().await.answer();
        expect_served(vec![asked]).await;
        let asked = ask(&gateway, "b");
        refuse(server.next().await, 429);
        assert_eq!(asked.await.expect("answered").status, 429);
        let asked = ask(&gateway, "c");
        server.next().await.cut();
        asked.await.expect("answered").expect_error(502, "upstream_reset", "bypassed");
        assert_eq!(requeued(&gateway).await, 1.0);
        // A client can't add to them.
        let request = ClientRequest::chat("p", "d")
            .header("x-envoy-retry-on", "5xx,retriable-status-codes")
            .header("x-envoy-retriable-status-codes", "429")
            .header("x-penstock-refused", "1");
        let asked = gateway.spawn(request);
        let call = server.next().await;
        assert_eq!(call.header("x-penstock-refused"), "");
        refuse(call, 429);
        assert_eq!(asked.await.expect("answered").status, 429);
        assert_eq!(requeued(&gateway).await, 1.0);
    });
}

#[test]
fn client_gets_the_servers_own_refusal_when_the_requeues_are_used_up() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = gateway(&[&server], 4, "requeues: 1").await;
        let body = "lorem ipsum ".repeat(200_000);
        let asked = ask(&gateway, &body);
        for _ in 0..2 {
            let call = server.next().await;
            assert_eq!(call.text(), body, "the whole body, again");
            refuse_with(call, 429, &[("retry-after", "9")]);
        }
        let answer = asked.await.expect("answered");
        assert_eq!(answer.status, 429, "{}", answer.text());
        assert_eq!(answer.json()["error"]["message"], "too busy");
        assert_eq!(answer.header("retry-after"), "9");
        assert_eq!(answer.outcome(), "bypassed");
        counted(&gateway, &server, "429", 2.0).await;
        bounded(&gateway, &server, 1, Some(1)).await;
    });
}

#[test]
fn requests_that_share_an_id_are_told_apart() {
    run(async {
        let (busy, free) = (Upstream::scripted().await, Upstream::scripted().await);
        let gateway = gateway(&[&busy, &free], 4, "ttl: 60s").await;
        let mut refused = 0;
        let mut asked = Vec::new();
        for _ in 0..16 {
            let same = ClientRequest::chat("p", "x").header("x-request-id", "same");
            asked.push(gateway.spawn(same));
        }
        for _ in 0..16 {
            loop {
                tokio::select! {
                    call = busy.next() => {
                        refused += 1;
                        refuse(call, 429);
                    }
                    call = free.next() => {
                        call.answer();
                        break;
                    }
                }
            }
        }
        expect_served(asked).await;
        assert!(refused > 0);
        let shown = endpoint(&gateway, busy.address()).await;
        assert_eq!(shown["ready"], true, "{shown}");
    });
}
