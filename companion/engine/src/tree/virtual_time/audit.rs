//! The invariants of a virtual time scheduler.

use super::super::node::{Head, Node};
use super::{Key, Place, Rule, VirtualTimeScheduler};
use crate::audit::{AuditError, check};
use crate::ids::{ChildId, EligibilityId, FlowId};

impl VirtualTimeScheduler {
    /// Checks `child` against its flow: the enqueued head, and whether nothing of it waits or runs.
    pub(crate) fn audit_child(
        &self,
        child: ChildId,
        owner: FlowId,
        weight: f64,
        head: Option<Head>,
        idle: bool,
    ) -> Result<(), AuditError> {
        let node = &self.children[child];
        check("a child leads to its flow", node.owner == owner)?;
        check("a child has the weight of its flow", node.weight == weight)?;
        match (node.place, head) {
            (Place::In(queue), Some(head)) => {
                check(
                    "a child waits in the queue of its head's eligibility set",
                    self.queues[queue].eligibility == head.eligibility,
                )?;
                let key = self.queues[queue].members.key(&self.positions, child);
                let kept = &node.head;
                check(
                    "a child's tag follows from its head",
                    key == Some(self.key(child))
                        && (kept.cost, kept.model, kept.arrival) == (head.cost, head.model, head.arrival),
                )
            }
            (Place::Out, None) => check("an idle child is recorded as idle", !idle),
            (Place::Idle, None) => {
                check("a busy child isn't recorded as idle", idle)?;
                let settled = self.rule != Rule::Vtc;
                check(
                    "an idle child whose charges don't matter is forgotten",
                    !settled || self.forgettable_from(child) > self.level(),
                )
            }
            (Place::In(_) | Place::Out | Place::Idle, _) => {
                check("a child is enqueued while it has a head", false)
            }
        }
    }

    /// Checks the queues; `open` is whether an eligibility set is open.
    pub(crate) fn audit(&self, open: impl Fn(EligibilityId) -> bool) -> Result<(), AuditError> {
        let mut least: Option<(Key, ChildId)> = None;
        let backlogged: usize = self.queues.iter().map(|(_, queue)| queue.members.ids().count()).sum();
        check("the children in queues are counted", self.backlogged == backlogged)?;
        for (id, queue) in self.queues.iter() {
            let is_open = open(queue.eligibility);
            let found = self.by_eligibility.get(&queue.eligibility) == Some(&id);
            let is_unrestricted = id == self.unrestricted;
            check(
                "an eligibility set leads to its queue",
                found != (is_unrestricted && queue.eligibility == EligibilityId::ANY),
            )?;
            check("a queue is open while its eligibility set is", queue.closed_at.is_none() == is_open)?;
            let is_empty = queue.members.is_empty();
            check("a queue has members", is_unrestricted || !is_empty)?;
            check(
                "exactly the open queues with members are candidates",
                self.open.key(id).is_some() == (is_open && !is_empty),
            )?;
            for child in queue.members.ids() {
                check("a member leads to its queue", self.children[child].place == Place::In(id))?;
                let Some(key) = queue.members.key(&self.positions, child) else {
                    return check("a member has a position", false);
                };
                let key = Key { tag: key.tag + queue.origin, arrival: key.arrival };
                if is_open && least.is_none_or(|(other, _)| key < other) {
                    least = Some((key, child));
                }
            }
        }
        check("the least tag is picked", self.pick() == least.map(|(_, child)| child))?;
        self.open.audit()?;
        self.idle.audit()?;
        self.usage.audit()
    }
}
