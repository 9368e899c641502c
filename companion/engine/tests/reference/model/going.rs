//! Who goes next, and what that costs whom.

use std::cmp::Reverse;

use penstock_engine::policy::{BandMode, CostUnit, Discipline, Order};
use penstock_engine::{EndpointId, Outcome, RequestId};

use penstock_engine::input::Band;

use super::ring::{QUARTERS, Ring, Taken};
use super::said::Said;
use super::tags::{Tags, step};
use super::{BANDS, Item, Leaf, Model, Running, Tree};

impl Model {
    pub(super) fn tree(&self, item: &Item) -> Tree {
        let model = if self.policy.per_model {
            item.model.clone()
        } else {
            "".into()
        };
        (item.band, model)
    }

    pub(super) fn leaf(&self, item: &Item) -> Leaf {
        (self.tree(item), item.class)
    }

    /// What a visit of one of that weight grants, in quarters; `tokens` to a weight of 1, or one request.
    fn quantum(&self, weight: f64, tokens: u64) -> u64 {
        let unit = match self.policy.flows.cost {
            CostUnit::Tokens => tokens,
            CostUnit::Requests => 1,
        };
        (weight * (unit * QUARTERS) as f64) as u64
    }

    pub(super) fn band_quantum(&self, band: Band) -> u64 {
        match self.policy.bands.mode {
            BandMode::Strict => 0,
            BandMode::Weighted(weights) => self.quantum(weights[band as usize], 100),
        }
    }

    /// What waits has changed, or who may: every level hears of it.
    pub(super) fn notice(&mut self) {
        let waiting: Vec<Item> = self.waiting().cloned().collect();
        let mut bands: Vec<(Band, u64)> = Vec::new();
        for band in BANDS {
            let quantum = self.band_quantum(band);
            if quantum > 0 && waiting.iter().any(|item| item.band == band) {
                bands.push((band, quantum));
            }
        }
        if let Some(ring) = &mut self.band_ring {
            ring.notice(&bands);
        }
        let model_quantum = self.quantum(1.0, 1_024);
        for item in &waiting {
            let (tree, leaf) = (self.tree(item), self.leaf(item));
            if self.policy.per_model {
                self.model_rings.entry(tree.0).or_insert_with(Ring::joining);
            }
            if self.classes.len() > 1 {
                let all = self.classes.iter().enumerate();
                let all = all
                    .map(|(class, of)| (class, of.quantum * QUARTERS))
                    .collect::<Vec<_>>();
                self.class_rings.entry(tree).or_insert_with(|| Ring::fixed(all));
            }
            if self.discipline() == Discipline::Drr {
                self.flow_rings.entry(leaf).or_insert_with(Ring::joining);
            } else {
                let discipline = self.discipline();
                self.tags.entry(leaf).or_insert_with(|| Tags::new(discipline));
            }
        }
        let those = |of: &dyn Fn(&Item) -> bool| {
            waiting
                .iter()
                .filter(|item| of(item))
                .cloned()
                .collect::<Vec<_>>()
        };
        for (band, ring) in &mut self.model_rings {
            let models = those(&|item| item.band == *band);
            let models: Vec<_> = models
                .into_iter()
                .map(|item| (item.model, model_quantum))
                .collect();
            ring.notice(&models);
        }
        let trees: Vec<Tree> = self.class_rings.keys().cloned().collect();
        for tree in trees {
            let there = those(&|item| self.tree(item) == tree);
            let there = there
                .iter()
                .map(|item| (item.class, self.classes[item.class].quantum * QUARTERS));
            let there: Vec<_> = there.collect();
            self.class_rings.get_mut(&tree).expect("just seen").notice(&there);
        }
        let leaves: Vec<Leaf> = self.flow_rings.keys().cloned().collect();
        for leaf in leaves {
            let there = those(&|item| self.leaf(item) == leaf);
            let weight = |item: &Item| self.policy.flows.weight_of(&item.name);
            let there = there
                .iter()
                .map(|item| (item.name.clone(), self.quantum(weight(item), 1_024)));
            let there: Vec<_> = there.collect();
            self.flow_rings.get_mut(&leaf).expect("just seen").notice(&there);
        }
        let leaves: Vec<Leaf> = self.tags.keys().cloned().collect();
        for leaf in leaves {
            let mut names: Vec<Box<str>> = self.tags[&leaf].flows.keys().cloned().collect();
            let there = those(&|item| self.leaf(item) == leaf);
            names.extend(there.iter().map(|item| item.name.clone()));
            for name in names {
                let waits =
                    there.iter().any(|item| item.name == name && !item.suspended) && !self.is_at_limit(&name);
                let tags = self.tags.get_mut(&leaf).expect("just seen");
                tags.set_backlogged(&name, waits);
            }
        }
    }

    /// In its flow: the first goes first.
    fn place(&self, item: &Item) -> (Reverse<u8>, u128, u64, u64) {
        let own = self.classes.get(item.class).and_then(|class| class.order);
        let (at, nanos) = (u128::from(item.arrived.as_nanos()), u128::MAX >> 1);
        let score = match own.unwrap_or(self.policy.order) {
            Order::Fcfs => nanos + at - item.jump.as_nanos(),
            Order::Wspt => {
                // The tests' head starts are whole seconds: cost/(1+s) in parts that all of them divide.
                u128::from(self.class_cost(item)) * 720_720 / u128::from(1 + item.jump.as_secs())
            }
            Order::Edf => item.deadline.map_or(nanos, |at| at.as_nanos().into()),
            Order::SloDeadline { target } => {
                let target = item.ttft_target.or(target);
                target.map_or(nanos, |target| at + target.as_nanos())
            }
        };
        (
            Reverse(item.strict),
            score,
            item.arrived.as_nanos(),
            item.sequence,
        )
    }

    pub(super) fn is_head(&self, item: &Item) -> bool {
        let of_flow = self
            .active()
            .filter(|other| other.name == item.name && self.leaf(other) == self.leaf(item));
        let head = of_flow.min_by_key(|other| self.place(other));
        head.is_some_and(|head| head.id == item.id)
    }

    /// The head of that flow, if it can go.
    fn head(&self, leaf: &Leaf, name: &str) -> Option<&Item> {
        let of_flow = self
            .active()
            .filter(|item| *item.name == *name && self.leaf(item) == *leaf);
        of_flow
            .min_by_key(|item| self.place(item))
            .filter(|item| self.can_go(item))
    }

    // Each level: the request that would go, changing nothing.

    fn next_of_leaf(&self, leaf: &Leaf) -> Option<Item> {
        if let Some(ring) = self.flow_rings.get(leaf) {
            let name = ring
                .clone()
                .pick(|name| self.head(leaf, name).map(|item| self.cost(item)))?;
            return self.head(leaf, &name).cloned();
        }
        let heads = self
            .waiting()
            .filter(|item| self.leaf(item) == *leaf && self.is_head(item) && self.can_go(item));
        heads.min_by_key(|item| self.tag(item)).cloned()
    }

    /// With ties by arrival.
    fn tag(&self, item: &Item) -> (bool, i128, u64, u64) {
        let weight = self.policy.flows.weight_of(&item.name);
        let (last, tag) = match self.discipline() {
            Discipline::Usage => (*item.name == *"anonymous", step(self.usage(item), weight)),
            Discipline::Wfq
            | Discipline::Vtc
            | Discipline::RoundRobin
            | Discipline::Drr
            | Discipline::Fifo => {
                let tags = &self.tags[&self.leaf(item)];
                (false, tags.tag(&item.name, self.cost(item), weight))
            }
        };
        (last, tag, item.arrived.as_nanos(), item.sequence)
    }

    fn next_of_tree(&self, tree: &Tree) -> Option<Item> {
        let Some(ring) = self.class_rings.get(tree) else {
            return self.next_of_leaf(&(tree.clone(), 0));
        };
        let next = |class: &usize| self.next_of_leaf(&(tree.clone(), *class));
        let class = ring
            .clone()
            .pick(|class| next(class).map(|item| self.class_cost(&item)))?;
        next(&class)
    }

    fn next_of_band(&self, band: Band) -> Option<Item> {
        if !self.policy.per_model {
            return self.next_of_tree(&(band, "".into()));
        }
        let next = |model: &str| self.next_of_tree(&(band, model.into()));
        let ring = self.model_rings.get(&band)?;
        let model = ring
            .clone()
            .pick(|model| next(model).map(|item| self.cost(&item)))?;
        next(&model)
    }

    /// The request that goes next.
    pub(super) fn next(&self) -> Option<RequestId> {
        let next = |band: &Band| self.next_of_band(*band);
        // Of strict bands none has a turn; of weighted ones those without go when no other can.
        let has_turn = |band: &Band| self.band_quantum(*band) > 0;
        let without_turn = || {
            BANDS
                .into_iter()
                .find(|band| !has_turn(band) && next(band).is_some())
        };
        let cost = |band: &Band| next(band).filter(|_| has_turn(band)).map(|item| self.cost(&item));
        let with_turn = self.band_ring.clone().and_then(|mut ring| ring.pick(cost));
        let band = with_turn.or_else(without_turn)?;
        next(&band).map(|item| item.id)
    }

    /// The same walk, for good.
    fn serve(&mut self, item: &Item) -> [Taken; 4] {
        let still = self.clone();
        let (leaf, tree) = (self.leaf(item), self.tree(item));
        let (cost, class_cost) = (self.cost(item), self.class_cost(item));
        let mut taken = [Taken::default(); 4];
        let has_turn = |band: Band| still.band_quantum(band) > 0;
        if let Some(ring) = self.band_ring.as_mut().filter(|_| has_turn(item.band)) {
            let next = |band: Band| still.next_of_band(band).filter(|_| has_turn(band));
            ring.pick(|band| next(*band).map(|item| still.cost(&item)));
            taken[0] = ring.take(&item.band, cost);
        }
        if let Some(ring) = self.model_rings.get_mut(&item.band) {
            let next = |model: &str| still.next_of_tree(&(item.band, model.into()));
            ring.pick(|model| next(model).map(|item| still.cost(&item)));
            taken[1] = ring.take(&item.model, cost);
        }
        if let Some(ring) = self.class_rings.get_mut(&tree) {
            let next = |class: &usize| still.next_of_leaf(&(tree.clone(), *class));
            ring.pick(|class| next(class).map(|item| still.class_cost(&item)));
            taken[2] = ring.take(&item.class, class_cost);
        }
        if let Some(ring) = self.flow_rings.get_mut(&leaf) {
            ring.pick(|name| still.head(&leaf, name).map(|item| still.cost(item)));
            taken[3] = ring.take(&item.name, cost);
        }
        taken
    }

    /// What went past the queue takes what there is.
    fn charge(&mut self, item: &Item) -> [Taken; 4] {
        let (leaf, tree) = (self.leaf(item), self.tree(item));
        let (cost, class_cost) = (self.cost(item), self.class_cost(item));
        let bands = self.band_ring.as_mut();
        let models = self.model_rings.get_mut(&item.band);
        let classes = self.class_rings.get_mut(&tree);
        let flows = self.flow_rings.get_mut(&leaf);
        [
            bands.map_or_else(Taken::default, |ring| ring.take(&item.band, cost)),
            models.map_or_else(Taken::default, |ring| ring.take(&item.model, cost)),
            classes.map_or_else(Taken::default, |ring| ring.take(&item.class, class_cost)),
            flows.map_or_else(Taken::default, |ring| ring.take(&item.name, cost)),
        ]
    }

    pub(super) fn give_back(&mut self, item: &Item, taken: [Taken; 4]) {
        let (leaf, tree) = (self.leaf(item), self.tree(item));
        if let Some(ring) = &mut self.band_ring {
            ring.give_back(&item.band, taken[0]);
        }
        if let Some(ring) = self.model_rings.get_mut(&item.band) {
            ring.give_back(&item.model, taken[1]);
        }
        if let Some(ring) = self.class_rings.get_mut(&tree) {
            ring.give_back(&item.class, taken[2]);
        }
        if let Some(ring) = self.flow_rings.get_mut(&leaf) {
            ring.give_back(&item.name, taken[3]);
        }
    }

    pub(super) fn dispatch(&mut self, id: RequestId, said: &mut Said) {
        let item = self.item(id).clone();
        let (waited, cost) = (self.now.since(item.arrived), self.cost(&item));
        let endpoint = said.granted(self, id, Outcome::Dispatched, waited, cost);
        self.take_rate();
        let taken = self.serve(&item);
        self.run(&item, endpoint, Outcome::Dispatched, taken);
    }

    /// Of one that doesn't wait; it is in the list.
    pub(super) fn start(&mut self, id: RequestId, endpoint: EndpointId, outcome: Outcome) {
        let item = self.item(id).clone();
        self.items.retain(|item| item.id != id);
        let taken = self.charge(&item);
        self.run(&item, endpoint, outcome, taken);
    }

    fn run(&mut self, item: &Item, endpoint: EndpointId, outcome: Outcome, taken: [Taken; 4]) {
        let leaf = self.leaf(item);
        let cost = self.cost(item);
        let weight = self.policy.flows.weight_of(&item.name);
        if self.discipline() != Discipline::Drr {
            let discipline = self.discipline();
            let tags = self
                .tags
                .entry(leaf.clone())
                .or_insert_with(|| Tags::new(discipline));
            let (before, now) = tags.charge(&item.name, cost, weight);
            self.hold_back_the_closed(item, before, now);
        }
        self.items.retain(|other| other.id != item.id);
        let running = Some(Running {
            endpoint,
            cost,
            weight,
            unit: self.policy.flows.cost,
            outcome,
            settled: None,
            tokens: item.prompt + item.output,
            output: item.output,
            prefill: item.prompt.saturating_sub(item.cached),
            taken,
        });
        self.items.push(Item {
            running,
            ..item.clone()
        });
        self.computes(item.id, endpoint);
        self.count(item.band, outcome);
        self.notice();
        self.forget(&leaf);
    }

    /// Of those who wait for the same endpoints, none of which takes them, the first gains nothing while virtual time
    /// runs on, and the others keep their distance to it.
    fn hold_back_the_closed(&mut self, goes: &Item, before: i128, now: i128) {
        let leaf = self.leaf(goes);
        let heads: Vec<Item> = self
            .waiting()
            .filter(|item| item.id != goes.id && self.leaf(item) == leaf)
            .filter(|item| self.is_head(item) && !self.is_at_limit(&item.name))
            .filter(|item| self.lane(item).is_some() && self.endpoints_for(item).is_empty())
            .cloned()
            .collect();
        let mut lanes: Vec<_> = heads.iter().map(|item| self.lane(item)).collect();
        lanes.sort();
        lanes.dedup();
        for lane in lanes {
            let of_lane = || heads.iter().filter(|item| self.lane(item) == lane);
            let first = of_lane().map(|item| self.tag(item).1).min().expect("not empty");
            let shift = (now - first).min(now - before).max(0);
            let names: Vec<Box<str>> = of_lane().map(|item| item.name.clone()).collect();
            let tags = self.tags.get_mut(&leaf).expect("it is charged there");
            for name in names {
                tags.flows.get_mut(&name).expect("it waits").finish += shift;
            }
        }
    }
}
