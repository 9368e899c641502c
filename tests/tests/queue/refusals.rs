//! Every rejection with its status, code, outcome and error format.

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::ports::free_address;
use penstock_tests::{Call, ClientRequest, Gateway, Upstream, run, until};
use serde_json::json;
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;

const POOLS: [(&str, &str); 7] = [
    ("ttl", "  queue: {ttl: 1s}\n"),
    ("total", "  queue: {total_capacity: 2}\n"),
    ("keep", "  queue: {total_capacity: 1, overflow: reject}\n"),
    ("flow", "  queue: {flow_capacity: 1}\n"),
    ("off", "  queue: {enabled: false}\n  capacity_status: 429\n"),
    ("deadline", ""),
    ("critical", "  queue: {admit: critical_only}\n"),
];

struct Fixture {
    gateway: Gateway,
    servers: Vec<(&'static str, Upstream)>,
    live: Upstream,
}

impl Fixture {
    fn server(&self, pool: &str) -> &Upstream {
        &self.servers.iter().find(|(name, _)| *name == pool).expect("a pool of this file").1
    }

    /// Fills a pool's only place until the test answers the call.
    async fn fill(&self, pool: &str) -> (JoinHandle<penstock_tests::Answer>, Call) {
        let held = self.gateway.spawn(ClientRequest::chat(pool, "held").tenant("holder"));
        (held, self.server(pool).next().await)
    }
}

/// The `retry-after-ms` of an answer.
fn advised_ms(answer: &penstock_tests::Answer) -> u64 {
    let text = answer.header("retry-after-ms");
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

async fn shared() -> &'static Fixture {
    static SHARED: OnceCell<Fixture> = OnceCell::const_new();
    SHARED
        .get_or_init(|| async {
            let mut servers = Vec::new();
            let mut pools = Vec::new();
            for (name, more) in POOLS {
                let server = Upstream::scripted().await;
                pools.push(pool(name, name, &[&server], &format!("{}{more}", slots(1))));
                servers.push((name, server));
            }
            let live = Upstream::serving(std::time::Duration::ZERO).await;
            let dead = free_address();
            let unchecked = "  health: {path: null}\n  queue: {requeues: 3}\n";
            // Two pools, because a request beside others of its pool waits for its turn.
            for name in ["dead", "advised"] {
                pools.push(format!(
                    "- name: {name}\n  models: [{name}]\n  endpoints: {{static: ['{dead}']}}\n{unchecked}"
                ));
            }
            let both = format!("['{dead}', '{}']", live.address());
            pools.push(format!(
                "- name: both\n  models: [both]\n  endpoints: {{static: {both}}}\n{unchecked}"
            ));
            Fixture { gateway: Gateway::start(&config("", &pools)).await, servers, live }
        })
        .await
}

#[test]
fn request_that_waits_longer_than_ttl_is_rejected() {
    run(async {
        let all = shared().await;
        let (held, call) = all.fill("ttl").await;
        let answer = all.gateway.send(ClientRequest::chat("ttl", "late")).await;
        answer.expect_error(503, "queue_timeout", "expired_ttl");
        assert_eq!(answer.message(), "Request timed out after 1s in queue");
        assert!(
            answer.header("x-penstock-queue-ms").parse::<u64>().is_ok_and(|ms| ms >= 1_000),
            "{:?}",
            answer.headers
        );
        call.answer();
        assert_eq!(held.await.expect("answered").status, 200);
        assert_eq!(all.server("ttl").total(), 1, "what expired never reached a server");
        let page = all.gateway.metrics().await;
        assert_eq!(page.sum("penstock_requests_expired_total", &[("pool", "ttl")]), 1.0);
        assert_eq!(page.sum("penstock_requests_total", &[("pool", "ttl"), ("outcome", "expired_ttl")]), 1.0);
    });
}

#[test]
fn deadline_that_passes_in_the_queue_ends_the_request() {
    run(async {
        let all = shared().await;
        let (held, call) = all.fill("deadline").await;
        let ask = ClientRequest::chat("deadline", "late").header("x-penstock-deadline-ms", "50");
        let answer = all.gateway.send(ask).await;
        answer.expect_error(504, "deadline_exceeded", "deadline_exceeded");
        assert_eq!(answer.header("x-should-retry"), "false");
        // A header that is not a number of milliseconds is ignored.
        let ask = ClientRequest::chat("deadline", "patient").header("x-penstock-deadline-ms", "soon");
        let patient = all.gateway.spawn(ask);
        all.gateway.waiting("deadline", 1).await;
        call.answer();
        all.server("deadline").next().await.answer();
        for asked in [held, patient] {
            assert_eq!(asked.await.expect("answered").status, 200);
        }
    });
}

#[test]
fn full_queue_rejects_and_displaces() {
    run(async {
        let all = shared().await;
        let gateway = &all.gateway;
        let (held, call) = all.fill("total").await;
        let first = gateway.spawn(ClientRequest::chat("total", "first").tenant("a"));
        gateway.waiting("total", 1).await;
        let second = gateway.spawn(ClientRequest::chat("total", "second").tenant("a"));
        gateway.waiting("total", 2).await;

        let newcomer = gateway.send(ClientRequest::chat("total", "x").tenant("b")).await;
        newcomer.expect_error(503, "too_many_flows", "rejected_too_many_flows");
        let known = gateway.send(ClientRequest::chat("total", "x").tenant("a")).await;
        known.expect_error(503, "queue_full", "rejected_queue_full");

        let critical =
            gateway.spawn(ClientRequest::chat("total", "critical").tenant("b").priority("critical"));
        second.await.expect("answered").expect_error(503, "displaced", "displaced");
        call.answer();
        let next = all.server("total").next().await;
        assert_eq!(next.text(), "critical");
        next.answer();
        all.server("total").next().await.answer();
        for asked in [held, first, critical] {
            assert_eq!(asked.await.expect("answered").status, 200);
        }
        let page = gateway.metrics().await;
        assert_eq!(page.sum("penstock_preemptions_total", &[("pool", "total")]), 1.0);
        assert_eq!(page.sum("penstock_queue_push_errors_total", &[("error_type", "queue_full")]), 1.0);
        // It was in the queue, so its push had succeeded.
        let displaced = [("error_type", "displaced")];
        assert_eq!(page.sum("penstock_queue_push_errors_total", &displaced), 0.0);
        assert_eq!(page.sum("penstock_requests_total", &[("outcome", "displaced")]), 1.0);
    });
}

#[test]
fn full_queue_without_displacement_rejects_critical_requests_too() {
    run(async {
        let all = shared().await;
        let (held, call) = all.fill("keep").await;
        let waits = all.gateway.spawn(ClientRequest::chat("keep", "waits").priority("sheddable"));
        all.gateway.waiting("keep", 1).await;
        let refused =
            all.gateway.send(ClientRequest::chat("keep", "x").tenant("b").priority("critical")).await;
        refused.expect_error(503, "too_many_flows", "rejected_too_many_flows");
        call.answer();
        all.server("keep").next().await.answer();
        for asked in [held, waits] {
            assert_eq!(asked.await.expect("answered").status, 200);
        }
    });
}

#[test]
fn flow_capacity_limits_one_flow() {
    run(async {
        let all = shared().await;
        let (held, call) = all.fill("flow").await;
        let waits = all.gateway.spawn(ClientRequest::chat("flow", "a").tenant("a"));
        all.gateway.waiting("flow", 1).await;
        let refused = all.gateway.send(ClientRequest::chat("flow", "x").tenant("a")).await;
        refused.expect_error(503, "flow_capacity", "rejected_flow_capacity");
        let other = all.gateway.spawn(ClientRequest::chat("flow", "b").tenant("b"));
        all.gateway.waiting("flow", 2).await;
        call.answer();
        for _ in 0..2 {
            all.server("flow").next().await.answer();
        }
        for asked in [held, waits, other] {
            assert_eq!(asked.await.expect("answered").status, 200);
        }
    });
}

#[test]
fn without_a_queue_a_request_that_cannot_bypass_is_rejected() {
    run(async {
        let all = shared().await;
        let (held, call) = all.fill("off").await;
        let refused = all.gateway.send(ClientRequest::chat("off", "x")).await;
        refused.expect_error(429, "not_queued", "rejected_policy");
        let message =
            json!({"model": "off", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]});
        let refused = all.gateway.send(ClientRequest::to("/v1/messages", message)).await;
        assert_eq!((refused.status, refused.outcome()), (429, "rejected_policy"));
        let body = refused.json();
        assert_eq!(body["type"], "error", "Anthropic's envelope: {body}");
        assert!(body["error"]["type"].is_string() && body["error"]["message"].is_string(), "{body}");
        assert!(body["error"].get("code").is_none(), "{body}");
        assert!(!refused.header("retry-after").is_empty());
        call.answer();
        assert_eq!(held.await.expect("answered").status, 200);
        all.gateway.stock("off", 0).await;
        let again = all.gateway.spawn(ClientRequest::chat("off", "x"));
        all.server("off").next().await.answer();
        assert_eq!(again.await.expect("answered").outcome(), "bypassed");
    });
}

#[test]
fn critical_only_queues_only_critical_requests() {
    run(async {
        let all = shared().await;
        let (held, call) = all.fill("critical").await;
        let refused = all.gateway.send(ClientRequest::chat("critical", "x")).await;
        refused.expect_error(503, "not_queued", "rejected_policy");
        let waits = all.gateway.spawn(ClientRequest::chat("critical", "y").priority("critical"));
        all.gateway.waiting("critical", 1).await;
        call.answer();
        all.server("critical").next().await.answer();
        for asked in [held, waits] {
            assert_eq!(asked.await.expect("answered").status, 200);
        }
    });
}

#[test]
fn refusing_server_is_skipped_or_reported() {
    run(async {
        let all = shared().await;
        let refused = all.gateway.send(ClientRequest::chat("dead", "x")).await;
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (503, "upstream_unavailable"),
            "{}",
            refused.text()
        );
        assert_eq!(refused.outcome(), "bypassed", "its admission's outcome: {:?}", refused.headers);
        all.gateway.stock("dead", 0).await;
        for _ in 0..4 {
            let served = all.gateway.send(ClientRequest::chat("both", "x")).await;
            assert_eq!(served.status, 200, "{}", served.text());
            assert_eq!(
                served.header("x-gateway-destination-endpoint-served"),
                all.live.address().to_string()
            );
        }
        all.gateway.stock("both", 0).await;
    });
}

#[test]
fn clients_of_refusing_servers_are_advised_to_wait_as_long_as_the_servers_have_refused() {
    run(async {
        let all = shared().await;
        let refused = until("an advice above the shortest", || async {
            let refused = all.gateway.send(ClientRequest::chat("advised", "x")).await;
            match advised_ms(&refused) {
                0..=1_000 => Err(refused.header("retry-after-ms").to_owned()),
                _ => Ok(refused),
            }
        })
        .await;
        assert_eq!(refused.code(), "upstream_unavailable");
        let advised_ms = advised_ms(&refused);
        assert!(advised_ms <= 33_000, "{advised_ms}");
        assert_eq!(refused.header("retry-after"), advised_ms.div_ceil(1_000).to_string());
    });
}

#[test]
fn cut_before_the_response_is_502_and_cut_inside_it_reaches_the_client() {
    run(async {
        let server = Upstream::scripted().await;
        let gateway =
            Gateway::start(&config("", &[pool("p", "'*'", &[&server], "  queue: {requeues: 3}\n")])).await;
        let asked = gateway.spawn(ClientRequest::chat("m", "x"));
        // The server cuts every retry as well.
        let answer = loop {
            tokio::select! {
                call = server.next() => call.cut(),
                () = finished(&asked) => break asked.await.expect("answered"),
            }
        };
        assert_eq!((answer.status, answer.code().as_str()), (502, "upstream_reset"), "{}", answer.text());
        gateway.stock("p", 0).await;

        let opened = tokio::spawn(
            gateway
                .client()
                .post(gateway.url("/v1/chat/completions"))
                .json(&ClientRequest::chat("m", "x").streamed().body())
                .send(),
        );
        let events = server.next().await.stream();
        events.text("one");
        let mut response = opened.await.expect("no panic").expect("headers");
        assert!(response.chunk().await.expect("the first event").is_some());
        events.cut();
        let rest = loop {
            match response.chunk().await {
                Ok(Some(_)) => {}
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        assert!(rest.is_err(), "a cut answer must not look whole");
        gateway.stock("p", 0).await;
    });
}

async fn finished<T>(task: &JoinHandle<T>) {
    until("an answer", || async { if task.is_finished() { Ok(()) } else { Err("none".to_owned()) } }).await;
}
