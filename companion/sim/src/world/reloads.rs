//! Other configurations: what is in force now where that isn't the setting's own, told to a companion that lives, and
//! found by filters and companions that begin.
//!
//! Bounds never rise over the setting's, so that what is held against these still holds.

use std::collections::{BTreeMap, BTreeSet};

use penstock_control::{EndpointSettings, Event, Settings};
use penstock_engine::Policy;
use penstock_engine::policy::{BandMode, CostUnit, Discipline, Gate, StockUnit};
use penstock_engine::units::Decimal;
use penstock_wire as wire;

use super::World;
use super::agenda::SECOND;
use super::faults::Fault;

/// What differs from the setting.
#[derive(Debug, Default)]
pub(super) struct Differing {
    /// Pools that the configuration doesn't have.
    dropped: BTreeSet<usize>,
    /// Servers that their pools don't list.
    absent: BTreeSet<usize>,
    /// Rules of pools.
    rules: BTreeMap<usize, Policy>,
}

impl World {
    /// What a companion of this term is made with now.
    pub(super) fn settings_in_force(&self, term: u64) -> Settings {
        let servers = &self.servers;
        let ready = |address: &str| servers.iter().any(|it| it.address == address && it.listed);
        let mut settings = self.setting.settings(term, self.policy, &ready);
        settings.policy = self.policy_in_force();
        for (pool, of) in settings.pools.iter_mut().enumerate() {
            if let Some(rules) = self.differing.rules.get(&pool) {
                of.policy = rules.clone();
            }
            of.endpoints.retain(|endpoint| !self.is_absent(&endpoint.address));
        }
        let dropped = &self.differing.dropped;
        let mut pool = 0..;
        settings
            .pools
            .retain(|_| pool.next().is_some_and(|pool| !dropped.contains(&pool)));
        settings
    }

    /// What filters are told now.
    pub(super) fn policy_in_force(&self) -> wire::Policy {
        let mut policy = self.setting.policy(self.policy);
        for (pool, rules) in &self.differing.rules {
            if let Some(of) = policy.pools.get_mut(*pool) {
                of.ttl_ms = u64::try_from(rules.queue.ttl.as_millis()).unwrap_or(u64::MAX);
            }
        }
        let dropped = &self.differing.dropped;
        let mut pool = 0..;
        policy
            .pools
            .retain(|_| pool.next().is_some_and(|pool| !dropped.contains(&pool)));
        policy
    }

    fn is_absent(&self, address: &str) -> bool {
        let absent = &self.differing.absent;
        absent
            .iter()
            .any(|server| self.servers[*server].address == address)
    }

    fn reload(&mut self) {
        self.policy += 1;
        // A control's term is its own, whatever it is told.
        let settings = self.settings_in_force(0);
        self.tell_companion(Event::Settings(Box::new(settings)));
    }

    /// A pool has other rules from now on.
    pub(super) fn retune(&mut self) {
        let pool = self.dice.below(self.setting.pools.len() as u64) as usize;
        if self.differing.rules.remove(&pool).is_none() || self.dice.percent(70) {
            let rules = self.other_rules(pool);
            self.differing.rules.insert(pool, rules);
        }
        self.reload();
    }

    fn other_rules(&mut self, pool: usize) -> Policy {
        let mut rules = self.setting.pools[pool].policy.clone();
        let dice = &mut self.dice;
        rules.flows.discipline = dice.one(&Discipline::ALL);
        rules.flows.cost = dice.one(&[CostUnit::Tokens, CostUnit::Requests]);
        rules.flows.default_weight = dice.one(&[1.0, 2.5]);
        rules.flows.max_in_flight = dice.percent(20).then_some(2);
        rules.flows.max_in_flight_per_endpoint = dice.percent(20).then_some(1);
        rules.per_model = dice.percent(30);
        rules.bands.mode = dice.one(&[BandMode::Strict, BandMode::Weighted([1.0, 2.0, 3.0])]);
        rules.queue.total_capacity = dice.one(&[0, 5, 1_000]);
        rules.queue.flow_capacity = dice.one(&[1, 100]);
        rules.queue.enabled = !dice.percent(10);
        rules.queue.max_rate = dice.percent(10).then_some(20.0);
        rules.queue.ttl = rules.queue.ttl * dice.one(&[1, 2, 4]) / 2;
        let one = Decimal::whole(1);
        rules.gate = match rules.gate {
            // The gate counts for a while, and doesn't.
            Gate::Auto { initial } if dice.percent(50) => Gate::Bounded {
                unit: StockUnit::Requests,
                lower: initial,
                upper: initial,
                watermark: initial,
            },
            Gate::Bounded {
                unit: StockUnit::Requests,
                upper,
                ..
            } if upper > one && dice.percent(50) => Gate::Bounded {
                unit: StockUnit::Requests,
                lower: one,
                upper: one,
                watermark: one,
            },
            gate => gate,
        };
        rules
    }

    /// A pool's list of endpoints is without one for a while, told by itself or with everything else.
    pub(super) fn relist(&mut self) {
        let server = self.dice.below(self.servers.len() as u64) as usize;
        if !self.differing.absent.insert(server) {
            return;
        }
        self.tell_list(server);
        let mean = self.dice.one(&[SECOND / 5, 5 * SECOND]);
        self.heal_later(Fault::Absent(server), mean);
    }

    pub(super) fn list_again(&mut self, server: usize) {
        if self.differing.absent.remove(&server) {
            self.tell_list(server);
        }
    }

    fn tell_list(&mut self, server: usize) {
        if self.dice.percent(30) {
            return self.reload();
        }
        let pool = &self.setting.pools[self.servers[server].pool].name;
        let settings = self.settings_in_force(0);
        let of = settings.pools.into_iter().find(|it| it.name == *pool);
        let endpoints: Vec<EndpointSettings> = of.map(|it| it.endpoints).unwrap_or_default();
        let pool = pool.as_str().into();
        self.tell_companion(Event::Endpoints { pool, endpoints });
    }

    /// A pool is taken out of the configuration for a while, unless it is the last.
    pub(super) fn drop_pool(&mut self) {
        let pool = self.dice.below(self.setting.pools.len() as u64) as usize;
        let left = self.setting.pools.len() - self.differing.dropped.len();
        if left <= 1 || !self.differing.dropped.insert(pool) {
            return;
        }
        self.reload();
        let mean = self.dice.one(&[SECOND / 5, 2 * SECOND, 10 * SECOND]);
        self.heal_later(Fault::Dropped(pool), mean);
    }

    pub(super) fn name_again(&mut self, pool: usize) {
        if self.differing.dropped.remove(&pool) {
            self.reload();
        }
    }

    /// Everything is as the setting says.
    pub(super) fn restore(&mut self) {
        self.differing = Differing::default();
        self.reload();
    }
}
