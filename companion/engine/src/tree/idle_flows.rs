//! Flows with nothing running, whose next request may be granted above the bounds: see [`crate::policy::ExtraPlaces`].
//!
//! An identity with nothing running may have several flows, by band, model and class. Each waits here with its head. The more critical
//! ones come first, because nothing less critical may go above the bounds while they wait.

use super::Tree;
use crate::arrival::Arrival;
use crate::audit::{AuditError, check, check_equal};
use crate::band::TreeBand;
use crate::endpoint::Endpoint;
use crate::ids::{FlowId, IdentityId, JobId};
use crate::policy::BandMode;
use crate::tree::Queued;

/// The turn of a flow above the bounds: the least goes first.
pub(super) type IdleTurn = (u8, Arrival);

impl Tree {
    pub(crate) fn has_idle_flows(&self) -> bool {
        !self.idle.is_empty()
    }

    /// The next requests of the flows with nothing running, in the order in which they go above the bounds.
    pub(crate) fn idle_heads(&self) -> impl Iterator<Item = JobId> {
        self.idle.iter().filter_map(|&(_, flow)| self.flows[flow].head)
    }

    /// Nothing of the identity of `flow` runs.
    pub(crate) fn is_idle(&self, flow: FlowId) -> bool {
        self.identity_of(flow).in_flight == 0
    }

    /// No request that is more critical than `band` waits, except those whose flows are at limits of their own. Only then may a request of
    /// the band be granted above a bound.
    pub(crate) fn may_go_above(&self, band: TreeBand) -> bool {
        let rank = self.rank(band);
        let is_first = |other: &TreeBand| self.rank(*other) < rank;
        let waits = |other: TreeBand| self.bands[other as usize].heads > 0;
        !TreeBand::ALL.into_iter().filter(is_first).any(waits)
    }

    /// Whether `request` may go to `endpoint` if that takes one. Its identity runs nothing, so that no limit of its own is reached.
    pub(crate) fn is_eligible(&self, request: &Queued, endpoint: &Endpoint) -> bool {
        self.eligibility.includes(request.eligibility, endpoint)
    }

    /// Bands with the same rank share by weight, so that none of them waits for another.
    fn rank(&self, band: TreeBand) -> u8 {
        match self.config.bands.mode {
            BandMode::Weighted(weights) if weights.get(band as usize).is_some_and(|weight| *weight > 0.0) => {
                0
            }
            BandMode::Weighted(_) => band as u8 + 1,
            BandMode::Strict => band as u8,
        }
    }

    /// `flow` is granted above a bound. Those places are beside what flows share, so its distance to others counts from now on.
    pub(crate) fn restart_lag(&mut self, flow: FlowId) {
        let node = &mut self.flows[flow];
        self.leaves[node.leaf].lags.untrack(&mut node.tracked);
    }

    fn idle_turn(&self, flow: FlowId) -> Option<IdleTurn> {
        let node = &self.flows[flow];
        let head = node.head.filter(|_| self.config.has_extra_places && self.is_idle(flow))?;
        Some((self.rank(self.band_of(flow)), self.order.arrival(head)))
    }

    /// Updates the turn of `flow`, after any change of its head or of what its identity runs.
    fn update_idle(&mut self, flow: FlowId) {
        let turn = self.idle_turn(flow);
        let before = core::mem::replace(&mut self.flows[flow].idle_turn, turn);
        if before == turn {
            return;
        }
        if let Some(before) = before {
            self.idle.remove(&(before, flow));
        }
        if let Some(turn) = turn {
            self.idle.insert((turn, flow));
        }
    }

    /// `head` of `flow` goes first; `None`: none goes.
    pub(super) fn set_head(&mut self, flow: FlowId, head: Option<JobId>) {
        let before = core::mem::replace(&mut self.flows[flow].head, head);
        if before.is_some() != head.is_some() {
            let heads = &mut self.bands[self.band_of(flow) as usize].heads;
            *heads = if head.is_some() { *heads + 1 } else { *heads - 1 };
        }
        self.update_idle(flow);
    }

    /// The first request of `identity` started, or its last one ended.
    pub(super) fn update_idle_flows(&mut self, identity: IdentityId) {
        if !self.config.has_extra_places {
            return;
        }
        for position in 0..self.identities.get(identity).flows.len() {
            let (_, flow) = self.identities.get(identity).flows[position];
            self.update_idle(flow);
        }
    }

    pub(super) fn audit_idle(&self) -> Result<(), AuditError> {
        let mut waiting = 0;
        let mut heads = [0; TreeBand::COUNT];
        for (id, flow) in self.flows.iter() {
            heads[self.band_of(id) as usize] += u64::from(flow.head.is_some());
            let turn = self.idle_turn(id);
            check("a flow with nothing running has its turn above the bounds", flow.idle_turn == turn)?;
            check(
                "the turns above the bounds are those of the flows",
                turn.is_none_or(|turn| self.idle.contains(&(turn, id))),
            )?;
            waiting += u64::from(turn.is_some());
        }
        check("heads are counted", self.bands.iter().map(|band| band.heads).eq(heads))?;
        check_equal("flows that may go above the bounds", self.idle.len() as u64, waiting)
    }
}
