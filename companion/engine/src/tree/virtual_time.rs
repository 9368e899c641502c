//! The tag scheduler: every child that waits has a tag, the least goes, ties by arrival. What a tag is, is the rule.
//!
//! - Weighted fair queueing, with self-clocked virtual time V: a child has one finish F; it becomes backlogged at
//!   S = max(V, F), and only its head has a tag, F + cost/weight: tags that were fixed when requests came couldn't be
//!   corrected when the truth about a cost is known. Then F = tag and V = max(V, tag). Golestani, "A self-clocked
//!   fair queueing scheme" (1994), with Zhang's remark that costs known late only need F to move. Round robin is
//!   this at cost 1.
//! - Virtual token counters: F is a counter, and the tag; who becomes able is lifted to the least of those who are,
//!   or to that of who went last. Sheng et al., "Fairness in serving large language models" (2024).
//! - Usage: the tag is what the child used of its head's model of late, per weight ([`Usage`]).
//! - First in, first out: no tags.
//!
//! Children stand in one heap per lane, and the lanes that are open in a heap of these: a closed lane costs a
//! pick nothing. While a lane is closed V runs on; what its children would gain by that is taken from all of
//! them alike when it opens, so that the first of them stands at V, no earlier. They bank no more than being
//! next, and among themselves nothing shifts. (Starting each anew at V instead would starve the dearer of two
//! that are passed over again and again: its tag would be V + its cost every time, and V runs on.)

use alloc::collections::BTreeMap;
use core::cmp::Ordering;
use core::time::Duration;

use crate::cost::{Charge, Virtual};
use crate::pairing_heap::{PairingHeaps, Root};
use crate::ranks::{Places, Ranks};
use crate::slab::Slab;
use crate::time::Instant;

use super::node::{ChildId, Head, Node, Receipt};
use super::usage::Usage;
use super::{Arrival, LaneId};

mod audit;
#[cfg(test)]
mod tests;

/// What the tag of a child is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Virtual finish times.
    #[default]
    Wfq,
    /// The same where every request costs one.
    RoundRobin,
    /// Nothing: the head that came first.
    Fifo,
    /// Cost so far, lifted.
    Vtc,
    /// Cost in the window.
    Usage,
}

/// The queue of [`LaneId::ANY`], which is never closed.
const ANY: u32 = 0;

/// Children whose head waits in one lane.
#[derive(Debug)]
struct Queue {
    lane: LaneId,
    members: Ranks<Key>,
    /// Their finishes and tags count from here.
    origin: Virtual,
    /// Closed, and accounted for up to this level; `None`: open.
    closed_at: Option<Virtual>,
    /// Stands in the heap of open queues.
    listed: bool,
}

impl Queue {
    fn new(lane: LaneId, closed_at: Option<Virtual>) -> Self {
        Self {
            lane,
            members: Ranks::default(),
            origin: Virtual::default(),
            closed_at,
            listed: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nothing waits that could go; something waits or runs, or is about to.
    Out,
    /// Backlogged, in this queue; its finish counts from the queue's origin.
    In(u32),
    /// Nothing waits or runs: forgotten when that makes no difference.
    Idle,
}

#[derive(Debug)]
struct Child {
    owner: u32,
    weight: f64,
    /// Stays 0 under [`Rule::Fifo`] and [`Rule::Usage`].
    finish: Virtual,
    place: Place,
    /// Under [`Rule::Usage`] goes after all others.
    last: bool,
    /// It was able to go, or went.
    started: bool,
    /// Meaningful in a queue.
    head: Head,
}

/// The least goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Key {
    tag: Virtual,
    arrival: Arrival,
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.tag
            .cmp(&other.tag)
            .then_with(|| self.arrival.cmp(&other.arrival))
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }

    /// What heaps ask all the time: mostly the tags decide.
    fn lt(&self, other: &Self) -> bool {
        if self.tag == other.tag {
            return self.arrival < other.arrival;
        }
        self.tag < other.tag
    }
}

/// How V was moved last, kept until somebody starts there: a refund takes it back.
#[derive(Clone, Copy, Debug)]
struct Moved {
    by: ChildId,
    step: Virtual,
    from: Virtual,
    served: Option<ChildId>,
}

#[derive(Debug)]
pub(super) struct VirtualTimeScheduler {
    rule: Rule,
    /// V; of counters: the last one's who went, if it is forgotten.
    now: Virtual,
    /// Of counters: who went last.
    served: Option<ChildId>,
    moved: Option<Moved>,
    usage: Usage,
    children: Slab<Child>,
    places: Places,
    /// [`ANY`] always; the others while they have members.
    queues: Slab<Queue>,
    /// All but [`ANY`].
    by_lane: BTreeMap<LaneId, u32>,
    open: PairingHeaps<Key>,
    next: Root,
    finishes: PairingHeaps<Virtual>,
    idle: Root,
}

impl VirtualTimeScheduler {
    /// `window` is [`Rule::Usage`]'s.
    pub(super) fn new(rule: Rule, window: Duration, now: Instant) -> Self {
        let mut queues = Slab::default();
        queues.insert(Queue::new(LaneId::ANY, None));
        Self {
            rule,
            now: Virtual::default(),
            served: None,
            moved: None,
            usage: Usage::new(window, now),
            children: Slab::default(),
            places: Places::default(),
            queues,
            by_lane: BTreeMap::new(),
            open: PairingHeaps::default(),
            next: Root::default(),
            finishes: PairingHeaps::default(),
            idle: Root::default(),
        }
    }

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
            last: false,
            started: false,
            head,
        })
    }

    /// `child`, which doesn't wait, goes after all others under [`Rule::Usage`].
    pub(super) fn put_last(&mut self, child: ChildId) {
        self.children[child].last = true;
    }

    pub(super) fn owner(&self, child: ChildId) -> u32 {
        self.children[child].owner
    }

    /// Where its last charge ends; under [`Rule::Usage`] what it used of all models, per weight.
    pub(super) fn finish(&self, child: ChildId) -> Virtual {
        let node = &self.children[child];
        if self.rule == Rule::Usage {
            return Virtual::of(self.usage.of_all(child), node.weight);
        }
        match node.place {
            Place::In(queue) => node.finish + self.queues[queue].origin,
            Place::Out | Place::Idle => node.finish,
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

    /// Brings the window to `now`. Between two seconds nothing changes by it.
    pub(super) fn advance(&mut self, now: Instant) {
        self.usage.advance(now);
        self.expire();
    }

    /// Another window for [`Rule::Usage`].
    pub(super) fn resize(&mut self, window: Duration) {
        self.usage.resize(window);
        self.expire();
    }

    fn expire(&mut self) {
        while let Some((child, model)) = self.usage.expired() {
            self.usage_changed(child, model);
        }
    }

    fn usage_changed(&mut self, child: ChildId, model: u32) {
        let node = &self.children[child];
        match node.place {
            Place::In(queue) if node.head.model == model => self.retag(child, queue),
            Place::Idle => {
                let goes = self.goes_at(child);
                self.finishes.rekey(&mut self.idle, child, goes);
            }
            Place::In(_) | Place::Out => {}
        }
    }

    /// `child` used this of `model` so long ago; nothing without [`Rule::Usage`].
    pub(super) fn used(&mut self, child: ChildId, model: u32, cost: u64, ago: Duration) {
        if self.rule == Rule::Usage {
            self.usage.used(child, model, cost, ago);
            self.expire();
            self.usage_changed(child, model);
        }
    }

    /// Nothing of `child` waits or runs.
    pub(super) fn rest(&mut self, child: ChildId) {
        if self.children[child].place == Place::Out {
            self.children[child].place = Place::Idle;
            let goes = self.goes_at(child);
            self.finishes.insert(&mut self.idle, child, goes);
        }
    }

    /// The level from which on `child`, which rests, may be forgotten.
    fn goes_at(&self, child: ChildId) -> Virtual {
        match self.rule {
            Rule::Wfq | Rule::RoundRobin | Rule::Vtc | Rule::Fifo => self.children[child].finish,
            Rule::Usage if self.usage.is_empty(child) => Virtual::default(),
            Rule::Usage => Virtual::FAR,
        }
    }

    /// One that rests and whose charges are of no account any more: a new one would start no earlier.
    pub(super) fn forgettable(&self) -> Option<ChildId> {
        self.finishes
            .least(&self.idle)
            .filter(|&(_, goes)| goes <= self.level())
            .map(|(child, _)| child)
    }

    /// `child` was [`Self::forgettable`].
    pub(super) fn forget(&mut self, child: ChildId) {
        self.wake(child);
        // Who was refused at the door has started nothing.
        if self.children[child].started {
            self.moved = None;
        }
        if self.served == Some(child) {
            self.served = None;
            self.now = self.children[child].finish;
        }
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
        if let Some(&queue) = self.by_lane.get(&lane)
            && self.queues[queue].closed_at.is_none()
        {
            self.queues[queue].closed_at = Some(Virtual::default());
            self.list(queue);
            self.queues[queue].closed_at = Some(self.level());
        }
    }

    /// Where who becomes able starts, at least.
    fn level(&self) -> Virtual {
        match self.rule {
            Rule::Wfq | Rule::RoundRobin => self.now,
            Rule::Vtc => match self.open.least(&self.next) {
                Some((_, key)) => key.tag,
                None => self.served.map_or(self.now, |child| self.finish(child)),
            },
            Rule::Fifo | Rule::Usage => Virtual::default(),
        }
    }

    /// How far `cost` moves a finish.
    fn step(&self, cost: u64, weight: f64) -> Virtual {
        match self.rule {
            Rule::Wfq | Rule::Vtc => Virtual::step(cost, weight),
            Rule::RoundRobin => Virtual::step(1, weight),
            Rule::Fifo | Rule::Usage => Virtual::default(),
        }
    }

    /// Of a child in a queue, from the queue's origin.
    fn key(&self, child: ChildId) -> Key {
        let node = &self.children[child];
        let tag = match self.rule {
            Rule::Wfq | Rule::RoundRobin => node.finish + self.step(node.head.cost, node.weight),
            Rule::Fifo => Virtual::default(),
            Rule::Vtc => node.finish,
            Rule::Usage => {
                let used = Virtual::of(self.usage.of(child, node.head.model), node.weight);
                if node.last { used + Virtual::FAR } else { used }
            }
        };
        Key {
            tag,
            arrival: node.head.arrival,
        }
    }

    fn wake(&mut self, child: ChildId) {
        let node = &mut self.children[child];
        if node.place == Place::Idle {
            node.place = Place::Out;
            self.finishes.remove(&mut self.idle, child);
        }
    }

    /// Who becomes able, or goes past the queue, has banked nothing.
    fn lift(&mut self, child: ChildId) {
        self.wake(child);
        let level = self.level();
        let node = &mut self.children[child];
        node.started = true;
        if node.finish < level {
            node.finish = level;
            self.moved = None;
        }
    }

    fn join(&mut self, child: ChildId, head: Head) {
        let queue = if head.lane == LaneId::ANY {
            ANY
        } else {
            let closed_at = (!head.open).then(|| self.level());
            let queues = &mut self.queues;
            let new = || queues.insert(Queue::new(head.lane, closed_at));
            *self.by_lane.entry(head.lane).or_insert_with(new)
        };
        self.catch_up(queue);
        let node = &mut self.children[child];
        node.finish = node.finish - self.queues[queue].origin;
        node.place = Place::In(queue);
        node.head = head;
        let key = self.key(child);
        self.queues[queue].members.insert(&mut self.places, child, key);
        self.list(queue);
    }

    /// Leaves the queue in which it is; its finish counts from zero again.
    fn leave(&mut self, child: ChildId, queue: u32) {
        self.catch_up(queue);
        let at = &mut self.queues[queue];
        let node = &mut self.children[child];
        at.members.remove(&mut self.places, child);
        node.finish = node.finish + at.origin;
        node.place = Place::Out;
        self.list(queue);
        if queue != ANY && self.queues[queue].members.is_empty() {
            let gone = self.queues.remove(queue);
            self.by_lane.remove(&gone.lane);
        }
    }

    /// Gives `child` its tag anew, after its finish or its head changed.
    fn retag(&mut self, child: ChildId, queue: u32) {
        self.catch_up(queue);
        let key = self.key(child);
        let members = &mut self.queues[queue].members;
        if key != members.key(&self.places, child) {
            members.rekey(&mut self.places, child, key);
            self.list(queue);
        }
    }

    /// Takes from all in a closed queue what the first of them gained since: see above.
    fn catch_up(&mut self, queue: u32) {
        if self.queues[queue].closed_at.is_none() {
            return;
        }
        let level = self.level();
        let at = &mut self.queues[queue];
        let since = at.closed_at.replace(level).unwrap_or(level);
        if let Some((_, key)) = at.members.least() {
            let behind = level - (key.tag + at.origin);
            let shift = behind.min(level - since);
            if shift > Virtual::default() {
                at.origin = at.origin + shift;
                self.moved = None;
            }
        }
    }

    /// Puts a queue where it belongs among the open ones, after anything about it changed.
    fn list(&mut self, queue: u32) {
        let at = &mut self.queues[queue];
        let least = at.members.least().filter(|_| at.closed_at.is_none());
        let key = least.map(|(_, key)| Key {
            tag: key.tag + at.origin,
            arrival: key.arrival,
        });
        match (at.listed, key) {
            (true, Some(key)) if key == self.open.key(queue) => {}
            (true, Some(key)) => self.open.rekey(&mut self.next, queue, key),
            (true, None) => self.open.remove(&mut self.next, queue),
            (false, Some(key)) => self.open.insert(&mut self.next, queue, key),
            (false, None) => {}
        }
        at.listed = key.is_some();
    }

    /// `child`, which starts no earlier than the level, is charged.
    fn move_by(&mut self, child: ChildId, charge: &Charge) {
        let step = self.step(charge.cost, charge.weight);
        let node = &mut self.children[child];
        node.finish = node.finish + step;
        let moved = Moved {
            by: child,
            step,
            from: self.now,
            served: self.served,
        };
        match self.rule {
            Rule::Wfq | Rule::RoundRobin => {
                let finish = self.finish(child);
                self.moved = (finish > self.now).then_some(moved);
                self.now = self.now.max(finish);
            }
            Rule::Vtc => {
                self.moved = Some(moved);
                self.served = Some(child);
            }
            Rule::Usage => self.usage.charge(child, charge.model, charge.cost),
            Rule::Fifo => {}
        }
    }
}

impl Node for VirtualTimeScheduler {
    fn enqueue(&mut self, child: ChildId, head: &Head) {
        match self.children[child].place {
            Place::In(queue) if self.queues[queue].lane == head.lane => {
                self.children[child].head = *head;
                self.retag(child, queue);
            }
            Place::In(queue) => {
                self.leave(child, queue);
                self.join(child, *head);
            }
            Place::Out | Place::Idle => {
                self.lift(child);
                self.join(child, *head);
            }
        }
    }

    fn block(&mut self, child: ChildId) {
        self.wake(child);
        self.remove(child);
    }

    fn remove(&mut self, child: ChildId) {
        if let Place::In(queue) = self.children[child].place {
            self.leave(child, queue);
        }
    }

    fn pick(&self) -> Option<ChildId> {
        self.next
            .least()
            .and_then(|queue| self.queues[queue].members.least())
            .map(|(child, _)| child)
    }

    fn serve(&mut self, child: ChildId, charge: &Charge) -> Receipt {
        // Its next tag comes by what follows.
        self.move_by(child, charge);
        Receipt::default()
    }

    fn charge(&mut self, child: ChildId, charge: &Charge) -> Receipt {
        let place = self.children[child].place;
        if let Place::In(queue) = place {
            self.catch_up(queue);
        } else {
            self.lift(child);
        }
        self.move_by(child, charge);
        if let Place::In(queue) = place {
            self.retag(child, queue);
        }
        Receipt::default()
    }

    fn settle(&mut self, child: ChildId, charge: &Charge, _receipt: Receipt, real: Option<u64>) {
        let step = self.step(charge.cost, charge.weight);
        let moved = real.map_or(Virtual::default(), |real| self.step(real, charge.weight)) - step;
        if let Some(last) = self.moved.filter(|last| last.by == child) {
            if real.is_none() && last.step == step {
                (self.now, self.served) = (last.from, last.served);
            }
            self.moved = None;
        }
        if self.rule == Rule::Usage {
            self.usage.settle(child, charge.model, charge.cost, real);
        }
        if moved != Virtual::default() || self.rule == Rule::Usage {
            let node = &mut self.children[child];
            node.finish = node.finish + moved;
            if let Place::In(queue) = node.place {
                self.retag(child, queue);
            }
        }
    }
}
