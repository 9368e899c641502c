//! Limits that aren't the servers': of identities, classes and bands, of a second, and the window of usage.

use std::collections::BTreeSet;

use penstock_engine::input::{Band, PastUsage};
use penstock_engine::policy::Discipline;
use penstock_engine::units::Decimal;
use penstock_engine::{EndpointId, Instant};

use super::{Item, Leaf, Model, Used};

const SECOND: u64 = 1_000_000_000;
const TOKEN: u128 = 1_000_000_000_000_000_000;

impl Model {
    /// Its identity runs as much as it may.
    pub(super) fn is_at_limit(&self, name: &str) -> bool {
        let running = self
            .items
            .iter()
            .filter(|item| *item.name == *name && item.running.is_some());
        let most = self.policy.flows.max_in_flight;
        most.is_some_and(|most| running.count() as u64 >= most)
    }

    /// As far as that is for it and the endpoints to say.
    pub(super) fn can_run(&self, item: &Item) -> bool {
        !self.is_at_limit(&item.name) && !self.endpoints_for(item).is_empty()
    }

    /// One at the head of its flow.
    pub(super) fn can_go(&self, item: &Item) -> bool {
        self.can_go_below(item, self.bounds().0)
    }

    /// The same with the ceilings of that bound.
    pub(super) fn can_go_below(&self, item: &Item, bound: u64) -> bool {
        let held = self
            .classes
            .get(item.class)
            .is_some_and(|class| self.held.contains(&class.name));
        !held && !self.is_over_ceiling(item.band, bound) && self.can_run(item)
    }

    /// Which endpoints the head of a flow waits for; `None`: any.
    pub(super) fn lane(&self, item: &Item) -> Option<(Option<BTreeSet<EndpointId>>, Vec<EndpointId>)> {
        let class = self.classes.get(item.class);
        let threshold =
            class.is_some_and(|class| class.busy_tokens.is_some() || class.busy_fraction.is_some());
        let excluded = self.excluded(&item.name);
        let any = item.eligible.is_none() && !threshold && excluded.is_empty();
        (!any).then(|| (item.eligible.clone(), excluded))
    }

    pub(super) fn is_over_ceiling(&self, band: Band, bound: u64) -> bool {
        let Some(ceiling) = self.policy.bands.ceilings[band as usize] else {
            return false;
        };
        let stock = self.stock();
        if stock == 0 || ceiling >= Decimal::whole(1) || bound == u64::MAX {
            return false;
        }
        let below = u128::from(stock) * Decimal::ONE < ceiling.billionths() * u128::from(bound);
        let one_left = bound <= 1 || stock < bound - 1;
        !(below && one_left)
    }

    /// One more of its class may wait.
    pub(super) fn class_has_room(&self, item: &Item) -> bool {
        let Some(class) = self.classes.get(item.class) else {
            return true;
        };
        let eligible = |id: &EndpointId| {
            item.eligible
                .as_ref()
                .is_none_or(|eligible| eligible.contains(id))
        };
        let of_it = || self.endpoints.iter().filter(|(id, _)| eligible(id));
        let ready = of_it().filter(|(_, server)| server.ready).count() as u64;
        let listed = of_it().count() as u64;
        let endpoints = if ready > 0 { ready } else { listed.max(1) };
        let there = || self.waiting().filter(|other| other.class == item.class);
        let below = |sum: u64, limit: Option<u64>| limit.is_none_or(|limit| sum < limit * endpoints);
        below(there().count() as u64, class.requests_per_endpoint)
            && below(
                there().map(|item| item.prompt).sum(),
                class.prompt_tokens_per_endpoint,
            )
            && below(
                there().map(|item| item.cached.min(item.prompt)).sum(),
                class.cached_tokens_per_endpoint,
            )
    }

    // The bucket of `max_rate`: rates are multiples of a billionth.

    fn parts(&self) -> Option<u128> {
        self.policy.queue.max_rate.map(|rate| (rate * 1e9) as u128)
    }

    pub(super) fn rate_capacity(&self) -> u128 {
        self.parts()
            .map_or(0, |parts| (parts * u128::from(SECOND)).max(TOKEN))
    }

    /// As of now.
    fn rate_level(&self) -> u128 {
        let added = self.now.since(self.rate.1).as_nanos() * self.parts().unwrap_or(0);
        (self.rate.0 + added).min(self.rate_capacity())
    }

    pub(super) fn fill_rate(&mut self) {
        self.rate = (self.rate_level(), self.now);
    }

    pub(super) fn has_rate(&self) -> bool {
        self.parts().is_none() || self.rate_level() >= TOKEN
    }

    pub(super) fn take_rate(&mut self) {
        self.fill_rate();
        self.rate.0 = self.rate.0.saturating_sub(TOKEN);
    }

    pub(super) fn next_rate(&self) -> Option<Instant> {
        let parts = self.parts().filter(|_| !self.has_rate())?;
        let missing = (TOKEN - self.rate_level()).div_ceil(parts);
        Some(Instant::from_nanos(self.now.as_nanos() + missing as u64))
    }

    // The window of usage: buckets of a second, of a 300th of a window that is longer than 300.

    fn width(&self) -> u64 {
        let window = self.policy.usage_window.as_nanos() as u64;
        if window > 300 * SECOND {
            window.div_ceil(300)
        } else {
            SECOND
        }
    }

    pub(super) fn bucket(&self) -> i64 {
        (self.now.as_nanos() / self.width()) as i64
    }

    pub(super) fn take_used(&mut self, past: Vec<PastUsage>) {
        if self.discipline() != Discipline::Usage {
            return;
        }
        for of in past {
            let unnamed = self.policy.classes.is_empty() && of.class.is_empty();
            let named = self.classes.iter().position(|class| class.name == of.class);
            let Some(class) = named.or(unnamed.then_some(0)) else {
                continue;
            };
            let then = self.now.as_nanos() as i64 - of.ago.as_nanos() as i64;
            let bucket = then.div_euclid(self.width() as i64);
            if of.cost.0 == 0 || bucket + self.kept() <= self.bucket() {
                continue;
            }
            let name = if of.flow.is_empty() {
                "anonymous".into()
            } else {
                of.flow
            };
            let of_model = if self.policy.per_model {
                of.model.clone()
            } else {
                "".into()
            };
            let leaf = ((of.band, of_model), class);
            self.used.push(Used {
                leaf: leaf.clone(),
                name: name.clone(),
                model: of.model,
                bucket,
                cost: of.cost.0,
            });
            self.remember(leaf, &name);
        }
    }

    fn kept(&self) -> i64 {
        (self.policy.usage_window.as_nanos() as u64).div_ceil(self.width()) as i64
    }

    pub(super) fn forget_used(&mut self) {
        let (kept, now) = (self.kept(), self.bucket());
        self.used.retain(|used| used.bucket + kept > now);
        let leaves: BTreeSet<Leaf> = self.nodes.iter().map(|(leaf, _)| leaf.clone()).collect();
        for leaf in leaves {
            self.forget(&leaf);
        }
    }

    /// Of the item's flow and model: what was served in the window, and what runs.
    pub(super) fn usage(&self, item: &Item) -> u128 {
        let leaf = self.leaf(item);
        let served = self
            .used
            .iter()
            .filter(|used| used.leaf == leaf && used.name == item.name && used.model == item.model)
            .map(|used| u128::from(used.cost));
        let running = self
            .items
            .iter()
            .filter(|other| self.leaf(other) == leaf && other.name == item.name && other.model == item.model)
            .filter_map(|other| other.running)
            .filter(|running| running.settled.is_none())
            .map(|running| u128::from(running.cost));
        served.chain(running).sum()
    }
}
