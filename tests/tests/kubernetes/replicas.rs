//! The first rows of `replicas.rs` with the lease in a real API server of Kubernetes: that of `KUBECONFIG`, a cluster for tests. The
//! companions' account has exactly the permissions that docs/replicas.md names.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use penstock_tests::cluster::{Cluster, NAMESPACE};
use penstock_tests::ports::free_addresses;
use penstock_tests::relay::Relay;
use penstock_tests::replicas::{Replicas, replicas_key};
use penstock_tests::takeover::{BOUND, DURATION, SERVERS, Scene, WAITING, pools};
use penstock_tests::{Companion, Upstream, run, until};

/// A Lease object that no other test has.
fn lease() -> String {
    static LEASES: AtomicUsize = AtomicUsize::new(0);
    let number = LEASES.fetch_add(1, Ordering::Relaxed);
    let name = format!("penstock-{}-{number}", std::process::id());
    format!("{{kubernetes: {{namespace: {NAMESPACE}, name: {name}}}}}")
}

/// Two companions, the first of which leads and has this kubeconfig.
async fn companions(cluster: &Cluster, first: &Path, head: &str, servers: &[Upstream]) -> Replicas {
    let other = cluster.kubeconfig("other", &cluster.server);
    let (addresses, lease) = (free_addresses(2), lease());
    let start = async |address: SocketAddr, kubeconfig: &Path| {
        let key = replicas_key(&addresses, address, &lease, "");
        let kubeconfig = kubeconfig.to_str().expect("a path of text");
        let variables = [("KUBECONFIG", kubeconfig)];
        Companion::replica_with(address, &format!("{key}{head}"), &pools(servers), &variables).await
    };
    let first = start(addresses[0], first).await;
    until("the first companion leads", || async {
        let page = first.get("/readyz").await?.json();
        if page["role"] == "leader" { Ok(()) } else { Err(page.to_string()) }
    })
    .await;
    let second = start(addresses[1], &other).await;
    Replicas { companions: vec![first, second], addresses, etcd: None }
}

async fn scene(cluster: &Cluster, head: &str) -> Scene {
    let (servers, gate) = Upstream::gated(SERVERS, Duration::from_millis(1)).await;
    let first = cluster.kubeconfig("first", &cluster.server);
    let replicas = companions(cluster, &first, head, &servers).await;
    Scene::with(replicas, servers, gate).await
}

#[test]
fn a_thousand_requests_survive_a_killed_leader() {
    run(async {
        let cluster = Cluster::prepare("replicas.md");
        let mut scene = scene(&cluster, "").await;
        scene.leader_mut().kill().await;
        let took = scene.first_grant(Instant::now()).await;
        println!(
            "figure: kill -9 of the leader with {WAITING} waiting: first grant after {took:?}, lease {DURATION:?}"
        );
        let answers = scene.crowd.answers().await;
        scene.expect_all_served(&answers);
        let standby = scene.standby();
        assert_eq!(scene.replicas.leader_of(&[standby]).await, standby);
        scene.leader_mut().restart().await;
        assert_eq!(scene.replicas.leader().await, standby);
    });
}

#[test]
fn hand_over_leaves_no_gap() {
    run(async {
        let cluster = Cluster::prepare("replicas.md");
        let mut scene = scene(&cluster, "shutdown: {queued: hand_over}\n").await;
        scene.leader().signal(libc::SIGTERM);
        let took = scene.first_grant(Instant::now()).await;
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
        let cluster = Cluster::prepare("replicas.md");
        let mut scene = scene(&cluster, "").await;
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
        let page = scene.leader().metrics().await;
        let granted = |outcome| page.sum("penstock_requests_total", &[("outcome", outcome)]);
        assert_eq!(granted("bypassed") + granted("dispatched"), BOUND as f64);
    });
}

#[test]
fn leader_without_its_store_goes_on_and_stays_the_leader() {
    run(async {
        let cluster = Cluster::prepare("replicas.md");
        let relay = Relay::to(cluster.address()).await;
        let behind = cluster.kubeconfig("behind", &format!("https://{}", relay.address()));
        let (servers, gate) = Upstream::gated(SERVERS, Duration::from_millis(1)).await;
        let replicas = companions(&cluster, &behind, "", &servers).await;
        let mut scene = Scene::with(replicas, servers, gate).await;
        relay.cut();
        let cut = Instant::now();
        // The fault: until the lease has expired and could be taken.
        tokio::time::sleep(2 * DURATION).await;
        let took = scene.first_grant(cut).await;
        println!(
            "figure: the leader can't reach the API server for {:?}: it grants after {took:?}",
            2 * DURATION
        );
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
        let page = scene.replicas.companions[1].metrics().await;
        assert_eq!(page.sum("penstock_failovers_total", &[]), 0.0);
    });
}
