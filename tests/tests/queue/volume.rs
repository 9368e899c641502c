//! Many requests: the servers never exceed the bound, no request is left at the end, and every request is accounted for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use penstock_tests::gateway::config;
use penstock_tests::{Answer, ClientRequest, Gateway, Upstream, run_alone};

const REQUESTS: usize = 10_000;
const CLIENTS: usize = 64;
/// The bound of each server; the pool's is three times that.
const UPPER: usize = 4;

#[test]
fn ten_thousand_requests_stay_within_the_bound_and_add_up() {
    run_alone(async {
        // The servers answer once the bound has been reached; they must never exceed it.
        let servers = Upstream::several(3, Duration::from_micros(500), 3 * UPPER).await;
        let addresses: Vec<_> = servers.iter().map(|s| format!("'{}'", s.address())).collect();
        let pools = format!(
            "- name: p\n  endpoints: {{static: [{}]}}\n\
             \x20 stock: {{watermark_per_backend: 3, lower_bound_per_backend: 3, upper_bound_per_backend: {UPPER}, extra_for_idle_flows: 0}}\n\
             \x20 queue: {{total_capacity: 48, flow_capacity: 14}}\n  arbitration: {{flows: {{weights: {{t0: 3}}}}}}\n",
            addresses.join(", ")
        );
        let gateway = Gateway::start(&config("", &[pools])).await;

        let next = Arc::new(AtomicUsize::new(0));
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            let (next, client, url) =
                (next.clone(), gateway.client().clone(), gateway.url("/v1/chat/completions"));
            clients.push(tokio::spawn(async move {
                let mut outcomes = BTreeMap::<String, usize>::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= REQUESTS {
                        return outcomes;
                    }
                    let priority = ["critical", "default", "default", "sheddable"][number % 4];
                    let ask = ClientRequest::chat("m", &"word ".repeat(number % 50))
                        .with("stream", number % 3 == 0)
                        .body();
                    let request = client.post(&url).json(&ask);
                    let request = request
                        .header("x-penstock-tenant", format!("t{}", number % 5))
                        .header("x-penstock-priority", priority);
                    let answer =
                        Answer::read(request.send().await.expect("an answer")).await.expect("a whole answer");
                    let admitted = matches!(answer.outcome(), "bypassed" | "leased" | "dispatched");
                    assert_eq!(answer.status == 200, admitted, "{} {}", answer.status, answer.text());
                    *outcomes.entry(answer.outcome().to_owned()).or_default() += 1;
                }
            }));
        }
        let mut seen = BTreeMap::<String, usize>::new();
        for client in clients {
            for (outcome, count) in client.await.expect("a client ends well") {
                *seen.entry(outcome).or_default() += count;
            }
        }
        gateway.stock("p", 0).await;
        gateway.waiting("p", 0).await;
        assert_eq!(seen.values().sum::<usize>(), REQUESTS, "{seen:?}");
        assert!(seen["dispatched"] > 0 && seen["bypassed"] > 0, "{seen:?}");

        assert_eq!(servers[0].peak_together(), 3 * UPPER, "the bound is reached and not passed: {seen:?}");
        for server in &servers {
            assert!(server.peak() <= UPPER, "{} at one server", server.peak());
        }
        let served: usize = servers.iter().map(Upstream::total).sum();
        let leased = seen.get("leased").copied().unwrap_or_default();
        assert_eq!(served, seen["bypassed"] + leased + seen["dispatched"]);

        let page = gateway.metrics().await;
        assert_eq!(page.sum("penstock_arrivals_total", &[]), REQUESTS as f64);
        assert_eq!(page.sum("penstock_requests_total", &[]), REQUESTS as f64);
        for (outcome, count) in &seen {
            let counted = page.sum("penstock_requests_total", &[("outcome", outcome)]);
            assert_eq!(counted, *count as f64, "{outcome}: {seen:?}");
        }
        assert_eq!(page.sum("penstock_stock_level", &[]), 0.0);
        assert_eq!(page.sum("penstock_queue_length", &[]), 0.0);
    });
}
