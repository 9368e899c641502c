//! Endpoints of a DNS name while a gateway runs: a name without an address is no endpoint, and a name server that fails says nothing.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use penstock_tests::gateway::config;
use penstock_tests::{ClientRequest, Gateway, NameAnswer, NameServer, Upstream, run, until};
use serde_json::Value;

const NAME: &str = "vllm.test";

fn by_name(server: &Upstream, resolver: &NameServer) -> String {
    let (port, resolver) = (server.address().port(), resolver.address());
    format!(
        "- name: a\n  endpoints: {{dns: {{name: {NAME}, port: {port}, refresh: 20ms, resolver: ['{resolver}']}}}}\n"
    )
}

/// Waits until the pool's page satisfies the condition.
async fn until_pool(gateway: &Gateway, name: &str, condition: impl Fn(&Value) -> bool) {
    until(name, || async {
        let pool = gateway.pool("a").await;
        if condition(&pool) { Ok(()) } else { Err(format!("{} {}", pool["discovery"], pool["endpoints"])) }
    })
    .await;
}

/// The addresses of the endpoints that may get requests.
fn listed(pool: &Value) -> Vec<&str> {
    let endpoints = pool["endpoints"].as_array().into_iter().flatten();
    let listed =
        endpoints.filter(|endpoint| endpoint["why"] != "no longer listed; running requests may finish");
    listed.filter_map(|endpoint| endpoint["address"].as_str()).collect()
}

#[test]
fn a_name_without_an_address_takes_endpoints_away_and_a_failing_name_server_does_not() {
    run(async {
        let names = NameServer::start().await;
        let first = Upstream::scripted().await;
        // Another server at the same port, as the next pod of a Service has it.
        let second = Upstream::scripted_at(SocketAddr::from(([127, 0, 0, 2], first.address().port()))).await;
        names.set(NAME, NameAnswer::ServFail);
        let gateway = Gateway::start(&config("", &[by_name(&first, &names)])).await;
        let ready = gateway.get("/readyz").await.expect("an answer");
        assert_eq!(ready.status, 503, "{}", ready.text());
        assert!(ready.text().contains("Server Failure"), "{}", ready.text());

        names.set(NAME, NameAnswer::Addresses(vec![Ipv4Addr::LOCALHOST]));
        let runs = gateway.spawn(ClientRequest::chat("m", "runs"));
        let call = first.next().await;
        until("readiness", || async {
            let ready = gateway.get("/readyz").await?;
            if ready.status == 200 { Ok(()) } else { Err(ready.text()) }
        })
        .await;

        names.set(NAME, NameAnswer::ServFail);
        until_pool(&gateway, "the failure shows", |pool| pool["discovery"]["up"] == false).await;
        let reason = gateway.pool("a").await["discovery"]["reason"].to_string();
        assert!(reason.contains(NAME) && reason.contains("Server Failure"), "{reason}");
        let metrics = gateway.metrics().await;
        assert_eq!(metrics.sum("penstock_discovery_up", &[("pool", "a")]), 0.0);
        let meanwhile = gateway.spawn(ClientRequest::chat("m", "meanwhile"));
        first.next().await.answer();
        assert_eq!(meanwhile.await.expect("answered").status, 200);

        // Scaled to zero: requests wait, and what runs goes on.
        for nothing in [NameAnswer::NoData, NameAnswer::NoName] {
            names.set(NAME, nothing);
            until_pool(&gateway, "no endpoint", |pool| listed(pool).is_empty()).await;
        }
        until_pool(&gateway, "the reason", |pool| {
            let discovery = &pool["discovery"];
            discovery["up"] == true && discovery["reason"].to_string().contains("doesn't exist")
        })
        .await;
        let advice = gateway.pool("a").await["advice"].to_string();
        assert!(advice.contains("the pool has no endpoint: vllm.test. doesn't exist"), "{advice}");
        let waits = gateway.spawn(ClientRequest::chat("m", "waits"));
        gateway.waiting("a", 1).await;
        call.answer();
        assert_eq!(runs.await.expect("answered").status, 200);

        names.set(NAME, NameAnswer::Addresses(vec![Ipv4Addr::new(127, 0, 0, 2)]));
        second.next().await.answer();
        assert_eq!(waits.await.expect("answered").status, 200);
        assert_eq!(first.total(), 2, "the old address gets nothing more");
        assert_eq!(gateway.pool("a").await["discovery"]["reason"], Value::Null);
    });
}

#[test]
fn localhost_needs_no_name_server() {
    run(async {
        let server = Upstream::serving(Duration::ZERO).await;
        let port = server.address().port();
        let pool = format!("- name: a\n  endpoints: {{dns: {{name: localhost, port: {port}}}}}\n");
        let gateway = Gateway::start(&config("", &[pool])).await;
        let answer = gateway.send(ClientRequest::chat("m", "hello")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    });
}
