//! Clients that leave before the end of an answer, while their server computes on, through a real Envoy.

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::{ClientRequest, Gateway, Upstream, run, until};
use serde_json::{Value, json};

const PLACES: u32 = 4;

/// A gateway in front of a server with four places.
async fn start(server: &Upstream, stock: &str, scrape: &str) -> Gateway {
    let stock = slots(PLACES).replace('}', &format!("{stock}}}"));
    let gateway = Gateway::start(&config("", &[pool("chat", "m", &[server], &(stock + scrape))])).await;
    if scrape.contains("interval") {
        // What runs at the server is known once its page has been read.
        endpoint(&gateway, "its metrics are read", |endpoint| endpoint["foreign"] == 0).await;
    }
    gateway
}

/// Waits until the server's entry of the status is so, and returns it.
async fn endpoint(gateway: &Gateway, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    until(what, || async {
        let endpoint = gateway.pool("chat").await["endpoints"][0].clone();
        if is(&endpoint) { Ok(endpoint) } else { Err(endpoint.to_string()) }
    })
    .await
}

/// `count` clients ask, and leave when their requests are at the server. The server computes on: it holds the calls.
async fn ask_and_leave(gateway: &Gateway, server: &Upstream, count: usize) -> Vec<penstock_tests::Call> {
    let asking: Vec<_> = (0..count).map(|_| gateway.spawn(ClientRequest::chat("m", "leaves"))).collect();
    let mut calls = Vec::new();
    for _ in 0..count {
        calls.push(server.next().await);
    }
    for asked in asking {
        asked.abort();
    }
    for call in &mut calls {
        call.gone().await;
    }
    calls
}

#[test]
fn a_server_that_computes_on_gets_no_more_than_its_bound() {
    run(async {
        let server = Upstream::scripted().await;
        server.report_in_flight();
        let gateway = start(&server, "", "  scrape: {interval: 100ms}\n").await;
        let mut running = ask_and_leave(&gateway, &server, 4).await;
        let held = endpoint(&gateway, "held", |endpoint| endpoint["abandoned"] == 4).await;
        assert_eq!((&held["stock"], &held["foreign"]), (&4.into(), &0.into()), "{held}");

        // Others wait, through several reports, until the server has ended with one.
        let waiting: Vec<_> = (0..5).map(|_| gateway.spawn(ClientRequest::chat("m", "stays"))).collect();
        gateway.waiting("chat", 5).await;
        let advice = gateway.pool("chat").await["advice"].to_string();
        assert!(!advice.contains("didn't come through Penstock"), "{advice}");
        drop(running.pop());
        let first = server.next().await;
        let held = endpoint(&gateway, "one ended", |endpoint| endpoint["abandoned"] == 3).await;
        assert_eq!((&held["stock"], &held["foreign"]), (&4.into(), &0.into()), "{held}");
        gateway.waiting("chat", 4).await;

        drop(running);
        first.answer();
        for _ in 0..4 {
            server.next().await.answer();
        }
        for asked in waiting {
            assert_eq!(asked.await.expect("answered").status, 200);
        }
        endpoint(&gateway, "all ended", |endpoint| endpoint["stock"] == 0 && endpoint["abandoned"] == 0)
            .await;
        assert_eq!(server.peak(), 4, "the bound held");
    });
}

#[test]
fn a_server_that_aborts_has_its_places_back_with_its_next_report() {
    run(async {
        let server = Upstream::scripted().await;
        server.report_in_flight();
        let gateway = start(&server, "", "  scrape: {interval: 100ms}\n").await;
        for _ in 0..3 {
            drop(ask_and_leave(&gateway, &server, 4).await);
        }
        endpoint(&gateway, "all ended", |endpoint| endpoint["stock"] == 0).await;
    });
}

#[test]
fn a_page_is_read_soon_after_a_client_has_left_however_long_its_interval_is() {
    run(async {
        let server = Upstream::scripted().await;
        server.report_in_flight();
        let gateway = start(&server, "", "  scrape: {interval: 1h}\n").await;
        for _ in 0..3 {
            drop(ask_and_leave(&gateway, &server, 4).await);
            endpoint(&gateway, "all ended", |endpoint| endpoint["stock"] == 0).await;
        }
    });
}

#[test]
fn without_metrics_a_place_is_free_at_once_or_after_release_after() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = start(&server, "", "  scrape: {path: null}\n").await;
        let _running = ask_and_leave(&gateway, &server, 4).await;
        endpoint(&gateway, "free", |endpoint| endpoint["stock"] == 0).await;

        let server = Upstream::scripted().await;
        let gateway = start(&server, ", release_after: 700ms", "  scrape: {path: null}\n").await;
        let _running = ask_and_leave(&gateway, &server, 4).await;
        endpoint(&gateway, "held", |endpoint| endpoint["abandoned"] == 4).await;
        let next = gateway.spawn(ClientRequest::chat("m", "next"));
        server.next().await.answer();
        let answer = next.await.expect("answered");
        assert_eq!((answer.status, answer.outcome()), (200, "dispatched"), "it waited");
    });
}

#[test]
fn metrics_that_can_no_longer_be_read_hold_no_place() {
    run(async {
        let server = Upstream::scripted().await;
        server.report_in_flight();
        let gateway = start(&server, "", "  scrape: {interval: 100ms, stale_after: 500ms}\n").await;
        let _running = ask_and_leave(&gateway, &server, 4).await;
        endpoint(&gateway, "held", |endpoint| endpoint["abandoned"] == 4).await;
        server.set_metrics(None);
        endpoint(&gateway, "free", |endpoint| endpoint["stock"] == 0 && endpoint["foreign"].is_null()).await;
    });
}

#[test]
fn a_response_in_the_background_keeps_its_place_until_its_server_has_ended() {
    run(async {
        let server = Upstream::scripted().await;
        server.report(0);
        let gateway = start(&server, "", "  scrape: {interval: 100ms}\n").await;
        let ask = |background: bool| {
            let body =
                json!({"model": "m", "input": "later", "background": background, "max_output_tokens": 100});
            let request = gateway.client().post(gateway.url("/v1/responses")).json(&body);
            tokio::spawn(async move { request.send().await.expect("an answer").status() })
        };
        let acknowledge = |call: penstock_tests::Call| {
            let body = json!({"id": "resp_1", "object": "response", "status": "queued", "output": [], "usage": null});
            call.respond(200, &[("content-type", "application/json")], body.to_string());
        };
        for running in 1..=4 {
            let asked = ask(true);
            let call = server.next().await;
            server.report(running);
            acknowledge(call);
            assert_eq!(asked.await.expect("asked"), 200);
        }
        let held = endpoint(&gateway, "held", |endpoint| endpoint["abandoned"] == 4).await;
        assert_eq!((&held["stock"], &held["state"]), (&4.into(), &"healthy".into()), "{held}");
        // A fifth waits, until the server has ended with one.
        let fifth = ask(true);
        gateway.waiting("chat", 1).await;
        server.report(3);
        let call = server.next().await;
        server.report(4);
        acknowledge(call);
        assert_eq!(fifth.await.expect("asked"), 200);
        server.report(0);
        endpoint(&gateway, "all ended", |endpoint| endpoint["stock"] == 0).await;
        let page = gateway.metrics().await;
        assert_eq!(page.sum("penstock_answers_estimated_total", &[("reason", "background")]), 5.0);
        // One that isn't in the background, with the same answer, has ended.
        let asked = ask(false);
        acknowledge(server.next().await);
        assert_eq!(asked.await.expect("asked"), 200);
        endpoint(&gateway, "it has ended", |endpoint| endpoint["stock"] == 0 && endpoint["abandoned"] == 0)
            .await;
    });
}
