//! Clients that disconnect: while queued, before the response, during the response, and before the request is complete.

use std::path::Path;

use penstock_tests::gateway::{LISTEN_BUT_GRPC, config, pool, slots};
use penstock_tests::raw::{self, Raw};
use penstock_tests::{ClientRequest, Gateway, Upstream, run, until};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

const POOLS: [&str; 4] = ["queued", "thinking", "streaming", "speaking"];

struct Fixture {
    gateway: Gateway,
    servers: Vec<Upstream>,
}

impl Fixture {
    fn server(&self, pool: &str) -> &Upstream {
        let index = POOLS.iter().position(|name| *name == pool).expect("a pool of this file");
        &self.servers[index]
    }

    async fn outcomes(&self, pool: &str, outcome: &str, count: f64) {
        until(&format!("{count} {outcome} in {pool}"), || async {
            let labels = [("pool", pool), ("outcome", outcome)];
            let seen = self.gateway.metrics().await.sum("penstock_requests_total", &labels);
            if seen == count { Ok(()) } else { Err(seen.to_string()) }
        })
        .await;
    }
}

async fn shared() -> &'static Fixture {
    static SHARED: OnceCell<Fixture> = OnceCell::const_new();
    SHARED
        .get_or_init(|| async {
            let mut servers = Vec::new();
            let mut pools = Vec::new();
            for name in POOLS {
                let server = Upstream::scripted().await;
                pools.push(pool(name, name, &[&server], &slots(1)));
                servers.push(server);
            }
            Fixture { gateway: Gateway::start(&config("", &pools)).await, servers }
        })
        .await
}

#[test]
fn request_cancelled_in_the_queue_never_reaches_a_server() {
    run(async {
        let all = shared().await;
        let (gateway, server) = (&all.gateway, all.server("queued"));
        let held = gateway.spawn(ClientRequest::chat("queued", "held"));
        let call = server.next().await;
        let leaves = gateway.spawn(ClientRequest::chat("queued", "leaves"));
        gateway.waiting("queued", 1).await;
        let stays = gateway.spawn(ClientRequest::chat("queued", "stays"));
        gateway.waiting("queued", 2).await;
        leaves.abort();
        gateway.waiting("queued", 1).await;
        call.answer();
        let next = server.next().await;
        assert_eq!(next.text(), "stays");
        next.answer();
        for asked in [held, stays] {
            assert_eq!(asked.await.expect("answered").status, 200);
        }
        gateway.stock("queued", 0).await;
        assert_eq!(server.total(), 2);
        all.outcomes("queued", "cancelled", 1.0).await;
        let page = gateway.metrics().await;
        assert_eq!(page.sum("penstock_requests_cancelled_total", &[("pool", "queued")]), 1.0);
        assert_eq!(page.sum("penstock_arrivals_total", &[("pool", "queued")]), 3.0);
    });
}

#[test]
fn request_cancelled_before_the_response_frees_its_place() {
    run(async {
        let all = shared().await;
        let (gateway, server) = (&all.gateway, all.server("thinking"));
        let leaves = gateway.spawn(ClientRequest::chat("thinking", "leaves"));
        let mut call = server.next().await;
        let waits = gateway.spawn(ClientRequest::chat("thinking", "waits"));
        gateway.waiting("thinking", 1).await;
        leaves.abort();
        call.gone().await;
        let next = server.next().await;
        assert_eq!(next.text(), "waits");
        next.answer();
        assert_eq!(waits.await.expect("answered").status, 200);
        gateway.stock("thinking", 0).await;
        // The request was admitted: that outcome is counted once.
        all.outcomes("thinking", "bypassed", 1.0).await;
        all.outcomes("thinking", "dispatched", 1.0).await;
        all.outcomes("thinking", "cancelled", 0.0).await;
    });
}

#[test]
fn request_cancelled_during_the_response_frees_its_place() {
    run(async {
        let all = shared().await;
        let (gateway, server) = (&all.gateway, all.server("streaming"));
        let ask = ClientRequest::chat("streaming", "x").streamed().body();
        let opened =
            tokio::spawn(gateway.client().post(gateway.url("/v1/chat/completions")).json(&ask).send());
        let events = server.next().await.stream();
        events.text("one");
        let mut response = opened.await.expect("no panic").expect("headers");
        assert!(response.chunk().await.expect("an event").is_some());
        gateway.stock("streaming", 1).await;
        drop(response);
        events.gone().await;
        gateway.stock("streaming", 0).await;
        let again = gateway.spawn(ClientRequest::chat("streaming", "again"));
        server.next().await.answer();
        assert_eq!(again.await.expect("answered").outcome(), "bypassed");
    });
}

#[test]
fn request_cancelled_before_its_body_ends_is_never_registered() {
    run(async {
        let all = shared().await;
        let (gateway, server) = (&all.gateway, all.server("speaking"));
        for _ in 0..3 {
            let mut client = Raw::connect(gateway.address()).await;
            client.send(raw::post("/v1/chat/completions", "content-length: 500\r\n")).await;
            client.send("{\"model\":\"speaking\",\"messages\":[{\"role\":\"us").await;
        }
        let asked = gateway.spawn(ClientRequest::chat("speaking", "whole"));
        let call = server.next().await;
        assert_eq!(call.text(), "whole");
        call.answer();
        assert_eq!(asked.await.expect("answered").status, 200);
        gateway.stock("speaking", 0).await;
        gateway.waiting("speaking", 0).await;
        assert_eq!(gateway.metrics().await.sum("penstock_arrivals_total", &[("pool", "speaking")]), 1.0);
        assert_eq!(server.total(), 1);
    });
}

/// The line of a request in the access log; `None` until Envoy has written it.
fn logged(file: &Path, request_id: &str) -> Option<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.find(|line| line["request_id"] == request_id)
}

#[test]
fn client_that_leaves_the_queue_has_status_499_in_the_access_log() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("access.json");
        let server = Upstream::scripted().await;
        let listen = format!("{LISTEN_BUT_GRPC}, grpc: '127.0.0.1:0', access_log: '{}'}}\n", file.display());
        let pool = pool("p", "'*'", &[&server], &slots(1));
        let gateway = Gateway::start(&format!("{listen}pools:\n{pool}")).await;
        let ask = |id: &str| ClientRequest::chat("m", id).header("x-request-id", id);
        let held = gateway.spawn(ask("held"));
        let call = server.next().await;
        let leaves = gateway.spawn(ask("leaves"));
        gateway.waiting("p", 1).await;
        leaves.abort();
        gateway.waiting("p", 0).await;
        call.answer();
        assert_eq!(held.await.expect("answered").status, 200);
        let [held, left] = until("both lines", || async {
            let lines = ["held", "leaves"].map(|id| logged(&file, id));
            match lines {
                [Some(held), Some(left)] => Ok([held, left]),
                missing => Err(format!("{missing:?}")),
            }
        })
        .await;
        assert_eq!(
            (&left["status"], &left["outcome"], &left["flags"]),
            (&json!(499), &Value::Null, &json!("DC"))
        );
        assert_eq!((&held["status"], &held["outcome"]), (&json!(200), &json!("bypassed")));
        assert_eq!(held["endpoint"], server.address().to_string());
        assert_eq!(held["path"], "/v1/chat/completions");
    });
}
