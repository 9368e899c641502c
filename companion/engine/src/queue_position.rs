//! Where a waiting request stands, and what keeps it there: for whoever asks, never for a decision.

use core::time::Duration;

use alloc::boxed::Box;

use crate::cost::Virtual;
use crate::endpoint::Endpoint;
use crate::engine::{Engine, is_over};
use crate::input::{EndpointId, Request, RequestId};
use crate::job::Job;
use crate::policy::Discipline;
use crate::tree::{Arrival, BANDS};

/// Where a waiting request stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Position {
    /// Requests that would go before it if nothing else came or ended otherwise than estimated, and none were
    /// suspended or held. All that is more critical counts, and of its own band what comes before it by the rule of the
    /// flows; classes and models aren't told apart.
    pub ahead: u64,
    /// Of these, those of a more critical band.
    pub more_critical: u64,
    /// Since its first arrival.
    pub waited: Duration,
    /// Until it goes, by the measured drain rate; at least one second.
    pub estimate: Duration,
    /// Its tag in virtual time, were all before it in its flow to go; `None`: the rule of the flows has no tags.
    pub tag: Option<f64>,
}

/// What keeps a waiting request from going now, the nearest cause first.
#[derive(Clone, Debug, PartialEq)]
pub enum BlockReason {
    /// The owner hasn't heard of all that runs yet: nothing goes.
    Starting,
    /// Its owner has lost sight of it.
    Suspended,
    /// No endpoint of the pool is ready.
    NoEndpoint,
    /// None of those that it may go to is ready.
    OwnEndpoints,
    /// Its flow runs as much as it may.
    MaxInFlight {
        /// Requests of its identity that run.
        running: u64,
        /// And may run.
        most: u64,
    },
    /// The endpoints that it may go to take nothing of its class now: they prefill as much as the class lets them.
    ClassThreshold,
    /// Its flow runs as much as it may at each endpoint that would take it.
    MaxInFlightPerEndpoint {
        /// Requests of its identity that may run at one.
        most: u64,
    },
    /// The gate is closed.
    Gate {
        /// What is in stock,
        stock: u64,
        /// which must be below this.
        lower: u64,
    },
    /// The endpoints that it may go to have no room, though the pool has.
    EndpointsFull,
    /// Its band may take only a part of the bound.
    Ceiling {
        /// What is in stock.
        stock: u64,
        /// The bound that it is a part of.
        lower: u64,
    },
    /// As many have gone this second as may.
    MaxRate,
    /// Nothing but those before it.
    Turn,
}

/// Where one stands among those of its band; the least goes first.
type Key = (bool, Virtual, Arrival);

impl Engine {
    /// The name of the policy class that a request is of, were it to come now; empty where the pool has none.
    #[must_use]
    pub fn class_of(&self, request: &Request) -> &str {
        let classes = self.tree.classes();
        if !classes.are_configured() {
            return "";
        }
        let prompt = self.learned.prompt_tokens(&request.model, request.prompt);
        let uncached = prompt - request.cached.0.min(prompt);
        let class = classes.classify(request.class_set, &request.class, uncached);
        classes.get(class).name()
    }

    /// Where `id` stands; `None` if it doesn't wait. Takes time proportional to what waits in its band.
    #[must_use]
    pub fn position(&self, id: RequestId) -> Option<Position> {
        let (number, job) = self.waiting_job(id)?;
        let (key, tag) = self
            .keys(job.queued.flow)
            .find_map(|(key, other)| (other == number).then_some((key, key.1)))?;
        let before = |flow| self.keys(flow).take_while(|(other, _)| *other < key).count() as u64;
        let in_band = self.tree.flow_numbers(job.band).map(before).sum::<u64>();
        let more_critical = BANDS.into_iter().filter(|&band| band < job.band);
        let more_critical = more_critical
            .map(|band| self.tree.waiting(band).requests)
            .sum::<u64>();
        let ahead = in_band + more_critical;
        Some(Position {
            ahead,
            more_critical,
            waited: self.now.since(job.queued.arrival.at),
            estimate: self.drain_rate.wait(ahead, self.expected_rate()),
            tag: match self.policy.flows.discipline {
                Discipline::Fifo | Discipline::Drr => None,
                Discipline::Wfq | Discipline::RoundRobin | Discipline::Usage | Discipline::Vtc => {
                    Some(tag.as_f64())
                }
            },
        })
    }

    /// The requests of `flow` that wait, in its order, with where they stand in their band.
    fn keys(&self, flow: u32) -> impl Iterator<Item = (Key, u32)> {
        let discipline = self.policy.flows.discipline;
        let identity = self.tree.identity_of(flow);
        let last = discipline == Discipline::Usage && identity.is_anonymous();
        let mut end = self.tree.finish(flow);
        let mut latest = Arrival::default();
        self.tree.in_order(flow).into_iter().map(move |number| {
            let queued = &self.jobs[number].queued;
            let start = end;
            let tag = match discipline {
                Discipline::Fifo => {
                    latest = latest.max(queued.arrival);
                    return ((last, Virtual::default(), latest), number);
                }
                Discipline::RoundRobin => {
                    end = end + Virtual::step(1, identity.weight);
                    end
                }
                Discipline::Wfq | Discipline::Drr => {
                    end = end + Virtual::step(queued.cost, identity.weight);
                    end
                }
                // The tally before it goes is its tag.
                Discipline::Usage | Discipline::Vtc => {
                    end = end + Virtual::step(queued.cost, identity.weight);
                    start
                }
            };
            ((last, tag, queued.arrival), number)
        })
    }

    /// What keeps `id` from going now; `None` if it doesn't wait.
    #[must_use]
    pub fn block_reason(&self, id: RequestId) -> Option<BlockReason> {
        let (_, job) = self.waiting_job(id)?;
        Some(self.block_reason_of(job))
    }

    fn block_reason_of(&self, job: &Job) -> BlockReason {
        let queued = &job.queued;
        if queued.suspended {
            return BlockReason::Suspended;
        }
        if !self.ready {
            return BlockReason::Starting;
        }
        if !self.endpoints.any_ready() {
            return BlockReason::NoEndpoint;
        }
        let identity = self.tree.identity_of(queued.flow);
        let flows = &self.policy.flows;
        if let Some(most) = flows.max_in_flight.filter(|&most| identity.in_flight >= most) {
            let running = identity.in_flight;
            return BlockReason::MaxInFlight { running, most };
        }
        let (stock, lower) = (self.endpoints.stock(), self.endpoints.bounds().lower);
        let eligible = self.tree.eligible(queued.lane);
        let own = |it: &&Endpoint| eligible.is_none_or(|ids| ids.contains(&it.id));
        let any = |is: &dyn Fn(&Endpoint) -> bool| self.endpoints.iter().filter(own).any(is);
        if !any(&|it| it.ready) {
            return BlockReason::OwnEndpoints;
        }
        if any(&Endpoint::has_room) && !any(&|it| self.tree.takes(queued, it)) {
            let threshold = self.tree.classes().get(queued.class).threshold;
            return match flows.max_in_flight_per_endpoint {
                Some(most) if any(&|it| it.has_room() && it.is_below(threshold)) => {
                    BlockReason::MaxInFlightPerEndpoint { most }
                }
                Some(_) | None => BlockReason::ClassThreshold,
            };
        }
        if !self.is_below(lower) {
            return BlockReason::Gate { stock, lower };
        }
        if !any(&Endpoint::has_room) {
            return BlockReason::EndpointsFull;
        }
        let ceiling = self.policy.bands.ceilings[job.band as usize];
        if ceiling.is_some_and(|ceiling| is_over(stock, lower, ceiling)) {
            return BlockReason::Ceiling { stock, lower };
        }
        if !self.rate.has(self.now) {
            return BlockReason::MaxRate;
        }
        BlockReason::Turn
    }

    /// The name of the class of a request that waits or runs; empty where the pool has none.
    #[must_use]
    pub fn class(&self, id: RequestId) -> Box<str> {
        let number = self.ids.get(&id);
        let class = number.map(|&number| self.jobs[number].queued.class);
        class
            .map_or("", |class| self.tree.classes().get(class).name())
            .into()
    }

    /// Where a request runs; `None` if it doesn't.
    #[must_use]
    pub fn endpoint_of(&self, id: RequestId) -> Option<EndpointId> {
        let number = *self.ids.get(&id)?;
        let running = self.jobs[number].running()?;
        Some(self.endpoints.id(running.endpoint))
    }

    fn waiting_job(&self, id: RequestId) -> Option<(u32, &Job)> {
        let number = *self.ids.get(&id)?;
        let job = &self.jobs[number];
        job.is_waiting().then_some((number, job))
    }
}
