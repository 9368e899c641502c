//! The tag scheduler: every waiting child has a tag, and the least tag is next, ties by arrival. The rule defines tags.
//!
//! - Weighted fair queueing, with a self-clocked virtual time V. A child has one finish time F. It becomes backlogged at
//!   S = max(V, F), and only its head has a tag, F + cost/weight: a tag fixed at arrival couldn't be corrected once the
//!   real cost is known. At dispatch F = tag and V = max(V, tag). Golestani, "A self-clocked fair queueing scheme"
//!   (1994), with Zhang's remark that for costs known late only F has to move. Round robin is this rule at cost 1.
//!   What a child is granted while nothing waits moves F at once, and V only as it ends, but for one such request. So a
//!   child that fills the servers before others come is behind them by what it runs. Once two children wait, what still
//!   runs is a distance like any other.
//! - Virtual token counters: F is a counter, and the tag. A child that becomes runnable is lifted to the least counter of
//!   the runnable children, or to that of the child served last. Sheng et al., "Fairness in serving large language
//!   models" (2024). What the child's owner is charged in other leaves moves the counter too ([`elsewhere`]).
//! - Usage: the tag is the recent usage of the head's model by the child's owner, per weight. The caller knows the owner's
//!   usage elsewhere, so it sets the tag; this scheduler counts what the child itself used ([`Usage`]).
//! - First in, first out: no tags.
//!
//! Children wait in one queue per eligibility set, and the open queues are in a heap of their own, so a pick ignores
//! closed sets at no cost. While a set is closed, V moves on. When it opens, the advantage that its children would have
//! gained is taken from all of them alike, so that the first of them is at V, no earlier: they gain no more than being
//! next, and keep their order. (Starting each anew at V would starve the dearer of two children that are passed over
//! again and again, because its tag would be V + its cost every time while V moves on.)

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::time::Duration;

use super::node::{Head, Node, Receipt};
use super::usage::Usage;
use crate::arrival::Arrival;
use crate::cost::{Charge, VirtualTime};
use crate::ids::{ChildId, EligibilityId, FlowId, ModelId, QueueId};
use crate::indexed_heap::{IndexedHeap, Positions, SharedHeap};
use crate::slab::Slab;
use crate::time::Instant;

mod audit;
mod elsewhere;
mod queues;
mod running_usage;
#[cfg(test)]
mod tests;

/// The definition of a child's tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Rule {
    /// The virtual finish time.
    #[default]
    Wfq,
    /// The virtual finish time where every request costs one.
    RoundRobin,
    /// No tag: the head that arrived first is next.
    Fifo,
    /// The counter of past costs.
    Vtc,
    /// The cost in the window.
    Usage,
}

/// The children whose heads share one eligibility set.
#[derive(Debug)]
struct Queue {
    eligibility: EligibilityId,
    members: SharedHeap<ChildId, Key>,
    /// The members' finish times and tags count from here.
    origin: VirtualTime,
    /// While closed: the level up to which `origin` has been corrected.
    closed_at: Option<VirtualTime>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Not runnable. A request of it waits or runs, or is about to.
    Out,
    /// Backlogged in this queue. The finish time counts from the queue's origin.
    In(QueueId),
    /// Nothing of it waits or runs: it is forgotten when that makes no difference.
    Idle,
}

#[derive(Debug)]
struct Child {
    owner: FlowId,
    weight: f64,
    /// Stays 0 under [`Rule::Fifo`]. Under [`Rule::Usage`]: the tag, as far as the child waits.
    finish: VirtualTime,
    /// The part of `finish` of requests that bypassed while nothing waited, in [`Self::period`], and aren't settled.
    uncontested: VirtualTime,
    /// The [`VirtualTimeScheduler::period`] in which `uncontested` counts.
    period: u32,
    /// The estimated cost of the owner's running requests from other leaves that is part of `finish`, under [`Rule::Vtc`].
    elsewhere: u128,
    place: Place,
    /// Under [`Rule::Usage`] after all others.
    last: bool,
    /// The child was runnable or charged.
    started: bool,
    /// Valid in a queue.
    head: Head,
}

/// The least is next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Key {
    tag: VirtualTime,
    arrival: Arrival,
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.tag.cmp(&other.tag).then_with(|| self.arrival.cmp(&other.arrival))
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }

    /// Heaps call this all the time, and mostly the tags decide.
    fn lt(&self, other: &Self) -> bool {
        if self.tag == other.tag {
            return self.arrival < other.arrival;
        }
        self.tag < other.tag
    }
}

/// The last advance of V, kept until a child starts at the new V: a refund reverts it.
#[derive(Clone, Copy, Debug)]
struct Advance {
    child: ChildId,
    step: VirtualTime,
    from: VirtualTime,
    served: Option<ChildId>,
}

#[derive(Debug)]
pub(super) struct VirtualTimeScheduler {
    rule: Rule,
    /// V. Under [`Rule::Vtc`]: the counter of the child served last, if that child was forgotten.
    now: VirtualTime,
    /// Under [`Rule::Vtc`]: the child served last.
    served: Option<ChildId>,
    last_advance: Option<Advance>,
    /// The children in the queues.
    backlogged: usize,
    /// Numbers the times that end when a second child comes to wait, or a weight changes. Not 0, the period of a receipt that has none.
    period: u32,
    usage: Usage,
    /// Under [`Rule::Usage`]: the children whose weights have changed, with the new weight as a multiple of the old one.
    reweighted: Vec<(ChildId, f64)>,
    children: Slab<ChildId, Child>,
    positions: Positions<ChildId>,
    queues: Slab<QueueId, Queue>,
    /// The queue of [`EligibilityId::ANY`]. It always exists and is never closed.
    unrestricted: QueueId,
    /// All other queues; each exists while it has members.
    by_eligibility: BTreeMap<EligibilityId, QueueId>,
    /// Open queues with members, by their least key.
    open: IndexedHeap<QueueId, Key>,
    /// Idle children, by the level from which on they may be forgotten.
    idle: IndexedHeap<ChildId, VirtualTime>,
}

impl VirtualTimeScheduler {
    /// `window` is for [`Rule::Usage`].
    pub(super) fn new(rule: Rule, window: Duration, now: Instant) -> Self {
        let mut queues = Slab::default();
        Self {
            rule,
            now: VirtualTime::default(),
            served: None,
            last_advance: None,
            backlogged: 0,
            period: 1,
            usage: Usage::new(window, now),
            reweighted: Vec::new(),
            children: Slab::default(),
            positions: Positions::default(),
            unrestricted: queues.insert(Queue::new(EligibilityId::ANY, None)),
            queues,
            by_eligibility: BTreeMap::new(),
            open: IndexedHeap::default(),
            idle: IndexedHeap::default(),
        }
    }

    /// Adds a child without charges.
    pub(super) fn add(&mut self, owner: FlowId, weight: f64) -> ChildId {
        self.children.insert(Child {
            owner,
            weight,
            finish: VirtualTime::default(),
            uncontested: VirtualTime::default(),
            period: 0,
            elsewhere: 0,
            place: Place::Out,
            last: false,
            started: false,
            head: Head::NONE,
        })
    }

    /// Puts `child`, which doesn't wait, after all others under [`Rule::Usage`].
    pub(super) fn put_last(&mut self, child: ChildId) {
        self.children[child].last = true;
    }

    pub(super) fn owner(&self, child: ChildId) -> FlowId {
        self.children[child].owner
    }

    /// The finish time of the last charge, corrected for the time in a closed queue; under [`Rule::Usage`] the tag that was
    /// set last.
    pub(super) fn finish_now(&self, child: ChildId) -> VirtualTime {
        match self.children[child].place {
            Place::In(queue) => self.finish(child) + self.advantage(queue),
            Place::Out | Place::Idle => self.finish(child),
        }
    }

    /// [`Self::finish_now`] as of the last correction.
    pub(super) fn finish(&self, child: ChildId) -> VirtualTime {
        let node = &self.children[child];
        match node.place {
            Place::In(queue) => node.finish + self.queues[queue].origin,
            Place::Out | Place::Idle => node.finish,
        }
    }

    /// How far `child` is ahead of the level; without a level none is ahead.
    pub(super) fn lag(&self, child: ChildId) -> VirtualTime {
        match self.rule {
            Rule::Wfq | Rule::RoundRobin | Rule::Vtc => {
                (self.finish_now(child) - self.level()).max(VirtualTime::default())
            }
            Rule::Fifo | Rule::Usage => VirtualTime::default(),
        }
    }

    /// The tag of the child that is next.
    pub(super) fn least_tag(&self) -> Option<VirtualTime> {
        self.open.least().map(|(_, key)| key.tag)
    }

    /// The head that is dispatched next.
    pub(super) fn next_head(&self) -> Option<Head> {
        self.pick().map(|child| self.children[child].head)
    }

    /// Changes the weight. The caller enqueues a backlogged child again, and calls [`Self::end_weights`] after all such changes.
    ///
    /// The child stays as far ahead of the others, or behind them, in cost. As far in virtual time would be a thousand times that after
    /// a weight of 0.001 becomes 1: the child would be served, or passed over, as many times in a row. Under [`Rule::Usage`] what is in the
    /// window counts by the weight that the child had then: by the new one, the child would be served, or passed over, for a large part of
    /// the window.
    pub(super) fn set_weight(&mut self, child: ChildId, weight: f64) {
        let old = core::mem::replace(&mut self.children[child].weight, weight);
        let counts = match self.rule {
            Rule::Wfq | Rule::RoundRobin | Rule::Vtc => true,
            Rule::Fifo | Rule::Usage => false,
        };
        if old.to_bits() == weight.to_bits() {
            return;
        }
        if self.rule == Rule::Usage {
            self.reweighted.push((child, weight / old));
        }
        if !counts {
            return;
        }
        // The child moves relative to V. If a refund reverted V after that, the child would be ahead by as much.
        self.last_advance = None;
        self.begin_period();
        if let Place::In(queue) = self.children[child].place {
            self.catch_up(queue);
        }
        let distance = self.finish(child) - self.level();
        let is_waiting = matches!(self.children[child].place, Place::In(_));
        // A child that doesn't wait is lifted to the level when it comes back.
        if is_waiting || distance > VirtualTime::default() {
            self.shift(child, distance.reweighted(old, weight) - distance);
            self.update_idle(child);
        }
    }

    /// Ends a change of weights.
    pub(super) fn end_weights(&mut self) {
        let reweighted = core::mem::take(&mut self.reweighted);
        if !reweighted.is_empty() {
            self.usage.scale(&reweighted);
        }
        for (child, _) in reweighted {
            self.update_idle(child);
        }
    }

    /// Advances the window to `now`. Within a second nothing changes. The caller then calls [`Self::expired_usage`] until
    /// it returns `None`.
    pub(super) fn advance(&mut self, now: Instant) {
        self.usage.advance(now);
    }

    /// Changes the window of [`Rule::Usage`]. The caller then sets the tags of all children that wait.
    pub(super) fn resize_window(&mut self, window: Duration) {
        self.usage.resize(window);
        while self.expired_usage().is_some() {}
    }

    /// Removes the next usage that is out of the window: the owner of the child, the model and the cost.
    pub(super) fn expired_usage(&mut self) -> Option<(FlowId, ModelId, u128)> {
        let (child, model, cost) = self.usage.expired()?;
        self.update_idle(child);
        Some((self.children[child].owner, model, cost))
    }

    /// The usage or the counter of `child` changed, which decides when it may be forgotten.
    fn update_idle(&mut self, child: ChildId) {
        if self.children[child].place == Place::Idle {
            self.idle.set(child, self.forgettable_from(child));
        }
    }

    /// The usage of `child` by model: in the window, and running.
    pub(super) fn usage_by_model(&self, child: ChildId) -> impl Iterator<Item = (ModelId, u128)> {
        self.usage.by_model(child)
    }

    /// Adds a past cost of `child` for `model`. Ignored without [`Rule::Usage`]. The caller then calls
    /// [`Self::expired_usage`] until it returns `None`.
    pub(super) fn add_past_usage(&mut self, child: ChildId, model: ModelId, cost: u64, ago: Duration) {
        if self.rule == Rule::Usage {
            self.usage.add_past(child, model, cost, ago);
            self.update_idle(child);
        }
    }

    /// Sets the usage by which `child` is ordered under [`Rule::Usage`], before its head is enqueued.
    pub(super) fn set_usage(&mut self, child: ChildId, used: u128) {
        let node = &mut self.children[child];
        node.finish = VirtualTime::of(used, node.weight);
    }

    /// Sets the usage by which `child` is ordered under [`Rule::Usage`], if it waits with a head of `model`. Returns
    /// whether its tag changed.
    pub(super) fn retag_usage(&mut self, child: ChildId, model: ModelId, used: u128) -> bool {
        let node = &mut self.children[child];
        let Place::In(queue) = node.place else {
            return false;
        };
        let tag = VirtualTime::of(used, node.weight);
        if node.head.model != model || node.finish == tag {
            return false;
        }
        node.finish = tag;
        self.retag(child, queue);
        true
    }

    /// Nothing of `child` waits or runs any more.
    pub(super) fn set_idle(&mut self, child: ChildId) {
        if self.children[child].place == Place::Out {
            self.children[child].place = Place::Idle;
            self.idle.set(child, self.forgettable_from(child));
        }
    }

    /// The level from which on `child`, which is idle, may be forgotten.
    fn forgettable_from(&self, child: ChildId) -> VirtualTime {
        match self.rule {
            Rule::Wfq | Rule::RoundRobin | Rule::Vtc | Rule::Fifo => self.children[child].finish,
            Rule::Usage if self.usage.is_empty(child) => VirtualTime::default(),
            // Its usage would be gone with it, and a client that left for a moment would come back without any.
            Rule::Usage => VirtualTime::FAR,
        }
    }

    /// An idle child whose charges no longer matter, because a new child would start no earlier.
    pub(super) fn forgettable(&self) -> Option<ChildId> {
        let (child, from) = self.idle.least()?;
        (from <= self.level()).then_some(child)
    }

    /// Removes `child`, which was [`Self::forgettable`].
    pub(super) fn forget(&mut self, child: ChildId) {
        self.end_idle(child);
        // A request that was rejected at its arrival started nothing.
        if self.children[child].started {
            self.last_advance = None;
        }
        if self.served == Some(child) {
            self.served = None;
            self.now = self.children[child].finish;
        }
        self.children.remove(child);
    }

    /// The least finish time of a child that becomes runnable.
    fn level(&self) -> VirtualTime {
        match self.rule {
            Rule::Wfq | Rule::RoundRobin => self.now,
            Rule::Vtc => match self.open.least() {
                Some((_, key)) => key.tag,
                None => self.served.map_or(self.now, |child| self.finish(child)),
            },
            Rule::Fifo | Rule::Usage => VirtualTime::default(),
        }
    }

    /// How far `cost` moves a finish time.
    fn step(&self, cost: u64, weight: f64) -> VirtualTime {
        match self.rule {
            Rule::Wfq | Rule::Vtc => VirtualTime::step(cost, weight),
            Rule::RoundRobin => VirtualTime::step(1, weight),
            Rule::Fifo | Rule::Usage => VirtualTime::default(),
        }
    }

    /// The key of a child in a queue, from the queue's origin.
    fn key(&self, child: ChildId) -> Key {
        let node = &self.children[child];
        let tag = match self.rule {
            Rule::Wfq | Rule::RoundRobin => node.finish + self.step(node.head.cost, node.weight),
            Rule::Fifo => VirtualTime::default(),
            Rule::Usage if node.last => node.finish + VirtualTime::FAR,
            Rule::Vtc | Rule::Usage => node.finish,
        };
        Key { tag, arrival: node.head.arrival }
    }

    fn end_idle(&mut self, child: ChildId) {
        let node = &mut self.children[child];
        if node.place == Place::Idle {
            node.place = Place::Out;
            self.idle.remove(child);
        }
    }

    /// Lifts a child that becomes runnable, or bypasses the queue, to the level: it gains nothing from its absence.
    fn lift(&mut self, child: ChildId) {
        self.end_idle(child);
        let level = self.level();
        let node = &mut self.children[child];
        node.started = true;
        if node.finish < level {
            node.finish = level;
            self.last_advance = None;
        }
    }

    /// V is the latest finish time.
    const fn follows_finish(&self) -> bool {
        matches!(self.rule, Rule::Wfq | Rule::RoundRobin)
    }

    /// From now on V no longer waits for what runs.
    const fn begin_period(&mut self) {
        self.period = match self.period.checked_add(1) {
            Some(next) => next,
            None => 1,
        };
    }

    /// The part of the child's finish time that V waits for.
    fn uncontested(&self, child: ChildId) -> VirtualTime {
        let node = &self.children[child];
        if node.period == self.period { node.uncontested } else { VirtualTime::default() }
    }

    /// Charges `child`, which is at the level or later.
    fn advance_by(&mut self, child: ChildId, charge: &Charge) {
        let step = self.step(charge.cost, charge.weight);
        let uncontested = self.uncontested(child);
        let node = &mut self.children[child];
        node.finish = node.finish + step;
        let advance = Advance { child, step, from: self.now, served: self.served };
        match self.rule {
            Rule::Wfq | Rule::RoundRobin => {
                let finish = self.finish(child) - uncontested;
                self.last_advance = (finish > self.now).then_some(advance);
                // A child that bypasses while its own queue is closed may be behind V, which doesn't go back.
                self.now = self.now.max(finish);
            }
            Rule::Vtc => {
                self.last_advance = Some(advance);
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
            Place::In(queue) if self.queues[queue].eligibility == head.eligibility => {
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
        self.end_idle(child);
        self.remove(child);
    }

    fn remove(&mut self, child: ChildId) {
        if let Place::In(queue) = self.children[child].place {
            self.leave(child, queue);
        }
    }

    fn pick(&self) -> Option<ChildId> {
        let (queue, _) = self.open.least()?;
        let (child, _) = self.queues[queue].members.least()?;
        Some(child)
    }

    fn serve(&mut self, child: ChildId, charge: &Charge) -> Receipt {
        // The caller's next call gives the child its next tag.
        self.advance_by(child, charge);
        Receipt::default()
    }

    fn charge(&mut self, child: ChildId, charge: &Charge) -> Receipt {
        let place = self.children[child].place;
        if let Place::In(queue) = place {
            self.catch_up(queue);
        } else {
            self.lift(child);
        }
        self.advance_by(child, charge);
        if let Place::In(queue) = place {
            self.rekey(child, queue);
        }
        if self.backlogged > 0 || !self.follows_finish() {
            return Receipt::default();
        }
        let uncontested = self.uncontested(child) + self.step(charge.cost, charge.weight);
        let (node, period) = (&mut self.children[child], self.period);
        (node.uncontested, node.period) = (uncontested, period);
        Receipt { period, taken: charge.cost }
    }

    fn settle(&mut self, child: ChildId, charge: &Charge, receipt: Receipt, real: Option<u64>) {
        let step = self.step(charge.cost, charge.weight);
        let correction = real.map_or(VirtualTime::default(), |real| self.step(real, charge.weight)) - step;
        if let Some(last) = self.last_advance.filter(|last| last.child == child) {
            // It may have been another request of the child. V goes back by the same distance for either.
            if real.is_none() && last.step == step {
                (self.now, self.served) = (last.from, last.served);
            }
            self.last_advance = None;
        }
        if self.rule == Rule::Usage {
            self.usage.settle(child, charge.model, charge.cost, real);
        }
        if correction != VirtualTime::default() {
            self.shift(child, correction);
        }
        if receipt.period == self.period {
            // Within a period weights stay what they are.
            let taken = self.step(receipt.taken, charge.weight);
            let node = &mut self.children[child];
            node.uncontested = node.uncontested - taken;
            let ended = node.finish - node.uncontested;
            if real.is_some() && self.backlogged == 0 && ended > self.now {
                self.now = ended;
                self.last_advance = None;
            }
        }
    }
}
