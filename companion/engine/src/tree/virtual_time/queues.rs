//! The queues of a virtual time scheduler, one per eligibility set, and the effect of opening and closing them.

use super::super::node::Head;
use super::{Key, Place, Queue, VirtualTimeScheduler};
use crate::cost::VirtualTime;
use crate::ids::{ChildId, EligibilityId, QueueId};
use crate::indexed_heap::SharedHeap;

impl Queue {
    pub(super) fn new(eligibility: EligibilityId, closed_at: Option<VirtualTime>) -> Self {
        Self { eligibility, members: SharedHeap::default(), origin: VirtualTime::default(), closed_at }
    }
}

impl VirtualTimeScheduler {
    /// An endpoint of `eligibility` has room again.
    pub(crate) fn open(&mut self, eligibility: EligibilityId) {
        if let Some(&queue) = self.by_eligibility.get(&eligibility) {
            self.catch_up(queue);
            self.queues[queue].closed_at = None;
            self.update_open(queue);
        }
    }

    /// No endpoint of `eligibility` has room any more.
    pub(crate) fn close(&mut self, eligibility: EligibilityId) {
        if let Some(&queue) = self.by_eligibility.get(&eligibility)
            && self.queues[queue].closed_at.is_none()
        {
            // Under virtual token counters the level depends on the open queues, so the queue is closed first.
            self.queues[queue].closed_at = Some(VirtualTime::default());
            self.update_open(queue);
            self.queues[queue].closed_at = Some(self.level());
        }
    }

    pub(super) fn join(&mut self, child: ChildId, head: Head) {
        let queue = if head.eligibility == EligibilityId::ANY {
            self.unrestricted
        } else {
            let closed_at = (!head.open).then(|| self.level());
            let queues = &mut self.queues;
            let new = || queues.insert(Queue::new(head.eligibility, closed_at));
            *self.by_eligibility.entry(head.eligibility).or_insert_with(new)
        };
        self.catch_up(queue);
        self.backlogged += 1;
        if self.backlogged == 2 {
            self.begin_period();
        }
        let node = &mut self.children[child];
        node.finish = node.finish - self.queues[queue].origin;
        node.place = Place::In(queue);
        node.head = head;
        let key = self.key(child);
        self.queues[queue].members.insert(&mut self.positions, child, key);
        self.update_open(queue);
    }

    /// Takes `child` out of `queue`. Its finish time counts from zero again.
    pub(super) fn leave(&mut self, child: ChildId, queue: QueueId) {
        self.catch_up(queue);
        let left = &mut self.queues[queue];
        let node = &mut self.children[child];
        left.members.remove(&mut self.positions, child);
        self.backlogged -= 1;
        node.finish = node.finish + left.origin;
        node.place = Place::Out;
        self.update_open(queue);
        if queue != self.unrestricted && self.queues[queue].members.is_empty() {
            let removed = self.queues.remove(queue);
            self.by_eligibility.remove(&removed.eligibility);
        }
    }

    /// Updates the tag of `child`, after its head changed.
    pub(super) fn retag(&mut self, child: ChildId, queue: QueueId) {
        self.catch_up(queue);
        self.rekey(child, queue);
    }

    /// Moves the finish time of `child`, and its tag if it waits.
    pub(super) fn shift(&mut self, child: ChildId, distance: VirtualTime) {
        let place = self.children[child].place;
        if let Place::In(queue) = place {
            self.catch_up(queue);
        }
        let node = &mut self.children[child];
        node.finish = node.finish + distance;
        if let Place::In(queue) = place {
            self.rekey(child, queue);
        }
    }

    /// Updates the tag of `child`, after its finish time changed. The queue was caught up before that change: a later
    /// [`Self::catch_up`] compares the level with the new tag, so that a child's own charge doesn't count as an advantage.
    pub(super) fn rekey(&mut self, child: ChildId, queue: QueueId) {
        let key = self.key(child);
        let members = &mut self.queues[queue].members;
        if members.key(&self.positions, child) != Some(key) {
            members.rekey(&mut self.positions, child, key);
            self.update_open(queue);
        }
    }

    /// Takes from all members of a closed queue the advantage that the first of them gained since the last call.
    pub(super) fn catch_up(&mut self, queue: QueueId) {
        if self.queues[queue].closed_at.is_none() {
            return;
        }
        let shift = self.advantage(queue);
        if shift > VirtualTime::default() {
            let closed = &mut self.queues[queue];
            closed.origin = closed.origin + shift;
            self.last_advance = None;
        }
        // Under virtual token counters, the level may be the counter of one of these members.
        self.queues[queue].closed_at = Some(self.level());
    }

    /// The advantage that the members of `queue` gained since the last [`Self::catch_up`]; none while it is open.
    pub(super) fn advantage(&self, queue: QueueId) -> VirtualTime {
        let closed = &self.queues[queue];
        let Some((since, (_, key))) = closed.closed_at.zip(closed.members.least()) else {
            return VirtualTime::default();
        };
        let level = self.level();
        let behind = level - (key.tag + closed.origin);
        behind.min(level - since).max(VirtualTime::default())
    }

    /// Updates the place of `queue` among the open ones, after any change of it.
    pub(super) fn update_open(&mut self, queue: QueueId) {
        let changed = &self.queues[queue];
        let least = changed.members.least();
        match least.filter(|_| changed.closed_at.is_none()) {
            Some((_, key)) => {
                let key = Key { tag: key.tag + changed.origin, arrival: key.arrival };
                self.open.set(queue, key);
            }
            None => self.open.remove(queue),
        }
    }
}
