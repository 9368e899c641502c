//! The tree, counted again from the requests that wait and run.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::audit::{AuditError, holds, same};
use crate::endpoints::Endpoints;
use crate::input::{Band, EndpointId};

use super::node::{Head, Node};
use super::{BANDS, NONE, Queued, Tree, Waiting, classes};

impl Tree {
    /// The whole tree against all requests that wait, by number, and the flow and place of each that runs.
    pub(crate) fn audit(
        &self,
        waiting: &[(u32, Queued)],
        running: &[(u32, EndpointId)],
        endpoints: &Endpoints,
    ) -> Result<(), AuditError> {
        self.audit_flows(waiting, running)?;
        self.audit_identities(running)?;
        self.audit_levels()?;
        self.audit_lanes(waiting, endpoints)
    }

    fn audit_flows(
        &self,
        waiting: &[(u32, Queued)],
        running: &[(u32, EndpointId)],
    ) -> Result<(), AuditError> {
        let mut queued: BTreeMap<u32, Vec<(u32, Queued)>> = BTreeMap::new();
        for &(number, request) in waiting {
            queued.entry(request.flow).or_default().push((number, request));
        }
        let mut in_flight: BTreeMap<u32, u64> = BTreeMap::new();
        for &(flow, _) in running {
            *in_flight.entry(flow).or_default() += 1;
        }
        let mut bands = [Waiting::default(); 3];
        let mut of_identities: BTreeMap<(u32, Band), Waiting> = BTreeMap::new();
        let mut of_classes: BTreeMap<u32, classes::Waiting> = BTreeMap::new();
        let mut leaves: BTreeMap<u32, u64> = BTreeMap::new();
        let mut trees: BTreeMap<u32, u64> = BTreeMap::new();
        for (number, flow) in self.flows.iter() {
            let leaf = &self.leaves[flow.leaf];
            let band = self.band_of(number);
            let mut of_flow = queued.remove(&number).unwrap_or_default();
            of_flow.sort_unstable_by_key(|(_, request)| {
                (u8::MAX - request.strict, request.score, request.arrival)
            });
            for (_, request) in &of_flow {
                holds("a request knows its class", request.class == leaf.class)?;
                bands[band as usize].add(request);
                of_identities
                    .entry((flow.identity, band))
                    .or_default()
                    .add(request);
                of_classes.entry(leaf.class).or_default().add(request);
            }
            *leaves.entry(flow.leaf).or_default() += of_flow.len() as u64;
            *trees.entry(leaf.tree).or_default() += 1;
            same("waiting in a flow", flow.waiting, of_flow.len() as u64)?;
            let order: Vec<u32> = of_flow.iter().map(|&(number, _)| number).collect();
            holds(
                "a flow holds its requests, in order",
                order == self.in_order(number),
            )?;
            let youngest = of_flow.iter().max_by_key(|(_, request)| request.arrival);
            holds(
                "the youngest is the last to come",
                youngest.map(|&(number, _)| number) == self.order.youngest(&flow.queue),
            )?;
            let (suspended, active): (Vec<_>, Vec<_>) =
                of_flow.iter().partition(|(_, request)| request.suspended);
            let mut kept = self.order.suspended(&flow.queue);
            kept.sort_unstable();
            let mut found: Vec<u32> = suspended.iter().map(|&&(number, _)| number).collect();
            found.sort_unstable();
            holds("a flow knows who is suspended", kept == found)?;
            holds(
                "the first that isn't suspended and the head are one",
                active.first().map(|&&(number, _)| number) == flow.queue.head(),
            )?;
            let there = in_flight.remove(&number).unwrap_or(0);
            same("in flight of a flow", flow.in_flight, there)?;
            holds(
                "a flow knows its seat among those whose gaps are looked at",
                leaf.gaps.has(flow.seat, number),
            )?;
            self.audit_standing(number, active.first().map(|(_, request)| request))?;
        }
        let suspended = waiting.iter().filter(|(_, request)| request.suspended);
        same("suspended", self.suspended, suspended.count() as u64)?;
        holds(
            "everything that waits or runs is of a flow that is there",
            queued.is_empty() && in_flight.is_empty(),
        )?;
        for band in BANDS {
            holds(
                "a band's sums are those of its flows",
                bands[band as usize] == self.waiting(band),
            )?;
        }
        for (number, identity) in self.identities.iter() {
            for band in BANDS {
                let found = of_identities.remove(&(number, band)).unwrap_or_default();
                let kept = identity.bands[band as usize].waiting;
                holds("an identity's sums are those of its flows", kept == found)?;
            }
        }
        for (number, class) in self.classes.iter() {
            let found = of_classes.remove(&number).unwrap_or_default();
            holds("a class's sums are those of its flows", class.waiting == found)?;
        }
        for (number, leaf) in self.leaves.iter() {
            same(
                "waiting in a leaf",
                leaf.waiting,
                leaves.get(&number).copied().unwrap_or(0),
            )?;
        }
        for (number, tree) in self.trees.iter() {
            same(
                "flows of a tree",
                tree.flows,
                trees.get(&number).copied().unwrap_or(0),
            )?;
        }
        Ok(())
    }

    /// Where the next request of a flow stands, and that its level knows.
    fn audit_standing(&self, number: u32, next: Option<&Queued>) -> Result<(), AuditError> {
        let flow = &self.flows[number];
        let stands = next.is_some() && !self.is_at_limit(number);
        holds("what can go stands in a lane", flow.standing.is_some() == stands)?;
        let head = match (flow.standing, flow.queue.head()) {
            (Some(lane), Some(request)) => {
                let open = self.lanes.is_open(lane);
                let head = self.order.head_of(request, |_| open);
                Some(Head { lane, ..head })
            }
            (Some(_) | None, _) => None,
        };
        let rests = flow.waiting == 0 && flow.in_flight == 0;
        let weight = self.identity_of(number).weight;
        let level = &self.leaves[flow.leaf].level;
        level.audit_child(flow.child, number, weight, head, rests)
    }

    fn audit_identities(&self, running: &[(u32, EndpointId)]) -> Result<(), AuditError> {
        let mut in_flight: BTreeMap<u32, u64> = BTreeMap::new();
        let mut at: BTreeMap<(u32, EndpointId), u64> = BTreeMap::new();
        for &(flow, endpoint) in running {
            let identity = self.flows[flow].identity;
            *in_flight.entry(identity).or_default() += 1;
            *at.entry((identity, endpoint)).or_default() += 1;
        }
        for (number, identity) in self.identities.iter() {
            holds("an identity has a flow", !identity.flows.is_empty())?;
            let there = in_flight.remove(&number).unwrap_or(0);
            same("in flight of an identity", identity.in_flight, there)?;
            let found = at.range((number, EndpointId(0))..=(number, EndpointId(u32::MAX)));
            let found: Vec<(EndpointId, u64)> = found.map(|(&(_, id), &count)| (id, count)).collect();
            let limited = self.shape.max_in_flight_per_endpoint.is_some();
            holds(
                "an identity knows where it runs",
                !limited || found == identity.in_flight_at,
            )?;
            for &(leaf, flow) in &identity.flows {
                let node = &self.flows[flow];
                holds(
                    "an identity knows its flows",
                    (node.identity, node.leaf) == (number, leaf),
                )?;
            }
        }
        for band in BANDS {
            let waits = self
                .identities
                .iter()
                .filter(|(_, identity)| identity.bands[band as usize].waiting.requests > 0);
            let least = waits
                .min_by_key(|(_, identity)| identity.bands[band as usize].turn())
                .map(|(number, _)| number);
            let expected = if band == Band::Critical { None } else { least };
            holds(
                "the least recently preempted comes first",
                self.identities.victim(band) == expected,
            )?;
        }
        Ok(())
    }

    fn audit_levels(&self) -> Result<(), AuditError> {
        for (number, leaf) in self.leaves.iter() {
            leaf.level.audit(|lane| self.lanes.is_open(lane))?;
            let tree = &self.trees[leaf.tree];
            holds(
                "a leaf is of its tree",
                tree.leaves[leaf.class as usize] == number,
            )?;
        }
        for (_, tree) in self.trees.iter() {
            tree.ring.audit()?;
            let leaves = tree.leaves.iter().filter(|&&leaf| leaf != NONE);
            let able = leaves
                .clone()
                .any(|&leaf| self.leaves[leaf].level.pick().is_some());
            holds(
                "some class can go while a leaf of it can",
                !self.held.is_empty() || tree.ring.pick().is_some() == able,
            )?;
            let waiting = leaves.map(|&leaf| self.leaves[leaf].waiting).sum();
            same("waiting in a tree", tree.waiting, waiting)?;
        }
        self.pool.audit()?;
        for band in &self.bands {
            band.models.audit()?;
        }
        let able = BANDS.into_iter().any(|band| {
            let node = &self.bands[band as usize];
            !node.over && node.models.next().is_some()
        });
        holds("the pool can go while a band can", self.can_go() == able)
    }

    fn audit_lanes(&self, waiting: &[(u32, Queued)], endpoints: &Endpoints) -> Result<(), AuditError> {
        for (id, lane) in self.lanes.iter() {
            let able = lane.key.able(endpoints);
            holds("a lane knows which of its endpoints take one", able == lane.able)?;
            holds("a lane is held by somebody", lane.holders > 0)?;
            let heads = waiting.iter().filter(|(_, queued)| queued.lane == id).count();
            holds("a lane is held by all who wait in it", lane.holders >= heads)?;
            for &(leaf, flow) in &lane.standing {
                let node = &self.flows[flow];
                holds(
                    "who stands in a lane knows it",
                    (node.leaf, node.standing) == (leaf, Some(id)),
                )?;
            }
        }
        Ok(())
    }
}
