//! What the model counts from its list whenever it is asked: bounds, room, order, costs.

use std::collections::{BTreeMap, BTreeSet};

use penstock_engine::input::{Band, Usage};
use penstock_engine::policy::{CostUnit, Gate};
use penstock_engine::units::Decimal;
use penstock_engine::{EndpointId, Outcome, RequestId};

use super::{BANDS, FlowKey, Item, Model, Running, Server, step};

/// Two decimals multiplied are in units of this.
const ONE: u128 = Decimal::ONE * Decimal::ONE;

/// What it adds to a bound of the pool.
fn share(server: &Server, bound: Decimal) -> u128 {
    let full = bound.billionths() * server.state.weight.billionths();
    let ramp = server
        .ramp
        .map_or(u128::MAX, |(bound, _)| u128::from(bound) * ONE);
    full.min(ramp).saturating_sub(u128::from(server.foreign) * ONE)
}

impl Model {
    pub(super) fn bounds(&self) -> (u64, u64) {
        let ready = || self.endpoints.values().filter(|server| server.state.ready);
        match self.policy.gate {
            Gate::Open | Gate::Manual => (u64::MAX, u64::MAX),
            Gate::Bounded { lower, upper, .. } => {
                let ceil = |bound: Decimal| {
                    let sum: u128 = ready().map(|server| share(server, bound)).sum();
                    sum.div_ceil(ONE) as u64
                };
                (ceil(lower), ceil(upper))
            }
        }
    }

    /// What one endpoint takes at a time.
    fn own_bound(&self, server: &Server) -> u64 {
        match self.policy.gate {
            Gate::Open | Gate::Manual => u64::MAX,
            Gate::Bounded { upper, .. } => (share(server, upper).div_ceil(ONE) as u64).max(1),
        }
    }

    pub(super) fn served_at(&mut self, id: EndpointId) {
        if let Some(server) = self.endpoints.get_mut(&id)
            && let Some((bound, served)) = server.ramp
        {
            server.ramp = Some(if served + 1 == bound {
                (2 * bound, 0)
            } else {
                (bound, served + 1)
            });
        }
        self.end_slow_starts();
    }

    /// Those that hold nothing back any more.
    pub(super) fn end_slow_starts(&mut self) {
        let servers = self.endpoints.values().copied().map(|server| {
            let full = self.own_bound(&Server {
                ramp: None,
                foreign: 0,
                ..server
            });
            let bounded = matches!(self.policy.gate, Gate::Bounded { .. });
            bounded && server.ramp.is_some_and(|(bound, _)| bound < full)
        });
        let slow: Vec<bool> = servers.collect();
        for (server, slow) in self.endpoints.values_mut().zip(slow) {
            server.ramp = server.ramp.filter(|_| slow);
        }
    }

    pub(super) fn gate_open(&self, bound: u64) -> bool {
        self.stock() < bound || self.stock() == 0
    }

    pub fn stock(&self) -> u64 {
        let ready = |id: &EndpointId| self.endpoints.get(id).is_some_and(|server| server.state.ready);
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
        let ready = self
            .endpoints
            .iter()
            .filter(|(id, server)| server.state.ready && allowed(id));
        ready
            .map(|(&id, server)| (id, self.stock_of(id), self.own_bound(server)))
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
