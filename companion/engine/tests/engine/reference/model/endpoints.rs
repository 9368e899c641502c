//! Endpoints: bounds, free places, slow starts and ejections.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_engine::input::EndpointState;
use penstock_engine::policy::{Gate, StockUnit};
use penstock_engine::units::Decimal;
use penstock_engine::{EndpointId, Instant, Request, RequestId};

use super::{Item, Model, Running, Server};

/// The product of two decimals is in this unit.
const ONE: u128 = Decimal::ONE * Decimal::ONE;

impl Server {
    /// Updates `ready` and the slow start after a change of health or ejection.
    fn update_ready(&mut self, starting: bool) {
        let ready = self.state.ready && self.down.is_none();
        if !ready {
            self.ramp = None;
            self.pushback = None;
        } else if !self.ready {
            self.ramp = (self.slowly && !starting).then_some((1, 0));
            self.slowly = true;
        }
        self.ready = ready;
    }

    fn end_ejection(&mut self) {
        self.down = None;
        self.probed = true;
        self.update_ready(false);
    }
}

impl Model {
    pub(super) fn list(&mut self, id: EndpointId, state: EndpointState) {
        let first = *self.first_listed.get_or_insert(self.now);
        let second = Duration::from_secs(1);
        let starting = self.ready_since.is_none_or(|since| self.now <= first.max(since).after(second));
        let before = self.endpoints.get(&id).copied();
        let mut server = before.unwrap_or(Server {
            state,
            ready: false,
            slowly: !starting,
            ramp: None,
            foreign: 0,
            asked_at: Instant::ZERO,
            reports: false,
            alone: None,
            pushback: None,
            allowance: None,
            down: None,
            probed: false,
            times: 0,
        });
        server.state = state;
        server.update_ready(starting);
        self.endpoints.insert(id, server);
        self.end_slow_starts();
    }

    /// Marks an endpoint down after failures of two different requests within 10 s, or after one failure following an
    /// ejection.
    pub(super) fn fail(&mut self, id: RequestId, endpoint: EndpointId) {
        let Some(mut server) = self.endpoints.get(&endpoint).copied().filter(|server| server.ready) else {
            return;
        };
        if !server.probed {
            self.failed.push((endpoint, id, self.now));
        }
        let failures = self.failed.iter().filter(|failure| failure.0 == endpoint && failure.1 != id);
        let recent = failures.filter(|failure| self.now.since(failure.2) <= Duration::from_secs(10)).count();
        let is_last_ready = self.endpoints.values().filter(|server| server.ready).count() == 1;
        if (server.probed || recent > 0) && !is_last_ready {
            let ejection = self.policy.outlier_ejection;
            let duration =
                (0..server.times).fold(ejection.first, |duration, _| (duration * 2).min(ejection.max));
            server.times += 1;
            server.down = Some(self.now.after(duration));
            server.update_ready(false);
            self.failed.retain(|failed| failed.0 != endpoint);
            self.endpoints.insert(endpoint, server);
        }
        self.refresh_backlogs();
    }

    /// Ends the ejections that are due.
    pub(super) fn end_ejections(&mut self) {
        for server in self.endpoints.values_mut() {
            if server.down.is_some_and(|until| until <= self.now) {
                server.end_ejection();
            }
        }
        self.end_slow_starts();
        self.refresh_backlogs();
    }

    pub(super) fn in_tokens(&self) -> bool {
        match self.policy.gate {
            Gate::Bounded { unit, .. } => unit == StockUnit::Tokens,
            Gate::Auto { .. } | Gate::Open | Gate::Manual => false,
        }
    }

    /// Stock and bounds count sequences, and the next request may fit no endpoint.
    pub(super) fn fits_each(&self) -> bool {
        self.by_allowance() || self.in_sequences()
    }

    fn in_sequences(&self) -> bool {
        matches!(self.policy.gate, Gate::Bounded { unit: StockUnit::Sequences, .. })
    }

    /// The endpoint's part of a bound of the pool.
    fn share(&self, server: &Server, bound: Decimal) -> u128 {
        let full = match self.allowance_of(server) {
            Some(allowance) => u128::from(allowance.typical) * ONE,
            None => bound.billionths() * server.state.weight.billionths(),
        };
        if self.in_tokens() {
            return full;
        }
        let ramp = server.ramp.map_or(u128::MAX, |(bound, _)| u128::from(bound) * ONE);
        let pushback = server.pushback.map_or(u128::MAX, |most| u128::from(most) * ONE);
        full.min(ramp).saturating_sub(u128::from(server.foreign) * ONE).min(pushback)
    }

    pub(super) fn bounds(&self) -> (u64, u64) {
        let ready = || self.endpoints.values().filter(|server| server.ready);
        match self.policy.gate {
            Gate::Open | Gate::Manual => (u64::MAX, u64::MAX),
            Gate::Auto { initial: lower } | Gate::Bounded { lower, .. } => {
                let upper = match self.policy.gate {
                    Gate::Bounded { upper, .. } => upper,
                    Gate::Auto { .. } | Gate::Open | Gate::Manual => lower,
                };
                let ceil = |bound: Decimal| {
                    let sum: u128 = ready().map(|server| self.share(server, bound)).sum();
                    sum.div_ceil(ONE) as u64
                };
                (ceil(lower), ceil(upper))
            }
        }
    }

    pub fn full_bound(&self) -> Option<u64> {
        let (Gate::Bounded { upper, .. } | Gate::Auto { initial: upper }) = self.policy.gate else {
            return None;
        };
        let ready = self.endpoints.values().filter(|server| server.ready);
        let full = ready.map(|server| {
            let strong = Self::unlimited(server);
            self.share(&strong, upper)
        });
        Some(full.sum::<u128>().div_ceil(ONE) as u64)
    }

    /// The number of requests that one endpoint takes at a time.
    pub(super) fn own_bound(&self, server: &Server) -> u64 {
        match self.policy.gate {
            Gate::Open => server.pushback.unwrap_or(u64::MAX),
            Gate::Manual => u64::MAX,
            Gate::Auto { initial: upper } | Gate::Bounded { upper, .. } => {
                (self.share(server, upper).div_ceil(ONE) as u64).max(1)
            }
        }
    }

    pub(super) fn served_at(&mut self, id: EndpointId) {
        if let Some(server) = self.endpoints.get_mut(&id) {
            server.times = 0;
            server.probed &= server.down.is_some();
            server.pushback = server.pushback.map(|most| most + 1);
            server.ramp =
                server.ramp.map(
                    |(bound, served)| {
                        if served + 1 == bound { (2 * bound, 0) } else { (bound, served + 1) }
                    },
                );
        }
        self.end_slow_starts();
    }

    /// Ends the slow starts and the lowered bounds that have reached the full bound.
    pub(super) fn end_slow_starts(&mut self) {
        let servers = self.endpoints.values().copied().map(|server| {
            let full = self.own_bound(&Self::unlimited(&server));
            let bounded = matches!(self.policy.gate, Gate::Bounded { .. } | Gate::Auto { .. });
            let is_slow = bounded && server.ramp.is_some_and(|(bound, _)| bound < full);
            let configured = match self.allowance_of(&server) {
                Some(allowance) => allowance.requests_max.unwrap_or(u64::MAX),
                None => full,
            };
            let is_pushed_back = self.goes_by_itself()
                && server
                    .pushback
                    .is_some_and(|most| most < configured.saturating_add(self.above(&server, full)));
            (is_slow, is_pushed_back)
        });
        let limits: Vec<(bool, bool)> = servers.collect();
        for (server, (is_slow, is_pushed_back)) in self.endpoints.values_mut().zip(limits) {
            server.ramp = server.ramp.filter(|_| is_slow);
            server.pushback = server.pushback.filter(|_| is_pushed_back);
        }
    }

    /// The server without what lowers its bound.
    pub(super) fn unlimited(server: &Server) -> Server {
        Server { ramp: None, foreign: 0, pushback: None, ..*server }
    }

    /// An endpoint itself refused a request: it takes no more than it has in flight without that request.
    pub(super) fn push_back(&mut self, id: RequestId, endpoint: EndpointId) {
        let here = self.items.iter().find(|item| item.id == id && item.endpoint() == Some(endpoint));
        let own = here.map_or(0, |item| if self.fits_each() { item.sequences } else { 1 });
        let others = self.counted_at(endpoint).saturating_sub(own);
        if let Some(server) = self.endpoints.get_mut(&endpoint).filter(|server| server.ready) {
            let most = others.max(1);
            server.pushback = Some(server.pushback.map_or(most, |before| before.min(most)));
        }
        self.end_slow_starts();
    }

    pub(super) fn any_ready(&self) -> bool {
        self.endpoints.values().any(|server| server.ready)
    }

    /// Without a ready endpoint the healthy one that was marked down first is probed early.
    pub(super) fn probe_early(&mut self) {
        if !self.any_ready() {
            let healthy = self.endpoints.iter_mut().filter(|(_, server)| server.state.ready);
            if let Some((_, first)) = healthy.min_by_key(|(id, server)| (server.down, **id)) {
                first.end_ejection();
                self.end_slow_starts();
            }
        }
        self.refresh_backlogs();
    }

    /// The requests that run there, and those whose clients have left.
    pub(super) fn runs_at(&self, id: EndpointId) -> impl Iterator<Item = (&Item, &Running)> {
        let items = self.items.iter().chain(self.left.iter().map(|(_, item)| item));
        let running = items.filter_map(|item| Some((item, item.running.as_ref()?)));
        running.filter(move |(_, running)| running.endpoint == id)
    }

    pub(super) fn stock_of(&self, id: EndpointId) -> u64 {
        if self.in_tokens() {
            self.runs_at(id).map(|(_, running)| running.tokens).sum()
        } else {
            self.counted_at(id)
        }
    }

    /// The sequences that run there, and those that filters may run there.
    pub(super) fn sequences_at(&self, id: EndpointId) -> u64 {
        let running: u64 = self.runs_at(id).map(|(item, _)| item.sequences).sum();
        running + self.places.get(&id).copied().unwrap_or(0)
    }

    /// What slow starts and refusals limit.
    fn counted_at(&self, id: EndpointId) -> u64 {
        if self.fits_each() { self.sequences_at(id) } else { self.taken_at(id) }
    }

    /// The item fits beside what runs there.
    pub(super) fn takes(&self, id: EndpointId, server: &Server, item: &Item) -> bool {
        let (stock, bound) = (self.stock_of(id), self.bound_of(server));
        let ramp = server.ramp.map_or(u64::MAX, |(bound, _)| bound);
        let most = ramp.min(server.pushback.unwrap_or(u64::MAX));
        let within = self.within_of(id);
        !self.fits_each() || within == 0 || within + item.sequences <= bound && stock + item.sequences <= most
    }

    /// Some endpoint takes the item now.
    pub(super) fn fits(&self, item: &Item) -> bool {
        if self.by_allowance() {
            return !self.fitting(item).is_empty();
        }
        self.endpoints_for(item).keys().any(|id| self.takes(*id, &self.endpoints[id], item))
    }

    /// The endpoint's server reports how many sequences it runs. Those of clients that are there come first, then the foreign
    /// ones of the last report. The rest is of clients that have left, as many as have.
    pub(super) fn report(&mut self, id: EndpointId, running: Option<u64>) {
        let Some(server) = self.endpoints.get(&id).copied() else {
            return;
        };
        let left = |model: &Self| -> u64 {
            let there = model.left.iter().filter(|(_, item)| item.endpoint() == Some(id));
            there.map(|(_, item)| item.sequences).sum()
        };
        let waiting = self.scorer_inputs.stats.get(&id).and_then(|stats| stats.waiting).unwrap_or(0);
        let present = self.sequences_at(id) - left(self);
        let most = match running {
            Some(running) => (running + waiting).saturating_sub(present + server.foreign),
            None if self.policy.release_after.is_some() => u64::MAX,
            None => 0,
        };
        let asked_ago = self.scorer_inputs.stats.get(&id).map_or(Duration::ZERO, |stats| stats.asked_ago);
        self.trim_left(id, most, if running.is_some() { self.now.before(asked_ago) } else { self.now });
        let generated = self.scorer_inputs.stats.get(&id).and_then(|stats| stats.generated);
        let mut alone = server.alone;
        if running.is_some() {
            let same = server.alone.filter(|(_, before)| *before == generated);
            let is_alone = present == 0 && left(self) > 0;
            alone = is_alone.then(|| same.unwrap_or((self.now, generated)));
            let patience = Duration::from_secs(if generated.is_some() { 3 } else { 20 });
            if alone.is_some_and(|(since, _)| self.now.since(since) >= patience) {
                self.trim_left(id, 0, self.now);
            }
        }
        let foreign = running.unwrap_or(0).saturating_sub(self.sequences_at(id));
        let reports = running.is_some();
        let asked_at = self.now.before(asked_ago);
        self.endpoints.insert(id, Server { foreign, reports, alone, asked_at, ..server });
        self.refresh_backlogs();
    }

    /// A running request becomes known, which the last report may have counted as foreign.
    pub(super) fn recognize(&mut self, id: EndpointId, request: &Request) {
        if let Some(server) = self.endpoints.get_mut(&id)
            && request.arrived <= server.asked_at
        {
            server.foreign = server.foreign.saturating_sub(request.sequences.max(1));
        }
    }

    /// The oldest requests of clients that have left end there, until so many sequences are left; none of clients that have left after `until`.
    fn trim_left(&mut self, id: EndpointId, most: u64, until: Instant) {
        let here = |model: &Self| -> Vec<usize> {
            let all = model.left.iter().enumerate();
            all.filter(|(_, (_, item))| item.endpoint() == Some(id)).map(|(index, _)| index).collect()
        };
        loop {
            let here = here(self);
            if here.iter().map(|&index| self.left[index].1.sequences).sum::<u64>() <= most {
                return;
            }
            if self.left[here[0]].0 > until {
                return;
            }
            self.left[here[0]].1.sequences -= 1;
            if self.left[here[0]].1.sequences == 0 {
                self.left.remove(here[0]);
            }
        }
    }

    fn kept(&self) -> Duration {
        self.policy.release_after.unwrap_or(Duration::from_secs(600))
    }

    /// When the first request of a client that has left counts no longer.
    pub(super) fn next_release(&self) -> Option<Instant> {
        self.left.iter().map(|(since, _)| since.after(self.kept())).min()
    }

    /// What clients have left for long enough counts no longer. Backlogs are as before: a change of policy sets quanta first.
    pub(super) fn release_left(&mut self) {
        let (now, kept) = (self.now, self.kept());
        self.left.retain(|(since, _)| since.after(kept) > now);
    }

    /// The requests that run there, and those that filters may run there.
    pub(super) fn taken_at(&self, id: EndpointId) -> u64 {
        self.runs_at(id).count() as u64 + self.places.get(&id).copied().unwrap_or(0)
    }

    pub(super) fn give_credit(&mut self, id: EndpointId, requests: u64) {
        if self.endpoints.contains_key(&id) || self.taken_at(id) > 0 {
            *self.places.entry(id).or_default() += requests;
        }
        self.refresh_backlogs();
    }

    pub(super) fn take_back(&mut self, id: EndpointId, requests: u64) {
        if let Some(places) = self.places.get_mut(&id) {
            *places = places.saturating_sub(requests);
        }
        self.refresh_backlogs();
    }

    pub fn stock(&self) -> u64 {
        let ready = self.endpoints.iter().filter(|(_, server)| server.ready);
        ready.map(|(&id, _)| self.stock_of(id)).sum()
    }

    /// The stock, without what endpoints run beyond their own bounds if it counts sequences.
    pub(super) fn filled(&self) -> u64 {
        let ready = self.endpoints.iter().filter(|(_, server)| server.ready);
        let within = |(&id, server): (&EndpointId, &Server)| {
            let bound = if self.in_sequences() { self.own_bound(server) } else { u64::MAX };
            self.within_of(id).min(bound)
        };
        ready.map(within).sum()
    }

    pub(super) fn gate_open(&self, bound: u64) -> bool {
        self.by_allowance() || self.filled() < bound || self.filled() == 0
    }

    pub(super) fn goes_by_itself(&self) -> bool {
        self.policy.gate != Gate::Manual
    }

    /// Ready endpoints with a free place, with their stock.
    pub(super) fn with_room(&self) -> BTreeMap<EndpointId, u64> {
        let ready = self.endpoints.iter().filter(|(_, server)| server.ready);
        let free = ready.filter(|&(&id, server)| {
            let running = self.counted_at(id);
            let counted = match self.allowance_of(server) {
                Some(allowance) => {
                    allowance.requests_max.is_none_or(|_| self.within_of(id) < self.bound_of(server))
                }
                None => self.within_of(id) < self.own_bound(server),
            };
            counted
                && !self.aside.contains(&id)
                && server.ramp.is_none_or(|(bound, _)| running < bound)
                && server.pushback.is_none_or(|most| running < most)
        });
        free.map(|(&id, _)| (id, self.stock_of(id))).collect()
    }

    pub(super) fn may_dispatch(&self) -> bool {
        self.ready && self.gate_open(self.bounds().0) && !self.with_room().is_empty()
    }

    /// Uncached prompt tokens in prefill at the endpoint.
    fn prefill(&self, id: EndpointId) -> u64 {
        let in_prefill = self.runs_at(id).filter(|(_, running)| !running.is_answering);
        in_prefill.map(|(_, running)| running.prefill).sum()
    }

    /// Whether the endpoint is over the class's threshold.
    pub(super) fn is_busy(&self, id: EndpointId, server: &Server, class: usize) -> bool {
        let Some(class) = self.classes.get(class) else {
            return false;
        };
        let prefill = self.prefill(id);
        let fraction = class.busy_fraction.zip(server.state.batched_tokens_max);
        class.busy_tokens.is_some_and(|tokens| prefill > tokens)
            || fraction.is_some_and(|(part, limit)| prefill as f64 > part * limit as f64)
    }

    /// Endpoints where the identity is at its limit.
    pub(super) fn excluded(&self, name: &str) -> Vec<EndpointId> {
        let Some(limit) = self.policy.flows.max_in_flight_per_endpoint else {
            return Vec::new();
        };
        let mut counts: BTreeMap<EndpointId, u64> = BTreeMap::new();
        for item in self.items.iter().filter(|item| *item.name == *name) {
            if let Some(running) = item.running {
                *counts.entry(running.endpoint).or_default() += 1;
            }
        }
        counts.into_iter().filter(|&(_, count)| count >= limit).map(|(id, _)| id).collect()
    }

    /// Endpoints that can take the item now, with their stock.
    pub(super) fn endpoints_for(&self, item: &Item) -> BTreeMap<EndpointId, u64> {
        let excluded = self.excluded(&item.name);
        let mut room = self.with_room();
        room.retain(|id, _| {
            let eligible = item.eligible.as_ref().is_none_or(|eligible| eligible.contains(id));
            eligible && !excluded.contains(id) && !self.is_busy(*id, &self.endpoints[id], item.class)
        });
        room
    }
}
