//! One endpoint: its stock, its bound, and its slow start. Only [`crate::endpoints`] changes it, because that keeps the
//! sums and the order over all endpoints.

mod abandoned;
mod bound;
pub(crate) mod cache_trust;
mod credit;
mod eviction;
mod extra;
mod predictions;
mod prefill;
mod pushback;
mod slow_start;
#[cfg(test)]
mod tests;

use core::time::Duration;

use self::abandoned::Abandoned;
pub(crate) use self::abandoned::abandoned_kept;
use self::cache_trust::CacheTrust;
pub(crate) use self::credit::half;
use self::pushback::Pushback;
use self::slow_start::SlowStart;
use crate::allowance::Allowance;
use crate::gate::Share;
use crate::health::{Health, HealthReason, HealthState, Verdict};
use crate::input::{EndpointId, EndpointState, RequestId, Role, ServerStats};
use crate::load::{Load, Threshold};
use crate::policy::{ExtraPlaces, Failing, Gate, OutlierEjection, StockUnit};
use crate::time::Instant;
use crate::units::Decimal;

#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) id: EndpointId,
    /// Discovery lists it. An unlisted endpoint exists only while something runs there.
    pub(crate) listed: bool,
    /// The endpoint's health check passes.
    pub(crate) healthy: bool,
    /// Listed, healthy, and not marked down.
    pub(crate) ready: bool,
    pub(crate) health: Health,
    /// When the endpoint was listed, or its health check last changed its mind.
    checked_since: Instant,
    pub(crate) weight: Decimal,
    /// The load that runs there, in the unit of the gate.
    pub(crate) stock: u64,
    /// The part of the bound that the stock fills. A request of more sequences than the bound fills this endpoint alone, and one above
    /// the bound fills nothing.
    pub(crate) filled: u64,
    /// The stock up to which it takes requests; `u64::MAX`: unlimited.
    pub(crate) bound: u64,
    /// The bound without slow start and foreign requests.
    full: u64,
    /// The unit of the stock, as the gate has it.
    unit: StockUnit,
    /// Effective under [`Gate::Auto`].
    allowance: Option<Allowance>,
    /// Reserved for the blocked head, which doesn't fit yet: it takes no other request.
    pub(crate) reserved: bool,
    /// Requests that run here, those that `abandoned` has too.
    pub(crate) requests: u64,
    /// Requests of one sequence that filters may run here without asking: they count as if they ran.
    pub(crate) credit: u64,
    /// The load of the requests that run here together.
    pub(crate) running: Load,
    /// The requests whose clients have left and that the server may still compute.
    pub(crate) abandoned: Abandoned,
    batched_tokens_max: Option<u64>,
    pub(crate) role: Role,
    /// It keeps half of its bound for prompts of other endpoints: its role is [`Role::Prefill`], and one that decodes is ready.
    prefills_for_others: bool,
    /// The stock up to which it takes whole requests while it computes prompts for others.
    whole_places: u64,
    /// The server reports what it runs.
    is_reported: bool,
    /// Sequences of other clients, by the last report.
    foreign: u64,
    /// When the last report was requested.
    report_asked_at: Instant,
    slow_start: SlowStart,
    pub(crate) pushback: Pushback,
    pub(crate) share: Share,
    /// A random number, drawn anew at each change, that decides ties.
    pub(crate) tie: u32,
    pub(crate) stats: ServerStats,
    /// Places above the bound.
    pub(crate) extra_places: ExtraPlaces,
    /// How far its answers confirm the prefixes that it is predicted to have cached.
    pub(crate) cache_trust: CacheTrust,
    /// The answers that the pool had begun when a request was asked to end here; `None`: the endpoint has begun one since, or none was asked.
    answers_at_eviction: Option<u64>,
}

impl Endpoint {
    /// An endpoint that is neither listed nor in use.
    pub(crate) fn new(id: EndpointId, gate: Gate) -> Self {
        let mut endpoint = Self {
            id,
            listed: false,
            healthy: false,
            ready: false,
            health: Health::new(),
            checked_since: Instant::ZERO,
            weight: Decimal::whole(1),
            stock: 0,
            filled: 0,
            bound: 0,
            full: 0,
            unit: gate.unit(),
            allowance: None,
            reserved: false,
            requests: 0,
            credit: 0,
            running: Load::default(),
            abandoned: Abandoned::default(),
            batched_tokens_max: None,
            role: Role::Both,
            prefills_for_others: false,
            whole_places: u64::MAX,
            is_reported: false,
            foreign: 0,
            report_asked_at: Instant::ZERO,
            slow_start: SlowStart::default(),
            pushback: Pushback::default(),
            share: Share::default(),
            tie: 0,
            stats: ServerStats::default(),
            extra_places: ExtraPlaces::NONE,
            cache_trust: CacheTrust::default(),
            answers_at_eviction: None,
        };
        endpoint.update_bound(gate);
        endpoint
    }

    /// The endpoint takes one request more; under an allowance, one that fits.
    pub(crate) fn has_room(&self) -> bool {
        self.has_place() && (!self.prefills_for_others || self.within() < self.whole_places)
    }

    /// The endpoint takes one request more, or one prompt for another endpoint.
    fn has_place(&self) -> bool {
        self.ready
            && self.within() < self.bound
            && !self.reserved
            && self.starting_limit().is_none_or(|limit| self.counted() < limit)
            && self.pushback.limit().is_none_or(|limit| self.counted() < limit)
    }

    /// A request of so many sequences fits beside what runs here, where the gate counts sequences. An endpoint where nothing
    /// runs within the bound takes any request.
    pub(crate) fn takes(&self, sequences: u64) -> bool {
        // What runs above the bound must not hold up a request that needs all of it.
        if self.unit != StockUnit::Sequences || self.within() == 0 {
            return true;
        }
        let sum = self.stock.saturating_add(sequences);
        let limits = self.starting_limit().into_iter().chain(self.pushback.limit());
        let bound = if self.prefills_for_others { self.whole_places } else { self.bound };
        self.within().saturating_add(sequences) <= bound && limits.min().is_none_or(|limit| sum <= limit)
    }

    /// The requests that run here, and those that filters may run.
    pub(crate) const fn taken(&self) -> u64 {
        self.requests + self.credit
    }

    /// The sequences that run here, and those that filters may run.
    pub(crate) const fn sequences(&self) -> u64 {
        self.running.sequences + self.credit
    }

    /// What slow start and pushback limit: requests, or sequences where the gate counts them.
    const fn counted(&self) -> u64 {
        match self.unit {
            StockUnit::Requests | StockUnit::Tokens => self.taken(),
            StockUnit::Sequences => self.sequences(),
        }
    }

    /// The free part of the bound. Without a bound: a part that shrinks with the stock.
    pub(crate) fn free(&self) -> f64 {
        if self.bound == u64::MAX {
            return 1.0 / (1.0 + self.stock as f64);
        }
        (1.0 - self.stock as f64 / self.bound.max(1) as f64).max(0.0)
    }

    /// The uncached prompt tokens in prefill are above `threshold`.
    pub(crate) fn is_above(&self, threshold: Threshold) -> bool {
        let limits_tokens = threshold.tokens.is_some_and(|tokens| self.running.in_prefill > tokens);
        let limits_fraction = threshold.fraction.zip(self.batched_tokens_max);
        limits_tokens
            || limits_fraction
                .is_some_and(|(fraction, batched)| self.running.in_prefill as f64 > fraction * batched as f64)
    }

    /// The inputs of [`Self::is_above`].
    pub(crate) const fn busyness(&self) -> (u64, Option<u64>) {
        (self.running.in_prefill, self.batched_tokens_max)
    }

    /// Discovery lists the endpoint with this state. `starting`: the pool has just started, and its endpoints count as
    /// warm.
    pub(crate) fn list(&mut self, now: Instant, state: EndpointState, starting: bool) {
        if !self.listed {
            self.slow_start.listed(starting);
        }
        if state.ready != self.healthy || !self.listed {
            self.checked_since = now;
        }
        self.listed = true;
        self.healthy = state.ready;
        self.weight = state.weight;
        self.batched_tokens_max = state.batched_tokens_max;
        self.role = state.role;
        self.update_ready(starting);
    }

    fn update_ready(&mut self, starting: bool) {
        let ready = self.healthy && !self.health.is_out();
        if ready && !self.ready {
            self.slow_start.ready(starting);
        }
        self.ready = ready;
    }

    pub(crate) fn unlist(&mut self, gate: Gate) {
        self.listed = false;
        self.healthy = false;
        self.ready = false;
        self.health = Health::new();
        self.foreign = 0;
        self.is_reported = false;
        self.forget_abandoned();
        self.set_allowance(None, gate);
    }

    /// Records that `request` failed here before a response, and marks the endpoint down if that suffices and it isn't
    /// the last ready one.
    pub(crate) fn fail(&mut self, now: Instant, request: RequestId, policy: OutlierEjection, last: bool) {
        if self.health.connection_failed(now, request) && !last {
            self.health.mark_down(now, policy);
            self.update_ready(false);
        }
    }

    /// The endpoint's answers fail. `answers`: those of the pool so far.
    pub(crate) fn leave(&mut self, now: Instant, verdict: Verdict, policy: &Failing, answers: u64) {
        self.health.mark_failing(now, verdict, policy, answers);
        self.update_ready(false);
    }

    /// All endpoints fail alike: this one is kept away no longer.
    pub(crate) fn pardon(&mut self, now: Instant) {
        self.health.pardon(now);
        // It was full of work when the failures began, so it starts as it was.
        self.update_ready(true);
    }

    /// The state, the reason and the time since when, health checks included.
    pub(crate) fn shown_health(&self) -> (HealthState, HealthReason, Instant) {
        if self.listed && !self.healthy {
            return (HealthState::Down, HealthReason::HealthCheck, self.checked_since);
        }
        (self.health.state(), self.health.reason(), self.health.since().max(self.checked_since))
    }

    /// The endpoint itself refused `request`. `sequences_here`: those of the request, if it is counted at this endpoint.
    pub(crate) fn push_back(&mut self, request: RequestId, sequences_here: Option<u64>) {
        self.health.note_failed(request);
        let own = match self.unit {
            StockUnit::Requests | StockUnit::Tokens => sequences_here.map(|_| 1),
            StockUnit::Sequences => sequences_here,
        };
        let in_flight = self.counted().saturating_sub(own.unwrap_or(0));
        self.pushback.refused(in_flight);
    }

    /// Ends the mark. The endpoint is probed, and starts slowly.
    pub(crate) fn probe(&mut self, now: Instant) {
        self.health.probe(now);
        self.update_ready(false);
    }

    pub(crate) fn start(&mut self, load: Load) {
        self.requests += 1;
        self.running += load;
    }

    /// The answer of a request with this load has begun.
    pub(crate) fn end_prefill(&mut self, load: Load) {
        self.running -= load.in_prefill_only();
    }

    pub(crate) fn end(&mut self, now: Instant, load: Load, served: bool) {
        self.remove(load);
        self.note_end(now, served);
    }

    /// A request with this load runs here no longer.
    fn remove(&mut self, load: Load) {
        debug_assert!(self.requests > 0, "invariant: what ends was started");
        self.requests = self.requests.saturating_sub(1);
        self.running -= load;
    }

    /// `served`: the server processed a request that has ended.
    fn note_end(&mut self, now: Instant, served: bool) {
        if served {
            self.health.served(now);
            self.pushback.served();
            self.slow_start.served();
        }
    }

    /// The server reports this many running sequences, of all its clients; `None`: no report.
    pub(crate) fn observe(&mut self, now: Instant, running: Option<u64>, release_after: Option<Duration>) {
        self.is_reported = running.is_some();
        match running {
            Some(running) => self.follow_report(now, running),
            // Nothing but their time shows their end.
            None if release_after.is_some() => {}
            None => self.release_abandoned(0, now),
        }
        self.foreign = running.unwrap_or(0).saturating_sub(self.sequences());
        self.report_asked_at = now.before(self.stats.asked_ago);
    }

    /// A request is known only now that has come in at this time, and may run here since. The last report has counted it as foreign, if it was
    /// requested later.
    pub(crate) fn recognize(&mut self, arrived: Instant, sequences: u64) {
        if arrived <= self.report_asked_at {
            self.foreign = self.foreign.saturating_sub(sequences);
        }
    }

    /// Updates the stock, after any change.
    pub(crate) fn update_stock(&mut self, gate: Gate) {
        self.stock = self.stock_in(gate);
        self.filled = self.filled_in(gate);
    }

    /// The stock in the unit of this gate.
    pub(crate) const fn stock_in(&self, gate: Gate) -> u64 {
        match gate.unit() {
            StockUnit::Requests => self.taken(),
            StockUnit::Tokens => self.running.tokens,
            StockUnit::Sequences => self.sequences(),
        }
    }

    /// The part of the bound that the stock fills under this gate.
    pub(crate) fn filled_in(&self, gate: Gate) -> u64 {
        let stock = self.stock_in(gate).saturating_sub(self.running.extra.in_unit(gate.unit()));
        match gate {
            Gate::Bounded { unit: StockUnit::Sequences, .. } => stock.min(self.bound),
            Gate::Open | Gate::Manual | Gate::Auto { .. } | Gate::Bounded { .. } => stock,
        }
    }
}
