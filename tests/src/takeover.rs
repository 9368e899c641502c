//! A takeover's scene: several companions, two Envoys, a thousand waiting requests, and all places at the servers taken.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::envoy::sessions_in_all;
use crate::gateway::pool;
use crate::replicas::Replicas;
use crate::upstream::Gate;
use crate::{Answer, ClientGroup, Companion, Envoy, Upstream, until};

/// Flows with waiting requests.
pub const FLOWS: usize = 10;
/// Waiting requests of each flow.
pub const EACH: usize = 100;
/// Waiting requests.
pub const WAITING: usize = FLOWS * EACH;
/// Model servers.
pub const SERVERS: usize = 2;
/// Concurrent requests at one server.
pub const SLOTS: usize = 4;
/// Concurrent requests at all servers.
pub const BOUND: usize = SERVERS * SLOTS;
/// `replicas.duration`'s default.
pub const DURATION: Duration = Duration::from_secs(3);

/// One pool with all servers. Each flow has one request in flight, so that the order at the servers is the order of grants.
#[must_use]
pub fn pools(servers: &[Upstream]) -> Vec<String> {
    let servers: Vec<_> = servers.iter().collect();
    let keys = format!(
        "  stock: {{watermark_per_backend: {SLOTS}, lower_bound_per_backend: {SLOTS}, upper_bound_per_backend: {SLOTS}, extra_for_idle_flows: 0}}\n\
         \x20 queue: {{total_capacity: {WAITING}, flow_capacity: {EACH}, ttl: 90s}}\n\
         \x20 companion_down: {{hold: 60s}}\n\
         \x20 arbitration: {{flows: {{max_in_flight: 1, cost: requests}}}}\n"
    );
    vec![pool("p", "'*'", &servers, &keys)]
}

/// Companions, two Envoys, servers that do not answer yet and are full, and a thousand waiting requests.
pub struct Scene {
    /// The companions.
    pub replicas: Replicas,
    /// The place of the one that leads.
    pub leader: usize,
    /// The Envoys.
    pub envoys: Vec<Envoy>,
    /// The servers.
    pub servers: Vec<Upstream>,
    /// Lets the servers answer.
    pub gate: Gate,
    /// The clients.
    pub crowd: ClientGroup,
}

impl Scene {
    /// Two companions with a lease in etcd and these keys of the configuration.
    pub async fn set(head: &str) -> Self {
        let (servers, gate) = Upstream::gated(SERVERS, Duration::from_millis(1)).await;
        let replicas = Replicas::start(2, head, &pools(&servers)).await;
        Self::with(replicas, servers, gate).await
    }

    /// These companions, one of which leads.
    pub async fn with(replicas: Replicas, servers: Vec<Upstream>, gate: Gate) -> Self {
        let leader = replicas.leader().await;
        let mut envoys = Vec::new();
        let mut crowd = ClientGroup::default();
        for (node, clients) in [("one", 1 + FLOWS / 2), ("two", FLOWS / 2)] {
            let envoy = Envoy::alone(&replicas.companions[leader], node, None, |_| ()).await;
            replicas.companions[leader].sessions(node, sessions_in_all()).await;
            crowd.join(&envoy, clients).await;
            envoys.push(envoy);
        }
        crowd.fill(&replicas.companions[leader], "p", BOUND).await;
        let flows: Vec<_> = (1..=FLOWS).collect();
        crowd.queue(&replicas.companions[leader], "p", &flows, EACH).await;
        Self { replicas, leader, envoys, servers, gate, crowd }
    }

    /// The companion that leads at first.
    #[must_use]
    pub fn leader(&self) -> &Companion {
        &self.replicas.companions[self.leader]
    }

    /// The companion that leads at first, to be changed.
    pub fn leader_mut(&mut self) -> &mut Companion {
        &mut self.replicas.companions[self.leader]
    }

    /// The place of the other companion.
    #[must_use]
    pub const fn standby(&self) -> usize {
        1 - self.leader
    }

    /// Every request reached a server exactly once, the requests of a flow in order, and no server exceeded its bound.
    ///
    /// # Panics
    /// If that isn't so.
    pub fn expect_all_served(&self, answers: &[(String, Answer)]) {
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
        assert_eq!(self.servers[0].peak_together(), BOUND, "the bound is reached and not passed");
        for server in &self.servers {
            assert!(server.peak() <= SLOTS, "{} at one server", server.peak());
        }
    }

    /// Ends the held requests, and returns the time until a server gets the first waiting one.
    pub async fn first_grant(&self, since: Instant) -> Duration {
        self.gate.open();
        until("a grant", || async {
            let arrived: usize = self.servers.iter().map(Upstream::total).sum();
            if arrived > BOUND { Ok(()) } else { Err(arrived.to_string()) }
        })
        .await;
        since.elapsed()
    }
}
