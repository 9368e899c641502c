//! The bound of one endpoint: what the gate, the weight or the allowance allow, lowered by slow start, pushback and the
//! requests of other clients.

use super::Endpoint;
use crate::allowance::Allowance;
use crate::gate::{Limits, Share, counts_tokens};
use crate::policy::{Gate, StockUnit};
use crate::units::Decimal;

impl Endpoint {
    pub(crate) fn limits(&self) -> Limits {
        Limits { ramp: self.starting_limit(), foreign: self.foreign, pushback: self.pushback.limit() }
    }

    /// The most requests at a time while the endpoint starts slowly or is probed; `None`: any number.
    pub(super) fn starting_limit(&self) -> Option<u64> {
        if self.health.is_single() { Some(1) } else { self.slow_start.limit() }
    }

    pub(crate) fn set_allowance(&mut self, allowance: Option<Allowance>, gate: Gate) {
        self.allowance = allowance;
        self.update_bound(gate);
    }

    /// The inputs of [`Self::update_bound`] besides gate and allowance.
    pub(crate) fn bound_inputs(&self) -> (bool, Decimal, Limits) {
        (self.ready, self.weight, self.limits())
    }

    /// Updates share and bound, after any change of the gate or of [`Self::bound_inputs`].
    pub(crate) fn update_bound(&mut self, gate: Gate) {
        self.unit = gate.unit();
        self.full = self.share_within(gate, Limits::default()).bound(gate);
        let (full, ready) = (self.full, self.ready);
        self.slow_start.end_unless(|limit| match gate {
            Gate::Open | Gate::Manual => false,
            // A bound in tokens allows at most that many requests.
            Gate::Auto { .. } | Gate::Bounded { .. } => ready && limit < full,
        });
        let configured = self.unlimited_bound(gate);
        // A server that refuses what runs above its bound takes none there until it has served others.
        let above = match gate.unit() {
            StockUnit::Requests | StockUnit::Sequences if self.extra_places.is_on(gate) => {
                self.extra_places.above(self.whole(gate), gate.unit())
            }
            StockUnit::Requests | StockUnit::Sequences | StockUnit::Tokens => 0,
        };
        self.pushback.end_unless(|limit| ready && limit < configured.saturating_add(above));
        self.share = self.share_within(gate, self.limits());
        self.bound = self.bound_in(gate);
        self.whole_places = self.bound.min(self.whole(gate)).div_ceil(2);
    }

    /// The bound if nothing but the gate limits the endpoint.
    fn unlimited_bound(&self, gate: Gate) -> u64 {
        match (gate, self.allowance_in(gate)) {
            (Gate::Manual, _) => 0,
            (Gate::Open, _) => u64::MAX,
            (Gate::Auto { .. } | Gate::Bounded { .. }, Some(allowance)) => {
                allowance.requests_max.unwrap_or(u64::MAX)
            }
            (Gate::Auto { .. } | Gate::Bounded { .. }, None) => self.full,
        }
    }

    /// The limit by the endpoint's own refusals, where it lowers the bound.
    pub(crate) fn lowering_pushback(&self, gate: Gate) -> Option<u64> {
        self.pushback.limit().filter(|limit| *limit < self.unlimited_bound(gate))
    }

    /// The bound of which the places above it are a part: under an allowance, the number of typical requests.
    pub(super) fn whole(&self, gate: Gate) -> u64 {
        self.allowance_in(gate).map_or(self.full, |allowance| allowance.typical)
    }

    /// The share within `limits`. Under an allowance it is the typical number of requests, unscaled by the weight, because
    /// the allowance describes this very server.
    pub(crate) fn share_within(&self, gate: Gate, limits: Limits) -> Share {
        match self.allowance_in(gate) {
            Some(allowance) => {
                let initial = Decimal::whole(allowance.typical);
                Share::of(Gate::Auto { initial }, Decimal::whole(1), limits)
            }
            None => Share::of(gate, self.weight, limits),
        }
    }

    /// The bound under this gate; under an allowance only its limit on requests.
    pub(crate) fn bound_in(&self, gate: Gate) -> u64 {
        let bound = match self.allowance_in(gate) {
            Some(allowance) => {
                allowance.requests_max.map_or(u64::MAX, |limit| limit.saturating_sub(self.foreign).max(1))
            }
            None => self.share.bound(gate),
        };
        // The refusals limit requests, not tokens.
        if counts_tokens(gate) {
            return bound;
        }
        bound.min(self.pushback.limit().unwrap_or(u64::MAX))
    }

    /// The allowance, if it replaces the bound under this gate.
    pub(super) fn allowance_in(&self, gate: Gate) -> Option<&Allowance> {
        match gate {
            Gate::Auto { .. } => self.allowance.as_ref(),
            Gate::Open | Gate::Manual | Gate::Bounded { .. } => None,
        }
    }
}
