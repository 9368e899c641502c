//! Deficit round robin: the vectors, random operations beside a ring that goes one step at a time, adversaries.

mod adversaries;
mod slow;
mod vectors;

use super::*;
use crate::ids::{Id, ModelId};
use crate::policy::CostUnit;

/// A head that costs this to class and flow.
fn head(cost: u64) -> Head {
    Head { class_cost: cost, cost, ..Head::NONE }
}

fn charge(cost: u64) -> Charge {
    Charge { cost, class_cost: cost, weight: 1.0, unit: CostUnit::Tokens, model: ModelId::FIRST }
}

#[test]
fn fractional_quanta_are_exact() {
    assert_eq!(Quantum::new(256.0), Quantum::whole(256));
    assert_eq!(Quantum::new(0.0), Quantum(1));
    assert_eq!(Quantum::new(f64::INFINITY), Quantum::whole(u64::MAX));
    let mut node: Drr<u32> = Drr::fixed(Unit::Flow);
    let quarter = node.add(0, Quantum::new(0.25));
    let one = node.add(1, Quantum::whole(1));
    let mut served = [0, 0];
    for child in [quarter, one] {
        node.enqueue(child, &head(1));
    }
    for _ in 0..5_000 {
        let child = node.pick().expect("both are runnable");
        served[child.index()] += 1;
        node.serve(child, &charge(1));
        node.enqueue(child, &head(1));
    }
    assert_eq!(served, [1_000, 4_000]);
}

#[test]
fn each_unit_counts_its_cost() {
    for (unit, taken) in [(Unit::Class, 3), (Unit::Flow, 50)] {
        let mut node = Drr::joining(unit);
        let child = node.add(42, Quantum::whole(100));
        let next = Head { class_cost: 3, cost: 50, ..Head::NONE };
        node.enqueue(child, &next);
        assert_eq!((node.owner(child), node.next_head()), (42, Some(next)));
        node.serve(child, &charge(0));
        node.enqueue(child, &next);
        assert_eq!(node.deficit(child), 100 - taken);
    }
}

#[test]
fn a_refund_counts_only_while_the_same_backlog_lasts() {
    let mut node = Drr::fixed(Unit::Class);
    let child = node.add(0, Quantum::whole(100));
    node.enqueue(child, &head(10));
    let first = node.serve(child, &charge(10));
    node.enqueue(child, &head(10));
    let second = node.serve(child, &charge(10));
    node.enqueue(child, &head(10));
    node.settle(child, &charge(10), first, Some(3));
    assert_eq!(node.deficit(child), 80, "class costs aren't settled");
    node.settle(child, &charge(10), first, None);
    assert_eq!(node.deficit(child), 90);
    node.remove(child);
    node.enqueue(child, &head(10));
    node.settle(child, &charge(10), second, None);
    assert_eq!(node.deficit(child), 0);
    node.remove(child);
    node.settle(child, &charge(10), second, None);
    assert_eq!(node.deficit(child), 0);
}

#[test]
fn a_joining_child_is_reached_last_and_gains_nothing_by_leaving() {
    let mut node = Drr::joining(Unit::Flow);
    let old: alloc::vec::Vec<_> = (0..3).map(|owner| node.add(owner, Quantum::whole(1))).collect();
    for &child in &old {
        node.enqueue(child, &head(1));
    }
    let mut order = alloc::vec::Vec::new();
    for round in 0..9_u32 {
        // An endless supply of new children, and one that leaves and joins again.
        let new = node.add(100 + round, Quantum::whole(1));
        node.enqueue(new, &head(1));
        let child = node.pick().expect("some are runnable");
        order.push(node.owner(child));
        node.serve(child, &charge(1));
        node.remove(child);
        node.enqueue(child, &head(1));
        node.audit().expect("audit");
    }
    assert_eq!(order, [0, 1, 2, 100, 0, 101, 1, 102, 2]);
}

#[test]
fn a_huge_cost_at_the_least_quantum_is_one_step() {
    let mut node = Drr::fixed(Unit::Class);
    let poor = node.add(0, Quantum::new(0.0));
    let rich = node.add(1, Quantum::whole(1));
    node.enqueue(poor, &head(u64::MAX));
    for _ in 0..100 {
        node.enqueue(rich, &head(1));
        assert_eq!(node.pick(), Some(rich));
        node.serve(rich, &charge(1));
        node.enqueue(rich, &head(1));
        node.remove(rich);
    }
    assert_eq!(node.pick(), Some(poor));
    node.serve(poor, &charge(u64::MAX));
    node.enqueue(poor, &head(1));
    assert_eq!(node.deficit(poor), 0);
    node.audit().expect("audit");
}
