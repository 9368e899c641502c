//! Two companions, a real etcd and two Envoys, with a thousand waiting requests: the leader is killed, frozen, shut down or cut off, and the
//! servers count what arrives.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use penstock_tests::envoy::sessions_in_all;
use penstock_tests::gateway::pool;
use penstock_tests::ports::free_addresses;
use penstock_tests::relay::Relay;
use penstock_tests::replicas::{Replicas, etcd_lease, replicas_key};
use penstock_tests::takeover::{BOUND, DURATION, EACH, FLOWS, SERVERS, Scene, WAITING, pools};
use penstock_tests::{ClientGroup, Companion, Envoy, Etcd, Upstream, run, until};

/// The address from which the Envoy connects that is cut off, and that of the other one.
const CUT: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
const WHOLE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3));
async fn failovers(companion: &Companion) -> f64 {
    companion.metrics().await.sum("penstock_failovers_total", &[])
}

#[test]
fn a_thousand_requests_survive_a_killed_leader() {
    run(async {
        let mut scene = Scene::set("").await;
        scene.leader_mut().kill().await;
        let killed = Instant::now();
        let took = scene.first_grant(killed).await;
        println!(
            "figure: kill -9 of the leader with {WAITING} waiting: first grant after {took:?}, lease {DURATION:?}"
        );
        let answers = scene.crowd.answers().await;
        scene.expect_all_served(&answers);
        let standby = scene.standby();
        assert_eq!(scene.replicas.leader_of(&[standby]).await, standby);
        assert_eq!(failovers(&scene.replicas.companions[standby]).await, 1.0);
        // The old leader comes back as a standby.
        scene.leader_mut().restart().await;
        assert_eq!(scene.replicas.leader().await, standby);
    });
}

#[test]
fn hand_over_leaves_no_gap() {
    run(async {
        let mut scene = Scene::set("shutdown: {queued: hand_over}\n").await;
        scene.leader().signal(libc::SIGTERM);
        let told = Instant::now();
        let took = scene.first_grant(told).await;
        println!(
            "figure: SIGTERM with hand_over and {WAITING} waiting: first grant of the next leader after {took:?}"
        );
        assert_eq!(scene.leader_mut().exit().await.code(), Some(0));
        let answers = scene.crowd.answers().await;
        scene.expect_all_served(&answers);
    });
}

#[test]
fn a_frozen_leader_grants_nothing_after_it_wakes() {
    run(async {
        let mut scene = Scene::set("").await;
        scene.leader().freeze().await;
        let frozen = Instant::now();
        let took = scene.first_grant(frozen).await;
        println!(
            "figure: SIGSTOP of the leader with {WAITING} waiting: first grant of the next leader after {took:?}"
        );
        let answers = scene.crowd.answers().await;
        // The fault: twice the lease.
        tokio::time::sleep((2 * DURATION).saturating_sub(frozen.elapsed())).await;
        scene.leader().signal(libc::SIGCONT);
        let standby = scene.standby();
        assert_eq!(scene.replicas.leader().await, standby);
        scene.expect_all_served(&answers);
        // It has granted the held requests, and none of those that it knew as waiting.
        let page = scene.leader().metrics().await;
        let granted = |outcome| page.sum("penstock_requests_total", &[("outcome", outcome)]);
        assert_eq!(granted("bypassed") + granted("dispatched"), BOUND as f64);
    });
}

/// A leader whose etcd is behind a relay.
#[test]
fn leader_without_its_store_goes_on_and_stays_the_leader() {
    run(async {
        let (servers, gate) = Upstream::gated(SERVERS, Duration::from_millis(1)).await;
        let etcd = Etcd::start().await;
        let relay = Relay::to(etcd.address()).await;
        let addresses = free_addresses(2);
        let url = format!("http://{}", relay.address());
        let first = replicas_key(&addresses, addresses[0], &etcd_lease(&url), "");
        let first = Companion::replica(addresses[0], &first, &pools(&servers)).await;
        until("the first companion leads", || async {
            let page = first.get("/readyz").await?.json();
            if page["role"] == "leader" { Ok(()) } else { Err(page.to_string()) }
        })
        .await;
        let second = replicas_key(&addresses, addresses[1], &etcd_lease(&etcd.url()), "");
        let second = Companion::replica(addresses[1], &second, &pools(&servers)).await;
        let replicas = Replicas { companions: vec![first, second], addresses, etcd: Some(etcd) };
        let mut scene = Scene::with(replicas, servers, gate).await;
        assert_eq!(scene.leader, 0);
        relay.cut();
        let cut = Instant::now();
        // The fault: until the lease has expired and could be taken.
        tokio::time::sleep(2 * DURATION).await;
        scene.first_grant(cut).await;
        let answers = scene.crowd.answers().await;
        scene.expect_all_served(&answers);
        relay.mend();
        until("the store answers the leader again", || async {
            let page = scene.replicas.companions[0].metrics().await;
            match page.sum("penstock_lease_store_up", &[]) {
                up if up > 0.0 => Ok(()),
                down => Err(down.to_string()),
            }
        })
        .await;
        assert_eq!(scene.replicas.leader().await, 0);
        assert_eq!(failovers(&scene.replicas.companions[1]).await, 0.0);
    });
}

#[test]
fn dispatch_goes_on_while_etcd_is_restarted() {
    run(async {
        let mut scene = Scene::set("").await;
        scene.replicas.etcd().kill().await;
        let killed = Instant::now();
        // The fault: longer than the lease.
        tokio::time::sleep(2 * DURATION).await;
        scene.first_grant(killed).await;
        let answers = scene.crowd.answers().await;
        scene.expect_all_served(&answers);
        scene.replicas.etcd().restart().await;
        assert_eq!(scene.replicas.leader().await, scene.leader);
    });
}

/// Filters reach both companions through relays, and one of the Envoys is cut off from the leader.
#[test]
fn leader_that_one_envoy_cannot_reach_serves_the_others_and_never_exceeds_the_bound() {
    run(async {
        let (servers, gate) = Upstream::gated(SERVERS, Duration::from_millis(1)).await;
        let etcd = Etcd::start().await;
        let listening = free_addresses(2);
        let relays = [Relay::to(listening[0]).await, Relay::to(listening[1]).await];
        let addresses = vec![relays[0].address(), relays[1].address()];
        let mut companions = Vec::new();
        for place in 0..2 {
            let key = replicas_key(&addresses, addresses[place], &etcd_lease(&etcd.url()), "");
            companions.push(Companion::replica(listening[place], &key, &pools(&servers)).await);
        }
        let replicas = Replicas { companions, addresses, etcd: Some(etcd) };
        let leader = replicas.leader().await;
        let mut envoys = Vec::new();
        let mut crowd = ClientGroup::default();
        for (node, source, clients) in [("cut", CUT, 1 + FLOWS / 2), ("whole", WHOLE, FLOWS / 2)] {
            let companion = &replicas.companions[leader];
            let envoy = Envoy::connecting_from(companion, node, source).await;
            companion.sessions(node, sessions_in_all()).await;
            crowd.join(&envoy, clients).await;
            envoys.push(envoy);
        }
        crowd.fill(&replicas.companions[leader], "p", BOUND).await;
        let flows: Vec<_> = (1..=FLOWS).collect();
        crowd.queue(&replicas.companions[leader], "p", &flows, EACH).await;
        let mut scene = Scene { replicas, leader, envoys, servers, gate, crowd };
        relays[leader].cut_from(CUT);
        // The leader notices, and grants to the other Envoy what the servers have places for.
        scene.leader().sessions("cut", 0).await;
        scene.gate.open();
        scene.leader().waiting("p", 0).await;
        let leader = scene.replicas.leader().await;
        assert_eq!(leader, scene.leader, "the standby has no reason to lead");
        relays[leader].mend();
        let answers = scene.crowd.answers().await;
        scene.expect_all_served(&answers);
    });
}

/// Weights 4:1 hold in one queue, whichever Envoy a tenant uses and whichever companion leads.
#[test]
fn shares_hold_over_two_envoys_and_a_takeover() {
    run(async {
        const OF_EACH: usize = 250;
        let (servers, gate) = Upstream::gated(1, Duration::from_millis(1)).await;
        let keys = "  stock: {watermark_per_backend: 1, lower_bound_per_backend: 1, upper_bound_per_backend: 1, extra_for_idle_flows: 0}\n\
                    \x20 queue: {total_capacity: 1000, flow_capacity: 1000, ttl: 90s}\n\
                    \x20 companion_down: {hold: 60s}\n\
                    \x20 arbitration: {flows: {weights: {heavy: 4, light: 1}, cost: requests}}\n";
        let pools = vec![pool("p", "'*'", &[&servers[0]], keys)];
        let mut replicas = Replicas::start(2, "", &pools).await;
        let leader = replicas.leader().await;
        let mut crowd = ClientGroup::default();
        let mut envoys = Vec::new();
        for node in ["one", "two"] {
            let companion = &replicas.companions[leader];
            let envoy = Envoy::alone(companion, node, None, |_| ()).await;
            companion.sessions(node, sessions_in_all()).await;
            crowd.join(&envoy, 1).await;
            envoys.push(envoy);
        }
        crowd.fill(&replicas.companions[leader], "p", 1).await;
        // The heavy tenant uses the first Envoy, and both use the second.
        for number in 0..OF_EACH {
            crowd.ask(number % 2, "p", "heavy", &format!("heavy {number}")).await;
            crowd.ask(1, "p", "light", &format!("light {number}")).await;
        }
        let all = 2 * OF_EACH as u64;
        replicas.companions[leader].waiting("p", all).await;
        replicas.companions[leader].kill().await;
        gate.open();
        let next = replicas.leader_of(&[1 - leader]).await;
        for (text, answer) in crowd.answers().await {
            assert_eq!(answer.status, 200, "{text}: {}", answer.text());
        }
        replicas.companions[next].waiting("p", 0).await;
        let texts = servers[0].texts_together();
        // While both wait: the first 250 grants after the held one.
        let heavy = texts[1..=OF_EACH].iter().filter(|text| text.starts_with("heavy")).count();
        assert_eq!(heavy, OF_EACH * 4 / 5, "{texts:?}");
    });
}

#[test]
fn rolling_restart_refuses_nothing() {
    run(async {
        let mut scene = Scene::set("shutdown: {queued: hand_over}\n").await;
        scene.gate.open();
        for place in [scene.standby(), scene.leader] {
            let companion = &mut scene.replicas.companions[place];
            companion.signal(libc::SIGTERM);
            assert_eq!(companion.exit().await.code(), Some(0));
            companion.restart().await;
            scene.replicas.leader().await;
        }
        let answers = scene.crowd.answers().await;
        scene.expect_all_served(&answers);
    });
}

#[test]
fn standby_refuses_changes_and_names_the_leader() {
    run(async {
        let server = Upstream::scripted().await;
        let replicas = Replicas::start(2, "", &pools(&[server])).await;
        let leader = replicas.leader().await;
        let standby = &replicas.companions[1 - leader];
        let address = replicas.addresses[leader].to_string();
        for (method, path, body) in [
            ("PATCH", "/config", r#"{"pools": [{"name": "p", "capacity_status": 429}]}"#),
            ("PUT", "/config", "{}"),
            ("POST", "/drain", ""),
        ] {
            let answer = standby.change(method, path, &[], body).await;
            assert_eq!(answer.status, 421, "{method} {path}: {}", answer.text());
            assert_eq!(answer.json()["leader"], address, "{method} {path}");
        }
        let status = standby.status().await;
        assert_eq!(status["replicas"]["role"], "standby", "{status}");
        assert_eq!(status["replicas"]["leader"], address, "{status}");
        let status = replicas.companions[leader].status().await;
        assert_eq!(status["replicas"]["role"], "leader", "{status}");
    });
}
