//! Who goes next: pool -> band -> class -> flow -> order, each level choosing among its own children.
//!
//! Every level answers the one contract of [`Node`], so a level's rule can be another without its neighbours
//! knowing. This file only walks: down to pick, up to tell each level what changed below it. A level with one
//! child is a bit. What can't go is parked under what it waits for, in a lane ([`Lanes`]): it is looked at again
//! when that changes, not before.

mod agenda;
mod audit;
mod cascade;
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "the levels that use it come with the wiring")
)]
mod deficits;
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "the levels that use it come with the wiring")
)]
mod dynamo;
mod flows;
mod lanes;
mod node;
mod order;
mod ring;
mod tags;
mod usage;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use crate::audit::AuditError;
use crate::cost::{Charge, Virtual};
use crate::endpoints::Changed;
use crate::input::{Band, EndpointId};
use crate::policy::Flows as Policy;
use crate::time::Instant;

use cascade::Cascade;
pub(crate) use flows::Flow;
use flows::{Flows, Path};
pub(crate) use lanes::LaneId;
use lanes::Lanes;
use node::{ChildId, Node, Receipt};
use order::Order;
pub(crate) use order::{Claim, score};
use tags::{Rule, Tags};

/// The bands, most critical first.
pub(crate) const BANDS: [Band; 3] = [Band::Critical, Band::Default, Band::Sheddable];

/// When a request first came, and which of those that came then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Arrival {
    pub(crate) at: Instant,
    pub(crate) sequence: u64,
}

#[derive(Debug)]
struct BandNode {
    classes: Cascade,
    /// One class, until more are configured.
    flows: Vec<Tags>,
}

/// What waits in one band.
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
    pub(crate) lane: LaneId,
    /// What it costs its flow and its band.
    pub(crate) cost: u64,
    /// What it costs its class.
    pub(crate) class_cost: u64,
    /// Its model, by number.
    pub(crate) model: u32,
    pub(crate) bytes: u64,
    /// Higher goes first in its flow;
    pub(crate) strict: u8,
    /// then the lower [`order::score`], then by arrival.
    pub(crate) score: u64,
    pub(crate) arrival: Arrival,
}

#[derive(Debug)]
pub(crate) struct Tree {
    pool: Cascade,
    bands: [BandNode; 3],
    waiting: [Waiting; 3],
    flows: Flows,
    order: Order,
    lanes: Lanes,
    preemptions: u64,
}

impl Tree {
    pub(crate) fn new(seed: u64) -> Self {
        let band = || BandNode {
            classes: Cascade::default(),
            flows: alloc::vec![Tags::new(Rule::Wfq, Duration::from_secs(1), Instant::ZERO)],
        };
        Self {
            pool: Cascade::default(),
            bands: [band(), band(), band()],
            waiting: [Waiting::default(); 3],
            flows: Flows::new(seed),
            order: Order::default(),
            lanes: Lanes::default(),
            preemptions: 0,
        }
    }

    /// What waits in `band`.
    pub(crate) const fn waiting(&self, band: Band) -> Waiting {
        self.waiting[band as usize]
    }

    /// What waits at all.
    pub(crate) const fn waiting_in_all(&self) -> Waiting {
        let [a, b, c] = self.waiting;
        Waiting {
            requests: a.requests + b.requests + c.requests,
            bytes: a.bytes + b.bytes + c.bytes,
            cost: a.cost + b.cost + c.cost,
        }
    }

    /// The flow of this identity, made if it isn't there. It stays until [`Self::release_flow`] finds it unused.
    pub(crate) fn flow(&mut self, name: Box<str>, band: Band, policy: &Policy) -> u32 {
        let path = Path { band, class: 0 };
        let tags = &mut self.bands[band as usize].flows[path.class];
        self.flows.get_or_add(name, path, tags, policy)
    }

    pub(crate) fn flow_of(&self, flow: u32) -> &Flow {
        self.flows.get(flow)
    }

    pub(crate) fn flows(&self) -> impl Iterator<Item = (&Flow, Virtual)> {
        self.flows
            .iter()
            .map(|(_, flow)| (flow, self.tags(flow.path).finish(flow.child)))
    }

    /// Where the last charge of `flow` ends in virtual time.
    pub(crate) fn finish(&self, flow: u32) -> Virtual {
        let flow = self.flows.get(flow);
        self.tags(flow.path).finish(flow.child)
    }

    /// The flows of `band`, by number.
    pub(crate) fn flow_numbers(&self, band: Band) -> impl Iterator<Item = u32> {
        self.flows
            .iter()
            .filter(move |(_, flow)| flow.path.band == band)
            .map(|(number, _)| number)
    }

    /// The lane of those who may go to `eligible` only. Held until [`Self::release_lane`].
    pub(crate) fn lane(
        &mut self,
        eligible: Option<Box<[EndpointId]>>,
        room: impl Fn(EndpointId) -> bool,
    ) -> LaneId {
        eligible.map_or(LaneId::ANY, |eligible| self.lanes.hold(eligible, room))
    }

    pub(crate) fn release_lane(&mut self, lane: LaneId) {
        self.lanes.release(lane);
    }

    /// Who those of `lane` may go to; `None`: all.
    pub(crate) fn eligible(&self, lane: LaneId) -> Option<&[EndpointId]> {
        self.lanes.eligible(lane)
    }

    /// An endpoint has room again, or none any more: lanes open and close.
    pub(crate) fn room_changed(&mut self, change: Changed) {
        for lane in self.lanes.room_changed(change) {
            for band in BANDS {
                let node = &mut self.bands[band as usize];
                for tags in &mut node.flows {
                    match change.has_room {
                        true => tags.open(lane),
                        false => tags.close(lane),
                    }
                }
                for class in 0..node.flows.len() {
                    self.tell_up(Path { band, class });
                }
            }
        }
    }

    /// `request` waits from now on.
    pub(crate) fn enqueue(&mut self, number: u32, request: &Queued) {
        let flow = self.flows.get_mut(request.flow);
        let path = flow.path;
        flow.waiting.add(request);
        self.waiting[path.band as usize].add(request);
        let new_head = self.order.insert(&mut flow.queue, number, request);
        self.flows.joined_victims(request.flow);
        if new_head {
            self.head_changed(request.flow);
        }
    }

    /// `request` waits no more; it isn't charged by this.
    pub(crate) fn remove(&mut self, number: u32, request: &Queued) {
        let flow = self.flows.get_mut(request.flow);
        let path = flow.path;
        flow.waiting.take(request);
        self.waiting[path.band as usize].take(request);
        let was_head = self.order.remove(&mut flow.queue, number);
        self.flows.left_victims(request.flow);
        if was_head {
            self.head_changed(request.flow);
        }
    }

    /// Whether anything that waits could go now, were the gate open.
    pub(crate) const fn can_go(&self) -> bool {
        !self.pool.is_empty()
    }

    /// The request that goes next.
    pub(crate) fn pick(&self) -> Option<u32> {
        let band = &self.bands[self.pool.pick()? as usize];
        let tags = &band.flows[band.classes.pick()? as usize];
        let flow = self.flows.get(tags.owner(tags.pick()?));
        flow.queue.head()
    }

    /// `request`, which waits, goes: it waits no more, is charged on every level, and runs until [`Self::settle`].
    pub(crate) fn dispatch(&mut self, number: u32, request: &Queued, charge: &Charge) {
        self.serve_path(request.flow, charge);
        self.remove(number, request);
        self.forget_idle(self.flows.get(request.flow).path);
    }

    /// The same for one that doesn't wait.
    pub(crate) fn charge(&mut self, flow: u32, charge: &Charge) {
        self.charge_path(flow, charge);
        if self.flows.get(flow).waiting.requests > 0 {
            self.head_changed(flow);
        }
        self.forget_idle(self.flows.get(flow).path);
    }

    fn charge_path(&mut self, flow: u32, charge: &Charge) {
        let node = self.flows.get_mut(flow);
        node.in_flight += 1;
        let (path, child) = (node.path, node.child);
        self.pool.charge(path.band as ChildId, charge);
        self.bands[path.band as usize]
            .classes
            .charge(path.class as ChildId, charge);
        self.tags_mut(path).charge(child, charge);
    }

    fn serve_path(&mut self, flow: u32, charge: &Charge) {
        let node = self.flows.get_mut(flow);
        node.in_flight += 1;
        let (path, child) = (node.path, node.child);
        self.pool.serve(path.band as ChildId, charge);
        self.bands[path.band as usize]
            .classes
            .serve(path.class as ChildId, charge);
        self.tags_mut(path).serve(child, charge);
    }

    /// A request of `flow` that was charged runs no more; see [`Node::settle`].
    pub(crate) fn settle(&mut self, flow: u32, charge: &Charge, real: Option<u64>) {
        let node = self.flows.get_mut(flow);
        node.in_flight -= 1;
        let (path, child) = (node.path, node.child);
        self.pool
            .settle(path.band as ChildId, charge, Receipt::default(), real);
        self.bands[path.band as usize].classes.settle(
            path.class as ChildId,
            charge,
            Receipt::default(),
            real,
        );
        self.tags_mut(path)
            .settle(child, charge, Receipt::default(), real);
        self.tell_up(path);
    }

    /// Forgets `flow` if nothing of it waits or runs, at once or when virtual time has passed its finish.
    pub(crate) fn release_flow(&mut self, flow: u32) {
        let node = self.flows.get(flow);
        if node.waiting.requests == 0 && node.in_flight == 0 {
            let (path, child) = (node.path, node.child);
            self.tags_mut(path).rest(child);
            self.forget_idle(path);
        }
    }

    /// Who is displaced first in `band`: the youngest of the flow that was least recently preempted.
    pub(crate) fn victim(&self, band: Band) -> Option<u32> {
        let flow = self.flows.victim(band)?;
        self.order.youngest(&self.flows.get(flow).queue)
    }

    /// `flow` was preempted: the others of its band come before it next time.
    pub(crate) fn preempted(&mut self, flow: u32) {
        self.preemptions += 1;
        self.flows.preempted(flow, self.preemptions);
    }

    /// `number`, which waits, costs `cost` from now on, where it did `old`. [`Self::reweigh`] follows.
    pub(crate) fn reprice(&mut self, number: u32, flow: u32, old: u64, cost: u64) {
        self.order.reprice(number, cost);
        let flow = self.flows.get_mut(flow);
        let band = &mut self.waiting[flow.path.band as usize];
        flow.waiting.cost = flow.waiting.cost - old + cost;
        band.cost = band.cost - old + cost;
    }

    /// New weights, capacities and costs: every tag anew.
    pub(crate) fn reweigh(&mut self, policy: &Policy) {
        self.flows.apply(policy);
        let flows: Vec<u32> = self.flows.iter().map(|(number, _)| number).collect();
        for flow in flows {
            let node = self.flows.get(flow);
            let (path, child, weight) = (node.path, node.child, node.weight);
            let waits = node.waiting.requests > 0;
            self.tags_mut(path).weigh(child, weight);
            if waits {
                self.head_changed(flow);
            }
        }
    }

    /// The requests of `flow` that wait, in the order in which they go.
    pub(crate) fn in_order(&self, flow: u32) -> Vec<u32> {
        self.order.in_order(&self.flows.get(flow).queue)
    }

    fn tags(&self, path: Path) -> &Tags {
        &self.bands[path.band as usize].flows[path.class]
    }

    fn tags_mut(&mut self, path: Path) -> &mut Tags {
        &mut self.bands[path.band as usize].flows[path.class]
    }

    /// `flow` has another next request, or none.
    fn head_changed(&mut self, flow: u32) {
        let node = self.flows.get(flow);
        let (path, child) = (node.path, node.child);
        let open = |lane| self.lanes.is_open(lane);
        let head = node.queue.head().map(|number| self.order.head_of(number, open));
        let tags = &mut self.bands[path.band as usize].flows[path.class];
        match head {
            Some(head) => tags.enqueue(child, &head),
            None => tags.remove(child),
        }
        self.tell_up(path);
    }

    /// Whether a class can go has perhaps changed: so has, perhaps, whether its band can.
    fn tell_up(&mut self, path: Path) {
        let band = &mut self.bands[path.band as usize];
        let class = path.class as ChildId;
        match band.flows[path.class].next_head() {
            Some(head) => band.classes.enqueue(class, &head),
            None => band.classes.remove(class),
        }
        let next = band
            .classes
            .pick()
            .and_then(|class| band.flows[class as usize].next_head());
        match next {
            Some(head) => self.pool.enqueue(path.band as ChildId, &head),
            None => self.pool.remove(path.band as ChildId),
        }
    }

    fn forget_idle(&mut self, path: Path) {
        let tags = &mut self.bands[path.band as usize].flows[path.class];
        while let Some(child) = tags.forgettable() {
            self.flows.remove(tags.owner(child));
            tags.forget(child);
        }
    }

    /// The whole tree against all requests that wait, by number, and the flows of those that run, once for each.
    pub(crate) fn audit(
        &self,
        waiting: &[(u32, Queued)],
        running: &[u32],
        room: impl Fn(EndpointId) -> bool,
    ) -> Result<(), AuditError> {
        audit::tree(self, waiting, running, room)
    }
}
