//! Places above the bounds, for flows with nothing running.

use std::collections::{BTreeMap, BTreeSet};

use penstock_engine::policy::{BandMode, ExtraPlaces, Gate};
use penstock_engine::units::Decimal;
use penstock_engine::{EndpointId, Outcome, RequestId};

use super::allowances::Utilisation;
use super::engine_effects::EngineEffects;
use super::{BANDS, Item, Leaf, Level, Model, Server};

impl Model {
    /// The bound of an endpoint; `u64::MAX`: none.
    pub(super) fn bound_of(&self, server: &Server) -> u64 {
        match self.allowance_of(server) {
            Some(allowance) => {
                let free = |most: u64| most.saturating_sub(server.foreign).max(1);
                allowance.requests_max.map_or(u64::MAX, free)
            }
            None => self.own_bound(server),
        }
    }

    /// What runs there above the bound, in the unit of the gate.
    pub(super) fn extra_of(&self, id: EndpointId) -> u64 {
        let extras = self.runs_at(id).filter(|(_, running)| running.is_extra);
        if self.in_tokens() {
            extras.map(|(_, running)| running.tokens).sum()
        } else if self.fits_each() {
            extras.map(|(item, _)| item.sequences).sum()
        } else {
            extras.count() as u64
        }
    }

    pub(super) fn within_of(&self, id: EndpointId) -> u64 {
        self.stock_of(id) - self.extra_of(id)
    }

    fn takes_above(&self, id: EndpointId, server: &Server, item: &Item) -> bool {
        if !server.ready || server.ramp.is_some() || server.pushback.is_some() {
            return false;
        }
        let allowance = self.allowance_of(server);
        let own = self.bound_of(server);
        let bound = match allowance {
            Some(allowance) if own == u64::MAX => allowance.typical,
            _ => own,
        };
        let tokens = item.prompt + item.output;
        let resident = self.resident(id, server) + tokens;
        if allowance.and_then(|allowance| allowance.kv_tokens_max).is_some_and(|most| resident > most) {
            return false;
        }
        let sequences = self.sequences_at(id) + server.foreign + item.sequences;
        if allowance.and_then(|allowance| allowance.sequences_max).is_some_and(|most| sequences > most) {
            return false;
        }
        let whole = allowance.map_or(bound, |allowance| allowance.typical);
        let part = |part: Decimal| (part.billionths() * u128::from(whole) / Decimal::ONE) as u64;
        let (extra, stock) = (self.extra_of(id), self.stock_of(id));
        if self.in_tokens() {
            let count = self.runs_at(id).filter(|(_, running)| running.is_extra).count() as u64;
            return match self.policy.extra_for_idle_flows {
                ExtraPlaces::Count(most) => count < most,
                ExtraPlaces::Part(most) => count == 0 || extra + tokens <= part(most).max(1),
            };
        }
        let above = match self.policy.extra_for_idle_flows {
            ExtraPlaces::Count(most) => most,
            ExtraPlaces::Part(most) => part(most).max(1),
        };
        let more = if self.fits_each() { item.sequences } else { 1 };
        extra + more <= above && (own == u64::MAX || stock + more <= own.saturating_add(above))
    }

    /// How much a refusal may be above the bound and still count: as much as the endpoint takes there.
    pub(super) fn above(&self, server: &Server, full: u64) -> u64 {
        if self.in_tokens() || matches!(self.policy.gate, Gate::Open | Gate::Manual) {
            return 0;
        }
        let whole = self.allowance_of(server).map_or(full, |allowance| allowance.typical);
        match self.policy.extra_for_idle_flows {
            ExtraPlaces::Count(most) => most,
            ExtraPlaces::Part(most) => ((most.billionths() * u128::from(whole) / Decimal::ONE) as u64).max(1),
        }
    }

    /// The endpoints that take the item above their bounds, with their order.
    pub(super) fn choices_above(&self, item: &Item) -> BTreeMap<EndpointId, (f64, Utilisation)> {
        let may_exceed = self.by_allowance() || self.in_tokens();
        let is_within = may_exceed || self.filled() <= self.bounds().1;
        if matches!(self.policy.gate, Gate::Open | Gate::Manual)
            || !is_within
            || !self.may_go_above(item.band)
        {
            return BTreeMap::new();
        }
        let able = self.endpoints.iter().filter(|(id, server)| {
            let eligible = item.eligible.as_ref().is_none_or(|eligible| eligible.contains(id));
            eligible && !self.is_busy(**id, server, item.class) && self.takes_above(**id, server, item)
        });
        able.map(|(&id, server)| {
            let (stock, bound) = (self.stock_of(id) as f64, self.bound_of(server));
            let free = match bound {
                u64::MAX => 1.0 / (1.0 + stock),
                bound => (1.0 - stock / bound.max(1) as f64).max(0.0),
            };
            (id, (self.score(item, id, free, false), (stock, 0.0)))
        })
        .collect()
    }

    fn rank(&self, band: Level) -> u8 {
        match self.policy.bands.mode {
            BandMode::Strict => band as u8,
            BandMode::Weighted(_) if self.band_quantum(band) > 0 => 0,
            BandMode::Weighted(_) => band as u8 + 1,
        }
    }

    /// No more critical request waits, except for a limit of its own.
    fn may_go_above(&self, band: Level) -> bool {
        let first = |other: &&Item| self.rank(other.band) < self.rank(band) && !self.is_at_limit(&other.name);
        !self.is_over_ceiling(band, self.bounds().0) && self.active().find(first).is_none()
    }

    fn runs_nothing(&self, name: &str) -> bool {
        !self.items.iter().any(|item| *item.name == *name && item.running.is_some())
    }

    /// The next request of a flow with nothing running that goes above a bound.
    fn next_above(&self) -> Option<RequestId> {
        if !self.ready || !self.goes_by_itself() {
            return None;
        }
        let flows: BTreeSet<(Leaf, Box<str>)> =
            self.active().map(|item| (self.leaf(item), item.name.clone())).collect();
        let idle = flows.iter().filter(|(_, name)| self.runs_nothing(name) && !self.is_at_limit(name));
        let mut heads: Vec<&Item> = idle.filter_map(|(leaf, name)| self.first(leaf, name)).collect();
        heads.sort_by_key(|item| (self.rank(item.band), item.arrived, item.sequence));
        let able = heads.into_iter().take(16).find(|item| !self.choices_above(item).is_empty());
        able.map(|item| item.id)
    }

    pub(super) fn waits_for_rate_above(&self) -> bool {
        self.next_above().is_some()
    }

    /// Grants the next request above a bound. Returns whether there was one.
    pub(super) fn dispatch_above(&mut self, effects: &mut EngineEffects) -> bool {
        let Some(id) = self.next_above().filter(|_| self.has_rate()) else {
            return false;
        };
        if self.admits_next(id, effects) {
            let item = self.item(id).clone();
            let (waited, cost) = (self.now.since(item.arrived), self.cost(&item));
            let endpoint = effects.expect_grant_above(self, id, Outcome::Dispatched, waited, cost);
            self.items.retain(|item| item.id != id);
            self.refresh_backlogs();
            self.items.push(item);
            self.take_rate_token();
            self.start_above(id, endpoint, Outcome::Dispatched);
        }
        true
    }

    /// Whether a newcomer goes above a bound at once.
    pub(super) fn may_bypass_above(&self, item: &Item) -> bool {
        let first = !self.active().any(|other| {
            self.leaf(other) == self.leaf(item) && other.name == item.name && other.eligible == item.eligible
        });
        let may = self.ready && self.goes_by_itself() && self.has_rate() && !self.is_at_limit(&item.name);
        let others = self.may_dispatch() && self.next().is_some() || self.next_above().is_some();
        may && first && !others && self.runs_nothing(&item.name) && !self.choices_above(item).is_empty()
    }

    pub(super) fn start_above(&mut self, id: RequestId, endpoint: EndpointId, outcome: Outcome) {
        self.start(id, endpoint, outcome);
        self.running_mut(id).expect("it has started").is_extra = true;
        self.refresh_backlogs();
    }
}

/// The levels are in the order of their criticality.
const _: () = assert!(BANDS[0] as u8 == 0 && BANDS[3] as u8 == 3);
