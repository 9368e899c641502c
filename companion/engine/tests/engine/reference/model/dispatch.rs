//! The choice of the next request, and the charges of its dispatch.

use std::cmp::Reverse;

use penstock_engine::policy::{BandMode, CostUnit, Discipline, Order};
use penstock_engine::{EndpointId, Outcome, RequestId};

use super::drr_ring::{DrrRing, QUARTERS, Taken};
use super::engine_effects::EngineEffects;
use super::virtual_time::{VirtualTime, step};
use super::{BANDS, Item, Leaf, Level, Model, Running, Tree};

impl Model {
    pub(super) fn tree(&self, item: &Item) -> Tree {
        let model = if self.policy.per_model { item.model.clone() } else { "".into() };
        (item.band, model)
    }

    pub(super) fn leaf(&self, item: &Item) -> Leaf {
        (self.tree(item), item.class)
    }

    /// The quantum of a child with this weight, in quarters. A weight of 1 gets `tokens`, or one request.
    pub(super) fn quantum(&self, weight: f64, tokens: u64) -> u64 {
        let unit = match self.policy.flows.cost {
            CostUnit::Tokens => tokens,
            CostUnit::Requests => 1,
        };
        (weight * (unit * QUARTERS) as f64) as u64
    }

    pub(super) fn band_quantum(&self, band: Level) -> u64 {
        match self.policy.bands.mode {
            BandMode::Strict => 0,
            BandMode::Weighted(_) if band == Level::Demoted => 0,
            BandMode::Weighted(weights) => self.quantum(weights[band as usize], 100),
        }
    }

    /// Updates the backlog of every level, after a change of the queue or of the limits.
    pub(super) fn refresh_backlogs(&mut self) {
        let waiting: Vec<Item> = self.waiting().cloned().collect();
        self.refresh_bands(&waiting);
        self.create_missing_levels(&waiting);
        let model_quantum = self.quantum(1.0, 1_024);
        for (band, ring) in &mut self.model_rings {
            let models = waiting.iter().filter(|item| item.band == *band);
            let models: Vec<_> = models.map(|item| (item.model.clone(), model_quantum)).collect();
            ring.set_waiting(&models);
        }
        self.refresh_classes(&waiting);
        self.refresh_flows(&waiting);
        self.refresh_virtual_time(&waiting);
    }

    fn refresh_bands(&mut self, waiting: &[Item]) {
        let mut bands: Vec<(Level, u64)> = Vec::new();
        for band in BANDS {
            let quantum = self.band_quantum(band);
            if quantum > 0 && waiting.iter().any(|item| item.band == band) {
                bands.push((band, quantum));
            }
        }
        if let Some(ring) = &mut self.band_ring {
            ring.set_waiting(&bands);
        }
    }

    /// Creates the rings and the virtual time that the waiting requests need.
    fn create_missing_levels(&mut self, waiting: &[Item]) {
        let discipline = self.discipline();
        for item in waiting {
            let (tree, leaf) = (self.tree(item), self.leaf(item));
            if self.policy.per_model {
                self.model_rings.entry(tree.0).or_insert_with(DrrRing::joining);
            }
            if self.classes.len() > 1 {
                let classes = self.classes.iter().enumerate();
                let quanta: Vec<_> =
                    classes.map(|(index, class)| (index, class.quantum * QUARTERS)).collect();
                self.class_rings.entry(tree).or_insert_with(|| DrrRing::fixed(quanta));
            }
            if discipline == Discipline::Drr {
                self.flow_rings.entry(leaf).or_insert_with(DrrRing::joining);
            } else {
                self.virtual_times.entry(leaf).or_insert_with(|| VirtualTime::new(discipline));
            }
        }
    }

    fn refresh_classes(&mut self, waiting: &[Item]) {
        let trees: Vec<Tree> = self.class_rings.keys().cloned().collect();
        for tree in trees {
            let backlogged: Vec<_> = waiting
                .iter()
                .filter(|item| self.tree(item) == tree)
                .map(|item| (item.class, self.classes[item.class].quantum * QUARTERS))
                .collect();
            let ring = self.class_rings.get_mut(&tree).expect("its key was listed");
            ring.set_waiting(&backlogged);
        }
    }

    fn refresh_flows(&mut self, waiting: &[Item]) {
        let leaves: Vec<Leaf> = self.flow_rings.keys().cloned().collect();
        for leaf in leaves {
            let weight = |item: &Item| self.policy.flows.weight_of(&item.name);
            let backlogged: Vec<_> = waiting
                .iter()
                .filter(|item| self.leaf(item) == leaf)
                .map(|item| (item.name.clone(), self.quantum(weight(item), 1_024)))
                .collect();
            let ring = self.flow_rings.get_mut(&leaf).expect("its key was listed");
            ring.set_waiting(&backlogged);
        }
    }

    fn refresh_virtual_time(&mut self, waiting: &[Item]) {
        let leaves: Vec<Leaf> = self.virtual_times.keys().cloned().collect();
        for leaf in leaves {
            let mut names: Vec<Box<str>> = self.virtual_times[&leaf].flows.keys().cloned().collect();
            let backlogged: Vec<_> = waiting.iter().filter(|item| self.leaf(item) == leaf).collect();
            names.extend(backlogged.iter().map(|item| item.name.clone()));
            for name in names {
                let waits = backlogged.iter().any(|item| item.name == name && !item.suspended)
                    && !self.is_at_limit(&name);
                let virtual_time = self.virtual_times.get_mut(&leaf).expect("its key was listed");
                virtual_time.set_backlogged(&name, waits);
            }
            let virtual_time = self.virtual_times.get_mut(&leaf).expect("its key was listed");
            if virtual_time.backlogged() > 1 {
                virtual_time.begin_period();
            }
        }
    }

    /// The order within a flow; the least goes first.
    fn order_in_flow(&self, item: &Item) -> (Reverse<u8>, u128, u64, u64) {
        let class_order = self.classes.get(item.class).and_then(|class| class.order);
        let (arrived, nanos) = (u128::from(item.arrived.as_nanos()), u128::MAX >> 1);
        let score = match class_order.unwrap_or(self.policy.order) {
            Order::Fcfs => nanos + arrived - item.jump.as_nanos(),
            Order::Wspt => {
                // The tests' head starts are whole seconds: cost/(1+s) in units that all of them divide.
                u128::from(self.class_cost(item)) * 720_720 / u128::from(1 + item.jump.as_secs())
            }
            Order::Edf => item.deadline.map_or(nanos, |arrived| arrived.as_nanos().into()),
            Order::SloDeadline { target } => {
                let target = item.ttft_target.or(target);
                target.map_or(nanos, |target| arrived + target.as_nanos())
            }
        };
        (Reverse(item.strict), score, item.arrived.as_nanos(), item.sequence)
    }

    pub(super) fn is_head(&self, item: &Item) -> bool {
        let head = self.first(&self.leaf(item), &item.name);
        head.is_some_and(|head| head.id == item.id)
    }

    /// The first request of the flow whose own endpoints have room; if there is none, the first.
    pub(super) fn first(&self, leaf: &Leaf, name: &str) -> Option<&Item> {
        let of_flow = || self.active().filter(|item| *item.name == *name && self.leaf(item) == *leaf);
        let open = |item: &&Item| self.lane(item).is_none() || !self.endpoints_for(item).is_empty();
        let first = of_flow().filter(open).min_by_key(|item| self.order_in_flow(item));
        first.or_else(|| of_flow().min_by_key(|item| self.order_in_flow(item)))
    }

    /// The head of the flow, if it can be dispatched.
    fn head(&self, leaf: &Leaf, name: &str) -> Option<&Item> {
        self.first(leaf, name).filter(|item| self.can_go(item))
    }

    // For each level: the request that would go next, without changing anything.

    fn next_of_leaf(&self, leaf: &Leaf) -> Option<Item> {
        if let Some(ring) = self.flow_rings.get(leaf) {
            let name = ring.clone().pick(|name| self.head(leaf, name).map(|item| self.cost(item)))?;
            return self.head(leaf, &name).cloned();
        }
        let heads =
            self.waiting().filter(|item| self.leaf(item) == *leaf && self.is_head(item) && self.can_go(item));
        heads.min_by_key(|item| self.order_key(item)).cloned()
    }

    /// The virtual-time key of a request, with ties by arrival.
    fn order_key(&self, item: &Item) -> (bool, i128, u64, u64) {
        let weight = self.policy.flows.weight_of(&item.name);
        let (is_anonymous, order_key) = match self.discipline() {
            Discipline::Usage => (*item.name == *"anonymous", step(self.usage(item), weight)),
            Discipline::Wfq
            | Discipline::Vtc
            | Discipline::RoundRobin
            | Discipline::Drr
            | Discipline::Fifo => {
                let virtual_time = &self.virtual_times[&self.leaf(item)];
                (false, virtual_time.order_key(&item.name, self.cost(item), weight))
            }
        };
        (is_anonymous, order_key, item.arrived.as_nanos(), item.sequence)
    }

    fn next_of_tree(&self, tree: &Tree) -> Option<Item> {
        let Some(ring) = self.class_rings.get(tree) else {
            return self.next_of_leaf(&(tree.clone(), 0));
        };
        let next = |class: &usize| self.next_of_leaf(&(tree.clone(), *class));
        let class = ring.clone().pick(|class| next(class).map(|item| self.class_cost(&item)))?;
        next(&class)
    }

    fn next_of_band(&self, band: Level) -> Option<Item> {
        if !self.policy.per_model {
            return self.next_of_tree(&(band, "".into()));
        }
        let next = |model: &str| self.next_of_tree(&(band, model.into()));
        let ring = self.model_rings.get(&band)?;
        let model = ring.clone().pick(|model| next(model).map(|item| self.cost(&item)))?;
        next(&model)
    }

    /// The request that goes next.
    pub(super) fn next(&self) -> Option<RequestId> {
        let next = |band: &Level| self.next_of_band(*band);
        // Under strict priority no band has a turn. Under weighted bands, those without weight go when no other can.
        let has_turn = |band: &Level| self.band_quantum(*band) > 0;
        let without_turn = || BANDS.into_iter().find(|band| !has_turn(band) && next(band).is_some());
        let cost = |band: &Level| next(band).filter(|_| has_turn(band)).map(|item| self.cost(&item));
        let with_turn = self.band_ring.clone().and_then(|mut ring| ring.pick(cost));
        let band = with_turn.or_else(without_turn)?;
        next(&band).map(|item| item.id)
    }

    /// Dispatches the item at each level: advances the rings to it and takes its cost.
    fn serve(&mut self, item: &Item) -> [Taken; 4] {
        let snapshot = self.clone();
        let (leaf, tree) = (self.leaf(item), self.tree(item));
        let (cost, class_cost) = (self.cost(item), self.class_cost(item));
        let mut taken = [Taken::default(); 4];
        let has_turn = |band: Level| snapshot.band_quantum(band) > 0;
        if let Some(ring) = self.band_ring.as_mut().filter(|_| has_turn(item.band)) {
            let next = |band: Level| snapshot.next_of_band(band).filter(|_| has_turn(band));
            ring.pick(|band| next(*band).map(|item| snapshot.cost(&item)));
            taken[0] = ring.take(&item.band, cost);
        }
        if let Some(ring) = self.model_rings.get_mut(&item.band) {
            let next = |model: &str| snapshot.next_of_tree(&(item.band, model.into()));
            ring.pick(|model| next(model).map(|item| snapshot.cost(&item)));
            taken[1] = ring.take(&item.model, cost);
        }
        if let Some(ring) = self.class_rings.get_mut(&tree) {
            let next = |class: &usize| snapshot.next_of_leaf(&(tree.clone(), *class));
            ring.pick(|class| next(class).map(|item| snapshot.class_cost(&item)));
            taken[2] = ring.take(&item.class, class_cost);
        }
        if let Some(ring) = self.flow_rings.get_mut(&leaf) {
            ring.pick(|name| snapshot.head(&leaf, name).map(|item| snapshot.cost(item)));
            taken[3] = ring.take(&item.name, cost);
        }
        taken
    }

    /// Charges a request that bypassed the queue; each ring takes at most its deficit.
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

    pub(super) fn refund(&mut self, item: &Item, taken: [Taken; 4]) {
        let (leaf, tree) = (self.leaf(item), self.tree(item));
        if let Some(ring) = &mut self.band_ring {
            ring.refund(&item.band, taken[0]);
        }
        if let Some(ring) = self.model_rings.get_mut(&item.band) {
            ring.refund(&item.model, taken[1]);
        }
        if let Some(ring) = self.class_rings.get_mut(&tree) {
            ring.refund(&item.class, taken[2]);
        }
        if let Some(ring) = self.flow_rings.get_mut(&leaf) {
            ring.refund(&item.name, taken[3]);
        }
    }

    pub(super) fn dispatch(&mut self, id: RequestId, effects: &mut EngineEffects) {
        let item = self.item(id).clone();
        let (waited, cost) = (self.now.since(item.arrived), self.cost(&item));
        let endpoint = effects.expect_grant(self, id, Outcome::Dispatched, waited, cost);
        self.take_rate_token();
        let taken = self.serve(&item);
        self.run(&item, endpoint, Outcome::Dispatched, taken, false);
    }

    /// Starts a request from the list that doesn't wait.
    pub(super) fn start(&mut self, id: RequestId, endpoint: EndpointId, outcome: Outcome) {
        let item = self.item(id).clone();
        self.items.retain(|item| item.id != id);
        let taken = self.charge(&item);
        self.run(&item, endpoint, outcome, taken, true);
    }

    fn run(
        &mut self,
        item: &Item,
        endpoint: EndpointId,
        outcome: Outcome,
        taken: [Taken; 4],
        bypasses: bool,
    ) {
        let leaf = self.leaf(item);
        let cost = self.cost(item);
        let weight = self.policy.flows.weight_of(&item.name);
        let mut uncontested = None;
        if self.discipline() != Discipline::Drr {
            let discipline = self.discipline();
            let virtual_time =
                self.virtual_times.entry(leaf.clone()).or_insert_with(|| VirtualTime::new(discipline));
            let (before, now) = virtual_time.charge(&item.name, cost, weight, bypasses, &mut uncontested);
            self.hold_back_blocked_lanes(item, before, now);
        }
        for virtual_time in self.vtc_elsewhere(item) {
            virtual_time.charge_elsewhere(&item.name, cost, weight);
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
            is_answering: false,
            is_extra: false,
            uncontested,
            taken,
        });
        self.items.push(Item { running, ..item.clone() });
        self.record_prefix(item.id, endpoint);
        self.count(item.band.shown(), outcome);
        self.reserve_budget(item);
        self.refresh_backlogs();
        self.drop_unused_flows(&leaf);
    }

    /// Under `vtc`: the virtual times of the other bands and classes, and with a tree per model only those of this model.
    pub(super) fn vtc_elsewhere(&mut self, item: &Item) -> impl Iterator<Item = &mut VirtualTime> {
        let (leaf, is_vtc) = (self.leaf(item), self.discipline() == Discipline::Vtc);
        let others = self.virtual_times.iter_mut();
        others
            .filter(move |(other, _)| is_vtc && **other != leaf && other.0.1 == leaf.0.1)
            .map(|(_, virtual_time)| virtual_time)
    }

    /// Adjusts flows with heads that wait for the same endpoints, all without room: the first of them gains nothing
    /// while virtual time advances, and the rest keep their distance to it.
    fn hold_back_blocked_lanes(&mut self, dispatched: &Item, before: i128, now: i128) {
        let leaf = self.leaf(dispatched);
        let heads: Vec<Item> = self
            .waiting()
            .filter(|item| item.id != dispatched.id && self.leaf(item) == leaf)
            .filter(|item| self.is_head(item) && !self.is_at_limit(&item.name))
            .filter(|item| self.lane(item).is_some() && self.endpoints_for(item).is_empty())
            .cloned()
            .collect();
        let mut lanes: Vec<_> = heads.iter().map(|item| self.lane(item)).collect();
        lanes.sort();
        lanes.dedup();
        for lane in lanes {
            let in_lane = || heads.iter().filter(|item| self.lane(item) == lane);
            let first = in_lane().map(|item| self.order_key(item).1).min().expect("not empty");
            let shift = (now - first).min(now - before).max(0);
            let names: Vec<Box<str>> = in_lane().map(|item| item.name.clone()).collect();
            let virtual_time = self.virtual_times.get_mut(&leaf).expect("the leaf was charged");
            for name in names {
                virtual_time.flows.get_mut(&name).expect("a waiting flow has virtual time").finish += shift;
            }
        }
    }
}
