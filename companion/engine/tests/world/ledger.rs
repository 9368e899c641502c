//! What may not happen, whatever the policy: kept from the inputs and effects alone.

use std::collections::{BTreeMap, BTreeSet};

use penstock_engine::input::{Amended, EndpointState};
use penstock_engine::policy::{Gate, StockUnit};
use penstock_engine::snapshot::EndpointSnapshot;
use penstock_engine::{Effect, EndpointId, Engine, Input, Instant, Outcome, Policy, Request, RequestId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the call that brings it.
    New,
    Waits,
    Suspended,
    Runs {
        at: EndpointId,
        settled: bool,
    },
    /// In the call that completes it.
    Ends {
        settled: bool,
    },
}

#[derive(Clone, Debug)]
struct Entry {
    request: Request,
    place: Place,
}

pub(crate) struct Ledger {
    policy: Policy,
    latest: Instant,
    arrivals: u64,
    requeues: u64,
    entries: BTreeMap<RequestId, Entry>,
    endpoints: BTreeMap<EndpointId, EndpointState>,
    /// Where something failed since it was listed.
    failures: BTreeSet<EndpointId>,
    /// Marked down, as the engine says.
    down: BTreeSet<EndpointId>,
    /// Grants since the rate was set, and when that was.
    granted: (u64, Instant),
    /// Some share an identity with others, or did.
    shared: bool,
}

impl Ledger {
    pub(crate) fn new(policy: Policy) -> Self {
        Self {
            shared: has_few(&policy),
            policy,
            latest: Instant::ZERO,
            arrivals: 0,
            requeues: 0,
            entries: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            failures: BTreeSet::new(),
            down: BTreeSet::new(),
            granted: (0, Instant::ZERO),
        }
    }

    pub(crate) fn live(&self) -> impl Iterator<Item = RequestId> {
        self.entries.keys().copied()
    }

    /// `input` was said, and these are all the effects of it.
    pub(crate) fn step(&mut self, now: Instant, input: Option<Input>, effects: &[Effect], engine: &Engine) {
        self.latest = self.latest.max(now);
        let snapshot = engine.snapshot();
        let counters = snapshot.counters;
        let requeued = counters.requeues > self.requeues;
        self.requeues = counters.requeues;
        if let Some(input) = &input {
            self.take(input, requeued);
        }
        self.look_at_down(&snapshot.endpoints);
        let mut granted = None;
        for effect in effects {
            if let Effect::Traced { id, .. } = effect {
                assert_eq!(granted, Some(*id), "a trace follows its grant");
            }
            granted = None;
            match effect {
                Effect::Grant {
                    id,
                    endpoints,
                    outcome,
                    ..
                } => {
                    self.grant(*id, endpoints, *outcome, engine);
                    granted = Some(*id);
                }
                Effect::Reject { id, .. } => {
                    let entry = self.entries.remove(id).expect("who is refused is there");
                    assert!(!entry.runs(), "{id:?} is refused and runs");
                }
                Effect::Cancelled { id, .. } => {
                    let entry = self.entries.remove(id).expect("who leaves is there");
                    let waits = matches!(entry.place, Place::Waits | Place::Suspended);
                    assert!(waits, "only who waits leaves");
                    assert!(matches!(input, Some(Input::Cancel(of)) if of == *id));
                }
                Effect::Settled { id, .. } => self.settled(*id, input.as_ref()),
                Effect::UsageSettled { cost, .. } => assert!(cost.0 > 0, "nothing was used"),
                Effect::Traced { .. } => {}
            }
        }
        self.entries.retain(|id, entry| match entry.place {
            Place::Ends { settled } => {
                assert!(settled, "{id:?} ended and isn't settled");
                false
            }
            Place::New | Place::Waits | Place::Suspended | Place::Runs { .. } => true,
        });
        for (id, entry) in &mut self.entries {
            if entry.place == Place::New {
                entry.place = Place::Waits;
            }
            let gone = matches!(input, Some(Input::Cancel(of) | Input::ModelRemoved(of)) if of == *id);
            assert!(!gone || entry.runs(), "{id:?} is gone and waits");
        }
        self.compare(engine);
    }

    fn take(&mut self, input: &Input, requeued: bool) {
        match input {
            Input::Register(request) | Input::Resume(request) => self.arrives(request, Place::New),
            Input::Adopt { request, endpoint } => {
                let runs = Place::Runs {
                    at: *endpoint,
                    settled: false,
                };
                match self.entries.get_mut(&request.id) {
                    Some(entry) if entry.runs() => {}
                    Some(entry) => entry.place = runs,
                    None => self.arrives(request, runs),
                }
            }
            Input::Sent { id, endpoint } => {
                if let Some(Place::Runs { at, .. }) = self.place_mut(*id) {
                    *at = *endpoint;
                }
            }
            Input::Completed { id, .. } => self.ends(*id),
            Input::Settle { id, .. } if self.policy.gate == Gate::Manual => self.ends(*id),
            Input::Settle { .. } => {}
            Input::Requeue(id) => {
                let entry = self.entries.get_mut(id).filter(|entry| entry.runs());
                assert!(!requeued || entry.is_some(), "only what runs is requeued");
                if let Some(entry) = entry.filter(|_| requeued) {
                    entry.place = Place::Waits;
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
                self.granted = (0, self.latest);
            }
            Input::Failed { endpoint, .. } => {
                self.failures.insert(*endpoint);
            }
            Input::Suspend(id) => self.suspend(*id, Place::Waits, Place::Suspended),
            Input::Continue(id) => self.suspend(*id, Place::Suspended, Place::Waits),
            Input::Amend(amended) => self.amend(amended),
            Input::Relist(relisted) => {
                for id in &relisted.removed {
                    self.endpoints.remove(id);
                    self.failures.remove(id);
                }
                self.endpoints.extend(relisted.listed.iter().copied());
                for amended in &relisted.amended {
                    self.amend(amended);
                }
            }
            Input::PastUsage(_)
            | Input::Load { .. }
            | Input::ServerStats { .. }
            | Input::Budget { .. }
            | Input::Cancel(_)
            | Input::ModelRemoved(_)
            | Input::Dispatch { .. }
            | Input::Drain(_)
            | Input::Ready => {}
        }
    }

    fn amend(&mut self, amended: &Amended) {
        if let Some(entry) = self.entries.get_mut(&amended.id) {
            entry.request.eligible.clone_from(&amended.eligible);
        }
    }

    fn suspend(&mut self, id: RequestId, from: Place, to: Place) {
        if let Some(place) = self.place_mut(id).filter(|place| **place == from) {
            *place = to;
        }
    }

    fn ends(&mut self, id: RequestId) {
        if let Some(place) = self.place_mut(id)
            && let Place::Runs { settled, .. } = *place
        {
            *place = Place::Ends { settled };
        }
    }

    fn arrives(&mut self, request: &Request, place: Place) {
        if !self.entries.contains_key(&request.id) {
            self.arrivals += 1;
            let request = request.clone();
            self.entries.insert(request.id, Entry { request, place });
        }
    }

    fn place_mut(&mut self, id: RequestId) -> Option<&mut Place> {
        self.entries.get_mut(&id).map(|entry| &mut entry.place)
    }

    fn grant(&mut self, id: RequestId, endpoints: &[EndpointId], outcome: Outcome, engine: &Engine) {
        let entry = &self.entries[&id];
        assert!(!entry.runs(), "{id:?} is granted twice");
        assert_ne!(entry.place, Place::Suspended, "{id:?} can't go");
        let place = match outcome {
            Outcome::Bypassed => Place::New,
            _ => entry.place,
        };
        assert_eq!(entry.place, place, "who bypasses comes now");
        assert!((1..=3).contains(&endpoints.len()));
        let request = entry.request.clone();
        for (index, endpoint) in endpoints.iter().enumerate() {
            assert!(self.is_ready(*endpoint), "{endpoint:?} isn't ready");
            assert!(!endpoints[..index].contains(endpoint), "{endpoint:?} twice");
            let eligible = request.eligible.as_ref();
            assert!(eligible.is_none_or(|eligible| eligible.contains(endpoint)));
        }
        self.within_limits(&request, endpoints, engine);
        let settled = false;
        *self.place_mut(id).expect("it is there") = Place::Runs {
            at: endpoints[0],
            settled,
        };
        self.granted.0 += 1;
        // A script lets go whom it wants.
        if let Some(rate) = self
            .policy
            .queue
            .max_rate
            .filter(|_| self.policy.gate != Gate::Manual)
        {
            let elapsed = self.latest.since(self.granted.1).as_secs_f64();
            let most = rate.max(1.0) + rate * elapsed + 1e-6;
            assert!(self.granted.0 as f64 <= most, "{} of {most}", self.granted.0);
        }
    }

    const fn counts_requests(&self) -> bool {
        match self.policy.gate {
            Gate::Bounded {
                unit: StockUnit::Tokens,
                ..
            } => false,
            Gate::Bounded {
                unit: StockUnit::Requests,
                ..
            }
            | Gate::Auto { .. }
            | Gate::Open
            | Gate::Manual => true,
        }
    }

    /// Before it runs.
    fn within_limits(&self, request: &Request, endpoints: &[EndpointId], engine: &Engine) {
        let stock = self.running().filter(|&at| self.is_ready(at)).count() as u64;
        let by_budget = matches!(self.policy.gate, Gate::Auto { .. });
        assert!(
            by_budget || !self.counts_requests() || stock < engine.upper() || stock == 0,
            "over {}",
            engine.upper()
        );
        if self.shared {
            return;
        }
        let of_flow = || {
            self.entries
                .values()
                .filter(|entry| entry.request.flow == request.flow)
        };
        let most = self.policy.flows.max_in_flight.unwrap_or(u64::MAX);
        assert!(
            (of_flow().filter(|entry| entry.runs()).count() as u64) < most,
            "over max_in_flight"
        );
        let most = self.policy.flows.max_in_flight_per_endpoint.unwrap_or(u64::MAX);
        for endpoint in endpoints {
            let there = of_flow()
                .filter(|entry| entry.runs_at() == Some(*endpoint))
                .count() as u64;
            assert!(there < most, "over max_in_flight at {endpoint:?}");
        }
    }

    fn settled(&mut self, id: RequestId, input: Option<&Input>) {
        let asked = matches!(input, Some(Input::Completed { id: of, .. } | Input::Settle { id: of, .. }) if *of == id);
        assert!(asked, "{id:?} is settled and nobody asked");
        match self.place_mut(id) {
            Some(Place::Runs { settled, .. } | Place::Ends { settled }) if !*settled => *settled = true,
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

    /// Only who failed is marked down, for a time, and never the last that is healthy.
    fn look_at_down(&mut self, endpoints: &[EndpointSnapshot]) {
        let down = endpoints.iter().filter(|endpoint| endpoint.down_until.is_some());
        self.down = down.clone().map(|endpoint| endpoint.id).collect();
        assert!(self.down.is_subset(&self.failures), "nothing failed there");
        assert!(
            down.clone()
                .all(|endpoint| endpoint.down_until > Some(self.latest))
        );
        let healthy = || self.endpoints.keys().filter(|&&id| self.is_healthy(id));
        assert!(
            healthy().count() == 0 || healthy().any(|&id| self.is_ready(id)),
            "all are marked down"
        );
    }

    fn compare(&mut self, engine: &Engine) {
        let snapshot = engine.snapshot();
        // One that waited and was adopted runs, and no effect says so.
        let waiting = || self.entries.values().filter(|entry| !entry.runs());
        assert_eq!(snapshot.waiting, waiting().count() as u64, "waiting");
        let suspended = waiting().filter(|entry| entry.place == Place::Suspended);
        assert_eq!(snapshot.suspended, suspended.count() as u64, "suspended");
        for band in snapshot.bands {
            let of_band = waiting().filter(|entry| entry.request.band == band.band);
            assert_eq!(band.waiting, of_band.count() as u64, "waiting in {:?}", band.band);
        }
        assert_eq!(snapshot.counters.arrivals, self.arrivals, "arrivals");
        let outcomes = snapshot.counters.outcomes_total();
        assert_eq!(outcomes + snapshot.waiting, self.arrivals, "outcomes and waiting");
        for endpoint in &snapshot.endpoints {
            let there = self.running().filter(|&at| at == endpoint.id).count() as u64;
            let same = endpoint.stock == there || !self.counts_requests();
            assert!(same, "{there} run: {endpoint:?}");
            assert_eq!(endpoint.ready, self.is_ready(endpoint.id));
        }
        let in_flight: u64 = snapshot.flows.iter().map(|flow| flow.in_flight).sum();
        assert_eq!(in_flight, self.running().count() as u64, "in flight");
        let due = engine.poll_timeout().is_some_and(|at| at <= self.latest);
        assert!(
            !due || self.policy.gate == Gate::Manual,
            "a timer is due after all were heard"
        );
    }

    /// All end and leave: nothing of them stays.
    pub(crate) fn close(mut self, now: Instant, say: &mut impl FnMut(Instant, Option<Input>, &mut Self)) {
        let now = now.max(self.latest);
        say(now, Some(Input::Drain(true)), &mut self);
        let service = penstock_engine::input::Service::Nothing;
        for id in self.live().collect::<Vec<_>>() {
            say(now, Some(Input::Completed { id, service }), &mut self);
        }
        assert_eq!(self.live().next(), None, "somebody is left");
        for id in self.endpoints.keys().copied().collect::<Vec<_>>() {
            say(now, Some(Input::EndpointRemoved(id)), &mut self);
        }
    }
}

fn has_few(policy: &Policy) -> bool {
    policy.flows.identities_max < super::random::NAMES.len()
}

impl Entry {
    const fn runs(&self) -> bool {
        self.runs_at().is_some()
    }

    const fn runs_at(&self) -> Option<EndpointId> {
        match self.place {
            Place::Runs { at, .. } => Some(at),
            Place::New | Place::Waits | Place::Suspended | Place::Ends { .. } => None,
        }
    }
}
