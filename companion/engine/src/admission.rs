//! What becomes of a newcomer: it goes at once, waits, or is refused, in the call that brings it.
//!
//! Limits are checked in the order in which their causes are told: first what is the request's own, then what is
//! its flow's, then what is the pool's. One that ran or waited already, elsewhere, is above all limits.

use alloc::vec::Vec;

use crate::cost::{TOKENS_MAX, Tally};
use crate::effect::{Effect, Outcome};
use crate::engine::{Engine, outcome_of};
use crate::input::{Band, EndpointId, Prompt, Request};
use crate::job::{Job, State};
use crate::limits::BODY_BYTES_MAX;
use crate::load::Load;
use crate::policy::{Admit, Overflow};
use crate::time::Instant;
use crate::tree::{Arrival, BANDS, LaneId, OrderKey, Queued, score};
use crate::units::Tokens;

impl Engine {
    pub(crate) fn register(&mut self, request: Request) {
        if self.is_auto() {
            // Who waits and fits goes first; who doesn't has its endpoints set aside.
            self.dispatch();
        }
        let Some(number) = self.arrive(request) else {
            return;
        };
        let endpoints = self.bypass(number);
        if self.is_unmeetable(number, endpoints.is_none()) {
            self.turn_away(number, Outcome::RejectedUnmeetable);
            return;
        }
        if let Some(endpoints) = endpoints {
            self.grant_newcomer(number, endpoints);
            return;
        }
        match self.may_wait(number) {
            Ok(()) => self.wait(number),
            Err(outcome) => self.turn_away(number, outcome),
        }
    }

    pub(crate) fn resume(&mut self, request: Request) {
        if let Some(number) = self.arrive(request) {
            self.wait(number);
        }
    }

    pub(crate) fn adopt(&mut self, request: Request, endpoint: EndpointId) {
        let number = match self.ids.get(&request.id) {
            Some(&number) if self.jobs[number].is_waiting() => {
                let job = &self.jobs[number];
                self.expiry.remove(number, job.queued.arrival, job.deadline());
                self.tree.remove(number, &job.queued, &self.endpoints);
                self.jobs[number].queued.suspended = false;
                number
            }
            Some(_) => return,
            None => {
                self.counters.arrivals += 1;
                self.add(request)
            }
        };
        let charge = self.charge_for(number);
        let flow = self.jobs[number].queued.flow;
        let receipts = self.tree.charge(flow, &charge, endpoint, &self.endpoints);
        self.run(number, endpoint, charge, receipts, Outcome::Dispatched);
    }

    /// Takes a newcomer in, unless it can't be helped whatever the load. It doesn't wait yet.
    fn arrive(&mut self, request: Request) -> Option<u32> {
        if self.ids.contains_key(&request.id) {
            return None;
        }
        self.counters.arrivals += 1;
        let hopeless = if self.draining {
            Some(Outcome::ShuttingDown)
        } else if !self.fits_anywhere(request.eligible.as_deref()) {
            Some(Outcome::NoEndpoints)
        } else if request.deadline.is_some_and(|deadline| deadline <= self.now) {
            Some(Outcome::DeadlineExceeded)
        } else {
            None
        };
        if let Some(outcome) = hopeless {
            self.refuse(request.id, request.band, request.arrived, outcome);
            return None;
        }
        Some(self.add(request))
    }

    /// Whether the pool has an endpoint that the request's own constraints allow. While the pool has none at all
    /// that isn't theirs to answer for.
    pub(crate) fn fits_anywhere(&self, eligible: Option<&[EndpointId]>) -> bool {
        eligible.is_none_or(|eligible| {
            !eligible.is_empty()
                && (!self.endpoints.any_listed() || eligible.iter().any(|&id| self.endpoints.is_listed(id)))
        })
    }

    fn add(&mut self, request: Request) -> u32 {
        let at: Instant = request.arrived.min(self.now);
        let arrival = Arrival {
            at,
            sequence: self.arrivals,
        };
        self.arrivals += 1;
        let prompt = self.learned.prompt_tokens(&request.model, request.prompt);
        let cached = request.cached.0.min(prompt);
        let model = self.tree.model(match &*request.requested_model {
            "" => &request.model,
            asked => asked,
        });
        let class = self
            .tree
            .classify(request.class_set, &request.class, prompt - cached);
        let flow = self
            .tree
            .flow(request.flow, request.band, model, class, &self.policy.flows);
        let expected = request.expected_output.map_or_else(
            || {
                let name = &self.tree.identity_of(flow).name;
                self.learned.output_tokens(name, &request.model)
            },
            |of| of.0,
        );
        let tally = Tally {
            prompt,
            cached: request.cached.0,
            output: expected.min(request.max_output.unwrap_or(Tokens(TOKENS_MAX)).0),
        };
        let claim = OrderKey {
            class_cost: (prompt - cached).max(1),
            arrived: at,
            jump: request.head_start,
            deadline: request.deadline,
            ttft_target: request.ttft_target,
        };
        let order = self.tree.classes().get(class).order(self.policy.order);
        let number = self.jobs.insert(Job {
            id: request.id,
            band: request.band,
            class_set: request.class_set,
            class_key: request.class,
            queued: Queued {
                flow,
                class,
                lane: self.tree.lane(class, request.eligible, &self.endpoints),
                model,
                cost: tally.cost(self.policy.flows.cost, self.policy.weights),
                class_cost: claim.class_cost,
                prompt,
                cached,
                bytes: request.body_bytes.min(BODY_BYTES_MAX),
                suspended: false,
                strict: request.strict,
                score: score(order, &claim),
                arrival,
            },
            claim,
            starts: self.expiry.ready_time(at),
            tally,
            prompt_bytes: match request.prompt {
                Prompt::Bytes(bytes) => bytes,
                Prompt::Tokens(_) => 0,
            },
            model: request.model,
            prefix: request.prefix,
            state: State::Waiting,
        });
        self.ids.insert(request.id, number);
        number
    }

    /// Where `number` goes at once, if it may: there is room for it, and nothing waits that it could overtake.
    fn bypass(&mut self, number: u32) -> Option<Vec<EndpointId>> {
        let queued = self.jobs[number].queued;
        let upper = self.endpoints.bounds().upper;
        let open = self.ready && !self.is_manual() && self.is_below(upper);
        let first = self.tree.is_passable(queued.flow);
        if !open || !first || self.tree.is_at_limit(queued.flow) || !self.rate.has(self.now) {
            return None;
        }
        self.cap(upper);
        if self.tree.is_over(self.jobs[number].band) || self.tree.can_go() {
            return None;
        }
        let endpoints = if self.is_auto() {
            self.choose_fitting(number, false)
        } else {
            let ask = self.jobs[number].ask();
            self.endpoints
                .choose(self.tree.eligible(queued.lane), &ask, |endpoint| {
                    self.tree.takes(&queued, endpoint)
                })
        };
        (!endpoints.is_empty()).then_some(endpoints)
    }

    /// Lets `number` go past the queue, to the first of `endpoints`.
    fn grant_newcomer(&mut self, number: u32, endpoints: Vec<EndpointId>) {
        let queued = self.jobs[number].queued;
        let endpoint = *endpoints
            .first()
            .expect("invariant: who bypasses has somewhere to go");
        self.rate.take(self.now);
        let charge = self.charge_for(number);
        let receipts = self.tree.charge(queued.flow, &charge, endpoint, &self.endpoints);
        self.run(number, endpoint, charge, receipts, Outcome::Bypassed);
        let tally = self.jobs[number].tally;
        self.push(Effect::Grant {
            id: self.jobs[number].id,
            endpoints,
            outcome: Outcome::Bypassed,
            waited: core::time::Duration::ZERO,
            cost: Tokens(charge.cost),
            prompt: Tokens(tally.prompt),
            cached: Tokens(tally.cached.min(tally.prompt)),
            output: Tokens(tally.output),
        });
        if self.traced {
            self.push_trace(number);
        }
    }

    /// Whether `number`, a newcomer, is predicted to miss its deadline and is to be told so: by what would wait before
    /// it if it `waits`, and by its first token once it goes. Of neither nothing may be known: that is no time.
    fn is_unmeetable(&self, number: u32, waits: bool) -> bool {
        if !self.policy.reject_unmeetable {
            return false;
        }
        let job = &self.jobs[number];
        let Some(deadline) = job.deadline() else {
            return false;
        };
        let eligible = self.tree.eligible(job.queued.lane);
        let first = self.endpoints.first_token(eligible, &Load::of(&job.tally));
        let misses = |ahead: u64| {
            let wait = self.drain_rate.prediction(ahead, self.expected_rate());
            let predicted = wait.unwrap_or_default().saturating_add(first.unwrap_or_default());
            self.now.after(predicted) > deadline
        };
        if !waits {
            return misses(0);
        }
        // The second takes a look at every flow, and is never more than the first.
        misses(self.tree.waiting_before(job.band)) && misses(self.tree.before_next(job.queued.flow))
    }

    /// Endpoints of `lane` that are ready; if none is, those that are listed; at least 1.
    fn eligible_count(&self, lane: LaneId) -> u64 {
        let (ready, listed) = match self.tree.eligible(lane) {
            None => (self.endpoints.ready_count(), self.endpoints.listed_count()),
            Some(eligible) => {
                let count = |is: &dyn Fn(EndpointId) -> bool| eligible.iter().filter(|&&id| is(id)).count();
                (
                    count(&|id| self.endpoints.is_ready(id)),
                    count(&|id| self.endpoints.is_listed(id)),
                )
            }
        };
        (if ready > 0 { ready } else { listed }).max(1) as u64
    }

    /// Makes room for `number` if it may have it.
    fn may_wait(&mut self, number: u32) -> Result<(), Outcome> {
        let queue = &self.policy.queue;
        let job = &self.jobs[number];
        let admitted = match queue.admit {
            Admit::All => true,
            Admit::CriticalOnly => job.band == Band::Critical,
        };
        if !queue.enabled || queue.total_capacity == 0 || !admitted {
            return Err(Outcome::RejectedPolicy);
        }
        let (ends, timer) = self.expiry.ends(job.starts, job.queued.arrival.at, self.ttls());
        if ends <= self.now {
            return Err(outcome_of(timer));
        }
        let waiting = self.tree.in_band(job.queued.flow).waiting.requests;
        let capacity = self.tree.identity_of(job.queued.flow).capacity;
        if waiting >= capacity.unwrap_or(queue.flow_capacity) {
            return Err(Outcome::RejectedFlowCapacity);
        }
        let class = self.tree.classes().get(job.queued.class);
        if class.is_limited() && !class.has_room(self.eligible_count(job.queued.lane)) {
            return Err(Outcome::RejectedClassCapacity);
        }
        let full = match waiting {
            0 => Outcome::RejectedTooManyFlows,
            _ => Outcome::RejectedQueueFull,
        };
        self.make_room(job.band, job.queued.bytes)
            .then_some(())
            .ok_or(full)
    }

    /// Displaces what it takes, least critical first; nothing, if all of that together weren't enough.
    fn make_room(&mut self, band: Band, bytes: u64) -> bool {
        let limits = (self.policy.queue.total_capacity, self.policy.queue.total_bytes);
        let fits = |requests: u64, waiting_bytes: u64| {
            requests < limits.0
                && waiting_bytes
                    .checked_add(bytes)
                    .is_some_and(|sum| sum <= limits.1)
        };
        let waiting = self.tree.waiting_in_all();
        if fits(waiting.requests, waiting.bytes) {
            return true;
        }
        let less_critical = || BANDS.into_iter().rev().filter(move |&other| other > band);
        let (requests, freed) = less_critical().fold((0, 0), |(requests, bytes), other| {
            let there = self.tree.waiting(other);
            (requests + there.requests, bytes + there.bytes)
        });
        let enough = requests > 0 && fits(waiting.requests - requests, waiting.bytes - freed);
        if self.policy.queue.overflow == Overflow::Reject || !enough {
            return false;
        }
        loop {
            let waiting = self.tree.waiting_in_all();
            if fits(waiting.requests, waiting.bytes) {
                return true;
            }
            let Some(victim) = less_critical().find_map(|other| self.tree.victim(other)) else {
                return false;
            };
            self.tree.preempted(self.jobs[victim].queued.flow);
            self.refuse_waiting(victim, Outcome::Displaced);
        }
    }

    fn turn_away(&mut self, number: u32, outcome: Outcome) {
        let job = self.jobs.remove(number);
        self.ids.remove(&job.id);
        self.tree.release_flow(job.queued.flow);
        self.tree.release_lane(job.queued.lane);
        self.refuse(job.id, job.band, job.queued.arrival.at, outcome);
    }
}
