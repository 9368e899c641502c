//! Classes that try to earn more, or to make another class earn less, by the timing of arrivals. Quanta are equal.
//!
//! Between two classes that stay backlogged and unblocked the difference is at most 2 Max + Qmin, where Max is the
//! largest cost.

use super::super::super::node::{Node, Unit};
use super::super::{Drr, Quantum};
use super::{charge, head};
use crate::ids::{ChildId, Id};

const DISPATCHES: u32 = 10_000;
const COST_MAX: u64 = 900;

/// Two classes that are always backlogged. After each dispatch `arrives` gives the cost of a request that becomes the
/// head of the first class, if any; `true`: the first class was served. Asserts the bound after each dispatch.
fn duel(quantum: u64, common: [u64; 2], arrives: impl Fn(bool, u64) -> Option<u64>) -> [u64; 2] {
    let mut node: Drr<u32> = Drr::fixed(Unit::Class);
    let children = [node.add(0, Quantum::whole(quantum)), node.add(1, Quantum::whole(quantum))];
    let mut next = common;
    let mut served = [0_u64; 2];
    let enqueue = |node: &mut Drr<u32>, child: ChildId, cost| node.enqueue(child, &head(cost));
    for child in children {
        enqueue(&mut node, child, next[child.index()]);
    }
    for dispatch in 0..DISPATCHES {
        let child = node.pick().expect("both are runnable");
        let class = child.index();
        node.serve(child, &charge(next[class]));
        served[class] += next[class];
        next[class] = common[class];
        enqueue(&mut node, child, next[class]);
        if let Some(cost) = arrives(child == children[0], node.deficit(children[0])) {
            next[0] = cost;
            enqueue(&mut node, children[0], cost);
        }
        let difference = served[0].abs_diff(served[1]);
        assert!(
            difference <= 2 * COST_MAX + quantum,
            "difference of {difference} after {dispatch} dispatches: {served:?}"
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
            let [first, second] = duel(quantum, [COST_MAX, cost], |adversary, _| (!adversary).then_some(1));
            assert!(first > 0 && second > 0, "both are served: {first}, {second}");
        }
    }
}
