//! The tag scheduler: weighted fair queueing by virtual finish times, with self-clocked virtual time V.
//!
//! A child has one finish F. It becomes backlogged at S = max(V, F), and only its head has a tag, F + cost/weight:
//! tags that were fixed when requests came couldn't be corrected when the truth about a cost is known. The
//! least tag goes, ties by arrival; then F = tag and V = max(V, tag). Golestani, "A self-clocked fair queueing
//! scheme" (1994), with Zhang's remark that costs known late only need F to move.
//!
//! Children stand in one heap per lane, and the lanes that are open in a heap of these: a closed lane costs a
//! pick nothing. While a lane is closed V runs on; what its children would gain by that is taken from all of
//! them alike when it opens, so that the first of them stands at V, no earlier. They bank no more than being
//! next, and among themselves nothing shifts. (Starting each anew at V instead would starve the dearer of two
//! that are passed over again and again: its tag would be V + its cost every time, and V runs on.)

use alloc::collections::BTreeMap;

use crate::audit::{AuditError, holds};
use crate::cost::{Charge, Virtual};
use crate::heap::{Heaps, Root};
use crate::slab::Slab;

use super::node::{ChildId, Head, Node, Receipt};
use super::{Arrival, LaneId};

/// Children whose head waits in one lane.
#[derive(Debug)]
struct Queue {
    lane: LaneId,
    members: Root,
    /// Their finishes and tags count from here.
    origin: Virtual,
    /// Closed, and accounted for up to this V; `None`: open.
    closed_at: Option<Virtual>,
    /// Stands in the heap of open queues.
    listed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nothing waits; something runs, or is about to.
    Out,
    /// Backlogged, in this queue; its finish counts from the queue's origin.
    In(u32),
    /// Nothing waits or runs: forgotten when V reaches its finish.
    Idle,
}

#[derive(Debug)]
struct Child {
    owner: u32,
    weight: f64,
    finish: Virtual,
    place: Place,
    /// Meaningful while backlogged.
    head: Head,
}

/// The least goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    tag: Virtual,
    arrival: Arrival,
}

#[derive(Debug, Default)]
pub(super) struct Tags {
    now: Virtual,
    children: Slab<Child>,
    heads: Heaps<Key>,
    queues: Slab<Queue>,
    by_lane: BTreeMap<LaneId, u32>,
    open: Heaps<Key>,
    next: Root,
    finishes: Heaps<Virtual>,
    idle: Root,
}

impl Tags {
    /// A child that has never been charged; `owner` is its name one level up.
    pub(super) fn add(&mut self, owner: u32, weight: f64) -> ChildId {
        let head = Head {
            class_cost: 0,
            cost: 0,
            model: 0,
            lane: LaneId::ANY,
            open: true,
            arrival: Arrival::default(),
        };
        self.children.insert(Child {
            owner,
            weight,
            finish: Virtual::default(),
            place: Place::Out,
            head,
        })
    }

    pub(super) fn owner(&self, child: ChildId) -> u32 {
        self.children[child].owner
    }

    /// Where its last charge ends.
    pub(super) fn finish(&self, child: ChildId) -> Virtual {
        let child = &self.children[child];
        match child.place {
            Place::In(queue) => child.finish + self.queues[queue].origin,
            Place::Out | Place::Idle => child.finish,
        }
    }

    /// What goes next.
    pub(super) fn next_head(&self) -> Option<Head> {
        self.pick().map(|child| self.children[child].head)
    }

    /// Its weight from now on; its owner enqueues it again if it is backlogged.
    pub(super) fn weigh(&mut self, child: ChildId, weight: f64) {
        self.children[child].weight = weight;
    }

    /// Nothing of `child` waits or runs.
    pub(super) fn rest(&mut self, child: ChildId) {
        let node = &mut self.children[child];
        if node.place == Place::Out {
            node.place = Place::Idle;
            self.finishes.insert(&mut self.idle, child, node.finish);
        }
    }

    /// One that rests and that V has reached: a new one would start no earlier.
    pub(super) fn forgettable(&self) -> Option<ChildId> {
        self.finishes
            .least(&self.idle)
            .filter(|&(_, finish)| finish <= self.now)
            .map(|(child, _)| child)
    }

    /// `child` rests.
    pub(super) fn forget(&mut self, child: ChildId) {
        self.wake(child);
        self.children.remove(child);
    }

    /// An endpoint of `lane` has room again.
    pub(super) fn open(&mut self, lane: LaneId) {
        if let Some(&queue) = self.by_lane.get(&lane) {
            self.catch_up(queue);
            self.queues[queue].closed_at = None;
            self.list(queue);
        }
    }

    /// No endpoint of `lane` has room any more.
    pub(super) fn close(&mut self, lane: LaneId) {
        if let Some(&queue) = self.by_lane.get(&lane) {
            self.queues[queue].closed_at = Some(self.now);
            self.list(queue);
        }
    }

    fn wake(&mut self, child: ChildId) {
        let node = &mut self.children[child];
        if node.place == Place::Idle {
            node.place = Place::Out;
            self.finishes.remove(&mut self.idle, child);
        }
    }

    fn join(&mut self, child: ChildId, head: Head) {
        let queue = *self.by_lane.entry(head.lane).or_insert_with(|| {
            self.queues.insert(Queue {
                lane: head.lane,
                members: Root::default(),
                origin: Virtual::default(),
                closed_at: (!head.open).then_some(self.now),
                listed: false,
            })
        });
        self.catch_up(queue);
        let at = &mut self.queues[queue];
        let node = &mut self.children[child];
        node.finish = node.finish - at.origin;
        node.place = Place::In(queue);
        node.head = head;
        let tag = node.finish + Virtual::step(head.cost, node.weight);
        self.heads.insert(
            &mut at.members,
            child,
            Key {
                tag,
                arrival: head.arrival,
            },
        );
        self.list(queue);
    }

    /// Leaves the queue in which it is; its finish counts from zero again.
    fn leave(&mut self, child: ChildId, queue: u32) {
        self.catch_up(queue);
        let at = &mut self.queues[queue];
        let node = &mut self.children[child];
        self.heads.remove(&mut at.members, child);
        node.finish = node.finish + at.origin;
        node.place = Place::Out;
        self.list(queue);
        if self.queues[queue].members.is_empty() {
            let gone = self.queues.remove(queue);
            self.by_lane.remove(&gone.lane);
        }
    }

    /// Gives `child` its tag anew, after its finish moved.
    fn retag(&mut self, child: ChildId, queue: u32) {
        self.catch_up(queue);
        let node = &self.children[child];
        let tag = node.finish + Virtual::step(node.head.cost, node.weight);
        let members = &mut self.queues[queue].members;
        self.heads.remove(members, child);
        self.heads.insert(
            members,
            child,
            Key {
                tag,
                arrival: node.head.arrival,
            },
        );
        self.list(queue);
    }

    /// Takes from all in a closed queue what the first of them gained since: see above.
    fn catch_up(&mut self, queue: u32) {
        let at = &mut self.queues[queue];
        let Some(since) = at.closed_at.replace(self.now) else {
            at.closed_at = None;
            return;
        };
        if let Some((_, key)) = self.heads.least(&at.members) {
            let behind = self.now - (key.tag + at.origin);
            let gained = self.now - since;
            at.origin = at.origin + behind.min(gained).max(Virtual::default());
        }
    }

    /// Puts a queue where it belongs among the open ones, after anything about it changed.
    fn list(&mut self, queue: u32) {
        let at = &mut self.queues[queue];
        let least = self.heads.least(&at.members).filter(|_| at.closed_at.is_none());
        let key = least.map(|(_, key)| Key {
            tag: key.tag + at.origin,
            arrival: key.arrival,
        });
        if at.listed {
            if key == Some(self.open.key(queue)) {
                return;
            }
            self.open.remove(&mut self.next, queue);
        }
        at.listed = key.is_some();
        if let Some(key) = key {
            self.open.insert(&mut self.next, queue, key);
        }
    }
}

impl Tags {
    /// What must hold of `child`, given what waits of it and runs.
    pub(super) fn audit_child(
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
                let tag = node.finish + Virtual::step(head.cost, weight);
                let key = Key {
                    tag,
                    arrival: head.arrival,
                };
                holds(
                    "a child stands in the lane of its head",
                    self.queues[queue].lane == head.lane,
                )?;
                holds(
                    "a child's tag is of its head",
                    self.heads.key(child) == key && node.head.cost == head.cost,
                )
            }
            (Place::Out, None) => holds("what rests is known to rest", !rests),
            (Place::Idle, None) => {
                holds("what works doesn't rest", rests)?;
                holds("what rests and was reached is forgotten", node.finish > self.now)
            }
            (Place::In(_) | Place::Out | Place::Idle, _) => {
                holds("a child is enqueued while it has a head", false)
            }
        }
    }

    /// What must hold of the queues; `open` says which lanes are.
    pub(super) fn audit(&self, open: impl Fn(LaneId) -> bool) -> Result<(), AuditError> {
        let mut least: Option<(Key, ChildId)> = None;
        for (number, queue) in self.queues.iter() {
            let is_open = open(queue.lane);
            holds(
                "a queue is known by its lane",
                self.by_lane.get(&queue.lane) == Some(&number),
            )?;
            holds(
                "a queue is open while its lane is",
                queue.closed_at.is_none() == is_open,
            )?;
            holds("a queue is listed while it is open", queue.listed == is_open)?;
            holds("a queue has members", !queue.members.is_empty())?;
            for child in self.heads.members(&queue.members) {
                holds(
                    "a member knows its queue",
                    self.children[child].place == Place::In(number),
                )?;
                let key = self.heads.key(child);
                let key = Key {
                    tag: key.tag + queue.origin,
                    arrival: key.arrival,
                };
                if is_open && least.is_none_or(|(other, _)| key < other) {
                    least = Some((key, child));
                }
            }
        }
        holds("the least tag goes", self.pick() == least.map(|(_, child)| child))
    }
}

impl Node for Tags {
    fn enqueue(&mut self, child: ChildId, head: &Head) {
        self.wake(child);
        if let Place::In(queue) = self.children[child].place {
            self.leave(child, queue);
        } else {
            let node = &mut self.children[child];
            node.finish = node.finish.max(self.now);
        }
        self.join(child, *head);
    }

    fn pick(&self) -> Option<ChildId> {
        self.next
            .least()
            .and_then(|queue| self.queues[queue].members.least())
    }

    fn block(&mut self, child: ChildId) {
        self.remove(child);
    }

    fn serve(&mut self, child: ChildId, charge: &Charge) -> Receipt {
        self.charge(child, charge)
    }

    fn charge(&mut self, child: ChildId, charge: &Charge) -> Receipt {
        self.wake(child);
        let node = &mut self.children[child];
        if node.place == Place::Out {
            node.finish = node.finish.max(self.now);
        }
        node.finish = node.finish + charge.step();
        // Who is dispatched gets its next tag by what follows; only one that ran elsewhere is charged out of turn.
        if let Place::In(queue) = node.place
            && self.queues[queue].closed_at.is_some()
        {
            self.retag(child, queue);
        }
        self.now = self.now.max(self.finish(child));
        Receipt::default()
    }

    fn settle(&mut self, child: ChildId, charge: &Charge, _receipt: Receipt, real: Option<u64>) {
        let step = real.map_or(Virtual::default(), |real| charge.step_of(real));
        let moved = step - charge.step();
        if moved == Virtual::default() {
            return;
        }
        let node = &mut self.children[child];
        node.finish = node.finish + moved;
        if let Place::In(queue) = node.place {
            self.retag(child, queue);
        }
    }

    fn remove(&mut self, child: ChildId) {
        if let Place::In(queue) = self.children[child].place {
            self.leave(child, queue);
        }
    }
}
