//! Two that try to earn more, or to make another earn less, by what arrives when; quanta are equal.
//!
//! Between two that stay backlogged and unblocked the difference is at most 2 Max + Qmin, Max the dearest request.

use super::super::super::node::{ChildId, Node, Unit};
use super::super::{Drr, Quantum};
use super::{charge, head};

const DISPATCHES: u32 = 10_000;
const COST_MAX: u64 = 900;

/// Two classes that always have more; `arrives` says what stands before everything else of the class that just
/// went (true: the adversary's), if anything, and what that costs. Asserts the bound after each dispatch.
fn duel(quantum: u64, common: [u64; 2], arrives: impl Fn(bool, u64) -> Option<u64>) -> [u64; 2] {
    let mut node = Drr::fixed(Unit::Class);
    let children = [
        node.add(0, Quantum::whole(quantum)),
        node.add(1, Quantum::whole(quantum)),
    ];
    let mut next = common;
    let mut served = [0_u64; 2];
    let enqueue = |node: &mut Drr, child: ChildId, cost| node.enqueue(child, &head(cost));
    for child in children {
        enqueue(&mut node, child, next[child as usize]);
    }
    for dispatch in 0..DISPATCHES {
        let child = node.pick().expect("both are able");
        let class = child as usize;
        node.serve(child, &charge(next[class]));
        served[class] += next[class];
        next[class] = common[class];
        enqueue(&mut node, child, next[class]);
        if let Some(cost) = arrives(child == children[0], node.deficit(children[0])) {
            next[0] = cost;
            enqueue(&mut node, children[0], cost);
        }
        let apart = served[0].abs_diff(served[1]);
        assert!(
            apart <= 2 * COST_MAX + quantum,
            "{apart} apart after {dispatch} dispatches: {served:?}"
        );
        node.audit().expect("audit");
    }
    served
}

#[test]
fn a_dearer_arrival_inside_every_visit_earns_no_second_quantum() {
    for quantum in [1, 10, 100, 450, 900, 5_000] {
        for cheap in [1, 9, 100] {
            for cost in [1, 30, COST_MAX] {
                duel(quantum, [cheap, cost], |adversary, deficit| {
                    (adversary && deficit < COST_MAX).then_some(COST_MAX)
                });
                duel(quantum, [cheap, cost], |adversary, deficit| {
                    (adversary && deficit < COST_MAX).then_some(deficit + 1)
                });
            }
        }
    }
}

#[test]
fn a_cheap_arrival_before_every_visit_costs_no_quantum() {
    for quantum in [1, 10, 100, 450, 900, 5_000] {
        for cost in [1, 30, COST_MAX] {
            let [first, second] = duel(quantum, [COST_MAX, cost], |adversary, _| {
                (!adversary).then_some(1)
            });
            assert!(first > 0 && second > 0, "both go: {first}, {second}");
        }
    }
}
