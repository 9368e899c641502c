//! The queue: pool -> band -> (model) -> class -> flow -> request. Each level chooses among its own children.
//!
//! Every level implements [`node::Node`], so its discipline can change without its neighbours. This file keeps what
//! waits; [`propagate`] picks downwards and updates upwards. A level with one child is a bit. A flow whose head can't be
//! dispatched is parked: under a closed eligibility set ([`EligibilitySets`]), or blocked because of its limit. It is
//! visited again when that changes, not before.

mod ahead;
mod audit;
mod backlogs;
mod charging;
mod classes;
mod counters;
mod disciplines;
mod displacements;
mod drr;
mod dynamo;
mod eligibility;
mod fairness_lag;
mod flows;
mod forgetting;
mod identities;
mod idle_flows;
mod lanes;
mod model_ids;
mod node;
mod order;
mod own_limits;
mod past_usage;
mod propagate;
mod queued;
mod queues;
mod reconfigure;
mod ring;
mod snapshot;
mod strict_priority;
mod suspension;
mod tallies;
mod tree_config;
mod usage;
mod virtual_time;

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;

use hashbrown::HashMap;

pub(crate) use self::ahead::Ahead;
use self::backlogs::{Amount, Backlog, Backlogs};
use self::classes::Classes;
use self::disciplines::{BandLevel, ClassLevel, FlowLevel, ModelLevel};
use self::eligibility::EligibilitySets;
use self::fairness_lag::FairnessLags;
use self::flows::{Flow, Flows};
pub(crate) use self::identities::ANONYMOUS;
use self::identities::{Identities, Identity, InBand};
use self::idle_flows::IdleTurn;
use self::model_ids::ModelIds;
pub(crate) use self::node::Receipts;
use self::order::Order;
pub(crate) use self::order::OrderKey;
pub(crate) use self::queued::Queued;
use self::queued::Waiting;
pub(crate) use self::reconfigure::Change;
use self::tree_config::TreeConfig;
use crate::band::TreeBand;
use crate::cost::VirtualTime;
use crate::endpoint::Endpoint;
use crate::endpoints::Endpoints;
use crate::hashed_name::NameHasher;
use crate::ids::{
    ChildId, ClassId, EligibilityId, FlowId, Id, IdentityId, JobId, LeafId, ModelId, ModelTreeId,
};
use crate::input::{Band, EndpointId};
use crate::policy::{Flows as FlowsPolicy, Policy};
use crate::slab::Slab;
use crate::time::Instant;

/// The flows of one band, model and class.
#[derive(Debug)]
struct Leaf {
    tree: ModelTreeId,
    class: ClassId,
    level: FlowLevel,
    lags: FairnessLags,
    waiting: u64,
    waiting_cost: u64,
    waiting_class_cost: u64,
    /// What waits of its flows. Unused under [`Discipline::Fifo`].
    backlogs: Backlogs,
    /// Whether the leaf was runnable when it last updated the levels above, and the epoch of that.
    propagated: Option<(bool, u64)>,
}

/// The requests of one model in one band, or of all models where they share a tree.
#[derive(Debug)]
struct ModelTree {
    band: TreeBand,
    /// [`ModelId::FIRST`] where all models share the tree.
    model: ModelId,
    /// The tree as the band's [`ModelLevel`] numbers it.
    child: ChildId,
    level: ClassLevel,
    /// By class; `None` until a flow needs the leaf.
    leaves: Vec<Option<LeafId>>,
    flows: u64,
    waiting: u64,
    waiting_cost: u64,
}

impl Leaf {
    /// All that waits.
    const fn amount(&self) -> Amount {
        Amount { requests: self.waiting as f64, cost: self.waiting_cost as f64 }
    }
}

impl ModelTree {
    /// What waits of it. All models have one weight.
    const fn backlog(&self) -> Backlog {
        Backlog { requests: self.waiting, cost: self.waiting_cost, weight: 1.0 }
    }
}

#[derive(Debug)]
struct BandNode {
    trees: HashMap<ModelId, ModelTreeId>,
    level: ModelLevel,
    /// What waits of its models; unused where they share a tree.
    models: Backlogs,
    waiting: Waiting,
    /// Flows with a head.
    heads: u64,
    over_ceiling: bool,
}

impl BandNode {
    fn new(config: &TreeConfig) -> Self {
        Self {
            trees: HashMap::new(),
            level: ModelLevel::new(config),
            models: Backlogs::default(),
            waiting: Waiting::default(),
            heads: 0,
            over_ceiling: false,
        }
    }
}

/// Everything that waits, and the order in which it goes.
///
/// The engine calls the methods in this order in the life of a request. Each updates the levels above, so that [`Self::pick`] is always
/// current; the tree is never searched.
///
/// 1. [`Self::flow_or_insert`] and [`Self::hold_eligibility`] give the request its flow and its eligibility set. It keeps both until
///    [`Self::release_flow`] and [`Self::release_eligibility`], also while it runs: settling needs the flow's state.
/// 2. `enqueue` makes it wait; [`Self::remove`] ends that without a charge. A newcomer that needn't wait takes [`Self::bypass`] instead.
/// 3. [`Self::pick`] shows the next request and changes nothing. The caller may leave it, because the gate or a budget holds it, and must
///    then change something before the next pick, or it would get the same request again.
/// 4. [`Self::dispatch`] takes exactly the picked request out and charges every level. No other change comes between the pick and the
///    dispatch: the disciplines serve the child that they have just picked.
/// 5. [`Self::settle`] corrects the charge, once, as soon as the cost is known; [`Self::ended`] releases what the identity's limits
///    count, when the request no longer runs. Either may come first.
///
/// The other methods bring what changes for all: [`Self::endpoint_changed`] after every change of an endpoint's room or load,
/// [`Self::apply_ceilings`] before a pick, [`Self::advance`] with the time, and [`Self::begin_change`] to [`Self::end_change`] around
/// another policy. Queries visit one flow or one identity, except those for snapshots and audits.
#[derive(Debug)]
pub(crate) struct Tree {
    config: TreeConfig,
    root: BandLevel,
    bands: [BandNode; TreeBand::COUNT],
    trees: Slab<ModelTreeId, ModelTree>,
    leaves: Slab<LeafId, Leaf>,
    classes: Classes,
    /// Classes that dispatch nothing now: see [`crate::Input::Dispatch`].
    blocked_classes: Vec<ClassId>,
    flows: Flows,
    identities: Identities,
    order: Order,
    eligibility: EligibilitySets,
    model_ids: ModelIds,
    /// Suspended requests.
    suspended: u64,
    /// The flows with nothing running and a request that could go, in the order in which they go above the bounds.
    idle: BTreeSet<(IdleTurn, FlowId)>,
    displacements: u64,
    /// Counts rebuilds of levels above the flows.
    epoch: u64,
    now: Instant,
}

impl Tree {
    pub(crate) fn new(policy: &Policy, names: NameHasher, seed: u64, now: Instant) -> Self {
        let config = TreeConfig::of(policy);
        Self {
            root: BandLevel::new(&config),
            bands: [(); TreeBand::COUNT].map(|()| BandNode::new(&config)),
            trees: Slab::default(),
            leaves: Slab::default(),
            classes: Classes::new(&policy.classes),
            blocked_classes: Vec::new(),
            flows: Flows::default(),
            identities: Identities::new(names, seed),
            order: Order::default(),
            eligibility: EligibilitySets::default(),
            model_ids: ModelIds::new(seed),
            suspended: 0,
            idle: BTreeSet::new(),
            displacements: 0,
            epoch: 0,
            config,
            now,
        }
    }

    pub(crate) const fn waiting(&self, band: TreeBand) -> Waiting {
        self.bands[band as usize].waiting
    }

    /// The waiting requests of all that is shown as `band`.
    pub(crate) fn waiting_shown(&self, band: Band) -> Waiting {
        let shown = TreeBand::shown_as(band).iter();
        shown.fold(Waiting::default(), |sum, &band| sum.plus(self.waiting(band)))
    }

    pub(crate) const fn waiting_in_all(&self) -> Waiting {
        let [a, b, c, d] = &self.bands;
        a.waiting.plus(b.waiting).plus(c.waiting.plus(d.waiting))
    }

    pub(crate) const fn classes(&self) -> &Classes {
        &self.classes
    }

    pub(crate) fn model_id(&mut self, name: &str) -> ModelId {
        self.model_ids.id_or_insert(name)
    }

    /// The name of a model; `None` if several share the id.
    pub(crate) fn model_name(&self, id: ModelId) -> Option<&Arc<str>> {
        self.model_ids.name(id)
    }

    /// The flow of an identity, created if necessary, and the identity's name if it shares the flow with others. The flow stays
    /// until [`Self::release_flow`] finds it unused.
    pub(crate) fn flow_or_insert(
        &mut self,
        name: Arc<str>,
        band: TreeBand,
        model: ModelId,
        class: ClassId,
        policy: &FlowsPolicy,
    ) -> (FlowId, Option<Arc<str>>) {
        let (identity, shared) = self.identities.get_or_insert(name, policy);
        let leaf = self.leaf_or_insert(band, model, class);
        (self.flow_at(identity, leaf), shared)
    }

    /// The identity of `name`, which the policy names, created if necessary. The caller then gives it a flow.
    pub(crate) fn named_identity(&mut self, name: &Arc<str>, policy: &FlowsPolicy) -> IdentityId {
        self.identities.get_or_insert(name.clone(), policy).0
    }

    /// The name of the identity that a request of the flow `name` would have now.
    pub(crate) fn account<'a>(&self, name: &'a str, policy: &FlowsPolicy) -> Cow<'a, str> {
        self.identities.account(name, policy)
    }

    pub(crate) fn identity(&self, identity: IdentityId) -> &Identity {
        self.identities.get(identity)
    }

    fn flow_at(&mut self, identity: IdentityId, leaf: LeafId) -> FlowId {
        if let Some(flow) = self.identities.get(identity).flow(leaf) {
            return flow;
        }
        let flow = self.flows.insert(Flow::new(identity, leaf, ChildId::ONLY));
        let node = self.identities.get(identity);
        let leaf_node = &mut self.leaves[leaf];
        self.flows[flow].child = leaf_node.level.add(flow, node.weight, node.is_anonymous(), &self.config);
        let tree = &mut self.trees[leaf_node.tree];
        tree.flows += 1;
        self.identities.flow_added(identity, tree.band, leaf, flow);
        flow
    }

    fn leaf_or_insert(&mut self, band: TreeBand, model: ModelId, class: ClassId) -> LeafId {
        let model = if self.config.per_model { model } else { ModelId::FIRST };
        let tree = self.tree_or_insert(band, model);
        let node = &mut self.trees[tree];
        *node.leaves[class.index()].get_or_insert_with(|| {
            self.leaves.insert(Leaf {
                tree,
                class,
                level: FlowLevel::new(&self.config, self.now),
                lags: FairnessLags::default(),
                waiting: 0,
                waiting_cost: 0,
                waiting_class_cost: 0,
                backlogs: Backlogs::default(),
                propagated: None,
            })
        })
    }

    fn tree_or_insert(&mut self, band: TreeBand, model: ModelId) -> ModelTreeId {
        let node = &mut self.bands[band as usize];
        let existing = || node.trees.get(&model).copied();
        if let Some(tree) = node.level.shared().or_else(existing) {
            return tree;
        }
        let tree = self.trees.insert(ModelTree {
            band,
            model,
            child: ChildId::ONLY,
            level: ClassLevel::new(&self.classes, &self.config),
            leaves: alloc::vec![None; self.classes.len()],
            flows: 0,
            waiting: 0,
            waiting_cost: 0,
        });
        self.trees[tree].child = node.level.add(tree, &self.config);
        node.trees.insert(model, tree);
        tree
    }

    pub(crate) fn flow(&self, flow: FlowId) -> &Flow {
        &self.flows[flow]
    }

    pub(crate) fn identity_of(&self, flow: FlowId) -> &Identity {
        self.identities.get(self.flows[flow].identity)
    }

    fn band_of(&self, flow: FlowId) -> TreeBand {
        self.trees[self.leaves[self.flows[flow].leaf].tree].band
    }

    /// The part of `flow`'s identity in `flow`'s band.
    pub(crate) fn in_band(&self, flow: FlowId) -> &InBand {
        &self.identity_of(flow).bands[self.band_of(flow) as usize]
    }

    pub(crate) fn identities(&self) -> impl Iterator<Item = &Identity> {
        self.identities.iter().map(|(_, identity)| identity)
    }

    /// The flows of `identity` that are shown in `band`.
    pub(crate) fn flows_shown_in<'a>(
        &'a self,
        identity: &'a Identity,
        band: Band,
    ) -> impl Iterator<Item = FlowId> + 'a {
        let bands = TreeBand::shown_as(band).iter();
        bands.flat_map(move |&band| self.flows_in(identity, band))
    }

    /// The flows of `identity` in `band`.
    pub(crate) fn flows_in<'a>(
        &'a self,
        identity: &'a Identity,
        band: TreeBand,
    ) -> impl Iterator<Item = FlowId> + 'a {
        let flows = identity.flows.iter().map(|&(_, flow)| flow);
        flows.filter(move |&flow| self.band_of(flow) == band)
    }

    /// The virtual finish time of `flow`'s last charge; under [`Discipline::Usage`] the usage of its identity per weight,
    /// over all bands, classes and models; zero where the discipline has none.
    pub(crate) fn finish(&self, flow: FlowId) -> VirtualTime {
        if self.has_usage_windows() {
            return self.usage_per_weight(flow);
        }
        let flow = &self.flows[flow];
        self.leaves[flow.leaf].level.finish(flow.child)
    }

    /// The flows that take turns with `flow`, itself included.
    pub(crate) fn flows_beside(&self, flow: FlowId) -> impl Iterator<Item = FlowId> {
        let leaf = self.flows[flow].leaf;
        self.flows.ids().filter(move |&other| self.flows[other].leaf == leaf)
    }

    /// The waiting requests of `flow`, in the order in which they go if none is suspended.
    pub(crate) fn in_order(&self, flow: FlowId) -> Vec<JobId> {
        self.order.in_order(&self.flows[flow].queue)
    }

    /// Holds the eligibility set of a request of `class` that may go to `eligible`, until [`Self::release_eligibility`].
    pub(crate) fn hold_eligibility(
        &mut self,
        class: ClassId,
        eligible: Option<Box<[EndpointId]>>,
        endpoints: &Endpoints,
    ) -> EligibilityId {
        let threshold = self.classes.get(class).threshold;
        self.eligibility.hold(threshold, eligible, endpoints)
    }

    /// Holds the set `id` without the endpoints `excluded`, which are sorted; empty: with all that it excluded.
    pub(crate) fn hold_without(
        &mut self,
        id: EligibilityId,
        excluded: &[EndpointId],
        endpoints: &Endpoints,
    ) -> EligibilityId {
        self.eligibility.hold_excluding(id, excluded, endpoints)
    }

    pub(crate) fn release_eligibility(&mut self, eligibility: EligibilityId) {
        self.eligibility.release(eligibility);
    }

    /// The endpoints of the set; `None`: all.
    pub(crate) fn eligible_endpoints(&self, eligibility: EligibilityId) -> Option<&[EndpointId]> {
        self.eligibility.eligible(eligibility)
    }

    /// Whether `request` may go to `endpoint` now, by the endpoint's room, the request's set, and its identity's limit.
    pub(crate) fn allows(&self, request: &Queued, endpoint: &Endpoint) -> bool {
        !self.is_full_at(request, endpoint) && self.eligibility.allows(request.eligibility, endpoint)
    }

    /// Whether `request` may go to `endpoint` if that has room, by the request's set, and its identity's limit.
    pub(crate) fn may_use(&self, request: &Queued, endpoint: &Endpoint) -> bool {
        !self.is_full_at(request, endpoint) && self.eligibility.includes(request.eligibility, endpoint)
    }

    /// The identity of `request` runs as many requests at `endpoint` as it may there.
    fn is_full_at(&self, request: &Queued, endpoint: &Endpoint) -> bool {
        let limit = self.config.max_in_flight_per_endpoint;
        limit.is_some_and(|limit| self.identity_of(request.flow).full_at(limit).any(|id| id == endpoint.id))
    }

    /// The endpoints that take the head of `flow` now, whatever its size; `None`: all with room.
    pub(crate) fn able_endpoints(&self, flow: FlowId) -> Option<Vec<EndpointId>> {
        self.eligibility.able(self.flows[flow].head_eligibility?)
    }

    /// The identity of this name, if it has a flow.
    pub(crate) fn identity_named(&self, name: &str) -> Option<&Identity> {
        Some(self.identities.get(self.identities.named(name)?))
    }

    /// A flow of the identity of this name.
    pub(crate) fn flow_named(&self, name: &str) -> Option<FlowId> {
        self.identity_named(name)?.flows.first().map(|&(_, flow)| flow)
    }

    /// One flow of each identity.
    pub(crate) fn first_flows(&self) -> Vec<FlowId> {
        let first = self.identities().filter_map(|identity| identity.flows.first());
        first.map(|&(_, flow)| flow).collect()
    }

    /// The flow of the same identity, model and class as `flow` in `band`, created if necessary. `identity`: another one.
    pub(crate) fn flow_in_band(
        &mut self,
        flow: FlowId,
        identity: Option<IdentityId>,
        band: TreeBand,
    ) -> FlowId {
        let node = &self.flows[flow];
        let (identity, leaf) = (identity.unwrap_or(node.identity), &self.leaves[node.leaf]);
        let (model, class) = (self.trees[leaf.tree].model, leaf.class);
        let leaf = self.leaf_or_insert(band, model, class);
        self.flow_at(identity, leaf)
    }
}
