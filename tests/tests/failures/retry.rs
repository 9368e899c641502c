//! Where a request goes after a model server failed it, and when: no retry exceeds a bound, and a request waits for a server that
//! restarts. A server sees no internal header. Requests are counted at the servers.

use std::net::SocketAddr;

use penstock_tests::gateway::config;
use penstock_tests::{Answer, Call, ClientRequest, Gateway, RefusingServer, Upstream, run, until};
use tokio::task::JoinHandle;

/// A gateway with one pool without health checks, with `slots` concurrent requests per server.
async fn gateway(servers: &[SocketAddr], slots: u32, queue: &str) -> Gateway {
    let addresses: Vec<_> = servers.iter().map(|server| format!("'{server}'")).collect();
    let pool = format!(
        "- name: p\n  models: [p]\n  endpoints: {{static: [{}]}}\n  health: {{path: null}}\n  stock: \
         {{lower_bound_per_backend: {slots}, upper_bound_per_backend: {slots}, watermark_per_backend: {slots}}}\n  \
         queue: {{{queue}}}\n",
        addresses.join(", ")
    );
    Gateway::start(&config("", &[pool])).await
}

fn ask(gateway: &Gateway, text: &str) -> JoinHandle<Answer> {
    gateway.spawn(ClientRequest::chat("p", text))
}

async fn expect_served(asked: Vec<JoinHandle<Answer>>) {
    for asked in asked {
        let answer = asked.await.expect("answered");
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

/// Waits until so many requests have been requeued.
async fn requeued(gateway: &Gateway, count: f64) {
    until("requests were requeued", || async {
        let seen = gateway.metrics().await.sum("penstock_requeues_total", &[("pool", "p")]);
        if seen >= count { Ok(()) } else { Err(seen.to_string()) }
    })
    .await;
}

#[test]
fn retry_of_a_killed_server_waits_for_a_place_at_the_other() {
    run(async {
        let (killed, survivor) = (Upstream::scripted().await, Upstream::scripted().await);
        let gateway = gateway(&[killed.address(), survivor.address()], 1, "").await;
        let mut asked = vec![ask(&gateway, "a"), ask(&gateway, "b")];
        let (lost, held): (Call, Call) = tokio::join!(killed.next(), survivor.next());
        asked.push(ask(&gateway, "c"));
        gateway.waiting("p", 1).await;
        // The process ends, so its connections are cut and new ones are refused.
        drop(killed);
        lost.cut();
        requeued(&gateway, 2.0).await;
        assert_eq!(survivor.in_flight(), 1);
        held.answer();
        for _ in 0..2 {
            let call = survivor.next().await;
            assert!(survivor.arrived().await.is_none());
            call.answer();
        }
        expect_served(asked).await;
        assert_eq!((survivor.peak(), survivor.total()), (1, 3));
    });
}

#[test]
fn requests_wait_for_a_lone_server_that_restarts() {
    run(async {
        let stopped = RefusingServer::new();
        let gateway = gateway(&[stopped.address()], 1, "ttl: 60s").await;
        let mut asked = Vec::new();
        for number in 0..6 {
            asked.push(ask(&gateway, &number.to_string()));
            let arrived = f64::from(number + 1);
            until("it arrived", || async {
                let page = gateway.metrics().await;
                let seen = page.sum("penstock_arrivals_total", &[("pool", "p")]);
                if seen >= arrived { Ok(()) } else { Err(seen.to_string()) }
            })
            .await;
        }
        // Three attempts in milliseconds would have ended them long before.
        requeued(&gateway, 8.0).await;
        let server = stopped.up().await;
        for number in 0..6 {
            let call = server.next().await;
            assert_eq!(call.text(), number.to_string(), "in order of arrival");
            call.answer();
        }
        expect_served(asked).await;
        assert_eq!((server.peak(), server.total()), (1, 6));
    });
}

#[test]
fn ttl_ends_the_wait_for_a_server() {
    run(async {
        let stopped = RefusingServer::new();
        let gateway = gateway(&[stopped.address()], 1, "ttl: 1s").await;
        let asked = [ask(&gateway, "a"), ask(&gateway, "b")];
        for asked in asked {
            let answer = asked.await.expect("answered");
            assert_eq!(answer.status, 503, "{}", answer.text());
            assert_eq!(answer.json()["error"]["code"], "queue_timeout", "{}", answer.text());
            assert_eq!(answer.json()["error"]["message"], "Request timed out after 1s in queue");
        }
        // Each counts as failed: as a granted request without an answer by an endpoint, or as one that expired, or as both. Then its
        // second outcome is counted apart.
        let page = gateway.metrics().await;
        let labels = [("pool", "p"), ("endpoint", ""), ("code_class", "5xx")];
        let answered = page.sum("penstock_responses_total", &labels);
        let expired = page.sum("penstock_requests_expired_total", &[("pool", "p")]);
        let both = page.sum("penstock_refused_after_grant_total", &[("pool", "p")]);
        assert!(
            answered >= 1.0 && expired >= 1.0 && (answered + expired - both - 2.0).abs() < 0.5,
            "{answered} {expired} {both}"
        );
    });
}

#[test]
fn request_that_makes_its_server_cut_does_not_hold_up_others() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = gateway(&[server.address()], 1, "ttl: 60s").await;
        let bad = ask(&gateway, "bad");
        server.next().await.cut();
        for number in 0..3 {
            let good = ask(&gateway, &number.to_string());
            loop {
                let call = server.next().await;
                if call.text() == "bad" {
                    call.cut();
                } else {
                    call.answer();
                    break;
                }
            }
            expect_served(vec![good]).await;
        }
        let call = server.next().await;
        assert_eq!(call.text(), "bad");
        call.answer();
        expect_served(vec![bad]).await;
    });
}

#[test]
fn server_sees_only_the_documented_headers_of_a_request_and_of_its_retries() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway = gateway(&[server.address()], 2, "").await;
        let claims = [
            ("x-penstock-tenant", "acme"),
            ("x-penstock-user", "me"),
            ("x-penstock-priority", "critical"),
            ("x-penstock-class", "batch"),
            ("x-penstock-deadline-ms", "60000"),
        ];
        let mut request = ClientRequest::chat("p", "x");
        for (name, value) in claims {
            request = request.header(name, value);
        }
        let asked = gateway.spawn(request);
        for attempt in 0..2 {
            let call = server.next().await;
            let names = call.headers.keys().map(|name| name.as_str());
            let mut seen: Vec<_> = names.filter(|name| name.starts_with("x-penstock-")).collect();
            seen.sort_unstable();
            let mut documented = claims.map(|(name, _)| name);
            documented.sort_unstable();
            assert_eq!(seen, documented, "attempt {attempt}");
            if attempt == 0 {
                call.cut();
            } else {
                call.answer();
            }
        }
        assert_eq!(asked.await.expect("answered").status, 200);
    });
}
