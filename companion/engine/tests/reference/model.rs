//! The engine's rules once more, slow and obvious: one list of requests, and everything else counted from it.
//!
//! It leaves to the engine what is left to chance: which of the least loaded endpoints, and how much jitter. It
//! reads those from the effect in question, having checked that they are allowed.

#![expect(unreachable_pub, reason = "a module of one test")]

mod looking;
mod said;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use penstock_engine::input::{Band, EndpointState, Prompt, Service};
use penstock_engine::policy::{Admit, CostUnit, Overflow};
use penstock_engine::{Effect, EndpointId, Input, Instant, Outcome, Policy, Request, RequestId};

pub use said::Said;

/// Virtual time, in units that all weights of the tests divide.
const ONE: i128 = 720_720 * 1_024;
const BANDS: [Band; 3] = [Band::Critical, Band::Default, Band::Sheddable];

type FlowKey = (Band, Box<str>);
/// When, deadlines first, of the earlier first; and who is told what.
type Timer = (Instant, bool, (i128, Instant), u64, RequestId, Outcome);

#[derive(Clone, Debug)]
pub struct Item {
    pub id: RequestId,
    pub flow: FlowKey,
    pub arrived: Instant,
    pub sequence: u64,
    starts: i128,
    prompt: u64,
    cached: u64,
    output: u64,
    bytes: u64,
    deadline: Option<Instant>,
    eligible: Option<BTreeSet<EndpointId>>,
    pub running: Option<Running>,
}

#[derive(Clone, Copy, Debug)]
pub struct Running {
    endpoint: EndpointId,
    cost: u64,
    weight: f64,
    unit: CostUnit,
    outcome: Outcome,
}

#[derive(Clone, Debug)]
struct Flow {
    finish: i128,
    turn: (u64, u64),
}

/// A listed endpoint.
#[derive(Clone, Copy, Debug)]
struct Server {
    state: EndpointState,
    /// It starts slowly when it is ready again.
    slowly: bool,
    /// Requests at a time, and served since it was so many.
    ramp: Option<(u64, u64)>,
    foreign: u64,
}

pub struct Model {
    pub policy: Policy,
    pub now: Instant,
    ready: bool,
    draining: bool,
    pub items: Vec<Item>,
    flows: BTreeMap<FlowKey, Flow>,
    virtual_now: [i128; 3],
    endpoints: BTreeMap<EndpointId, Server>,
    first_listed: Option<Instant>,
    ready_since: Option<Instant>,
    outages: i128,
    out_since: Option<Instant>,
    sequence: u64,
    born: u64,
    preemptions: u64,
    pub arrivals: u64,
    pub outcomes: BTreeMap<(Band, Outcome), u64>,
    saturated: u64,
    completions: Vec<u64>,
    /// The flow of the newcomer whose fate is being decided.
    deciding: Option<FlowKey>,
}

fn step(cost: u64, weight: f64) -> i128 {
    // The tests' weights are quarters.
    i128::from(cost) * ONE * 4 / (weight * 4.0) as i128
}

impl Model {
    pub fn new(policy: Policy, now: Instant) -> Self {
        Self {
            policy,
            now,
            ready: false,
            draining: false,
            items: Vec::new(),
            flows: BTreeMap::new(),
            virtual_now: [0; 3],
            endpoints: BTreeMap::new(),
            first_listed: None,
            ready_since: None,
            outages: 0,
            out_since: Some(now),
            sequence: 0,
            born: 0,
            preemptions: 0,
            arrivals: 0,
            outcomes: BTreeMap::new(),
            saturated: 0,
            completions: Vec::new(),
            deciding: None,
        }
    }

    pub fn step(&mut self, now: Instant, input: Option<Input>, said: &mut Said) {
        let now = now.max(self.now);
        if self.is_saturated() {
            self.saturated += now.as_nanos() - self.now.as_nanos();
        }
        let was_saturated = self.is_saturated();
        self.now = now;
        self.expire(said);
        if let Some(input) = input {
            self.take(input, was_saturated, said);
            self.expire(said);
        }
        while self.ready && self.gate_open(self.bounds().0) {
            let Some(id) = self.next() else { break };
            self.dispatch(id, said);
        }
    }

    fn take(&mut self, input: Input, was_saturated: bool, said: &mut Said) {
        match input {
            Input::Register(request) => {
                let (flow, bytes) = (key_of(&request), request.body_bytes);
                if let Some(id) = self.arrive(request, said)
                    && !self.bypass(id, said)
                {
                    // It isn't in the list while its fate is decided.
                    let item = self.items.pop().expect("just pushed");
                    self.deciding = Some(flow.clone());
                    let answer = self.may_wait(&item, &flow, bytes, said);
                    self.deciding = None;
                    match answer {
                        Ok(()) => self.wait(item),
                        Err(outcome) => {
                            self.refuse(item.id, flow.0, item.arrived, outcome, said);
                            self.forget_flows();
                        }
                    }
                }
            }
            Input::Resume(request) => {
                if self.arrive(request, said).is_some() {
                    let item = self.items.pop().expect("just pushed");
                    self.wait(item);
                }
            }
            Input::Adopt { request, endpoint } => {
                let id = request.id;
                match self.find(id) {
                    Some(item) if item.running.is_some() => return,
                    Some(_) => {}
                    None => {
                        self.arrivals += 1;
                        self.add(request);
                    }
                }
                let backlogged = self
                    .waiting_in(&self.item(id).flow.clone())
                    .iter()
                    .any(|item| item.id != id);
                self.start(id, endpoint, Outcome::Dispatched, backlogged);
            }
            Input::Cancel(id) => {
                if let Some(item) = self.find(id).filter(|item| item.running.is_none()).cloned() {
                    self.items.retain(|item| item.id != id);
                    self.forget_flows();
                    self.count(item.flow.0, Outcome::Cancelled);
                    said.expect(Effect::Cancelled {
                        id,
                        waited: self.now.since(item.arrived),
                    });
                }
            }
            Input::Sent { id, endpoint } => {
                if let Some(running) = self.running_mut(id) {
                    running.endpoint = endpoint;
                }
            }
            Input::Completed { id, service } => self.complete(id, service, was_saturated, said),
            Input::Settle { .. } | Input::Evict(_) | Input::Dispatch { .. } => {}
            Input::Requeue(id) => self.requeue(id, said),
            Input::Endpoint { id, state } => {
                self.list(id, state);
                self.note_outage();
            }
            Input::EndpointRemoved(id) => {
                self.endpoints.remove(&id);
                self.note_outage();
            }
            Input::Load { id, running } => {
                let stock = self.stock_of(id);
                if let Some(server) = self.endpoints.get_mut(&id) {
                    server.foreign = running.unwrap_or(0).saturating_sub(stock);
                }
            }
            Input::Policy(policy) => {
                self.policy = *policy;
                self.end_slow_starts();
            }
            Input::Drain(draining) => {
                self.draining = draining;
                let mut waiting: Vec<Item> = self.waiting().cloned().collect();
                waiting.sort_by_key(|item| (item.arrived, item.sequence));
                for item in waiting.into_iter().filter(|_| draining) {
                    self.refuse_waiting(item.id, Outcome::ShuttingDown, said);
                }
            }
            Input::Ready => {
                self.ready = true;
                self.ready_since.get_or_insert(self.now);
            }
        }
    }

    fn list(&mut self, id: EndpointId, state: EndpointState) {
        let first = *self.first_listed.get_or_insert(self.now);
        let second = Duration::from_secs(1);
        let starting = self
            .ready_since
            .is_none_or(|since| self.now <= first.max(since).after(second));
        let before = self.endpoints.get(&id).copied();
        let mut server = before.unwrap_or(Server {
            state,
            slowly: !starting,
            ramp: None,
            foreign: 0,
        });
        let was_ready = before.is_some_and(|server| server.state.ready);
        server.state = state;
        if !state.ready {
            server.ramp = None;
        } else if !was_ready {
            server.ramp = (server.slowly && !starting).then_some((1, 0));
            server.slowly = true;
        }
        self.endpoints.insert(id, server);
        self.end_slow_starts();
    }

    // Arrival.

    fn arrive(&mut self, request: Request, said: &mut Said) -> Option<RequestId> {
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
            return Some(self.add(request));
        };
        self.refuse(request.id, request.band, request.arrived, outcome, said);
        None
    }

    fn add(&mut self, request: Request) -> RequestId {
        let Prompt::Tokens(prompt) = request.prompt else {
            panic!("the model learns nothing")
        };
        let expected = request.expected_output.expect("the model learns nothing").0;
        let arrived = request.arrived.min(self.now);
        let flow = key_of(&request);
        if !self.flows.contains_key(&flow) {
            self.born += 1;
            self.flows.insert(
                flow.clone(),
                Flow {
                    finish: 0,
                    turn: (0, self.born),
                },
            );
        }
        let running = self.out_since.map_or(arrived, |since| arrived.min(since));
        self.items.push(Item {
            id: request.id,
            flow,
            arrived,
            sequence: self.sequence,
            starts: i128::from(running.as_nanos()) - self.outages,
            prompt: prompt.0,
            cached: request.cached.0,
            output: request.max_output.map_or(expected, |max| expected.min(max.0)),
            bytes: request.body_bytes,
            deadline: request.deadline,
            eligible: request
                .eligible
                .map(|eligible| eligible.iter().copied().collect()),
            running: None,
        });
        self.sequence += 1;
        request.id
    }

    fn bypass(&mut self, id: RequestId, said: &mut Said) -> bool {
        let flow = self.item(id).flow.clone();
        let others_can = self
            .waiting()
            .any(|item| item.id != id && self.is_head(item) && self.has_room(item));
        let first = self.waiting_in(&flow).len() == 1;
        let open = self.ready && self.gate_open(self.bounds().1);
        if !open || !first || others_can || !self.has_room(self.item(id)) {
            return false;
        }
        let cost = self.cost(self.item(id));
        let endpoint = said.granted(self, id, Outcome::Bypassed, Duration::ZERO, cost);
        self.start(id, endpoint, Outcome::Bypassed, false);
        true
    }

    fn may_wait(&mut self, item: &Item, flow: &FlowKey, bytes: u64, said: &mut Said) -> Result<(), Outcome> {
        let queue = self.policy.queue.clone();
        let admitted = queue.admit == Admit::All || flow.0 == Band::Critical;
        if !queue.enabled || queue.total_capacity == 0 || !admitted {
            return Err(Outcome::RejectedPolicy);
        }
        let (ends, outcome) = self.ttl_end(item);
        if ends <= self.now {
            return Err(outcome);
        }
        let in_flow = self.waiting_in(flow).len() as u64;
        if in_flow
            >= self
                .policy
                .flows
                .capacities
                .get(&flow.1)
                .copied()
                .unwrap_or(queue.flow_capacity)
        {
            return Err(Outcome::RejectedFlowCapacity);
        }
        let fits = |items: Vec<&Item>| {
            let sum: u64 = items.iter().map(|item| item.bytes).sum();
            (items.len() as u64) < queue.total_capacity && sum + bytes <= queue.total_bytes
        };
        if fits(self.waiting().collect()) {
            return Ok(());
        }
        let full = if in_flow > 0 {
            Outcome::RejectedQueueFull
        } else {
            Outcome::RejectedTooManyFlows
        };
        let stays = self.waiting().filter(|item| item.flow.0 <= flow.0);
        let displaceable = self.waiting().any(|item| item.flow.0 > flow.0);
        if queue.overflow == Overflow::Reject || !displaceable || !fits(stays.collect()) {
            return Err(full);
        }
        while !fits(self.waiting().collect()) {
            let band = self
                .waiting()
                .map(|item| item.flow.0)
                .max()
                .expect("something less critical waits");
            let victims = self.waiting().filter(|item| item.flow.0 == band);
            let flow = victims
                .map(|item| &item.flow)
                .min_by_key(|flow| self.flows[*flow].turn);
            let flow = flow.expect("something less critical waits").clone();
            let victim = self.waiting_in(&flow).last().expect("it waits").id;
            self.preemptions += 1;
            self.flows.get_mut(&flow).expect("it waits").turn.0 = self.preemptions;
            self.refuse_waiting(victim, Outcome::Displaced, said);
        }
        Ok(())
    }

    fn wait(&mut self, item: Item) {
        let band = item.flow.0 as usize;
        if self.waiting_in(&item.flow).is_empty() {
            let flow = self.flows.get_mut(&item.flow).expect("made on arrival");
            flow.finish = flow.finish.max(self.virtual_now[band]);
        }
        self.items.push(item);
    }

    // Going.

    /// The request that goes next: of the first band that can, the least tag, ties by arrival.
    fn next(&self) -> Option<RequestId> {
        let able = self
            .waiting()
            .filter(|item| self.is_head(item) && self.has_room(item));
        let key = |item: &&Item| (item.flow.0, self.tag(item), item.arrived, item.sequence);
        able.min_by_key(key).map(|item| item.id)
    }

    fn dispatch(&mut self, id: RequestId, said: &mut Said) {
        let item = self.item(id);
        let (waited, cost) = (self.now.since(item.arrived), self.cost(item));
        let endpoint = said.granted(self, id, Outcome::Dispatched, waited, cost);
        self.start(id, endpoint, Outcome::Dispatched, true);
    }

    /// Charges and runs. What is `backlogged` has its finish already.
    fn start(&mut self, id: RequestId, endpoint: EndpointId, outcome: Outcome, backlogged: bool) {
        let item = self.item(id).clone();
        let cost = self.cost(&item);
        let weight = self.policy.flows.weight_of(&item.flow.1);
        let band = item.flow.0 as usize;
        let before = self.virtual_now[band];
        // One that ran elsewhere already stops waiting before it is charged.
        let adopted = outcome == Outcome::Dispatched && (!backlogged || !self.is_head(&item));
        let running = Some(Running {
            endpoint,
            cost,
            weight,
            unit: self.policy.flows.cost,
            outcome,
        });
        if adopted {
            self.item_mut(id).running = running;
        }
        let flow = self.flows.get_mut(&item.flow).expect("made on arrival");
        if !backlogged {
            flow.finish = flow.finish.max(before);
        }
        flow.finish += step(cost, weight);
        self.virtual_now[band] = before.max(flow.finish);
        self.hold_back_the_closed(item.flow.0, before);
        self.item_mut(id).running = running;
        self.count(item.flow.0, outcome);
        self.forget_flows();
    }

    /// Of those who wait for the same endpoints, none of which has room, the first gains nothing while V runs on, and
    /// the others keep their distance to it.
    fn hold_back_the_closed(&mut self, band: Band, before: i128) {
        let now = self.virtual_now[band as usize];
        let heads: Vec<Item> = self
            .waiting()
            .filter(|item| item.flow.0 == band && item.eligible.is_some())
            .filter(|item| self.is_head(item) && !self.has_room(item))
            .cloned()
            .collect();
        for lane in heads
            .iter()
            .map(|item| item.eligible.clone())
            .collect::<BTreeSet<_>>()
        {
            let of_lane = || heads.iter().filter(|item| item.eligible == lane);
            let first = of_lane().map(|item| self.tag(item)).min().expect("not empty");
            let shift = (now - first).min(now - before).max(0);
            for item in of_lane() {
                self.flows.get_mut(&item.flow).expect("it waits").finish += shift;
            }
        }
    }

    // Ending.

    fn complete(&mut self, id: RequestId, service: Service, was_saturated: bool, said: &mut Said) {
        let Some(item) = self.find(id).cloned() else {
            return;
        };
        let Some(running) = item.running else { return };
        self.items.retain(|item| item.id != id);
        let real = match service {
            Service::Nothing => None,
            Service::Served(usage) => {
                self.served_at(running.endpoint);
                if was_saturated {
                    self.completions.push(self.saturated);
                }
                Some(if running.unit == CostUnit::Requests {
                    1
                } else {
                    self.cost_of(&item, usage)
                })
            }
        };
        let flow = self.flows.get_mut(&item.flow).expect("it ran");
        flow.finish += real.map_or(0, |real| step(real, running.weight)) - step(running.cost, running.weight);
        self.forget_flows();
        let cost = penstock_engine::units::Tokens(real.unwrap_or(0));
        said.expect(Effect::Settled {
            id,
            band: item.flow.0,
            cost,
        });
    }

    fn requeue(&mut self, id: RequestId, said: &mut Said) {
        let Some(mut item) = self.find(id).cloned() else {
            return;
        };
        let Some(running) = item.running.take() else {
            return;
        };
        self.items.retain(|item| item.id != id);
        let flow = self.flows.get_mut(&item.flow).expect("it ran");
        flow.finish -= step(running.cost, running.weight);
        *self
            .outcomes
            .get_mut(&(item.flow.0, running.outcome))
            .expect("counted") -= 1;
        self.wait(item);
        if self.draining {
            self.refuse_waiting(id, Outcome::ShuttingDown, said);
        }
    }

    fn expire(&mut self, said: &mut Said) {
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
            timers.push((
                at,
                true,
                (item.starts, item.arrived),
                item.sequence,
                item.id,
                outcome,
            ));
            if let Some(at) = item.deadline {
                let outcome = Outcome::DeadlineExceeded;
                timers.push((at, false, (0, item.arrived), item.sequence, item.id, outcome));
            }
        }
        timers
    }

    pub fn timeout(&self) -> Option<Instant> {
        self.timers().into_iter().map(|timer| timer.0).min()
    }

    fn ttl_end(&self, item: &Item) -> (Instant, Outcome) {
        match self.out_since {
            Some(since) => (
                item.arrived.max(since).after(self.policy.queue.no_endpoint_ttl),
                Outcome::NoEndpoints,
            ),
            None => {
                let came = u64::try_from(item.starts + self.outages).expect("no arrival lies before zero");
                (
                    Instant::from_nanos(came).after(self.policy.queue.ttl),
                    Outcome::ExpiredTtl,
                )
            }
        }
    }

    fn note_outage(&mut self) {
        let ready = self.endpoints.values().any(|server| server.state.ready);
        match self.out_since {
            Some(since) if ready => {
                self.outages += i128::from(self.now.as_nanos()) - i128::from(since.as_nanos());
                self.out_since = None;
            }
            None if !ready => self.out_since = Some(self.now),
            _ => {}
        }
    }

    fn refuse_waiting(&mut self, id: RequestId, outcome: Outcome, said: &mut Said) {
        let item = self.item(id).clone();
        self.items.retain(|item| item.id != id);
        self.forget_flows();
        self.refuse(id, item.flow.0, item.arrived, outcome, said);
    }

    fn refuse(&mut self, id: RequestId, band: Band, arrived: Instant, outcome: Outcome, said: &mut Said) {
        self.count(band, outcome);
        let ahead = self.waiting().filter(|item| item.flow.0 <= band).count() as u128;
        let last = &self.completions[self.completions.len().saturating_sub(64)..];
        let since = if self.completions.len() < 64 { 0 } else { last[0] };
        let wait = u128::from(self.saturated - since) * ahead / last.len().max(1) as u128;
        let wait = u64::try_from(wait)
            .unwrap_or(u64::MAX)
            .clamp(1_000_000_000, 120_000_000_000);
        said.refused(id, outcome, self.now.since(arrived), Duration::from_nanos(wait));
    }
}

fn key_of(request: &Request) -> FlowKey {
    let name = if request.flow.is_empty() {
        "anonymous".into()
    } else {
        request.flow.clone()
    };
    (request.band, name)
}
