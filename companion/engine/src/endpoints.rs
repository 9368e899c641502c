//! The pool's endpoints: the stock and the bounds over all of them, and the choice of one for a request.
//!
//! Stock is what was granted and hasn't ended, counted here and never scraped. The stock of an endpoint that isn't ready
//! or isn't listed any more is draining: shown, and without effect on the gate. An index holds the endpoints with room,
//! so a choice visits no other; a random number drawn at each change decides ties.
//!
//! While any listed endpoint is healthy, one is ready: the last ready one is never marked down, and when it stops being
//! ready for another reason, the endpoint whose mark ends first is probed at once.

mod abandoned;
mod answers;
mod audit;
mod cached;
mod capacity;
mod choice;
mod credit;
mod eviction;
mod extra;
mod prefill;
mod pushback;
mod reservation;

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use hashbrown::HashMap;

pub(crate) use self::cached::HashedPrompt;
use crate::allowance::Allowance;
use crate::dirty_set::DirtySet;
use crate::endpoint::Endpoint;
use crate::endpoint::cache_trust::CacheTrust;
use crate::gate::{Bounds, Share};
use crate::health::ejected::EjectedEndpoints;
use crate::health::kinds::Kinds;
use crate::ids::EndpointIndex;
use crate::indexed_heap::IndexedHeap;
use crate::input::{EndpointId, EndpointState, RequestId, Role, ServerStats};
use crate::limits::ENDPOINTS_MAX;
use crate::load::Load;
use crate::policy::{ExtraPlaces, Gate, OutlierEjection, Scorers};
use crate::rng::Rng;
use crate::scores::EndpointScorer;
use crate::slab::Slab;
use crate::time::Instant;

/// The pool counts as starting for this long after its first endpoint was listed and dispatching began, whichever is
/// later. Endpoints that are listed or become ready by then skip the slow start.
const START: Duration = Duration::from_secs(1);

/// The endpoints of a pool. After every call that takes `&mut self`, the owner passes [`Self::next_changed`] on until it is `None`:
/// [`crate::Engine`] makes such calls by its `change_endpoints` alone.
#[derive(Debug)]
pub(crate) struct Endpoints {
    all: Slab<EndpointIndex, Endpoint>,
    indices: HashMap<EndpointId, EndpointIndex>,
    /// Those that compute prompts for others last; then by stock, then by tie.
    with_room: IndexedHeap<EndpointIndex, (bool, u64, u32, EndpointIndex)>,
    /// Places above the bound of each endpoint.
    extra_places: ExtraPlaces,
    /// The endpoints with such places, in the same order.
    with_extra_room: IndexedHeap<EndpointIndex, (u64, u32, EndpointIndex)>,
    /// The endpoints that take prompts for others, in the same order.
    with_prefill_room: IndexedHeap<EndpointIndex, (u64, u32, EndpointIndex)>,
    /// Ready endpoints that answer requests.
    decoding: usize,
    ejected: EjectedEndpoints,
    kinds: Kinds,
    /// Answers of the pool so far.
    answers: u64,
    /// Changes of the state of an endpoint so far.
    health_changes: u64,
    reserved: Vec<EndpointId>,
    /// Where the gate counts sequences: the endpoints that changed since [`Self::clear_dirty`].
    dirty: DirtySet,
    gate: Gate,
    bounds: Bounds,
    listed: usize,
    ready: usize,
    /// The sum over the ready endpoints.
    share: Share,
    stock: u64,
    /// The part of `stock` within the bounds of the endpoints.
    filled: u64,
    draining: u64,
    /// The endpoints with abandoned requests, by the time of the oldest.
    abandoned: BTreeSet<(Instant, EndpointIndex)>,
    /// [`crate::Policy::release_after`].
    release_after: Option<Duration>,
    /// The endpoints with requests that were asked to end.
    evicting: BTreeSet<EndpointIndex>,
    /// Answers of servers that have begun so far.
    begun_answers: u64,
    scorer: EndpointScorer,
    first_listed: Option<Instant>,
    dispatching_since: Option<Instant>,
    /// Endpoints whose changes can open or close eligibility sets, oldest first.
    changed: VecDeque<EndpointId>,
}

impl Endpoints {
    /// `counts_cached`: the policy counts cached tokens.
    pub(crate) fn new(gate: Gate, weights: Scorers, counts_cached: bool) -> Self {
        let mut endpoints = Self {
            all: Slab::default(),
            indices: HashMap::new(),
            with_room: IndexedHeap::default(),
            extra_places: ExtraPlaces::NONE,
            with_extra_room: IndexedHeap::default(),
            with_prefill_room: IndexedHeap::default(),
            decoding: 0,
            ejected: EjectedEndpoints::default(),
            kinds: Kinds::default(),
            answers: 0,
            health_changes: 0,
            reserved: Vec::new(),
            dirty: DirtySet::default(),
            gate,
            bounds: Bounds::over(gate, Share::default()),
            listed: 0,
            ready: 0,
            share: Share::default(),
            stock: 0,
            filled: 0,
            draining: 0,
            abandoned: BTreeSet::new(),
            release_after: None,
            evicting: BTreeSet::new(),
            begun_answers: 0,
            scorer: EndpointScorer::default(),
            first_listed: None,
            dispatching_since: None,
            changed: VecDeque::new(),
        };
        endpoints.set_weights(weights, counts_cached);
        endpoints
    }

    /// The next endpoint whose change can open or close eligibility sets.
    pub(crate) fn next_changed(&mut self) -> Option<EndpointId> {
        self.changed.pop_front()
    }

    /// The stock of ready endpoints, in the unit of the gate.
    pub(crate) const fn stock(&self) -> u64 {
        self.stock
    }

    /// The stock of ready endpoints as the bounds count it: what an endpoint runs beyond its own bound takes no room at
    /// others.
    pub(crate) const fn filled(&self) -> u64 {
        self.filled
    }

    /// The stock of all other endpoints.
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

    pub(crate) const fn any_room(&self) -> bool {
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

    /// `id` fails requests other than `request`: it isn't ready, or it has failed others since it last served one.
    pub(crate) fn fails_others(&self, id: EndpointId, request: RequestId) -> bool {
        self.get(id).is_none_or(|endpoint| !endpoint.ready || endpoint.health.has_failed_others(request))
    }

    pub(crate) fn get(&self, id: EndpointId) -> Option<&Endpoint> {
        self.indices.get(&id).map(|&index| &self.all[index])
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Endpoint> {
        self.all.iter().map(|(_, endpoint)| endpoint)
    }

    pub(crate) fn id(&self, index: EndpointIndex) -> EndpointId {
        self.all[index].id
    }

    /// Dispatching begins. Only the first call counts.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.dispatching_since.get_or_insert(now);
    }

    /// Lists `id`, or changes its state. Past [`ENDPOINTS_MAX`] a new endpoint is ignored.
    pub(crate) fn list(&mut self, now: Instant, id: EndpointId, state: EndpointState, rng: &mut Rng) {
        if !self.is_listed(id) && self.listed >= ENDPOINTS_MAX {
            return;
        }
        let first = *self.first_listed.get_or_insert(now);
        let starting = self.dispatching_since.is_none_or(|since| now <= first.max(since).after(START));
        let index = self.index_or_insert(id);
        self.change(index, rng, |endpoint| endpoint.list(now, state, starting));
    }

    pub(crate) fn unlist(&mut self, id: EndpointId, rng: &mut Rng) {
        let Some(&index) = self.indices.get(&id) else { return };
        self.set_stats(id, ServerStats::default());
        let gate = self.gate;
        self.change(index, rng, |endpoint| endpoint.unlist(gate));
        self.remove_unused(index);
    }

    /// `request` failed at `id` before a response. Ignored unless `id` is ready.
    pub(crate) fn failed(
        &mut self,
        now: Instant,
        id: EndpointId,
        request: RequestId,
        policy: OutlierEjection,
        rng: &mut Rng,
    ) {
        let Some(index) = self.indices.get(&id).copied().filter(|_| self.is_ready(id)) else { return };
        let last = self.ready == 1;
        self.change(index, rng, |endpoint| {
            endpoint.fail(now, request, policy, last);
        });
        // A server that refuses or cuts connections may just be restarted.
        self.forget_cache(id);
    }

    /// When the first pause of an endpoint ends.
    pub(crate) fn next_probe(&self) -> Option<Instant> {
        self.ejected.next()
    }

    /// Probes the first endpoint whose pause has ended, if there is one. Returns whether there is.
    #[inline]
    pub(crate) fn probe_due(&mut self, now: Instant, rng: &mut Rng) -> bool {
        let Some(id) = self.ejected.due(now, self.answers) else {
            return false;
        };
        self.change(self.indices[&id], rng, |endpoint| endpoint.probe(now));
        true
    }

    /// With no endpoint ready, probes the healthy endpoint that would be probed first. Called after every change of listed or healthy
    /// endpoints.
    pub(crate) fn probe_early(&mut self, now: Instant, rng: &mut Rng) {
        if self.any_ready() {
            return;
        }
        let is_healthy = |id| self.get(id).is_some_and(|endpoint| endpoint.healthy);
        let first = self.ejected.iter().find(|&id| is_healthy(id));
        if let Some(first) = first {
            self.change(self.indices[&first], rng, |endpoint| endpoint.probe(now));
        }
    }

    /// The server of `id` reports this many running sequences, of all its clients; `None`: no report.
    pub(crate) fn observe(&mut self, now: Instant, id: EndpointId, running: Option<u64>, rng: &mut Rng) {
        let release_after = self.release_after;
        if let Some(index) = self.listed_index(id) {
            self.change(index, rng, |endpoint| endpoint.observe(now, running, release_after));
        }
    }

    /// A request that came in at this time, with so many sequences, runs at `id`, and is known only now.
    pub(crate) fn recognize(&mut self, id: EndpointId, arrived: Instant, sequences: u64, rng: &mut Rng) {
        if let Some(index) = self.listed_index(id) {
            self.change(index, rng, |endpoint| endpoint.recognize(arrived, sequences));
        }
    }

    pub(crate) fn set_allowance(&mut self, id: EndpointId, allowance: Option<Allowance>, rng: &mut Rng) {
        let gate = self.gate;
        if let Some(index) = self.listed_index(id) {
            self.change(index, rng, |endpoint| endpoint.set_allowance(allowance, gate));
        }
    }

    fn listed_index(&self, id: EndpointId) -> Option<EndpointIndex> {
        self.indices.get(&id).copied().filter(|_| self.is_listed(id))
    }

    /// How many endpoints have room.
    pub(crate) const fn room_count(&self) -> usize {
        self.with_room.len()
    }

    /// A request starts at `id`, listed or not. The returned index is valid until [`Self::ended`].
    pub(crate) fn started(&mut self, id: EndpointId, load: Load, rng: &mut Rng) -> EndpointIndex {
        let index = self.index_or_insert(id);
        if self.all[index].requests == 0 {
            let answers = self.begun_answers;
            self.all[index].restart_missed(answers);
        }
        self.change_load(index, rng, |endpoint| endpoint.start(load));
        index
    }

    /// A request with this load ends. `served`: its server processed it.
    pub(crate) fn ended(
        &mut self,
        now: Instant,
        index: EndpointIndex,
        load: Load,
        served: bool,
        rng: &mut Rng,
    ) {
        let state = self.all[index].health.state();
        self.change_load(index, rng, |endpoint| endpoint.end(now, load, served));
        if self.all[index].health.state() != state {
            self.health_changes += 1;
        }
        self.remove_unused(index);
    }

    /// The answer of a request with this load has begun.
    pub(crate) fn prefilled(&mut self, index: EndpointIndex, load: Load) {
        if self.gate.fits_each() {
            self.dirty.add(index);
        }
        let endpoint = &mut self.all[index];
        endpoint.end_prefill(load);
        if load.in_prefill > 0 {
            self.changed.push_back(endpoint.id);
        }
    }

    /// The load of a running request is known better.
    pub(crate) fn correct_load(&mut self, index: EndpointIndex, from: Load, to: Load, rng: &mut Rng) {
        self.change_load(index, rng, |endpoint| {
            endpoint.end(Instant::ZERO, from, false);
            endpoint.start(to);
        });
    }

    /// Changes the gate, and so every bound.
    pub(crate) fn set_gate(&mut self, gate: Gate, rng: &mut Rng) {
        // Shares of one gate can't be subtracted from the sum of another, so all are cleared first.
        self.share = Share::default();
        for (_, endpoint) in self.all.iter_mut() {
            endpoint.share = Share::default();
        }
        self.gate = gate;
        self.with_extra_room = IndexedHeap::default();
        let indices: Vec<EndpointIndex> = self.all.ids().collect();
        for index in indices {
            self.change(index, rng, |endpoint| endpoint.update_bound(gate));
        }
        self.bounds = Bounds::over(self.gate, self.share);
    }

    fn index_or_insert(&mut self, id: EndpointId) -> EndpointIndex {
        *self.indices.entry(id).or_insert_with(|| {
            let mut endpoint = Endpoint::new(id, self.gate);
            endpoint.extra_places = self.extra_places;
            self.all.insert(endpoint)
        })
    }

    /// Changes the load of an endpoint, and updates sums and index. Cheaper than [`Self::change`], because listed,
    /// ready and marked endpoints stay so.
    fn change_load(&mut self, index: EndpointIndex, rng: &mut Rng, change: impl FnOnce(&mut Endpoint)) {
        if self.gate.fits_each() {
            self.dirty.add(index);
        }
        let endpoint = &mut self.all[index];
        let (had_room, limits) = (endpoint.has_room(), endpoint.limits());
        let (stock, filled) = (endpoint.stock, endpoint.filled);
        let (in_prefill, share) = (endpoint.running.in_prefill, endpoint.share);
        let (abandoned_since, evicted) = (endpoint.abandoned.since(), endpoint.running.evicted);
        change(endpoint);
        let relimited = limits != endpoint.limits();
        if relimited {
            endpoint.update_bound(self.gate);
        }
        self.update_stock(index, rng);
        self.update_abandoned(index, abandoned_since);
        self.update_evicting(index, evicted);
        let endpoint = &self.all[index];
        let sum = if endpoint.ready { &mut self.stock } else { &mut self.draining };
        *sum = *sum - stock + endpoint.stock;
        if endpoint.ready {
            self.filled = self.filled - filled + endpoint.filled;
        }
        if relimited && endpoint.ready {
            self.share -= share;
            self.share += endpoint.share;
            self.bounds = Bounds::over(self.gate, self.share);
        }
        if had_room != endpoint.has_room() || in_prefill != endpoint.running.in_prefill {
            self.changed.push_back(endpoint.id);
        }
    }

    /// Changes an endpoint in any way, and updates sums and index.
    fn change(&mut self, index: EndpointIndex, rng: &mut Rng, change: impl FnOnce(&mut Endpoint)) {
        if self.gate.fits_each() {
            self.dirty.add(index);
        }
        let endpoint = &mut self.all[index];
        let had_room = endpoint.has_room();
        let (was_listed, was_ready, stock) = (endpoint.listed, endpoint.ready, endpoint.stock);
        let (filled, abandoned_since) = (endpoint.filled, endpoint.abandoned.since());
        let (share, busyness, evicted) = (endpoint.share, endpoint.busyness(), endpoint.running.evicted);
        let (bound_inputs, probe_at) = (endpoint.bound_inputs(), endpoint.health.probe_at());
        let (state, ..) = endpoint.shown_health();
        let did_decode = endpoint.ready && endpoint.decodes();
        change(endpoint);
        let decodes = endpoint.ready && endpoint.decodes();
        let any_decoded = self.decoding > 0;
        self.decoding = self.decoding + usize::from(decodes) - usize::from(did_decode);
        endpoint.update_role(self.decoding > 0);
        if state != endpoint.shown_health().0 {
            self.health_changes += 1;
        }
        if was_ready && !endpoint.ready {
            // Its caches may be empty when it is ready again.
            self.scorer.cache_lost(endpoint);
            endpoint.cache_trust = CacheTrust::default();
        }
        self.ejected.set(endpoint.id, probe_at, endpoint.health.probe_at());
        if bound_inputs != endpoint.bound_inputs() {
            endpoint.update_bound(self.gate);
        }
        self.update_stock(index, rng);
        self.update_abandoned(index, abandoned_since);
        self.update_evicting(index, evicted);
        let endpoint = &self.all[index];
        self.listed = self.listed + usize::from(endpoint.listed) - usize::from(was_listed);
        self.ready = self.ready + usize::from(endpoint.ready) - usize::from(was_ready);
        // Two steps, because a change of readiness moves the stock from one sum to the other.
        *(if was_ready { &mut self.stock } else { &mut self.draining }) -= stock;
        *(if endpoint.ready { &mut self.stock } else { &mut self.draining }) += endpoint.stock;
        self.filled -= if was_ready { filled } else { 0 };
        self.filled += if endpoint.ready { endpoint.filled } else { 0 };
        if (was_ready, share) != (endpoint.ready, endpoint.share) {
            if was_ready {
                self.share -= share;
            }
            if endpoint.ready {
                self.share += endpoint.share;
            }
            self.bounds = Bounds::over(self.gate, self.share);
        }
        // Room and the inputs of class thresholds are all that an eligibility set can notice.
        if had_room != endpoint.has_room() || busyness != endpoint.busyness() {
            self.changed.push_back(endpoint.id);
        }
        if any_decoded != (self.decoding > 0) {
            self.update_roles(rng);
        }
    }

    /// Updates the stock and the tie of an endpoint.
    fn update_stock(&mut self, index: EndpointIndex, rng: &mut Rng) {
        let endpoint = &mut self.all[index];
        endpoint.update_stock(self.gate);
        endpoint.tie = rng.next_u32();
        self.update_with_room(index);
    }

    fn update_with_room(&mut self, index: EndpointIndex) {
        let endpoint = &self.all[index];
        if endpoint.has_room() {
            let comes_last = endpoint.prefills_for_others();
            self.with_room.set(index, (comes_last, endpoint.stock, endpoint.tie, index));
        } else {
            self.with_room.remove(index);
        }
        if self.extra_places.is_on(self.gate) {
            self.update_with_extra_room(index);
        }
        if self.all[index].role == Role::Prefill || !self.with_prefill_room.is_empty() {
            self.update_with_prefill_room(index);
        }
    }

    fn remove_unused(&mut self, index: EndpointIndex) {
        let endpoint = &self.all[index];
        if !endpoint.listed && endpoint.taken() == 0 {
            let id = endpoint.id;
            self.indices.remove(&id);
            // Another endpoint may get its number.
            self.kinds.forget(id);
            self.all.remove(index);
            self.dirty.invalidate();
        }
    }
}
