//! Checks invariants that hold for every policy, from the inputs and effects alone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use penstock_engine::effect::{Evict, Grant, Reject, Trace};
use penstock_engine::input::{Amended, Band, EndpointState, Relisted, Role, Service};
use penstock_engine::policy::{Gate, Over, StockUnit};
use penstock_engine::snapshot::EndpointSnapshot;
use penstock_engine::{Effect, EndpointId, Engine, Input, Instant, Outcome, Policy, Request, RequestId};

/// A request isn't granted the endpoint that failed it for at least this time.
const PAUSE_MIN: Duration = Duration::from_millis(penstock_engine::limits::PAUSE_MIN_MS);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Arrived in this step.
    New,
    Waiting,
    Suspended,
    Running {
        endpoint: EndpointId,
        settled: bool,
    },
    /// Completed in this step.
    Ended {
        settled: bool,
    },
}

#[derive(Clone, Debug)]
struct Entry {
    request: Request,
    state: State,
    /// The endpoint that failed or refused it since its last grant, and when.
    failed: Option<(EndpointId, Instant)>,
    /// It refused it.
    was_refused: bool,
    /// Its last grant was above a bound.
    is_extra: bool,
    /// Its answer has begun since it runs.
    has_begun: bool,
    /// It was asked to end since it runs.
    is_evicted: bool,
}

pub(crate) struct InvariantChecker {
    policy: Policy,
    latest: Instant,
    arrivals: u64,
    requeues: u64,
    entries: BTreeMap<RequestId, Entry>,
    endpoints: BTreeMap<EndpointId, EndpointState>,
    /// Requests that filters may run there without asking.
    places: BTreeMap<EndpointId, u64>,
    /// Endpoints with prompts of requests that run elsewhere, after the last step.
    prefills: BTreeSet<EndpointId>,
    /// Endpoints with a failure since they were listed.
    failures: BTreeSet<EndpointId>,
    /// Endpoints that the engine reports as marked down.
    down: BTreeSet<EndpointId>,
    /// Number of grants since the rate was set, and the time at which it was set.
    granted: (u64, Instant),
    /// A budget of a policy could demote requests: they wait as sheddable.
    demotes: bool,
    /// The policy had so few identities that flows may share one.
    shared: bool,
}

impl InvariantChecker {
    pub(crate) fn new(policy: Policy) -> Self {
        Self {
            shared: has_few(&policy),
            demotes: demotes(&policy),
            policy,
            latest: Instant::ZERO,
            arrivals: 0,
            requeues: 0,
            entries: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            places: BTreeMap::new(),
            prefills: BTreeSet::new(),
            failures: BTreeSet::new(),
            down: BTreeSet::new(),
            granted: (0, Instant::ZERO),
        }
    }

    pub(crate) fn live(&self) -> impl Iterator<Item = RequestId> {
        self.entries.keys().copied()
    }

    /// Checks the effects of one step.
    pub(crate) fn step(&mut self, now: Instant, input: Option<Input>, effects: &[Effect], engine: &Engine) {
        self.latest = self.latest.max(now);
        let snapshot = engine.snapshot();
        let counters = snapshot.counters;
        let requeued = counters.requeues > self.requeues;
        self.requeues = counters.requeues;
        if let Some(input) = &input {
            self.apply(input, requeued);
        }
        self.check_ejections(&snapshot.endpoints);
        let mut granted = None;
        for effect in effects {
            if let Effect::Traced(Trace { id, .. }) = effect {
                assert_eq!(granted, Some(*id), "a trace follows its grant");
            }
            granted = None;
            match effect {
                Effect::Grant(Grant { id, endpoints, outcome, extra, prefill, .. }) => {
                    self.grant(*id, endpoints, (*outcome, *extra), engine);
                    if let Some(prefill) = prefill {
                        self.check_prefill(*id, endpoints[0], *prefill, engine);
                    }
                    granted = Some(*id);
                }
                Effect::Reject(Reject { id, .. }) => {
                    let entry = self.entries.remove(id).expect("a rejected request exists");
                    assert!(!entry.runs(), "{id:?} is rejected while it runs");
                }
                Effect::Cancelled { id, .. } => {
                    let entry = self.entries.remove(id).expect("a cancelled request exists");
                    let waits = matches!(entry.state, State::Waiting | State::Suspended);
                    assert!(waits, "only a waiting request is cancelled");
                    assert!(matches!(input, Some(Input::Cancel(cancelled)) if cancelled == *id));
                }
                Effect::Settled { id, .. } => self.settled(*id, input.as_ref()),
                Effect::Evict(Evict { id, waited, .. }) => self.evicted(*id, *waited),
                Effect::UsageRunning(_) | Effect::Budget(_) => {}
                Effect::UsageSettled(usage) => assert!(usage.cost.0 > 0, "reported usage is above 0"),
                Effect::Traced(_) => {}
            }
        }
        self.entries.retain(|id, entry| match entry.state {
            State::Ended { settled } => {
                assert!(settled, "{id:?} ended without being settled");
                false
            }
            State::New | State::Waiting | State::Suspended | State::Running { .. } => true,
        });
        for (id, entry) in &mut self.entries {
            if entry.state == State::New {
                entry.state = State::Waiting;
            }
            let gone = matches!(input, Some(Input::Cancel(removed) | Input::ModelRemoved(removed)) if removed == *id);
            assert!(!gone || entry.runs(), "{id:?} was removed and still waits");
        }
        self.compare(engine);
    }

    fn apply(&mut self, input: &Input, requeued: bool) {
        match input {
            Input::Register(request) | Input::Resume(request) => self.record_arrival(request, State::New),
            Input::Adopt { request, endpoint } => {
                self.adopt(request, *endpoint);
            }
            Input::Sent { id, endpoint } => {
                if let Some(State::Running { endpoint: current, .. }) = self.state_mut(*id) {
                    *current = *endpoint;
                }
            }
            Input::Completed { id, service } | Input::Left { id, service } => {
                if matches!(service, Service::Served(_))
                    && let Some(endpoint) = self.entries.get(id).and_then(Entry::runs_at)
                {
                    self.end_refusals(endpoint);
                }
                self.record_end(*id);
            }
            Input::Settle { id, .. } if self.policy.gate == Gate::Manual => self.record_end(*id),
            Input::Settle { .. } => {}
            Input::Requeue(id) | Input::Retry(id) | Input::Refused { id, .. } => {
                let entry = self.entries.get_mut(id).filter(|entry| entry.runs());
                assert!(!requeued || entry.is_some(), "only a running request is requeued");
                if let Some(entry) = entry.filter(|_| requeued) {
                    entry.failed = match (entry.state, input) {
                        (State::Running { endpoint, .. }, Input::Retry(_) | Input::Refused { .. }) => {
                            Some((endpoint, self.latest))
                        }
                        _ => None,
                    };
                    entry.was_refused = matches!(input, Input::Refused { .. });
                    entry.state = State::Waiting;
                }
            }
            Input::Endpoint { id, state } => {
                self.endpoints.insert(*id, *state);
            }
            Input::EndpointRemoved(id) => {
                self.endpoints.remove(id);
                self.failures.remove(id);
            }
            Input::Policy(policy) => {
                self.policy = (**policy).clone();
                self.shared |= has_few(policy);
                self.demotes |= demotes(policy);
                self.granted = (0, self.latest);
            }
            Input::Failed { endpoint, .. } => {
                self.failures.insert(*endpoint);
            }
            Input::Suspend(id) => self.suspend(*id, State::Waiting, State::Suspended),
            Input::Continue(id) => self.suspend(*id, State::Suspended, State::Waiting),
            Input::Amend(amended) => self.amend(amended),
            Input::Relist(relisted) => self.relist(relisted),
            Input::AdmittedByCredit { request, place, endpoint } => {
                if !self.entries.contains_key(&request.id) {
                    self.adopt(request, *endpoint);
                    place.iter().for_each(|place| self.take_back(*place, 1));
                }
            }
            Input::GiveCredit { endpoint, requests } => {
                let has_credit = self.places.contains_key(endpoint);
                let is_used =
                    self.running().any(|used| used == *endpoint) || self.prefills.contains(endpoint);
                if self.endpoints.contains_key(endpoint) || is_used || has_credit {
                    *self.places.entry(*endpoint).or_default() += requests;
                }
            }
            Input::TakeBack { endpoint, requests } => self.take_back(*endpoint, *requests),
            Input::FirstToken(id) | Input::Begun(id) => {
                if let Some(entry) = self.entries.get_mut(id) {
                    entry.has_begun |= entry.runs();
                }
            }
            Input::PastUsage(_)
            | Input::Utc(_)
            | Input::BudgetUsage { .. }
            | Input::BudgetHistory(_)
            | Input::BudgetResets(_)
            | Input::TopUp { .. }
            | Input::ResetBudget(_)
            | Input::SharedUsage { .. }
            | Input::Prefills { .. }
            | Input::PushedBack { .. }
            | Input::Restarted(_)
            | Input::Answered(_)
            | Input::Load { .. }
            | Input::ServerStats { .. }
            | Input::Allowance { .. }
            | Input::Cancel(_)
            | Input::ModelRemoved(_)
            | Input::Dispatch { .. }
            | Input::Drain(_)
            | Input::Hold
            | Input::Ready => {}
        }
    }

    /// `endpoint` has served a request, so those that it refused may go there again.
    fn end_refusals(&mut self, endpoint: EndpointId) {
        for entry in self.entries.values_mut() {
            let is_over = entry.was_refused && entry.failed.is_some_and(|(refused, _)| refused == endpoint);
            entry.failed = entry.failed.filter(|_| !is_over);
        }
    }

    fn adopt(&mut self, request: &Request, endpoint: EndpointId) {
        let running = State::Running { endpoint, settled: false };
        match self.entries.get_mut(&request.id) {
            Some(entry) if entry.runs() => {}
            Some(entry) => {
                entry.state = running;
                (entry.is_extra, entry.has_begun, entry.is_evicted) = (false, false, false);
            }
            None => self.record_arrival(request, running),
        }
    }

    fn take_back(&mut self, endpoint: EndpointId, requests: u64) {
        if let Some(places) = self.places.get_mut(&endpoint) {
            *places = places.saturating_sub(requests);
        }
        self.places.retain(|_, places| *places > 0);
    }

    fn relist(&mut self, relisted: &Relisted) {
        for id in &relisted.removed {
            self.endpoints.remove(id);
            self.failures.remove(id);
        }
        self.endpoints.extend(relisted.listed.iter().copied());
        for amended in &relisted.amended {
            self.amend(amended);
        }
    }

    fn amend(&mut self, amended: &Amended) {
        if let Some(entry) = self.entries.get_mut(&amended.id) {
            entry.request.eligible.clone_from(&amended.eligible);
        }
    }

    fn suspend(&mut self, id: RequestId, before: State, after: State) {
        if let Some(state) = self.state_mut(id).filter(|state| **state == before) {
            *state = after;
        }
    }

    fn record_end(&mut self, id: RequestId) {
        if let Some(state) = self.state_mut(id)
            && let State::Running { settled, .. } = *state
        {
            *state = State::Ended { settled };
        }
    }

    fn record_arrival(&mut self, request: &Request, state: State) {
        if !self.entries.contains_key(&request.id) {
            self.arrivals += 1;
            let request = request.clone();
            let failed = None;
            let entry = Entry {
                request,
                state,
                failed,
                was_refused: false,
                is_extra: false,
                has_begun: false,
                is_evicted: false,
            };
            self.entries.insert(entry.request.id, entry);
        }
    }

    fn state_mut(&mut self, id: RequestId) -> Option<&mut State> {
        self.entries.get_mut(&id).map(|entry| &mut entry.state)
    }

    fn grant(
        &mut self,
        id: RequestId,
        endpoints: &[EndpointId],
        (outcome, is_extra): (Outcome, bool),
        engine: &Engine,
    ) {
        let entry = &self.entries[&id];
        assert!(!entry.runs(), "{id:?} is granted twice");
        assert_ne!(entry.state, State::Suspended, "{id:?} is suspended and can't be granted");
        let state = match outcome {
            Outcome::Bypassed => State::New,
            _ => entry.state,
        };
        assert_eq!(entry.state, state, "only a new request bypasses");
        assert!((1..=3).contains(&endpoints.len()));
        let request = entry.request.clone();
        for (index, endpoint) in endpoints.iter().enumerate() {
            assert!(self.is_ready(*endpoint), "{endpoint:?} isn't ready");
            assert!(!endpoints[..index].contains(endpoint), "{endpoint:?} twice");
            let eligible = request.eligible.as_ref();
            assert!(eligible.is_none_or(|eligible| eligible.contains(endpoint)));
            let avoided = entry.failed.filter(|(_, since)| self.latest < since.after(PAUSE_MIN));
            assert!(
                avoided.is_none_or(|(failed, _)| failed != *endpoint),
                "{endpoint:?} has just failed {id:?}"
            );
        }
        self.check_limits(&request, endpoints, is_extra, engine);
        let entry = self.entries.get_mut(&id).expect("a granted request exists");
        (entry.is_extra, entry.has_begun, entry.is_evicted) = (is_extra, false, false);
        let settled = false;
        *self.state_mut(id).expect("a granted request exists") =
            State::Running { endpoint: endpoints[0], settled };
        self.granted.0 += 1;
        // Under a manual gate the rate doesn't limit.
        if let Some(rate) = self.policy.queue.max_rate.filter(|_| self.policy.gate != Gate::Manual) {
            let elapsed = self.latest.since(self.granted.1).as_secs_f64();
            let most = rate.max(1.0) + rate * elapsed + 1e-6;
            assert!(self.granted.0 as f64 <= most, "{} of {most}", self.granted.0);
        }
    }

    /// A prompt goes to an endpoint for prompts that has room, for one that decodes, and only of a request that none has failed.
    fn check_prefill(&self, id: RequestId, first: EndpointId, prefill: EndpointId, engine: &Engine) {
        let role = |id: EndpointId| self.endpoints.get(&id).map(|state| state.role);
        assert_eq!((role(first), role(prefill)), (Some(Role::Decode), Some(Role::Prefill)));
        assert!(self.is_ready(prefill), "{prefill:?} isn't ready");
        let eligible = self.entries.get(&id).and_then(|entry| entry.request.eligible.as_deref());
        assert!(eligible.is_none_or(|eligible| eligible.contains(&prefill)), "{prefill:?} isn't eligible");
        assert!(self.policy.min_uncached_tokens.is_some(), "the policy doesn't separate prefill");
        let snapshot = engine.snapshot();
        let there = snapshot.endpoints.iter().find(|endpoint| endpoint.id == prefill);
        let there = there.expect("an endpoint for prompts is listed");
        assert!(!self.counts_requests() || there.stock - there.extra <= there.bound, "{there:?}");
    }

    const fn counts_requests(&self) -> bool {
        match self.policy.gate {
            Gate::Bounded { unit: StockUnit::Tokens | StockUnit::Sequences, .. } | Gate::Auto { .. } => false,
            Gate::Bounded { unit: StockUnit::Requests, .. } | Gate::Open | Gate::Manual => true,
        }
    }

    /// Under bounds in sequences, a request fits into the bound of its endpoint, or runs alone there.
    fn check_sequences(&self, request: &Request, endpoints: &[EndpointId], engine: &Engine) {
        let Gate::Bounded { unit: StockUnit::Sequences, .. } = self.policy.gate else {
            return;
        };
        let snapshot = engine.snapshot();
        let first = snapshot.endpoints.iter().find(|endpoint| Some(&endpoint.id) == endpoints.first());
        let first = first.expect("a granted endpoint is listed");
        let sequences = request.sequences.max(1);
        let stock = first.stock + first.credit - first.extra;
        // More may have been granted in the same call.
        let alone = self.entries.values().filter(|entry| entry.runs_at() == Some(first.id)).count() == 0;
        assert!(alone || stock <= first.bound.max(sequences), "{sequences} of {first:?}");
    }

    /// A grant above a bound is to a flow with nothing running, and the bound and the places above it are not exceeded.
    fn check_extra(&self, request: &Request, endpoints: &[EndpointId], engine: &Engine) {
        let of_flow = self.entries.values().filter(|entry| entry.request.flow == request.flow);
        let is_idle = of_flow.filter(|entry| entry.runs()).count() == 0;
        assert!(is_idle || self.shared, "{:?} runs something", request.flow);
        let snapshot = engine.snapshot();
        let first = snapshot.endpoints.iter().find(|endpoint| Some(&endpoint.id) == endpoints.first());
        let first = first.expect("a granted endpoint is listed");
        let unit = self.policy.gate.unit();
        let above = self.policy.extra_for_idle_flows.above(first.bound, unit);
        assert!(self.policy.extra_for_idle_flows.is_on(self.policy.gate));
        if self.counts_requests() {
            let there = self.entries.values().filter(|entry| entry.runs_at() == Some(first.id));
            let extras = there.clone().filter(|entry| entry.is_extra).count() as u64;
            let places = self.places.get(&first.id).copied().unwrap_or(0);
            let stock = there.count() as u64 + places;
            assert!(extras < above && stock < first.bound.saturating_add(above), "{stock} at {first:?}");
        }
    }

    /// Checks the limits of the gate and of the flow before the grant.
    fn check_limits(&self, request: &Request, endpoints: &[EndpointId], is_extra: bool, engine: &Engine) {
        let running = self.entries.values().filter(|entry| !entry.is_extra).filter_map(Entry::runs_at);
        let running = running.filter(|&endpoint| self.is_ready(endpoint)).count() as u64;
        let places = self.places.iter().filter(|(endpoint, _)| self.is_ready(**endpoint));
        let stock = running + places.map(|(_, places)| places).sum::<u64>();
        if is_extra {
            self.check_extra(request, endpoints, engine);
            return;
        }
        self.check_sequences(request, endpoints, engine);
        assert!(!self.counts_requests() || stock < engine.upper() || stock == 0, "over {}", engine.upper());
        if self.shared {
            return;
        }
        let of_flow = || self.entries.values().filter(|entry| entry.request.flow == request.flow);
        let most = self.policy.flows.max_in_flight.unwrap_or(u64::MAX);
        assert!((of_flow().filter(|entry| entry.runs()).count() as u64) < most, "over max_in_flight");
        let most = self.policy.flows.max_in_flight_per_endpoint.unwrap_or(u64::MAX);
        for endpoint in endpoints {
            let there = of_flow().filter(|entry| entry.runs_at() == Some(*endpoint)).count() as u64;
            assert!(there < most, "over max_in_flight at {endpoint:?}");
        }
    }

    /// Only a sheddable request that runs within the bounds and doesn't answer is asked to end, once, and only for one that has waited for long.
    fn evicted(&mut self, id: RequestId, waited: Duration) {
        assert!(self.policy.eviction.is_some_and(|after| waited >= after), "{waited:?}");
        let demotes = self.demotes;
        let entry = self.entries.get_mut(&id).expect("a request that is asked to end exists");
        assert!(entry.runs() && !entry.is_extra && !entry.has_begun, "{entry:?}");
        assert!(entry.request.band == Band::Sheddable || demotes, "{entry:?}");
        assert!(!core::mem::replace(&mut entry.is_evicted, true), "{entry:?} is asked twice");
    }

    fn settled(&mut self, id: RequestId, input: Option<&Input>) {
        let expected = matches!(input, Some(Input::Completed { id: ended, .. } | Input::Left { id: ended, .. } | Input::Settle { id: ended, .. }) if *ended == id);
        assert!(expected, "{id:?} is settled without an input for it");
        match self.state_mut(id) {
            Some(State::Running { settled, .. } | State::Ended { settled }) if !*settled => *settled = true,
            other => panic!("{id:?} is settled: {other:?}"),
        }
    }

    fn running(&self) -> impl Iterator<Item = EndpointId> {
        self.entries.values().filter_map(Entry::runs_at)
    }

    fn is_ready(&self, id: EndpointId) -> bool {
        self.is_healthy(id) && !self.down.contains(&id)
    }

    fn is_healthy(&self, id: EndpointId) -> bool {
        self.endpoints.get(&id).is_some_and(|state| state.ready)
    }

    /// Checks that only endpoints with a failure are marked down, until a later time, and never the last healthy one.
    fn check_ejections(&mut self, endpoints: &[EndpointSnapshot]) {
        let down = endpoints.iter().filter(|endpoint| endpoint.down_until.is_some());
        self.down = down.clone().map(|endpoint| endpoint.id).collect();
        assert!(self.down.is_subset(&self.failures), "an endpoint without a failure is marked down");
        assert!(down.clone().all(|endpoint| endpoint.down_until > Some(self.latest)));
        let healthy = || self.endpoints.keys().filter(|&&id| self.is_healthy(id));
        assert!(healthy().count() == 0 || healthy().any(|&id| self.is_ready(id)), "all are marked down");
    }

    fn compare(&mut self, engine: &Engine) {
        let snapshot = engine.snapshot();
        self.prefills = self.entries.keys().filter_map(|id| engine.prefill_endpoint_of(*id)).collect();
        // A waiting request that is adopted runs without an effect.
        let waiting = || self.entries.values().filter(|entry| !entry.runs());
        assert_eq!(snapshot.waiting, waiting().count() as u64, "waiting");
        let suspended = waiting().filter(|entry| entry.state == State::Suspended);
        // A request that failed may let others pass.
        let may_pass = waiting().filter(|entry| entry.failed.is_some() && entry.state != State::Suspended);
        let least = suspended.count() as u64;
        let most = least + may_pass.count() as u64;
        assert!((least..=most).contains(&snapshot.suspended), "suspended");
        for band in snapshot.bands {
            let of_band = waiting().filter(|entry| entry.request.band == band.band);
            let expected = of_band.count() as u64;
            let fits = match band.band {
                Band::Critical | Band::Default if self.demotes => band.waiting <= expected,
                Band::Sheddable if self.demotes => band.waiting >= expected,
                _ => band.waiting == expected,
            };
            assert!(fits, "{} wait, not {expected}, in {:?}", band.waiting, band.band);
        }
        assert_eq!(snapshot.counters.arrivals, self.arrivals, "arrivals");
        let outcomes = snapshot.counters.outcomes_total();
        assert_eq!(outcomes + snapshot.waiting, self.arrivals, "outcomes and waiting");
        for endpoint in &snapshot.endpoints {
            let count = self.running().filter(|&endpoint_id| endpoint_id == endpoint.id).count() as u64;
            let prefills = self.entries.keys().filter_map(|id| engine.prefill_endpoint_of(*id));
            let prefills = prefills.filter(|&prefill| prefill == endpoint.id).count() as u64;
            let same = endpoint.stock == count + prefills + endpoint.abandoned || !self.counts_requests();
            assert!(same, "{count} run, and {prefills} prompts: {endpoint:?}");
            assert_eq!(endpoint.ready, self.is_ready(endpoint.id));
            let places = self.places.get(&endpoint.id).copied().unwrap_or(0);
            assert_eq!(endpoint.credit, places, "places at {:?}", endpoint.id);
        }
        let in_flight: u64 = snapshot.flows.iter().map(|flow| flow.in_flight).sum();
        assert_eq!(in_flight, self.running().count() as u64, "in flight");
        assert_eq!(snapshot.credit, self.places.values().sum::<u64>(), "places");
        let due = engine.poll_timeout().is_some_and(|endpoint_id| endpoint_id <= self.latest);
        assert!(!due || self.policy.gate == Gate::Manual, "a timer is due after all timers were handled");
    }

    /// Ends all requests and removes all endpoints.
    pub(crate) fn close(mut self, now: Instant, handle: &mut impl FnMut(Instant, Option<Input>, &mut Self)) {
        let now = now.max(self.latest);
        handle(now, Some(Input::Drain(true)), &mut self);
        let service = penstock_engine::input::Service::Nothing;
        for id in self.live().collect::<Vec<_>>() {
            handle(now, Some(Input::Completed { id, service }), &mut self);
        }
        assert_eq!(self.live().next(), None, "a request is left");
        for id in self.endpoints.keys().copied().collect::<Vec<_>>() {
            handle(now, Some(Input::EndpointRemoved(id)), &mut self);
        }
        for (endpoint, requests) in self.places.clone() {
            handle(now, Some(Input::TakeBack { endpoint, requests }), &mut self);
        }
    }
}

fn has_few(policy: &Policy) -> bool {
    policy.flows.identities_max < crate::random::NAMES.len()
}

impl Entry {
    const fn runs(&self) -> bool {
        self.runs_at().is_some()
    }

    const fn runs_at(&self) -> Option<EndpointId> {
        match self.state {
            State::Running { endpoint, .. } => Some(endpoint),
            State::New | State::Waiting | State::Suspended | State::Ended { .. } => None,
        }
    }
}

fn demotes(policy: &Policy) -> bool {
    let mut budgets = policy.flows.budgets.iter();
    budgets.any(|budget| budget.over == Over::Demote && !budget.shadow)
}
