//! What the model counts from its list whenever it is asked: bounds, room, order, costs.

use std::collections::{BTreeMap, BTreeSet};

use penstock_engine::input::{Band, EndpointState, Usage};
use penstock_engine::policy::{CostUnit, Gate};
use penstock_engine::{EndpointId, Outcome, RequestId};

use super::{BANDS, FlowKey, Item, Model, Running, step};

impl Model {
    pub(super) fn bounds(&self) -> (u64, u64) {
        let ready = self.endpoints.values().filter(|state| state.ready);
        let weight: u128 = ready.map(|state| state.weight.billionths()).sum();
        match self.policy.gate {
            Gate::Open | Gate::Manual => (u64::MAX, u64::MAX),
            Gate::Bounded { lower, upper, .. } => {
                let ceil = |bound: u128| (bound * weight).div_ceil(10_u128.pow(18)) as u64;
                (ceil(lower.billionths()), ceil(upper.billionths()))
            }
        }
    }

    pub(super) fn gate_open(&self, bound: u64) -> bool {
        self.stock() < bound || self.stock() == 0
    }

    pub fn stock(&self) -> u64 {
        let ready = |id: &EndpointId| self.endpoints.get(id).is_some_and(|state| state.ready);
        let running = self.items.iter().filter_map(|item| item.running);
        running.filter(|running| ready(&running.endpoint)).count() as u64
    }

    pub(super) fn stock_of(&self, id: EndpointId) -> u64 {
        self.items
            .iter()
            .filter(|item| item.running.is_some_and(|running| running.endpoint == id))
            .count() as u64
    }

    pub(super) fn with_room(&self, item: &Item) -> BTreeMap<EndpointId, u64> {
        let allowed = |id: &EndpointId| {
            item.eligible
                .as_ref()
                .is_none_or(|eligible| eligible.contains(id))
        };
        let bound = |state: &EndpointState| match self.policy.gate {
            Gate::Open | Gate::Manual => u64::MAX,
            Gate::Bounded { upper, .. } => {
                let bound = (upper.billionths() * state.weight.billionths()).div_ceil(10_u128.pow(18));
                (bound as u64).max(1)
            }
        };
        let ready = self
            .endpoints
            .iter()
            .filter(|(id, state)| state.ready && allowed(id));
        ready
            .map(|(&id, state)| (id, self.stock_of(id), bound(state)))
            .filter(|&(_, stock, bound)| stock < bound)
            .map(|(id, stock, _)| (id, stock))
            .collect()
    }

    pub(super) fn has_room(&self, item: &Item) -> bool {
        !self.with_room(item).is_empty()
    }

    pub fn waiting(&self) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(|item| item.running.is_none())
    }

    /// In order.
    pub(super) fn waiting_in(&self, flow: &FlowKey) -> Vec<&Item> {
        let mut of_flow: Vec<&Item> = self.waiting().filter(|item| item.flow == *flow).collect();
        of_flow.sort_by_key(|item| (item.arrived, item.sequence));
        of_flow
    }

    pub(super) fn is_head(&self, item: &Item) -> bool {
        self.waiting_in(&item.flow)[0].id == item.id
    }

    pub(super) fn tag(&self, item: &Item) -> i128 {
        self.flows[&item.flow].finish + step(self.cost(item), self.policy.flows.weight_of(&item.flow.1))
    }

    pub(super) fn cost(&self, item: &Item) -> u64 {
        match self.policy.flows.cost {
            CostUnit::Requests => 1,
            CostUnit::Tokens => self.cost_of(item, Usage::default()),
        }
    }

    pub(super) fn cost_of(&self, item: &Item, usage: Usage) -> u64 {
        let prompt = usage.prompt.map_or(item.prompt, |tokens| tokens.0);
        let cached = usage.cached.map_or(item.cached, |tokens| tokens.0).min(prompt);
        let output = usage.output.map_or(item.output, |tokens| tokens.0);
        ((prompt - cached) * self.policy.weights.input as u64 + output * self.policy.weights.output as u64)
            .max(1)
    }

    pub(super) fn is_saturated(&self) -> bool {
        self.waiting().next().is_some() || (self.out_since.is_none() && self.stock() >= self.bounds().1)
    }

    pub(super) fn find(&self, id: RequestId) -> Option<&Item> {
        self.items.iter().find(|item| item.id == id)
    }

    pub(super) fn item(&self, id: RequestId) -> &Item {
        self.find(id).expect("it is there")
    }

    pub(super) fn item_mut(&mut self, id: RequestId) -> &mut Item {
        self.items
            .iter_mut()
            .find(|item| item.id == id)
            .expect("it is there")
    }

    pub(super) fn running_mut(&mut self, id: RequestId) -> Option<&mut Running> {
        self.items.iter_mut().find(|item| item.id == id)?.running.as_mut()
    }

    pub(super) fn count(&mut self, band: Band, outcome: Outcome) {
        *self.outcomes.entry((band, outcome)).or_default() += 1;
    }

    pub(super) fn forget_flows(&mut self) {
        let deciding = self.deciding.iter().cloned();
        let used: BTreeSet<FlowKey> = self
            .items
            .iter()
            .map(|item| item.flow.clone())
            .chain(deciding)
            .collect();
        let now = self.virtual_now;
        self.flows
            .retain(|key, flow| used.contains(key) || flow.finish > now[key.0 as usize]);
    }

    pub fn flow_keys(&self) -> Vec<(Box<str>, Band)> {
        let mut keys: Vec<_> = self
            .flows
            .keys()
            .map(|(band, name)| (name.clone(), *band))
            .collect();
        keys.sort();
        keys
    }

    pub fn waiting_by_band(&self) -> [u64; 3] {
        BANDS.map(|band| self.waiting().filter(|item| item.flow.0 == band).count() as u64)
    }
}
