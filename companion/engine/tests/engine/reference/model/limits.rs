//! Limits apart from those of endpoints: of identities, classes, bands and the rate, and the usage window.

use std::collections::BTreeSet;

use penstock_engine::input::{PastUsage, RunningUsage};
use penstock_engine::policy::Discipline;
use penstock_engine::units::Decimal;
use penstock_engine::{EndpointId, Instant};

use super::{Item, Leaf, Level, Model, Used};

const SECOND: u64 = 1_000_000_000;
const TOKEN: u128 = 1_000_000_000_000_000_000;

impl Model {
    /// Whether the identity is at its limit of running requests.
    pub(super) fn is_at_limit(&self, name: &str) -> bool {
        let running = self.items.iter().filter(|item| *item.name == *name && item.running.is_some());
        let limit = self.policy.flows.max_in_flight;
        limit.is_some_and(|limit| running.count() as u64 >= limit) || self.is_held(name)
    }

    /// Whether the item's identity and some endpoint admit it.
    pub(super) fn can_run(&self, item: &Item) -> bool {
        !self.is_at_limit(&item.name) && !self.endpoints_for(item).is_empty()
    }

    /// Whether the head of a flow can be dispatched.
    pub(super) fn can_go(&self, item: &Item) -> bool {
        self.can_go_below(item, self.bounds().0)
    }

    /// Whether the head of a flow can be dispatched, where ceilings are relative to `bound`.
    pub(super) fn can_go_below(&self, item: &Item, bound: u64) -> bool {
        let blocked =
            self.classes.get(item.class).is_some_and(|class| self.blocked_classes.contains(&class.name));
        !blocked && !self.is_over_ceiling(item.band, bound) && self.can_run(item)
    }

    /// The endpoints that the head of a flow waits for; `None`: any.
    pub(super) fn lane(&self, item: &Item) -> Option<(Option<BTreeSet<EndpointId>>, Vec<EndpointId>)> {
        let class = self.classes.get(item.class);
        let threshold =
            class.is_some_and(|class| class.busy_tokens.is_some() || class.busy_fraction.is_some());
        let excluded = self.excluded(&item.name);
        let any = item.eligible.is_none() && !threshold && excluded.is_empty();
        (!any).then(|| (item.eligible.clone(), excluded))
    }

    pub(super) fn is_over_ceiling(&self, band: Level, bound: u64) -> bool {
        let Some(ceiling) = self.policy.bands.ceilings[band.shown() as usize] else {
            return false;
        };
        let stock = self.filled();
        if stock == 0 || ceiling >= Decimal::whole(1) || bound == u64::MAX {
            return false;
        }
        let below = u128::from(stock) * Decimal::ONE < ceiling.billionths() * u128::from(bound);
        let one_left = bound <= 1 || stock < bound - 1;
        !(below && one_left)
    }

    /// Whether one more request of its class may wait.
    pub(super) fn class_has_room(&self, item: &Item) -> bool {
        let Some(class) = self.classes.get(item.class) else {
            return true;
        };
        let ready = self.endpoints.values().filter(|server| server.ready).count() as u64;
        let listed = self.endpoints.len() as u64;
        let endpoints = if ready > 0 { ready } else { listed.max(1) };
        let in_class = || self.waiting().filter(|other| other.class == item.class);
        let below = |sum: u64, limit: Option<u64>| limit.is_none_or(|limit| sum < limit * endpoints);
        below(in_class().count() as u64, class.requests_per_endpoint)
            && below(in_class().map(|item| item.prompt).sum(), class.prompt_tokens_per_endpoint)
            && below(
                in_class().map(|item| item.cached.min(item.prompt)).sum(),
                class.cached_tokens_per_endpoint,
            )
    }

    // The bucket of `max_rate`. Rates are multiples of a billionth.

    fn billionths(&self) -> Option<u128> {
        self.policy.queue.max_rate.map(|rate| (rate * 1e9) as u128)
    }

    pub(super) fn rate_capacity(&self) -> u128 {
        self.billionths().map_or(0, |billionths| (billionths * u128::from(SECOND)).max(TOKEN))
    }

    /// The level of the bucket now.
    fn rate_level(&self) -> u128 {
        let added = self.now.since(self.rate.1).as_nanos() * self.billionths().unwrap_or(0);
        (self.rate.0 + added).min(self.rate_capacity())
    }

    pub(super) fn fill_rate(&mut self) {
        self.rate = (self.rate_level(), self.now);
    }

    pub(super) fn has_rate(&self) -> bool {
        self.billionths().is_none() || self.rate_level() >= TOKEN
    }

    pub(super) fn take_rate_token(&mut self) {
        self.fill_rate();
        self.rate.0 = self.rate.0.saturating_sub(TOKEN);
    }

    pub(super) fn next_rate(&self) -> Option<Instant> {
        let billionths = self.billionths().filter(|_| !self.has_rate())?;
        let missing = (TOKEN - self.rate_level()).div_ceil(billionths);
        Some(Instant::from_nanos(self.now.as_nanos() + missing as u64))
    }

    // The usage window has buckets of 1 s, or of 1/300 of a window longer than 300 s.

    fn width(&self) -> u64 {
        let window = self.policy.usage_window.as_nanos() as u64;
        if window > 300 * SECOND { window.div_ceil(300) } else { SECOND }
    }

    pub(super) fn bucket(&self) -> i64 {
        (self.now.as_nanos() / self.width()) as i64
    }

    pub(super) fn add_past_usage(&mut self, past: Vec<PastUsage>) {
        if self.discipline() != Discipline::Usage {
            return;
        }
        for usage in past {
            let Some(class) = self.class_by_name(&usage.class) else {
                continue;
            };
            let then = self.now.as_nanos() as i64 - usage.ago.as_nanos() as i64;
            let bucket = then.div_euclid(self.width() as i64);
            if usage.cost.0 == 0 || bucket + self.buckets_kept() <= self.bucket() {
                continue;
            }
            let name = named(usage.flow);
            let leaf = self.leaf_of_model(usage.band.into(), &usage.model, class);
            self.used.push(Used {
                leaf: leaf.clone(),
                name: name.clone(),
                model: usage.model,
                bucket,
                cost: usage.cost.0,
            });
            self.ensure_flow(leaf, &name);
        }
    }

    fn class_by_name(&self, name: &str) -> Option<usize> {
        let unnamed = self.policy.classes.is_empty() && name.is_empty();
        let named = self.classes.iter().position(|class| *class.name == *name);
        named.or(unnamed.then_some(0))
    }

    fn leaf_of_model(&self, band: Level, model: &str, class: usize) -> Leaf {
        let of_model = if self.policy.per_model { model } else { "" };
        ((band, of_model.into()), class)
    }

    pub(super) fn set_running_elsewhere(&mut self, running: Vec<RunningUsage>) {
        if self.discipline() != Discipline::Usage {
            return;
        }
        for usage in running {
            let Some(class) = self.class_by_name(&usage.class) else {
                continue;
            };
            let name = named(usage.flow);
            let leaf = self.leaf_of_model(usage.band.into(), &usage.model, class);
            self.ensure_flow(leaf.clone(), &name);
            let key = (leaf.clone(), name, usage.model);
            if usage.running.0 > 0 {
                self.elsewhere.insert(key, usage.running.0);
            } else {
                self.elsewhere.remove(&key);
            }
            self.drop_unused_flows(&leaf);
        }
    }

    fn buckets_kept(&self) -> i64 {
        (self.policy.usage_window.as_nanos() as u64).div_ceil(self.width()) as i64
    }

    pub(super) fn expire_usage(&mut self) {
        let (buckets_kept, now) = (self.buckets_kept(), self.bucket());
        self.used.retain(|used| used.bucket + buckets_kept > now);
        let leaves: BTreeSet<Leaf> = self.nodes.iter().map(|(leaf, _)| leaf.clone()).collect();
        for leaf in leaves {
            self.drop_unused_flows(&leaf);
        }
    }

    /// The usage of the item's identity and model, over all bands and classes: served within the window, and running here
    /// or elsewhere.
    pub(super) fn usage(&self, item: &Item) -> u128 {
        let served = self
            .used
            .iter()
            .filter(|used| used.name == item.name && used.model == item.model)
            .map(|used| u128::from(used.cost));
        let running = self
            .items
            .iter()
            .filter(|other| other.name == item.name && other.model == item.model)
            .filter_map(|other| other.running)
            .filter(|running| running.settled.is_none())
            .map(|running| u128::from(running.cost));
        let elsewhere = self
            .elsewhere
            .iter()
            .filter(|((_, name, model), _)| *name == item.name && *model == item.model)
            .map(|(_, &running)| u128::from(running));
        served.chain(running).chain(elsewhere).sum()
    }
}

/// The identity of a flow's name.
fn named(flow: Box<str>) -> Box<str> {
    if flow.is_empty() { "anonymous".into() } else { flow }
}
