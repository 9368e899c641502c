//! Where a waiting request is in the queue, and what blocks it.

use alloc::boxed::Box;

use super::Engine;
use crate::arrival::Arrival;
use crate::band::TreeBand;
use crate::cost::VirtualTime;
use crate::endpoint::Endpoint;
use crate::gate::is_over_ceiling;
use crate::ids::{FlowId, JobId};
use crate::input::{EndpointId, RequestId};
use crate::job::Job;
use crate::policy::Discipline;
use crate::queue_position::{BlockReason, Position};
use crate::tree::Ahead;

/// The place of a request among those that it takes turns with; the least is dispatched first.
type Key = (bool, VirtualTime, Arrival);

impl Engine {
    /// The position of `id`; `None` if it doesn't wait. Takes time proportional to the flows and to the requests that take
    /// turns with it.
    #[must_use]
    pub fn position(&self, id: RequestId) -> Option<Position> {
        let id = self.waiting_job(id)?;
        let job = &self.jobs[id];
        let (key, tag) =
            self.keys(job.queued.flow).find_map(|(key, other)| (other == id).then_some((key, key.1)))?;
        let beside = self.tree.flows_beside(job.queued.flow);
        let before = beside.flat_map(|flow| self.keys(flow).take_while(|(other, _)| *other < key));
        let (requests, cost) = before
            .fold((0, 0), |(requests, cost), (_, other)| (requests + 1, cost + self.jobs[other].queued.cost));
        let Ahead { requests: ahead, in_other_bands } = self.tree.before_after(&job.queued, requests, cost);
        Some(Position {
            ahead,
            in_other_bands,
            waited: self.now.since(job.queued.arrival.at),
            estimate: self.drain_rate.wait(ahead, self.expected_rate()).max(self.held_for(job.queued.flow)),
            tag: match self.policy.flows.discipline {
                Discipline::Fifo | Discipline::Drr => None,
                Discipline::Wfq | Discipline::RoundRobin | Discipline::Usage | Discipline::Vtc => {
                    Some(tag.as_f64())
                }
            },
        })
    }

    /// The waiting requests of `flow` in their order, with their places.
    fn keys(&self, flow: FlowId) -> impl Iterator<Item = (Key, JobId)> {
        let discipline = self.policy.flows.discipline;
        let identity = self.tree.identity_of(flow);
        let last = discipline == Discipline::Usage && identity.is_anonymous();
        let mut end = self.tree.finish(flow);
        let mut latest = Arrival::default();
        self.tree.in_order(flow).into_iter().map(move |id| {
            let queued = &self.jobs[id].queued;
            let start = end;
            let tag = match discipline {
                Discipline::Fifo => {
                    latest = latest.max(queued.arrival);
                    return ((last, VirtualTime::default(), latest), id);
                }
                Discipline::RoundRobin => {
                    end = end + VirtualTime::step(1, identity.weight);
                    end
                }
                Discipline::Wfq | Discipline::Drr => {
                    end = end + VirtualTime::step(queued.cost, identity.weight);
                    end
                }
                // The tag is the counter before the request is charged.
                Discipline::Usage | Discipline::Vtc => {
                    end = end + VirtualTime::step(queued.cost, identity.weight);
                    start
                }
            };
            ((last, tag, queued.arrival), id)
        })
    }

    /// What keeps `id` from being dispatched now; `None` if it doesn't wait.
    #[must_use]
    pub fn block_reason(&self, id: RequestId) -> Option<BlockReason> {
        let id = self.waiting_job(id)?;
        let job = &self.jobs[id];
        let reason = self.pool_reason(job).or_else(|| self.endpoint_reason(job));
        Some(reason.unwrap_or_else(|| self.gate_reason(job)))
    }

    /// A reason that doesn't depend on single endpoints.
    fn pool_reason(&self, job: &Job) -> Option<BlockReason> {
        if job.session_lost {
            return Some(BlockReason::Suspended);
        }
        if !self.ready {
            return Some(BlockReason::Starting);
        }
        if !self.endpoints.any_ready() {
            return Some(BlockReason::NoEndpoint);
        }
        let identity = self.tree.identity_of(job.queued.flow);
        if identity.held {
            let wake = self.budgets.read().and_then(|(table, _)| table.wake_of(&identity.name));
            let left = wake.map(|wake| wake.since(self.now));
            return Some(BlockReason::Held { left });
        }
        let running = identity.in_flight;
        let limit = self.policy.flows.max_in_flight;
        let most = limit.filter(|&most| running >= most)?;
        Some(BlockReason::MaxInFlight { running, most })
    }

    /// A reason among the request's eligible endpoints, other than that they have no room.
    fn endpoint_reason(&self, job: &Job) -> Option<BlockReason> {
        let queued = &job.queued;
        if !self.any_eligible(job, |endpoint| endpoint.ready) {
            return Some(BlockReason::OwnEndpoints);
        }
        if let Some(until) = job.retry.as_ref().and_then(|retry| retry.until())
            && !self.any_eligible(job, |endpoint| endpoint.ready && !job.avoided().contains(&endpoint.id))
        {
            let left = until.since(self.now);
            return Some(BlockReason::Pause { left });
        }
        let allowed = self.any_eligible(job, |endpoint| self.tree.allows(queued, endpoint));
        if allowed || !self.any_eligible(job, Endpoint::has_room) {
            return None;
        }
        let threshold = self.tree.classes().get(queued.class).threshold;
        let below = |endpoint: &Endpoint| endpoint.has_room() && !endpoint.is_above(threshold);
        match self.policy.flows.max_in_flight_per_endpoint {
            Some(most) if self.any_eligible(job, below) => Some(BlockReason::MaxInFlightPerEndpoint { most }),
            Some(_) | None => Some(BlockReason::ClassThreshold),
        }
    }

    fn gate_reason(&self, job: &Job) -> BlockReason {
        let (stock, lower) = (self.endpoints.filled(), self.endpoints.bounds().lower);
        if !self.is_below(lower) {
            return BlockReason::Gate { stock, lower };
        }
        if !self.any_eligible(job, Endpoint::has_room) {
            return BlockReason::EndpointsFull;
        }
        let sequences = job.estimate.sequences;
        if !self.any_eligible(job, |endpoint| endpoint.has_room() && endpoint.takes(sequences)) {
            return BlockReason::Sequences { count: sequences };
        }
        let ceiling = self.policy.bands.ceilings[job.band.shown() as usize];
        if ceiling.is_some_and(|ceiling| is_over_ceiling(stock, lower, ceiling)) {
            return BlockReason::Ceiling { stock, lower };
        }
        if !self.rate_limiter.has_token(self.now) {
            return BlockReason::MaxRate;
        }
        BlockReason::Turn
    }

    fn any_eligible(&self, job: &Job, is: impl Fn(&Endpoint) -> bool) -> bool {
        let eligible = self.tree.eligible_endpoints(job.queued.eligibility);
        self.endpoints.iter().filter(|endpoint| eligible.is_none_or(|ids| ids.contains(&endpoint.id))).any(is)
    }

    /// The name of the class of a request that waits or runs; empty where no classes are configured.
    #[must_use]
    pub fn class(&self, id: RequestId) -> Box<str> {
        let job = self.jobs.find(id);
        let class = job.map(|job| self.jobs[job].queued.class);
        class.map_or("", |class| self.tree.classes().get(class).name()).into()
    }

    /// The fairness identity to which a request is charged, and whether its budget has demoted the request; `None` if it neither waits nor
    /// runs.
    #[must_use]
    pub fn charged_flow(&self, id: RequestId) -> Option<(&str, bool)> {
        let job = &self.jobs[self.jobs.find(id)?];
        let identity = self.tree.identity_of(job.queued.flow);
        Some((&identity.name, job.band == TreeBand::Demoted))
    }

    /// The endpoint where a request runs; `None` if it doesn't run.
    #[must_use]
    pub fn endpoint_of(&self, id: RequestId) -> Option<EndpointId> {
        let running = self.jobs.running(self.jobs.find(id)?)?;
        Some(self.endpoints.id(running.endpoint))
    }
}
