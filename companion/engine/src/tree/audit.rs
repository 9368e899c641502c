//! The tree, counted again from the requests that wait and run.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::audit::{AuditError, holds, same};
use crate::input::EndpointId;

use super::node::Node;
use super::{BANDS, Queued, Tree, Waiting};

/// `waiting`: every request that waits. `running`: of each that runs, its flow. `lanes`: of each of both, its lane.
pub(super) fn tree(
    tree: &Tree,
    waiting: &[(u32, Queued)],
    running: &[u32],
    room: impl Fn(EndpointId) -> bool,
) -> Result<(), AuditError> {
    flows(tree, waiting, running)?;
    levels(tree)?;
    for (lane, eligible, with_room, holders) in tree.lanes.iter() {
        let found = eligible.iter().filter(|&&id| room(id)).count();
        same(
            "endpoints of a lane that have room",
            with_room as u64,
            found as u64,
        )?;
        holds("a lane is held by somebody", holders > 0)?;
        let heads = waiting.iter().filter(|(_, queued)| queued.lane == lane).count();
        holds("a lane is held by all who wait in it", holders >= heads)?;
    }
    Ok(())
}

fn flows(tree: &Tree, waiting: &[(u32, Queued)], running: &[u32]) -> Result<(), AuditError> {
    let mut queued: BTreeMap<u32, Vec<(u32, Queued)>> = BTreeMap::new();
    for &(number, request) in waiting {
        queued.entry(request.flow).or_default().push((number, request));
    }
    let mut in_flight: BTreeMap<u32, u64> = BTreeMap::new();
    for &flow in running {
        *in_flight.entry(flow).or_default() += 1;
    }
    let mut bands = [Waiting::default(); 3];
    for (number, flow) in tree.flows.iter() {
        let mut of_flow = queued.remove(&number).unwrap_or_default();
        of_flow.sort_unstable_by_key(|(_, request)| request.arrival);
        let mut sum = Waiting::default();
        for (_, request) in &of_flow {
            sum.add(request);
            bands[flow.path.band as usize].add(request);
        }
        holds("a flow's sums are those of its requests", sum == flow.waiting)?;
        let order: Vec<u32> = of_flow.iter().map(|&(number, _)| number).collect();
        holds(
            "a flow holds its requests, in order",
            order == tree.in_order(number),
        )?;
        holds(
            "the youngest is the last",
            order.last().copied() == tree.order.youngest(&flow.queue),
        )?;
        holds(
            "first and head are one",
            order.first().copied() == flow.queue.head(),
        )?;
        same(
            "in flight of a flow",
            flow.in_flight,
            in_flight.remove(&number).unwrap_or(0),
        )?;
        let head = flow
            .queue
            .head()
            .map(|number| tree.order.head_of(number, |lane| tree.lanes.is_open(lane)));
        let rests = of_flow.is_empty() && flow.in_flight == 0;
        tree.tags(flow.path)
            .audit_child(flow.child, number, flow.weight, head, rests)?;
    }
    holds(
        "everything that waits or runs is of a flow that is there",
        queued.is_empty() && in_flight.is_empty(),
    )?;
    holds("a band's sums are those of its flows", bands == tree.waiting)
}

fn levels(tree: &Tree) -> Result<(), AuditError> {
    for band in BANDS {
        let node = &tree.bands[band as usize];
        for (class, tags) in (0..).zip(&node.flows) {
            tags.audit(|lane| tree.lanes.is_open(lane))?;
            holds(
                "a class is enqueued while it can go",
                node.classes.has(class) == tags.pick().is_some(),
            )?;
        }
        let can_go = !node.classes.is_empty();
        holds(
            "a band is enqueued while it can go",
            tree.pool.has(band as u32) == can_go,
        )?;
        let first = tree.flows.victim(band);
        let least = tree
            .flows
            .iter()
            .filter(|(_, flow)| flow.path.band == band && flow.waiting.requests > 0)
            .min_by_key(|(_, flow)| flow.turn())
            .map(|(number, _)| number);
        let expected = if band == crate::input::Band::Critical {
            None
        } else {
            least
        };
        holds("the least recently preempted comes first", first == expected)?;
    }
    Ok(())
}
