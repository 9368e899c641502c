//! How a request ends, waiting or running.

use std::time::Duration;

use penstock_engine::input::{Amended, Band, Service};
use penstock_engine::policy::{CostUnit, Discipline};
use penstock_engine::units::Tokens;
use penstock_engine::{Effect, Instant, Outcome, RequestId};

use super::said::Said;
use super::{Item, Model, Running, Used};

/// When, deadlines first, of the earlier first; and who is told what.
type Timer = (Instant, bool, (i128, Instant), u64, RequestId, Outcome);

impl Model {
    pub(super) fn complete(&mut self, id: RequestId, service: Service, was_saturated: bool, said: &mut Said) {
        let Some(item) = self.find(id).cloned() else {
            return;
        };
        let Some(running) = item.running else { return };
        if matches!(service, Service::Served(_)) {
            self.served_at(running.endpoint);
            if was_saturated {
                self.completions.push(self.saturated);
            }
        }
        self.settle(id, service);
        let cost = self.running_mut(id).and_then(|running| running.settled);
        self.items.retain(|item| item.id != id);
        self.end_slow_starts();
        self.notice();
        self.release(&item);
        said.expect(Effect::Settled {
            id,
            band: item.band,
            cost: Tokens(cost.expect("just settled")),
        });
    }

    /// Once.
    pub(super) fn settle(&mut self, id: RequestId, service: Service) {
        let Some(item) = self.find(id).cloned() else {
            return;
        };
        let Some(mut running) = item.running.filter(|running| running.settled.is_none()) else {
            return;
        };
        let real = match service {
            Service::Nothing => None,
            Service::Served(_) if running.unit == CostUnit::Requests => Some(1),
            Service::Served(usage) => Some(self.cost_of(&item, usage)),
        };
        self.account(&item, &running, real);
        if let Service::Served(usage) = service {
            let tokens = |of: Option<Tokens>, estimate| of.map_or(estimate, |tokens| tokens.0);
            let prompt = tokens(usage.prompt, item.prompt);
            running.output = tokens(usage.output, item.output);
            running.tokens = prompt + running.output;
            running.prefill = prompt.saturating_sub(tokens(usage.cached, item.cached));
        }
        running.settled = Some(real.unwrap_or(0));
        *self.running_mut(id).expect("it runs") = running;
    }

    fn account(&mut self, item: &Item, running: &Running, real: Option<u64>) {
        let leaf = self.leaf(item);
        if real.is_none() {
            self.give_back(item, running.taken);
        }
        if self.discipline() != Discipline::Drr {
            let tags = self.tags.get_mut(&leaf).expect("it was charged there");
            tags.settle(&item.name, running.cost, running.weight, real);
        }
        if let Some(cost) = real.filter(|_| self.discipline() == Discipline::Usage) {
            let bucket = self.bucket();
            self.used.push(Used {
                leaf,
                name: item.name.clone(),
                model: item.model.clone(),
                bucket,
                cost,
            });
        }
    }

    pub(super) fn requeue(&mut self, id: RequestId, said: &mut Said) {
        let Some(mut item) = self.find(id).cloned() else {
            return;
        };
        let Some(running) = item.running.take() else {
            return;
        };
        if running.settled.is_none() {
            self.account(&item, &running, None);
        }
        self.items.retain(|item| item.id != id);
        self.notice();
        *self
            .outcomes
            .get_mut(&(item.band, running.outcome))
            .expect("counted") -= 1;
        self.wait(item);
        if self.draining {
            self.refuse_waiting(id, Outcome::ShuttingDown, said);
        }
    }

    pub(super) fn amend(&mut self, amended: &Amended, said: &mut Said) {
        let id = amended.id;
        let Some(item) = self.items.iter_mut().find(|item| item.id == id) else {
            return;
        };
        let eligible = amended.eligible.as_ref();
        item.eligible = eligible.map(|eligible| eligible.iter().copied().collect());
        let waits = item.running.is_none();
        self.notice();
        if waits && !self.fits_anywhere(id) {
            self.refuse_waiting(id, Outcome::NoEndpoints, said);
        }
    }

    fn fits_anywhere(&self, id: RequestId) -> bool {
        let eligible = self.find(id).and_then(|item| item.eligible.as_ref());
        eligible.is_none_or(|eligible| {
            !eligible.is_empty()
                && (self.endpoints.is_empty() || eligible.iter().any(|id| self.endpoints.contains_key(id)))
        })
    }

    pub(super) fn expire(&mut self, said: &mut Said) {
        while let Some((at, _, _, _, id, outcome)) = self.timers().into_iter().min() {
            if at > self.now {
                break;
            }
            self.refuse_waiting(id, outcome, said);
        }
    }

    fn timers(&self) -> Vec<Timer> {
        let mut timers = Vec::new();
        for item in self.waiting() {
            let (at, outcome) = self.ttl_end(item);
            let order = (item.starts, item.arrived);
            timers.push((at, true, order, item.sequence, item.id, outcome));
            if let Some(at) = item.deadline {
                let outcome = Outcome::DeadlineExceeded;
                timers.push((at, false, (0, item.arrived), item.sequence, item.id, outcome));
            }
        }
        timers
    }

    pub fn timeout(&self) -> Option<Instant> {
        let expires = self.timers().into_iter().map(|timer| timer.0);
        let could_go = self.goes_by_itself() && self.may_dispatch() && self.next().is_some();
        let rate = self.next_rate().filter(|_| could_go);
        let back = self.endpoints.values().filter_map(|server| server.down);
        expires.chain(rate).chain(back).min()
    }

    pub(super) fn ttl_end(&self, item: &Item) -> (Instant, Outcome) {
        let queue = &self.policy.queue;
        match self.out_since {
            Some(since) => (
                item.arrived.max(since).after(queue.no_endpoint_ttl),
                Outcome::NoEndpoints,
            ),
            None => {
                let came = u64::try_from(item.starts + self.outages).expect("no arrival lies before zero");
                (Instant::from_nanos(came).after(queue.ttl), Outcome::ExpiredTtl)
            }
        }
    }

    /// It waits no more, and isn't charged for it.
    pub(super) fn leave(&mut self, id: RequestId) {
        let item = self.item(id).clone();
        self.items.retain(|item| item.id != id);
        self.notice();
        self.release(&item);
    }

    /// Nothing of it is there any more; perhaps nothing of its flow is.
    pub(super) fn release(&mut self, item: &Item) {
        let leaf = self.leaf(item);
        let mut of_flow = self.items.iter();
        if !of_flow.any(|other| other.name == item.name && self.leaf(other) == leaf) {
            self.forget(&leaf);
        }
    }

    pub(super) fn refuse_waiting(&mut self, id: RequestId, outcome: Outcome, said: &mut Said) {
        let item = self.item(id).clone();
        self.leave(id);
        self.refuse(id, item.band, item.arrived, outcome, said);
    }

    pub(super) fn refuse(
        &mut self,
        id: RequestId,
        band: Band,
        arrived: Instant,
        outcome: Outcome,
        said: &mut Said,
    ) {
        self.count(band, outcome);
        let ahead = self.waiting().filter(|item| item.band <= band).count() as u64;
        let wait = self
            .predicted_wait(ahead)
            .unwrap_or_else(|| self.measured_wait(ahead))
            .clamp(1_000_000_000, 120_000_000_000);
        said.refused(id, outcome, self.now.since(arrived), Duration::from_nanos(wait));
    }
}
