//! Who goes next: pool -> band -> (model) -> class -> flow -> order, each level choosing among its own children.
//!
//! Every level answers the one contract of [`node::Node`], so a level's rule can be another without its neighbours
//! knowing. This file keeps what waits and runs; [`walk`] goes down to pick and up to tell each level what changed
//! below it. A level with one child is a bit. What can't go is parked under what it waits for: in a lane
//! ([`Lanes`]), or blocked with its identity, and is looked at again when that changes, not before.

mod agenda;
mod audit;
mod classes;
mod disciplines;
mod drr;
mod dynamo;
mod eligibility;
mod fairness_lag;
mod flows;
mod identities;
mod models;
mod node;
mod order;
mod past_usage;
mod propagate;
mod reconfigure;
mod ring;
mod strict_priority;
mod suspended;
mod tree_config;
mod usage;
mod virtual_time;

use alloc::boxed::Box;
use alloc::vec::Vec;

use hashbrown::HashMap;

use crate::cost::{Charge, Virtual};
use crate::endpoint::Endpoint;
use crate::endpoints::Endpoints;
use crate::input::{Band, ClassKey, EndpointId};
use crate::policy::{Discipline, Flows as FlowsPolicy, Policy};
use crate::slab::Slab;
use crate::time::Instant;

pub(crate) use classes::Classes;
use disciplines::{Bands, FlowScheduler, Models as ModelTrees, Ring};
pub(crate) use eligibility::LaneId;
use eligibility::Lanes;
use flows::{Flow, Flows};
use identities::Identities;
pub(crate) use identities::{Identity, InBand};
use models::Models;
use node::{ChildId, Receipt};
use order::Order;
pub(crate) use order::{OrderKey, score};
use tree_config::TreeConfig;

/// The bands, most critical first.
pub(crate) const BANDS: [Band; 3] = [Band::Critical, Band::Default, Band::Sheddable];

/// When a request first came, and which of those that came then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Arrival {
    pub(crate) at: Instant,
    pub(crate) sequence: u64,
}

/// What waits somewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    pub(crate) cost: u64,
}

impl Waiting {
    const fn add(&mut self, request: &Queued) {
        self.requests += 1;
        self.bytes += request.bytes;
        self.cost += request.cost;
    }

    const fn take(&mut self, request: &Queued) {
        self.requests -= 1;
        self.bytes -= request.bytes;
        self.cost -= request.cost;
    }
}

/// A request as the tree knows it; by number it is the same one everywhere in the engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queued {
    pub(crate) flow: u32,
    pub(crate) class: u32,
    /// Of its class and its own endpoints; it holds it.
    pub(crate) lane: LaneId,
    /// Its model, by number.
    pub(crate) model: u32,
    /// What it costs its flow and its band.
    pub(crate) cost: u64,
    /// What it costs its class.
    pub(crate) class_cost: u64,
    /// Tokens, and of these the cached ones.
    pub(crate) prompt: u64,
    pub(crate) cached: u64,
    pub(crate) bytes: u64,
    /// It can't go, whatever may, and holds nobody back.
    pub(crate) suspended: bool,
    /// Higher goes first in its flow;
    pub(crate) strict: u8,
    /// then the lower [`order::score`], then by arrival.
    pub(crate) score: u64,
    pub(crate) arrival: Arrival,
}

/// What every level took for a request that runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Receipts {
    band: Receipt,
    model: Receipt,
    class: Receipt,
    flow: Receipt,
    /// Of the levels above the flows: they may have been built anew since.
    epoch: u64,
}

/// Flows of one band, model and class.
#[derive(Debug)]
struct Leaf {
    tree: u32,
    class: u32,
    level: FlowScheduler,
    gaps: fairness_lag::FairnessLags,
    waiting: u64,
    /// Whether it could go when those above were last told, and the epoch in which that was.
    told: Option<(bool, u64)>,
}

/// What is of one model, or all, in one band.
#[derive(Debug)]
struct Model {
    band: Band,
    /// By number; 0 where all models share.
    model: u32,
    /// In the band's ring of models, if there is one.
    child: ChildId,
    ring: Ring,
    /// By class; [`NONE`] until something comes.
    leaves: Vec<u32>,
    flows: u64,
    waiting: u64,
}

const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct BandNode {
    /// By model.
    trees: HashMap<u32, u32>,
    models: ModelTrees,
    waiting: Waiting,
    /// Over its ceiling.
    over: bool,
}

impl BandNode {
    fn new(shape: &TreeConfig) -> Self {
        Self {
            trees: HashMap::new(),
            models: ModelTrees::new(shape),
            waiting: Waiting::default(),
            over: false,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Tree {
    shape: TreeConfig,
    pool: Bands,
    bands: [BandNode; 3],
    trees: Slab<Model>,
    leaves: Slab<Leaf>,
    classes: Classes,
    /// Classes of which nothing may go now, by number.
    held: Vec<u32>,
    flows: Flows,
    identities: Identities,
    order: Order,
    lanes: Lanes,
    models: Models,
    /// Requests that wait and are.
    suspended: u64,
    preemptions: u64,
    epoch: u64,
    now: Instant,
}

impl Tree {
    pub(crate) fn new(policy: &Policy, seed: u64, now: Instant) -> Self {
        let shape = TreeConfig::of(policy);
        Self {
            pool: Bands::new(&shape),
            bands: [(); 3].map(|()| BandNode::new(&shape)),
            trees: Slab::default(),
            leaves: Slab::default(),
            classes: Classes::new(&policy.classes),
            held: Vec::new(),
            flows: Flows::default(),
            identities: Identities::new(seed),
            order: Order::default(),
            lanes: Lanes::default(),
            models: Models::new(seed),
            suspended: 0,
            preemptions: 0,
            epoch: 0,
            shape,
            now,
        }
    }

    /// What waits in `band`.
    pub(crate) const fn waiting(&self, band: Band) -> Waiting {
        self.bands[band as usize].waiting
    }

    /// What waits at all.
    pub(crate) const fn waiting_in_all(&self) -> Waiting {
        let [a, b, c] = &self.bands;
        let (a, b, c) = (a.waiting, b.waiting, c.waiting);
        Waiting {
            requests: a.requests + b.requests + c.requests,
            bytes: a.bytes + b.bytes + c.bytes,
            cost: a.cost + b.cost + c.cost,
        }
    }

    /// Requests that wait and are no less critical than `band`.
    pub(crate) fn waiting_before(&self, band: Band) -> u64 {
        let before = BANDS.into_iter().filter(|&other| other <= band);
        before.map(|other| self.waiting(other).requests).sum()
    }

    /// Requests that would go before the next newcomer of `flow`, were all of one size: what is more critical, what its
    /// flow has, and of every other flow of its band as many, by weight, as its own has with it.
    pub(crate) fn before_next(&self, flow: u32) -> u64 {
        let band = self.band_of(flow);
        if self.shape.discipline == Discipline::Fifo {
            return self.waiting_before(band);
        }
        let own = self.flows[flow].waiting;
        let turns = (own + 1) as f64 / self.identity_of(flow).weight;
        let others = self.flow_numbers(band).filter(|&other| other != flow);
        let before = others.map(|other| {
            let turns = libm::ceil(turns * self.identity_of(other).weight) as u64;
            self.flows[other].waiting.min(turns)
        });
        self.waiting_before(band) - self.waiting(band).requests + own + before.sum::<u64>()
    }

    pub(crate) const fn classes(&self) -> &Classes {
        &self.classes
    }

    /// The number of the model of this name.
    pub(crate) fn model(&mut self, name: &str) -> u32 {
        self.models.number(name)
    }

    /// The class of a request of the model of `set` that has so many prompt tokens, not cached.
    pub(crate) fn classify(&self, set: u16, key: &ClassKey, uncached: u64) -> u32 {
        self.classes.classify(set, key, uncached)
    }

    /// The flow of this identity there, made if it isn't there. It stays until [`Self::release_flow`] finds it
    /// unused.
    pub(crate) fn flow(
        &mut self,
        name: Box<str>,
        band: Band,
        model: u32,
        class: u32,
        policy: &FlowsPolicy,
    ) -> u32 {
        let identity = self.identities.get_or_add(name, policy);
        let leaf = self.leaf(band, model, class);
        self.flow_at(identity, leaf)
    }

    fn flow_at(&mut self, identity: u32, leaf: u32) -> u32 {
        if let Some(flow) = self.identities.get(identity).flow(leaf) {
            return flow;
        }
        let flow = self.flows.insert(Flow::new(identity, leaf, ChildId::MAX));
        let node = self.identities.get(identity);
        let at = &mut self.leaves[leaf];
        self.flows[flow].child = at.level.add(flow, node.weight, node.is_anonymous(), &self.shape);
        let tree = &mut self.trees[at.tree];
        tree.flows += 1;
        self.identities.joined(identity, tree.band, leaf, flow);
        flow
    }

    pub(crate) fn flow_of(&self, flow: u32) -> &Flow {
        &self.flows[flow]
    }

    pub(crate) fn identity_of(&self, flow: u32) -> &Identity {
        self.identities.get(self.flows[flow].identity)
    }

    pub(crate) fn band_of(&self, flow: u32) -> Band {
        self.trees[self.leaves[self.flows[flow].leaf].tree].band
    }

    /// What the identity of `flow` has in the band of `flow`.
    pub(crate) fn in_band(&self, flow: u32) -> &InBand {
        &self.identity_of(flow).bands[self.band_of(flow) as usize]
    }

    pub(crate) fn identities(&self) -> impl Iterator<Item = &Identity> {
        self.identities.iter().map(|(_, identity)| identity)
    }

    /// The flows of `identity` in `band`, by number.
    pub(crate) fn flows_in<'a>(
        &'a self,
        identity: &'a Identity,
        band: Band,
    ) -> impl Iterator<Item = u32> + 'a {
        let flows = identity.flows.iter().map(|&(_, flow)| flow);
        flows.filter(move |&flow| self.band_of(flow) == band)
    }

    /// Where the last charge of `flow` ends in virtual time; zero where its discipline has none.
    pub(crate) fn finish(&self, flow: u32) -> Virtual {
        let flow = &self.flows[flow];
        self.leaves[flow.leaf].level.finish(flow.child)
    }

    /// The flows of `band`, by number.
    pub(crate) fn flow_numbers(&self, band: Band) -> impl Iterator<Item = u32> {
        let flows = self.flows.iter().map(|(number, _)| number);
        flows.filter(move |&flow| self.band_of(flow) == band)
    }

    /// The requests of `flow` that wait, in the order in which they go were none suspended.
    pub(crate) fn in_order(&self, flow: u32) -> Vec<u32> {
        self.order.in_order(&self.flows[flow].queue)
    }

    /// The lane of those of `class` who may go to `eligible` only. Held until [`Self::release_lane`].
    pub(crate) fn lane(
        &mut self,
        class: u32,
        eligible: Option<Box<[EndpointId]>>,
        endpoints: &Endpoints,
    ) -> LaneId {
        let threshold = self.classes.get(class).threshold;
        self.lanes.hold(threshold, eligible, endpoints)
    }

    pub(crate) fn release_lane(&mut self, lane: LaneId) {
        self.lanes.release(lane);
    }

    /// Who those of `lane` may go to; `None`: all.
    pub(crate) fn eligible(&self, lane: LaneId) -> Option<&[EndpointId]> {
        self.lanes.eligible(lane)
    }

    /// Whether `request` could go to `endpoint` now, as far as that is for the two and its flow to say.
    pub(crate) fn takes(&self, request: &Queued, endpoint: &Endpoint) -> bool {
        let full = self.shape.max_in_flight_per_endpoint.is_some_and(|most| {
            self.identity_of(request.flow)
                .full_at(most)
                .any(|id| id == endpoint.id)
        });
        !full && self.lanes.takes(request.lane, endpoint)
    }

    /// Who takes the next request of `flow`, as far as that isn't for its size to say; `None`: all that have room.
    pub(crate) fn able(&self, flow: u32) -> Option<Vec<EndpointId>> {
        self.lanes.able(self.flows[flow].standing?)
    }

    /// Whether the identity of `flow` runs as much as it may.
    pub(crate) fn is_at_limit(&self, flow: u32) -> bool {
        let most = self.shape.max_in_flight;
        most.is_some_and(|most| self.identity_of(flow).in_flight >= most)
    }

    /// `request` waits from now on.
    pub(crate) fn enqueue(&mut self, number: u32, request: &Queued, endpoints: &Endpoints) {
        if self.insert(number, request) {
            self.head_changed(request.flow, endpoints);
        }
    }

    /// `request` waits no more; it isn't charged by this.
    pub(crate) fn remove(&mut self, number: u32, request: &Queued, endpoints: &Endpoints) {
        if self.take_out(number, request) || self.flows[request.flow].waiting == 0 {
            self.head_changed(request.flow, endpoints);
        }
    }

    /// Into every sum and its flow's queue; whether it is next there.
    fn insert(&mut self, number: u32, request: &Queued) -> bool {
        let flow = &mut self.flows[request.flow];
        let leaf = &mut self.leaves[flow.leaf];
        let tree = &mut self.trees[leaf.tree];
        flow.waiting += 1;
        leaf.waiting += 1;
        tree.waiting += 1;
        self.bands[tree.band as usize].waiting.add(request);
        self.classes.get_mut(leaf.class).waiting.add(request);
        let identity = self.identities.get_mut(flow.identity);
        identity.bands[tree.band as usize].waiting.add(request);
        self.identities.waiting_changed(flow.identity, tree.band);
        self.suspended += u64::from(request.suspended);
        self.order.insert(&mut flow.queue, number, request)
    }

    /// Out of every sum and its flow's queue; whether it was next there.
    fn take_out(&mut self, number: u32, request: &Queued) -> bool {
        let flow = &mut self.flows[request.flow];
        let leaf = &mut self.leaves[flow.leaf];
        let tree = &mut self.trees[leaf.tree];
        flow.waiting -= 1;
        leaf.waiting -= 1;
        tree.waiting -= 1;
        self.bands[tree.band as usize].waiting.take(request);
        self.classes.get_mut(leaf.class).waiting.take(request);
        let identity = self.identities.get_mut(flow.identity);
        identity.bands[tree.band as usize].waiting.take(request);
        self.identities.waiting_changed(flow.identity, tree.band);
        self.suspended -= u64::from(request.suspended);
        self.order.remove(&mut flow.queue, number, request.suspended)
    }

    /// `request`, which waits and was picked, goes to `endpoint`: it waits no more, is charged on every level, and
    /// runs until [`Self::ended`].
    pub(crate) fn dispatch(
        &mut self,
        number: u32,
        request: &Queued,
        charge: &Charge,
        endpoint: EndpointId,
        endpoints: &Endpoints,
    ) -> Receipts {
        let receipts = self.serve_path(request.flow, charge);
        self.flows[request.flow].in_flight += 1;
        let turned = self.count_started(self.flows[request.flow].identity, endpoint);
        self.remove(number, request, endpoints);
        if turned {
            self.limits_changed(self.flows[request.flow].identity, endpoints);
        }
        self.forget_idle(self.flows[request.flow].leaf);
        receipts
    }

    /// The same for one that doesn't wait.
    pub(crate) fn charge(
        &mut self,
        flow: u32,
        charge: &Charge,
        endpoint: EndpointId,
        endpoints: &Endpoints,
    ) -> Receipts {
        let receipts = self.charge_path(flow, charge);
        self.flows[flow].in_flight += 1;
        let turned = self.count_started(self.flows[flow].identity, endpoint);
        if self.flows[flow].waiting > 0 {
            self.head_changed(flow, endpoints);
        } else {
            self.tell_up(self.flows[flow].leaf);
        }
        if turned {
            self.limits_changed(self.flows[flow].identity, endpoints);
        }
        self.forget_idle(self.flows[flow].leaf);
        receipts
    }

    /// A request of `flow` that was charged turns out to cost `real`; see [`node::Node::settle`].
    pub(crate) fn settle(&mut self, flow: u32, charge: &Charge, receipts: &Receipts, real: Option<u64>) {
        self.settle_path(flow, charge, receipts, real);
        self.tell_up(self.flows[flow].leaf);
    }

    /// A request of `flow` runs at `endpoint` no more. [`Self::release_flow`] follows, or it waits again.
    pub(crate) fn ended(&mut self, flow: u32, endpoint: EndpointId, endpoints: &Endpoints) {
        self.flows[flow].in_flight -= 1;
        let identity = self.flows[flow].identity;
        if self.count_ended(identity, endpoint) {
            self.limits_changed(identity, endpoints);
        }
    }

    /// A request of `flow` runs at another endpoint than was said.
    pub(crate) fn moved(&mut self, flow: u32, from: EndpointId, to: EndpointId, endpoints: &Endpoints) {
        let identity = self.flows[flow].identity;
        let left = self.count_ended(identity, from);
        if self.count_started(identity, to) || left {
            self.limits_changed(identity, endpoints);
        }
    }

    /// Whether a limit turned by that.
    fn count_started(&mut self, identity: u32, endpoint: EndpointId) -> bool {
        let node = self.identities.get_mut(identity);
        node.in_flight += 1;
        let mut turned = self.shape.max_in_flight == Some(node.in_flight);
        if let Some(most) = self.shape.max_in_flight_per_endpoint {
            let found = node.in_flight_at.binary_search_by_key(&endpoint, |&(id, _)| id);
            let at = found.unwrap_or_else(|at| {
                node.in_flight_at.insert(at, (endpoint, 0));
                at
            });
            node.in_flight_at[at].1 += 1;
            turned |= node.in_flight_at[at].1 == most;
        }
        turned
    }

    fn count_ended(&mut self, identity: u32, endpoint: EndpointId) -> bool {
        let node = self.identities.get_mut(identity);
        let mut turned = self.shape.max_in_flight == Some(node.in_flight);
        node.in_flight -= 1;
        if let Some(most) = self.shape.max_in_flight_per_endpoint
            && let Ok(at) = node.in_flight_at.binary_search_by_key(&endpoint, |&(id, _)| id)
        {
            turned |= node.in_flight_at[at].1 == most;
            node.in_flight_at[at].1 -= 1;
            if node.in_flight_at[at].1 == 0 {
                node.in_flight_at.remove(at);
            }
        }
        turned
    }

    /// Forgets `flow` if nothing of it waits or runs, once nothing is owed any more; what it left may let others go.
    pub(crate) fn release_flow(&mut self, flow: u32) {
        let node = &self.flows[flow];
        let (leaf, child) = (node.leaf, node.child);
        if node.waiting == 0 && node.in_flight == 0 {
            self.leaves[leaf].level.rest(child);
        }
        self.forget_idle(leaf);
    }

    /// Whether `leaf` is gone by that.
    fn forget_idle(&mut self, leaf: u32) -> bool {
        while let Some(child) = self.leaves[leaf].level.forgettable() {
            let flow = self.leaves[leaf].level.owner(child);
            self.leaves[leaf].level.forget(child);
            if self.forget(flow) {
                return true;
            }
        }
        false
    }

    /// `flow` is no more; whether its leaf is no more, either.
    fn forget(&mut self, flow: u32) -> bool {
        let gone = self.flows.remove(flow);
        let at = self.leaves[gone.leaf].tree;
        let tree = &mut self.trees[at];
        tree.flows -= 1;
        let (band, empty) = (tree.band, tree.flows == 0);
        self.identities.left(gone.identity, band, gone.leaf);
        if !empty || !self.shape.per_model {
            return false;
        }
        let tree = self.trees.remove(at);
        for leaf in tree.leaves.into_iter().filter(|&leaf| leaf != NONE) {
            self.leaves.remove(leaf);
        }
        let node = &mut self.bands[band as usize];
        node.trees.remove(&tree.model);
        node.models.forget(tree.child);
        true
    }

    /// Who is displaced first in `band`: the youngest of the identity that was least recently preempted.
    pub(crate) fn victim(&self, band: Band) -> Option<u32> {
        let identity = self.identities.get(self.identities.victim(band)?);
        let youngest = self
            .flows_in(identity, band)
            .filter_map(|flow| self.order.youngest(&self.flows[flow].queue));
        youngest.max_by_key(|&number| self.order.head_of(number, |_| true).arrival)
    }

    /// The identity of `flow` was preempted: the others of its band come before it next time.
    pub(crate) fn preempted(&mut self, flow: u32) {
        self.preemptions += 1;
        let band = self.band_of(flow);
        self.identities
            .preempted(self.flows[flow].identity, band, self.preemptions);
    }
}
