//! The engine: what happens, when it happens, and in which order that is decided.
//!
//! Every call does the same: brings time forward, lets what is due by then expire, takes the input in, and lets
//! go whatever may go now. Nothing else causes a decision. Admission is in [`crate::admission`].

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use hashbrown::HashMap;

use crate::cost::Charge;
use crate::counters::Counters;
use crate::drain_rate::DrainRate;
use crate::effect::{Effect, Outcome};
use crate::endpoint::Load;
use crate::endpoints::{Changed, Endpoints};
use crate::expiry::{Expiry, Timer, Ttls};
use crate::input::{Band, EndpointId, EndpointState, Input, RequestId, Service};
use crate::job::{Job, State};
use crate::learned::Learned;
use crate::policy::{CostUnit, Policy};
use crate::rate::Rate;
use crate::rng::Rng;
use crate::slab::Slab;
use crate::time::Instant;
use crate::tree::{BANDS, Tree};
use crate::units::Tokens;

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
    pub(crate) learned: Learned,
    pub(crate) drain_rate: DrainRate,
    pub(crate) counters: Counters,
    pub(crate) rng: Rng,
    traced: bool,
    effects: VecDeque<Effect>,
}

impl Engine {
    /// An engine without endpoints, which dispatches nothing until [`Input::Ready`]. The same policy, seed, times
    /// and inputs give the same effects.
    #[must_use]
    pub fn new(policy: Policy, seed: u64, now: Instant) -> Self {
        Self {
            endpoints: Endpoints::new(policy.gate),
            rate: Rate::new(policy.queue.max_rate, now),
            policy,
            now,
            ready: false,
            draining: false,
            jobs: Slab::default(),
            ids: HashMap::new(),
            arrivals: 0,
            tree: Tree::new(seed),
            expiry: Expiry::new(now),
            learned: Learned::new(),
            drain_rate: DrainRate::new(now),
            counters: Counters::default(),
            rng: Rng::new(seed),
            traced: false,
            effects: VecDeque::new(),
        }
    }

    /// Something happened at `now`. A time before one already told counts as that one, and is counted.
    pub fn handle(&mut self, now: Instant, input: Input) {
        self.advance(now);
        self.expire();
        self.take_in(input);
        self.expire();
        self.dispatch();
        self.drain_rate.advance(self.now, self.is_saturated());
    }

    /// Nothing happened but time. Due whenever [`Self::poll_timeout`] is reached; early or late calls do no harm.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance(now);
        self.expire();
        self.dispatch();
        self.drain_rate.advance(self.now, self.is_saturated());
    }

    /// From now on every grant is followed by [`Effect::Traced`], or isn't.
    pub const fn trace(&mut self, traced: bool) {
        self.traced = traced;
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
        let rate = self
            .rate
            .next(self.now)
            .filter(|_| self.may_dispatch() && self.tree.can_go());
        expires.into_iter().chain(rate).min()
    }

    fn advance(&mut self, now: Instant) {
        if now < self.now {
            self.counters.clock_backwards += 1;
        } else {
            self.now = now;
        }
        self.drain_rate.advance(self.now, self.is_saturated());
    }

    fn take_in(&mut self, input: Input) {
        match input {
            Input::Register(request) => self.register(request),
            Input::Adopt { request, endpoint } => self.adopt(request, endpoint),
            Input::Resume(request) => self.resume(request),
            Input::Cancel(id) => self.cancel(id),
            Input::Sent { id, endpoint } => self.sent(id, endpoint),
            Input::Completed { id, service } => self.completed(id, service),
            Input::Settle { .. } | Input::Dispatch { .. } | Input::Evict(_) => {}
            Input::Requeue(id) => self.requeue(id),
            Input::Endpoint { id, state } => self.endpoint(id, state),
            Input::EndpointRemoved(id) => {
                let changed = self.endpoints.unlist(id, &mut self.rng);
                self.endpoints_changed(changed);
            }
            Input::Policy(policy) => self.repolicy(policy),
            Input::Drain(draining) => self.drain(draining),
            Input::Load { id, running } => {
                let changed = self.endpoints.observe(id, running, &mut self.rng);
                self.room_changed(changed);
            }
            Input::Ready => {
                self.ready = true;
                self.endpoints.begin(self.now);
            }
        }
    }

    /// Lets go what may go, one after another, while the gate is open.
    fn dispatch(&mut self) {
        while self.tree.waiting_in_all().requests > 0 && self.may_dispatch() && self.rate.has(self.now) {
            self.counters.dequeue_attempts += 1;
            let Some(number) = self.tree.pick() else {
                return;
            };
            self.counters.dequeue_successes += 1;
            self.grant_waiting(number);
        }
    }

    /// What waits and may go by its own limits may go by those of the servers, at least. What goes in a second isn't
    /// asked for.
    pub(crate) fn may_dispatch(&self) -> bool {
        let stock = self.endpoints.stock();
        let open = stock < self.endpoints.bounds().lower || stock == 0;
        self.ready && open && self.endpoints.any_room()
    }

    fn grant_waiting(&mut self, number: u32) {
        let job = &self.jobs[number];
        let endpoints = self
            .endpoints
            .choose(self.tree.eligible(job.queued.lane), |_| true);
        let first = *endpoints
            .first()
            .expect("invariant: a lane is open while an endpoint of it has room");
        let waited = self.now.since(job.queued.arrival.at);
        let (queued, deadline) = (job.queued, job.deadline);
        let charge = self.charge_for(number);
        self.expiry.remove(number, queued.arrival, deadline);
        self.rate.take(self.now);
        self.tree.dispatch(number, &queued, &charge);
        self.run(number, first, charge, Outcome::Dispatched);
        let id = self.jobs[number].id;
        let cost = Tokens(charge.cost);
        self.effects.push_back(Effect::Grant {
            id,
            endpoints,
            outcome: Outcome::Dispatched,
            waited,
            cost,
        });
    }

    /// What `number` is charged if it goes now.
    pub(crate) fn charge_for(&self, number: u32) -> Charge {
        let queued = &self.jobs[number].queued;
        let weight = self.tree.flow_of(queued.flow).weight;
        Charge {
            cost: queued.cost,
            class_cost: queued.class_cost,
            weight,
            unit: self.policy.flows.cost,
            model: queued.model,
        }
    }

    /// `number`, charged already, runs at `endpoint` from now on.
    pub(crate) fn run(&mut self, number: u32, endpoint: EndpointId, charge: Charge, outcome: Outcome) {
        let load = Load::of(&self.jobs[number].tally);
        let (endpoint, changed) = self.endpoints.started(endpoint, load, &mut self.rng);
        self.room_changed(changed);
        let job = &mut self.jobs[number];
        job.state = State::Running {
            endpoint,
            load,
            charge,
            outcome,
        };
        self.counters.count(job.band, outcome);
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

    fn sent(&mut self, id: RequestId, endpoint: EndpointId) {
        let Some(&number) = self.ids.get(&id) else {
            return;
        };
        let State::Running {
            endpoint: at,
            load,
            charge,
            outcome,
        } = self.jobs[number].state
        else {
            return;
        };
        if self.endpoints.id(at) != endpoint {
            let (endpoint, changed) = self.endpoints.started(endpoint, load, &mut self.rng);
            self.room_changed(changed);
            let changed = self.endpoints.ended(at, load, false, &mut self.rng);
            self.room_changed(changed);
            self.jobs[number].state = State::Running {
                endpoint,
                load,
                charge,
                outcome,
            };
        }
    }

    fn completed(&mut self, id: RequestId, service: Service) {
        let Some(&number) = self.ids.get(&id) else {
            return;
        };
        let State::Running {
            endpoint,
            load,
            charge,
            ..
        } = self.jobs[number].state
        else {
            return;
        };
        let job = self.forget(number);
        let served = matches!(service, Service::Served(_));
        let changed = self.endpoints.ended(endpoint, load, served, &mut self.rng);
        self.room_changed(changed);
        let cost = match service {
            Service::Nothing => None,
            Service::Served(usage) => {
                self.drain_rate.completed();
                let flow = &*self.tree.flow_of(job.queued.flow).name;
                if let Some(tokens) = usage.prompt {
                    self.learned.prompt_was(&job.model, job.prompt_bytes, tokens.0);
                }
                if let Some(tokens) = usage.output {
                    self.learned.output_was(flow, &job.model, tokens.0);
                }
                let real = match charge.unit {
                    CostUnit::Requests => charge.cost,
                    CostUnit::Tokens => job.used(usage).cost(charge.unit, self.policy.weights),
                };
                self.learned.served(flow, job.band as usize, real);
                Some(real)
            }
        };
        self.tree.settle(job.queued.flow, &charge, cost);
        self.tree.release_flow(job.queued.flow);
        self.tree.release_lane(job.queued.lane);
        self.push(Effect::Settled {
            id,
            band: job.band,
            cost: Tokens(cost.unwrap_or(0)),
        });
    }

    fn requeue(&mut self, id: RequestId) {
        let Some(&number) = self.ids.get(&id) else {
            return;
        };
        let State::Running {
            endpoint,
            load,
            charge,
            outcome,
        } = self.jobs[number].state
        else {
            return;
        };
        let changed = self.endpoints.ended(endpoint, load, false, &mut self.rng);
        self.room_changed(changed);
        let job = &mut self.jobs[number];
        job.state = State::Waiting;
        job.queued.cost = job.tally.cost(self.policy.flows.cost, self.policy.weights);
        self.tree.settle(job.queued.flow, &charge, None);
        self.counters.take_back(job.band, outcome);
        self.counters.requeues += 1;
        self.wait(number);
        if self.draining {
            self.refuse_waiting(number, Outcome::ShuttingDown);
        }
    }

    fn endpoint(&mut self, id: EndpointId, state: EndpointState) {
        let changed = self.endpoints.list(self.now, id, state, &mut self.rng);
        self.endpoints_changed(changed);
    }

    fn endpoints_changed(&mut self, changed: Option<Changed>) {
        self.room_changed(changed);
        self.expiry.set_ready(self.now, self.endpoints.any_ready());
    }

    pub(crate) fn room_changed(&mut self, changed: Option<Changed>) {
        if let Some(change) = changed.filter(|change| change.had_room != change.has_room) {
            self.tree.room_changed(change);
        }
    }

    fn repolicy(&mut self, policy: Box<Policy>) {
        self.policy = *policy;
        self.rate.set(self.policy.queue.max_rate, self.now);
        for change in self.endpoints.regate(self.policy.gate, &mut self.rng) {
            self.room_changed(Some(change));
        }
        for (number, job) in self.jobs.iter_mut().filter(|(_, job)| job.is_waiting()) {
            let cost = job.tally.cost(self.policy.flows.cost, self.policy.weights);
            self.tree.reprice(number, job.queued.flow, job.queued.cost, cost);
            job.queued.cost = cost;
        }
        self.tree.reweigh(&self.policy.flows);
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
        while let Some((at, timer, number)) = self.expiry.next(self.ttls()) {
            if at > self.now {
                return;
            }
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
        self.tree.enqueue(number, &job.queued);
        self.expiry
            .insert(number, job.starts, job.queued.arrival, job.deadline);
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
        self.expiry.remove(number, job.queued.arrival, job.deadline);
        self.tree.remove(number, &job.queued);
        job
    }

    fn forget(&mut self, number: u32) -> Job {
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
        let before = BANDS.into_iter().filter(|&other| other <= band);
        let ahead = before.map(|other| self.tree.waiting(other).requests).sum();
        let retry_after = Some(self.drain_rate.retry_after(ahead, &mut self.rng));
        self.push(Effect::Reject {
            id,
            outcome,
            waited: self.now.since(arrived),
            retry_after,
        });
    }

    pub(crate) fn push(&mut self, effect: Effect) {
        self.effects.push_back(effect);
    }

    /// Something waits, or would have to though servers are there.
    fn is_saturated(&self) -> bool {
        let full = self.endpoints.any_ready() && self.endpoints.stock() >= self.endpoints.bounds().upper;
        full || self.tree.waiting_in_all().requests > 0
    }
}

pub(crate) const fn outcome_of(timer: Timer) -> Outcome {
    match timer {
        Timer::Deadline => Outcome::DeadlineExceeded,
        Timer::Ttl => Outcome::ExpiredTtl,
        Timer::NoEndpointTtl => Outcome::NoEndpoints,
    }
}
