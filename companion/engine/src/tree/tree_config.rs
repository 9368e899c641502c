//! The part of a policy that shapes the tree.

use core::time::Duration;

use crate::policy::{Bands, ClassMode, CostUnit, Discipline, Policy, TokenWeights};
use crate::time::Instant;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct TreeConfig {
    pub(super) bands: Bands,
    pub(super) per_model: bool,
    pub(super) class_mode: ClassMode,
    pub(super) discipline: Discipline,
    pub(super) cost: CostUnit,
    /// Weights of tokens in a cost; `None`: costs count requests.
    pub(super) token_weights: Option<TokenWeights>,
    pub(super) usage_window: Duration,
    /// Budgets may hold flows.
    pub(super) holds: bool,
    pub(super) max_in_flight: Option<u64>,
    pub(super) max_in_flight_per_endpoint: Option<u64>,
    /// Flows with nothing running may be granted above the bounds.
    pub(super) has_extra_places: bool,
}

impl TreeConfig {
    pub(super) fn of(policy: &Policy) -> Self {
        Self {
            bands: policy.bands.clone(),
            per_model: policy.per_model,
            class_mode: policy.class_mode,
            discipline: policy.flows.discipline,
            cost: policy.flows.cost,
            token_weights: (policy.flows.cost == CostUnit::Tokens).then_some(policy.weights),
            usage_window: policy.usage_window,
            holds: !policy.flows.budgets.is_empty(),
            max_in_flight: policy.flows.max_in_flight,
            max_in_flight_per_endpoint: policy.flows.max_in_flight_per_endpoint,
            has_extra_places: policy.extra_for_idle_flows.is_on(policy.gate),
        }
    }

    /// A request costs the same under `other`, so that what was counted before still counts.
    pub(super) fn has_costs_of(&self, other: &Self) -> bool {
        self.token_weights == other.token_weights
    }

    /// The passage of time from `from` to `to` moves usage windows.
    pub(super) fn slides(&self, from: Instant, to: Instant) -> bool {
        self.discipline == Discipline::Usage && from != to
    }
}
