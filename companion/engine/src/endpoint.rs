//! One endpoint: what runs there, what it takes, and how it starts slowly.
//!
//! It is changed only by [`crate::endpoints`], which keeps sums and order over all of them.
//!
//! A slow start: an endpoint that is new or comes back takes one request at a time, twice as many after so many were
//! served there, and so on until that holds nothing back any more. Its caches are cold, and a server that fails
//! shows it with one request instead of a boundful.

use core::cmp::Ordering;
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
    /// Served since it was this.
    served: u64,
}

#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) id: EndpointId,
    /// Discovery names it; otherwise it is here only while something runs there.
    pub(crate) listed: bool,
    /// Its health check passes.
    pub(crate) healthy: bool,
    /// Listed, healthy, and not marked down.
    pub(crate) ready: bool,
    pub(crate) failures: Failures,
    pub(crate) weight: Decimal,
    /// What runs there, in the unit of the gate,
    pub(crate) stock: u64,
    /// and what it takes at a time, as far as that is counted; `u64::MAX`: anything.
    pub(crate) bound: u64,
    /// The same as it would be at full strength.
    full: u64,
    /// What a model of its server says; it counts under [`Gate::Auto`].
    budget: Option<Budget>,
    /// Set aside for one that goes next and doesn't fit yet: nobody else goes there.
    pub(crate) held: bool,
    pub(crate) requests: u64,
    tokens: u64,
    output: u64,
    pub(crate) prefill: u64,
    batched_tokens_max: Option<u64>,
    /// Requests that ran there and weren't ours, when it was last asked.
    foreign: u64,
    ramp: Option<Ramp>,
    /// It starts slowly when it is next ready, unless the pool is just starting.
    starts_slowly: bool,
    pub(crate) share: Share,
    pub(crate) tie: u32,
    /// What its server says that scorers look at.
    pub(crate) stats: ServerStats,
}

impl Endpoint {
    /// Neither listed nor in use.
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
            held: false,
            requests: 0,
            tokens: 0,
            output: 0,
            prefill: 0,
            batched_tokens_max: None,
            foreign: 0,
            ramp: None,
            starts_slowly: false,
            share: Share::default(),
            tie: 0,
            stats: ServerStats::default(),
        };
        endpoint.rebound(gate);
        endpoint
    }

    /// It takes one more, whatever that is, or, under a budget, one that fits.
    pub(crate) fn has_room(&self) -> bool {
        self.ready
            && self.stock < self.bound
            && !self.held
            && self.ramp.is_none_or(|ramp| self.requests < ramp.bound)
    }

    /// Where it stands with `more`, if it takes that, under [`Gate::Auto`] and having room.
    pub(crate) fn rank(&self, more: &Load) -> Option<Rank> {
        match &self.budget {
            Some(budget) => budget.rank(&self.in_flight(), more, self.tie),
            None => Some(Rank {
                used: (self.requests.saturating_add(self.foreign) as f64 + 1.0) / self.full as f64,
                iteration_ms: 0.0,
                tie: self.tie,
            }),
        }
    }

    /// The part of its bound that is free; where nothing bounds it, less the more runs there.
    pub(crate) fn free(&self) -> f64 {
        if self.bound == u64::MAX {
            return 1.0 / (1.0 + self.stock as f64);
        }
        (1.0 - self.stock as f64 / self.bound.max(1) as f64).max(0.0)
    }

    /// Until the first token of `more`, were it to go there; `None`: nobody knows.
    pub(crate) fn first_token(&self, more: &Load) -> Option<Duration> {
        let budget = self.budget.as_ref()?;
        Some(budget.first_token(&self.in_flight(), more))
    }

    /// Requests per second that it serves, as its model says.
    pub(crate) fn rate(&self) -> Option<f64> {
        self.budget.as_ref()?.rate
    }

    fn in_flight(&self) -> InFlight {
        InFlight {
            requests: self.requests,
            foreign: self.foreign,
            load: self.running(),
        }
    }

    /// It has fewer uncached prompt tokens in flight than this.
    pub(crate) fn is_below(&self, threshold: Threshold) -> bool {
        let below_fraction = |fraction: f64| {
            self.batched_tokens_max.is_none_or(|batched| {
                // What can't be compared can't come of a valid policy, and holds nobody.
                let held_by = fraction * batched as f64;
                !matches!(
                    (self.prefill as f64).partial_cmp(&held_by),
                    Some(Ordering::Equal | Ordering::Greater)
                )
            })
        };
        threshold.tokens.is_none_or(|tokens| self.prefill < tokens)
            && threshold.fraction.is_none_or(below_fraction)
    }

    /// What thresholds look at.
    pub(crate) const fn busyness(&self) -> (u64, Option<u64>) {
        (self.prefill, self.batched_tokens_max)
    }

    /// Discovery says so. `starting`: the pool has just begun, and everything in it is taken as warm.
    pub(crate) fn list(&mut self, state: EndpointState, starting: bool) {
        if !self.listed {
            self.starts_slowly = !starting;
        }
        self.listed = true;
        self.healthy = state.ready;
        self.weight = state.weight;
        self.batched_tokens_max = state.batched_tokens_max;
        self.look(starting);
    }

    fn look(&mut self, starting: bool) {
        let ready = self.healthy && self.failures.down().is_none();
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
        self.allow(None, gate);
    }

    /// `id` failed there before a response: it may be marked down by that, unless it is the `last`.
    pub(crate) fn fail(&mut self, now: Instant, id: RequestId, policy: OutlierEjection, last: bool) {
        if self.failures.fail(now, id) && !last {
            self.failures.mark(now, policy);
            self.look(false);
        }
    }

    /// It isn't marked down any more, and starts slowly.
    pub(crate) fn back(&mut self) {
        self.failures.back();
        self.look(false);
    }

    pub(crate) const fn start(&mut self, load: Load) {
        self.requests += 1;
        self.tokens += load.tokens;
        self.output += load.output;
        self.prefill += load.prefill;
    }

    pub(crate) fn end(&mut self, load: Load, served: bool) {
        debug_assert!(
            self.requests > 0
                && self.tokens >= load.tokens
                && self.output >= load.output
                && self.prefill >= load.prefill,
            "invariant: what ends was started"
        );
        self.requests = self.requests.saturating_sub(1);
        self.tokens = self.tokens.saturating_sub(load.tokens);
        self.output = self.output.saturating_sub(load.output);
        self.prefill = self.prefill.saturating_sub(load.prefill);
        if served {
            self.failures.served();
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

    /// Its server says that so many run there, whoever's they are; `None`: it doesn't say.
    pub(crate) fn observe(&mut self, running: Option<u64>) {
        self.foreign = running.unwrap_or(0).saturating_sub(self.requests);
    }

    /// What its server's model says it takes, from now on.
    pub(crate) fn allow(&mut self, budget: Option<Budget>, gate: Gate) {
        self.budget = budget;
        self.rebound(gate);
    }

    /// What its share and its bound follow from, besides the gate and its budget.
    pub(crate) fn terms(&self) -> (bool, Decimal, Limits) {
        (self.ready, self.weight, self.limits())
    }

    /// Share and bound under this gate; after every change of it or of [`Self::terms`].
    pub(crate) fn rebound(&mut self, gate: Gate) {
        self.full = self.share_within(gate, Limits::default()).bound(gate);
        let full = self.full;
        let holds_back = |ramp: &Ramp| match gate {
            Gate::Open | Gate::Manual => false,
            // In tokens the bound is as many requests only if each has one.
            Gate::Auto { .. } | Gate::Bounded { .. } => ramp.bound < full,
        };
        self.ramp = self.ramp.filter(|ramp| self.ready && holds_back(ramp));
        self.share = self.share_within(gate, self.limits());
        self.bound = self.bound_in(gate);
    }

    /// What it adds to the bounds within `limits`: under a budget what that says is typical, which the weight doesn't
    /// scale, as it is of this very server.
    pub(crate) fn share_within(&self, gate: Gate, limits: Limits) -> Share {
        match self.budget_in(gate) {
            Some(budget) => {
                let initial = Decimal::whole(budget.typical);
                Share::of(Gate::Auto { initial }, Decimal::whole(1), limits)
            }
            None => Share::of(gate, self.weight, limits),
        }
    }

    /// What it takes at a time, as far as that is counted.
    pub(crate) fn bound_in(&self, gate: Gate) -> u64 {
        match self.budget_in(gate) {
            Some(budget) => budget
                .requests_max
                .map_or(u64::MAX, |most| most.saturating_sub(self.foreign).max(1)),
            None => self.share.bound(gate),
        }
    }

    /// What gates it instead of a count.
    fn budget_in(&self, gate: Gate) -> Option<&Budget> {
        match gate {
            Gate::Auto { .. } => self.budget.as_ref(),
            Gate::Open | Gate::Manual | Gate::Bounded { .. } => None,
        }
    }

    /// Stock under this gate, after every change.
    pub(crate) const fn recount(&mut self, gate: Gate) {
        self.stock = self.stock_in(gate);
    }

    /// What runs there, in the unit of this gate.
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
            | Gate::Manual => self.requests,
        }
    }

    /// Its ramp and what isn't ours.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            ramp: self.ramp.map(|ramp| ramp.bound),
            foreign: self.foreign,
        }
    }

    pub(crate) const fn running(&self) -> Load {
        Load {
            tokens: self.tokens,
            output: self.output,
            prefill: self.prefill,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follow(endpoint: &mut Endpoint, gate: Gate) {
        endpoint.rebound(gate);
        endpoint.recount(gate);
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

    /// Listed when the pool had long begun.
    fn new(gate: Gate) -> Endpoint {
        let mut endpoint = Endpoint::new(EndpointId(1), Gate::Open);
        endpoint.list(state(true), false);
        follow(&mut endpoint, gate);
        endpoint
    }

    /// Fills it up, and lets all of it be served. Returns how many it took.
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
    fn it_doubles_only_by_what_was_served() {
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
    fn in_tokens_it_holds_back_requests() {
        let gate = gate(StockUnit::Tokens, 1_000);
        let mut endpoint = new(gate);
        let load = Load {
            tokens: 300,
            output: 0,
            prefill: 100,
        };
        assert_eq!(endpoint.bound, 1_000, "the bound is in tokens");
        let took = [(); 5].map(|()| boundful(&mut endpoint, gate, load));
        // 300, 600, 900 are below 1,000: the fourth goes.
        assert_eq!(took, [1, 2, 4, 4, 4]);
    }

    #[test]
    fn who_comes_back_starts_slowly_again() {
        let gate = gate(StockUnit::Requests, 4);
        let mut endpoint = Endpoint::new(EndpointId(1), Gate::Open);
        endpoint.list(state(false), true);
        endpoint.list(state(true), false);
        follow(&mut endpoint, gate);
        assert_eq!(
            endpoint.bound, 4,
            "listed in time, and never gone: it isn't new and doesn't come back"
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
        assert_eq!(endpoint.bound, 1, "from the beginning");
        endpoint.list(state(false), false);
        endpoint.list(state(true), true);
        follow(&mut endpoint, gate);
        assert_eq!(endpoint.bound, 4, "in a pool that just starts nothing does");
    }

    #[test]
    fn without_a_gate_nothing_starts_slowly() {
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
    fn foreign_load_is_what_was_too_much_when_it_was_asked() {
        let gate = gate(StockUnit::Requests, 4);
        let mut endpoint = Endpoint::new(EndpointId(1), Gate::Open);
        endpoint.list(state(true), true);
        endpoint.start(Load::default());
        endpoint.observe(Some(3));
        follow(&mut endpoint, gate);
        assert_eq!(endpoint.bound, 2);
        endpoint.end(Load::default(), true);
        follow(&mut endpoint, gate);
        assert_eq!(endpoint.bound, 2, "an end doesn't make it more");
        endpoint.observe(Some(100));
        follow(&mut endpoint, gate);
        assert_eq!((endpoint.bound, endpoint.has_room()), (1, true));
        endpoint.observe(Some(0));
        follow(&mut endpoint, gate);
        assert_eq!(endpoint.bound, 4);
        endpoint.observe(Some(2));
        endpoint.observe(None);
        follow(&mut endpoint, gate);
        assert_eq!(endpoint.bound, 4, "nobody knows: nothing is taken");
    }

    #[test]
    fn thresholds_hold_from_their_value_on() {
        let mut endpoint = Endpoint::new(EndpointId(1), Gate::Open);
        let tokens = |tokens| Threshold {
            tokens: Some(tokens),
            fraction: None,
        };
        let fraction = |fraction| Threshold {
            tokens: None,
            fraction: Some(fraction),
        };
        endpoint.start(Load {
            tokens: 500,
            output: 0,
            prefill: 400,
        });
        assert!(endpoint.is_below(Threshold::default()));
        assert!(endpoint.is_below(tokens(401)) && !endpoint.is_below(tokens(400)));
        assert!(endpoint.is_below(fraction(0.0)), "of a number that isn't known");
        endpoint.batched_tokens_max = Some(1_000);
        assert!(endpoint.is_below(fraction(0.41)) && !endpoint.is_below(fraction(0.4)));
        let both = Threshold {
            tokens: Some(1_000),
            fraction: Some(0.4),
        };
        assert!(!endpoint.is_below(both), "either holds it");
        endpoint.end(
            Load {
                tokens: 500,
                output: 0,
                prefill: 400,
            },
            true,
        );
        assert!(!endpoint.is_below(tokens(0)), "nothing is below 0");
    }
}
