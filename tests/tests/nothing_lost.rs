//! A thousand requests wait while the companion is killed, frozen, or told to end: they live in Envoy, and what is
//! promised about them is counted at the servers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use h2::client::ResponseFuture;
use penstock_tests::gateway::pool;
use penstock_tests::h2c::H2c;
use penstock_tests::upstream::Gate;
use penstock_tests::{Answer, Ask, Companion, Envoy, Upstream, run, until};

const FLOWS: usize = 10;
const EACH: usize = 100;
const WAITING: usize = FLOWS * EACH;
const SERVERS: usize = 2;
/// In flight at one server.
const SLOTS: usize = 4;
const BOUND: usize = SERVERS * SLOTS;

/// One pool with all servers. Of a flow one goes at a time, so that the order at the servers is the order of grants.
fn pools(servers: &[Upstream], more: &str) -> Vec<String> {
    let servers: Vec<_> = servers.iter().collect();
    let keys = format!(
        "  stock: {{watermark_per_backend: {SLOTS}, lower_bound_per_backend: {SLOTS}, upper_bound_per_backend: {SLOTS}}}\n\
         \x20 queue: {{total_capacity: {WAITING}, flow_capacity: {EACH}, ttl: 60s}}\n\
         \x20 arbitration: {{flows: {{max_in_flight: 1, cost: requests}}}}\n{more}"
    );
    vec![pool("p", "'*'", &servers, &keys)]
}

/// Requests that were sent, by what they say.
struct Asked {
    answers: Vec<(String, ResponseFuture)>,
    /// One a flow, and so each at one worker: between workers the order is as exact as their clocks' distance.
    clients: Vec<H2c>,
}

impl Asked {
    /// Fills the servers, then lets [`WAITING`] requests of [`FLOWS`] flows wait; in a flow they arrive by their numbers.
    async fn fill(companion: &Companion, envoy: &Envoy) -> Self {
        let mut asked = Self {
            answers: Vec::new(),
            clients: Vec::new(),
        };
        let mut first = H2c::connect(envoy.gateway()).await;
        for number in 0..BOUND {
            let text = format!("held {number}");
            let ask = Ask::chat("m", &text).tenant(&text);
            asked.answers.push((text, first.ask(&ask).await));
        }
        asked.clients.push(first);
        companion.stock("p", BOUND as u64).await;
        for _ in 0..FLOWS {
            asked.clients.push(H2c::connect(envoy.gateway()).await);
        }
        // The next of a flow is sent when the one before it waits: bodies of one connection may overtake each other.
        for number in 0..EACH {
            for (flow, client) in asked.clients.iter_mut().skip(1).enumerate() {
                let text = format!("flow-{flow} {number}");
                let ask = Ask::chat("m", &text).tenant(&format!("flow-{flow}"));
                asked.answers.push((text, client.ask(&ask).await));
            }
            companion.waiting("p", (FLOWS * (number + 1)) as u64).await;
        }
        asked
    }

    /// All answers.
    async fn answers(&mut self) -> Vec<(String, Answer)> {
        let mut answers = Vec::new();
        for (text, response) in self.answers.drain(..) {
            let answer = H2c::answer(response).await;
            answers.push((text.clone(), answer.unwrap_or_else(|e| panic!("{text}: {e}"))));
        }
        answers
    }
}

/// Every request came to a server exactly once, those of a flow by their numbers, and never too many together.
fn expect_all_served(servers: &[Upstream], answers: &[(String, Answer)]) {
    for (text, answer) in answers {
        assert_eq!(answer.status, 200, "{text}: {}", answer.text());
    }
    let mut by_flow = BTreeMap::<String, Vec<usize>>::new();
    for text in servers[0].texts_together() {
        let (flow, number) = text.split_once(' ').expect("two words");
        by_flow
            .entry(flow.to_owned())
            .or_default()
            .push(number.parse().expect("a number"));
    }
    let mut held = by_flow.remove("held").expect("they came");
    held.sort_unstable();
    assert_eq!(held, (0..BOUND).collect::<Vec<_>>());
    assert_eq!(by_flow.len(), FLOWS);
    for (flow, numbers) in by_flow {
        assert_eq!(numbers, (0..EACH).collect::<Vec<_>>(), "{flow}");
    }
    assert_eq!(
        servers[0].peak_together(),
        BOUND,
        "the bound is reached and not passed"
    );
    for server in servers {
        assert!(server.peak() <= SLOTS, "{} at one server", server.peak());
    }
}

async fn expect_rest(companion: &Companion) {
    companion.stock("p", 0).await;
    companion.waiting("p", 0).await;
}

/// A companion, an Envoy, servers that answer nothing yet, and a thousand that wait.
async fn scene(head: &str, more: &str) -> (Companion, Envoy, Vec<Upstream>, Gate, Asked) {
    let (servers, gate) = Upstream::gated(SERVERS, Duration::from_millis(1)).await;
    let companion = Companion::start(head, &pools(&servers, more)).await;
    let envoy = Envoy::start(&companion, "envoy").await;
    let asked = Asked::fill(&companion, &envoy).await;
    (companion, envoy, servers, gate, asked)
}

#[test]
fn a_thousand_outlive_a_killed_companion() {
    run(async {
        let (mut companion, _envoy, servers, gate, mut asked) =
            scene("", "  companion_down: {hold: 30s}\n").await;
        companion.kill().await;
        let killed = Instant::now();
        // What runs ends while nobody counts it.
        gate.open();
        until("the servers are idle", || async {
            match servers.iter().map(Upstream::in_flight).sum() {
                0 => Ok(()),
                busy => Err(format!("{busy}")),
            }
        })
        .await;
        let away = killed.elapsed();
        companion.again().await;
        let answers = asked.answers().await;
        println!(
            "figure: kill -9 with {WAITING} waiting, started again after {away:?}: last 200 after {:?}",
            killed.elapsed()
        );
        expect_all_served(&servers, &answers);
        expect_rest(&companion).await;
        let page = companion.metrics().await;
        let dispatched = page.sum("penstock_requests_total", &[("outcome", "dispatched")]);
        assert_eq!(dispatched, WAITING as f64, "the second one dispatched them");
    });
}

#[test]
fn what_runs_is_known_to_the_next_companion() {
    run(async {
        let (mut companion, _envoy, servers, gate, mut asked) =
            scene("", "  companion_down: {hold: 30s}\n").await;
        companion.kill().await;
        companion.again().await;
        companion.waiting("p", WAITING as u64).await;
        companion.stock("p", BOUND as u64).await;
        // Again, and nobody waits for it to know: the servers still hold all that they may.
        companion.kill().await;
        companion.again().await;
        gate.open();
        expect_all_served(&servers, &asked.answers().await);
        expect_rest(&companion).await;
    });
}

#[test]
fn a_thousand_outlive_a_frozen_companion() {
    run(async {
        let (companion, _envoy, servers, gate, mut asked) =
            scene("", "  companion_down: {hold: 30s}\n").await;
        companion.freeze().await;
        let frozen = Instant::now();
        gate.open();
        // The fault itself: longer than the connection's keep-alive and a session's grace.
        tokio::time::sleep(Duration::from_secs(8)).await;
        companion.signal(libc::SIGCONT);
        let answers = asked.answers().await;
        println!(
            "figure: SIGSTOP for 8 s with {WAITING} waiting: last 200 {:?} after SIGCONT",
            frozen.elapsed() - Duration::from_secs(8)
        );
        expect_all_served(&servers, &answers);
        expect_rest(&companion).await;
    });
}

#[test]
fn told_to_end_it_refuses_who_waits_and_lets_finish_who_runs() {
    run(async {
        let (mut companion, envoy, servers, gate, mut asked) = scene("", "").await;
        let running: Vec<_> = asked.answers.drain(..BOUND).collect();
        companion.signal(libc::SIGTERM);
        let told = Instant::now();
        for (text, answer) in asked.answers().await {
            assert_eq!(
                (answer.status, &*answer.code()),
                (503, "shutting_down"),
                "{text}: {}",
                answer.text()
            );
        }
        println!(
            "figure: SIGTERM, reject: {WAITING} answered within {:?}",
            told.elapsed()
        );
        let mut client = H2c::connect(envoy.gateway()).await;
        let late = client.ask(&Ask::chat("m", "late 0")).await;
        let late = H2c::answer(late).await.expect("an answer");
        late.expect_error(503, "shutting_down", "shutting_down");
        assert_eq!(servers[0].texts_together().len(), BOUND);
        gate.open();
        for (text, response) in running {
            let answer = H2c::answer(response).await.expect("a whole answer");
            assert_eq!(answer.status, 200, "{text}: {}", answer.text());
        }
        assert_eq!(companion.exit().await.code(), Some(0));
        assert!(servers[0].texts_together().is_empty());
    });
}
