//! `arbitration`: the order in which queued requests are granted.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_engine::policy::{self as engine, CostUnit, Discipline};
use penstock_model::slo;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Classes;
use super::budgets::{self, Budget};
use crate::error::Violation;
use crate::value::{BandWeight, Count, FlowWeight, List, OneOrMany, Share};

/// The order in which queued requests are granted: by band, then by class, then by flow, then by the order inside the flow.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Arbitration {
    /// Gives every model of the pool a separate turn below the bands, with separate classes and flows.
    pub(crate) per_model: bool,
    /// Sharing between criticality levels.
    pub(crate) bands: Bands,
    /// Policy classes, which share uncached prompt tokens by deficit round robin. The classes of Dynamo's router policy file
    /// can be used here unchanged; `penstock import dynamo` converts the whole file.
    pub(crate) classes: Classes,
    /// Sharing between tenants.
    pub(crate) flows: Flows,
    /// The order of a flow's requests within one strict tier.
    pub(crate) order: Order,
}

/// Sharing between criticality levels.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Bands {
    /// The rule by which bands share.
    pub(crate) mode: BandMode,
    /// The bands' weights under `weighted`, not all 0. When some are given, the rest is 0. A band of weight 0 is granted
    /// only when no other band can be.
    pub(crate) weights: BandWeights,
    /// A band is granted only while the stock is below this fraction of the bound. For example, `{sheddable: 0.9}` keeps a
    /// tenth of the bound free of sheddable requests.
    pub(crate) ceiling: Ceilings,
}

impl Default for Bands {
    fn default() -> Self {
        Self {
            mode: BandMode::Strict,
            weights: BandWeights {
                critical: BandWeight(70.0),
                default: BandWeight(20.0),
                sheddable: BandWeight(10.0),
            },
            ceiling: Ceilings::default(),
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum BandMode {
    /// Critical before default before sheddable.
    Strict,
    /// In proportion to `weights`.
    Weighted,
}

/// The bands' weights. A band that is left out has weight 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct BandWeights {
    /// The weight of critical requests.
    pub(crate) critical: BandWeight,
    /// The weight of default requests.
    pub(crate) default: BandWeight,
    /// The weight of sheddable requests.
    pub(crate) sheddable: BandWeight,
}

/// Fractions of the bound. Null means the whole bound.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Ceilings {
    /// For critical requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) critical: Option<Share>,
    /// For default requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) default: Option<Share>,
    /// For sheddable requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sheddable: Option<Share>,
}

/// Sharing between tenants.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Flows {
    /// The rule by which flows share.
    pub(crate) discipline: Discipline,
    /// The identity of a flow: one of these, or a list of them, joined to one name, as in `acme/qwen-7b`. In every part but the last,
    /// `/` is written `%2F` and `%` is written `%25`.
    pub(crate) key: OneOrMany<FlowKey>,
    /// The unit in which flows share.
    pub(crate) cost: CostUnit,
    /// Weights by a flow's identity, as `key` defines it.
    pub(crate) weights: BTreeMap<String, FlowWeight>,
    /// The weight of every other flow.
    pub(crate) default_weight: FlowWeight,
    /// Replaces `queue.flow_capacity` for some flows, by identity.
    pub(crate) capacities: BTreeMap<String, Count>,
    /// Running requests of one flow, at all endpoints together.
    pub(crate) max_in_flight: Option<Count>,
    /// Running requests of one flow at one endpoint.
    pub(crate) max_in_flight_per_endpoint: Option<Count>,
    /// What a flow may use in windows of time. The first entry that matches a flow applies to it, with all of its windows.
    pub(crate) budgets: List<Budget>,
}

impl Default for Flows {
    fn default() -> Self {
        Self {
            discipline: Discipline::Wfq,
            key: OneOrMany(vec![FlowKey::FairnessId]),
            cost: CostUnit::Tokens,
            weights: BTreeMap::new(),
            default_weight: FlowWeight(1.0),
            capacities: BTreeMap::new(),
            max_in_flight: None,
            max_in_flight_per_endpoint: None,
            budgets: List::default(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum FlowKey {
    /// The fairness id.
    FairnessId,
    /// The user.
    User,
    /// The model that the client requested.
    Model,
    /// The model that the request is sent with, after `rewrite`.
    TargetModel,
    /// All requests are one flow. Not allowed in a list with other values.
    None,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum Order {
    /// Earliest arrival first, less the head start.
    #[default]
    Fcfs,
    /// Smallest uncached prompt first, divided by 1 + the seconds of head start.
    Wspt,
    /// Earliest `x-penstock-deadline-ms` first. Requests without a deadline come last.
    Edf,
    /// Earliest arrival plus target for the first token first. The target is the request's `x-slo-ttft-ms`, else
    /// `slo.target_ttft` or `stock.targets.ttft`.
    SloDeadline,
}

/// Checks `bands`; `path` is that of `arbitration`.
pub(super) fn convert_bands(raw: &Bands, path: &str) -> Result<engine::Bands, Violation> {
    let weights = [raw.weights.critical, raw.weights.default, raw.weights.sheddable].map(|weight| weight.0);
    if weights.iter().all(|weight| *weight == 0.0) {
        return Err(Violation::new(
            format!("{path}.bands.weights"),
            "the weights can't all be 0; a band that is left out has 0",
        ));
    }
    if matches!(raw.mode, BandMode::Strict) && raw.weights != Bands::default().weights {
        return Err(Violation::new(
            format!("{path}.bands.weights"),
            "the weights have no effect under mode: strict; leave them out, or write mode: weighted",
        ));
    }
    let ceiling = &raw.ceiling;
    Ok(engine::Bands {
        mode: match raw.mode {
            BandMode::Strict => engine::BandMode::Strict,
            BandMode::Weighted => engine::BandMode::Weighted(weights),
        },
        ceilings: [ceiling.critical, ceiling.default, ceiling.sheddable]
            .map(|ceiling| ceiling.map(|share| share.0)),
    })
}

/// Checks `flows` at `path`. `identities_max` is `limits.flows`.
pub(super) fn convert_flows(
    raw: Flows,
    identities_max: usize,
    path: &str,
) -> Result<engine::Flows, Violation> {
    Ok(engine::Flows {
        discipline: raw.discipline,
        cost: raw.cost,
        weights: raw.weights.into_iter().map(|(flow, weight)| (flow.into(), weight.0)).collect(),
        default_weight: raw.default_weight.0,
        capacities: raw.capacities.into_iter().map(|(flow, capacity)| (flow.into(), capacity.0)).collect(),
        max_in_flight: raw.max_in_flight.map(|count| count.0),
        max_in_flight_per_endpoint: raw.max_in_flight_per_endpoint.map(|count| count.0),
        budgets: budgets::convert(raw.budgets.0, &format!("{path}.budgets"))?,
        identities_max,
    })
}

/// The parts of a flow's identity. `none` is an empty list.
pub(super) fn convert_key(raw: &[FlowKey], path: &str) -> Result<Vec<engine::FlowKey>, Violation> {
    let violation = |message: &str| Err(Violation::new(format!("{path}.flows.key"), message));
    if raw.is_empty() {
        return violation(
            "at least one of fairness_id, user, model, target_model is required, or none alone",
        );
    }
    if raw == [FlowKey::None] {
        return Ok(Vec::new());
    }
    let mut keys = Vec::with_capacity(raw.len());
    for key in raw {
        let key = match key {
            FlowKey::FairnessId => engine::FlowKey::FairnessId,
            FlowKey::User => engine::FlowKey::User,
            FlowKey::Model => engine::FlowKey::Model,
            FlowKey::TargetModel => engine::FlowKey::TargetModel,
            FlowKey::None => return violation("none stands alone"),
        };
        if keys.contains(&key) {
            return violation("each part is listed once");
        }
        keys.push(key);
    }
    Ok(keys)
}

/// The engine's order, with the pool's target for the first token.
pub(super) fn convert_order(raw: Order, slo: &slo::Policy) -> engine::Order {
    match raw {
        Order::Fcfs => engine::Order::Fcfs,
        Order::Wspt => engine::Order::Wspt,
        Order::Edf => engine::Order::Edf,
        Order::SloDeadline => engine::Order::SloDeadline {
            target: slo
                .explicit
                .and_then(|targets| targets.ttft_ms)
                .and_then(|ms| Duration::try_from_secs_f64(ms / 1_000.0).ok()),
        },
    }
}
