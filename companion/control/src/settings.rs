//! The settings of a control.

use core::time::Duration;
use std::sync::Arc;

use penstock_autopilot::{Kept, PendingServers};
use penstock_engine::Policy;
use penstock_engine::input::{Band, Role};
use penstock_engine::policy::{FlowKey, MaxPriority, Rewrite};
use penstock_engine::units::Decimal;
use penstock_wire as wire;

/// All settings of a control. By default it has no pools, and dispatch begins at once.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The only pool about which the control decides: its filters send it no other requests. `None`: all that follow.
    pub pool: Option<Arc<str>>,
    /// At least one, except where each pool has a control of its own. A model belongs to the first pool with a glob that matches it.
    pub pools: Vec<PoolSettings>,
    /// The policy that every filter gets.
    pub policy: wire::Policy,
    /// The highest band that a tenant may claim. A higher claim is lowered to it, and counted.
    pub max_priority: MaxPriority,
    /// Sessions that are open in normal operation; `None` if that isn't known.
    pub sessions_expected: Option<usize>,
    /// Dispatch begins when all expected sessions are open, at the latest after this time.
    pub startup_wait: Duration,
    /// Filters can open sessions after this time at the latest, and `startup_wait` begins then, or with [`Event::Serving`](crate::Event::Serving).
    pub opens_within: Duration,
    /// Flows of all pools together that metrics and status show by name.
    pub flows_shown: usize,
    /// Rises with every companion that becomes active. With several companions, the election sets it.
    pub term: u64,
    /// There are several companions: this one stands by until the election makes it the leader.
    pub is_replicated: bool,
    /// For tie-breaks and jitter.
    pub seed: u64,
}

/// One pool.
#[derive(Clone, Debug)]
pub struct PoolSettings {
    /// Unique.
    pub name: String,
    /// Globs; empty for every model.
    pub models: Vec<String>,
    /// Requests that name no model belong to this pool.
    pub is_default: bool,
    /// The endpoints, in order.
    pub endpoints: Vec<EndpointSettings>,
    /// Servers that exist and are no endpoints yet, each variant and batch size once.
    pub pending: Vec<PendingServers>,
    /// The policy of its engine.
    pub policy: Policy,
    /// The parts of a flow's name, in order; empty for one flow. After a change, requests that wait or run stay in their
    /// flow, and the new key applies to later requests.
    pub flow_key: Vec<FlowKey>,
    /// Globs of the models of the policy's class sets after the first. The first match counts.
    pub class_globs: Vec<String>,
    /// The HTTP status for full queues and expired waits.
    pub capacity_status: u16,
    /// How often a request may be requeued after an endpoint failed it. `None`: until its ttl ends.
    pub requeues: Option<u32>,
    /// How often a request goes elsewhere after a server cut its connection.
    pub resets: u32,
    /// Filters may admit requests by themselves while the pool has much room. `None`: never.
    pub credit: Option<CreditSettings>,
    /// The latency targets.
    pub slo: penstock_model::slo::Policy,
    /// For so long after it has become ready, the performance model doesn't learn from an endpoint.
    pub transient: Duration,
    /// Settled costs are output as [`PoolNews::Used`](crate::PoolNews::Used), if its discipline has windows, and what happens to
    /// budgets as [`PoolNews::Budget`](crate::PoolNews::Budget).
    pub reported: bool,
    /// What flows run is output as [`PoolNews::Running`](crate::PoolNews::Running), if its discipline has windows,
    /// because other companions count it. They hear of resets of budgets, too.
    pub shared: bool,
    /// Parameters that were learned before this companion's start, by variant.
    pub kept: Vec<(String, Kept)>,
    /// Model rewrites: globs, the first match counts.
    pub rewrite: Vec<Rewrite>,
    /// The variant of servers that are found without their own.
    pub default_variant: String,
    /// Bands by the name of an objective, each name once.
    pub objectives: Vec<(String, Band)>,
}

/// A pool without a name and endpoints, which serves every model and has every option off.
impl Default for PoolSettings {
    fn default() -> Self {
        Self {
            name: String::new(),
            models: Vec::new(),
            is_default: true,
            endpoints: Vec::new(),
            pending: Vec::new(),
            policy: Policy::default(),
            flow_key: vec![FlowKey::FairnessId],
            class_globs: Vec::new(),
            capacity_status: 503,
            requeues: None,
            resets: 1,
            credit: None,
            slo: penstock_model::slo::Policy::default(),
            transient: Duration::from_secs(120),
            reported: false,
            shared: false,
            kept: Vec::new(),
            rewrite: Vec::new(),
            default_variant: "default".to_owned(),
            objectives: Vec::new(),
        }
    }
}

/// When filters may admit requests by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditSettings {
    /// A filter is busy, and gets credit, with so many requests of the pool within a second.
    pub busy_min: u32,
    /// Where prompts choose their endpoint by their prefix, those of at least as many tokens ask.
    pub prefix_min_tokens: u64,
}

impl CreditSettings {
    /// Requests within a second that make a filter busy.
    pub const BUSY_MIN: u32 = 32;
}

impl Default for CreditSettings {
    fn default() -> Self {
        Self { busy_min: Self::BUSY_MIN, prefix_min_tokens: 256 }
    }
}

/// One endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSettings {
    /// `ip:port`, in Envoy's notation.
    pub address: String,
    /// Scales the endpoint's bounds.
    pub weight: Decimal,
    /// The endpoint is ready from the start, because its health isn't checked.
    pub ready: bool,
    /// Endpoints of one variant share a performance model.
    pub variant: String,
    /// Requests in one batch of the model server.
    pub max_batch: u64,
    /// Tokens that the model server computes in one iteration; `None`: unknown.
    pub max_batched_tokens: Option<u64>,
    /// Only a request that tolerates all of them may go there.
    pub taints: Vec<String>,
    /// What it computes of a request.
    pub role: Role,
}

/// A ready endpoint without an address.
impl Default for EndpointSettings {
    fn default() -> Self {
        Self {
            address: String::new(),
            weight: Decimal::whole(1),
            ready: true,
            variant: "default".into(),
            max_batch: 256,
            max_batched_tokens: None,
            taints: Vec::new(),
            role: Role::Both,
        }
    }
}
