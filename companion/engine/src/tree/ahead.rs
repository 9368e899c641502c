//! How many requests go before a request of a flow that would come now: those of its own flow, and of everything that shares
//! service with it as much as its share allows in the meantime.
//!
//! Each level adds what goes of its other children: flows by weight, classes by quantum, models equally, bands by weight or
//! all more critical ones. The estimate takes requests for divisible and limits for kept, and visits no flow.

use super::backlogs::{Amount, Backlog};
use super::disciplines::ClassLevel;
use super::{Leaf, Queued, Tree};
use crate::band::TreeBand;
use crate::cost::VirtualTime;
use crate::ids::{FlowId, LeafId, ModelTreeId};
use crate::policy::{BandMode, Discipline};

/// Rounding errors of a sum of shares stay below this part of a request.
const ROUNDING: f64 = 1e-6;

/// The requests before another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ahead {
    pub(crate) requests: u64,
    /// The part of them in other bands.
    pub(crate) in_other_bands: u64,
}

impl Tree {
    /// The requests before `request`, if it came now.
    pub(crate) fn before_next(&self, request: &Queued) -> Ahead {
        self.before_in_pool(request, self.before_in_leaf(request))
    }

    /// The requests before `request`, of whose own leaf those that cost `in_leaf` go before it.
    pub(crate) fn before_after(&self, request: &Queued, requests: u64, cost: u64) -> Ahead {
        let in_leaf = Amount { requests: requests as f64, cost: cost as f64 };
        self.before_in_pool(request, in_leaf)
    }

    fn before_in_leaf(&self, request: &Queued) -> Amount {
        let flow = &self.flows[request.flow];
        let leaf = &self.leaves[flow.leaf];
        if self.config.discipline == Discipline::Fifo {
            return leaf.amount();
        }
        let own = self.backlog(request.flow);
        let one = self.turn_cost(request.cost);
        let turns = (own.cost + one) as f64 / own.weight + self.lag(request);
        let others = leaf.backlogs.of_others(own, turns.max(0.0));
        // Where requests take turns one by one, the costs of the others aren't known from their turns.
        let others = match self.config.discipline {
            Discipline::RoundRobin => Amount {
                requests: others.requests,
                cost: others.requests * leaf.amount().cost / leaf.waiting.max(1) as f64,
            },
            _ => others,
        };
        others.plus(Amount { requests: flow.waiting as f64, cost: flow.waiting_cost as f64 })
    }

    /// How far the flow of `request` is ahead of the flow that goes next, in cost per weight: for so long, others go before it.
    fn lag(&self, request: &Queued) -> f64 {
        let flow = &self.flows[request.flow];
        let level = &self.leaves[flow.leaf].level;
        if !self.has_usage_windows() {
            return level.lag(flow.child).as_f64();
        }
        let Some(least) = level.least_tag() else {
            return 0.0;
        };
        let identity = self.identity_of(request.flow);
        let used = VirtualTime::of(identity.tally.of(request.model), identity.weight);
        let tag = if identity.is_anonymous() { used + VirtualTime::FAR } else { used };
        (tag - least).as_f64()
    }

    fn before_in_pool(&self, request: &Queued, in_leaf: Amount) -> Ahead {
        let leaf = self.flows[request.flow].leaf;
        let tree = self.leaves[leaf].tree;
        let in_tree = self.before_in_tree(request, leaf, in_leaf);
        let in_band = self.before_in_band(request, tree, in_tree);
        let in_others = self.before_in_other_bands(request, self.trees[tree].band, in_band);
        let whole = |requests: f64| libm::ceil(requests - ROUNDING) as u64;
        Ahead { requests: whole(in_band.requests + in_others), in_other_bands: whole(in_others) }
    }

    fn before_in_tree(&self, request: &Queued, own: LeafId, in_leaf: Amount) -> Amount {
        let tree = &self.trees[self.leaves[own].tree];
        if matches!(tree.level, ClassLevel::One(_)) {
            return in_leaf;
        }
        let quantum = |leaf: &Leaf| self.classes.get(leaf.class).quantum() as f64;
        let leaf = &self.leaves[own];
        let class_cost = in_leaf.requests * leaf.waiting_class_cost as f64 / leaf.waiting.max(1) as f64;
        let turns = (class_cost + request.class_cost as f64) / quantum(leaf);
        let others = tree.leaves.iter().flatten().filter(|&&other| other != own);
        others.fold(in_leaf, |sum, &other| {
            let other = &self.leaves[other];
            let backlog =
                Backlog { requests: other.waiting, cost: other.waiting_class_cost, weight: quantum(other) };
            let requests = backlog.within(turns).requests;
            sum.plus(Amount {
                requests,
                cost: requests * other.waiting_cost as f64 / other.waiting.max(1) as f64,
            })
        })
    }

    fn before_in_band(&self, request: &Queued, own: ModelTreeId, in_tree: Amount) -> Amount {
        if !self.config.per_model {
            return in_tree;
        }
        let turns = in_tree.cost + request.cost as f64;
        let models = &self.bands[self.trees[own].band as usize].models;
        in_tree.plus(models.of_others(self.trees[own].backlog(), turns))
    }

    fn before_in_other_bands(&self, request: &Queued, own: TreeBand, in_band: Amount) -> f64 {
        let waiting = |band: TreeBand| self.waiting(band).requests as f64;
        let weights = match self.config.bands.mode {
            BandMode::Strict => [0.0; 3],
            BandMode::Weighted(weights) => weights,
        };
        let weight = |band: TreeBand| weights.get(band as usize).copied().unwrap_or(0.0);
        let others = TreeBand::ALL.into_iter().filter(|&band| band != own);
        let before = others.map(|band| match (weight(own) > 0.0, weight(band) > 0.0) {
            // Bands with a weight go before those without, which are in strict order.
            (false, true) => waiting(band),
            (true, false) => 0.0,
            (false, false) if band < own => waiting(band),
            (false, false) => 0.0,
            (true, true) => {
                let of_band = self.waiting(band);
                let backlog =
                    Backlog { requests: of_band.requests, cost: of_band.cost, weight: weight(band) };
                let turns = (in_band.cost + request.cost as f64) / weight(own);
                backlog.within(turns).requests
            }
        });
        before.sum()
    }

    /// What waits of `flow`, by the cost that its turns count.
    pub(super) fn backlog(&self, flow: FlowId) -> Backlog {
        let node = &self.flows[flow];
        node.backlog(self.config.discipline, self.identities.get(node.identity).weight)
    }

    fn turn_cost(&self, cost: u64) -> u64 {
        match self.config.discipline {
            Discipline::RoundRobin => 1,
            _ => cost,
        }
    }
}
