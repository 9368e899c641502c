//! What must hold of the tag scheduler, looked at from all sides.

use crate::audit::{AuditError, holds};
use crate::tree::LaneId;
use crate::tree::node::{ChildId, Head, Node};

use super::{ANY, Key, Place, Rule, VirtualTimeScheduler};

impl VirtualTimeScheduler {
    /// What must hold of `child`, given what is enqueued of it, and whether nothing of it waits or runs.
    pub(in crate::tree) fn audit_child(
        &self,
        child: ChildId,
        owner: u32,
        weight: f64,
        head: Option<Head>,
        rests: bool,
    ) -> Result<(), AuditError> {
        let node = &self.children[child];
        holds("a child knows its owner", node.owner == owner)?;
        holds("a child has its owner's weight", node.weight == weight)?;
        match (node.place, head) {
            (Place::In(queue), Some(head)) => {
                holds(
                    "a child stands in the lane of its head",
                    self.queues[queue].lane == head.lane,
                )?;
                holds(
                    "a child's tag is of its head",
                    self.queues[queue].members.key(&self.places, child) == self.key(child)
                        && (node.head.cost, node.head.model, node.head.arrival)
                            == (head.cost, head.model, head.arrival),
                )
            }
            (Place::Out, None) => holds("what rests is known to rest", !rests),
            (Place::Idle, None) => {
                holds("what works doesn't rest", rests)?;
                let settled = self.rule != Rule::Vtc;
                holds(
                    "what rests and is of no account is forgotten",
                    !settled || self.goes_at(child) > self.level(),
                )
            }
            (Place::In(_) | Place::Out | Place::Idle, _) => {
                holds("a child is enqueued while it has a head", false)
            }
        }
    }

    /// What must hold of the queues; `open` says which lanes are.
    pub(in crate::tree) fn audit(&self, open: impl Fn(LaneId) -> bool) -> Result<(), AuditError> {
        let mut least: Option<(Key, ChildId)> = None;
        for (number, queue) in self.queues.iter() {
            let is_open = open(queue.lane);
            let known = self.by_lane.get(&queue.lane) == Some(&number);
            holds(
                "a queue is known by its lane",
                known != (number == ANY && queue.lane == LaneId::ANY),
            )?;
            holds(
                "a queue is open while its lane is",
                queue.closed_at.is_none() == is_open,
            )?;
            let is_empty = queue.members.is_empty();
            holds("a queue has members", number == ANY || !is_empty)?;
            holds(
                "a queue is listed while it is open",
                queue.listed == (is_open && !is_empty),
            )?;
            for child in queue.members.members() {
                holds(
                    "a member knows its queue",
                    self.children[child].place == Place::In(number),
                )?;
                let key = queue.members.key(&self.places, child);
                let key = Key {
                    tag: key.tag + queue.origin,
                    arrival: key.arrival,
                };
                if is_open && least.is_none_or(|(other, _)| key < other) {
                    least = Some((key, child));
                }
            }
        }
        holds("the least tag goes", self.pick() == least.map(|(_, child)| child))?;
        self.usage.audit()
    }
}
