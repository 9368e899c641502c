//! A request that no server took enters again, as another one of its Envoy: the same request goes on under the new
//! name, in its old place, with the outcome it was let go with.
//!
//! The two names may be of different sessions, which say their Hellos in any order and at any time. So the one that
//! comes second never makes a second request: the new name takes over what the old one has, or the old one is
//! remembered as moved before it is ever heard of.

use penstock_engine::Instant;
use penstock_engine::input::{Input, RequestId, Service};
use penstock_wire as wire;

use crate::answer;
use crate::control::Control;
use crate::decisions::reject;
use crate::event::Observation;
use crate::intake::Arrival;
use crate::register::{Entry, Name, Stage};

impl Control {
    /// A request comes that was `origin` before. `Some`: it comes in like any other, and that name is to be linked to it.
    pub(crate) fn reenter(
        &mut self,
        now: Instant,
        name: Name,
        from: &wire::Register,
        origin: Option<Name>,
        how: Arrival,
    ) -> Option<(Option<Name>, Arrival)> {
        let Some(origin) = origin.filter(|origin| self.is_one_envoy(*origin, name)) else {
            return Some((None, how));
        };
        if self.requests.moved(origin).is_some() {
            // Another has taken its place: this one stands for itself.
            return Some((None, how));
        }
        if let Some(id) = self.requests.find(origin) {
            self.take_over(now, id, name, from, how);
            return None;
        }
        let runs = matches!(how, Arrival::Running { .. });
        if self.requests.has_ended(origin) && !runs {
            // Whoever waited for it has left: the first stream is over, so this one is about to end.
            self.requests.count(name);
            let gone = reject(
                name.sequence,
                answer::gone(),
                penstock_engine::Outcome::Cancelled.as_str(),
                core::time::Duration::ZERO,
                None,
                0,
            );
            self.turn_down(name, gone);
            return None;
        }
        Some((Some(origin), how))
    }

    /// Both are of the same Envoy, as far as that is known.
    fn is_one_envoy(&self, one: Name, other: Name) -> bool {
        let envoy = |name: Name| {
            let context = self.requests.contexts.get(&name.epoch)?;
            Some(context.envoy)
        };
        match (envoy(one), envoy(other)) {
            (Some(one), Some(other)) => one == other,
            (None, _) | (_, None) => true,
        }
    }

    /// The request `id` goes on as `name`.
    fn take_over(&mut self, now: Instant, id: RequestId, name: Name, from: &wire::Register, how: Arrival) {
        let Some(Entry { pool, stage, .. }) = self.requests.get(id) else {
            return;
        };
        let pool = *pool;
        let granted = match stage {
            Stage::Waiting => None,
            Stage::Granted { grant, .. } => Some(grant.endpoints.len()),
        };
        if let (Some(all), Arrival::New) = (granted, &how) {
            self.failed(now, id, all);
        }
        self.requests.rename(id, name);
        match (granted, how) {
            (Some(_), Arrival::New | Arrival::Waiting) => {
                let Some(entry) = self.requests.get_mut(id) else {
                    return;
                };
                entry.stage = Stage::Waiting;
                entry.requeues = from.requeues;
                entry.rewritten |= !from.target_model.is_empty();
                let labels = entry.labels.clone();
                self.observe(Observation::Requeued(labels));
                self.requeue(now, pool, id);
            }
            (None, Arrival::New | Arrival::Waiting) => {
                if let Some(entry) = self.requests.get_mut(id) {
                    entry.requeues = from.requeues;
                    entry.rewritten |= !from.target_model.is_empty();
                }
                self.decide(now, pool, Input::Continue(id));
            }
            (Some(_), Arrival::Running { grant, age }) => {
                let address = grant.endpoints.first().map_or("", String::as_str);
                let Some(endpoint) = self.pools[pool].endpoint(address) else {
                    return self.settle(now, id, Service::Nothing);
                };
                if let Some(entry) = self.requests.get_mut(id) {
                    entry.stage = Stage::adopted(grant, &self.pools[pool].name, now.before(age));
                    entry.requeues = from.requeues;
                    entry.rewritten |= !from.target_model.is_empty();
                }
                self.decide(now, pool, Input::Sent { id, endpoint });
            }
            (None, Arrival::Running { grant, age }) => self.adopt_waiting(now, id, from, grant, age),
        }
    }

    /// `running` is moved, and says what it was before in its turn: that is moved too, to the same request.
    pub(crate) fn link_through(&mut self, now: Instant, running: Name, before: Name) {
        let Some(id) = self.requests.moved(running) else {
            return;
        };
        if before == running || !self.is_one_envoy(before, running) || self.requests.moved(before).is_some() {
            return;
        }
        let double = self.requests.find(before);
        if double == Some(id) {
            return;
        }
        if let Some(double) = double {
            // It was taken for one of its own, before both were heard of.
            let trail = self
                .requests
                .get(double)
                .map(|entry| entry.trail.clone())
                .unwrap_or_default();
            for name in trail {
                self.requests.forget(name);
                self.requests.link(name, id);
            }
            self.drop_double(now, double);
        }
        self.requests.link(before, id);
    }

    /// An entry that stands for a request which another stands for as well.
    fn drop_double(&mut self, now: Instant, id: RequestId) {
        let Some(entry) = self.requests.get(id) else {
            return;
        };
        if entry.waits() {
            let pool = entry.pool;
            self.decide(now, pool, Input::Cancel(id));
        } else {
            self.settle(now, id, Service::Nothing);
        }
    }
}
