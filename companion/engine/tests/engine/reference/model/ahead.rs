//! How many requests go before a new one: counted from the list, level by level.

use std::collections::BTreeMap;

use penstock_engine::policy::{BandMode, Discipline};

use super::virtual_time::{in_cost_per_weight, step};
use super::{BANDS, Item, Level, Model};

const ONE: f64 = 18_446_744_073_709_551_616.0;
/// The tag of requests that go after all others.
const FAR: i128 = 1 << 120;

/// What waits of a child of a level.
#[derive(Clone, Copy, Default)]
struct Backlog {
    requests: u64,
    cost: u64,
    weight: f64,
}

/// Requests, and their cost.
#[derive(Clone, Copy, Default)]
struct Amount(f64, f64);

impl Amount {
    fn plus(self, other: Self) -> Self {
        Self(self.0 + other.0, self.1 + other.1)
    }
}

/// What goes within `turns` of cost per weight: children whose backlogs last about equally long count as one.
fn within(backlogs: impl IntoIterator<Item = Backlog>, turns: f64) -> Amount {
    let mut groups: BTreeMap<u64, [u128; 4]> = BTreeMap::new();
    for backlog in backlogs.into_iter().filter(|backlog| backlog.requests > 0) {
        let lasts = backlog.cost as f64 / backlog.weight;
        let rate = backlog.requests as f64 * backlog.weight / backlog.cost as f64;
        let sums = groups.entry(lasts.to_bits() >> 50).or_default();
        let added = [
            backlog.requests.into(),
            backlog.cost.into(),
            (backlog.weight * ONE) as u128,
            (rate * ONE) as u128,
        ];
        for (sum, added) in sums.iter_mut().zip(added) {
            *sum += added;
        }
    }
    let of_group = |[requests, cost, weight, rate]: [u128; 4]| {
        let part = |all: u128, per_turn: u128| (all as f64).min(per_turn as f64 / ONE * turns);
        Amount(part(requests, rate), part(cost, weight))
    };
    groups.into_values().map(of_group).fold(Amount::default(), Amount::plus)
}

fn backlog<'a>(items: impl Iterator<Item = &'a Item>, cost: impl Fn(&Item) -> u64, weight: f64) -> Backlog {
    items.fold(Backlog { weight, ..Backlog::default() }, |sum, item| Backlog {
        requests: sum.requests + 1,
        cost: sum.cost + cost(item),
        ..sum
    })
}

impl Model {
    pub(super) fn requests_ahead(&self, item: &Item) -> u64 {
        let in_leaf = self.ahead_in_leaf(item);
        let in_tree = self.ahead_in_tree(item, in_leaf);
        let in_band = self.ahead_in_band(item, in_tree);
        let total = in_band.0 + self.ahead_in_other_bands(item, in_band);
        (total - 1e-6).ceil() as u64
    }

    fn ahead_in_leaf(&self, item: &Item) -> Amount {
        let of_leaf = || self.waiting().filter(|other| self.leaf(other) == self.leaf(item));
        let all = backlog(of_leaf(), |other| self.cost(other), 1.0);
        if self.discipline() == Discipline::Fifo {
            return Amount(all.requests as f64, all.cost as f64);
        }
        let turn = |other: &Item| match self.discipline() {
            Discipline::RoundRobin => 1,
            _ => self.cost(other),
        };
        let mut flows: BTreeMap<Box<str>, Vec<&Item>> = BTreeMap::new();
        for other in of_leaf() {
            flows.entry(other.name.clone()).or_default().push(other);
        }
        let own = flows.remove(&item.name).unwrap_or_default();
        let weight = self.policy.flows.weight_of(&item.name);
        let cost = own.iter().map(|other| turn(other)).sum::<u64>() + turn(item);
        let turns = (cost as f64 / weight + self.lag(item)).max(0.0);
        let others = flows
            .iter()
            .map(|(name, items)| backlog(items.iter().copied(), turn, self.policy.flows.weight_of(name)));
        let mut others = within(others, turns);
        if self.discipline() == Discipline::RoundRobin {
            others.1 = others.0 * all.cost as f64 / all.requests.max(1) as f64;
        }
        let own_cost = own.iter().map(|other| self.cost(other)).sum::<u64>();
        others.plus(Amount(own.len() as f64, own_cost as f64))
    }

    /// How far the flow is ahead of the next one.
    fn lag(&self, item: &Item) -> f64 {
        let leaf = self.leaf(item);
        if self.discipline() == Discipline::Usage {
            let tag = |item: &Item| {
                let far = if *item.name == *"anonymous" { FAR } else { 0 };
                step(self.usage(item), self.policy.flows.weight_of(&item.name)) + far
            };
            let could_go = |other: &&Item| {
                let open = self.lane(other).is_none() || !self.endpoints_for(other).is_empty();
                self.leaf(other) == leaf && self.is_head(other) && !self.is_at_limit(&other.name) && open
            };
            let least = self.waiting().filter(could_go).map(&tag).min();
            return least.map_or(0.0, |least| in_cost_per_weight(tag(item) - least));
        }
        let lag = self.virtual_times.get(&leaf).map_or(0, |times| times.lag(&item.name));
        in_cost_per_weight(lag)
    }

    fn ahead_in_tree(&self, item: &Item, in_leaf: Amount) -> Amount {
        if self.classes.len() <= 1 {
            return in_leaf;
        }
        let of_class = |class: usize| {
            self.waiting().filter(move |other| self.tree(other) == self.tree(item) && other.class == class)
        };
        let by_class_cost = |class: usize| {
            let quantum = self.classes[class].quantum as f64;
            backlog(of_class(class), |other| self.class_cost(other), quantum)
        };
        let own = by_class_cost(item.class);
        let class_cost = in_leaf.0 * own.cost as f64 / own.requests.max(1) as f64;
        let turns = (class_cost + self.class_cost(item) as f64) / own.weight;
        let others = (0..self.classes.len()).filter(|class| *class != item.class);
        others.fold(in_leaf, |sum, class| {
            let Amount(requests, _) = within([by_class_cost(class)], turns);
            let all = backlog(of_class(class), |other| self.cost(other), 1.0);
            sum.plus(Amount(requests, requests * all.cost as f64 / all.requests.max(1) as f64))
        })
    }

    fn ahead_in_band(&self, item: &Item, in_tree: Amount) -> Amount {
        if !self.policy.per_model {
            return in_tree;
        }
        let mut models: BTreeMap<Box<str>, Vec<&Item>> = BTreeMap::new();
        let others = |other: &&Item| other.band == item.band && other.model != item.model;
        for other in self.waiting().filter(others) {
            models.entry(other.model.clone()).or_default().push(other);
        }
        let models =
            models.into_values().map(|items| backlog(items.into_iter(), |other| self.cost(other), 1.0));
        in_tree.plus(within(models, in_tree.1 + self.cost(item) as f64))
    }

    fn ahead_in_other_bands(&self, item: &Item, in_band: Amount) -> f64 {
        let weight = |band: Level| match self.policy.bands.mode {
            BandMode::Weighted(weights) if band != Level::Demoted => weights[band as usize],
            BandMode::Strict | BandMode::Weighted(_) => 0.0,
        };
        let turns = (in_band.1 + self.cost(item) as f64) / weight(item.band);
        let mut sum = 0.0;
        for band in BANDS.into_iter().filter(|band| *band != item.band) {
            let of_band = self.waiting().filter(|other| other.band == band);
            let all = backlog(of_band, |other| self.cost(other), weight(band));
            let is_strict = weight(item.band) == 0.0 && weight(band) == 0.0;
            sum += if weight(item.band) == 0.0 && weight(band) > 0.0 || is_strict && band < item.band {
                all.requests as f64
            } else if is_strict || weight(band) == 0.0 {
                0.0
            } else {
                within([all], turns).0
            };
        }
        sum
    }
}
