//! The decision about an arriving request: bypass, wait or reject.

use std::time::Duration;

use penstock_engine::input::{ClassKey, Prompt};
use penstock_engine::policy::{Admit, Overflow};
use penstock_engine::{EndpointId, Outcome, Request};

use super::engine_effects::EngineEffects;
use super::{Item, Leaf, Level, Model};

impl Model {
    pub(super) fn register(&mut self, request: Request, effects: &mut EngineEffects) {
        if self.fits_each() {
            self.dispatch_all(effects);
        }
        let Some(item) = self.arrive(request, effects) else {
            return;
        };
        let Some(item) = self.admit_newcomer(item, effects) else {
            return;
        };
        let bypasses = self.may_bypass(&item);
        let goes_above = !bypasses && self.may_bypass_above(&item);
        if self.is_unmeetable(&item, !bypasses && !goes_above) {
            self.reject(&item, Outcome::RejectedUnmeetable, effects);
            return;
        }
        if bypasses {
            let id = item.id;
            self.items.push(item);
            let cost = self.cost(self.item(id));
            let endpoint = effects.expect_grant(self, id, Outcome::Bypassed, Duration::ZERO, cost);
            self.take_rate_token();
            self.start(id, endpoint, Outcome::Bypassed);
            return;
        }
        if goes_above {
            let id = item.id;
            self.items.push(item);
            let cost = self.cost(self.item(id));
            let endpoint = effects.expect_grant_above(self, id, Outcome::Bypassed, Duration::ZERO, cost);
            self.take_rate_token();
            self.start_above(id, endpoint, Outcome::Bypassed);
            return;
        }
        match self.may_wait(&item, effects) {
            Ok(()) => self.wait(item),
            Err(outcome) => self.reject(&item, outcome, effects),
        }
    }

    /// Adopts a running request, regardless of all limits.
    pub(super) fn adopt(&mut self, request: Request, endpoint: EndpointId) {
        let id = request.id;
        match self.find(id).cloned() {
            Some(item) if item.running.is_some() => return,
            Some(item) => {
                self.recognize(endpoint, &request);
                self.items.retain(|item| item.id != id);
                self.refresh_backlogs();
                self.items.push(Item { suspended: false, ..item });
            }
            None => {
                self.arrivals += 1;
                self.recognize(endpoint, &request);
                let item = self.make(request);
                self.items.push(item);
            }
        }
        self.start(id, endpoint, Outcome::Dispatched);
    }

    /// A filter has admitted a new request by itself. One place at `place` ends with it.
    pub(super) fn admitted_by_credit(
        &mut self,
        request: Request,
        place: Option<EndpointId>,
        endpoint: EndpointId,
    ) {
        let id = request.id;
        if self.find(id).is_some() {
            return;
        }
        self.arrivals += 1;
        self.recognize(endpoint, &request);
        let item = self.make(request);
        self.items.push(item);
        self.start(id, endpoint, Outcome::Leased);
        if let Some(place) = place {
            self.take_back(place, 1);
        }
    }

    pub(super) fn arrive(&mut self, request: Request, effects: &mut EngineEffects) -> Option<Item> {
        if self.find(request.id).is_some() {
            return None;
        }
        self.arrivals += 1;
        let allowed = request.eligible.as_ref().is_none_or(|eligible| {
            !eligible.is_empty()
                && (self.endpoints.is_empty() || eligible.iter().any(|id| self.endpoints.contains_key(id)))
        });
        let outcome = if self.draining {
            Outcome::ShuttingDown
        } else if !allowed {
            Outcome::NoEndpoints
        } else if request.deadline.is_some_and(|deadline| deadline <= self.now) {
            Outcome::DeadlineExceeded
        } else {
            return Some(self.make(request));
        };
        let item = self.make(request);
        self.reject(&item, outcome, effects);
        None
    }

    fn make(&mut self, request: Request) -> Item {
        let Prompt::Tokens(prompt) = request.prompt else { panic!("the model learns nothing") };
        let expected = request.expected_output.expect("the model learns nothing").0;
        self.forget_shadowed(request.id);
        let arrived = request.arrived.min(self.now);
        let uncached = prompt.0.saturating_sub(request.cached.0);
        let class = self.classify(request.class_set, &request.class, uncached);
        let name = if request.flow.is_empty() { "anonymous".into() } else { (*request.flow).into() };
        let item = Item {
            id: request.id,
            band: request.band.into(),
            name,
            model: (*request.model.requested).into(),
            target: (*request.model.target).into(),
            class,
            arrived,
            sequence: self.sequence,
            prompt: prompt.0,
            cached: request.cached.0,
            output: request.sequences.max(1) * request.max_output.map_or(expected, |max| expected.min(max.0)),
            sequences: request.sequences.max(1),
            bytes: request.body_bytes,
            strict: request.strict,
            jump: request.head_start,
            ttft_target: request.ttft_target,
            deadline: request.deadline,
            eligible: request.eligible.map(|eligible| eligible.iter().copied().collect()),
            prefix: request.prefix,
            suspended: false,
            running: None,
        };
        self.sequence += 1;
        self.ensure_flow(self.leaf(&item), &item.name);
        item
    }

    /// Creates the flow if it doesn't exist.
    pub(super) fn ensure_flow(&mut self, leaf: Leaf, name: &str) {
        let band = leaf.0.0;
        let mut of_band = self.nodes.iter().filter(|((tree, _), _)| tree.0 == band);
        if !of_band.any(|(_, other)| **other == *name) {
            self.flows_created += 1;
            let turn = self.preemption_order.entry((band, name.into())).or_default();
            turn.1 = self.flows_created;
        }
        self.nodes.insert((leaf, name.into()));
    }

    /// The position of the request's class in the ring of all class sets.
    fn classify(&self, set: u16, key: &ClassKey, uncached: u64) -> usize {
        let sets = &self.policy.classes;
        if sets.is_empty() {
            return 0;
        }
        let index = if usize::from(set) < sets.len() { usize::from(set) } else { 0 };
        let first: usize = sets[..index].iter().map(|set| set.classes.len()).sum();
        let set = &sets[index];
        let bucket = set
            .buckets
            .iter()
            .filter(|bucket| bucket.min_tokens <= uncached)
            .max_by_key(|bucket| bucket.min_tokens)
            .map(|bucket| &bucket.name);
        let of_family = |family: &str| {
            let with_bucket = |wanted: Option<&Box<str>>| {
                set.classes
                    .iter()
                    .position(|class| *class.family == *family && class.bucket.as_ref() == wanted)
            };
            bucket.and_then(|_| with_bucket(bucket)).or_else(|| with_bucket(None))
        };
        let by_default = || {
            let family = set.default_family.as_ref().unwrap_or(&set.classes[0].family);
            of_family(family).unwrap_or(0)
        };
        let found = match key {
            ClassKey::Named(name) => set.classes.iter().position(|class| class.name == *name),
            ClassKey::Family(family) => of_family(family),
        };
        first + found.unwrap_or_else(by_default)
    }

    fn may_bypass(&self, item: &Item) -> bool {
        let mut waiting = self.active();
        let first = !self.active().any(|other| {
            self.leaf(other) == self.leaf(item) && other.name == item.name && other.eligible == item.eligible
        });
        let others_can =
            waiting.any(|other| self.is_head(other) && self.can_go_below(other, self.bounds().1));
        let over = self.is_over_ceiling(item.band, self.bounds().1);
        let open = self.ready && self.gate_open(self.bounds().1) && self.has_rate();
        let fits = !self.fits_each() || self.fits(item);
        open && first && !others_can && !over && self.can_run(item) && fits && self.goes_by_itself()
    }

    fn may_wait(&mut self, item: &Item, effects: &mut EngineEffects) -> Result<(), Outcome> {
        let queue = self.policy.queue.clone();
        let admitted = queue.admit == Admit::All || item.band == Level::Critical;
        if !queue.enabled || queue.total_capacity == 0 || !admitted {
            return Err(Outcome::RejectedPolicy);
        }
        let (ends, outcome) = self.ttl_end(item);
        if ends <= self.now {
            return Err(outcome);
        }
        let of_identity = self.waiting().filter(|other| other.band == item.band && other.name == item.name);
        let in_flow = of_identity.count() as u64;
        let flow_limit = self.policy.flows.capacities.get(&item.name).copied();
        if in_flow >= flow_limit.unwrap_or(queue.flow_capacity) {
            return Err(Outcome::RejectedFlowCapacity);
        }
        if !self.class_has_room(item) {
            return Err(Outcome::RejectedClassCapacity);
        }
        // What is above the limits already is no concern of a newcomer.
        let bytes = |items: &[&Item]| items.iter().map(|item| item.bytes).sum::<u64>();
        let waiting: Vec<&Item> = self.waiting().collect();
        let requests_max = queue.total_capacity.max(waiting.len() as u64);
        let bytes_max = queue.total_bytes.max(bytes(&waiting));
        let fits = |items: Vec<&Item>| {
            (items.len() as u64) < requests_max && bytes(&items) + item.bytes <= bytes_max
        };
        if fits(self.waiting().collect()) {
            return Ok(());
        }
        let full = if in_flow > 0 { Outcome::RejectedQueueFull } else { Outcome::RejectedTooManyFlows };
        let stays = self.waiting().filter(|other| other.band <= item.band);
        let displaceable = self.waiting().any(|other| other.band > item.band);
        if queue.overflow == Overflow::Reject || !displaceable || !fits(stays.collect()) {
            return Err(full);
        }
        while !fits(self.waiting().collect()) {
            self.displace(effects);
        }
        Ok(())
    }

    /// Displaces the youngest request of the least recently preempted identity in the lowest band.
    fn displace(&mut self, effects: &mut EngineEffects) {
        let band = self.waiting().map(|item| item.band).max();
        let band = band.expect("a less critical request waits");
        let victims = || self.waiting().filter(|item| item.band == band);
        let turn = |item: &&Item| self.preemption_order[&(band, item.name.clone())];
        let name = victims().min_by_key(turn).expect("a request waits").name.clone();
        let youngest =
            victims().filter(|item| item.name == name).max_by_key(|item| (item.arrived, item.sequence));
        let youngest = youngest.expect("a request waits").id;
        self.preemptions += 1;
        self.preemption_order.get_mut(&(band, name)).expect("a request waits").0 = self.preemptions;
        self.reject_waiting(youngest, Outcome::Displaced, effects);
    }

    pub(super) fn wait(&mut self, item: Item) {
        self.items.push(item);
        self.refresh_backlogs();
    }
}
