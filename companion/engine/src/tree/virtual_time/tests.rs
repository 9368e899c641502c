//! The rules, one by one.

use alloc::vec;
use alloc::vec::Vec;

use super::*;
use crate::policy::CostUnit;

const RULES: [Rule; 5] = [Rule::Wfq, Rule::RoundRobin, Rule::Fifo, Rule::Vtc, Rule::Usage];
const CLOSED: LaneId = LaneId(7);

/// VirtualTimeScheduler whose children each have the same next forever.
struct World {
    tags: VirtualTimeScheduler,
    heads: Vec<Head>,
    weights: Vec<f64>,
    arrivals: u64,
}

impl World {
    fn new(rule: Rule) -> Self {
        Self {
            tags: VirtualTimeScheduler::new(rule, Duration::from_secs(60), at(0)),
            heads: Vec::new(),
            weights: Vec::new(),
            arrivals: 0,
        }
    }

    fn add(&mut self, weight: f64, cost: u64) -> ChildId {
        let child = self.tags.add(self.heads.len() as u32, weight);
        assert_eq!(child as usize, self.heads.len(), "in order, none is given again");
        let head = Head {
            class_cost: 1,
            cost,
            model: 0,
            lane: LaneId::ANY,
            open: true,
            arrival: Arrival::default(),
        };
        self.heads.push(head);
        self.weights.push(weight);
        child
    }

    /// One that waits from now on.
    fn waiting(&mut self, weight: f64, cost: u64) -> ChildId {
        let child = self.add(weight, cost);
        self.enqueue(child);
        child
    }

    /// A new request of `child` is its next.
    fn enqueue(&mut self, child: ChildId) {
        self.arrivals += 1;
        let head = &mut self.heads[child as usize];
        head.arrival.sequence = self.arrivals;
        self.tags.enqueue(child, head);
        self.audit();
    }

    fn charge_of(&self, child: ChildId) -> Charge {
        let head = &self.heads[child as usize];
        Charge {
            class_cost: 1,
            cost: head.cost,
            weight: self.weights[child as usize],
            unit: CostUnit::Tokens,
            model: head.model,
        }
    }

    /// Serves who is next, which then has another.
    fn serve(&mut self) -> ChildId {
        let child = self.tags.pick().expect("somebody is able");
        self.tags.serve(child, &self.charge_of(child));
        self.enqueue(child);
        child
    }

    /// What was just served turns out to be `real`.
    fn settle(&mut self, child: ChildId, real: Option<u64>) {
        self.tags
            .settle(child, &self.charge_of(child), Receipt::default(), real);
        self.audit();
    }

    /// How many of `count` dispatches each gets, settled at what they were charged.
    fn shares(&mut self, count: usize) -> Vec<usize> {
        let mut got = vec![0; self.heads.len()];
        for _ in 0..count {
            let child = self.serve();
            self.settle(child, Some(self.heads[child as usize].cost));
            got[child as usize] += 1;
        }
        got
    }

    fn audit(&self) {
        let open = |lane| lane != CLOSED || self.heads.iter().any(|head| head.lane == CLOSED && head.open);
        self.tags.audit(open).expect("sound");
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
fn fifo_goes_by_the_arrival_of_the_heads() {
    let mut world = World::new(Rule::Fifo);
    for _ in 0..3 {
        world.waiting(1.0, 1);
    }
    world.enqueue(0);
    let order: Vec<ChildId> = (0..6).map(|_| world.serve()).collect();
    assert_eq!(order, [1, 2, 0, 1, 2, 0]);
}

#[test]
fn vtc_goes_by_the_settled_counter_per_weight() {
    let mut world = World::new(Rule::Vtc);
    world.waiting(1.0, 10);
    world.waiting(1.0, 10);
    assert_eq!(world.serve(), 0);
    world.settle(0, Some(35));
    let order: Vec<ChildId> = (0..5).map(|_| world.serve()).collect();
    assert_eq!(
        order,
        [1, 1, 1, 1, 0],
        "35 against 10, 20, 30 and 40; the size of the head doesn't matter"
    );
    let mut world = World::new(Rule::Vtc);
    world.waiting(2.0, 10);
    world.waiting(1.0, 10);
    assert_eq!(world.shares(300), [200, 100]);
}

#[test]
fn vtc_lifts_who_becomes_able_to_the_least_of_those_who_are() {
    let mut world = World::new(Rule::Vtc);
    let (a, b) = (world.waiting(1.0, 10), world.waiting(1.0, 10));
    world.shares(20);
    let late = world.waiting(1.0, 10);
    assert_eq!(world.tags.finish(late), Virtual::step(100, 1.0));
    world.settle(a, Some(1_000));
    // Nobody waits: the last one's counter counts, as it is by then.
    for child in [a, b, late] {
        world.tags.remove(child);
    }
    world.tags.serve(b, &world.charge_of(b));
    world.settle(b, Some(60));
    let last = world.waiting(1.0, 10);
    assert_eq!(world.tags.finish(last), Virtual::step(160, 1.0));
    world.enqueue(b);
    assert_eq!(world.tags.finish(b), Virtual::step(160, 1.0));
}

#[test]
fn usage_goes_by_the_window_and_what_runs() {
    let mut world = World::new(Rule::Usage);
    let (a, b) = (world.waiting(1.0, 100), world.waiting(2.0, 100));
    let order: Vec<ChildId> = (0..6).map(|_| world.serve()).collect();
    assert_eq!(
        order,
        [a, b, b, a, b, b],
        "by estimate per weight; ties by arrival"
    );
    for _ in 0..2 {
        world.settle(a, Some(10));
    }
    for _ in 0..4 {
        world.settle(b, Some(15));
    }
    assert_eq!(world.tags.finish(a), Virtual::step(20, 1.0));
    assert_eq!(world.serve(), a, "20 against 60 at weight 2");
    world.settle(a, Some(100));
    assert_eq!(world.serve(), b);
    world.settle(b, Some(900));
    world.tags.advance(at(59));
    assert_eq!(world.tags.pick(), Some(a));
    world.tags.serve(a, &world.charge_of(a));
    world.enqueue(a);
    world.settle(a, Some(5_000));
    assert_eq!(world.tags.pick(), Some(b));
    world.tags.advance(at(60));
    assert_eq!(world.tags.finish(b), Virtual::default(), "gone with its second");
    assert_eq!(world.tags.finish(a), Virtual::step(5_000, 1.0));
    world.audit();
    world.tags.advance(at(119));
    assert_eq!(world.tags.finish(a), Virtual::default());
}

#[test]
fn usage_is_of_the_model_of_the_head() {
    let mut world = World::new(Rule::Usage);
    let (a, b) = (world.waiting(1.0, 100), world.waiting(1.0, 90));
    assert_eq!((world.serve(), world.serve()), (a, b));
    assert_eq!(world.tags.pick(), Some(b), "90 against 100");
    world.heads[a as usize].model = 1;
    world.enqueue(a);
    assert_eq!(world.tags.pick(), Some(a), "0 of that model");
    // What is settled of the other model doesn't move it.
    let charge = Charge {
        class_cost: 1,
        model: 0,
        ..world.charge_of(a)
    };
    world.tags.settle(a, &charge, Receipt::default(), Some(9_999));
    world.audit();
    assert_eq!(world.tags.pick(), Some(a));
}

#[test]
fn anonymous_goes_last_by_usage() {
    let mut world = World::new(Rule::Usage);
    let anonymous = world.add(1_000.0, 1);
    world.tags.put_last(anonymous);
    world.enqueue(anonymous);
    let named = world.waiting(0.001, 1_000_000);
    assert_eq!(world.shares(1_000), [0, 1_000]);
    world.tags.block(named);
    assert_eq!(world.tags.pick(), Some(anonymous));
}

#[test]
fn charged_and_refunded_leaves_no_trace() {
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
            let child = touched.tags.pick().expect("somebody waits");
            let before = touched.heads[child as usize];
            touched.heads[child as usize].cost = 12_345;
            touched.enqueue(child);
            if out_of_turn {
                touched.tags.charge(child, &touched.charge_of(child));
            } else {
                touched.tags.serve(child, &touched.charge_of(child));
            }
            touched.enqueue(child);
            touched.settle(child, None);
            touched.heads[child as usize] = before;
            touched.tags.enqueue(child, &before);
            touched.audit();
            for world in [&mut touched, &mut other] {
                world.arrivals += 1_000;
                world.enqueue(3);
            }
            for turn in 0..200 {
                assert_eq!(touched.serve(), other.serve(), "{rule:?}, turn {turn}");
            }
            let finish = |world: &World| (0..4).map(|child| world.tags.finish(child)).collect::<Vec<_>>();
            assert_eq!(finish(&touched), finish(&other), "{rule:?}");
        }
    }
}

#[test]
fn who_was_blocked_for_600_dispatches_banks_nothing() {
    // By usage and by arrival one does catch up: that is what they measure.
    for rule in [Rule::Wfq, Rule::RoundRobin, Rule::Vtc] {
        for by_lane in [false, true] {
            let mut world = World::new(rule);
            let (a, b) = (world.waiting(1.0, 10), world.waiting(1.0, 10));
            if by_lane {
                world.heads[b as usize].lane = CLOSED;
                world.enqueue(b);
            }
            world.shares(10);
            if by_lane {
                world.heads[b as usize].open = false;
                world.tags.close(CLOSED);
            } else {
                world.tags.block(b);
            }
            world.audit();
            assert_eq!(world.shares(600), [600, 0]);
            if by_lane {
                world.heads[b as usize].open = true;
                world.tags.open(CLOSED);
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
fn a_flapping_lane_costs_nobody_its_place() {
    for rule in [Rule::Wfq, Rule::Vtc] {
        let mut world = World::new(rule);
        let (dear, _) = (world.waiting(1.0, 1_000), world.waiting(1.0, 10));
        world.heads[dear as usize].lane = CLOSED;
        world.enqueue(dear);
        let mut got = [0, 0];
        for _ in 0..2_020 {
            got[world.serve() as usize] += 1;
            for open in [false, true] {
                world.heads[dear as usize].open = open;
                if open {
                    world.tags.open(CLOSED);
                } else {
                    world.tags.close(CLOSED);
                }
                world.audit();
            }
        }
        assert_eq!(got, [20, 2_000], "{rule:?}");
    }
}

#[test]
fn who_is_of_no_account_any_more_is_forgotten_and_its_memory_returned() {
    for rule in RULES {
        let mut world = World::new(rule);
        for _ in 0..10 {
            world.waiting(1.0, 10);
        }
        for _ in 0..35 {
            let child = world.serve();
            world.settle(child, Some(20));
        }
        for child in 0..10 {
            world.tags.remove(child);
            world.tags.rest(child);
        }
        let forget = |world: &mut World| {
            while let Some(child) = world.tags.forgettable() {
                world.tags.forget(child);
            }
            world.audit();
            world.tags.children.len()
        };
        match rule {
            Rule::Fifo => assert_eq!(forget(&mut world), 0),
            Rule::Wfq | Rule::RoundRobin | Rule::Vtc => assert!(forget(&mut world) < 10, "{rule:?}"),
            Rule::Usage => assert_eq!(forget(&mut world), 10, "the window still holds them"),
        }
        world.tags.advance(at(60));
        // Time passes for the others by what goes.
        let child = world.tags.add(0, 1.0);
        let charge = Charge {
            class_cost: 1,
            cost: 1_000_000,
            weight: 0.001,
            unit: CostUnit::Tokens,
            model: 0,
        };
        world.tags.charge(child, &charge);
        world
            .tags
            .settle(child, &charge, Receipt::default(), Some(1_000_000));
        world.tags.rest(child);
        world.tags.advance(at(1_000));
        assert_eq!(forget(&mut world), 0, "{rule:?}");
        assert!(world.tags.queues.len() == 1 && world.tags.by_lane.is_empty());
    }
}

#[test]
fn who_comes_back_after_it_was_forgotten_starts_where_it_would_have() {
    let mut world = World::new(Rule::Vtc);
    let (a, b) = (world.waiting(1.0, 10), world.waiting(1.0, 10));
    world.shares(40);
    world.tags.remove(b);
    world.tags.rest(b);
    world.shares(1);
    assert_eq!(world.tags.forgettable(), Some(b));
    world.tags.forget(b);
    let head = world.heads[b as usize];
    let back = world.tags.add(b, 1.0);
    world.tags.enqueue(back, &head);
    assert_eq!(world.tags.finish(back), world.tags.finish(a));
}
