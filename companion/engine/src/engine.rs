//! The engine: what happens, when it happens, and in which order that is decided.
//!
//! Every call does the same: brings time forward, lets what is due by then expire, takes the input in, and lets
//! go whatever may go now. Nothing else causes a decision. Admission is in [`crate::admission`], what becomes of
//! those that go in [`crate::running`], and another policy in [`crate::changing`].

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use hashbrown::HashMap;

use crate::counters::Counters;
use crate::drain_rate::DrainRate;
use crate::effect::{Effect, Outcome};
use crate::endpoint::Endpoint;
use crate::endpoints::{Changed, Endpoints};
use crate::expiry::{Expiry, Timer, Ttls};
use crate::input::{Band, EndpointId, EndpointState, Input, RequestId};
use crate::job::Job;
use crate::load::Load;
use crate::policy::{Gate, Policy};
use crate::rate::Rate;
use crate::rng::Rng;
use crate::slab::Slab;
use crate::time::Instant;
use crate::token_history::TokenHistory;
use crate::tree::Tree;
use crate::units::{Decimal, Tokens};

/// The decisions of one pool.
#[derive(Debug)]
pub struct Engine {
    pub(crate) policy: Policy,
    pub(crate) now: Instant,
    /// The owner has heard of all that runs.
    pub(crate) ready: bool,
    pub(crate) draining: bool,
    pub(crate) jobs: Slab<Job>,
    pub(crate) ids: HashMap<RequestId, u32>,
    pub(crate) arrivals: u64,
    pub(crate) tree: Tree,
    pub(crate) endpoints: Endpoints,
    pub(crate) rate: Rate,
    pub(crate) expiry: Expiry,
    pub(crate) learned: TokenHistory,
    pub(crate) drain_rate: DrainRate,
    pub(crate) counters: Counters,
    pub(crate) rng: Rng,
    pub(crate) traced: bool,
    pub(crate) reports_use: bool,
    /// The last that was to go and fitted nowhere, by the number of its arrival.
    pub(crate) blocked_head: Option<u64>,
    effects: VecDeque<Effect>,
}

impl Engine {
    /// An engine without endpoints, which dispatches nothing until [`Input::Ready`]. The same policy, seed, times
    /// and inputs give the same effects.
    #[must_use]
    pub fn new(policy: Policy, seed: u64, now: Instant) -> Self {
        Self {
            endpoints: Endpoints::new(policy.gate, policy.scheduler),
            rate: Rate::new(policy.queue.max_rate, now),
            tree: Tree::new(&policy, seed, now),
            policy,
            now,
            ready: false,
            draining: false,
            jobs: Slab::default(),
            ids: HashMap::new(),
            arrivals: 0,
            expiry: Expiry::new(now),
            learned: TokenHistory::new(),
            drain_rate: DrainRate::new(now),
            counters: Counters::default(),
            rng: Rng::new(seed),
            traced: false,
            reports_use: false,
            blocked_head: None,
            effects: VecDeque::new(),
        }
    }

    /// Something happened at `now`. A time before one already told counts as that one, and is counted.
    pub fn handle(&mut self, now: Instant, input: Input) {
        self.advance(now);
        if !self.is_manual() {
            self.expire();
        }
        self.take_in(input);
        if !self.is_manual() {
            self.expire();
            self.dispatch();
        }
        self.drain_rate.advance(self.now, self.is_saturated());
    }

    /// Nothing happened but time. Due whenever [`Self::poll_timeout`] is reached; early or late calls do no harm.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance(now);
        self.expire();
        if !self.is_manual() {
            self.dispatch();
        }
        self.drain_rate.advance(self.now, self.is_saturated());
    }

    /// From now on every grant is followed by [`Effect::Traced`], or isn't.
    pub const fn trace(&mut self, traced: bool) {
        self.traced = traced;
    }

    /// From now on [`Effect::UsageSettled`] is said, or isn't.
    pub const fn report_usage(&mut self, reported: bool) {
        self.reports_use = reported;
    }

    /// The next decision to carry out, in the order in which they were made.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When [`Self::handle_timeout`] is due; `None`: not before something happens. May lie in the past of a clock
    /// that ran on since.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let expires = self.expiry.next(self.ttls()).map(|(at, _, _)| at);
        let token = self
            .rate
            .next(self.now)
            .filter(|_| self.is_open() && self.tree.can_go());
        let back = self.endpoints.next_back();
        expires.into_iter().chain(token).chain(back).min()
    }

    fn advance(&mut self, now: Instant) {
        if now < self.now {
            self.counters.clock_backwards += 1;
        } else {
            self.now = now;
        }
        self.tree.advance(self.now);
        self.drain_rate.advance(self.now, self.is_saturated());
        while let Some(changed) = self.endpoints.back(self.now, &mut self.rng) {
            self.endpoint_changed(changed);
        }
    }

    fn take_in(&mut self, input: Input) {
        match input {
            Input::Register(request) => self.register(request),
            Input::Adopt { request, endpoint } => self.adopt(request, endpoint),
            Input::Resume(request) => self.resume(request),
            Input::Cancel(id) => self.cancel(id),
            Input::Sent { id, endpoint } => self.sent(id, endpoint),
            Input::Completed { id, service } => self.completed(id, service),
            Input::Settle { id, service } => self.settle(id, service),
            Input::ModelRemoved(id) => {
                if let Some(number) = self.waiting_number(id) {
                    self.refuse_waiting(number, Outcome::RejectedInvalid);
                }
            }
            Input::Amend(amended) => self.amend(amended),
            Input::Dispatch { blocked } => self.dispatch_one(&blocked),
            Input::Requeue(id) => self.requeue(id),
            Input::Suspend(id) => self.suspend(id, true),
            Input::Continue(id) => self.suspend(id, false),
            Input::Endpoint { id, state } => self.endpoint(id, state),
            Input::EndpointRemoved(id) => {
                let changed = self.endpoints.unlist(id, &mut self.rng);
                self.endpoints_changed(changed);
            }
            Input::Relist(relisted) => self.relist(*relisted),
            Input::Failed { id, endpoint } => {
                let policy = self.policy.outlier_ejection;
                let changed = self
                    .endpoints
                    .failed(self.now, endpoint, id, policy, &mut self.rng);
                self.endpoint_changed(changed);
            }
            Input::PastUsage(past) => self.tree.used(past, &self.policy.flows),
            Input::Policy(policy) => self.repolicy(policy),
            Input::Drain(draining) => self.drain(draining),
            Input::Load { id, running } => {
                let changed = self.endpoints.observe(id, running, &mut self.rng);
                self.endpoint_changed(changed);
            }
            Input::ServerStats { id, stats } => self.endpoints.know(id, stats),
            Input::Budget { id, budget } => {
                let changed = self.endpoints.allow(id, budget, &mut self.rng);
                self.endpoint_changed(changed);
            }
            Input::Ready => {
                self.ready = true;
                self.endpoints.begin(self.now);
            }
        }
    }

    /// Nothing goes by itself.
    pub(crate) fn is_manual(&self) -> bool {
        self.policy.gate == Gate::Manual
    }

    /// Every endpoint says for itself what it takes.
    pub(crate) const fn is_auto(&self) -> bool {
        matches!(self.policy.gate, Gate::Auto { .. })
    }

    /// What waits may go, as far as that is for the gate to say.
    pub(crate) fn is_open(&self) -> bool {
        self.ready
            && !self.is_manual()
            && self.is_below(self.endpoints.bounds().lower)
            && self.endpoints.any_room()
    }

    /// Stock is below `bound`, if there is one for the whole pool.
    pub(crate) fn is_below(&self, bound: u64) -> bool {
        let stock = self.endpoints.stock();
        stock < bound || stock == 0 || self.is_auto()
    }

    /// Lets go what may go, one after another, while the gate is open.
    pub(crate) fn dispatch(&mut self) {
        if self.is_auto() {
            self.dispatch_fitting();
            return;
        }
        while self.tree.any_active() && self.is_open() {
            self.cap(self.endpoints.bounds().lower);
            if !self.rate.has(self.now) {
                return;
            }
            self.counters.dequeue_attempts += 1;
            let Some(number) = self.tree.pick() else {
                self.tree.miss();
                return;
            };
            self.counters.dequeue_successes += 1;
            self.rate.take(self.now);
            self.grant_waiting(number);
        }
    }

    /// The same where the next one has to fit: if it doesn't, its endpoints are set aside for it, and others go as far
    /// as they don't need these. Who is set aside stays so until the next time.
    fn dispatch_fitting(&mut self) {
        self.release_held();
        while self.tree.any_active() && self.is_open() {
            self.cap(self.endpoints.bounds().lower);
            if !self.rate.has(self.now) {
                return;
            }
            self.counters.dequeue_attempts += 1;
            let Some(number) = self.tree.pick() else {
                self.tree.miss();
                return;
            };
            let arrival = self.jobs[number].queued.arrival.sequence;
            let endpoints = self.choose_fitting(number, self.blocked_head == Some(arrival));
            if endpoints.is_empty() {
                self.blocked_head = Some(arrival);
                self.endpoints.clear_dirty();
                let able = self.tree.able(self.jobs[number].queued.flow);
                let Some(able) = able.filter(|able| able.len() < self.endpoints.room_count()) else {
                    return;
                };
                for id in able {
                    let changed = self.endpoints.hold(id);
                    self.endpoint_changed(changed);
                }
                continue;
            }
            self.counters.dequeue_successes += 1;
            self.rate.take(self.now);
            self.grant_waiting_to(number, endpoints);
        }
    }

    /// Who takes `number` now, if it fits. `since`: it didn't when [`Endpoints::clear_dirty`] was last said.
    pub(crate) fn choose_fitting(&self, number: u32, since: bool) -> Vec<EndpointId> {
        let job = &self.jobs[number];
        let eligible = self.tree.eligible(job.queued.lane);
        let takes = |endpoint: &Endpoint| self.tree.takes(&job.queued, endpoint);
        self.endpoints
            .choose_fitting(eligible, &job.ask(), &Load::of(&job.tally), since, takes)
    }

    /// Nobody is set aside any more.
    pub(crate) fn release_held(&mut self) {
        while let Some(changed) = self.endpoints.release() {
            self.endpoint_changed(changed);
        }
    }

    fn dispatch_one(&mut self, blocked: &[Box<str>]) {
        if !self.is_manual() || !self.ready || !self.endpoints.any_room() {
            return;
        }
        self.tree.hold_classes(blocked);
        self.counters.dequeue_attempts += 1;
        let picked = self.tree.pick();
        if let Some(number) = picked {
            self.counters.dequeue_successes += 1;
            self.grant_waiting(number);
        } else {
            self.tree.miss();
        }
        self.tree.hold_classes(&[]);
        if self.traced
            && let Some(number) = picked
        {
            self.push_trace(number);
        }
    }

    /// Holds the bands to their ceilings under `bound`.
    pub(crate) fn cap(&mut self, bound: u64) {
        let (stock, ceilings) = (self.endpoints.stock(), self.policy.bands.ceilings);
        self.tree
            .cap(|band| ceilings[band as usize].is_some_and(|ceiling| is_over(stock, bound, ceiling)));
    }

    /// How `number`, just granted, came about.
    pub(crate) fn push_trace(&mut self, number: u32) {
        let job = &self.jobs[number];
        let queued = &job.queued;
        let flow_cost = job.running().map_or(queued.cost, |running| running.charge.cost);
        let effect = Effect::Traced {
            id: job.id,
            class: self.tree.classes().get(queued.class).name().into(),
            flow: self.tree.identity_of(queued.flow).name.clone(),
            class_cost: Tokens(queued.class_cost),
            flow_cost: Tokens(flow_cost),
            deficits: self.tree.deficits(queued.flow),
        };
        self.push(effect);
    }

    fn cancel(&mut self, id: RequestId) {
        let Some(number) = self.waiting_number(id) else {
            return;
        };
        let job = self.leave(number);
        self.counters.count(job.band, Outcome::Cancelled);
        self.push(Effect::Cancelled {
            id,
            waited: self.now.since(job.queued.arrival.at),
        });
    }

    fn suspend(&mut self, id: RequestId, suspended: bool) {
        let Some(number) = self.waiting_number(id) else {
            return;
        };
        let queued = &mut self.jobs[number].queued;
        if queued.suspended != suspended {
            queued.suspended = suspended;
            self.tree.suspend(number, queued, &self.endpoints);
        }
    }

    fn endpoint(&mut self, id: EndpointId, state: EndpointState) {
        let changed = self.endpoints.list(self.now, id, state, &mut self.rng);
        self.endpoints_changed(changed);
    }

    pub(crate) fn endpoints_changed(&mut self, changed: Option<Changed>) {
        self.endpoint_changed(changed);
        let rescued = self.endpoints.rescue(&mut self.rng);
        self.endpoint_changed(rescued);
        self.expiry.set_ready(self.now, self.endpoints.any_ready());
    }

    pub(crate) fn endpoint_changed(&mut self, changed: Option<Changed>) {
        if let Some(change) = changed {
            self.tree.endpoint_changed(change.id, &self.endpoints);
        }
    }

    fn drain(&mut self, draining: bool) {
        self.draining = draining;
        if draining {
            let mut waiting: Vec<u32> = self.expiry.members();
            waiting.sort_unstable_by_key(|&number| self.jobs[number].queued.arrival);
            for number in waiting {
                self.refuse_waiting(number, Outcome::ShuttingDown);
            }
        }
    }

    fn expire(&mut self) {
        while let Some((timer, number)) = self.expiry.due(self.now, self.ttls()) {
            self.refuse_waiting(number, outcome_of(timer));
        }
    }

    pub(crate) const fn ttls(&self) -> Ttls {
        Ttls {
            ttl: self.policy.queue.ttl,
            no_endpoint_ttl: self.policy.queue.no_endpoint_ttl,
        }
    }

    fn waiting_number(&self, id: RequestId) -> Option<u32> {
        self.ids
            .get(&id)
            .copied()
            .filter(|&number| self.jobs[number].is_waiting())
    }

    /// `number` waits from now on.
    pub(crate) fn wait(&mut self, number: u32) {
        let job = &self.jobs[number];
        self.tree.enqueue(number, &job.queued, &self.endpoints);
        self.expiry
            .insert(number, job.starts, job.queued.arrival, job.deadline());
    }

    /// `number`, which waits, is gone from everywhere.
    fn leave(&mut self, number: u32) -> Job {
        let job = self.unqueue(number);
        self.tree.release_flow(job.queued.flow);
        self.tree.release_lane(job.queued.lane);
        job
    }

    fn unqueue(&mut self, number: u32) -> Job {
        let job = self.forget(number);
        self.expiry.remove(number, job.queued.arrival, job.deadline());
        self.tree.remove(number, &job.queued, &self.endpoints);
        job
    }

    pub(crate) fn forget(&mut self, number: u32) -> Job {
        let job = self.jobs.remove(number);
        self.ids.remove(&job.id);
        job
    }

    /// Takes `number` out of the queue and tells its client why.
    pub(crate) fn refuse_waiting(&mut self, number: u32, outcome: Outcome) {
        let job = self.leave(number);
        self.refuse(job.id, job.band, job.queued.arrival.at, outcome);
    }

    /// Tells a client that its request doesn't go; nothing of it is kept any more.
    pub(crate) fn refuse(&mut self, id: RequestId, band: Band, arrived: Instant, outcome: Outcome) {
        self.counters.count(band, outcome);
        let ahead = self.tree.waiting_before(band);
        let expected = self.expected_rate();
        let retry_after = Some(self.drain_rate.retry_after(ahead, expected, &mut self.rng));
        self.push(Effect::Reject {
            id,
            outcome,
            waited: self.now.since(arrived),
            retry_after,
        });
    }

    /// Completions per second as models of the servers say, where nothing was measured.
    pub(crate) fn expected_rate(&self) -> Option<f64> {
        if self.drain_rate.is_measured() {
            return None;
        }
        self.endpoints.rate()
    }

    pub(crate) fn push(&mut self, effect: Effect) {
        self.effects.push_back(effect);
    }

    /// Something waits that could go some time, or would have to wait though servers are there.
    pub(crate) fn is_saturated(&self) -> bool {
        let full = self.endpoints.any_ready() && self.endpoints.stock() >= self.endpoints.bounds().upper;
        full || self.tree.any_active()
    }
}

pub(crate) const fn outcome_of(timer: Timer) -> Outcome {
    match timer {
        Timer::Deadline => Outcome::DeadlineExceeded,
        Timer::Ttl => Outcome::ExpiredTtl,
        Timer::NoEndpointTtl => Outcome::NoEndpoints,
    }
}

/// Whether a band may not go with this `stock` under this `bound`. With nothing in stock it always may; else below
/// its part of the bound, and so that a place stays free where there is more than one.
pub(crate) fn is_over(stock: u64, bound: u64, ceiling: Decimal) -> bool {
    let whole = ceiling.billionths() >= Decimal::ONE;
    if stock == 0 || bound == u64::MAX || whole {
        return false;
    }
    let below = u128::from(stock) * Decimal::ONE < ceiling.billionths() * u128::from(bound);
    let leaves_one = bound <= 1 || stock + 1 < bound;
    !(below && leaves_one)
}
