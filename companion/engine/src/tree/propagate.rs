//! Picks, from the root down, and updates, from a changed flow up.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::fairness_lag::has_bound;
use super::node::{Head, Node, band_child};
use super::order::Order;
use super::{Leaf, Queued, Tree};
use crate::band::TreeBand;
use crate::endpoints::Endpoints;
use crate::ids::{ChildId, ClassId, EligibilityId, FlowId, Id, IdentityId, JobId, LeafId, ModelTreeId};
use crate::input::EndpointId;
use crate::policy::ClassMode;
use crate::time::Instant;

impl Tree {
    /// Whether a waiting request could be dispatched now if the gate were open.
    pub(crate) fn has_runnable(&self) -> bool {
        self.root.pick().is_some()
    }

    /// The request that is next.
    pub(crate) fn pick(&self) -> Option<JobId> {
        let band = &self.bands[self.root.pick()?.index()];
        let tree = &self.trees[band.level.pick_tree()?];
        let leaf = &self.leaves[tree.leaves[tree.level.pick_class()?.index()]?];
        let flow = &self.flows[leaf.level.flow(leaf.level.pick()?)];
        flow.head
    }

    /// A pick found no request. Only one class mode uses this.
    pub(crate) fn pick_missed(&mut self) {
        if self.config.class_mode == ClassMode::Dynamo {
            for (_, tree) in self.trees.iter_mut().filter(|(_, tree)| tree.waiting > 0) {
                tree.level.pick_missed();
            }
        }
    }

    /// The head of `flow` changed, or the endpoints that it may go to.
    pub(super) fn update_head(&mut self, flow: FlowId, endpoints: &Endpoints) {
        // The set of the new head is held before `move_head` releases that of the old one. Where both are the same set, it so keeps its id, and
        // the level below needn't move the child.
        let job = self.choose_head(flow, endpoints);
        self.set_head(flow, job);
        let mut head = job.map(|job| self.order.head_of(job));
        let eligibility = head.map(|head| self.hold_head_eligibility(flow, head.eligibility, endpoints));
        self.move_head(flow, eligibility);
        let usage = head.filter(|_| self.has_usage_windows());
        let usage = usage.map(|head| self.head_usage(flow, head.model));
        let node = &mut self.flows[flow];
        let Leaf { level, lags, .. } = &mut self.leaves[node.leaf];
        if let Some(usage) = usage {
            level.set_usage(node.child, usage);
        }
        if let (Some(head), Some(id)) = (&mut head, node.head_eligibility) {
            head.eligibility = id;
            head.open = self.eligibility.is_open(id);
        }
        match head.filter(|head| head.open && has_bound(self.config.discipline)) {
            Some(head) => {
                let weight = self.identities.get(node.identity).weight;
                lags.track(&mut node.tracked, flow, weight, head.cost, node.in_flight);
            }
            None => lags.untrack(&mut node.tracked),
        }
        match head {
            Some(head) => level.enqueue(node.child, &head),
            // At its limit, or only suspended requests. A flow that is blocked keeps what its discipline owes it; one that is removed starts
            // anew when it comes back.
            None if node.waiting > 0 => level.block(node.child),
            None => level.remove(node.child),
        }
        let leaf = node.leaf;
        self.propagate(leaf);
    }

    /// The request of `flow` that goes first: of the first ones of its lanes the first that can go. So a request that waits
    /// for its own endpoints holds up no request that may go elsewhere.
    fn choose_head(&mut self, flow: FlowId, endpoints: &Endpoints) -> Option<JobId> {
        let node = &self.flows[flow];
        if !node.queue.has_lanes() && node.watched.is_empty() {
            return Order::first_without_lanes(&node.queue).filter(|_| !self.is_at_limit(flow));
        }
        let mut firsts = self.order.firsts(&node.queue);
        if self.is_at_limit(flow) {
            firsts.clear();
        }
        let several = if firsts.len() > 1 { &firsts[..] } else { &[] };
        let sets = several.iter().map(|&job| {
            let own = self.order.head_of(job).eligibility;
            let (set, is_held) = self.hold_head_eligibility(flow, own, endpoints);
            if !is_held {
                self.eligibility.hold_again(set);
            }
            set
        });
        let sets: Vec<EligibilityId> = sets.collect();
        self.watch(flow, sets);
        let watched = &self.flows[flow].watched;
        let open = watched.iter().position(|&set| self.eligibility.is_open(set));
        firsts.get(open.unwrap_or(0)).copied()
    }

    /// `flow` is updated when one of `sets`, which it holds, opens or closes, and no longer for other sets. If too many flows
    /// watch one of them, it watches none.
    pub(super) fn watch(&mut self, flow: FlowId, sets: Vec<EligibilityId>) {
        let leaf = self.flows[flow].leaf;
        // A change of one endpoint updates every watcher of the sets that it opens or closes, so these are few. A flow without a watch keeps the
        // head that it has until the flow itself changes.
        let watches = sets.iter().all(|&set| self.eligibility.may_watch(set, leaf, flow));
        for set in core::mem::take(&mut self.flows[flow].watched) {
            self.eligibility.remove_watcher(set, leaf, flow);
            self.eligibility.release(set);
        }
        if watches {
            for &set in &sets {
                self.eligibility.add_watcher(set, leaf, flow);
            }
            self.flows[flow].watched = sets;
        } else {
            for set in sets {
                self.eligibility.release(set);
            }
        }
    }

    /// The eligibility set of the head of `flow`, whose request holds `request_set`: without the endpoints at which the
    /// identity is at its limit. Returns also whether the flow must release the set.
    fn hold_head_eligibility(
        &mut self,
        flow: FlowId,
        request_set: EligibilityId,
        endpoints: &Endpoints,
    ) -> (EligibilityId, bool) {
        let Some(limit) = self.config.max_in_flight_per_endpoint else {
            return (request_set, false);
        };
        let identity = self.identities.get(self.flows[flow].identity);
        let full: Vec<EndpointId> = identity.full_at(limit).collect();
        if full.is_empty() {
            return (request_set, false);
        }
        let narrowed = self.eligibility.hold_without(request_set, &full, endpoints);
        (narrowed, true)
    }

    /// The head of `flow` waits under this eligibility set, and under no other. `true`: the flow holds the set.
    pub(super) fn move_head(&mut self, flow: FlowId, eligibility: Option<(EligibilityId, bool)>) {
        let node = &mut self.flows[flow];
        let (leaf, old) = (node.leaf, node.head_eligibility);
        let held = old.filter(|_| node.holds_eligibility);
        let new = eligibility.map(|(id, _)| id);
        node.head_eligibility = new;
        node.holds_eligibility = eligibility.is_some_and(|(_, holds)| holds);
        if old != new {
            if let Some(old) = old {
                self.eligibility.remove_head(old, leaf, flow);
            }
            if let Some(new) = new {
                self.eligibility.add_head(new, leaf, flow);
            }
        }
        if let Some(held) = held {
            self.eligibility.release(held);
        }
    }

    /// `request` gets another eligibility set, which is held for it already, and releases its old one. `waits`: it is in
    /// a queue.
    pub(crate) fn change_eligibility(
        &mut self,
        job: JobId,
        request: &mut Queued,
        eligibility: EligibilityId,
        waits: bool,
        endpoints: &Endpoints,
    ) {
        let old = core::mem::replace(&mut request.eligibility, eligibility);
        if waits {
            let queue = &mut self.flows[request.flow].queue;
            let eligible = self.eligibility.eligible(eligibility);
            if self.order.set_eligibility(queue, job, request, eligible) {
                self.update_head(request.flow, endpoints);
            }
        }
        self.release_eligibility(old);
    }

    /// `identity` reached a limit on running requests, or fell below it.
    pub(super) fn update_heads(&mut self, identity: IdentityId, endpoints: &Endpoints) {
        let flows = self.identities.get(identity).flows.iter();
        let waiting: Vec<FlowId> =
            flows.map(|&(_, flow)| flow).filter(|&flow| self.flows[flow].waiting > 0).collect();
        for flow in waiting {
            self.update_head(flow, endpoints);
        }
    }

    /// An endpoint changed: eligibility sets open and close.
    pub(crate) fn endpoint_changed(&mut self, id: EndpointId, endpoints: &Endpoints) {
        if self.eligibility.is_empty() {
            return;
        }
        // All sets are up to date before the first flow is: the choice of a head compares several.
        for set in self.eligibility.endpoint_changed(id, endpoints.get(id)) {
            let open = self.eligibility.is_open(set);
            for leaf in self.eligibility.leaves(set) {
                if !open {
                    self.untrack(leaf, set);
                }
                // Virtual time keeps a queue for each set and opens or closes it as a whole. Deficits belong to each flow, so there the heads are
                // enqueued one by one.
                if !self.leaves[leaf].level.set_open(set, open) {
                    for flow in self.eligibility.flows(set, leaf) {
                        self.enqueue_again(flow);
                    }
                }
                self.propagate(leaf);
            }
            for flow in self.eligibility.watchers(set) {
                self.update_head(flow, endpoints);
            }
        }
    }

    /// Heads of `leaf` under `eligibility` can't be dispatched any more.
    fn untrack(&mut self, leaf: LeafId, eligibility: EligibilityId) {
        let lags = &mut self.leaves[leaf].lags;
        let is_under = |flow: &FlowId| self.flows[*flow].head_eligibility == Some(eligibility);
        let untracked: Vec<FlowId> = lags.flows().filter(is_under).collect();
        for flow in untracked {
            lags.untrack(&mut self.flows[flow].tracked);
        }
    }

    /// Enqueues the unchanged head of `flow`, whose eligibility set opened or closed.
    fn enqueue_again(&mut self, flow: FlowId) {
        let node = &self.flows[flow];
        if let (Some(job), Some(eligibility)) = (node.head, node.head_eligibility) {
            let head =
                Head { eligibility, open: self.eligibility.is_open(eligibility), ..self.order.head_of(job) };
            self.leaves[node.leaf].level.enqueue(node.child, &head);
        }
    }

    /// Updates the levels above `leaf` after any change of it.
    pub(super) fn propagate(&mut self, leaf: LeafId) {
        let node = &mut self.leaves[leaf];
        let tree = &mut self.trees[node.tree];
        let models = &mut self.bands[tree.band as usize].level;
        let blocked = !self.blocked_classes.is_empty() && self.blocked_classes.contains(&node.class);
        if self.root.ignores_heads() && models.ignores_heads() && tree.level.ignores_heads() {
            // All that matters above is whether the leaf is runnable. The epoch belongs to it, because a level that was rebuilt meanwhile
            // knows nothing of the leaf.
            let propagated = Some((!blocked && node.level.pick().is_some(), self.epoch));
            if core::mem::replace(&mut node.propagated, propagated) == propagated {
                return;
            }
        }
        let next = if tree.level.ignores_heads() {
            node.level.pick().map(|_| Head::NONE)
        } else {
            node.level.next_head()
        };
        let class = ChildId::of_class(node.class);
        match next.filter(|_| !blocked) {
            Some(head) => tree.level.enqueue(class, &head),
            None if node.waiting > 0 => tree.level.block(class),
            None => tree.level.remove(class),
        }
        let tree_id = node.tree;
        self.propagate_tree(tree_id);
    }

    /// Updates the levels above a model tree.
    pub(super) fn propagate_tree(&mut self, id: ModelTreeId) {
        let tree = &self.trees[id];
        let band = tree.band;
        let models = &mut self.bands[band as usize].level;
        let head = tree.level.pick_class().and_then(|class| {
            if models.ignores_heads() {
                return Some(Head::NONE);
            }
            self.leaves[tree.leaves[class.index()]?].level.next_head()
        });
        match head {
            Some(head) => models.enqueue(tree.child, &head),
            None if tree.waiting > 0 => models.block(tree.child),
            None => models.remove(tree.child),
        }
        self.propagate_band(band);
    }

    /// Updates the root after a change of `band`.
    pub(super) fn propagate_band(&mut self, band: TreeBand) {
        let node = &self.bands[band as usize];
        let tree = node.level.pick_tree().filter(|_| !node.over_ceiling);
        let head = tree.and_then(|tree| {
            if self.root.ignores_heads() {
                return Some(Head::NONE);
            }
            let tree = &self.trees[tree];
            let leaf = tree.leaves[tree.level.pick_class()?.index()]?;
            self.leaves[leaf].level.next_head()
        });
        let child = band_child(band);
        match head {
            Some(head) => self.root.enqueue(child, &head),
            None if node.waiting.requests > 0 => self.root.block(child),
            None => self.root.remove(child),
        }
    }

    /// Sets which bands are over their ceilings.
    pub(crate) fn apply_ceilings(&mut self, is_over: impl Fn(TreeBand) -> bool) {
        for band in TreeBand::ALL {
            let over_ceiling = is_over(band);
            if self.bands[band as usize].over_ceiling != over_ceiling {
                self.bands[band as usize].over_ceiling = over_ceiling;
                self.propagate_band(band);
            }
        }
    }

    pub(crate) const fn is_over_ceiling(&self, band: TreeBand) -> bool {
        self.bands[band as usize].over_ceiling
    }

    /// Blocks exactly the classes of these names.
    pub(crate) fn block_classes(&mut self, names: &[Box<str>]) {
        let blocked: Vec<ClassId> = names.iter().filter_map(|name| self.classes.configured(name)).collect();
        let before = core::mem::replace(&mut self.blocked_classes, blocked);
        if before.is_empty() && self.blocked_classes.is_empty() {
            return;
        }
        let is_changed =
            |leaf: &Leaf| before.contains(&leaf.class) || self.blocked_classes.contains(&leaf.class);
        let leaves = self.leaves.iter().filter(|(_, leaf)| is_changed(leaf));
        let changed: Vec<LeafId> = leaves.map(|(id, _)| id).collect();
        for leaf in changed {
            self.propagate(leaf);
        }
    }

    /// Advances time, and with it usage windows.
    pub(crate) fn advance(&mut self, now: Instant) {
        let before = core::mem::replace(&mut self.now, now);
        if !self.config.slides(before, now) {
            return;
        }
        // Forgetting the last flow of a model removes its tree with all leaves, so the leaves are listed first.
        let trees: Vec<Vec<Option<LeafId>>> =
            self.trees.iter().map(|(_, tree)| tree.leaves.clone()).collect();
        for leaves in trees {
            for leaf in leaves.into_iter().flatten() {
                self.leaves[leaf].level.advance(now);
                self.tally_expired(leaf);
                self.propagate(leaf);
                if self.forget_idle(leaf) {
                    break;
                }
            }
        }
    }
}
