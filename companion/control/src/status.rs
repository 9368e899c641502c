//! A look at the whole, for /status and the gauges of /metrics.

use core::time::Duration;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use penstock_engine::Instant;
use penstock_engine::input::EndpointId;
use penstock_engine::policy::Discipline;
use penstock_engine::snapshot::Snapshot;

use crate::autopilot::{AutopilotStatus, Scraped};
use crate::control::Control;
use crate::envoys::Envoy;
use crate::pool::Pool;

/// Everything at one moment.
#[derive(Clone, Debug)]
pub struct Status {
    /// In the order of their nodes and epochs.
    pub sessions: Vec<SessionStatus>,
    /// In the order of the configuration; behind them those that it doesn't have any more, until the last of their
    /// requests has ended.
    pub pools: Vec<PoolStatus>,
    /// Dispatch has begun.
    pub started: bool,
    /// All expected sessions were open at the same time once; `false` too when their number isn't known.
    pub gathered: bool,
    /// New requests are refused.
    pub draining: bool,
    /// Another companion has taken over.
    pub handed_over: bool,
    /// Envoys that have a session, orphaned ones included.
    pub envoys: usize,
    /// Requests that haven't ended.
    pub requests: usize,
}

/// One root context of a filter.
#[derive(Clone, Debug)]
pub struct SessionStatus {
    /// The first half of its epoch, in hex.
    pub id: String,
    /// How its operator calls its Envoy.
    pub node: Box<str>,
    /// Which Envoy process, in hex; empty: it doesn't say.
    pub envoy: String,
    /// A stream speaks for it; else it is orphaned.
    pub open: bool,
    /// Its requests in a queue.
    pub waiting: usize,
    /// Its requests in stock.
    pub running: usize,
    /// Its requests that go on under another name, because no server took them.
    pub moved: usize,
    /// Frames of it that were handled and not acknowledged yet.
    pub unacked: u64,
    /// Since its last frame.
    pub last_seen: Duration,
}

/// One pool.
#[derive(Clone, Debug)]
pub struct PoolStatus {
    /// Its name.
    pub name: Arc<str>,
    /// The configuration doesn't have it any more.
    pub retired: bool,
    /// Addresses by the endpoint's number; empty: nobody has that number.
    pub addresses: Vec<Box<str>>,
    /// Flows whose identity may be shown, and isn't idle for ten minutes.
    pub public_flows: HashSet<Box<str>>,
    /// What each of these was served, by name; its order says nothing.
    pub served: Vec<(Box<str>, u64)>,
    /// What all others were served.
    pub other_served: u64,
    /// By which rule its flows share.
    pub discipline: Discipline,
    /// What its engine shows.
    pub snapshot: Snapshot,
    /// What is known of its servers; `None`: nothing looks.
    pub model: Option<AutopilotStatus>,
    /// By the endpoint's number: its variant, and what its server last said of itself.
    pub servers: Vec<ServerStatus>,
    /// Of the requests that run, those of orphaned sessions.
    pub orphaned_stock: u64,
    /// Of the requests that wait, those of orphaned sessions: they can't go.
    pub orphaned_waiting: u64,
}

/// The server of an endpoint.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerStatus {
    /// Its variant.
    pub variant: String,
    /// What it last said of itself, if that isn't too old.
    pub scraped: Option<Scraped>,
    /// Requests there that aren't ours, as of then.
    pub foreign: u64,
}

/// The flow of requests without an identity.
pub(crate) const ANONYMOUS: &str = "anonymous";

/// A flow as its engine calls it.
pub(crate) const fn named(flow: &str) -> &str {
    if flow.is_empty() { ANONYMOUS } else { flow }
}

/// What stands for the flows that aren't shown, one by one.
const OTHER: &str = "other";

impl Control {
    /// A look at the whole.
    #[must_use]
    pub fn status(&self, now: Instant) -> Status {
        let contexts = &self.requests.contexts;
        let mut waiting: HashMap<_, usize> = HashMap::with_capacity(contexts.len());
        let mut orphaned = vec![(0, 0); self.pools.len()];
        for (_, entry) in self.requests.entries() {
            *waiting.entry(entry.name.epoch).or_default() += usize::from(entry.waits());
            if contexts.get(&entry.name.epoch).is_none_or(|it| it.conn.is_none()) {
                let (stock, queued) = &mut orphaned[entry.pool];
                *stock += u64::from(!entry.waits());
                *queued += u64::from(entry.waits());
            }
        }
        let mut in_order: Vec<_> = contexts.iter().collect();
        in_order.sort_unstable_by(|(a, of_a), (b, of_b)| (&of_a.node, a).cmp(&(&of_b.node, b)));
        let sessions = in_order
            .into_iter()
            .map(|(epoch, context)| {
                let waiting = waiting.get(epoch).copied().unwrap_or_default();
                let session = context.conn.and_then(|conn| self.sessions.get(&conn));
                let seen = session.map(|it| it.last_seen).or(context.orphaned);
                SessionStatus {
                    id: format!("{:016x}", epoch.0 >> 64),
                    node: context.node.clone(),
                    envoy: match context.envoy {
                        Envoy::Named(named) => format!("{named:016x}"),
                        Envoy::Unnamed(_) => String::new(),
                    },
                    open: context.conn.is_some(),
                    waiting,
                    running: context.requests.len() - waiting,
                    moved: self.requests.moved_of(*epoch),
                    unacked: session.map_or(0, |it| it.unacked()),
                    last_seen: now.since(seen.unwrap_or(now)),
                }
            })
            .collect();
        let pools = self.pools.iter().zip(orphaned);
        let pools = pools.map(|(pool, (orphaned_stock, orphaned_waiting))| {
            let snapshot = pool.engine.snapshot();
            let served = served(pool, &snapshot, now);
            PoolStatus {
                name: pool.name.clone(),
                retired: pool.retired,
                addresses: pool.addresses(),
                public_flows: served.iter().map(|(flow, _)| flow.clone()).collect(),
                served,
                other_served: pool.shown.other_served(),
                discipline: pool.policy.flows.discipline,
                servers: pool.servers(&snapshot),
                snapshot,
                model: Some(pool.autopilot.status()),
                orphaned_stock,
                orphaned_waiting,
            }
        });
        Status {
            sessions,
            pools: pools.collect(),
            started: self.started,
            gathered: self.gathered,
            draining: self.draining,
            handed_over: self.handed_over,
            envoys: self.envoys.len(),
            requests: self.requests.len(),
        }
    }
}

/// The flows of a pool that are shown, and what each was served.
fn served(pool: &Pool, snapshot: &Snapshot, now: Instant) -> Vec<(Box<str>, u64)> {
    let flows = snapshot.flows.iter();
    let busy: HashSet<&str> = flows
        .filter(|flow| flow.waiting > 0 || flow.in_flight > 0)
        .map(|flow| &*flow.key)
        .collect();
    pool.shown.at(now, |flow| busy.contains(flow))
}

impl PoolStatus {
    /// The address of an endpoint; empty for one that never was.
    #[must_use]
    pub fn address(&self, id: EndpointId) -> &str {
        usize::try_from(id.0)
            .ok()
            .and_then(|at| self.addresses.get(at))
            .map_or("", |it| it)
    }

    /// The server of an endpoint of this pool; of an unknown one, none.
    #[must_use]
    pub fn server(&self, id: EndpointId) -> Option<&ServerStatus> {
        self.servers.get(usize::try_from(id.0).ok()?)
    }

    /// A flow as it may be shown: private ones, and those past the limit, are `other`.
    #[must_use]
    pub fn shown<'a>(&self, flow: &'a str) -> &'a str {
        let flow = named(flow);
        if self.public_flows.contains(flow) {
            flow
        } else {
            OTHER
        }
    }
}
