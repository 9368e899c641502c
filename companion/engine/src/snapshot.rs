//! The engine's state as plain data.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::counters::Counters;
use crate::health::{HealthReason, HealthState};
use crate::input::{Band, EndpointId};
use crate::policy::{BudgetPeriod, CostUnit, Over};
use crate::time::Instant;
use crate::units::{Decimal, Tokens};

/// The whole state at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The stock of ready endpoints: granted and not ended, without `credit`.
    pub stock: u64,
    /// Requests that filters may run without asking, at all endpoints. The bounds count it as stock.
    pub credit: u64,
    /// The part of `stock` in places above the bounds: see [`crate::policy::ExtraPlaces`].
    pub extra: u64,
    /// Waiting requests are dispatched while stock is below this; `u64::MAX`: unlimited.
    pub lower: u64,
    /// A newcomer bypasses while stock is below this; `u64::MAX`: unlimited.
    pub upper: u64,
    /// The sum over all ready endpoints; zero for a gate without bounds.
    pub watermark: Decimal,
    /// Ready endpoints.
    pub ready_endpoints: u64,
    /// The stock of all other endpoints.
    pub draining_stock: u64,
    /// See [`crate::Engine::saturation_milli`].
    pub saturation_milli: u64,
    /// Waiting requests.
    pub waiting: u64,
    /// The suspended part of `waiting`: see [`crate::Input::Suspend`].
    pub suspended: u64,
    /// The charges that waiting requests will take.
    pub waiting_cost: Tokens,
    /// Bytes of the bodies of waiting requests.
    pub waiting_bytes: u64,
    /// The most requests that may wait; 0: none may.
    pub waiting_max: u64,
    /// The most bytes of bodies that may wait; 0: no request may.
    pub waiting_bytes_max: u64,
    /// The bands, most critical first.
    pub bands: [BandSnapshot; 3],
    /// The policy classes in the order of the ring; empty where none are configured.
    pub classes: Vec<ClassSnapshot>,
    /// Flows that wait, run, or were served lately, by name and band.
    pub flows: Vec<FlowSnapshot>,
    /// Usage of all flows in the window, and the estimates of what runs; 0 unless the discipline is usage.
    pub usage: Tokens,
    /// The part of `usage` that runs at other engines.
    pub running_elsewhere: Tokens,
    /// The fairness lag of each leaf of the tree; empty if the discipline guarantees no bound.
    pub fairness_lags: Vec<FairnessLag>,
    /// Endpoints that are listed or still in use, by id.
    pub endpoints: Vec<EndpointSnapshot>,
    /// Totals since the engine started.
    pub counters: Counters,
    /// [`crate::Input::Ready`] was received, and no [`crate::Input::Hold`] since.
    pub dispatching: bool,
    /// New requests are rejected with `shutting_down`.
    pub draining: bool,
}

/// The waiting requests of a band.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BandSnapshot {
    /// The band.
    pub band: Band,
    /// Requests.
    pub waiting: u64,
    /// The part of `waiting` whose flows run the most requests that they may, or have used their budgets.
    pub held_by_flow: u64,
    /// The rest of `waiting` while the pool has room that no waiting request may use, or dispatches at its rate.
    pub held_otherwise: u64,
    /// The charges that they will take.
    pub waiting_cost: Tokens,
    /// Bytes of their bodies.
    pub waiting_bytes: u64,
}

/// A policy class, over all bands and models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassSnapshot {
    /// The class's name.
    pub name: Box<str>,
    /// Tokens granted by a visit.
    pub quantum: u64,
    /// The sum of its deficits.
    pub deficit: u64,
    /// Waiting requests.
    pub waiting: u64,
}

/// A flow, in one band.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowSnapshot {
    /// The fairness identity.
    pub key: Box<str>,
    /// The band.
    pub band: Band,
    /// Waiting requests.
    pub waiting: u64,
    /// The charges that they will take.
    pub waiting_cost: Tokens,
    /// Requests granted and not ended.
    pub in_flight: u64,
    /// Settled cost, as long as the flow is remembered.
    pub served_tokens: Tokens,
    /// The flow's weight.
    pub weight: f64,
    /// The flow's virtual finish time, in cost per weight; under the discipline usage its usage of all models in all bands, per
    /// weight; zero if the flow has none any more.
    pub finish: f64,
}

/// What a flow has used of its budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowBudgetSnapshot {
    /// The fairness identity.
    pub flow: Box<str>,
    /// What happens to its requests without room.
    pub over: Over,
    /// The budget decides nothing.
    pub shadow: bool,
    /// The budget's windows, as the policy lists them.
    pub windows: Vec<BudgetWindowSnapshot>,
}

/// What a flow has used of one window of its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetWindowSnapshot {
    /// What is counted.
    pub unit: CostUnit,
    /// The time.
    pub period: BudgetPeriod,
    /// How much may be used.
    pub limit: u64,
    /// Used, settled. Above the limit by what is owed and by what was used of top-ups.
    pub used: u64,
    /// The estimates of what runs, here and at other engines, as far as it counts in the window.
    pub reserved: u64,
    /// Used beyond the limit, and not paid back.
    pub debt: u64,
    /// How much may be used now; 0: no request goes.
    pub remaining: u64,
    /// When nothing of all that counts any more, if nothing more is used.
    pub resets_at: Instant,
}

/// The fairness lag of flows that compete with each other: the flows of one band, and of one model and class where
/// these have flows of their own.
#[derive(Clone, Debug, PartialEq)]
pub struct FairnessLag {
    /// The band.
    pub band: Band,
    /// The model; empty: all models share the flows.
    pub model: Box<str>,
    /// The class; empty: there is one.
    pub class: Box<str>,
    /// The largest difference in settled service per weight between two flows, since both could be dispatched, over the
    /// bound for the pair; 0 with fewer than two flows. Above 1 the bound is broken.
    pub ratio: f64,
}

/// An endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointSnapshot {
    /// The endpoint.
    pub id: EndpointId,
    /// Discovery lists it.
    pub listed: bool,
    /// Listed, healthy, and not marked down.
    pub ready: bool,
    /// When it may be probed; `None`: its requests and their answers don't keep it away.
    pub down_until: Option<Instant>,
    /// The state, health checks included.
    pub state: HealthState,
    /// Why it is in that state.
    pub reason: HealthReason,
    /// Since when.
    pub since: Instant,
    /// Granted there and not ended, without `credit`.
    pub stock: u64,
    /// The requests in `stock` whose clients have left before the end of the answer: the server may compute on.
    pub abandoned: u64,
    /// Requests that filters may run there without asking.
    pub credit: u64,
    /// The part of `stock` in places above the bound.
    pub extra: u64,
    /// The stock up to which it takes requests; `u64::MAX`: unlimited.
    pub bound: u64,
    /// Sequences of other clients by the server's last report. They lower the bound.
    pub foreign: u64,
    /// The requests that it takes at a time because it refused more; `None`: it has refused none since the gate's bound held.
    pub pushback: Option<u64>,
}
