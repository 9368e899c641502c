//! Admission credits through a real Envoy: busy filters admit requests by themselves, no bound is exceeded, and every request is counted
//! once, whatever happens to the companion.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use penstock_tests::gateway::{config, pool};
use penstock_tests::{Answer, ClientRequest, Companion, Envoy, Gateway, Upstream, run, until};
use reqwest::Client;

const SERVERS: usize = 2;
/// Concurrent requests at one server.
const PLACES: usize = 40;

fn pools(servers: &[Upstream], queue: &str) -> Vec<String> {
    let servers: Vec<_> = servers.iter().collect();
    let keys = format!(
        "  stock: {{watermark_per_backend: {PLACES}, lower_bound_per_backend: {PLACES}, upper_bound_per_backend: {PLACES}, extra_for_idle_flows: 0}}\n\
         \x20 queue: {{total_capacity: 1000, flow_capacity: 1000, ttl: 60s{queue}}}\n\
         \x20 companion_down: {{hold: 60s}}\n"
    );
    vec![pool("p", "'*'", &servers, &keys)]
}

/// Clients that send requests one after the other until so many are sent. Returns the answers' outcomes.
async fn load(client: &Client, url: &str, clients: usize, requests: usize) -> BTreeMap<String, usize> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for _ in 0..clients {
        let (next, client, url) = (next.clone(), client.clone(), url.to_owned());
        tasks.push(tokio::spawn(async move {
            let mut outcomes = BTreeMap::<String, usize>::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= requests {
                    return outcomes;
                }
                let ask = ClientRequest::chat("m", "hi").with("stream", number % 3 == 0).body();
                let request = client.post(&url).json(&ask);
                let tenant = format!("t{}", number % 5);
                let sent = request.header("x-penstock-tenant", tenant).send().await;
                let answer = Answer::read(sent.expect("an answer")).await.expect("a whole answer");
                assert_eq!(answer.status, 200, "{}", answer.text());
                *outcomes.entry(answer.outcome().to_owned()).or_default() += 1;
            }
        }));
    }
    let mut all = BTreeMap::new();
    for task in tasks {
        for (outcome, count) in task.await.expect("no client fails") {
            *all.entry(outcome).or_default() += count;
        }
    }
    all
}

/// Sends requests until a filter has admitted some by itself: on a busy machine it takes a while until one of them is busy.
async fn leased(client: &Client, url: &str, clients: usize) {
    until("a filter admits requests by itself", || async {
        let outcomes = load(client, url, clients, 500).await;
        if outcomes.contains_key("leased") { Ok(()) } else { Err(format!("{outcomes:?}")) }
    })
    .await;
}

/// The outcomes that the companion has counted.
async fn counted(companion: &Companion) -> BTreeMap<String, usize> {
    let page = companion.metrics().await;
    let count = |outcome: &str| page.sum("penstock_requests_total", &[("outcome", outcome)]) as usize;
    let outcomes = ["bypassed", "leased", "dispatched"].map(|outcome| (outcome.to_owned(), count(outcome)));
    outcomes.into_iter().filter(|(_, count)| *count > 0).collect()
}

#[test]
fn a_busy_filter_admits_requests_by_itself_and_every_request_is_counted_once() {
    run(async {
        let servers = Upstream::several(SERVERS, Duration::from_millis(1), 0).await;
        let companion = Companion::start("", &pools(&servers, "")).await;
        let envoy = Envoy::start(&companion, "envoy").await;
        let url = envoy.url("/v1/chat/completions");
        let outcomes = load(&Client::new(), &url, 8, 3_000).await;
        println!("figure: outcomes of 3,000 requests of 8 clients: {outcomes:?}");
        assert!(outcomes["leased"] > 1_000, "{outcomes:?}");
        until("the companion has counted every request as its client saw it", || async {
            let counted = counted(&companion).await;
            if counted == outcomes { Ok(()) } else { Err(format!("{counted:?}")) }
        })
        .await;
        let page = companion.metrics().await;
        let all = |name: &str| page.sum(name, &[]) as usize;
        assert_eq!(all("penstock_lease_admissions_total"), outcomes["leased"]);
        assert_eq!(all("penstock_arrivals_total"), 3_000);
        assert_eq!(all("penstock_responses_total"), 3_000);
        companion.stock("p", 0).await;
        until("the idle filter has returned its credit", || async {
            let given = companion.metrics().await.sum("penstock_lease_credit", &[]);
            if given == 0.0 { Ok(()) } else { Err(given.to_string()) }
        })
        .await;
    });
}

#[test]
fn no_bound_is_exceeded_when_a_crowd_comes_while_filters_hold_credit() {
    run(async {
        let servers = Upstream::several(SERVERS, Duration::from_millis(20), 0).await;
        let companion = Companion::start("", &pools(&servers, "")).await;
        let envoy = Envoy::start(&companion, "envoy").await;
        let url = envoy.url("/v1/chat/completions");
        let client = Client::new();
        leased(&client, &url, 8).await;
        let crowd = load(&client, &url, 200, 2_000).await;
        assert!(crowd.get("dispatched").is_some_and(|waited| *waited > 1_000), "{crowd:?}");
        for server in &servers {
            assert!(server.peak() <= PLACES, "{} at one server", server.peak());
        }
        companion.stock("p", 0).await;
        companion.waiting("p", 0).await;
    });
}

#[test]
fn leased_requests_outlive_the_companion_and_are_counted_by_the_next() {
    run(async {
        let (servers, gate) = Upstream::gated(SERVERS, Duration::ZERO).await;
        gate.open();
        let mut companion = Companion::start("", &pools(&servers, "")).await;
        let envoy = Envoy::start(&companion, "envoy").await;
        let url = envoy.url("/v1/chat/completions");
        let client = Client::new();
        leased(&client, &url, 4).await;
        gate.close();
        let running = {
            let (client, url) = (client.clone(), url.clone());
            tokio::spawn(async move { load(&client, &url, 4, 4).await })
        };
        until("four requests are at the servers", || async {
            let seen: usize = servers.iter().map(Upstream::in_flight).sum();
            if seen == 4 { Ok(()) } else { Err(seen.to_string()) }
        })
        .await;
        companion.kill().await;
        companion.restart().await;
        companion.stock("p", 4).await;
        gate.open();
        running.await.expect("every request is answered");
        companion.stock("p", 0).await;
    });
}

#[test]
fn without_credits_every_request_asks() {
    run(async {
        let servers = Upstream::several(SERVERS, Duration::from_millis(1), 0).await;
        let addresses: Vec<_> = servers.iter().collect();
        let keys = format!(
            "  stock: {{watermark_per_backend: {PLACES}, extra_for_idle_flows: 0}}\n  queue: {{credits: off}}\n"
        );
        let gateway = Gateway::start(&config("", &[pool("p", "'*'", &addresses, &keys)])).await;
        let url = gateway.url("/v1/chat/completions");
        let outcomes = load(gateway.client(), &url, 8, 1_000).await;
        assert_eq!(outcomes, BTreeMap::from([("bypassed".to_owned(), 1_000)]));
    });
}
