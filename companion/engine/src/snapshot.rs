//! The engine's state as plain data, and the few numbers that every answer carries.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::counters::Counters;
use crate::engine::Engine;
use crate::input::{Band, EndpointId, RequestId, Usage};
use crate::time::Instant;
use crate::tree::BANDS;
use crate::units::{Decimal, Tokens};

/// The whole state at a moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Granted and not ended, on endpoints that are ready.
    pub stock: u64,
    /// Below it, what waits is dispatched; `u64::MAX`: always.
    pub lower: u64,
    /// Below it, a newcomer bypasses; `u64::MAX`: always.
    pub upper: u64,
    /// Over all ready endpoints; zero when nothing bounds.
    pub watermark: Decimal,
    /// Endpoints that are ready.
    pub ready_endpoints: u64,
    /// Granted and not ended, on the others.
    pub draining_stock: u64,
    /// See [`Engine::saturation_milli`].
    pub saturation_milli: u64,
    /// Requests that wait.
    pub waiting: u64,
    /// Of these, suspended: see [`crate::Input::Suspend`].
    pub suspended: u64,
    /// What they will be charged.
    pub waiting_cost: Tokens,
    /// Bytes of their bodies.
    pub waiting_bytes: u64,
    /// The bands, most critical first.
    pub bands: [BandSnapshot; 3],
    /// The policy classes in the order of the ring; empty where none are configured.
    pub classes: Vec<ClassSnapshot>,
    /// Flows that wait, run, or were served lately, by name and band.
    pub flows: Vec<FlowSnapshot>,
    /// How far flows are apart, leaf by leaf of the tree; empty where their discipline promises no bound.
    pub fairness_lags: Vec<FairnessLag>,
    /// Endpoints that are listed or still in use, by id.
    pub endpoints: Vec<EndpointSnapshot>,
    /// Totals since the engine began.
    pub counters: Counters,
    /// Input is [`crate::Input::Ready`] already.
    pub dispatching: bool,
    /// New requests are refused with `shutting_down`.
    pub draining: bool,
}

/// What waits in a band.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BandSnapshot {
    /// Which.
    pub band: Band,
    /// Requests.
    pub waiting: u64,
    /// What they will be charged.
    pub waiting_cost: Tokens,
    /// Bytes of their bodies.
    pub waiting_bytes: u64,
}

/// A policy class, over all bands and models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassSnapshot {
    /// Its name.
    pub name: Box<str>,
    /// Tokens granted by a visit.
    pub quantum: u64,
    /// The sum of its deficits.
    pub deficit: u64,
    /// Requests that wait.
    pub waiting: u64,
}

/// A flow, in one band.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowSnapshot {
    /// The fairness identity.
    pub key: Box<str>,
    /// The band.
    pub band: Band,
    /// Requests that wait.
    pub waiting: u64,
    /// What they will be charged.
    pub waiting_cost: Tokens,
    /// Granted and not ended.
    pub in_flight: u64,
    /// Settled cost, as long as the flow is remembered.
    pub served_tokens: Tokens,
    /// Its weight.
    pub weight: f64,
    /// Its virtual finish, in cost per weight; zero for one that has none any more.
    pub finish: f64,
}

/// The flows that compete with each other: those of one band, and of one class and model where these have their own.
#[derive(Clone, Debug, PartialEq)]
pub struct FairnessLag {
    /// The band.
    pub band: Band,
    /// The model; empty: all share.
    pub model: Box<str>,
    /// The class; empty: there is one.
    pub class: Box<str>,
    /// The largest gap in settled service per weight between two flows, since both could go, over the bound for these
    /// two (QUEUEING, Flows); 0 with fewer than two. Above 1 the bound is broken.
    pub ratio: f64,
}

/// An endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointSnapshot {
    /// Which.
    pub id: EndpointId,
    /// Discovery names it.
    pub listed: bool,
    /// It may be given requests: listed, healthy, and not marked down.
    pub ready: bool,
    /// Marked down until then, for requests failed there.
    pub down_until: Option<Instant>,
    /// Granted there and not ended.
    pub stock: u64,
    /// What it takes at a time; `u64::MAX`: anything.
    pub bound: u64,
    /// Requests there that weren't ours when its server was last asked; lowers the bound.
    pub foreign: u64,
}

impl Engine {
    /// Granted and not ended, on endpoints that are ready.
    #[must_use]
    pub const fn stock(&self) -> u64 {
        self.endpoints.stock()
    }

    /// It may be given requests: listed, healthy, and not marked down.
    #[must_use]
    pub fn is_ready(&self, endpoint: EndpointId) -> bool {
        self.endpoints.is_ready(endpoint)
    }

    /// It is listed, or something that isn't ended runs there. Of what isn't known nothing is kept, either.
    #[must_use]
    pub fn has_endpoint(&self, endpoint: EndpointId) -> bool {
        self.endpoints.get(endpoint).is_some()
    }

    /// What the ready endpoints take together at full strength, in what stock is counted in: no slow start, and nothing
    /// that isn't ours. `None` where nothing bounds.
    #[must_use]
    pub fn full_bound(&self) -> Option<u64> {
        self.endpoints.full_bound()
    }

    /// Endpoints that are ready.
    #[must_use]
    pub const fn ready_count(&self) -> usize {
        self.endpoints.ready_count()
    }

    /// Requests that wait.
    #[must_use]
    pub const fn waiting(&self) -> u64 {
        self.tree.waiting_in_all().requests
    }

    /// Below it a newcomer bypasses; `u64::MAX`: always.
    #[must_use]
    pub const fn upper(&self) -> u64 {
        self.endpoints.bounds().upper
    }

    /// Below it what waits is dispatched; `u64::MAX`: always.
    #[must_use]
    pub const fn lower(&self) -> u64 {
        self.endpoints.bounds().lower
    }

    /// The larger of stock / upper and waiting / total_capacity, in thousandths. With no bound to divide by it is
    /// 1,000 as soon as there is anything, and so is a pool that has no ready endpoint.
    #[must_use]
    pub fn saturation_milli(&self) -> u64 {
        let gate = if self.endpoints.any_ready() {
            milli(self.stock(), self.upper())
        } else {
            1_000
        };
        gate.max(milli(self.waiting(), self.policy.queue.total_capacity))
    }

    /// What a request that runs is expected to be, in all parts; `None` if it doesn't run.
    #[must_use]
    pub fn expected(&self, id: RequestId) -> Option<Usage> {
        let job = &self.jobs[*self.ids.get(&id)?];
        (!job.is_waiting()).then_some(Usage {
            prompt: Some(Tokens(job.tally.prompt)),
            cached: Some(Tokens(job.tally.cached.min(job.tally.prompt))),
            output: Some(Tokens(job.tally.output)),
        })
    }

    /// The whole state, in time proportional to it.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let waiting = self.tree.waiting_in_all();
        let bounds = self.endpoints.bounds();
        Snapshot {
            stock: self.stock(),
            lower: bounds.lower,
            upper: bounds.upper,
            watermark: bounds.watermark,
            ready_endpoints: self.endpoints.iter().filter(|endpoint| endpoint.ready).count() as u64,
            draining_stock: self.endpoints.draining(),
            saturation_milli: self.saturation_milli(),
            waiting: waiting.requests,
            suspended: self.tree.suspended(),
            waiting_cost: Tokens(waiting.cost),
            waiting_bytes: waiting.bytes,
            bands: BANDS.map(|band| {
                let waiting = self.tree.waiting(band);
                BandSnapshot {
                    band,
                    waiting: waiting.requests,
                    waiting_cost: Tokens(waiting.cost),
                    waiting_bytes: waiting.bytes,
                }
            }),
            classes: self.class_snapshots(),
            flows: self.flow_snapshots(),
            fairness_lags: self.tree.gap_snapshots(),
            endpoints: self.endpoint_snapshots(),
            counters: self.counters,
            dispatching: self.ready,
            draining: self.draining,
        }
    }

    fn class_snapshots(&self) -> Vec<ClassSnapshot> {
        let named = self.tree.classes().iter();
        let named = named.filter(|(_, class)| class.policy.is_some());
        let snapshots = named.map(|(number, class)| ClassSnapshot {
            name: class.name().into(),
            quantum: class.quantum(),
            deficit: self.tree.deficit(number),
            waiting: class.waiting.requests,
        });
        snapshots.collect()
    }

    fn flow_snapshots(&self) -> Vec<FlowSnapshot> {
        let served = |name: &str, band: Band| {
            self.learned
                .flow(name)
                .map_or(0, |flow| flow.served[band as usize])
        };
        let in_bands = self
            .tree
            .identities()
            .flat_map(|identity| BANDS.map(|band| (identity, band)));
        let present = in_bands.filter_map(|(identity, band)| {
            let flows = || self.tree.flows_in(identity, band);
            let there = &identity.bands[band as usize];
            let finish = flows().map(|flow| self.tree.finish(flow)).max()?;
            Some(FlowSnapshot {
                key: identity.name.clone(),
                band,
                waiting: there.waiting.requests,
                waiting_cost: Tokens(there.waiting.cost),
                in_flight: flows().map(|flow| self.tree.flow_of(flow).in_flight).sum(),
                served_tokens: Tokens(served(&identity.name, band)),
                weight: identity.weight,
                finish: finish.as_f64(),
            })
        });
        let remembered = self.learned.flows().flat_map(|(name, flow)| {
            let bands = BANDS.into_iter().filter(|&band| flow.served[band as usize] > 0);
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
        // Stable: of the two of one flow, the one that is present stays.
        flows.sort_by(|a, b| (&a.key, a.band).cmp(&(&b.key, b.band)));
        flows.dedup_by(|b, a| (&a.key, a.band) == (&b.key, b.band));
        flows
    }

    fn endpoint_snapshots(&self) -> Vec<EndpointSnapshot> {
        let plain = self.endpoints.iter().map(|endpoint| EndpointSnapshot {
            id: endpoint.id,
            listed: endpoint.listed,
            ready: endpoint.ready,
            down_until: endpoint.failures.down(),
            stock: endpoint.stock,
            bound: endpoint.share.bound(self.policy.gate),
            foreign: endpoint.limits().foreign,
        });
        let mut endpoints: Vec<EndpointSnapshot> = plain.collect();
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
