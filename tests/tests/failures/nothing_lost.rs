//! A thousand requests wait while the companion is killed, frozen, shut down, or gone for good. The requests live in Envoy; the servers
//! count what arrives.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use penstock_tests::gateway::pool;
use penstock_tests::upstream::Gate;
use penstock_tests::{Answer, ClientGroup, Companion, Envoy, Upstream, run, until};

const FLOWS: usize = 10;
const EACH: usize = 100;
const WAITING: usize = FLOWS * EACH;
const SERVERS: usize = 2;
/// Concurrent requests at one server.
const SLOTS: usize = 4;
const BOUND: usize = SERVERS * SLOTS;
/// Longer than any test here keeps the companion away.
const LONG: &str = "  companion_down: {hold: 60s}\n";

/// One pool with all servers. Each flow has one request in flight, so that the order at the servers is the order of grants.
fn pools(servers: &[Upstream], more: &str) -> Vec<String> {
    let servers: Vec<_> = servers.iter().collect();
    let keys = format!(
        "  stock: {{watermark_per_backend: {SLOTS}, lower_bound_per_backend: {SLOTS}, upper_bound_per_backend: {SLOTS}, extra_for_idle_flows: 0}}\n\
         \x20 queue: {{total_capacity: {WAITING}, flow_capacity: {EACH}, ttl: 60s}}\n\
         \x20 arbitration: {{flows: {{max_in_flight: 1, cost: requests}}}}\n{more}"
    );
    vec![pool("p", "'*'", &servers, &keys)]
}

/// A companion, an Envoy, servers that do not answer yet, and a thousand waiting requests.
struct Scene {
    companion: Companion,
    _envoy: Envoy,
    servers: Vec<Upstream>,
    gate: Gate,
    crowd: ClientGroup,
}

impl Scene {
    async fn set(head: &str, more: &str) -> Self {
        let (servers, gate) = Upstream::gated(SERVERS, Duration::from_millis(1)).await;
        let companion = Companion::start(head, &pools(&servers, more)).await;
        let envoy = Envoy::start(&companion, "envoy").await;
        let mut crowd = ClientGroup::default();
        crowd.join(&envoy, 1 + FLOWS).await;
        crowd.fill(&companion, "p", BOUND).await;
        let flows: Vec<_> = (1..=FLOWS).collect();
        crowd.queue(&companion, "p", &flows, EACH).await;
        Self { companion, _envoy: envoy, servers, gate, crowd }
    }

    /// Every request reached a server exactly once, the requests of a flow in order, and no server exceeded its bound.
    async fn expect_all_served(&self, answers: &[(String, Answer)]) {
        for (text, answer) in answers {
            assert_eq!(answer.status, 200, "{text}: {}", answer.text());
        }
        let mut by_flow = BTreeMap::<String, Vec<usize>>::new();
        for text in self.servers[0].texts_together() {
            let (flow, number) = text.split_once(' ').expect("two words");
            let numbers = by_flow.entry(flow.to_owned()).or_default();
            numbers.push(number.parse().expect("a number"));
        }
        let mut held = by_flow.remove("held").expect("they came");
        held.sort_unstable();
        assert_eq!(held, (0..BOUND).collect::<Vec<_>>());
        assert_eq!(by_flow.len(), FLOWS);
        for (flow, numbers) in by_flow {
            assert_eq!(numbers, (0..EACH).collect::<Vec<_>>(), "{flow}");
        }
        self.expect_bound();
        self.companion.stock("p", 0).await;
        self.companion.waiting("p", 0).await;
    }

    fn expect_bound(&self) {
        assert_eq!(self.servers[0].peak_together(), BOUND, "the bound is reached and not passed");
        for server in &self.servers {
            assert!(server.peak() <= SLOTS, "{} at one server", server.peak());
        }
    }
}

/// Waits until `count` requests are at the servers.
async fn at_servers(servers: &[Upstream], count: usize) {
    until(&format!("{count} at the servers"), || async {
        let seen: usize = servers.iter().map(Upstream::in_flight).sum();
        if seen == count { Ok(()) } else { Err(seen.to_string()) }
    })
    .await;
}

#[test]
fn a_thousand_requests_survive_a_killed_companion() {
    run(async {
        let mut scene = Scene::set("", LONG).await;
        scene.companion.kill().await;
        let killed = Instant::now();
        // The running requests end while no companion counts them.
        scene.gate.open();
        at_servers(&scene.servers, 0).await;
        let away = killed.elapsed();
        scene.companion.restart().await;
        let answers = scene.crowd.answers().await;
        let took = killed.elapsed();
        println!(
            "figure: kill -9 with {WAITING} waiting, started again after {away:?}: last 200 after {took:?}"
        );
        scene.expect_all_served(&answers).await;
        let page = scene.companion.metrics().await;
        let dispatched = page.sum("penstock_requests_total", &[("outcome", "dispatched")]);
        assert_eq!(dispatched, WAITING as f64, "the second one dispatched them");
    });
}

#[test]
fn running_requests_are_adopted_by_the_next_companion() {
    run(async {
        let mut scene = Scene::set("", LONG).await;
        scene.companion.kill().await;
        scene.companion.restart().await;
        scene.companion.waiting("p", WAITING as u64).await;
        scene.companion.stock("p", BOUND as u64).await;
        // Again, without waiting for the sessions: the servers still run as many requests as they may.
        scene.companion.kill().await;
        scene.companion.restart().await;
        scene.gate.open();
        let answers = scene.crowd.answers().await;
        scene.expect_all_served(&answers).await;
    });
}

#[test]
fn a_thousand_requests_survive_a_frozen_companion() {
    run(async {
        let mut scene = Scene::set("", LONG).await;
        scene.companion.freeze().await;
        scene.gate.open();
        // The fault: longer than the connection's keep-alive and the session grace.
        tokio::time::sleep(Duration::from_secs(8)).await;
        scene.companion.signal(libc::SIGCONT);
        let thawed = Instant::now();
        let answers = scene.crowd.answers().await;
        let took = thawed.elapsed();
        println!("figure: SIGSTOP for 8 s with {WAITING} waiting: last 200 {took:?} after SIGCONT");
        scene.expect_all_served(&answers).await;
    });
}

#[test]
fn sigterm_rejects_waiting_requests_and_lets_running_ones_finish() {
    run(async {
        let mut scene = Scene::set("", "").await;
        let mut running = scene.crowd.split(BOUND);
        scene.companion.signal(libc::SIGTERM);
        let told = Instant::now();
        let answers = scene.crowd.answers().await;
        let took = told.elapsed();
        println!("figure: SIGTERM, reject: {WAITING} answered within {took:?}");
        for (_, answer) in answers {
            answer.expect_error(503, "shutting_down", "shutting_down");
        }
        scene.crowd.ask(0, "m", "late", "late 0").await;
        for (_, answer) in scene.crowd.answers().await {
            answer.expect_error(503, "shutting_down", "shutting_down");
        }
        scene.gate.open();
        for (text, answer) in running.answers().await {
            assert_eq!(answer.status, 200, "{text}: {}", answer.text());
        }
        assert_eq!(scene.companion.exit().await.code(), Some(0));
        assert_eq!(scene.servers[0].texts_together().len(), BOUND);
    });
}

#[test]
fn hand_over_leaves_all_requests_to_the_next_companion() {
    run(async {
        let mut scene = Scene::set("shutdown: {queued: hand_over}\n", LONG).await;
        scene.companion.signal(libc::SIGTERM);
        let told = Instant::now();
        assert_eq!(scene.companion.exit().await.code(), Some(0));
        let ended = told.elapsed();
        assert_eq!(scene.servers.iter().map(Upstream::in_flight).sum::<usize>(), BOUND, "nothing was cut");
        scene.gate.open();
        scene.companion.restart().await;
        let answers = scene.crowd.answers().await;
        let took = told.elapsed();
        println!(
            "figure: SIGTERM, hand_over: it ended after {ended:?}, last of {WAITING} 200 after {took:?}"
        );
        scene.expect_all_served(&answers).await;
    });
}

#[test]
fn without_a_next_companion_waiting_requests_are_rejected_after_hold() {
    run(async {
        let mut scene = Scene::set("", "  companion_down: {hold: 1s, then: closed}\n").await;
        let mut running = scene.crowd.split(BOUND);
        scene.companion.kill().await;
        for (_, answer) in scene.crowd.answers().await {
            answer.expect_error(503, "gateway_unavailable", "gateway_unavailable");
        }
        scene.gate.open();
        for (text, answer) in running.answers().await {
            assert_eq!(answer.status, 200, "{text}: {}", answer.text());
        }
        assert_eq!(scene.servers[0].texts_together().len(), BOUND);
    });
}

/// Sends `requests` requests at once to an Envoy whose pool is open.
async fn rush(crowd: &mut ClientGroup, requests: usize) -> (usize, usize) {
    for number in 0..requests {
        let client = number % FLOWS;
        crowd.ask(client, "m", "rush", &format!("rush {number}")).await;
    }
    let (mut served, mut refused) = (0, 0);
    for (text, answer) in crowd.answers().await {
        match answer.status {
            200 => served += 1,
            _ => {
                answer.expect_error(503, "gateway_unavailable", "gateway_unavailable");
                refused += 1;
            }
        }
        assert!(text.starts_with("rush"));
    }
    (served, refused)
}

#[test]
fn without_a_companion_an_open_pool_keeps_its_bound() {
    run(async {
        const RUSH: usize = 200;
        let (servers, gate) = Upstream::gated(SERVERS, Duration::from_millis(1)).await;
        let open = "  companion_down: {hold: 250ms, then: open}\n";
        let mut companion = Companion::start("", &pools(&servers, open)).await;
        let one = Envoy::start(&companion, "one").await;
        let mut crowd = ClientGroup::default();
        crowd.join(&one, FLOWS).await;
        companion.kill().await;
        // All places are taken, over both workers of this Envoy.
        let filling = async {
            at_servers(&servers, BOUND).await;
            gate.open();
        };
        let ((served, refused), ()) = tokio::join!(rush(&mut crowd, RUSH), filling);
        assert_eq!(served + refused, RUSH);
        assert!(served >= BOUND && refused > 0, "{served} served, {refused} refused");
        assert_eq!(servers[0].peak_together(), BOUND);
        assert_eq!(servers[0].texts_together().len(), served);

        // Two Envoys have half of the bound each.
        gate.close();
        companion.restart().await;
        companion.sessions("one", penstock_tests::envoy::sessions_in_all()).await;
        let two = Envoy::start(&companion, "two").await;
        let mut other = ClientGroup::default();
        other.join(&two, FLOWS).await;
        crowd.ask(0, "m", "one", "one 0").await;
        other.ask(0, "m", "two", "two 0").await;
        companion.stock("p", 2).await;
        gate.open();
        for crowd in [&mut crowd, &mut other] {
            assert_eq!(crowd.answers().await[0].1.status, 200);
        }
        gate.close();
        companion.kill().await;
        let filling = async {
            at_servers(&servers, BOUND / 2).await;
            gate.open();
        };
        let ((served, refused), ()) = tokio::join!(rush(&mut crowd, RUSH), filling);
        assert!(served >= BOUND / 2 && refused > 0, "{served} served, {refused} refused");
        let (served, refused) = rush(&mut other, RUSH).await;
        println!("figure: open, the second of two Envoys: {served} of {RUSH} served, {refused} refused");
        assert_eq!(servers[0].peak_together(), BOUND);
        companion.restart().await;
        companion.sessions("one", penstock_tests::envoy::sessions_in_all()).await;
        companion.stock("p", 0).await;
    });
}
