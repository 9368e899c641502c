//! The pool's endpoints: what runs where, who is ready, and who takes the next one.
//!
//! Stock is what was granted and hasn't ended, counted here and never scraped. What runs on an endpoint that
//! isn't ready, or isn't listed any more, is draining: shown, and gates nothing. The index holds just those that
//! have room, so a choice looks at no other; a tie falls to a number drawn anew at each change.
//!
//! While any endpoint is listed and healthy one is ready: the last isn't marked down, and when the last goes for another
//! reason, who is marked down and due first is back at once.

mod choice;

use alloc::vec::Vec;
use core::time::Duration;

use hashbrown::HashMap;

use crate::audit::{AuditError, holds, same};
use crate::budget::Budget;
use crate::dirty_set::DirtySet;
use crate::endpoint::Endpoint;
use crate::gate::{Bounds, Limits, Share};
use crate::input::{EndpointId, EndpointState, RequestId, ServerStats};
use crate::limits::ENDPOINTS_MAX;
use crate::load::Load;
use crate::outlier_ejection::EjectedEndpoints;
use crate::policy::{Gate, OutlierEjection, Scorers};
use crate::rng::Rng;
use crate::room::Room;
use crate::scores::Scheduler;
use crate::slab::Slab;
use crate::time::Instant;

/// A pool starts for so long after its first endpoint was listed and dispatching began, whichever is later: what is
/// listed or comes back by then is at its full bound at once.
const START: Duration = Duration::from_secs(1);

/// Something of an endpoint that lanes may look at has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Changed {
    pub(crate) id: EndpointId,
    pub(crate) had_room: bool,
    pub(crate) has_room: bool,
    /// Its uncached prompt tokens in flight, or what thresholds compare them with.
    pub(crate) prefill: bool,
}

#[derive(Debug)]
pub(crate) struct Endpoints {
    all: Slab<Endpoint>,
    ids: HashMap<EndpointId, u32>,
    with_room: Room,
    resting: EjectedEndpoints,
    /// Those that are set aside.
    held: Vec<EndpointId>,
    /// Under [`Gate::Auto`]: who has changed since [`Self::clear_dirty`].
    touched: DirtySet,
    gate: Gate,
    bounds: Bounds,
    listed: usize,
    ready: usize,
    /// The sum over those that are ready.
    share: Share,
    stock: u64,
    draining: u64,
    scheduler: Scheduler,
    first_listed: Option<Instant>,
    dispatching_since: Option<Instant>,
}

impl Endpoints {
    pub(crate) fn new(gate: Gate, weights: Scorers) -> Self {
        let mut scheduler = Scheduler::default();
        scheduler.weigh(weights, core::iter::empty());
        Self {
            all: Slab::default(),
            ids: HashMap::new(),
            with_room: Room::default(),
            resting: EjectedEndpoints::default(),
            held: Vec::new(),
            touched: DirtySet::default(),
            gate,
            bounds: Bounds::over(gate, Share::default()),
            listed: 0,
            ready: 0,
            share: Share::default(),
            stock: 0,
            draining: 0,
            scheduler,
            first_listed: None,
            dispatching_since: None,
        }
    }

    /// What runs on endpoints that are ready, in the unit of the gate.
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

    pub(crate) const fn ready_count(&self) -> usize {
        self.ready
    }

    pub(crate) const fn listed_count(&self) -> usize {
        self.listed
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

    pub(crate) fn is_ready(&self, id: EndpointId) -> bool {
        self.get(id).is_some_and(|endpoint| endpoint.ready)
    }

    pub(crate) fn get(&self, id: EndpointId) -> Option<&Endpoint> {
        self.ids.get(&id).map(|&number| &self.all[number])
    }

    /// What the ready ones take together at full strength, in what stock is counted in: no slow start, and nothing that
    /// isn't ours. `None` where nothing bounds.
    pub(crate) fn full_bound(&self) -> Option<u64> {
        let mut sum = Share::default();
        for endpoint in self.iter().filter(|endpoint| endpoint.ready) {
            sum += endpoint.share_within(self.gate, Limits::default());
        }
        match self.gate {
            Gate::Open | Gate::Manual => None,
            Gate::Auto { .. } | Gate::Bounded { .. } => Some(Bounds::over(self.gate, sum).upper),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Endpoint> {
        self.all.iter().map(|(_, endpoint)| endpoint)
    }

    /// Of endpoint `number`.
    pub(crate) fn id(&self, number: u32) -> EndpointId {
        self.all[number].id
    }

    /// Dispatching begins. Said again it changes nothing.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.dispatching_since.get_or_insert(now);
    }

    /// Lists `id`, or changes it. Past [`ENDPOINTS_MAX`] a new one is ignored.
    pub(crate) fn list(
        &mut self,
        now: Instant,
        id: EndpointId,
        state: EndpointState,
        rng: &mut Rng,
    ) -> Option<Changed> {
        if !self.is_listed(id) && self.listed >= ENDPOINTS_MAX {
            return None;
        }
        let first = *self.first_listed.get_or_insert(now);
        let starting = self
            .dispatching_since
            .is_none_or(|since| now <= first.max(since).after(START));
        let number = self.number(id);
        self.change(number, rng, |endpoint| endpoint.list(state, starting))
    }

    pub(crate) fn unlist(&mut self, id: EndpointId, rng: &mut Rng) -> Option<Changed> {
        let number = *self.ids.get(&id)?;
        self.know(id, ServerStats::default());
        let gate = self.gate;
        let changed = self.change(number, rng, |endpoint| endpoint.unlist(gate));
        self.forget_unused(number);
        changed
    }

    /// `request` failed at `id` before a response. Nothing, unless `id` is ready.
    pub(crate) fn failed(
        &mut self,
        now: Instant,
        id: EndpointId,
        request: RequestId,
        policy: OutlierEjection,
        rng: &mut Rng,
    ) -> Option<Changed> {
        let number = self.ids.get(&id).copied().filter(|_| self.is_ready(id))?;
        let last = self.ready == 1;
        self.change(number, rng, |endpoint| {
            endpoint.fail(now, request, policy, last);
        })
    }

    /// When the first of those that are marked down is due.
    pub(crate) fn next_back(&self) -> Option<Instant> {
        self.resting.first().map(|(until, _)| until)
    }

    /// The first of those that are marked down is back, if it is due by `now`.
    pub(crate) fn back(&mut self, now: Instant, rng: &mut Rng) -> Option<Option<Changed>> {
        let (_, id) = self.resting.first().filter(|&(until, _)| until <= now)?;
        let number = self.ids[&id];
        Some(self.change(number, rng, Endpoint::back))
    }

    /// With none ready, the first of the healthy ones that are marked down is back, before it is due. After every
    /// change of who is listed and healthy.
    pub(crate) fn rescue(&mut self, rng: &mut Rng) -> Option<Changed> {
        if self.any_ready() {
            return None;
        }
        let is_healthy = |id| self.get(id).is_some_and(|endpoint| endpoint.healthy);
        let first = self.resting.iter().find(|&(_, id)| is_healthy(id));
        let number = self.ids[&first?.1];
        self.change(number, rng, Endpoint::back)
    }

    /// The server of `id` says that so many requests run there, whoever's they are; `None`: it doesn't say any more.
    pub(crate) fn observe(&mut self, id: EndpointId, running: Option<u64>, rng: &mut Rng) -> Option<Changed> {
        let number = self.ids.get(&id).copied().filter(|_| self.is_listed(id))?;
        self.change(number, rng, |endpoint| endpoint.observe(running))
    }

    /// What a model of the server of `id` says it takes; `None`: nothing.
    pub(crate) fn allow(&mut self, id: EndpointId, budget: Option<Budget>, rng: &mut Rng) -> Option<Changed> {
        let number = self.ids.get(&id).copied().filter(|_| self.is_listed(id))?;
        let gate = self.gate;
        self.change(number, rng, |endpoint| endpoint.allow(budget, gate))
    }

    /// How many are ready, have room, and aren't set aside.
    pub(crate) fn room_count(&self) -> usize {
        self.with_room.len()
    }

    /// `id` is set aside: nothing goes there until [`Self::release`].
    pub(crate) fn hold(&mut self, id: EndpointId) -> Option<Changed> {
        let &number = self.ids.get(&id)?;
        self.held.push(id);
        self.set_held(number, true)
    }

    /// One of those that are set aside isn't any more; `None`: there is none.
    pub(crate) fn release(&mut self) -> Option<Option<Changed>> {
        let id = self.held.pop()?;
        let number = self.ids.get(&id).copied();
        Some(number.and_then(|number| self.set_held(number, false)))
    }

    /// Nothing else of it changes, so that its place among equals stays, too.
    fn set_held(&mut self, number: u32, held: bool) -> Option<Changed> {
        self.touched.add(number);
        let endpoint = &mut self.all[number];
        let had_room = endpoint.has_room();
        endpoint.held = held;
        let has_room = endpoint.has_room();
        if has_room {
            self.with_room.set(number, endpoint.stock, endpoint.tie);
        } else {
            self.with_room.remove(number);
        }
        let changed = Changed {
            id: endpoint.id,
            had_room,
            has_room,
            prefill: false,
        };
        (had_room != has_room).then_some(changed)
    }

    /// Requests per second that those that are ready serve, as models of them say; `None`: of one it isn't known, so
    /// that the others' would be too few.
    pub(crate) fn rate(&self) -> Option<f64> {
        let ready = self.iter().filter(|endpoint| endpoint.ready);
        let rate: f64 = ready.map(Endpoint::rate).sum::<Option<f64>>()?;
        (rate > 0.0).then_some(rate)
    }

    /// Until the first token of `more`, at the best of those of `eligible`, or of all, that are ready; `None`: one of
    /// these can't say.
    pub(crate) fn first_token(&self, eligible: Option<&[EndpointId]>, more: &Load) -> Option<Duration> {
        let first = |endpoint: &Endpoint| endpoint.first_token(more);
        let ready = |endpoint: &&Endpoint| endpoint.ready;
        let least = |all: Option<Vec<Duration>>| all?.into_iter().min();
        match eligible {
            None => least(self.iter().filter(ready).map(first).collect()),
            Some(eligible) => {
                let those = eligible.iter().filter_map(|&id| self.get(id));
                least(those.filter(ready).map(first).collect())
            }
        }
    }

    /// One more runs at `id`, known or not. Returns its number, good until [`Self::ended`].
    pub(crate) fn started(&mut self, id: EndpointId, load: Load, rng: &mut Rng) -> (u32, Option<Changed>) {
        let number = self.number(id);
        (number, self.shift(number, rng, |endpoint| endpoint.start(load)))
    }

    /// One that was started there, with `load` or what it was since [`Self::reloaded`] to, doesn't run there any more.
    /// `served`: because its server has done with it.
    pub(crate) fn ended(&mut self, number: u32, load: Load, served: bool, rng: &mut Rng) -> Option<Changed> {
        let changed = self.shift(number, rng, |endpoint| endpoint.end(load, served));
        self.forget_unused(number);
        changed
    }

    /// What one that runs there weighs is known better.
    pub(crate) fn reloaded(&mut self, number: u32, from: Load, to: Load, rng: &mut Rng) -> Option<Changed> {
        self.shift(number, rng, |endpoint| {
            endpoint.end(from, false);
            endpoint.start(to);
        })
    }

    /// A new gate: every bound anew.
    pub(crate) fn regate(&mut self, gate: Gate, rng: &mut Rng) -> Vec<Changed> {
        // Shares of one gate can't be taken from sums of another, so they all go first.
        self.share = Share::default();
        for (_, endpoint) in self.all.iter_mut() {
            endpoint.share = Share::default();
        }
        self.gate = gate;
        let numbers: Vec<u32> = self.all.iter().map(|(number, _)| number).collect();
        let changed = numbers
            .into_iter()
            .filter_map(|number| self.change(number, rng, |endpoint| endpoint.rebound(gate)))
            .collect();
        self.bounds = Bounds::over(self.gate, self.share);
        changed
    }

    /// Against all that runs, sorted by endpoint.
    pub(crate) fn audit(&self, now: Instant, running: &[(EndpointId, Load)]) -> Result<(), AuditError> {
        self.audit_down(now)?;
        let (mut stock, mut draining, mut listed, mut ready, mut in_use) = (0, 0, 0, 0, 0);
        let mut share = Share::default();
        for (number, endpoint) in self.all.iter() {
            holds(
                "an endpoint is known by its id",
                self.ids.get(&endpoint.id) == Some(&number),
            )?;
            let first = running.partition_point(|&(id, _)| id < endpoint.id);
            let there = running[first..].partition_point(|&(id, _)| id == endpoint.id);
            let loads = running[first..first + there].iter().map(|&(_, load)| load);
            same("requests of an endpoint", endpoint.requests, there as u64)?;
            let sum = loads.fold(Load::default(), |sum, load| Load {
                tokens: sum.tokens + load.tokens,
                output: sum.output + load.output,
                prefill: sum.prefill + load.prefill,
            });
            same("tokens of an endpoint", endpoint.running().tokens, sum.tokens)?;
            same("output of an endpoint", endpoint.running().output, sum.output)?;
            same("prefill of an endpoint", endpoint.prefill, sum.prefill)?;
            same(
                "stock of an endpoint",
                endpoint.stock,
                endpoint.stock_in(self.gate),
            )?;
            holds("an endpoint is listed or in use", endpoint.listed || there > 0)?;
            let own = endpoint.share_within(self.gate, endpoint.limits());
            holds("an endpoint's share is of the gate", endpoint.share == own)?;
            same(
                "bound of an endpoint",
                endpoint.bound,
                endpoint.bound_in(self.gate),
            )?;
            holds(
                "who is set aside is known",
                !endpoint.held || self.held.contains(&endpoint.id),
            )?;
            in_use += there as u64;
            listed += u64::from(endpoint.listed);
            if endpoint.ready {
                stock += endpoint.stock;
                ready += 1;
                share += own;
            } else {
                draining += endpoint.stock;
            }
        }
        same("requests that run", in_use, running.len() as u64)?;
        same("stock", self.stock, stock)?;
        same("draining stock", self.draining, draining)?;
        same("endpoints listed", self.listed as u64, listed)?;
        same("endpoints ready", self.ready as u64, ready)?;
        holds("bounds are over what is ready", self.share == share)?;
        let bounds = Bounds::over(self.gate, share);
        holds("bounds are of the gate", bounds == self.bounds)?;
        let with_room = self.all.iter().filter(|(_, endpoint)| endpoint.has_room());
        let with_room = with_room.map(|(number, endpoint)| (number, endpoint.stock, endpoint.tie));
        holds("those with room are known", self.with_room.holds(with_room))?;
        let mut counted = Scheduler::default();
        counted.weigh(self.scheduler.weights(), self.iter().map(|it| &it.stats));
        same(
            "endpoints that vote",
            self.scheduler.voting() as u64,
            counted.voting() as u64,
        )
    }

    fn audit_down(&self, now: Instant) -> Result<(), AuditError> {
        for endpoint in self.iter() {
            holds(
                "only what is listed is healthy or marked down",
                endpoint.listed || !(endpoint.healthy || endpoint.failures.down().is_some()),
            )?;
            holds(
                "ready is what is healthy and not marked down",
                endpoint.ready == (endpoint.healthy && endpoint.failures.down().is_none()),
            )?;
            holds(
                "the last ready endpoint is never marked down",
                self.ready > 0 || !endpoint.healthy,
            )?;
        }
        let down = |endpoint: &Endpoint| Some((endpoint.failures.down()?, endpoint.id));
        let mut resting: Vec<(Instant, EndpointId)> = self.iter().filter_map(down).collect();
        resting.sort_unstable();
        holds(
            "who is marked down is known by when it is back",
            self.resting.iter().eq(resting),
        )?;
        holds(
            "nobody is marked down for longer than was said",
            self.next_back().is_none_or(|until| until > now),
        )
    }

    fn number(&mut self, id: EndpointId) -> u32 {
        *self
            .ids
            .entry(id)
            .or_insert_with(|| self.all.insert(Endpoint::new(id, self.gate)))
    }

    /// What [`Self::change`] does for a change of what runs there only: who is listed, ready or marked down stays so.
    fn shift(&mut self, number: u32, rng: &mut Rng, change: impl FnOnce(&mut Endpoint)) -> Option<Changed> {
        if let Gate::Auto { .. } = self.gate {
            self.touched.add(number);
        }
        let endpoint = &mut self.all[number];
        let (had_room, limits) = (endpoint.has_room(), endpoint.limits());
        let (stock, prefill, share) = (endpoint.stock, endpoint.prefill, endpoint.share);
        change(endpoint);
        let relimited = limits != endpoint.limits();
        if relimited {
            endpoint.rebound(self.gate);
        }
        self.place(number, rng);
        let endpoint = &self.all[number];
        let sum = if endpoint.ready {
            &mut self.stock
        } else {
            &mut self.draining
        };
        *sum = *sum - stock + endpoint.stock;
        if relimited && endpoint.ready {
            self.share -= share;
            self.share += endpoint.share;
            self.bounds = Bounds::over(self.gate, self.share);
        }
        let changed = Changed {
            id: endpoint.id,
            had_room,
            has_room: endpoint.has_room(),
            prefill: prefill != endpoint.prefill,
        };
        (changed.had_room != changed.has_room || changed.prefill).then_some(changed)
    }

    /// The only way to change anything else of one: sums and index follow.
    fn change(&mut self, number: u32, rng: &mut Rng, change: impl FnOnce(&mut Endpoint)) -> Option<Changed> {
        if let Gate::Auto { .. } = self.gate {
            self.touched.add(number);
        }
        let endpoint = &mut self.all[number];
        let had_room = endpoint.has_room();
        let (was_listed, was_ready, stock) = (endpoint.listed, endpoint.ready, endpoint.stock);
        let (share, busyness) = (endpoint.share, endpoint.busyness());
        let (terms, down) = (endpoint.terms(), endpoint.failures.down());
        change(endpoint);
        if was_ready && !endpoint.ready {
            // Whatever it is when it comes back, its caches may be empty.
            self.scheduler.lost(endpoint);
        }
        self.resting.set(endpoint.id, down, endpoint.failures.down());
        if terms != endpoint.terms() {
            endpoint.rebound(self.gate);
        }
        self.place(number, rng);
        let endpoint = &self.all[number];
        self.listed = self.listed + usize::from(endpoint.listed) - usize::from(was_listed);
        self.ready = self.ready + usize::from(endpoint.ready) - usize::from(was_ready);
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
        if (was_ready, share) != (endpoint.ready, endpoint.share) {
            if was_ready {
                self.share -= share;
            }
            if endpoint.ready {
                self.share += endpoint.share;
            }
            self.bounds = Bounds::over(self.gate, self.share);
        }
        let changed = Changed {
            id: endpoint.id,
            had_room,
            has_room: endpoint.has_room(),
            prefill: busyness != endpoint.busyness(),
        };
        (changed.had_room != changed.has_room || changed.prefill).then_some(changed)
    }

    /// Counts its room anew, and puts it where it belongs among those that have some: between equals chance decides.
    fn place(&mut self, number: u32, rng: &mut Rng) {
        let endpoint = &mut self.all[number];
        endpoint.recount(self.gate);
        endpoint.tie = rng.next_u32();
        if endpoint.has_room() {
            self.with_room.set(number, endpoint.stock, endpoint.tie);
        } else {
            self.with_room.remove(number);
        }
    }

    fn forget_unused(&mut self, number: u32) {
        let endpoint = &self.all[number];
        if !endpoint.listed && endpoint.requests == 0 {
            self.ids.remove(&endpoint.id);
            self.all.remove(number);
            self.touched.forget();
        }
    }
}
