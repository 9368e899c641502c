//! Sessions that start and end under load: clients that all disconnect, changed listeners, VMs that reload or trap, and two Envoys
//! on one companion, one of which dies. Requests are counted at the servers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::HeaderMap;
use penstock_tests::envoy::{WASM_SESSIONS, sessions, sessions_in_all};
use penstock_tests::gateway::{pool, slots};
use penstock_tests::h2c::H2c;
use penstock_tests::{Answer, ClientGroup, ClientRequest, Companion, Envoy, Upstream, module, run};
use prost::Message as _;

/// A pool for every model, with `places` places at each server.
fn pools(servers: &[Upstream], places: u32, more: &str) -> Vec<String> {
    let servers: Vec<_> = servers.iter().collect();
    let keys =
        format!("{}  queue: {{total_capacity: 5000, flow_capacity: 5000, ttl: 60s}}\n{more}", slots(places));
    vec![pool("p", "'*'", &servers, &keys)]
}

#[test]
fn three_thousand_clients_disconnect_at_once() {
    run(async {
        const LEAVE: usize = 3_000;
        const CLIENTS: usize = 30;
        let (servers, gate) = Upstream::gated(1, Duration::ZERO).await;
        let companion = Companion::start("", &pools(&servers, 4, "")).await;
        let envoy = Envoy::start(&companion, "envoy").await;
        let mut stay = ClientGroup::default();
        stay.join(&envoy, 2).await;
        stay.fill(&companion, "p", 4).await;
        let mut leave = ClientGroup::default();
        leave.join(&envoy, CLIENTS).await;
        for number in 0..LEAVE {
            let tenant = format!("leaves-{}", number % 7);
            leave.ask(number % CLIENTS, "p", &tenant, &format!("leaves {number}")).await;
        }
        companion.waiting("p", LEAVE as u64).await;
        stay.queue(&companion, "p", &[1], 10).await;

        leave.leave();
        let left = Instant::now();
        companion.waiting("p", 10).await;
        println!("figure: {LEAVE} leave at once: exact after {:?}", left.elapsed());
        companion.stock("p", 4).await;
        let page = companion.metrics().await;
        let cancelled = page.sum("penstock_requests_total", &[("outcome", "cancelled")]);
        assert_eq!(cancelled, LEAVE as f64);
        gate.open();
        for (text, answer) in stay.answers().await {
            assert_eq!(answer.status, 200, "{text}: {}", answer.text());
        }
        companion.stock("p", 0).await;
        companion.waiting("p", 0).await;
        // No freed place went to a cancelled request.
        stay.ask(0, "p", "last", "last").await;
        stay.answers().await;
        let texts = servers[0].texts_together();
        assert_eq!(texts.len(), 4 + 10 + 1, "{texts:?}");
        assert!(!texts.iter().any(|text| text.starts_with("leaves")), "{texts:?}");
    });
}

#[test]
fn request_cancelled_without_a_companion_is_unknown_to_the_next_one() {
    run(async {
        const LEAVE: usize = 600;
        const CLIENTS: usize = 6;
        let (servers, gate) = Upstream::gated(1, Duration::ZERO).await;
        let more = "  companion_down: {hold: 60s}\n";
        let mut companion = Companion::start("", &pools(&servers, 4, more)).await;
        let envoy = Envoy::start(&companion, "envoy").await;
        for dies in [false, true] {
            gate.close();
            let (mut stay, mut leave) = (ClientGroup::default(), ClientGroup::default());
            stay.join(&envoy, 2).await;
            leave.join(&envoy, CLIENTS).await;
            stay.fill(&companion, "p", 4).await;
            for number in 0..LEAVE {
                let client = number % CLIENTS;
                leave.ask(client, "p", "leaves", &format!("leaves {number}")).await;
            }
            companion.waiting("p", LEAVE as u64).await;
            stay.queue(&companion, "p", &[0, 1], 5).await;
            if dies {
                companion.kill().await;
            } else {
                companion.freeze().await;
            }
            // Places become free and the next requests in line are cancelled; the companion learns of both at the same time.
            gate.open();
            envoy.active(LEAVE + 10).await;
            leave.leave();
            envoy.active(10).await;
            if dies {
                companion.restart().await;
            } else {
                companion.signal(libc::SIGCONT);
            }
            for (text, answer) in stay.answers().await {
                assert_eq!(answer.status, 200, "{text}: {}", answer.text());
            }
            companion.stock("p", 0).await;
            companion.waiting("p", 0).await;
            let texts = servers[0].texts_together();
            assert_eq!(texts.len(), 4 + 10, "{texts:?}");
            assert!(!texts.iter().any(|text| text.starts_with("leaves")), "{texts:?}");
        }
        assert_eq!(servers[0].peak(), 4);
    });
}

#[test]
fn twenty_listener_changes_share_one_bound() {
    run(async {
        const CHANGES: usize = 20;
        const CLIENTS: usize = 32;
        const PLACES: usize = 4;
        let servers = Upstream::several(2, Duration::from_millis(4), 2 * PLACES).await;
        let companion = Companion::start("", &pools(&servers, 4, "")).await;
        let mut envoy = Envoy::start(&companion, "envoy").await;
        let (ends, next) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        let mut clients = Vec::new();
        for tenant in 0..CLIENTS {
            let (ends, next) = (ends.clone(), next.clone());
            let (client, url) = (client.clone(), envoy.url("/v1/chat/completions"));
            clients.push(tokio::spawn(async move {
                while !ends.load(Ordering::Relaxed) {
                    let text = format!("{}", next.fetch_add(1, Ordering::Relaxed));
                    let request = client.post(&url).json(&ClientRequest::chat("m", &text).body());
                    let request = request.header("x-penstock-tenant", format!("t{}", tenant % 5));
                    let response = request.send().await.unwrap_or_else(|e| panic!("{text}: {e:?}"));
                    let answer = Answer::read(response).await.expect("a whole answer");
                    assert_eq!(answer.status, 200, "{text}: {}", answer.text());
                }
            }));
        }
        for change in 1..=CHANGES {
            let node = format!("change {change}");
            envoy.reconfigure(|plugin| plugin["node"] = node.clone().into());
            companion.sessions(&node, sessions()).await;
            // The newest listener and the draining ones serve at the same time.
            let served = next.load(Ordering::Relaxed);
            servers[0].arrived_together(served + 2 * CLIENTS).await;
        }
        ends.store(true, Ordering::Relaxed);
        for client in clients {
            client.await.expect("a client ends well");
        }
        companion.stock("p", 0).await;
        companion.waiting("p", 0).await;
        let texts = servers[0].texts_together();
        let peak = servers[0].peak_together();
        println!("figure: {CHANGES} changes under load: {} served, peak {peak}", texts.len());
        assert_eq!(peak, 2 * PLACES, "the bound is reached and not passed");
        assert!(servers.iter().all(|server| server.peak() <= PLACES));
        assert_eq!(texts.len(), next.load(Ordering::Relaxed));
        let once: BTreeSet<_> = texts.iter().collect();
        assert_eq!(once.len(), texts.len(), "each came once");
        // The old listeners end their sessions.
        for change in 1..CHANGES {
            companion.sessions(&format!("change {change}"), 0).await;
        }
        companion.sessions(&format!("change {CHANGES}"), sessions()).await;
    });
}

#[test]
fn reloaded_vm_starts_with_the_active_policy() {
    run(async {
        let (servers, gate) = Upstream::gated(1, Duration::ZERO).await;
        let more = "  companion_down: {hold: 60s}\n";
        let mut companion = Companion::start("", &pools(&servers, 1, more)).await;
        companion.kill().await;
        // The models in its plugin configuration are out of date.
        let stale = |plugin: &mut serde_json::Value| {
            let encoded = plugin["policy"].as_str().expect("text");
            let policy = STANDARD.decode(encoded).expect("base64");
            let mut policy = penstock_wire::Policy::decode(&*policy).expect("a policy");
            policy.digest = "stale".into();
            policy.pools[0].models = vec!["stale".into()];
            plugin["policy"] = STANDARD.encode(policy.encode_to_vec()).into();
        };
        let mut envoy = Envoy::alone(&companion, "envoy", None, stale).await;
        let mut crowd = ClientGroup::default();
        crowd.join(&envoy, 1).await;
        crowd.ask(0, "m", "t", "too early").await;
        let (_, early) = crowd.answers().await.remove(0);
        early.expect_error(404, "model_not_found", "rejected_invalid");

        companion.restart().await;
        companion.sessions("envoy", sessions_in_all()).await;
        crowd.ask(0, "m", "t", "runs").await;
        companion.stock("p", 1).await;
        crowd.ask(0, "m", "t", "waits in the old VM").await;
        companion.waiting("p", 1).await;
        companion.kill().await;
        envoy.reload();
        envoy.changed().await;
        let mut new = ClientGroup::default();
        new.join(&envoy, 1).await;
        new.ask(0, "m", "t", "waits in the new VM").await;
        new.ask(0, "stale", "t", "waits too").await;
        gate.open();
        companion.restart().await;
        for (text, answer) in crowd.answers().await.into_iter().chain(new.answers().await) {
            assert_eq!(answer.status, 200, "{text}: {}", answer.text());
        }
        assert_eq!(servers[0].texts_together().len(), 4);
        assert_eq!(servers[0].peak(), 1);
        companion.stock("p", 0).await;
        companion.waiting("p", 0).await;
    });
}

#[test]
fn trap_affects_only_its_worker() {
    run(async {
        let (servers, gate) = Upstream::gated(1, Duration::ZERO).await;
        let companion = Companion::start("", &pools(&servers, 2, "")).await;
        let module = module::trapping(companion.folder()).await;
        let envoy = Envoy::with_filter(&companion, "envoy", Some(&module)).await;
        let mut crowd = ClientGroup::default();
        crowd.join(&envoy, 1).await;
        crowd.fill(&companion, "p", 2).await;
        crowd.queue(&companion, "p", &[0], 3).await;
        // The same connection, and so the same worker, as the running and waiting requests.
        let body = [Bytes::from(ClientRequest::chat("p", "traps").body().to_string())];
        let mut trailers = HeaderMap::new();
        trailers.insert("x-trailer", "1".parse().expect("a value"));
        let traps = crowd.client(0).post("/v1/chat/completions", &body, Some(trailers));
        assert_eq!(H2c::status(traps.await).await.0, 503);
        let trapped = Instant::now();
        gate.open();
        let ends = crowd.split(2).ends().await;
        // Requests that waited there are lost, but take no place: both workers serve.
        companion.stock("p", 0).await;
        companion.waiting("p", 0).await;
        println!(
            "figure: a trap: what ran ended with {ends:?}, all places are free after {:?}",
            trapped.elapsed()
        );
        assert!(!servers[0].texts_together().contains(&"traps".to_owned()));
        // Envoy creates a new VM for a worker's plugin when the next request arrives.
        companion.sessions("envoy", WASM_SESSIONS - 2).await;
        let mut clients = ClientGroup::default();
        clients.join(&envoy, 16).await;
        for client in 0..16 {
            clients.ask(client, "p", "t", &format!("after {client}")).await;
        }
        for (text, answer) in clients.answers().await {
            assert_eq!(answer.status, 200, "{text}: {}", answer.text());
        }
        companion.sessions("envoy", WASM_SESSIONS - 1).await;
        assert_eq!(servers[0].peak(), 2);
    });
}

#[test]
fn one_of_two_envoys_dies_and_the_other_continues() {
    run(async {
        const WAITING: usize = 100;
        let (servers, gate) = Upstream::gated(1, Duration::from_millis(1)).await;
        let companion = Companion::start("", &pools(&servers, 4, "")).await;
        let dies = Envoy::start(&companion, "dies").await;
        let lives = Envoy::start(&companion, "lives").await;
        let (mut lost, mut crowd) = (ClientGroup::default(), ClientGroup::default());
        lost.join(&dies, 2).await;
        crowd.join(&lives, 2).await;
        for number in 0..3 {
            lost.ask(0, "p", "lost", &format!("lost {number}")).await;
        }
        companion.stock("p", 3).await;
        crowd.ask(0, "p", "kept", "runs").await;
        companion.stock("p", 4).await;
        lost.queue(&companion, "p", &[0, 1], WAITING / 2).await;
        crowd.queue(&companion, "p", &[0, 1], WAITING / 2).await;
        assert_eq!(servers[0].peak(), 4, "one bound over both");

        penstock_tests::process::send(dies.process.pid(), libc::SIGKILL);
        let killed = Instant::now();
        gate.open();
        for (text, answer) in crowd.answers().await {
            assert_eq!(answer.status, 200, "{text}: {}", answer.text());
        }
        companion.waiting("p", 0).await;
        companion.stock("p", 0).await;
        println!("figure: an Envoy of two dies: its stock is released after {:?}", killed.elapsed());
        companion.sessions("dies", 0).await;
        let texts = servers[0].texts_together();
        assert_eq!(texts.iter().filter(|text| text.starts_with("lost")).count(), 3, "{texts:?}");
        assert_eq!(texts.len(), 3 + 1 + WAITING, "{texts:?}");
        assert_eq!(servers[0].peak(), 4);
    });
}
