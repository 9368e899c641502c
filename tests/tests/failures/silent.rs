//! Model servers that accept requests and send nothing, at once or in the middle of an answer: `timeouts` of a pool.

use std::sync::Arc;
use std::time::Duration;

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::variant::is_native;
use penstock_tests::{ClientRequest, Gateway, Upstream, run, until};

/// Longer than any healthy answer of these tests takes.
const FIRST_BYTE: Duration = Duration::from_millis(700);

async fn gateway(servers: &[&Upstream], places: u32, keys: &str) -> Gateway {
    let more = format!(
        "{}  timeouts: {{{keys}}}\n  health: {{interval: 100ms, unhealthy_after: 1}}\n",
        slots(places)
    );
    Gateway::start(&config("", &[pool("p", "", servers, &more)])).await
}

fn chat(tenant: &str) -> ClientRequest {
    ClientRequest::chat("m", tenant).tenant(tenant)
}

/// The endpoint as the status shows it.
async fn endpoint(gateway: &Gateway, server: &Upstream) -> serde_json::Value {
    let pool = gateway.pool("p").await;
    let endpoints = pool["endpoints"].as_array().cloned().unwrap_or_default();
    let found = endpoints.into_iter().find(|endpoint| endpoint["address"] == server.address().to_string());
    found.unwrap_or_else(|| panic!("{} isn't in {pool}", server.address()))
}

/// A stream whose answer is cut: what came before.
async fn cut_stream(gateway: &Gateway, ask: ClientRequest) -> String {
    let mut response = gateway.open(ask.streamed()).await.expect("headers");
    assert_eq!(response.status(), 200);
    let mut received = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) => received.extend_from_slice(&chunk),
            Ok(None) => panic!("the stream ends as if complete: {}", String::from_utf8_lossy(&received)),
            Err(_) => return String::from_utf8_lossy(&received).into_owned(),
        }
    }
}

#[test]
fn request_that_only_silent_servers_get_is_answered_504_after_two_attempts() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = gateway(&[&server], 4, "first_byte: 700ms").await;
        for (round, ask) in [chat("a"), chat("b").streamed()].into_iter().enumerate() {
            let asked = gateway.spawn(ask);
            let _held = [server.next().await, server.next().await];
            asked.await.expect("answered").expect_error(504, "upstream_timeout", "bypassed");
            assert_eq!(server.total(), 2 * (round + 1));
        }
        gateway.stock("p", 0).await;
        assert_eq!(endpoint(&gateway, &server).await["state"], "healthy", "there is no other server");
    });
}

#[test]
fn request_that_may_not_go_elsewhere_is_answered_504_after_one_attempt() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway =
            gateway(&[&server], 4, "first_byte: 700ms}\n  queue: {requeue_on: [connect, 503]").await;
        let asked = gateway.spawn(chat("a"));
        let _held = server.next().await;
        asked.await.expect("answered").expect_error(504, "upstream_timeout", "bypassed");
        assert_eq!(server.total(), 1);
    });
}

#[test]
fn wait_in_the_queue_after_a_silent_server_is_no_silence() {
    run(async {
        let (hung, busy) = (Upstream::scripted().await, Upstream::scripted().await);
        let gateway = gateway(&[&hung, &busy], 1, "first_byte: 700ms").await;
        let [first, second] = ["a", "b"].map(|tenant| gateway.spawn(chat(tenant).streamed()));
        let _held = hung.next().await;
        let streaming = busy.next().await.stream();
        streaming.text("one");
        hung.set_healthy(false);
        // The other request comes in again and waits, for longer than `first_byte`, beside the stream.
        gateway.waiting("p", 1).await;
        tokio::time::sleep(3 * FIRST_BYTE).await;
        streaming.finish(1, 1);
        let third = busy.next().await;
        third.answer();
        for asked in [first, second] {
            assert_eq!(asked.await.expect("answered").status, 200);
        }
    });
}

#[test]
fn late_answer_is_the_clients_if_no_other_has_begun_unless_its_attempt_was_ended() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = gateway(&[&server], 4, "first_byte: 700ms").await;
        let asked = gateway.spawn(chat("a"));
        let mut late = server.next().await;
        let mut second = server.next().await;
        if is_native() {
            // The native filter ends the attempt when it sends the request elsewhere.
            late.gone().await;
            second.answer_with(8, 40);
            assert_eq!(asked.await.expect("answered").status, 200);
        } else {
            late.answer_with(8, 40);
            assert_eq!(asked.await.expect("answered").status, 200);
            second.gone().await;
        }
        gateway.stock("p", 0).await;
        until("the late answer is charged", || async {
            let page = gateway.metrics().await;
            let output = page.sum("penstock_output_tokens_total", &[("pool", "p")]);
            if output >= 40.0 { Ok(()) } else { Err(format!("{output}")) }
        })
        .await;
    });
}

#[test]
fn stream_that_begins_after_its_time_may_take_as_long_again_for_its_first_byte() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = gateway(&[&server], 4, "first_byte: 700ms").await;
        let asked = gateway.spawn(chat("a").streamed());
        let mut late = server.next().await;
        let mut second = server.next().await;
        let events = if is_native() {
            late.gone().await;
            second.stream()
        } else {
            let events = late.stream();
            second.gone().await;
            events
        };
        // The headers have gone to the client, or wait.
        events.text("hello");
        events.finish(8, 4);
        assert_eq!(asked.await.expect("answered").text().matches("hello").count(), 1);
        gateway.stock("p", 0).await;
    });
}

#[test]
fn stream_that_stops_is_cut_and_what_came_is_charged() {
    run(async {
        let stalled = Upstream::scripted().await;
        let gateway = gateway(&[&stalled], 4, "idle: 700ms").await;
        let client = async { cut_stream(&gateway, chat("a")).await };
        let server = async {
            let events = stalled.next().await.stream();
            for _ in 0..12 {
                // Slower than a fast server, and never silent for as long as the limit.
                tokio::time::sleep(Duration::from_millis(100)).await;
                events.text("word ");
            }
            events.gone().await;
        };
        let (received, ()) = tokio::join!(client, server);
        assert_eq!(received.matches("word").count(), 12, "{received}");
        gateway.stock("p", 0).await;
        let page = gateway.metrics().await;
        assert!(page.sum("penstock_output_tokens_total", &[("pool", "p")]) >= 12.0);
    });
}

#[test]
fn stream_that_begins_with_headers_alone_is_cut() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = gateway(&[&server], 4, "first_byte: 700ms").await;
        let client = async { cut_stream(&gateway, chat("a")).await };
        let server = async { server.next().await.stream().gone().await };
        let (received, ()) = tokio::join!(client, server);
        assert_eq!(received, "");
        gateway.stock("p", 0).await;
    });
}

#[test]
fn server_that_stops_in_the_middle_is_kept_away_while_another_streams() {
    run(async {
        let (stalled, good) = (Arc::new(Upstream::scripted().await), Upstream::serving(Duration::ZERO).await);
        let gateway = gateway(&[&stalled, &good], 4, "first_byte: 20s, idle: 300ms").await;
        let stall = stalled.clone();
        let serving = tokio::spawn(async move {
            loop {
                let events = stall.next().await.stream();
                events.text("one");
                tokio::spawn(async move { events.gone().await });
            }
        });
        let mut cut = 0;
        until("the endpoint is kept away", || {
            let round = cut;
            cut += 1;
            let gateway = &gateway;
            let stalled = &stalled;
            async move {
                let asked =
                    (0..4).map(|number| gateway.open(chat(&format!("t{}", number + round % 2)).streamed()));
                for asked in futures_util::future::join_all(asked).await {
                    drop(asked.expect("headers").bytes().await);
                }
                let shown = endpoint(gateway, stalled).await;
                if shown["state"] == "failing" { Ok(()) } else { Err(shown.to_string()) }
            }
        })
        .await;
        serving.abort();
        let shown = endpoint(&gateway, &stalled).await;
        assert!(shown["reason"].as_str().is_some_and(|reason| reason.contains("silence")), "{shown}");
        assert_eq!(endpoint(&gateway, &good).await["state"], "healthy");
    });
}

#[test]
fn errors_after_a_silent_server_reach_the_client_at_once() {
    run(async {
        let (hung, other) = (Upstream::scripted().await, Upstream::scripted().await);
        let keys = "first_byte: 700ms}\n  queue: {ttl: 3s}\n  model: {transient: 1s";
        let gateway = gateway(&[&hung, &other], 1, keys).await;
        for status in [400, 500, 503] {
            let pinned = chat("b").header("x-penstock-endpoint", &other.address().to_string());
            let pinned = gateway.spawn(pinned.streamed());
            let busy = other.next().await.stream();
            busy.text("one");
            let asked = gateway.spawn(chat("a"));
            let held = hung.next().await;
            assert_eq!(held.header("x-envoy-hedge-on-per-try-timeout"), "");
            assert_eq!(held.header("x-envoy-upstream-rq-per-try-timeout-ms"), "");
            hung.set_healthy(false);
            gateway.waiting("p", 1).await;
            if status == 503 {
                // Nothing becomes free within its time in the queue.
                let answer = asked.await.expect("answered");
                answer.expect_error(503, "queue_timeout", "expired_ttl");
                assert_eq!(answer.header("x-penstock-status"), "");
                busy.finish(1, 1);
            } else {
                busy.finish(1, 1);
                // A 500 is tried again once.
                for _ in 0..=u32::from(status == 500) {
                    other.next().await.respond(status, &[("x-penstock-status", "200")], "mine");
                }
                let answer = asked.await.expect("answered");
                assert_eq!((answer.status, answer.text().as_str()), (status, "mine"), "{answer:?}");
                assert_eq!(answer.header("x-penstock-status"), "");
            }
            assert_eq!(pinned.await.expect("answered").status, 200);
            drop(held);
            hung.set_healthy(true);
            until("the endpoint is ready", || async {
                let shown = endpoint(&gateway, &hung).await;
                if shown["ready"] == true { Ok(()) } else { Err(shown.to_string()) }
            })
            .await;
        }
    });
}
