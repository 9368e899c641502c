//! Which endpoint takes the next request, of those that have room and that the request may go to.
//!
//! Least stock first; or the highest score, where anything but the stock has a vote; or, under a budget, who uses the least
//! of it. A grant names a few, the best first: what refuses is followed by the next.

use alloc::vec::Vec;
use core::cmp::Ordering;

use super::Endpoints;
use crate::budget::Rank;
use crate::endpoint::Endpoint;
use crate::input::{EndpointId, ServerStats};
use crate::limits::GRANT_ENDPOINTS_MAX;
use crate::load::Load;
use crate::policy::Scorers;
use crate::scores::{Ask, Score};

impl Endpoints {
    /// Other weights of the scorers.
    pub(crate) fn weigh(&mut self, weights: Scorers) {
        let all = self.all.iter().map(|(_, endpoint)| &endpoint.stats);
        self.scheduler.weigh(weights, all);
    }

    /// What the server of `id` says of itself.
    pub(crate) fn know(&mut self, id: EndpointId, stats: ServerStats) {
        let number = self.ids.get(&id).copied().filter(|_| self.is_listed(id));
        if let Some(number) = number {
            let before = core::mem::replace(&mut self.all[number].stats, stats);
            self.scheduler.changed(&before, &self.all[number].stats);
        }
    }

    /// The server of `number` has a prompt with these beginnings to compute.
    pub(crate) fn computes(&mut self, number: u32, prefix: &[u64]) {
        if !prefix.is_empty() {
            self.scheduler.sent(&self.all[number], prefix);
        }
    }

    /// Who takes the next: least stock first, or by score where anything else has a vote; at most
    /// [`GRANT_ENDPOINTS_MAX`], each with room and allowed by `allows`; of `eligible`, or of all. Empty: nobody can.
    pub(crate) fn choose(
        &self,
        eligible: Option<&[EndpointId]>,
        ask: &Ask<'_>,
        allows: impl Fn(&Endpoint) -> bool,
    ) -> Vec<EndpointId> {
        if self.scheduler.is_asked(ask) {
            return self.choose_best(eligible, ask, allows);
        }
        let Some(eligible) = eligible else {
            let allows = |number| allows(&self.all[number]);
            let first = self.with_room.first(GRANT_ENDPOINTS_MAX, allows);
            return first.into_iter().map(|number| self.id(number)).collect();
        };
        let mut able: Vec<(u64, u32, EndpointId)> = eligible
            .iter()
            .filter_map(|&id| self.get(id))
            .filter(|endpoint| endpoint.has_room() && allows(endpoint))
            .map(|endpoint| (endpoint.stock, endpoint.tie, endpoint.id))
            .collect();
        able.sort_unstable();
        able.into_iter()
            .take(GRANT_ENDPOINTS_MAX)
            .map(|(_, _, id)| id)
            .collect()
    }

    /// The same by score; of equal ones the least stock.
    fn choose_best(
        &self,
        eligible: Option<&[EndpointId]>,
        ask: &Ask<'_>,
        allows: impl Fn(&Endpoint) -> bool,
    ) -> Vec<EndpointId> {
        let order = |a: &(Score, u64, u32), b: &(Score, u64, u32)| {
            a.0.order(b.0).then_with(|| (a.1, a.2).cmp(&(b.1, b.2)))
        };
        let each = |look: &mut dyn FnMut(&Endpoint)| {
            let mut able = |endpoint: &Endpoint| {
                if endpoint.has_room() && allows(endpoint) {
                    look(endpoint);
                }
            };
            match eligible {
                Some(eligible) => eligible.iter().filter_map(|&id| self.get(id)).for_each(&mut able),
                None => self
                    .with_room
                    .numbers()
                    .for_each(|number| able(&self.all[number])),
            }
        };
        let mut least = u64::MAX;
        each(&mut |endpoint| least = least.min(endpoint.stock));
        let mut best = Best::new(order);
        each(&mut |endpoint| {
            let score = if endpoint.stock - least > endpoint.bound / 4 {
                Score::AHEAD
            } else {
                self.scheduler.score(endpoint, endpoint.free(), ask)
            };
            best.add((score, endpoint.stock, endpoint.tie), endpoint.id);
        });
        best.into_ids()
    }

    /// From now on [`Self::choose_fitting`] can be asked about those only that change.
    pub(crate) fn clear_dirty(&mut self) {
        self.touched.clear();
    }

    /// Who takes `more` under [`Gate::Auto`]: the least used of its budget first, or by score, as [`Self::choose`]. `since`: who
    /// hasn't changed since [`Self::clear_dirty`] is known not to.
    pub(crate) fn choose_fitting(
        &self,
        eligible: Option<&[EndpointId]>,
        ask: &Ask<'_>,
        more: &Load,
        since: bool,
        allows: impl Fn(&Endpoint) -> bool,
    ) -> Vec<EndpointId> {
        let order = |a: &(Score, Rank), b: &(Score, Rank)| a.0.order(b.0).then_with(|| a.1.order(&b.1));
        let each = |look: &mut dyn FnMut(&Endpoint, Rank)| {
            let mut able = |endpoint: &Endpoint| {
                let able = Some(endpoint).filter(|endpoint| endpoint.has_room() && allows(endpoint));
                if let Some(rank) = able.and_then(|endpoint| endpoint.rank(more)) {
                    look(endpoint, rank);
                }
            };
            match (self.touched.few().filter(|_| since), eligible) {
                (Some(few), eligible) => few
                    .iter()
                    .map(|&number| &self.all[number])
                    .filter(|endpoint| eligible.is_none_or(|eligible| eligible.contains(&endpoint.id)))
                    .for_each(&mut able),
                (None, Some(eligible)) => eligible.iter().filter_map(|&id| self.get(id)).for_each(&mut able),
                (None, None) => self
                    .with_room
                    .numbers()
                    .for_each(|number| able(&self.all[number])),
            }
        };
        let is_asked = self.scheduler.is_asked(ask);
        let mut least = f64::INFINITY;
        if is_asked {
            each(&mut |_, rank| least = least.min(rank.used));
        }
        let mut best = Best::new(order);
        each(&mut |endpoint, rank| {
            let score = if !is_asked {
                Score::NONE
            } else if rank.used - least > 0.25 {
                Score::AHEAD
            } else {
                let free = (1.0 - rank.used).clamp(0.0, 1.0);
                self.scheduler.score(endpoint, free, ask)
            };
            best.add((score, rank), endpoint.id);
        });
        best.into_ids()
    }
}

/// The first few in an order.
struct Best<K, F> {
    places: [Option<(K, EndpointId)>; GRANT_ENDPOINTS_MAX],
    order: F,
}

impl<K: Copy, F: Fn(&K, &K) -> Ordering> Best<K, F> {
    const fn new(order: F) -> Self {
        Self {
            places: [None; GRANT_ENDPOINTS_MAX],
            order,
        }
    }

    /// It goes where it belongs and pushes the rest on.
    fn add(&mut self, key: K, id: EndpointId) {
        let mut next = Some((key, id));
        for place in &mut self.places {
            let Some((key, _)) = &next else { return };
            if place.is_none_or(|(other, _)| (self.order)(key, &other).is_lt()) {
                next = core::mem::replace(place, next);
            }
        }
    }

    fn into_ids(self) -> Vec<EndpointId> {
        self.places.into_iter().flatten().map(|(_, id)| id).collect()
    }
}
