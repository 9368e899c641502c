//! The ways in which a request ends, waiting or running.

use std::time::Duration;

use penstock_engine::input::{Amended, Service};
use penstock_engine::policy::{CostUnit, Discipline};
use penstock_engine::units::Tokens;
use penstock_engine::{Effect, Instant, Outcome, RequestId};

use super::engine_effects::EngineEffects;
use super::{Item, Model, Running, Used};

/// Expiry of a waiting request, in the order in which simultaneous ones fire: time, deadlines first, then age; with
/// the id and the outcome.
type Timer = (Instant, bool, Instant, u64, RequestId, Outcome);

impl Model {
    pub(super) fn complete(
        &mut self,
        id: RequestId,
        service: Service,
        was_saturated: bool,
        effects: &mut EngineEffects,
    ) {
        let Some(item) = self.find(id).cloned() else {
            return;
        };
        let Some(running) = item.running else { return };
        if matches!(service, Service::Served(_) | Service::Cut(_)) {
            self.served_at(running.endpoint);
            if was_saturated {
                self.completions.push(self.saturated);
            }
        }
        self.settle(id, service);
        let cost = self.running_mut(id).and_then(|running| running.settled);
        self.items.retain(|item| item.id != id);
        self.end_slow_starts();
        self.refresh_backlogs();
        self.release(&item);
        effects.expect_next(Effect::Settled {
            id,
            band: item.band.shown(),
            cost: Tokens(cost.expect("a completed request is settled")),
        });
    }

    /// The client of a running request has left, and its endpoint may go on.
    pub(super) fn leave(
        &mut self,
        id: RequestId,
        service: Service,
        was_saturated: bool,
        effects: &mut EngineEffects,
    ) {
        let item = self.find(id).filter(|item| item.running.is_some()).cloned();
        let server = item.as_ref().and_then(Item::endpoint).and_then(|id| self.endpoints.get(&id));
        let counts = server.is_some_and(|server| server.reports || self.policy.release_after.is_some());
        if let Some(item) = item.filter(|_| counts) {
            self.left.push((self.now, item));
        }
        self.complete(id, service, was_saturated, effects);
    }

    /// Settles a running request, at most once.
    pub(super) fn settle(&mut self, id: RequestId, service: Service) {
        let Some(item) = self.find(id).cloned() else {
            return;
        };
        let Some(mut running) = item.running.filter(|running| running.settled.is_none()) else {
            return;
        };
        let settled_cost = match service {
            Service::Nothing => None,
            Service::Served(_) | Service::Cut(_) if running.unit == CostUnit::Requests => Some(1),
            Service::Served(usage) | Service::Cut(usage) => Some(self.cost_of(&item, usage)),
        };
        self.account(&item, &running, settled_cost);
        let real = match service {
            Service::Nothing => None,
            Service::Served(usage) | Service::Cut(usage) => Some(self.cost_of(&item, usage)),
        };
        self.settle_budget(&item, real);
        if let Service::Served(usage) | Service::Cut(usage) = service {
            let tokens = |reported: Option<Tokens>, estimate| reported.map_or(estimate, |tokens| tokens.0);
            let prompt = tokens(usage.prompt, item.prompt);
            running.output = tokens(usage.output, item.output);
            running.tokens = prompt + running.output;
            running.prefill = prompt.saturating_sub(tokens(usage.cached, item.cached));
        }
        running.settled = Some(settled_cost.unwrap_or(0));
        *self.running_mut(id).expect("the request runs") = running;
    }

    fn account(&mut self, item: &Item, running: &Running, settled_cost: Option<u64>) {
        let leaf = self.leaf(item);
        if settled_cost.is_none() {
            self.refund(item, running.taken);
        }
        if self.discipline() != Discipline::Drr {
            let virtual_time = self.virtual_times.get_mut(&leaf).expect("the leaf was charged");
            virtual_time.settle(&item.name, running.cost, running.weight, settled_cost, running.uncontested);
            if matches!(self.discipline(), Discipline::Wfq | Discipline::RoundRobin) {
                self.drop_unused_flows(&leaf);
            }
        }
        for virtual_time in self.vtc_elsewhere(item) {
            virtual_time.settle_elsewhere(&item.name, running.cost, running.weight, settled_cost);
        }
        if let Some(cost) = settled_cost.filter(|_| self.discipline() == Discipline::Usage) {
            let bucket = self.bucket();
            self.used.push(Used { leaf, name: item.name.clone(), model: item.model.clone(), bucket, cost });
        }
    }

    pub(super) fn requeue(&mut self, id: RequestId, effects: &mut EngineEffects) {
        let Some(mut item) = self.find(id).cloned() else {
            return;
        };
        let Some(running) = item.running.take() else {
            return;
        };
        if running.settled.is_none() {
            self.account(&item, &running, None);
            self.settle_budget(&item, None);
        }
        self.items.retain(|item| item.id != id);
        self.refresh_backlogs();
        *self.outcomes.get_mut(&(item.band.shown(), running.outcome)).expect("counted") -= 1;
        self.wait(item);
        if self.draining {
            self.reject_waiting(id, Outcome::ShuttingDown, effects);
        }
    }

    pub(super) fn amend(&mut self, amended: &Amended, effects: &mut EngineEffects) {
        let id = amended.id;
        let Some(item) = self.items.iter_mut().find(|item| item.id == id) else {
            return;
        };
        let eligible = amended.eligible.as_ref();
        item.eligible = eligible.map(|eligible| eligible.iter().copied().collect());
        let waits = item.running.is_none();
        self.refresh_backlogs();
        if waits && !self.fits_anywhere(id) {
            self.reject_waiting(id, Outcome::NoEndpoints, effects);
        }
    }

    fn fits_anywhere(&self, id: RequestId) -> bool {
        let eligible = self.find(id).and_then(|item| item.eligible.as_ref());
        eligible.is_none_or(|eligible| {
            !eligible.is_empty()
                && (self.endpoints.is_empty() || eligible.iter().any(|id| self.endpoints.contains_key(id)))
        })
    }

    pub(super) fn expire(&mut self, effects: &mut EngineEffects) {
        while let Some((due, _, _, _, id, outcome)) = self.timers().into_iter().min() {
            if due > self.now {
                break;
            }
            self.reject_waiting(id, outcome, effects);
        }
    }

    fn timers(&self) -> Vec<Timer> {
        let mut timers = Vec::new();
        for item in self.waiting() {
            let (due, outcome) = self.ttl_end(item);
            timers.push((due, true, item.arrived, item.sequence, item.id, outcome));
            if let Some(due) = item.deadline {
                let outcome = Outcome::DeadlineExceeded;
                timers.push((due, false, item.arrived, item.sequence, item.id, outcome));
            }
        }
        timers
    }

    pub fn timeout(&self) -> Option<Instant> {
        let expires = self.timers().into_iter().map(|timer| timer.0);
        let could_go = self.goes_by_itself() && self.may_dispatch() && self.next().is_some();
        let rate = self.next_rate().filter(|_| could_go || self.waits_for_rate_above());
        let back = self.endpoints.values().filter_map(|server| server.down);
        let release = self.next_release();
        expires.chain(rate).chain(back).chain(release).chain(self.budget_wake()).min()
    }

    pub(super) fn ttl_end(&self, item: &Item) -> (Instant, Outcome) {
        let queue = &self.policy.queue;
        if self.any_ready() {
            (item.arrived.after(queue.ttl), Outcome::ExpiredTtl)
        } else {
            let longest = if queue.no_endpoint_ttl > queue.ttl { queue.no_endpoint_ttl } else { queue.ttl };
            (item.arrived.after(longest), Outcome::NoEndpoints)
        }
    }

    /// Removes a waiting request, which has no charge.
    pub(super) fn remove_waiting(&mut self, id: RequestId) {
        let item = self.item(id).clone();
        self.items.retain(|item| item.id != id);
        self.refresh_backlogs();
        self.release(&item);
    }

    /// Drops the request's flow if no request of it is left.
    pub(super) fn release(&mut self, item: &Item) {
        let leaf = self.leaf(item);
        let mut of_flow = self.items.iter();
        if !of_flow.any(|other| other.name == item.name && self.leaf(other) == leaf) {
            self.drop_unused_flows(&leaf);
        }
    }

    pub(super) fn reject_waiting(&mut self, id: RequestId, outcome: Outcome, effects: &mut EngineEffects) {
        let item = self.item(id).clone();
        self.items.retain(|item| item.id != id);
        self.refresh_backlogs();
        self.reject(&item, outcome, effects);
    }

    /// Rejects a request that isn't in the list.
    pub(super) fn reject(&mut self, item: &Item, outcome: Outcome, effects: &mut EngineEffects) {
        self.count(item.band.shown(), outcome);
        let ahead = self.requests_ahead(item);
        let wait = self
            .predicted_wait(ahead)
            .unwrap_or_else(|| self.measured_wait(ahead))
            .clamp(1_000_000_000, 120_000_000_000);
        let (waited, held) = (self.now.since(item.arrived), self.held_for(&item.name));
        effects.expect_reject(item.id, outcome, waited, Duration::from_nanos(wait), held);
        self.release(item);
    }
}
