//! Configuration reloads: the difference between the current configuration and the scenario's. A running companion
//! receives each change; filters and companions that start later find the current configuration.
//!
//! A reload never raises a bound above the scenario's, so the invariants can use the scenario's bounds.

use std::collections::{BTreeMap, BTreeSet};

use penstock_control::{EndpointSettings, Event, PoolEvent, Settings};
use penstock_engine::Policy;
use penstock_engine::policy::{BandMode, CostUnit, Discipline, Gate, StockUnit, TokenWeights};
use penstock_engine::units::Decimal;
use penstock_wire as wire;

use super::World;
use super::event::Repair;
use super::rng::Rng;
use super::time::SECOND;

/// Differences between the current configuration and the scenario's.
#[derive(Debug, Default)]
pub(super) struct Overrides {
    removed_pools: BTreeSet<usize>,
    removed_servers: BTreeSet<usize>,
    /// Policies by pool.
    rules: BTreeMap<usize, Policy>,
}

impl World {
    /// The settings with which a companion of this term starts now.
    pub(super) fn current_settings(&self, term: u64) -> Settings {
        let servers = &self.servers;
        let ready = |address: &str| servers.iter().any(|server| server.address == address && server.ready);
        let mut settings = self.scenario.settings(term, self.policy_version, &ready);
        settings.policy = self.current_policy();
        for (index, pool) in settings.pools.iter_mut().enumerate() {
            if let Some(rules) = self.overrides.rules.get(&index) {
                pool.policy = rules.clone();
            }
            pool.endpoints.retain(|endpoint| !self.is_removed(&endpoint.address));
        }
        self.retain_configured(&mut settings.pools);
        settings
    }

    /// The policy that filters receive now.
    pub(super) fn current_policy(&self) -> wire::Policy {
        let mut policy = self.scenario.policy(self.policy_version);
        for (index, rules) in &self.overrides.rules {
            if let Some(pool) = policy.pools.get_mut(*index) {
                pool.ttl_ms = u64::try_from(rules.queue.ttl.as_millis()).unwrap_or(u64::MAX);
            }
        }
        self.retain_configured(&mut policy.pools);
        policy
    }

    /// Drops the removed pools from a list of all pools.
    fn retain_configured<T>(&self, pools: &mut Vec<T>) {
        let removed = &self.overrides.removed_pools;
        let mut indices = 0..;
        pools.retain(|_| indices.next().is_some_and(|index| !removed.contains(&index)));
    }

    pub(super) fn is_removed(&self, address: &str) -> bool {
        self.overrides.removed_servers.iter().any(|index| self.servers[*index].address == address)
    }

    fn reload(&mut self) {
        self.policy_version += 1;
        // A running control keeps its term and ignores the settings' term.
        let settings = self.current_settings(0);
        self.deliver_to_all(&Event::Settings(Box::new(settings)));
    }

    /// Changes a pool's policy, or restores the scenario's.
    pub(super) fn change_rules(&mut self) {
        let pool = self.rng.below(self.scenario.pools.len() as u64) as usize;
        if self.overrides.rules.remove(&pool).is_none() || self.rng.percent(70) {
            let rules = self.draw_rules(pool);
            self.overrides.rules.insert(pool, rules);
        }
        self.reload();
    }

    fn draw_rules(&mut self, pool: usize) -> Policy {
        let mut rules = self.scenario.pools[pool].policy.clone();
        self.draw_weights(&mut rules);
        let rng = &mut self.rng;
        rules.flows.discipline = rng.choose(&Discipline::ALL);
        rules.flows.cost = rng.choose(&[CostUnit::Tokens, CostUnit::Requests]);
        rules.flows.default_weight = rng.choose(&[1.0, 2.5]);
        rules.flows.max_in_flight = rng.percent(20).then_some(2);
        rules.flows.max_in_flight_per_endpoint = rng.percent(20).then_some(1);
        rules.per_model = rng.percent(30);
        rules.bands.mode = rng.choose(&[BandMode::Strict, BandMode::Weighted([1.0, 2.0, 3.0])]);
        rules.queue.total_capacity = rng.choose(&[0, 5, 1_000]);
        rules.queue.flow_capacity = rng.choose(&[1, 100]);
        rules.queue.enabled = !rng.percent(10);
        rules.queue.max_rate = rng.percent(10).then_some(20.0);
        rules.queue.ttl = rules.queue.ttl * rng.choose(&[1, 2, 4]) / 2;
        let one = Decimal::whole(1);
        rules.gate = match rules.gate {
            // Switches between the two kinds of gate.
            Gate::Auto { initial } if rng.percent(50) => Gate::requests(initial),
            Gate::Bounded { unit: StockUnit::Requests, upper, .. } if upper > one && rng.percent(50) => {
                Gate::requests(one)
            }
            gate => gate,
        };
        rules
    }

    /// Weights by which the unit of costs, and what flows are ahead or behind, changes a thousandfold. They name tenants, some of which
    /// share an account until then.
    fn draw_weights(&mut self, rules: &mut Policy) {
        let rng = &mut Rng::new(self.scenario.seed ^ self.policy_version ^ 0x5745_4947);
        for flow in 0..3 {
            if rng.percent(40) {
                let weight = rng.choose(&[0.001, 0.3, 1.0, 40.0]);
                rules.flows.weights.insert(format!("f{flow}").into(), weight);
                self.summary.reweightings += 1;
            }
        }
        // The world's accounts of budgets count tokens by the weights of the scenario.
        if rules.flows.budgets.is_empty() && rng.percent(30) {
            rules.weights = TokenWeights { input: 300.0, output: 0.0 };
        }
    }

    /// Removes an endpoint from its pool's list for a while.
    pub(super) fn remove_endpoint(&mut self) {
        let server = self.rng.below(self.servers.len() as u64) as usize;
        if !self.overrides.removed_servers.insert(server) {
            return;
        }
        self.publish_endpoints(server);
        let mean = self.rng.choose(&[SECOND / 5, 5 * SECOND]);
        self.schedule_repair(Repair::RemovedEndpoint(server), mean);
    }

    pub(super) fn restore_endpoint(&mut self, server: usize) {
        if self.overrides.removed_servers.remove(&server) {
            self.publish_endpoints(server);
        }
    }

    /// Sends the endpoint list of a server's pool, alone or as part of a reload.
    fn publish_endpoints(&mut self, server: usize) {
        if self.rng.percent(30) {
            return self.reload();
        }
        let name = &self.scenario.pools[self.servers[server].pool].name;
        let settings = self.current_settings(0);
        let pool = settings.pools.into_iter().find(|pool| pool.name == *name);
        let endpoints: Vec<EndpointSettings> = pool.map(|pool| pool.endpoints).unwrap_or_default();
        let pool = name.as_str().into();
        self.deliver_to_all(&Event::Pool(pool, PoolEvent::Endpoints { endpoints, pending: Vec::new() }));
    }

    /// Removes a pool from the configuration for a while, unless it is the only one left.
    pub(super) fn remove_pool(&mut self) {
        let pool = self.rng.below(self.scenario.pools.len() as u64) as usize;
        let configured = self.scenario.pools.len() - self.overrides.removed_pools.len();
        if configured <= 1 || !self.overrides.removed_pools.insert(pool) {
            return;
        }
        self.reload();
        let mean = self.rng.choose(&[SECOND / 5, 2 * SECOND, 10 * SECOND]);
        self.schedule_repair(Repair::RemovedPool(pool), mean);
    }

    pub(super) fn restore_pool(&mut self, pool: usize) {
        if self.overrides.removed_pools.remove(&pool) {
            self.reload();
        }
    }

    /// Restores the scenario's configuration.
    pub(super) fn restore_configuration(&mut self) {
        self.overrides = Overrides::default();
        self.reload();
    }
}
