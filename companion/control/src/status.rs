//! A look at the whole, for /status and the gauges of /metrics.

use core::time::Duration;
use std::sync::Arc;

use hashbrown::HashSet;
use penstock_engine::input::EndpointId;
use penstock_engine::policy::Discipline;
use penstock_engine::snapshot::Snapshot;

/// Everything at one moment.
#[derive(Clone, Debug)]
pub struct Status {
    /// In the order of their nodes and epochs.
    pub sessions: Vec<SessionStatus>,
    /// In the order of the configuration.
    pub pools: Vec<PoolStatus>,
    /// Dispatch has begun.
    pub started: bool,
    /// New requests are refused.
    pub draining: bool,
    /// Requests that haven't ended.
    pub requests: usize,
}

/// One root context of a filter.
#[derive(Clone, Debug)]
pub struct SessionStatus {
    /// The first half of its epoch, in hex.
    pub id: String,
    /// Which Envoy.
    pub node: Box<str>,
    /// A stream speaks for it; else it is orphaned.
    pub open: bool,
    /// Its requests in a queue.
    pub waiting: usize,
    /// Its requests in stock.
    pub running: usize,
    /// Since its last frame.
    pub last_seen: Duration,
}

/// One pool.
#[derive(Clone, Debug)]
pub struct PoolStatus {
    /// Its name.
    pub name: Arc<str>,
    /// Addresses by the endpoint's number.
    pub addresses: Vec<Box<str>>,
    /// Flows whose identity may be shown.
    pub public_flows: HashSet<Box<str>>,
    /// By which rule its flows share.
    pub discipline: Discipline,
    /// What its engine shows.
    pub snapshot: Snapshot,
}

/// The flow of requests without an identity.
pub(crate) const ANONYMOUS: &str = "anonymous";
/// What stands for the flows that aren't shown, one by one.
const OTHER: &str = "other";

impl PoolStatus {
    /// The address of an endpoint; empty for one that never was.
    #[must_use]
    pub fn address(&self, id: EndpointId) -> &str {
        usize::try_from(id.0)
            .ok()
            .and_then(|at| self.addresses.get(at))
            .map_or("", |it| it)
    }

    /// A flow as it may be shown: private ones, and those past the limit, are `other`.
    #[must_use]
    pub fn shown<'a>(&self, flow: &'a str) -> &'a str {
        if flow.is_empty() {
            ANONYMOUS
        } else if self.public_flows.contains(flow) {
            flow
        } else {
            OTHER
        }
    }
}
