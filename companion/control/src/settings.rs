//! What a control is made with.

use core::time::Duration;

use hashbrown::HashMap;
use penstock_engine::Policy;
use penstock_engine::input::Band;
use penstock_engine::units::Decimal;
use penstock_wire as wire;

use crate::autopilot::Kept;

/// Everything a control holds to.
#[derive(Clone, Debug)]
pub struct Settings {
    /// At least one; the first whose globs match a model is its pool.
    pub pools: Vec<PoolSettings>,
    /// What every filter is told.
    pub policy: wire::Policy,
    /// Bands by the name of an objective.
    pub objectives: Vec<(String, Band)>,
    /// What a tenant may claim at most.
    pub max_priority: MaxPriority,
    /// Sessions that say Hello when all is well; `None`: unknown, the whole of `startup_wait` is waited.
    pub sessions_expected: Option<usize>,
    /// Dispatch begins when all expected sessions said Hello, at the latest after this.
    pub startup_wait: Duration,
    /// Flows of a pool whose identity is shown in metrics and status.
    pub flows_shown: usize,
    /// Rises with every companion that becomes active.
    pub term: u64,
    /// For tie-breaks and jitter.
    pub seed: u64,
}

/// One pool.
#[derive(Clone, Debug)]
pub struct PoolSettings {
    /// Unique.
    pub name: String,
    /// Globs; empty: every model.
    pub models: Vec<String>,
    /// The endpoints that are listed, in order.
    pub endpoints: Vec<EndpointSettings>,
    /// What its engine holds to.
    pub policy: Policy,
    /// What makes a flow, in order; empty: one flow for all. When it changes, what waits or runs stays in the flow that it
    /// was put in: it goes in its turn there, and only those that come later are told apart by the new key.
    pub flow_key: Vec<FlowKey>,
    /// Models of the policy's class sets after the first: globs, first match.
    pub class_globs: Vec<String>,
    /// Status of full queues and expired waits.
    pub capacity_status: u16,
    /// How often a request may be queued again after no server took it.
    pub requeues: u32,
    /// Its targets.
    pub slo: penstock_model::slo::Policy,
    /// What is used there is said, by [`Observation::Used`](crate::Observation::Used), where its discipline has windows.
    pub reported: bool,
    /// What earlier lives have learned of its servers, by variant.
    pub kept: Vec<(String, Kept)>,
    /// Which models the servers are asked for instead of the one that was asked for; globs, first match.
    pub rewrite: Vec<Rewrite>,
}

/// What a tenant may claim at most; a higher claim is lowered to it, and counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaxPriority {
    /// Of those that aren't named; `None`: whatever they like.
    pub default: Option<Band>,
    /// By fairness identity, as the client says it.
    pub tenants: HashMap<String, Band>,
}

/// The servers are asked for one of `targets` instead of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Rewrite {
    /// A glob: the models that were asked for.
    pub model: String,
    /// At least one: a model's name and its weight, finite and above 0.
    pub targets: Vec<(String, f64)>,
}

/// One endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSettings {
    /// `ip:port`, as Envoy writes it.
    pub address: String,
    /// Scales its bounds.
    pub weight: Decimal,
    /// Ready from the start: nothing checks its health.
    pub ready: bool,
    /// Servers of one variant share their model.
    pub variant: String,
    /// Requests in one batch of its server.
    pub max_batch: u64,
    /// Only requests that tolerate all of these go there.
    pub taints: Vec<String>,
}

/// A part of what makes a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowKey {
    /// The fairness identity.
    FairnessId,
    /// The user.
    User,
    /// The model asked for.
    Model,
    /// The model that the server is asked for: what [`PoolSettings::rewrite`] makes of the model.
    TargetModel,
}
