//! The invariants of the tree, recomputed from the requests that wait and run.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::classes::ClassWaiting;
use super::node::{Head, Node};
use super::{Flow, Queued, Tree, Waiting};
use crate::audit::{AuditError, check, check_equal};
use crate::band::TreeBand;
use crate::endpoints::Endpoints;
use crate::ids::{ClassId, EligibilityId, FlowId, Id, IdentityId, JobId, LeafId, ModelTreeId};
use crate::input::EndpointId;
use crate::policy::Discipline;

type OfFlow<'a> = Vec<&'a (JobId, Queued)>;

/// A sum over the waiting requests of a leaf.
#[derive(Clone, Copy, Default)]
struct InLeaf {
    requests: u64,
    cost: u64,
    class_cost: u64,
}

/// Sums over all flows.
#[derive(Default)]
struct Sums {
    bands: [Waiting; TreeBand::COUNT],
    identities: BTreeMap<(IdentityId, TreeBand), Waiting>,
    classes: BTreeMap<ClassId, ClassWaiting>,
    waiting_in_leaves: BTreeMap<LeafId, InLeaf>,
    flows_in_trees: BTreeMap<ModelTreeId, u64>,
}

impl Tree {
    /// Checks every invariant against all waiting requests, and the flow and endpoint of each running one.
    pub(crate) fn audit(
        &self,
        waiting: &[(JobId, Queued)],
        running: &[(FlowId, EndpointId)],
        endpoints: &Endpoints,
    ) -> Result<(), AuditError> {
        self.audit_flows(waiting, running)?;
        self.audit_identities(running)?;
        self.identities.audit()?;
        self.audit_idle()?;
        self.audit_victims()?;
        self.audit_levels()?;
        self.audit_tallies()?;
        self.audit_eligibility(waiting, endpoints)
    }

    fn audit_flows(
        &self,
        waiting: &[(JobId, Queued)],
        running: &[(FlowId, EndpointId)],
    ) -> Result<(), AuditError> {
        let mut by_flow: BTreeMap<FlowId, OfFlow<'_>> = BTreeMap::new();
        for entry in waiting {
            by_flow.entry(entry.1.flow).or_default().push(entry);
        }
        let mut in_flight: BTreeMap<FlowId, u64> = BTreeMap::new();
        for &(flow, _) in running {
            *in_flight.entry(flow).or_default() += 1;
        }
        let mut sums = Sums::default();
        for id in self.flows.ids() {
            let mut of_flow = by_flow.remove(&id).unwrap_or_default();
            of_flow.sort_unstable_by_key(|(_, request)| {
                (u8::MAX - request.strict, request.score, request.arrival)
            });
            self.sum_flow(id, &of_flow, &mut sums)?;
            self.audit_queue(id, &of_flow)?;
            let running = in_flight.remove(&id).unwrap_or(0);
            check_equal("in flight of a flow", self.flows[id].in_flight, running)?;
        }
        let suspended = waiting.iter().filter(|(_, request)| request.suspended);
        check_equal("suspended", self.suspended, suspended.count() as u64)?;
        check("every request belongs to an existing flow", by_flow.is_empty() && in_flight.is_empty())?;
        self.audit_sums(sums)
    }

    fn sum_flow(&self, id: FlowId, of_flow: &OfFlow<'_>, sums: &mut Sums) -> Result<(), AuditError> {
        let flow = &self.flows[id];
        let leaf = &self.leaves[flow.leaf];
        let band = self.band_of(id);
        for (_, request) in of_flow {
            check("a request has the class of its flow", request.class == leaf.class)?;
            sums.bands[band as usize].add(request);
            let identity = sums.identities.entry((flow.identity, band));
            identity.or_default().add(request);
            sums.classes.entry(leaf.class).or_default().add(request);
        }
        let cost = of_flow.iter().map(|(_, request)| request.cost).sum();
        check_equal("cost of what waits in a flow", flow.waiting_cost, cost)?;
        let sum = sums.waiting_in_leaves.entry(flow.leaf).or_default();
        sum.requests += of_flow.len() as u64;
        sum.cost += cost;
        sum.class_cost += of_flow.iter().map(|(_, request)| request.class_cost).sum::<u64>();
        *sums.flows_in_trees.entry(leaf.tree).or_default() += 1;
        check_equal("waiting in a flow", flow.waiting, of_flow.len() as u64)
    }

    /// Checks the queue of a flow against its requests in order.
    fn audit_queue(&self, id: FlowId, of_flow: &OfFlow<'_>) -> Result<(), AuditError> {
        let flow = &self.flows[id];
        check(
            "a queue holds its flow's requests in order",
            of_flow.iter().map(|(job, _)| *job).eq(self.in_order(id)),
        )?;
        let youngest = of_flow.iter().max_by_key(|(_, request)| request.arrival);
        check(
            "the youngest request is the last to arrive",
            youngest.map(|(job, _)| *job) == self.order.youngest(&flow.queue),
        )?;
        let (suspended, active): (Vec<_>, Vec<_>) =
            of_flow.iter().copied().partition(|(_, request)| request.suspended);
        let mut kept = self.order.suspended(&flow.queue);
        kept.sort_unstable();
        let mut found: Vec<JobId> = suspended.iter().map(|(job, _)| *job).collect();
        found.sort_unstable();
        check("a queue holds its suspended requests apart", kept == found)?;
        check("a flow without active requests is inactive", active.is_empty() == flow.queue.is_inactive())?;
        let firsts = self.order.firsts(&flow.queue);
        check(
            "the first active request is the first of its lane",
            active.first().map(|(job, _)| job) == firsts.first(),
        )?;
        let could_go = |job: &&JobId| {
            let set = self.order.head_of(**job).eligibility;
            !flow.watched.is_empty() && self.has_open_set(flow, set)
        };
        let expected = firsts.iter().find(could_go).or(firsts.first());
        check(
            "the first of the requests that can go is the head",
            expected.filter(|_| !self.is_at_limit(id)) == flow.head.as_ref(),
        )?;
        check(
            "a flow has its slot among the tracked flows",
            self.leaves[flow.leaf].lags.is_slot_of(flow.tracked, id),
        )?;
        self.audit_head(id, !active.is_empty())
    }

    /// Whether a request of `flow` that holds `set` can go, as far as the endpoints decide.
    fn has_open_set(&self, flow: &Flow, set: EligibilityId) -> bool {
        let identity = self.identities.get(flow.identity);
        let limit = self.config.max_in_flight_per_endpoint;
        let full: Vec<EndpointId> = limit.map_or_else(Vec::new, |limit| identity.full_at(limit).collect());
        match self.eligibility.able(set) {
            Some(able) => able.iter().any(|id| !full.contains(id)),
            None if full.is_empty() => true,
            // Its set is one without the full endpoints.
            None => self
                .eligibility
                .iter()
                .filter(|(_, other)| other.key.is_all_without(&full))
                .any(|(_, other)| !other.able.is_empty()),
        }
    }

    /// Checks the eligibility set of a flow's head, and that its level has the head.
    fn audit_head(&self, id: FlowId, any_active: bool) -> Result<(), AuditError> {
        let flow = &self.flows[id];
        let has_head = any_active && !self.is_at_limit(id);
        check("a head waits under an eligibility set", flow.head_eligibility.is_some() == has_head)?;
        let head = flow.head_eligibility.zip(flow.head);
        let head = head.map(|(eligibility, job)| Head { eligibility, ..self.order.head_of(job) });
        let idle = flow.waiting == 0 && flow.in_flight == 0;
        let weight = self.identity_of(id).weight;
        let level = &self.leaves[flow.leaf].level;
        level.audit_child(flow.child, id, weight, head, idle)
    }

    fn audit_sums(&self, mut sums: Sums) -> Result<(), AuditError> {
        for band in TreeBand::ALL {
            check("a band's sums are those of its flows", sums.bands[band as usize] == self.waiting(band))?;
        }
        for (id, identity) in self.identities.iter() {
            for band in TreeBand::ALL {
                let found = sums.identities.remove(&(id, band)).unwrap_or_default();
                let kept = identity.bands[band as usize].waiting;
                check("an identity's sums are those of its flows", kept == found)?;
            }
        }
        for (id, class) in self.classes.iter() {
            let found = sums.classes.remove(&id).unwrap_or_default();
            check("a class's sums are those of its flows", class.waiting == found)?;
        }
        for (id, leaf) in self.leaves.iter() {
            let found = sums.waiting_in_leaves.remove(&id).unwrap_or_default();
            check_equal("waiting in a leaf", leaf.waiting, found.requests)?;
            check_equal("cost of what waits in a leaf", leaf.waiting_cost, found.cost)?;
            check_equal("class cost of what waits in a leaf", leaf.waiting_class_cost, found.class_cost)?;
            let flows = self.flows.iter().filter(|(_, flow)| flow.leaf == id);
            let backlogs = flows.map(|(flow, _)| self.backlog(flow));
            check(
                "a leaf arranges what waits of its flows",
                self.config.discipline == Discipline::Fifo || leaf.backlogs.consist_of(backlogs),
            )?;
        }
        for band in TreeBand::ALL {
            let trees = self.trees.iter().filter(|(_, tree)| tree.band == band);
            let backlogs = trees.map(|(_, tree)| tree.backlog());
            check(
                "a band arranges what waits of its models",
                !self.config.per_model || self.bands[band as usize].models.consist_of(backlogs),
            )?;
        }
        for (id, tree) in self.trees.iter() {
            let found = sums.flows_in_trees.get(&id).copied().unwrap_or(0);
            check_equal("flows of a tree", tree.flows, found)?;
        }
        Ok(())
    }

    fn audit_identities(&self, running: &[(FlowId, EndpointId)]) -> Result<(), AuditError> {
        let mut in_flight: BTreeMap<IdentityId, u64> = BTreeMap::new();
        let mut by_endpoint: BTreeMap<(IdentityId, EndpointId), u64> = BTreeMap::new();
        for &(flow, endpoint) in running {
            let identity = self.flows[flow].identity;
            *in_flight.entry(identity).or_default() += 1;
            *by_endpoint.entry((identity, endpoint)).or_default() += 1;
        }
        for (id, identity) in self.identities.iter() {
            check("an identity has a flow", !identity.flows.is_empty())?;
            let running = in_flight.remove(&id).unwrap_or(0);
            check_equal("in flight of an identity", identity.in_flight, running)?;
            let found = by_endpoint.range((id, EndpointId(0))..=(id, EndpointId(u32::MAX)));
            let found: Vec<(EndpointId, u64)> =
                found.map(|(&(_, endpoint), &count)| (endpoint, count)).collect();
            let limited = self.config.max_in_flight_per_endpoint.is_some();
            check(
                "an identity counts its running requests by endpoint",
                !limited || found == identity.in_flight_at,
            )?;
            for &(leaf, flow) in &identity.flows {
                let node = &self.flows[flow];
                check("an identity lists its flows", (node.identity, node.leaf) == (id, leaf))?;
            }
        }
        Ok(())
    }

    fn audit_victims(&self) -> Result<(), AuditError> {
        for band in TreeBand::ALL {
            let in_band = self.identities.iter().map(|(id, identity)| (id, &identity.bands[band as usize]));
            let waiting = in_band.filter(|(_, in_band)| in_band.waiting.requests > 0);
            let least = waiting.min_by_key(|(_, in_band)| in_band.turn()).map(|(id, _)| id);
            let expected = if band == TreeBand::Critical { None } else { least };
            check(
                "the least recently displaced identity is the next victim",
                self.identities.victim(band) == expected,
            )?;
        }
        Ok(())
    }

    fn audit_levels(&self) -> Result<(), AuditError> {
        for (id, leaf) in self.leaves.iter() {
            leaf.level.audit(|set| self.eligibility.is_open(set))?;
            let tree = &self.trees[leaf.tree];
            check("a tree lists its leaves", tree.leaves[leaf.class.index()] == Some(id))?;
        }
        for (_, tree) in self.trees.iter() {
            tree.level.audit()?;
            let leaves = || tree.leaves.iter().flatten().map(|&leaf| &self.leaves[leaf]);
            let runnable = leaves().any(|leaf| leaf.level.pick().is_some());
            check(
                "a tree is runnable while one of its leaves is",
                !self.blocked_classes.is_empty() || tree.level.pick().is_some() == runnable,
            )?;
            let waiting = leaves().map(|leaf| leaf.waiting).sum();
            check_equal("waiting in a tree", tree.waiting, waiting)?;
            let cost = leaves().map(|leaf| leaf.waiting_cost).sum();
            check_equal("cost of what waits in a tree", tree.waiting_cost, cost)?;
        }
        self.root.audit()?;
        for band in &self.bands {
            band.level.audit()?;
        }
        let runnable = self.bands.iter().any(|node| !node.over_ceiling && node.level.pick_tree().is_some());
        check("the root is runnable while a band is", self.has_runnable() == runnable)
    }

    fn audit_eligibility(
        &self,
        waiting: &[(JobId, Queued)],
        endpoints: &Endpoints,
    ) -> Result<(), AuditError> {
        let mut waiting_under: BTreeMap<EligibilityId, usize> = BTreeMap::new();
        for (_, request) in waiting {
            *waiting_under.entry(request.eligibility).or_default() += 1;
        }
        for (id, set) in self.eligibility.iter() {
            let able = set.key.able(endpoints);
            check("a set lists the endpoints that take a request", able == set.able)?;
            check("a set is held", set.holders > 0)?;
            let requests = waiting_under.get(&id).copied().unwrap_or(0);
            check("every request that waits under a set holds it", set.holders >= requests)?;
            for &(leaf, flow) in &set.watchers {
                let node = &self.flows[flow];
                check(
                    "a watcher holds the set that it watches",
                    node.leaf == leaf && node.watched.contains(&id),
                )?;
            }
            for &(leaf, flow) in &set.heads {
                let node = &self.flows[flow];
                check(
                    "a head listed under a set waits there",
                    (node.leaf, node.head_eligibility) == (leaf, Some(id)),
                )?;
            }
        }
        Ok(())
    }
}
