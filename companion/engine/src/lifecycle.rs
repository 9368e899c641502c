//! What goes: how it is granted, where it runs, what it cost, and how it ends.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::cost::Charge;
use crate::effect::{Effect, Outcome};
use crate::engine::Engine;
use crate::input::{EndpointId, RequestId, Service};
use crate::job::{Running, State};
use crate::load::Load;
use crate::policy::CostUnit;
use crate::token_history::Served;
use crate::tree::Receipts;
use crate::units::Tokens;

impl Engine {
    /// Lets go of `number`, which waits and can.
    pub(crate) fn grant_waiting(&mut self, number: u32) {
        let job = &self.jobs[number];
        let endpoints = self
            .endpoints
            .choose(self.tree.eligible(job.queued.lane), &job.ask(), |endpoint| {
                self.tree.takes(&job.queued, endpoint)
            });
        self.grant_waiting_to(number, endpoints);
    }

    /// The same, to these.
    pub(crate) fn grant_waiting_to(&mut self, number: u32, endpoints: Vec<EndpointId>) {
        let job = &self.jobs[number];
        let queued = job.queued;
        let first = *endpoints
            .first()
            .expect("invariant: a lane is open while an endpoint of it takes one");
        let waited = self.now.since(queued.arrival.at);
        self.expiry.remove(number, queued.arrival, job.deadline());
        let charge = self.charge_for(number);
        let receipts = self
            .tree
            .dispatch(number, &queued, &charge, first, &self.endpoints);
        self.run(number, first, charge, receipts, Outcome::Dispatched);
        let tally = self.jobs[number].tally;
        self.push(Effect::Grant {
            id: self.jobs[number].id,
            endpoints,
            outcome: Outcome::Dispatched,
            waited,
            cost: Tokens(charge.cost),
            prompt: Tokens(tally.prompt),
            cached: Tokens(tally.cached.min(tally.prompt)),
            output: Tokens(tally.output),
        });
        if self.traced && !self.is_manual() {
            self.push_trace(number);
        }
    }

    /// What `number` is charged if it goes now.
    pub(crate) fn charge_for(&self, number: u32) -> Charge {
        let queued = &self.jobs[number].queued;
        Charge {
            cost: queued.cost,
            class_cost: queued.class_cost,
            weight: self.tree.identity_of(queued.flow).weight,
            unit: self.policy.flows.cost,
            model: queued.model,
        }
    }

    /// `number`, charged already, runs at `endpoint` from now on.
    pub(crate) fn run(
        &mut self,
        number: u32,
        endpoint: EndpointId,
        charge: Charge,
        receipts: Receipts,
        outcome: Outcome,
    ) {
        let load = Load::of(&self.jobs[number].tally);
        let (endpoint, changed) = self.endpoints.started(endpoint, load, &mut self.rng);
        self.endpoint_changed(changed);
        let job = &mut self.jobs[number];
        self.endpoints.computes(endpoint, &job.prefix);
        job.state = State::Running(Box::new(Running {
            endpoint,
            load,
            charge,
            receipts,
            outcome,
            settled: None,
        }));
        self.counters.count(job.band, outcome);
    }

    fn running_number(&self, id: RequestId) -> Option<(u32, Running)> {
        let &number = self.ids.get(&id)?;
        Some((number, self.jobs[number].running()?))
    }

    pub(crate) fn sent(&mut self, id: RequestId, endpoint: EndpointId) {
        let Some((number, mut running)) = self.running_number(id) else {
            return;
        };
        let from = self.endpoints.id(running.endpoint);
        if from == endpoint {
            return;
        }
        let (at, changed) = self.endpoints.started(endpoint, running.load, &mut self.rng);
        self.endpoint_changed(changed);
        self.endpoints.computes(at, &self.jobs[number].prefix);
        let changed = self
            .endpoints
            .ended(running.endpoint, running.load, false, &mut self.rng);
        self.endpoint_changed(changed);
        let flow = self.jobs[number].queued.flow;
        self.tree.moved(flow, from, endpoint, &self.endpoints);
        running.endpoint = at;
        self.jobs[number].state = State::Running(Box::new(running));
    }

    pub(crate) fn settle(&mut self, id: RequestId, service: Service) {
        if self.is_manual() {
            self.completed(id, service);
            return;
        }
        let Some((number, running)) = self.running_number(id) else {
            return;
        };
        if running.settled.is_none() {
            self.settle_running(number, running, service);
        }
    }

    /// What `number` cost is known while it runs on: so is what it weighs on its endpoint.
    fn settle_running(&mut self, number: u32, mut running: Running, service: Service) {
        let cost = self.settle_cost(number, &running, service);
        if let Service::Served(usage) = service {
            let load = Load::of(&self.jobs[number].used(usage));
            let changed = self
                .endpoints
                .reloaded(running.endpoint, running.load, load, &mut self.rng);
            self.endpoint_changed(changed);
            running.load = load;
        }
        running.settled = Some(cost);
        self.jobs[number].state = State::Running(Box::new(running));
    }

    /// What `number` cost, 0 if nothing was served: its levels are told, and what can be learned of it is.
    fn settle_cost(&mut self, number: u32, running: &Running, service: Service) -> u64 {
        let job = &self.jobs[number];
        let real = match service {
            Service::Nothing => None,
            Service::Served(usage) => {
                let real = match running.charge.unit {
                    CostUnit::Requests => running.charge.cost,
                    CostUnit::Tokens => job.used(usage).cost(running.charge.unit, self.policy.weights),
                };
                let flow = &*self.tree.identity_of(job.queued.flow).name;
                let served = Served {
                    band: job.band,
                    cost: real,
                    prompt_bytes: job.prompt_bytes,
                    prompt: usage.prompt.map(|tokens| tokens.0),
                    output: usage.output.map(|tokens| tokens.0),
                };
                self.learned.served(flow, &job.model, &served);
                Some(real)
            }
        };
        let queued = job.queued;
        self.tree
            .settle(queued.flow, &running.charge, &running.receipts, real);
        let real = real.unwrap_or(0);
        if self.reports_use && real > 0 && self.tree.has_windows() {
            self.report(number, running.charge.model, real);
        }
        real
    }

    /// Says what `number` used of `model`.
    fn report(&mut self, number: u32, model: u32, cost: u64) {
        let job = &self.jobs[number];
        let Some(model) = self.tree.model_name(model) else {
            return;
        };
        let effect = Effect::UsageSettled {
            band: job.band,
            class: self.tree.classes().get(job.queued.class).name().into(),
            flow: self.tree.identity_of(job.queued.flow).name.clone(),
            model: model.into(),
            cost: Tokens(cost),
        };
        self.push(effect);
    }

    pub(crate) fn completed(&mut self, id: RequestId, service: Service) {
        let Some(&number) = self.ids.get(&id) else {
            return;
        };
        let job = &mut self.jobs[number];
        let State::Running(running) = core::mem::replace(&mut job.state, State::Waiting) else {
            return;
        };
        let (flow, lane, band) = (job.queued.flow, job.queued.lane, job.band);
        let served = matches!(service, Service::Served(_));
        let at = self.endpoints.id(running.endpoint);
        let changed = self
            .endpoints
            .ended(running.endpoint, running.load, served, &mut self.rng);
        self.endpoint_changed(changed);
        if served {
            self.drain_rate.completed();
        }
        let cost = running
            .settled
            .unwrap_or_else(|| self.settle_cost(number, &running, service));
        self.ids.remove(&id);
        self.jobs.discard(number);
        self.tree.ended(flow, at, &self.endpoints);
        self.tree.release_flow(flow);
        self.tree.release_lane(lane);
        self.push(Effect::Settled {
            id,
            band,
            cost: Tokens(cost),
        });
    }

    pub(crate) fn requeue(&mut self, id: RequestId) {
        let Some((number, running)) = self.running_number(id) else {
            return;
        };
        let at = self.endpoints.id(running.endpoint);
        let changed = self
            .endpoints
            .ended(running.endpoint, running.load, false, &mut self.rng);
        self.endpoint_changed(changed);
        let job = &mut self.jobs[number];
        job.state = State::Waiting;
        job.queued.cost = job.tally.cost(self.policy.flows.cost, self.policy.weights);
        let (flow, band) = (job.queued.flow, job.band);
        if running.settled.is_none() {
            self.tree.settle(flow, &running.charge, &running.receipts, None);
        }
        self.counters.take_back(band, running.outcome);
        self.counters.requeues += 1;
        self.wait(number);
        self.tree.ended(flow, at, &self.endpoints);
        if self.draining {
            self.refuse_waiting(number, Outcome::ShuttingDown);
        }
    }
}
