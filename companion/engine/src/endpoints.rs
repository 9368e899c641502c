//! The pool's endpoints: what runs where, who is ready, and who takes the next one.
//!
//! Stock is what was granted and hasn't ended, counted here and never scraped. What runs on an endpoint that
//! isn't ready, or isn't listed any more, is draining: shown, and gates nothing. The index holds just those that
//! have room, so a choice looks at no other; a tie falls to a number drawn anew at each change.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use hashbrown::HashMap;

use crate::audit::{AuditError, holds, same};
use crate::gate::{Bounds, endpoint_bound};
use crate::input::{EndpointId, EndpointState};
use crate::limits::{ENDPOINTS_MAX, GRANT_ENDPOINTS_MAX};
use crate::policy::Gate;
use crate::rng::Rng;
use crate::slab::Slab;
use crate::units::Decimal;

#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) id: EndpointId,
    /// Discovery names it; otherwise it is here only while something runs there.
    pub(crate) listed: bool,
    pub(crate) ready: bool,
    weight: Decimal,
    pub(crate) stock: u64,
    pub(crate) bound: u64,
    tie: u32,
}

impl Endpoint {
    pub(crate) const fn has_room(&self) -> bool {
        self.ready && self.stock < self.bound
    }
}

/// An endpoint that has room now and had none, or the other way round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RoomChanged {
    pub(crate) id: EndpointId,
    pub(crate) has_room: bool,
}

#[derive(Debug)]
pub(crate) struct Endpoints {
    all: Slab<Endpoint>,
    ids: HashMap<EndpointId, u32>,
    /// Those with room, least stock first, then by tie.
    with_room: BTreeSet<(u64, u32, u32)>,
    gate: Gate,
    bounds: Bounds,
    listed: usize,
    ready: usize,
    /// Billionths, of those that are ready.
    ready_weight: u128,
    stock: u64,
    draining: u64,
}

impl Endpoints {
    pub(crate) fn new(gate: Gate) -> Self {
        Self {
            all: Slab::default(),
            ids: HashMap::new(),
            with_room: BTreeSet::new(),
            gate,
            bounds: Bounds::over(gate, Decimal::default()),
            listed: 0,
            ready: 0,
            ready_weight: 0,
            stock: 0,
            draining: 0,
        }
    }

    /// What runs on endpoints that are ready.
    pub(crate) const fn stock(&self) -> u64 {
        self.stock
    }

    /// What runs on the others.
    pub(crate) const fn draining(&self) -> u64 {
        self.draining
    }

    pub(crate) const fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    pub(crate) const fn any_ready(&self) -> bool {
        self.ready > 0
    }

    pub(crate) fn any_room(&self) -> bool {
        !self.with_room.is_empty()
    }

    pub(crate) const fn any_listed(&self) -> bool {
        self.listed > 0
    }

    pub(crate) fn is_listed(&self, id: EndpointId) -> bool {
        self.get(id).is_some_and(|endpoint| endpoint.listed)
    }

    pub(crate) fn has_room(&self, id: EndpointId) -> bool {
        self.get(id).is_some_and(Endpoint::has_room)
    }

    fn get(&self, id: EndpointId) -> Option<&Endpoint> {
        self.ids.get(&id).map(|&number| &self.all[number])
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Endpoint> {
        self.all.iter().map(|(_, endpoint)| endpoint)
    }

    /// Of endpoint `number`.
    pub(crate) fn id(&self, number: u32) -> EndpointId {
        self.all[number].id
    }

    /// Lists `id`, or changes it. Past [`ENDPOINTS_MAX`] a new one is ignored.
    pub(crate) fn list(
        &mut self,
        id: EndpointId,
        state: EndpointState,
        rng: &mut Rng,
    ) -> Option<RoomChanged> {
        if !self.is_listed(id) && self.listed >= ENDPOINTS_MAX {
            return None;
        }
        let number = self.number(id);
        self.change(number, rng, |endpoint| {
            endpoint.listed = true;
            endpoint.ready = state.ready;
            endpoint.weight = state.weight;
        })
    }

    pub(crate) fn unlist(&mut self, id: EndpointId, rng: &mut Rng) -> Option<RoomChanged> {
        let number = *self.ids.get(&id)?;
        let changed = self.change(number, rng, |endpoint| {
            endpoint.listed = false;
            endpoint.ready = false;
        });
        self.forget_unused(number);
        changed
    }

    /// One more runs at `id`, known or not. Returns its number, good until [`Self::ended`].
    pub(crate) fn started(&mut self, id: EndpointId, rng: &mut Rng) -> (u32, Option<RoomChanged>) {
        let number = self.number(id);
        (number, self.change(number, rng, |endpoint| endpoint.stock += 1))
    }

    /// One of those that were started there has ended.
    pub(crate) fn ended(&mut self, number: u32, rng: &mut Rng) -> Option<RoomChanged> {
        let changed = self.change(number, rng, |endpoint| {
            debug_assert!(endpoint.stock > 0, "invariant: what ends was started");
            endpoint.stock = endpoint.stock.saturating_sub(1);
        });
        self.forget_unused(number);
        changed
    }

    /// A new gate: every bound anew.
    pub(crate) fn regate(&mut self, gate: Gate, rng: &mut Rng) -> Vec<RoomChanged> {
        self.gate = gate;
        let numbers: Vec<u32> = self.all.iter().map(|(number, _)| number).collect();
        let changed = numbers
            .into_iter()
            .filter_map(|number| self.change(number, rng, |_| ()))
            .collect();
        self.rebound();
        changed
    }

    /// Who takes the next: least stock first, at most [`GRANT_ENDPOINTS_MAX`], each with room; of `eligible`, or of
    /// all. Empty: nobody can.
    pub(crate) fn choose(&self, eligible: Option<&[EndpointId]>) -> Vec<EndpointId> {
        let Some(eligible) = eligible else {
            let best = self.with_room.iter().take(GRANT_ENDPOINTS_MAX);
            return best.map(|&(_, _, number)| self.all[number].id).collect();
        };
        let mut able: Vec<(u64, u32, EndpointId)> = eligible
            .iter()
            .filter_map(|&id| self.get(id))
            .filter(|endpoint| endpoint.has_room())
            .map(|endpoint| (endpoint.stock, endpoint.tie, endpoint.id))
            .collect();
        able.sort_unstable();
        able.into_iter()
            .take(GRANT_ENDPOINTS_MAX)
            .map(|(_, _, id)| id)
            .collect()
    }

    /// Against all that runs, by endpoint and sorted.
    pub(crate) fn audit(&self, running: &[EndpointId]) -> Result<(), AuditError> {
        let (mut stock, mut draining, mut listed, mut ready, mut weight) = (0, 0, 0, 0, 0_u128);
        let mut with_room = BTreeSet::new();
        for (number, endpoint) in self.all.iter() {
            holds(
                "an endpoint is known by its id",
                self.ids.get(&endpoint.id) == Some(&number),
            )?;
            let first = running.partition_point(|&id| id < endpoint.id);
            let there = running[first..].partition_point(|&id| id == endpoint.id) as u64;
            same("stock of an endpoint", endpoint.stock, there)?;
            holds("an endpoint is listed or in use", endpoint.listed || there > 0)?;
            holds("only what is listed is ready", endpoint.listed || !endpoint.ready)?;
            same(
                "bound of an endpoint",
                endpoint.bound,
                endpoint_bound(self.gate, endpoint.weight),
            )?;
            listed += u64::from(endpoint.listed);
            if endpoint.ready {
                stock += there;
                ready += 1;
                weight += endpoint.weight.billionths();
            } else {
                draining += there;
            }
            if endpoint.has_room() {
                with_room.insert((endpoint.stock, endpoint.tie, number));
            }
        }
        same(
            "stock and draining stock",
            self.stock + self.draining,
            running.len() as u64,
        )?;
        same("stock", self.stock, stock)?;
        same("draining stock", self.draining, draining)?;
        same("endpoints listed", self.listed as u64, listed)?;
        same("endpoints ready", self.ready as u64, ready)?;
        holds("bounds are over what is ready", self.ready_weight == weight)?;
        let bounds = Bounds::over(self.gate, Decimal::from_billionths(weight));
        holds("bounds are of the gate", bounds == self.bounds)?;
        holds("those with room are known", with_room == self.with_room)
    }

    fn number(&mut self, id: EndpointId) -> u32 {
        *self.ids.entry(id).or_insert_with(|| {
            self.all.insert(Endpoint {
                id,
                listed: false,
                ready: false,
                weight: Decimal::whole(1),
                stock: 0,
                bound: 0,
                tie: 0,
            })
        })
    }

    /// The only way to change one: sums and index follow.
    fn change(
        &mut self,
        number: u32,
        rng: &mut Rng,
        change: impl FnOnce(&mut Endpoint),
    ) -> Option<RoomChanged> {
        let endpoint = &mut self.all[number];
        let had_room = endpoint.has_room();
        if had_room {
            self.with_room.remove(&(endpoint.stock, endpoint.tie, number));
        }
        let (was_listed, was_ready, weight, stock) =
            (endpoint.listed, endpoint.ready, endpoint.weight, endpoint.stock);
        change(endpoint);
        endpoint.bound = endpoint_bound(self.gate, endpoint.weight);
        endpoint.tie = rng.next_u32();
        let has_room = endpoint.has_room();
        if has_room {
            self.with_room.insert((endpoint.stock, endpoint.tie, number));
        }
        self.listed = self.listed + usize::from(endpoint.listed) - usize::from(was_listed);
        // Two steps, because a change of readiness moves what runs there from one sum to the other.
        *(if was_ready {
            &mut self.stock
        } else {
            &mut self.draining
        }) -= stock;
        *(if endpoint.ready {
            &mut self.stock
        } else {
            &mut self.draining
        }) += endpoint.stock;
        if (was_ready, weight) != (endpoint.ready, endpoint.weight) {
            self.ready = self.ready + usize::from(endpoint.ready) - usize::from(was_ready);
            if was_ready {
                self.ready_weight -= weight.billionths();
            }
            if endpoint.ready {
                self.ready_weight += endpoint.weight.billionths();
            }
            self.rebound();
        }
        (had_room != has_room).then(|| RoomChanged {
            id: self.all[number].id,
            has_room,
        })
    }

    fn rebound(&mut self) {
        self.bounds = Bounds::over(self.gate, Decimal::from_billionths(self.ready_weight));
    }

    fn forget_unused(&mut self, number: u32) {
        let endpoint = &self.all[number];
        if !endpoint.listed && endpoint.stock == 0 {
            self.ids.remove(&endpoint.id);
            self.all.remove(number);
        }
    }
}
