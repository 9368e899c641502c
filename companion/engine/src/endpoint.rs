//! One endpoint: its stock, its bound, and its slow start. Only [`crate::endpoints`] changes it, because that keeps the
//! sums and the order over all endpoints.
//!
//! Slow start: an endpoint that is new or becomes ready again takes one request at a time. After one served request it
//! takes two, after two more four, and so on, up to its bound. Its caches are cold, and a failing server shows it on one
//! request instead of a whole bound of them.
//!
//! Pushback: an endpoint that refuses a request by itself is bounded by what it had in flight. The bound grows by one with
//! each request that it serves, until the gate's bound holds again.

use core::time::Duration;

use crate::budget::{Budget, InFlight, Rank};
use crate::gate::{Limits, Share};
use crate::input::{EndpointId, EndpointState, RequestId, ServerStats};
use crate::load::{Load, Threshold};
use crate::outlier_ejection::Failures;
use crate::policy::{Gate, OutlierEjection, StockUnit};
use crate::time::Instant;
use crate::units::Decimal;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ramp {
    /// Requests at a time.
    bound: u64,
    /// Requests served at this bound.
    served: u64,
}

#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) id: EndpointId,
    /// Discovery lists it. An unlisted endpoint exists only while something runs there.
    pub(crate) listed: bool,
    /// Its health check passes.
    pub(crate) healthy: bool,
    /// Listed, healthy, and not marked down.
    pub(crate) ready: bool,
    pub(crate) failures: Failures,
    pub(crate) weight: Decimal,
    /// The load that runs there, in the unit of the gate.
    pub(crate) stock: u64,
    /// The stock up to which it takes requests; `u64::MAX`: unlimited.
    pub(crate) bound: u64,
    /// The bound without slow start and foreign requests.
    full: u64,
    /// Effective under [`Gate::Auto`].
    budget: Option<Budget>,
    /// Reserved for the blocked head, which doesn't fit yet: it takes no other request.
    pub(crate) reserved: bool,
    pub(crate) requests: u64,
    /// Requests that filters may run here without asking: they count as if they ran.
    pub(crate) credit: u64,
    tokens: u64,
    output: u64,
    prefill: u64,
    /// The part of `prefill` whose answers haven't begun.
    pub(crate) in_prefill: u64,
    batched_tokens_max: Option<u64>,
    /// Requests of other clients, by the last report.
    foreign: u64,
    ramp: Option<Ramp>,
    /// The bound that the endpoint's refusals set, in requests; `None`: it has refused none since the gate's bound held.
    pub(crate) pushback: Option<u64>,
    /// Starts slowly when it is next ready, unless the pool itself is starting.
    starts_slowly: bool,
    pub(crate) share: Share,
    /// A random number, drawn anew at each change, that decides ties.
    pub(crate) tie: u32,
    pub(crate) stats: ServerStats,
}

impl Endpoint {
    /// An endpoint that is neither listed nor in use.
    pub(crate) fn new(id: EndpointId, gate: Gate) -> Self {
        let mut endpoint = Self {
            id,
            listed: false,
            healthy: false,
            ready: false,
            failures: Failures::NONE,
            weight: Decimal::whole(1),
            stock: 0,
            bound: 0,
            full: 0,
            budget: None,
            reserved: false,
            requests: 0,
            credit: 0,
            tokens: 0,
            output: 0,
            prefill: 0,
            in_prefill: 0,
            batched_tokens_max: None,
            foreign: 0,
            ramp: None,
            pushback: None,
            starts_slowly: false,
            share: Share::default(),
            tie: 0,
            stats: ServerStats::default(),
        };
        endpoint.update_bound(gate);
        endpoint
    }

    /// The endpoint takes one request more; under a budget, one that fits.
    pub(crate) fn has_room(&self) -> bool {
        self.ready
            && self.stock < self.bound
            && !self.reserved
            && self.ramp.is_none_or(|ramp| self.taken() < ramp.bound)
            && self.pushback.is_none_or(|bound| self.taken() < bound)
    }

    /// The requests that run here, and those that filters may run.
    pub(crate) const fn taken(&self) -> u64 {
        self.requests + self.credit
    }

    /// The credit, as far as it counts in the stock under this gate.
    pub(crate) const fn credit_in(&self, gate: Gate) -> u64 {
        match gate {
            Gate::Bounded {
                unit: StockUnit::Tokens,
                ..
            } => 0,
            Gate::Bounded {
                unit: StockUnit::Requests,
                ..
            }
            | Gate::Auto { .. }
            | Gate::Open
            | Gate::Manual => self.credit,
        }
    }

    /// What is lent here may stay lent.
    pub(crate) const fn keeps_credit(&self) -> bool {
        self.ready && self.ramp.is_none() && self.pushback.is_none() && self.stock <= self.bound
    }

    /// How many requests more filters may run here without asking, in a gate that counts requests: up to half of the bound, and
    /// none while the endpoint starts slowly or refuses requests.
    pub(crate) fn credit_room(&self) -> u64 {
        if !self.has_room() || !self.keeps_credit() {
            return 0;
        }
        half(self.bound).saturating_sub(self.stock)
    }

    /// The rank with `more` under [`Gate::Auto`], for an endpoint with room; `None` if `more` doesn't fit.
    pub(crate) fn rank(&self, more: &Load) -> Option<Rank> {
        match &self.budget {
            Some(budget) => budget.rank(&self.in_flight(), more, self.tie),
            None => Some(Rank {
                used: (self.taken().saturating_add(self.foreign) as f64 + 1.0) / self.full as f64,
                iteration_ms: 0.0,
                tie: self.tie,
            }),
        }
    }

    /// The free part of the bound. Without a bound: a part that shrinks with the stock.
    pub(crate) fn free(&self) -> f64 {
        if self.bound == u64::MAX {
            return 1.0 / (1.0 + self.stock as f64);
        }
        (1.0 - self.stock as f64 / self.bound.max(1) as f64).max(0.0)
    }

    /// The predicted time to the first token of `more` if dispatched here; `None` without a budget.
    pub(crate) fn first_token(&self, more: &Load) -> Option<Duration> {
        let budget = self.budget.as_ref()?;
        Some(budget.first_token(&self.in_flight(), more))
    }

    /// Requests per second that the endpoint serves, by its performance model.
    pub(crate) fn rate(&self) -> Option<f64> {
        self.budget.as_ref()?.rate
    }

    fn in_flight(&self) -> InFlight {
        InFlight {
            requests: self.taken(),
            foreign: self.foreign,
            load: self.running(),
        }
    }

    /// The uncached prompt tokens in prefill are above `threshold`.
    pub(crate) fn is_above(&self, threshold: Threshold) -> bool {
        let limits_tokens = threshold.tokens.is_some_and(|tokens| self.in_prefill > tokens);
        let limits_fraction = threshold.fraction.zip(self.batched_tokens_max);
        limits_tokens
            || limits_fraction
                .is_some_and(|(fraction, batched)| self.in_prefill as f64 > fraction * batched as f64)
    }

    /// The inputs of [`Self::is_above`].
    pub(crate) const fn busyness(&self) -> (u64, Option<u64>) {
        (self.in_prefill, self.batched_tokens_max)
    }

    /// Discovery lists the endpoint with this state. `starting`: the pool has just started, and its endpoints count as
    /// warm.
    pub(crate) fn list(&mut self, state: EndpointState, starting: bool) {
        if !self.listed {
            self.starts_slowly = !starting;
        }
        self.listed = true;
        self.healthy = state.ready;
        self.weight = state.weight;
        self.batched_tokens_max = state.batched_tokens_max;
        self.update_ready(starting);
    }

    fn update_ready(&mut self, starting: bool) {
        let ready = self.healthy && self.failures.down_until().is_none();
        if ready && !self.ready {
            let slowly = self.starts_slowly && !starting;
            self.ramp = slowly.then_some(Ramp { bound: 1, served: 0 });
            self.starts_slowly = true;
        }
        self.ready = ready;
    }

    pub(crate) fn unlist(&mut self, gate: Gate) {
        self.listed = false;
        self.healthy = false;
        self.ready = false;
        self.failures = Failures::NONE;
        self.foreign = 0;
        self.set_budget(None, gate);
    }

    /// Records that `request` failed here before a response, and marks the endpoint down if that suffices and it isn't
    /// the last ready one.
    pub(crate) fn fail(&mut self, now: Instant, request: RequestId, policy: OutlierEjection, last: bool) {
        if self.failures.fail(now, request) && !last {
            self.failures.mark_down(now, policy);
            self.update_ready(false);
        }
    }

    /// The endpoint itself refused `request`. `runs_here`: the request is counted among the requests of this endpoint.
    pub(crate) fn push_back(&mut self, request: RequestId, runs_here: bool) {
        self.failures.pushed_back(request);
        let in_flight = self.taken().saturating_sub(u64::from(runs_here)).max(1);
        self.pushback = Some(self.pushback.map_or(in_flight, |bound| bound.min(in_flight)));
    }

    /// Ends the mark. The endpoint is probed, and starts slowly.
    pub(crate) fn probe(&mut self) {
        self.failures.probe();
        self.update_ready(false);
    }

    pub(crate) const fn start(&mut self, load: Load) {
        self.requests += 1;
        self.tokens += load.tokens;
        self.output += load.output;
        self.prefill += load.prefill;
        self.in_prefill += load.in_prefill;
    }

    /// The answer of a request with this load has begun.
    pub(crate) const fn end_prefill(&mut self, load: Load) {
        self.in_prefill = self.in_prefill.saturating_sub(load.in_prefill);
    }

    pub(crate) fn end(&mut self, load: Load, served: bool) {
        debug_assert!(
            self.requests > 0
                && self.tokens >= load.tokens
                && self.output >= load.output
                && self.prefill >= load.prefill
                && self.in_prefill >= load.in_prefill,
            "invariant: what ends was started"
        );
        self.requests = self.requests.saturating_sub(1);
        self.tokens = self.tokens.saturating_sub(load.tokens);
        self.output = self.output.saturating_sub(load.output);
        self.prefill = self.prefill.saturating_sub(load.prefill);
        self.end_prefill(load);
        if served {
            self.failures.served();
            self.pushback = self.pushback.map(|bound| bound.saturating_add(1));
        }
        if let Some(ramp) = self.ramp.as_mut().filter(|_| served) {
            ramp.served += 1;
            if ramp.served >= ramp.bound {
                *ramp = Ramp {
                    bound: ramp.bound.saturating_mul(2),
                    served: 0,
                };
            }
        }
    }

    /// The server reports this many running requests, of all its clients; `None`: no report.
    pub(crate) fn observe(&mut self, running: Option<u64>) {
        self.foreign = running.unwrap_or(0).saturating_sub(self.taken());
    }

    pub(crate) fn set_budget(&mut self, budget: Option<Budget>, gate: Gate) {
        self.budget = budget;
        self.update_bound(gate);
    }

    /// The inputs of [`Self::update_bound`] besides gate and budget.
    pub(crate) fn bound_inputs(&self) -> (bool, Decimal, Limits) {
        (self.ready, self.weight, self.limits())
    }

    /// Updates share and bound, after any change of the gate or of [`Self::bound_inputs`].
    pub(crate) fn update_bound(&mut self, gate: Gate) {
        self.full = self.share_within(gate, Limits::default()).bound(gate);
        let full = self.full;
        let is_effective = |ramp: &Ramp| match gate {
            Gate::Open | Gate::Manual => false,
            // A bound in tokens allows at most that many requests.
            Gate::Auto { .. } | Gate::Bounded { .. } => ramp.bound < full,
        };
        self.ramp = self.ramp.filter(|ramp| self.ready && is_effective(ramp));
        let configured = match (gate, self.budget_in(gate)) {
            (Gate::Manual, _) => 0,
            (Gate::Open, _) => u64::MAX,
            (Gate::Auto { .. } | Gate::Bounded { .. }, Some(budget)) => {
                budget.requests_max.unwrap_or(u64::MAX)
            }
            (Gate::Auto { .. } | Gate::Bounded { .. }, None) => full,
        };
        self.pushback = self.pushback.filter(|&bound| self.ready && bound < configured);
        self.share = self.share_within(gate, self.limits());
        self.bound = self.bound_in(gate);
    }

    /// The share within `limits`. Under a budget it is the typical number of requests, unscaled by the weight, because
    /// the budget describes this very server.
    pub(crate) fn share_within(&self, gate: Gate, limits: Limits) -> Share {
        match self.budget_in(gate) {
            Some(budget) => {
                let initial = Decimal::whole(budget.typical);
                Share::of(Gate::Auto { initial }, Decimal::whole(1), limits)
            }
            None => Share::of(gate, self.weight, limits),
        }
    }

    /// The bound under this gate; under a budget only its limit on requests.
    pub(crate) fn bound_in(&self, gate: Gate) -> u64 {
        let bound = match self.budget_in(gate) {
            Some(budget) => budget
                .requests_max
                .map_or(u64::MAX, |limit| limit.saturating_sub(self.foreign).max(1)),
            None => self.share.bound(gate),
        };
        match gate {
            // The refusals limit requests, not tokens.
            Gate::Bounded {
                unit: StockUnit::Tokens,
                ..
            } => bound,
            Gate::Bounded {
                unit: StockUnit::Requests,
                ..
            }
            | Gate::Auto { .. }
            | Gate::Open
            | Gate::Manual => bound.min(self.pushback.unwrap_or(u64::MAX)),
        }
    }

    /// The budget, if it replaces the bound under this gate.
    fn budget_in(&self, gate: Gate) -> Option<&Budget> {
        match gate {
            Gate::Auto { .. } => self.budget.as_ref(),
            Gate::Open | Gate::Manual | Gate::Bounded { .. } => None,
        }
    }

    /// Updates the stock, after any change.
    pub(crate) const fn update_stock(&mut self, gate: Gate) {
        self.stock = self.stock_in(gate);
    }

    /// The stock in the unit of this gate.
    pub(crate) const fn stock_in(&self, gate: Gate) -> u64 {
        match gate {
            Gate::Bounded {
                unit: StockUnit::Tokens,
                ..
            } => self.tokens,
            Gate::Bounded {
                unit: StockUnit::Requests,
                ..
            }
            | Gate::Auto { .. }
            | Gate::Open
            | Gate::Manual => self.taken(),
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            ramp: self.ramp.map(|ramp| ramp.bound),
            foreign: self.foreign,
            pushback: self.pushback,
        }
    }

    pub(crate) const fn running(&self) -> Load {
        Load {
            tokens: self.tokens,
            output: self.output,
            prefill: self.prefill,
            in_prefill: self.in_prefill,
        }
    }
}

/// Half of a bound; an unlimited bound stays unlimited.
pub(crate) const fn half(bound: u64) -> u64 {
    if bound == u64::MAX { bound } else { bound / 2 }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn follow(endpoint: &mut Endpoint, gate: Gate) {
        endpoint.update_bound(gate);
        endpoint.update_stock(gate);
    }

    fn gate(unit: StockUnit, upper: u64) -> Gate {
        Gate::Bounded {
            unit,
            lower: Decimal::whole(upper),
            upper: Decimal::whole(upper),
            watermark: Decimal::whole(upper),
        }
    }

    fn state(ready: bool) -> EndpointState {
        EndpointState {
            ready,
            ..EndpointState::default()
        }
    }

    /// An endpoint listed long after the pool started.
    fn new(gate: Gate) -> Endpoint {
        let mut endpoint = Endpoint::new(EndpointId(1), Gate::Open);
        endpoint.list(state(true), false);
        follow(&mut endpoint, gate);
        endpoint
    }

    /// Fills the endpoint, then serves all of it. Returns how many requests it took.
    fn boundful(endpoint: &mut Endpoint, gate: Gate, load: Load) -> u64 {
        let mut taken = 0;
        while endpoint.has_room() {
            endpoint.start(load);
            follow(endpoint, gate);
            taken += 1;
        }
        for _ in 0..taken {
            endpoint.end(load, true);
            follow(endpoint, gate);
        }
        taken
    }

    #[test]
    fn a_slow_start_doubles_up_to_the_bound() {
        let gate = gate(StockUnit::Requests, 11);
        let mut endpoint = new(gate);
        let load = Load::default();
        let took = [(); 6].map(|()| boundful(&mut endpoint, gate, load));
        assert_eq!(took, [1, 2, 4, 8, 11, 11]);
        assert_eq!((endpoint.ramp, endpoint.bound), (None, 11));
    }

    #[test]
    fn only_served_requests_double_a_slow_start() {
        let gate = gate(StockUnit::Requests, 8);
        let mut endpoint = new(gate);
        for _ in 0..10 {
            endpoint.start(Load::default());
            endpoint.end(Load::default(), false);
            follow(&mut endpoint, gate);
        }
        assert_eq!(endpoint.bound, 1);
    }

    #[test]
    fn under_a_bound_in_tokens_a_slow_start_limits_requests() {
        let gate = gate(StockUnit::Tokens, 1_000);
        let mut endpoint = new(gate);
        let load = Load {
            tokens: 300,
            prefill: 100,
            ..Load::default()
        };
        assert_eq!(endpoint.bound, 1_000, "the bound is in tokens");
        let took = [(); 5].map(|()| boundful(&mut endpoint, gate, load));
        // 300, 600, 900 are below 1,000: the fourth goes.
        assert_eq!(took, [1, 2, 4, 4, 4]);
    }

    #[test]
    fn an_endpoint_that_becomes_ready_again_starts_slowly() {
        let gate = gate(StockUnit::Requests, 4);
        let mut endpoint = Endpoint::new(EndpointId(1), Gate::Open);
        endpoint.list(state(false), true);
        endpoint.list(state(true), false);
        follow(&mut endpoint, gate);
        assert_eq!(
            endpoint.bound, 4,
            "listed while the pool started, and never unready since"
        );
        endpoint.list(state(true), false);
        follow(&mut endpoint, gate);
        assert_eq!(endpoint.bound, 4, "nothing has changed");
        endpoint.list(state(false), false);
        follow(&mut endpoint, gate);
        endpoint.list(state(true), false);
        follow(&mut endpoint, gate);
        assert_eq!(endpoint.bound, 1);
        boundful(&mut endpoint, gate, Load::default());
        assert_eq!(endpoint.bound, 2);
        endpoint.list(state(false), false);
        follow(&mut endpoint, gate);
        assert_eq!(endpoint.ramp, None);
        endpoint.list(state(true), false);
        follow(&mut endpoint, gate);
        assert_eq!(endpoint.bound, 1, "the slow start begins anew");
        endpoint.list(state(false), false);
        endpoint.list(state(true), true);
        follow(&mut endpoint, gate);
        assert_eq!(endpoint.bound, 4, "nothing starts slowly in a starting pool");
    }

    #[test]
    fn without_bounds_nothing_starts_slowly() {
        for gate in [Gate::Open, Gate::Manual] {
            let mut endpoint = new(gate);
            for _ in 0..100 {
                assert!(endpoint.has_room());
                endpoint.start(Load::default());
                follow(&mut endpoint, gate);
            }
        }
    }

    #[test]
    fn foreign_load_is_the_excess_of_the_report_over_our_requests() {
        let gate = gate(StockUnit::Requests, 4);
        let mut endpoint = Endpoint::new(EndpointId(1), Gate::Open);
        endpoint.list(state(true), true);
        endpoint.start(Load::default());
        endpoint.observe(Some(3));
        follow(&mut endpoint, gate);
        assert_eq!(endpoint.bound, 2);
        endpoint.end(Load::default(), true);
        follow(&mut endpoint, gate);
        assert_eq!(endpoint.bound, 2, "the end of a request doesn't raise the bound");
        endpoint.observe(Some(100));
        follow(&mut endpoint, gate);
        assert_eq!((endpoint.bound, endpoint.has_room()), (1, true));
        endpoint.observe(Some(0));
        follow(&mut endpoint, gate);
        assert_eq!(endpoint.bound, 4);
        endpoint.observe(Some(2));
        endpoint.observe(None);
        follow(&mut endpoint, gate);
        assert_eq!(endpoint.bound, 4, "without a report no request counts as foreign");
    }

    /// An endpoint that runs `running` requests and was then refused one more.
    fn pushed_back(gate: Gate, running: u64) -> Endpoint {
        let mut endpoint = Endpoint::new(EndpointId(1), Gate::Open);
        endpoint.list(state(true), true);
        for _ in 0..=running {
            endpoint.start(Load::default());
        }
        endpoint.push_back(RequestId(1), true);
        endpoint.end(Load::default(), false);
        follow(&mut endpoint, gate);
        endpoint
    }

    fn serve(endpoint: &mut Endpoint, gate: Gate) {
        endpoint.end(Load::default(), true);
        follow(endpoint, gate);
    }

    #[test]
    fn pushback_bounds_at_what_was_in_flight_and_each_served_request_raises_it() {
        let gate = gate(StockUnit::Requests, 6);
        let mut endpoint = pushed_back(gate, 3);
        assert_eq!((endpoint.bound, endpoint.has_room()), (3, false));
        let mut bounds = Vec::new();
        for _ in 0..3 {
            serve(&mut endpoint, gate);
            bounds.push(endpoint.bound);
        }
        assert_eq!(bounds, [4, 5, 6]);
        assert_eq!(endpoint.pushback, None, "the configured bound holds again");
        endpoint.start(Load::default());
        serve(&mut endpoint, gate);
        assert_eq!(endpoint.bound, 6);
    }

    #[test]
    fn pushback_of_an_idle_endpoint_leaves_room_for_one() {
        let gate = gate(StockUnit::Requests, 4);
        let mut endpoint = pushed_back(gate, 0);
        assert_eq!((endpoint.bound, endpoint.has_room()), (1, true));
        endpoint.push_back(RequestId(2), false);
        follow(&mut endpoint, gate);
        assert_eq!(endpoint.bound, 1);
    }

    #[test]
    fn further_refusals_only_lower_the_bound_and_requests_that_are_not_served_do_not_raise_it() {
        let gate = gate(StockUnit::Requests, 8);
        let mut endpoint = pushed_back(gate, 2);
        for _ in 0..3 {
            endpoint.start(Load::default());
        }
        endpoint.push_back(RequestId(2), true);
        follow(&mut endpoint, gate);
        assert_eq!(endpoint.bound, 2, "5 are in flight, and 2 were too many before");
        endpoint.end(Load::default(), false);
        follow(&mut endpoint, gate);
        assert_eq!(endpoint.bound, 2);
    }

    #[test]
    fn pushback_ends_when_the_endpoint_is_no_longer_ready() {
        let gate = gate(StockUnit::Requests, 4);
        let mut endpoint = pushed_back(gate, 2);
        endpoint.list(state(false), true);
        follow(&mut endpoint, gate);
        endpoint.list(state(true), true);
        follow(&mut endpoint, gate);
        assert_eq!((endpoint.pushback, endpoint.bound), (None, 4));
    }

    #[test]
    fn pushback_limits_requests_under_every_gate_that_dispatches_by_itself() {
        let tokens = gate(StockUnit::Tokens, 1_000);
        let endpoint = pushed_back(tokens, 2);
        assert_eq!(
            (endpoint.bound, endpoint.has_room()),
            (1_000, false),
            "the bound is in tokens"
        );
        let mut endpoint = pushed_back(Gate::Open, 2);
        assert_eq!((endpoint.bound, endpoint.has_room()), (2, false));
        serve(&mut endpoint, Gate::Open);
        assert_eq!((endpoint.bound, endpoint.has_room()), (3, true));
        assert_eq!(pushed_back(Gate::Manual, 2).bound, u64::MAX);
    }

    #[test]
    fn a_threshold_blocks_above_its_value() {
        let mut endpoint = Endpoint::new(EndpointId(1), Gate::Open);
        let tokens = |tokens| Threshold {
            tokens: Some(tokens),
            fraction: None,
        };
        let fraction = |fraction| Threshold {
            tokens: None,
            fraction: Some(fraction),
        };
        let load = Load {
            tokens: 500,
            output: 0,
            prefill: 400,
            in_prefill: 400,
        };
        assert!(!endpoint.is_above(tokens(0)), "0 lets one prompt in");
        endpoint.start(load);
        assert!(!endpoint.is_above(Threshold::default()));
        assert!(endpoint.is_above(tokens(399)) && !endpoint.is_above(tokens(400)));
        assert!(
            !endpoint.is_above(fraction(0.0)),
            "ineffective while batched_tokens_max is unknown"
        );
        endpoint.batched_tokens_max = Some(1_000);
        assert!(endpoint.is_above(fraction(0.39)) && !endpoint.is_above(fraction(0.4)));
        let both = Threshold {
            tokens: Some(1_000),
            fraction: Some(0.3),
        };
        assert!(endpoint.is_above(both), "either one blocks");
        endpoint.end_prefill(load);
        assert!(!endpoint.is_above(both) && !endpoint.is_above(tokens(0)));
        assert_eq!(endpoint.running().prefill, 400);
        endpoint.end(load.prefilled(), true);
        assert_eq!(endpoint.running(), Load::default());
    }
}
