//! The status of sessions and pools, for `/status` and the gauges of `/metrics`.

use core::time::Duration;
use std::sync::Arc;

use hashbrown::HashSet;
use penstock_autopilot::{AutopilotStatus, Scraped};
use penstock_engine::ModelName;
use penstock_engine::input::{EndpointId, Role};
use penstock_engine::policy::Discipline;
use penstock_engine::snapshot::Snapshot;

use crate::ids::Door;
use crate::labels::flow_name;

/// Stands for all flows that aren't shown by name.
pub(crate) const OTHER: &str = "other";

/// A control at one moment.
#[derive(Clone, Debug)]
pub struct Status {
    /// In the order of their node names and epochs.
    pub sessions: Vec<SessionStatus>,
    /// In the order of the configuration, then the retired pools that still have requests.
    pub pools: Vec<PoolStatus>,
    /// Dispatch has begun.
    pub started: bool,
    /// All expected sessions were open at the same time once. `false` if their number isn't known.
    pub gathered: bool,
    /// New requests are rejected.
    pub draining: bool,
    /// Another companion has taken over.
    pub handed_over: bool,
    /// Envoys with a session, including orphaned sessions.
    pub envoys: usize,
    /// Requests that haven't ended.
    pub requests: usize,
}

/// One root context of a filter.
#[derive(Clone, Debug)]
pub struct SessionStatus {
    /// The first half of its epoch, in hex.
    pub id: String,
    /// The only pool whose requests it carries; `None`: it isn't limited to one.
    pub pool: Option<Arc<str>>,
    /// Envoy's node name.
    pub node: Box<str>,
    /// The number of the Envoy process, in hex; empty if the filter doesn't know it.
    pub envoy: String,
    /// How its requests come in.
    pub door: Door,
    /// The root context has a stream. Otherwise it is orphaned.
    pub open: bool,
    /// The root context's requests that wait in a queue.
    pub waiting: usize,
    /// The root context's requests in stock.
    pub running: usize,
    /// The root context's requests that were requeued and have another key now.
    pub moved: usize,
    /// Frames that were handled and aren't acknowledged yet.
    pub unacked: u64,
    /// Since its last frame.
    pub last_seen: Duration,
}

/// One pool.
#[derive(Clone, Debug)]
pub struct PoolStatus {
    /// The pool's name.
    pub name: Arc<str>,
    /// The configuration no longer has it.
    pub retired: bool,
    /// Addresses by the endpoint's number; empty for a free number.
    pub addresses: Vec<Box<str>>,
    /// Flows that are shown by name: public, and not idle for ten minutes.
    pub public_flows: HashSet<Box<str>>,
    /// The cost that each of them was served, in no order.
    pub served: Vec<(Box<str>, u64)>,
    /// The models that have requests or had some in the last ten minutes, by name.
    pub models: Vec<ModelStatus>,
    /// The cost of all other flows.
    pub other_served: u64,
    /// The rule by which its flows share the pool.
    pub discipline: Discipline,
    /// The state of its engine.
    pub snapshot: Snapshot,
    /// The model of its model servers; `None` without an autopilot.
    pub model: Option<AutopilotStatus>,
    /// Variants and metrics by the endpoint's number.
    pub servers: Vec<ServerStatus>,
    /// Running requests of orphaned sessions.
    pub orphaned_stock: u64,
    /// Waiting requests of orphaned sessions. They can't be granted.
    pub orphaned_waiting: u64,
}

/// The requests of one model in a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelStatus {
    /// The model that the clients request, and the one that the servers are asked for.
    pub model: ModelName,
    /// Requests in the queue.
    pub waiting: u64,
    /// Granted requests that haven't ended, at ready endpoints and others.
    pub running: u64,
}

/// The model server of an endpoint.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerStatus {
    /// The server's variant.
    pub variant: String,
    /// What it computes of a request.
    pub role: Role,
    /// The server's last metrics, unless they are too old.
    pub scraped: Option<Scraped>,
    /// Requests there that this companion didn't grant, at the time of its last metrics.
    pub foreign: u64,
    /// Its engine sleeps, by its last metrics, so that it gets no requests.
    pub is_asleep: bool,
    /// The time since the grant of the request that has run there for the longest; `None`: none runs.
    pub oldest_running: Option<Duration>,
}

impl PoolStatus {
    /// The address of an endpoint; empty for an unknown one.
    #[must_use]
    pub fn address(&self, id: EndpointId) -> &str {
        usize::try_from(id.0).ok().and_then(|index| self.addresses.get(index)).map_or("", |address| address)
    }

    /// The model server of an endpoint; `None` for an unknown one.
    #[must_use]
    pub fn server(&self, id: EndpointId) -> Option<&ServerStatus> {
        self.servers.get(usize::try_from(id.0).ok()?)
    }

    /// A flow's name in metrics and status: private flows and flows above the limit are `other`.
    #[must_use]
    pub fn shown<'a>(&self, flow: &'a str) -> &'a str {
        let flow = flow_name(flow);
        if self.public_flows.contains(flow) { flow } else { OTHER }
    }
}
