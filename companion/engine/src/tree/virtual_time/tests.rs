//! The rules, one by one.

use alloc::vec;
use alloc::vec::Vec;

use super::*;
use crate::ids::{Id, ModelId};
use crate::policy::CostUnit;

const RULES: [Rule; 5] = [Rule::Wfq, Rule::RoundRobin, Rule::Fifo, Rule::Vtc, Rule::Usage];

/// An eligibility set that tests open and close.
fn closable() -> EligibilityId {
    EligibilityId::from_index(7)
}

fn id(child: usize) -> ChildId {
    ChildId::from_index(child)
}

fn indices(children: Vec<ChildId>) -> Vec<usize> {
    children.into_iter().map(ChildId::index).collect()
}

/// A scheduler whose children each have the same head forever.
struct World {
    scheduler: VirtualTimeScheduler,
    heads: Vec<Head>,
    weights: Vec<f64>,
    arrivals: u64,
}

impl World {
    fn new(rule: Rule) -> Self {
        Self {
            scheduler: VirtualTimeScheduler::new(rule, Duration::from_secs(60), at(0)),
            heads: Vec::new(),
            weights: Vec::new(),
            arrivals: 0,
        }
    }

    fn add(&mut self, weight: f64, cost: u64) -> ChildId {
        let child = self.scheduler.add(FlowId::from_index(self.heads.len()), weight);
        assert_eq!(child.index(), self.heads.len(), "in order, and no id is reused");
        let head = Head {
            class_cost: 1,
            cost,
            model: ModelId::FIRST,
            eligibility: EligibilityId::ANY,
            open: true,
            arrival: Arrival::default(),
        };
        self.heads.push(head);
        self.weights.push(weight);
        child
    }

    /// A child that waits from now on.
    fn waiting(&mut self, weight: f64, cost: u64) -> ChildId {
        let child = self.add(weight, cost);
        self.enqueue(child);
        child
    }

    /// A new request of `child` is its head.
    fn enqueue(&mut self, child: ChildId) {
        self.arrivals += 1;
        let head = &mut self.heads[child.index()];
        head.arrival.sequence = self.arrivals;
        let head = *head;
        if self.scheduler.rule == Rule::Usage {
            let used = self.used(child, head.model);
            self.scheduler.set_usage(child, used);
        }
        self.scheduler.enqueue(child, &head);
        self.audit();
    }

    fn used(&self, child: ChildId, model: ModelId) -> u128 {
        let mut models = self.scheduler.usage_by_model(child);
        let found = models.find(|&(other, _)| other == model);
        found.map_or(0, |(_, used)| used)
    }

    /// The usage of `child` changed. Here every child has an owner of its own.
    fn retag(&mut self, child: ChildId) {
        if self.scheduler.rule == Rule::Usage {
            let model = self.heads[child.index()].model;
            let used = self.used(child, model);
            self.scheduler.retag_usage(child, model, used);
        }
    }

    fn advance(&mut self, seconds: u64) {
        self.scheduler.advance(at(seconds));
        while let Some((owner, _, _)) = self.scheduler.expired_usage() {
            self.retag(id(owner.index()));
        }
    }

    fn charge_of(&self, child: ChildId) -> Charge {
        let head = &self.heads[child.index()];
        Charge {
            class_cost: 1,
            cost: head.cost,
            weight: self.weights[child.index()],
            unit: CostUnit::Tokens,
            model: head.model,
        }
    }

    /// Serves the next child, which then has another request.
    fn serve(&mut self) -> ChildId {
        let child = self.scheduler.pick().expect("a child is runnable");
        self.scheduler.serve(child, &self.charge_of(child));
        self.enqueue(child);
        child
    }

    /// Settles the last charge of `child`.
    fn settle(&mut self, child: ChildId, real: Option<u64>) {
        self.scheduler.settle(child, &self.charge_of(child), Receipt::default(), real);
        self.retag(child);
        self.audit();
    }

    /// How many of `count` dispatches each child gets, settled at their estimates.
    fn shares(&mut self, count: usize) -> Vec<usize> {
        let mut got = vec![0; self.heads.len()];
        for _ in 0..count {
            let child = self.serve();
            self.settle(child, Some(self.heads[child.index()].cost));
            got[child.index()] += 1;
        }
        got
    }

    fn audit(&self) {
        let open = |set| {
            set != closable() || self.heads.iter().any(|head| head.eligibility == closable() && head.open)
        };
        self.scheduler.audit(open).expect("sound");
    }
}

fn at(seconds: u64) -> Instant {
    Instant::from_nanos(seconds * 1_000_000_000)
}

#[test]
fn wfq_shares_cost_by_weight() {
    let mut world = World::new(Rule::Wfq);
    world.waiting(1.0, 100);
    world.waiting(3.0, 100);
    world.waiting(1.0, 400);
    assert_eq!(world.shares(1_700), [400, 1_200, 100]);
}

#[test]
fn round_robin_shares_requests_by_weight_whatever_they_cost() {
    let mut world = World::new(Rule::RoundRobin);
    world.waiting(1.0, 1);
    world.waiting(1.0, 9_000);
    world.waiting(2.0, 5);
    assert_eq!(world.shares(400), [100, 100, 200]);
}

#[test]
fn fifo_orders_by_the_arrival_of_the_heads() {
    let mut world = World::new(Rule::Fifo);
    for _ in 0..3 {
        world.waiting(1.0, 1);
    }
    world.enqueue(id(0));
    let order: Vec<ChildId> = (0..6).map(|_| world.serve()).collect();
    assert_eq!(indices(order), [1, 2, 0, 1, 2, 0]);
}

#[test]
fn vtc_orders_by_the_settled_counter_per_weight() {
    let mut world = World::new(Rule::Vtc);
    world.waiting(1.0, 10);
    world.waiting(1.0, 10);
    assert_eq!(world.serve(), id(0));
    world.settle(id(0), Some(35));
    let order: Vec<ChildId> = (0..5).map(|_| world.serve()).collect();
    assert_eq!(
        indices(order),
        [1, 1, 1, 1, 0],
        "35 against 10, 20, 30 and 40; the size of the head doesn't matter"
    );
    let mut world = World::new(Rule::Vtc);
    world.waiting(2.0, 10);
    world.waiting(1.0, 10);
    assert_eq!(world.shares(300), [200, 100]);
}

#[test]
fn vtc_lifts_a_child_that_becomes_runnable_to_the_least_counter() {
    let mut world = World::new(Rule::Vtc);
    let (a, b) = (world.waiting(1.0, 10), world.waiting(1.0, 10));
    world.shares(20);
    let late = world.waiting(1.0, 10);
    assert_eq!(world.scheduler.finish(late), VirtualTime::step(100, 1.0));
    world.settle(a, Some(1_000));
    // No child waits, so the counter of the child served last counts.
    for child in [a, b, late] {
        world.scheduler.remove(child);
    }
    world.scheduler.serve(b, &world.charge_of(b));
    world.settle(b, Some(60));
    let last = world.waiting(1.0, 10);
    assert_eq!(world.scheduler.finish(last), VirtualTime::step(160, 1.0));
    world.enqueue(b);
    assert_eq!(world.scheduler.finish(b), VirtualTime::step(160, 1.0));
}

#[test]
fn usage_orders_by_the_window_and_running_requests() {
    let mut world = World::new(Rule::Usage);
    let (a, b) = (world.waiting(1.0, 100), world.waiting(2.0, 100));
    let order: Vec<ChildId> = (0..6).map(|_| world.serve()).collect();
    assert_eq!(order, [a, b, b, a, b, b], "by estimate per weight; ties by arrival");
    for _ in 0..2 {
        world.settle(a, Some(10));
    }
    for _ in 0..4 {
        world.settle(b, Some(15));
    }
    assert_eq!(world.scheduler.finish(a), VirtualTime::step(20, 1.0));
    assert_eq!(world.serve(), a, "20 against 60 at weight 2");
    world.settle(a, Some(100));
    assert_eq!(world.serve(), b);
    world.settle(b, Some(900));
    world.advance(59);
    assert_eq!(world.scheduler.pick(), Some(a));
    world.scheduler.serve(a, &world.charge_of(a));
    world.enqueue(a);
    world.settle(a, Some(5_000));
    assert_eq!(world.scheduler.pick(), Some(b));
    world.advance(60);
    assert_eq!(world.scheduler.finish(b), VirtualTime::default(), "its second left the window");
    assert_eq!(world.scheduler.finish(a), VirtualTime::step(5_000, 1.0));
    world.audit();
    world.advance(119);
    assert_eq!(world.scheduler.finish(a), VirtualTime::default());
}

#[test]
fn usage_counts_the_model_of_the_head() {
    let mut world = World::new(Rule::Usage);
    let (a, b) = (world.waiting(1.0, 100), world.waiting(1.0, 90));
    assert_eq!((world.serve(), world.serve()), (a, b));
    assert_eq!(world.scheduler.pick(), Some(b), "90 against 100");
    world.heads[a.index()].model = ModelId::from_index(1);
    world.enqueue(a);
    assert_eq!(world.scheduler.pick(), Some(a), "0 of that model");
    // A settlement for the other model doesn't move it.
    let charge = Charge { class_cost: 1, model: ModelId::FIRST, ..world.charge_of(a) };
    world.scheduler.settle(a, &charge, Receipt::default(), Some(9_999));
    world.audit();
    assert_eq!(world.scheduler.pick(), Some(a));
}

#[test]
fn anonymous_is_last_under_usage() {
    let mut world = World::new(Rule::Usage);
    let anonymous = world.add(1_000.0, 1);
    world.scheduler.put_last(anonymous);
    world.enqueue(anonymous);
    let named = world.waiting(0.001, 1_000_000);
    assert_eq!(world.shares(1_000), [0, 1_000]);
    world.scheduler.block(named);
    assert_eq!(world.scheduler.pick(), Some(anonymous));
}

#[test]
fn a_refunded_charge_leaves_no_trace() {
    for rule in RULES {
        for out_of_turn in [false, true] {
            let mut touched = World::new(rule);
            let mut other = World::new(rule);
            for world in [&mut touched, &mut other] {
                for weight in [1.0, 0.3, 7.0] {
                    world.waiting(weight, 77);
                }
                world.shares(50);
                world.add(2.0, 77);
            }
            let child = touched.scheduler.pick().expect("a child waits");
            let before = touched.heads[child.index()];
            touched.heads[child.index()].cost = 12_345;
            touched.enqueue(child);
            if out_of_turn {
                touched.scheduler.charge(child, &touched.charge_of(child));
            } else {
                touched.scheduler.serve(child, &touched.charge_of(child));
            }
            touched.enqueue(child);
            touched.settle(child, None);
            touched.heads[child.index()] = before;
            touched.scheduler.enqueue(child, &before);
            touched.audit();
            for world in [&mut touched, &mut other] {
                world.arrivals += 1_000;
                world.enqueue(id(3));
            }
            for turn in 0..200 {
                assert_eq!(touched.serve(), other.serve(), "{rule:?}, turn {turn}");
            }
            let finish =
                |world: &World| (0..4).map(|child| world.scheduler.finish(id(child))).collect::<Vec<_>>();
            assert_eq!(finish(&touched), finish(&other), "{rule:?}");
        }
    }
}

#[test]
fn a_child_blocked_for_600_dispatches_gains_nothing() {
    // Under usage and fifo a child does catch up, by their definition.
    for rule in [Rule::Wfq, Rule::RoundRobin, Rule::Vtc] {
        for by_set in [false, true] {
            let mut world = World::new(rule);
            let (a, b) = (world.waiting(1.0, 10), world.waiting(1.0, 10));
            if by_set {
                world.heads[b.index()].eligibility = closable();
                world.enqueue(b);
            }
            world.shares(10);
            if by_set {
                world.heads[b.index()].open = false;
                world.scheduler.close(closable());
            } else {
                world.scheduler.block(b);
            }
            world.audit();
            assert_eq!(world.shares(600), [600, 0]);
            if by_set {
                world.heads[b.index()].open = true;
                world.scheduler.open(closable());
                world.audit();
            } else {
                world.enqueue(b);
            }
            let mut ahead = 0_i32;
            for _ in 0..200 {
                ahead += if world.serve() == a { -1 } else { 1 };
                assert!(ahead.abs() <= 2, "{rule:?}: {ahead} ahead");
            }
        }
    }
}

#[test]
fn a_flapping_eligibility_set_costs_no_child_its_place() {
    for rule in [Rule::Wfq, Rule::Vtc] {
        let mut world = World::new(rule);
        let (dear, _) = (world.waiting(1.0, 1_000), world.waiting(1.0, 10));
        world.heads[dear.index()].eligibility = closable();
        world.enqueue(dear);
        let mut got = [0, 0];
        for _ in 0..2_020 {
            got[world.serve().index()] += 1;
            for open in [false, true] {
                world.heads[dear.index()].open = open;
                if open {
                    world.scheduler.open(closable());
                } else {
                    world.scheduler.close(closable());
                }
                world.audit();
            }
        }
        assert_eq!(got, [20, 2_000], "{rule:?}");
    }
}

/// Children that wait under a set that is closed.
fn closed_world(rule: Rule, children: usize) -> World {
    let mut world = World::new(rule);
    for _ in 0..children {
        let child = world.add(1.0, 10);
        world.heads[child.index()].eligibility = closable();
        world.enqueue(child);
    }
    for head in &mut world.heads {
        head.open = false;
    }
    world.scheduler.close(closable());
    world.audit();
    world
}

#[test]
fn a_charge_of_a_child_that_waits_under_a_closed_set_counts_once() {
    for (rule, charged, settled) in
        [(Rule::Wfq, 400, 1_000), (Rule::RoundRobin, 1, 1), (Rule::Vtc, 400, 1_000)]
    {
        let mut world = closed_world(rule, 1);
        let child = id(0);
        // A request of it that a filter admitted by itself, or that ran already.
        let charge = Charge { cost: 400, ..world.charge_of(child) };
        world.scheduler.charge(child, &charge);
        world.enqueue(child);
        let finish = |world: &World| world.scheduler.finish(child);
        assert_eq!(finish(&world), VirtualTime::step(charged, 1.0), "{rule:?}");
        world.scheduler.settle(child, &charge, Receipt::default(), Some(1_000));
        world.enqueue(child);
        assert_eq!(finish(&world), VirtualTime::step(settled, 1.0), "{rule:?}");
        world.scheduler.open(closable());
        assert_eq!(finish(&world), VirtualTime::step(settled, 1.0), "{rule:?}");
    }
}

#[test]
fn children_under_a_closed_set_move_only_when_virtual_time_does() {
    for rule in [Rule::Wfq, Rule::RoundRobin, Rule::Vtc] {
        let mut world = closed_world(rule, 2);
        world.scheduler.charge(id(0), &world.charge_of(id(0)));
        let finish = |world: &World| [0, 1].map(|child| world.scheduler.finish(id(child)));
        world.enqueue(id(1));
        let before = finish(&world);
        for _ in 0..3 {
            world.enqueue(id(1));
            assert_eq!(finish(&world), before, "{rule:?}");
        }
    }
}

#[test]
fn children_whose_charges_no_longer_matter_are_forgotten_and_their_memory_reused() {
    for rule in RULES {
        let mut world = World::new(rule);
        for _ in 0..10 {
            world.waiting(1.0, 10);
        }
        for _ in 0..35 {
            let child = world.serve();
            world.settle(child, Some(20));
        }
        for child in (0..10).map(id) {
            world.scheduler.remove(child);
            world.scheduler.set_idle(child);
        }
        let forget = |world: &mut World| {
            while let Some(child) = world.scheduler.forgettable() {
                world.scheduler.forget(child);
            }
            world.audit();
            world.scheduler.children.len()
        };
        match rule {
            Rule::Fifo => assert_eq!(forget(&mut world), 0),
            Rule::Wfq | Rule::RoundRobin | Rule::Vtc => assert!(forget(&mut world) < 10, "{rule:?}"),
            Rule::Usage => assert_eq!(forget(&mut world), 10, "the window still holds their usage"),
        }
        world.advance(60);
        // Dispatches move virtual time.
        let child = world.scheduler.add(FlowId::MIN, 1.0);
        let charge = Charge {
            class_cost: 1,
            cost: 1_000_000,
            weight: 0.001,
            unit: CostUnit::Tokens,
            model: ModelId::FIRST,
        };
        world.scheduler.charge(child, &charge);
        world.scheduler.settle(child, &charge, Receipt::default(), Some(1_000_000));
        world.scheduler.set_idle(child);
        world.advance(1_000);
        assert_eq!(forget(&mut world), 0, "{rule:?}");
        assert!(world.scheduler.queues.len() == 1 && world.scheduler.by_eligibility.is_empty());
    }
}

#[test]
fn a_child_that_returns_after_it_was_forgotten_starts_where_it_would_have() {
    let mut world = World::new(Rule::Vtc);
    let (a, b) = (world.waiting(1.0, 10), world.waiting(1.0, 10));
    world.shares(40);
    world.scheduler.remove(b);
    world.scheduler.set_idle(b);
    world.shares(1);
    assert_eq!(world.scheduler.forgettable(), Some(b));
    world.scheduler.forget(b);
    let head = world.heads[b.index()];
    let back = world.scheduler.add(FlowId::from_index(b.index()), 1.0);
    world.scheduler.enqueue(back, &head);
    assert_eq!(world.scheduler.finish(back), world.scheduler.finish(a));
}
