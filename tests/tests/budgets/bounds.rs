//! Bounds that `auto` finds by measurement, in front of a server of which nothing is known.
//!
//! The server runs in real time on a machine that may be busy, so tests wait for what is found and measure no times.

use penstock_tests::gateway::config;
use penstock_tests::mock::{Hardware, Mock};
use penstock_tests::wait::until;
use penstock_tests::{Answer, ClientRequest, Gateway, run};
use tokio::task::JoinSet;

/// An iteration takes 30 ms whatever the batch.
const HARDWARE: Hardware = Hardware { alpha: 30.0, beta: 0.0, gamma: 0.0, noise: 0.0 };
/// Sequences that the server computes at a time.
const BATCH: u64 = 12;

fn auto(server: &Mock, more: &str) -> String {
    let address = server.address();
    let pool = format!(
        "- name: chat\n  endpoints: {{static: ['{address}']}}\n  stock: {{watermark_per_backend: auto, auto_initial: 4}}\n  \
         queue: {{ttl: 10m}}\n  {more}\n"
    );
    config("", &[pool])
}

/// So many clients, each of which asks again when it has its answer, until they are dropped.
fn flood(gateway: &Gateway, clients: usize, is_streamed: bool) -> JoinSet<()> {
    let mut flood = JoinSet::new();
    for client in 0..clients {
        let ask = ClientRequest::chat("m", "tell me").with("max_tokens", 40).with("stream", is_streamed);
        let (url, body) = (gateway.url(ask.path()), ask.body());
        let request =
            gateway.client().post(url).header("x-penstock-tenant", format!("tenant-{}", client % 2));
        let request = request.json(&body);
        flood.spawn(async move {
            loop {
                let again = request.try_clone().expect("the body is in memory");
                let answer = Answer::read(again.send().await.expect("an answer comes")).await;
                assert_eq!(answer.expect("the answer is whole").status, 200);
            }
        });
    }
    flood
}

/// Waits until the only endpoint has about this bound, and the gate's status says that it was measured. One more or less: another is tried
/// now and then.
async fn found(gateway: &Gateway, about: u64) {
    until("the bound is found", || async {
        let pool = gateway.pool("chat").await;
        let bound = pool["endpoints"][0]["bound"].as_u64().unwrap_or_default();
        let is_found = pool["gate"]["source"] == "measured" && bound.abs_diff(about) <= 1;
        if is_found { Ok(()) } else { Err(format!("{} {}", pool["gate"], pool["endpoints"])) }
    })
    .await;
}

#[test]
fn beginnings_of_streams_show_what_a_server_computes_at_a_time() {
    run(async {
        let batch = BATCH.to_string();
        let server = Mock::start_with(HARDWARE, 1, &["--max-num-seqs", &batch]).await;
        let gateway = Gateway::start(&auto(&server, "scrape: {path: null}")).await;
        let pool = gateway.pool("chat").await;
        assert_eq!(pool["gate"]["source"], "exploring", "{pool}");
        let _flood = flood(&gateway, 40, true);
        found(&gateway, BATCH).await;
    });
}

#[test]
fn metrics_show_what_a_server_computes_at_a_time_where_nothing_is_streamed() {
    run(async {
        let batch = BATCH.to_string();
        let server = Mock::start_with(HARDWARE, 1, &["--max-num-seqs", &batch]).await;
        let gateway = Gateway::start(&auto(&server, "scrape: {interval: 200ms}")).await;
        let _flood = flood(&gateway, 40, false);
        found(&gateway, BATCH).await;
    });
}

#[test]
fn fixed_gate_says_so() {
    run(async {
        let server = Mock::start(HARDWARE, 1).await;
        let pool = format!("- name: chat\n  endpoints: {{static: ['{}']}}\n", server.address());
        let gateway = Gateway::start(&config("", &[pool])).await;
        let pool = gateway.pool("chat").await;
        assert_eq!(pool["gate"]["source"], "fixed", "{pool}");
    });
}
