//! The engine's state for its owner: a few numbers, and the whole as a [`Snapshot`].

use alloc::vec::Vec;

use super::Engine;
use crate::hashed_name::HashedName;
use crate::health::{HealthReason, HealthState};
use crate::input::{Band, EndpointId, Kind, RequestId, Usage};
use crate::snapshot::{BandSnapshot, ClassSnapshot, EndpointSnapshot, FlowSnapshot, Snapshot};
use crate::tree::ANONYMOUS;
use crate::units::Tokens;

impl Engine {
    /// The stock of ready endpoints: granted and not ended.
    #[must_use]
    pub const fn stock(&self) -> u64 {
        self.endpoints.stock()
    }

    /// Whether an endpoint is listed, healthy, and not marked down.
    #[must_use]
    pub fn is_ready(&self, endpoint: EndpointId) -> bool {
        self.endpoints.is_ready(endpoint)
    }

    /// The state of an endpoint by its requests and their answers, without its health check, and why; `None` for one that isn't known.
    #[must_use]
    pub fn health_of(&self, endpoint: EndpointId) -> Option<(HealthState, HealthReason)> {
        let health = &self.endpoints.get(endpoint)?.health;
        Some((health.state(), health.reason()))
    }

    /// How often the state of an endpoint has changed.
    #[must_use]
    pub const fn health_changes(&self) -> u64 {
        self.endpoints.health_changes()
    }

    /// The endpoint has served the kind's model at its path to some flow, as far as is remembered.
    #[must_use]
    pub fn has_served(&self, endpoint: EndpointId, kind: Kind) -> bool {
        self.endpoints.has_served(endpoint, kind)
    }

    /// Some endpoint has served the kind's model at its path, as far as is remembered.
    #[must_use]
    pub fn is_served(&self, kind: Kind) -> bool {
        self.endpoints.is_served(kind)
    }

    /// Requests of clients that have left keep their places at an endpoint.
    #[must_use]
    pub fn has_abandoned(&self, endpoint: EndpointId) -> bool {
        self.endpoints.get(endpoint).is_some_and(|endpoint| endpoint.abandoned.len() > 0)
    }

    /// Whether an endpoint is listed, or a request runs there that hasn't ended. Of any other the engine keeps nothing.
    #[must_use]
    pub fn has_endpoint(&self, endpoint: EndpointId) -> bool {
        self.endpoints.get(endpoint).is_some()
    }

    /// The upper bound over the ready endpoints without slow starts and foreign requests; `None` for a gate without
    /// bounds.
    #[must_use]
    pub fn full_bound(&self) -> Option<u64> {
        self.endpoints.full_bound()
    }

    /// Listed endpoints.
    #[must_use]
    pub const fn listed_count(&self) -> usize {
        self.endpoints.listed_count()
    }

    /// Ready endpoints.
    #[must_use]
    pub const fn ready_count(&self) -> usize {
        self.endpoints.ready_count()
    }

    /// How many endpoints take fewer requests than the gate allows, because they refused some.
    #[must_use]
    pub fn pushed_back_count(&self) -> usize {
        self.endpoints.pushed_back_count()
    }

    /// Waiting requests.
    #[must_use]
    pub const fn waiting(&self) -> u64 {
        self.tree.waiting_in_all().requests
    }

    /// Waiting requests that more room at endpoints would let go: all but those of flows that run the most requests that they may, or
    /// whose budget holds them. In time proportional to the number of flows, if these have such limits.
    #[must_use]
    pub fn waiting_for_room(&self) -> u64 {
        self.waiting() - Band::ALL.into_iter().map(|band| self.tree.waiting_at_limits(band)).sum::<u64>()
    }

    /// The flow has requests here, and its own limits let no other one go, whatever room endpoints have: it runs the most requests that
    /// it may, or its budget holds it. Empty: `anonymous`.
    #[must_use]
    pub fn is_flow_at_limit(&self, flow: &str) -> bool {
        let flow = if flow.is_empty() { ANONYMOUS } else { flow };
        let identity = self.tree.identity_named(flow);
        identity.is_some_and(|identity| self.tree.is_identity_at_limit(identity))
    }

    /// A newcomer bypasses while stock is below this; `u64::MAX`: unlimited.
    #[must_use]
    pub const fn upper(&self) -> u64 {
        self.endpoints.bounds().upper
    }

    /// Waiting requests are dispatched while stock is below this; `u64::MAX`: unlimited.
    #[must_use]
    pub const fn lower(&self) -> u64 {
        self.endpoints.bounds().lower
    }

    /// An endpoint is ready, and none takes another request: stock is at the lower bound, or every ready endpoint is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.endpoints.any_ready() && (self.endpoints.filled() >= self.lower() || !self.endpoints.any_room())
    }

    /// The larger of stock / upper and waiting / total_capacity, in thousandths. A ratio to a bound of 0 is 1,000 as
    /// soon as there is stock, and so is stock / upper while no endpoint is ready.
    #[must_use]
    pub fn saturation_milli(&self) -> u64 {
        let gate =
            if self.endpoints.any_ready() { milli(self.endpoints.filled(), self.upper()) } else { 1_000 };
        gate.max(milli(self.waiting(), self.policy.queue.total_capacity))
    }

    /// The sequences of a request that waits or runs; 1 for any other.
    #[must_use]
    pub fn sequences(&self, id: RequestId) -> u64 {
        self.jobs.find(id).map_or(1, |id| self.jobs[id].estimate.sequences)
    }

    /// The estimated tokens of a running request; `None` if it doesn't run.
    #[must_use]
    pub fn expected(&self, id: RequestId) -> Option<Usage> {
        let id = self.jobs.find(id)?;
        let (estimate, load) = (&self.jobs[id].estimate, &self.jobs.running(id)?.load);
        let cached = load.prompt() - load.prefill;
        Some(Usage {
            prompt: Some(Tokens(estimate.prompt)),
            cached: Some(Tokens(cached.min(estimate.prompt))),
            output: Some(Tokens(estimate.output)),
        })
    }

    /// Nothing is dispatched though the gate is open: no waiting request may use the room that there is, or the rate is at its limit.
    fn is_held(&self) -> bool {
        self.holds_all() || self.is_open() && !self.rate_limiter.has_token(self.now)
    }

    /// The whole state, in time proportional to it.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let waiting = self.tree.waiting_in_all();
        let bounds = self.endpoints.bounds();
        let queue = &self.policy.queue;
        let may_wait = queue.enabled && queue.total_capacity > 0;
        let is_held = self.is_held();
        Snapshot {
            stock: self.stock() - self.endpoints.credit_at_ready(),
            credit: self.credit(),
            extra: self.endpoints.extra_at_ready(),
            lower: bounds.lower,
            upper: bounds.upper,
            watermark: bounds.watermark,
            ready_endpoints: self.endpoints.iter().filter(|endpoint| endpoint.ready).count() as u64,
            draining_stock: self.endpoints.draining() - self.endpoints.credit_at_others(),
            saturation_milli: self.saturation_milli(),
            waiting: waiting.requests,
            suspended: self.tree.suspended(),
            waiting_cost: Tokens(waiting.cost),
            waiting_bytes: waiting.bytes,
            waiting_max: if may_wait { queue.total_capacity } else { 0 },
            waiting_bytes_max: if may_wait { queue.total_bytes } else { 0 },
            bands: Band::ALL.map(|band| {
                let waiting = self.tree.waiting_shown(band);
                let held_by_flow = self.tree.waiting_at_limits(band);
                BandSnapshot {
                    band,
                    waiting: waiting.requests,
                    held_by_flow,
                    held_otherwise: if is_held { waiting.requests - held_by_flow } else { 0 },
                    waiting_cost: Tokens(waiting.cost),
                    waiting_bytes: waiting.bytes,
                }
            }),
            classes: self.class_snapshots(),
            flows: self.flow_snapshots(),
            usage: Tokens(u64::try_from(self.tree.usage_in_all()).unwrap_or(u64::MAX)),
            running_elsewhere: Tokens(u64::try_from(self.tree.running_elsewhere()).unwrap_or(u64::MAX)),
            fairness_lags: self.tree.fairness_lags(),
            endpoints: self.endpoint_snapshots(),
            counters: self.counters,
            dispatching: self.ready,
            draining: self.draining,
        }
    }

    fn class_snapshots(&self) -> Vec<ClassSnapshot> {
        let configured = self.tree.classes().iter();
        let configured = configured.filter(|(_, class)| class.policy.is_some());
        let snapshots = configured.map(|(id, class)| ClassSnapshot {
            name: class.name().into(),
            quantum: class.quantum(),
            deficit: self.tree.deficit(id),
            waiting: class.waiting.requests,
        });
        snapshots.collect()
    }

    fn flow_snapshots(&self) -> Vec<FlowSnapshot> {
        let served = |name: HashedName<'_>, band: Band| {
            self.token_history.flow(name).map_or(0, |flow| flow.served[band as usize])
        };
        let in_bands = self.tree.identities().flat_map(|identity| Band::ALL.map(|band| (identity, band)));
        let present = in_bands.filter_map(|(identity, band)| {
            let flows = || self.tree.flows_shown_in(identity, band);
            let waiting = identity.waiting_shown(band);
            let finish = flows().map(|flow| self.tree.finish(flow)).max()?;
            Some(FlowSnapshot {
                key: (*identity.name).into(),
                band,
                waiting: waiting.requests,
                waiting_cost: Tokens(waiting.cost),
                in_flight: flows().map(|flow| self.tree.flow(flow).in_flight).sum(),
                served_tokens: Tokens(served(identity.hashed_name(), band)),
                weight: identity.weight,
                finish: finish.as_f64(),
            })
        });
        let remembered = self.token_history.flows().flat_map(|(name, flow)| {
            let bands = Band::ALL.into_iter().filter(|&band| flow.served[band as usize] > 0);
            bands.map(move |band| FlowSnapshot {
                key: name.into(),
                band,
                waiting: 0,
                waiting_cost: Tokens(0),
                in_flight: 0,
                served_tokens: Tokens(flow.served[band as usize]),
                weight: self.policy.flows.weight_of(name),
                finish: 0.0,
            })
        });
        let mut flows: Vec<FlowSnapshot> = present.chain(remembered).collect();
        // The sort is stable: of a flow that is both present and remembered, the first entry stays.
        flows.sort_by(|a, b| (&a.key, a.band).cmp(&(&b.key, b.band)));
        flows.dedup_by(|b, a| (&a.key, a.band) == (&b.key, b.band));
        flows
    }

    fn endpoint_snapshots(&self) -> Vec<EndpointSnapshot> {
        let unsorted = self.endpoints.iter().map(|endpoint| EndpointSnapshot {
            id: endpoint.id,
            listed: endpoint.listed,
            ready: endpoint.ready,
            down_until: endpoint.health.probe_at().map(|(until, _)| until),
            state: endpoint.shown_health().0,
            reason: endpoint.shown_health().1,
            since: endpoint.shown_health().2,
            stock: endpoint.stock - endpoint.credit_in(self.policy.gate),
            credit: endpoint.credit,
            extra: endpoint.extra(),
            bound: endpoint.share.bound(self.policy.gate),
            abandoned: endpoint.abandoned.len() as u64,
            foreign: endpoint.limits().foreign,
            pushback: endpoint.lowering_pushback(self.policy.gate),
        });
        let mut endpoints: Vec<EndpointSnapshot> = unsorted.collect();
        endpoints.sort_unstable_by_key(|endpoint| endpoint.id);
        endpoints
    }
}

fn milli(part: u64, whole: u64) -> u64 {
    match (part, whole) {
        (0, _) | (_, u64::MAX) => 0,
        (_, 0) => 1_000,
        (part, whole) => u64::try_from(u128::from(part) * 1_000 / u128::from(whole)).unwrap_or(u64::MAX),
    }
}
