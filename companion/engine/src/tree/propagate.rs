//! Down the tree to pick and to charge, and up to tell each level what changed below it.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::cost::Charge;
use crate::endpoints::Endpoints;
use crate::input::{Band, EndpointId};
use crate::policy::ClassMode;
use crate::time::Instant;

use super::disciplines::{FlowScheduler, Ring};
use super::fairness_lag::{self, FairnessLags};
use super::node::{ChildId, Head, Node};
use super::{BANDS, LaneId, Leaf, Model, NONE, Queued, Receipts, Tree};

impl Tree {
    /// Whether anything that waits could go now, were the gate open.
    pub(crate) fn can_go(&self) -> bool {
        self.pool.pick().is_some()
    }

    /// The request that goes next.
    pub(crate) fn pick(&self) -> Option<u32> {
        let band = &self.bands[self.pool.pick()? as usize];
        let tree = &self.trees[band.models.next()?];
        let leaf = &self.leaves[tree.leaves[tree.ring.pick()? as usize]];
        let flow = &self.flows[leaf.level.owner(leaf.level.pick()?)];
        flow.queue.head()
    }

    /// A pick found nobody: the rules that care are told.
    pub(crate) fn miss(&mut self) {
        if self.shape.class_mode == ClassMode::Dynamo {
            for (_, tree) in self.trees.iter_mut().filter(|(_, tree)| tree.waiting > 0) {
                tree.ring.miss();
            }
        }
    }

    pub(super) fn serve_path(&mut self, flow: u32, charge: &Charge) -> Receipts {
        let node = &mut self.flows[flow];
        node.largest = node.largest.max(charge.cost);
        let leaf = &mut self.leaves[node.leaf];
        let tree = &mut self.trees[leaf.tree];
        leaf.gaps.charged();
        Receipts {
            band: self.pool.serve(tree.band as ChildId, charge),
            model: self.bands[tree.band as usize].models.serve(tree.child, charge),
            class: tree.ring.serve(leaf.class, charge),
            flow: leaf.level.serve(node.child, charge),
            epoch: self.epoch,
        }
    }

    pub(super) fn charge_path(&mut self, flow: u32, charge: &Charge) -> Receipts {
        let node = &mut self.flows[flow];
        node.largest = node.largest.max(charge.cost);
        let leaf = &mut self.leaves[node.leaf];
        let tree = &mut self.trees[leaf.tree];
        leaf.gaps.charged();
        Receipts {
            band: self.pool.charge(tree.band as ChildId, charge),
            model: self.bands[tree.band as usize].models.charge(tree.child, charge),
            class: tree.ring.charge(leaf.class, charge),
            flow: leaf.level.charge(node.child, charge),
            epoch: self.epoch,
        }
    }

    pub(super) fn settle_path(&mut self, flow: u32, charge: &Charge, receipts: &Receipts, real: Option<u64>) {
        let node = &mut self.flows[flow];
        node.largest = node.largest.max(real.unwrap_or(0));
        let leaf = &mut self.leaves[node.leaf];
        let tree = &mut self.trees[leaf.tree];
        if receipts.epoch == self.epoch {
            let band = tree.band as ChildId;
            self.pool.settle(band, charge, receipts.band, real);
            self.bands[tree.band as usize]
                .models
                .settle(tree.child, charge, receipts.model, real);
            tree.ring.settle(leaf.class, charge, receipts.class, real);
        }
        leaf.level.settle(node.child, charge, receipts.flow, real);
        leaf.gaps
            .settled(node.seat, charge.cost, real, self.shape.discipline);
    }

    /// The leaf of these, made if it isn't there.
    pub(super) fn leaf(&mut self, band: Band, model: u32, class: u32) -> u32 {
        let model = if self.shape.per_model { model } else { 0 };
        let node = &mut self.bands[band as usize];
        let known = || node.trees.get(&model).copied();
        let number = match node.models.shared().or_else(known) {
            Some(tree) => tree,
            None => {
                let tree = self.trees.insert(Model {
                    band,
                    model,
                    child: ChildId::MAX,
                    ring: Ring::new(&self.classes, &self.shape),
                    leaves: alloc::vec![NONE; self.classes.len()],
                    flows: 0,
                    waiting: 0,
                });
                self.trees[tree].child = node.models.add(tree, &self.shape);
                node.trees.insert(model, tree);
                tree
            }
        };
        let tree = &mut self.trees[number];
        if tree.leaves[class as usize] == NONE {
            tree.leaves[class as usize] = self.leaves.insert(Leaf {
                tree: number,
                class,
                level: FlowScheduler::new(&self.shape, self.now),
                gaps: FairnessLags::default(),
                waiting: 0,
                told: None,
            });
        }
        tree.leaves[class as usize]
    }

    /// `flow` has another next request, or none, or it may go elsewhere than it could.
    pub(super) fn head_changed(&mut self, flow: u32, endpoints: &Endpoints) {
        let next = self.flows[flow].queue.head();
        let identity = self.identities.get(self.flows[flow].identity);
        let most = self.shape.max_in_flight;
        let at_limit = most.is_some_and(|most| identity.in_flight >= most);
        let head = next
            .filter(|_| !at_limit)
            .map(|number| self.order.head_of(number, |_| true));
        let lane = head.map(|head| self.lane_of(flow, head.lane, endpoints));
        self.stand(flow, lane);
        let node = &mut self.flows[flow];
        let Leaf { level, gaps, .. } = &mut self.leaves[node.leaf];
        let open = lane.is_some_and(|(lane, _)| self.lanes.is_open(lane));
        match head.filter(|_| open && fairness_lag::has_bound(self.shape.discipline)) {
            Some(head) => {
                let weight = self.identities.get(node.identity).weight;
                gaps.stands(&mut node.seat, flow, weight, head.cost, node.in_flight);
            }
            None => gaps.leaves(&mut node.seat),
        }
        match (head, lane) {
            (Some(mut head), Some((lane, _))) => {
                (head.lane, head.open) = (lane, open);
                level.stand(node.child, &head);
            }
            // At its limit, or all of it is suspended.
            (Some(_) | None, _) if node.waiting > 0 => level.block(node.child),
            (Some(_) | None, _) => level.remove(node.child),
        }
        let leaf = node.leaf;
        self.tell_up(leaf);
    }

    /// `request` is of `lane` from now on, which is held for it, and not of the one it held. `waits`: it is in a queue.
    pub(crate) fn relane(
        &mut self,
        number: u32,
        request: &mut Queued,
        lane: LaneId,
        waits: bool,
        endpoints: &Endpoints,
    ) {
        let old = core::mem::replace(&mut request.lane, lane);
        if waits {
            self.order.relane(number, lane);
            if self.flows[request.flow].queue.head() == Some(number) {
                self.head_changed(request.flow, endpoints);
            }
        }
        self.release_lane(old);
    }

    /// The lane in which the next request of `flow` stands, and whether the flow has to hold it: it does already.
    fn lane_of(&mut self, flow: u32, base: LaneId, endpoints: &Endpoints) -> (LaneId, bool) {
        let Some(most) = self.shape.max_in_flight_per_endpoint else {
            return (base, false);
        };
        let identity = self.identities.get(self.flows[flow].identity);
        let full: Vec<EndpointId> = identity.full_at(most).collect();
        if full.is_empty() {
            return (base, false);
        }
        (self.lanes.without(base, &full, endpoints), true)
    }

    /// The next request of `flow` stands there, and nowhere else.
    pub(super) fn stand(&mut self, flow: u32, lane: Option<(LaneId, bool)>) {
        let node = &mut self.flows[flow];
        let (leaf, old) = (node.leaf, node.standing);
        let held = node.holds.then_some(old).flatten();
        node.standing = lane.map(|(lane, _)| lane);
        node.holds = lane.is_some_and(|(_, holds)| holds);
        let new = node.standing;
        if old != new {
            if let Some(old) = old {
                self.lanes.leave(old, leaf, flow);
            }
            if let Some(new) = new {
                self.lanes.stand(new, leaf, flow);
            }
        }
        if let Some(held) = held {
            self.lanes.release(held);
        }
    }

    /// `identity` runs as much as it may somewhere, or doesn't any more.
    pub(super) fn limits_changed(&mut self, identity: u32, endpoints: &Endpoints) {
        let flows: Vec<u32> = self
            .identities
            .get(identity)
            .flows
            .iter()
            .map(|&(_, flow)| flow)
            .filter(|&flow| self.flows[flow].waiting > 0)
            .collect();
        for flow in flows {
            self.head_changed(flow, endpoints);
        }
    }

    /// An endpoint has changed: lanes open and close.
    pub(crate) fn endpoint_changed(&mut self, id: EndpointId, endpoints: &Endpoints) {
        if self.lanes.is_empty() {
            return;
        }
        for lane in self.lanes.refresh(id, endpoints.get(id)) {
            let open = self.lanes.is_open(lane);
            for leaf in self.lanes.leaves(lane) {
                if !open {
                    self.part(leaf, lane);
                }
                if !self.leaves[leaf].level.turn(lane, open) {
                    for flow in self.lanes.flows(lane, leaf) {
                        self.restand(flow);
                    }
                }
                self.tell_up(leaf);
            }
        }
    }

    /// Those of `leaf` that stand in `lane` can't go.
    fn part(&mut self, leaf: u32, lane: LaneId) {
        let gaps = &mut self.leaves[leaf].gaps;
        let stands = |flow: &u32| self.flows[*flow].standing == Some(lane);
        let parted: Vec<u32> = gaps.flows().filter(stands).collect();
        for flow in parted {
            gaps.leaves(&mut self.flows[flow].seat);
        }
    }

    /// Tells the level of `flow` once more where its next request stands.
    fn restand(&mut self, flow: u32) {
        let node = &self.flows[flow];
        if let (Some(number), Some(lane)) = (node.queue.head(), node.standing) {
            let mut head = self.order.head_of(number, |_| true);
            head.lane = lane;
            head.open = self.lanes.is_open(lane);
            self.leaves[node.leaf].level.stand(node.child, &head);
        }
    }

    /// What goes next of a leaf, or whether anything could, has perhaps changed: so has, perhaps, what is above.
    pub(super) fn tell_up(&mut self, leaf: u32) {
        let node = &mut self.leaves[leaf];
        let tree = &mut self.trees[node.tree];
        let held = !self.held.is_empty() && self.held.contains(&node.class);
        if self.pool.is_plain() && self.bands[tree.band as usize].models.is_plain() && tree.ring.is_plain() {
            // All that they want to know is whether it can go.
            let told = Some((!held && node.level.pick().is_some(), self.epoch));
            if core::mem::replace(&mut node.told, told) == told {
                return;
            }
        }
        let next = if tree.ring.is_plain() {
            node.level.pick().map(|_| Head::NONE)
        } else {
            node.level.next_head()
        };
        match next.filter(|_| !held) {
            Some(head) => tree.ring.enqueue(node.class, &head),
            None if node.waiting > 0 => tree.ring.block(node.class),
            None => tree.ring.remove(node.class),
        }
        let band = &mut self.bands[tree.band as usize];
        let head = tree.ring.pick().and_then(|class| {
            if band.models.is_plain() {
                return Some(Head::NONE);
            }
            self.leaves[tree.leaves[class as usize]].level.next_head()
        });
        match head {
            Some(head) => band.models.enqueue(tree.child, &head),
            None if tree.waiting > 0 => band.models.block(tree.child),
            None => band.models.remove(tree.child),
        }
        let band = tree.band;
        self.tell_pool(band);
    }

    /// The same of a band.
    pub(super) fn tell_pool(&mut self, band: Band) {
        let node = &self.bands[band as usize];
        let head = node.models.next().filter(|_| !node.over).and_then(|tree| {
            if self.pool.is_plain() {
                return Some(Head::NONE);
            }
            let tree = &self.trees[tree];
            let leaf = tree.leaves[tree.ring.pick()? as usize];
            self.leaves[leaf].level.next_head()
        });
        let child = band as ChildId;
        match head {
            Some(head) => self.pool.enqueue(child, &head),
            None if node.waiting.requests > 0 => self.pool.block(child),
            None => self.pool.remove(child),
        }
    }

    /// Which bands are over their ceilings from now on.
    pub(crate) fn cap(&mut self, over: impl Fn(Band) -> bool) {
        for band in BANDS {
            let over = over(band);
            if self.bands[band as usize].over != over {
                self.bands[band as usize].over = over;
                self.tell_pool(band);
            }
        }
    }

    /// Whether `band` is.
    pub(crate) const fn is_over(&self, band: Band) -> bool {
        self.bands[band as usize].over
    }

    /// Of the classes of these names nothing goes from now on.
    pub(crate) fn hold_classes(&mut self, names: &[Box<str>]) {
        let held: Vec<u32> = names
            .iter()
            .filter_map(|name| self.classes.by_name(name))
            .collect();
        let before = core::mem::replace(&mut self.held, held);
        if before.is_empty() && self.held.is_empty() {
            return;
        }
        let concerned: Vec<u32> = self
            .leaves
            .iter()
            .filter(|(_, leaf)| before.contains(&leaf.class) || self.held.contains(&leaf.class))
            .map(|(number, _)| number)
            .collect();
        for leaf in concerned {
            self.tell_up(leaf);
        }
    }

    /// Time goes on: windows slide.
    pub(crate) fn advance(&mut self, now: Instant) {
        let before = core::mem::replace(&mut self.now, now);
        if !self.shape.slides(before, now) {
            return;
        }
        let trees: Vec<Vec<u32>> = self.trees.iter().map(|(_, tree)| tree.leaves.clone()).collect();
        for leaves in trees {
            for leaf in leaves.into_iter().filter(|&leaf| leaf != NONE) {
                self.leaves[leaf].level.advance(now);
                self.tell_up(leaf);
                if self.forget_idle(leaf) {
                    break;
                }
            }
        }
    }

    /// The deficit of every class in the band and tree of `flow`, in the order of the ring; nothing where no classes
    /// are configured.
    pub(crate) fn deficits(&self, flow: u32) -> Vec<(Box<str>, u64)> {
        let tree = &self.trees[self.leaves[self.flows[flow].leaf].tree];
        let named = self.classes.iter().filter(|(_, class)| class.policy.is_some());
        named
            .map(|(number, class)| (class.name().into(), tree.ring.deficit(number)))
            .collect()
    }

    /// The deficits of `class` over all bands and models.
    pub(crate) fn deficit(&self, class: u32) -> u64 {
        let trees = self.trees.iter();
        trees.map(|(_, tree)| tree.ring.deficit(class)).sum()
    }
}
