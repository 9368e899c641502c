//! Four pools and two companions, a leader for each pool: the pools spread, and the pools of a killed companion move to the other one
//! without a trace in the others.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use penstock_election::prefers;
use penstock_tests::certificates::Certificates;
use penstock_tests::envoy::sessions_in_all;
use penstock_tests::gateway::pool;
use penstock_tests::ports::free_addresses;
use penstock_tests::replicas::{etcd_lease, replicas_key};
use penstock_tests::upstream::Gate;
use penstock_tests::{Answer, ClientGroup, Companion, Envoy, Etcd, Upstream, run, until};

const POOLS: usize = 4;
/// Concurrent requests at the server of a pool.
const SLOTS: usize = 4;
/// Waiting requests of each pool.
const EACH: usize = 50;

/// A pool's name, its server, and its clients.
struct Load {
    pool: String,
    server: Upstream,
    gate: Gate,
    crowd: ClientGroup,
}

impl Load {
    /// All answers are 200, and each flow's requests reached the server in order and within the bound.
    fn expect_all_served(&self, answers: &[(String, Answer)]) {
        let pool = &self.pool;
        assert_eq!(answers.len(), SLOTS + EACH);
        for (text, answer) in answers {
            assert_eq!(answer.status, 200, "{pool}: {text}: {}", answer.text());
        }
        let mut by_flow = BTreeMap::<String, Vec<usize>>::new();
        for text in self.server.texts_together() {
            let (flow, number) = text.split_once(' ').expect("two words");
            let numbers = by_flow.entry(flow.to_owned()).or_default();
            numbers.push(number.parse().expect("a number"));
        }
        by_flow.remove("held");
        assert_eq!(by_flow["flow-0"], (0..EACH).collect::<Vec<_>>(), "{pool}");
        assert!(self.server.peak() <= SLOTS, "{pool}: {}", self.server.peak());
    }
}

/// Two names of pools that prefer each companion to the other.
fn pools_of(addresses: &[SocketAddr]) -> Vec<String> {
    let [one, other] = [addresses[0].to_string(), addresses[1].to_string()];
    let preferring = |best: &str, second: &str| {
        let names = (0..).map(|number| format!("pool-{number}"));
        let own: Vec<String> = names.filter(|pool| prefers(pool, best, second)).take(POOLS / 2).collect();
        own
    };
    [preferring(&one, &other), preferring(&other, &one)].concat()
}

/// The pools that a companion leads, as it says.
async fn led(companion: &Companion) -> Result<BTreeSet<String>, String> {
    let status = companion.get("/status").await?.json();
    let pools = status["pools"].as_array().ok_or("no pools")?.clone();
    let leads = pools.iter().filter(|pool| pool["replicas"]["role"] == "leader");
    let names = leads.filter_map(|pool| pool["name"].as_str().map(str::to_owned));
    Ok(names.collect())
}

/// Waits until a companion leads exactly these pools.
async fn leads(companion: &Companion, pools: &[String]) {
    let expected: BTreeSet<String> = pools.iter().cloned().collect();
    until("the pools are led", || async {
        let led = led(companion).await?;
        if led == expected { Ok(()) } else { Err(format!("{led:?}")) }
    })
    .await;
}

async fn companions(addresses: &[SocketAddr], etcd: &Etcd, pools: &[String]) -> (Companion, Companion) {
    let start = async |address: SocketAddr| {
        let key = replicas_key(addresses, address, &etcd_lease(&etcd.url()), ", per: pool");
        Companion::replica(address, &key, pools).await
    };
    (start(addresses[0]).await, start(addresses[1]).await)
}

/// A server that is full, and requests that wait, in each pool.
async fn fill(
    names: &[String],
    servers: Vec<(Upstream, Gate)>,
    leaders: [&Companion; POOLS],
    envoys: &[Envoy],
) -> Vec<Load> {
    let mut loads = Vec::new();
    for ((name, (server, gate)), leader) in names.iter().zip(servers).zip(leaders) {
        let mut crowd = ClientGroup::default();
        for envoy in envoys {
            crowd.join(envoy, 1).await;
        }
        crowd.fill(leader, name, SLOTS).await;
        crowd.queue(leader, name, &[0], EACH).await;
        loads.push(Load { pool: name.clone(), server, gate, crowd });
    }
    loads
}

#[test]
fn the_pools_of_a_killed_companion_move_and_the_others_go_on() {
    run(async {
        let etcd = Etcd::start().await;
        let addresses = free_addresses(2);
        let names = pools_of(&addresses);
        let mut servers = Vec::new();
        for _ in 0..POOLS {
            let (mut group, gate) = Upstream::gated(1, Duration::from_millis(1)).await;
            servers.push((group.remove(0), gate));
        }
        let keys = format!(
            "  stock: {{watermark_per_backend: {SLOTS}, lower_bound_per_backend: {SLOTS}, upper_bound_per_backend: {SLOTS}, extra_for_idle_flows: 0}}\n\
             \x20 queue: {{total_capacity: 1000, flow_capacity: 1000, ttl: 90s}}\n\
             \x20 companion_down: {{hold: 60s}}\n\
             \x20 arbitration: {{flows: {{max_in_flight: 1, cost: requests}}}}\n"
        );
        let pools: Vec<String> = names
            .iter()
            .zip(&servers)
            .map(|(name, (server, _))| pool(name, name, &[server], &keys))
            .collect();
        let started = Instant::now();
        let (mut one, other) = companions(&addresses, &etcd, &pools).await;
        // The first companion may have taken all pools; the other one asks for those that prefer it.
        leads(&one, &names[..POOLS / 2]).await;
        leads(&other, &names[POOLS / 2..]).await;
        println!(
            "figure: {POOLS} pools are spread over two companions {:?} after their start",
            started.elapsed()
        );

        let envoys =
            [Envoy::alone(&one, "one", None, |_| ()).await, Envoy::alone(&other, "two", None, |_| ()).await];
        for companion in [&one, &other] {
            for node in ["one", "two"] {
                // One session for each pool that it leads, of each root context, beside those without a pool.
                until("the sessions are open", || async {
                    let status = companion.get("/status").await?.json();
                    let sessions = status["sessions"].as_array().ok_or("no sessions")?.clone();
                    let of_pools = sessions.iter().filter(|session| {
                        session["worker"] == node && session["open"] == true && session["pool"].is_string()
                    });
                    match of_pools.count() {
                        open if open == sessions_in_all() * POOLS / 2 => Ok(()),
                        open => Err(format!("{node}: {open}")),
                    }
                })
                .await;
            }
        }
        let mut loads = fill(&names, servers, [&one, &one, &other, &other], &envoys).await;

        // The other companion's pools are served while the first one is gone.
        one.kill().await;
        let killed = Instant::now();
        let mut unaffected = loads.split_off(POOLS / 2);
        for load in &mut unaffected {
            load.gate.open();
            let answers = load.crowd.answers().await;
            load.expect_all_served(&answers);
        }
        println!(
            "figure: all {} requests of the pools that stay are answered {:?} after the kill",
            2 * (SLOTS + EACH),
            killed.elapsed()
        );
        for load in &loads {
            load.gate.open();
        }
        until("a grant in each pool that moves", || async {
            let arrived: Vec<usize> = loads.iter().map(|load| load.server.total()).collect();
            if arrived.iter().all(|arrived| *arrived > SLOTS) { Ok(()) } else { Err(format!("{arrived:?}")) }
        })
        .await;
        println!("figure: first grant in both pools that move {:?} after the kill", killed.elapsed());
        for load in &mut loads {
            let answers = load.crowd.answers().await;
            load.expect_all_served(&answers);
        }
        leads(&other, &names).await;

        // The companion comes back, and gets the pools that prefer it.
        one.restart().await;
        leads(&one, &names[..POOLS / 2]).await;
        leads(&other, &names[POOLS / 2..]).await;
        for load in &mut loads {
            let name = load.pool.clone();
            load.crowd.ask(0, &name, "late", "late 0").await;
            let answers = load.crowd.answers().await;
            assert_eq!(answers[0].1.status, 200, "{name}: {}", answers[0].1.text());
        }
    });
}

/// The certificate is valid for the companions' addresses.
#[test]
fn companions_ask_each_other_for_pools_over_mutual_tls() {
    run(async {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let tls = Certificates::new(folder.path(), "penstock").configured();
        let lease = format!("{{file: '{}'}}", folder.path().join("lease").display());
        let addresses = free_addresses(2);
        let names = pools_of(&addresses);
        let server = Upstream::scripted().await;
        let pools: Vec<String> =
            (names.iter()).map(|name| pool(name, name, &[&server], "  health: {path: null}\n")).collect();
        let mut companions = Vec::new();
        for &address in &addresses {
            let key = replicas_key(&addresses, address, &lease, ", per: pool");
            companions.push(Companion::replica(address, &format!("{tls}{key}"), &pools).await);
            if companions.len() == 1 {
                leads(&companions[0], &names).await;
            }
        }
        leads(&companions[0], &names[..POOLS / 2]).await;
        leads(&companions[1], &names[POOLS / 2..]).await;
    });
}

/// A removed pool keeps its leader until its last request has ended, and the filters forget it then.
#[test]
fn a_removed_pool_ends_with_its_last_request() {
    run(async {
        let etcd = Etcd::start().await;
        let addresses = free_addresses(2);
        let names = pools_of(&addresses);
        let [stays, removed] = [names[0].clone(), names[POOLS / 2].clone()];
        let server = Upstream::scripted().await;
        let pools = [&stays, &removed].map(|name| pool(name, name, &[&server], "  health: {path: null}\n"));
        let (one, other) = companions(&addresses, &etcd, &pools).await;
        leads(&one, std::slice::from_ref(&stays)).await;
        leads(&other, std::slice::from_ref(&removed)).await;
        let envoy = Envoy::alone(&one, "one", None, |_| ()).await;

        let mut crowd = ClientGroup::default();
        crowd.join(&envoy, 1).await;
        crowd.ask(0, &removed, "a", "a 0").await;
        let call = server.next().await;
        for companion in [&one, &other] {
            let text = std::fs::read_to_string(companion.config()).expect("the configuration");
            std::fs::write(companion.config(), text.replace(&pools[1], "")).expect("written");
        }
        until("the pool is removed", || async {
            let status = other.get("/status").await?.json();
            let pools = status["pools"].as_array().ok_or("no pools")?;
            let pool = pools.iter().find(|pool| pool["name"] == *removed);
            let pool = pool.ok_or("it is gone")?;
            let advice = pool["advice"].to_string();
            if advice.contains("no longer configured") && pool["replicas"]["role"] == "leader" {
                Ok(())
            } else {
                Err(pool.to_string())
            }
        })
        .await;
        call.answer_with(3, 4);
        assert_eq!(crowd.answers().await[0].1.status, 200);

        for companion in [&one, &other] {
            until("nothing is left of the pool", || async {
                let status = companion.get("/status").await?.json();
                let pools = status["pools"].as_array().ok_or("no pools")?.len();
                let sessions = status["sessions"].as_array().ok_or("no sessions")?.iter();
                match (pools, sessions.filter(|session| session["pool"] == *removed).count()) {
                    (1, 0) => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await;
        }
    });
}
