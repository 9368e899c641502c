//! Another policy, or other endpoints under a request: what waits keeps its place as far as there is such a place, and
//! what runs runs on.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::effect::Outcome;
use crate::engine::Engine;
use crate::input::{Amended, Relisted};
use crate::job::State;
use crate::policy::Policy;
use crate::tree::score;

impl Engine {
    pub(crate) fn repolicy(&mut self, policy: Box<Policy>) {
        self.release_held();
        self.policy = *policy;
        self.expiry.invalidate();
        self.rate.set(self.policy.queue.max_rate, self.now);
        self.endpoints.weigh(self.policy.scheduler);
        for change in self.endpoints.regate(self.policy.gate, &mut self.rng) {
            self.endpoint_changed(Some(change));
        }
        let mut numbers: Vec<u32> = self.jobs.iter().map(|(number, _)| number).collect();
        numbers.sort_unstable_by_key(|&number| self.jobs[number].queued.arrival);
        for &number in numbers.iter().filter(|&&number| self.jobs[number].is_waiting()) {
            self.tree.lift(number, &self.jobs[number].queued);
        }
        let mut change = self.tree.begin_change(&self.policy);
        for number in numbers {
            let job = &mut self.jobs[number];
            let from = job.queued.flow;
            self.tree.place(
                &mut job.queued,
                job.band,
                job.class_set,
                &job.class_key,
                &self.endpoints,
                &mut change,
            );
            let order = self.tree.classes().get(job.queued.class).order(self.policy.order);
            job.queued.score = score(order, &job.claim);
            match &mut job.state {
                State::Waiting => {
                    job.queued.cost = job.tally.cost(self.policy.flows.cost, self.policy.weights);
                    self.tree.put_back(number, &job.queued);
                }
                State::Running(running) => {
                    let endpoint = self.endpoints.id(running.endpoint);
                    self.tree.rerun(
                        (from, job.queued.flow),
                        endpoint,
                        &running.charge,
                        &mut running.receipts,
                    );
                }
            }
        }
        self.tree.end_change(change, &self.endpoints);
    }

    pub(crate) fn relist(&mut self, relisted: Relisted) {
        for id in relisted.removed {
            let changed = self.endpoints.unlist(id, &mut self.rng);
            self.endpoint_changed(changed);
        }
        for (id, state) in relisted.listed {
            let changed = self.endpoints.list(self.now, id, state, &mut self.rng);
            self.endpoint_changed(changed);
        }
        self.endpoints_changed(None);
        for amended in relisted.amended {
            self.amend(amended);
        }
    }

    pub(crate) fn amend(&mut self, amended: Amended) {
        let Some(&number) = self.ids.get(&amended.id) else {
            return;
        };
        let fits = self.fits_anywhere(amended.eligible.as_deref());
        let job = &mut self.jobs[number];
        job.class_set = amended.class_set;
        let waits = job.is_waiting();
        let lane = self
            .tree
            .lane(job.queued.class, amended.eligible, &self.endpoints);
        self.tree
            .relane(number, &mut job.queued, lane, waits, &self.endpoints);
        if self.blocked_head == Some(job.queued.arrival.sequence) {
            // Where it may go now it wasn't looked for.
            self.blocked_head = None;
        }
        if waits && !fits {
            self.refuse_waiting(number, Outcome::NoEndpoints);
        }
    }
}
