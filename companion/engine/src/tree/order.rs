//! The order in a flow: first come, first served, by first arrival.
//!
//! The same requests stand in a second heap the other way round, for displacement takes the youngest. Both heaps
//! are links in arenas by request number: a flow's queue is two words, however many flows there are.

use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::heap::{Heaps, Root};

use super::{Arrival, Head, LaneId, Queued};

/// What waits in one flow.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    first: Root,
    youngest: Root,
}

impl Queue {
    /// The request that goes next.
    pub(super) const fn head(&self) -> Option<u32> {
        self.first.least()
    }
}

#[derive(Debug, Default)]
pub(super) struct Order {
    first: Heaps<Arrival>,
    youngest: Heaps<Reverse<Arrival>>,
    facts: Vec<(u64, LaneId)>,
}

impl Order {
    /// Whether `number` comes next in its flow from now on.
    pub(super) fn insert(&mut self, queue: &mut Queue, number: u32, request: &Queued) -> bool {
        let index = number as usize;
        if index >= self.facts.len() {
            self.facts.resize(index + 1, (0, LaneId::ANY));
        }
        self.facts[index] = (request.cost, request.lane);
        self.first.insert(&mut queue.first, number, request.arrival);
        self.youngest
            .insert(&mut queue.youngest, number, Reverse(request.arrival));
        queue.head() == Some(number)
    }

    /// Whether `number` was next in its flow.
    pub(super) fn remove(&mut self, queue: &mut Queue, number: u32) -> bool {
        let was_head = queue.head() == Some(number);
        self.first.remove(&mut queue.first, number);
        self.youngest.remove(&mut queue.youngest, number);
        was_head
    }

    pub(super) fn youngest(&self, queue: &Queue) -> Option<u32> {
        self.youngest.least(&queue.youngest).map(|(number, _)| number)
    }

    /// Cost, lane and arrival of `number`, which waits.
    pub(super) fn facts(&self, number: u32) -> (u64, LaneId, Arrival) {
        let (cost, lane) = self.facts[number as usize];
        (cost, lane, self.first.key(number))
    }

    pub(super) fn reprice(&mut self, number: u32, cost: u64) {
        self.facts[number as usize].0 = cost;
    }

    pub(super) fn in_order(&self, queue: &Queue) -> Vec<u32> {
        let mut numbers = self.first.members(&queue.first);
        numbers.sort_unstable_by_key(|&number| self.first.key(number));
        numbers
    }

    /// `number`, which waits, as the level above knows it.
    pub(super) fn head_of(&self, number: u32, lane_open: impl Fn(LaneId) -> bool) -> Head {
        let (cost, lane, arrival) = self.facts(number);
        Head {
            cost,
            lane,
            open: lane_open(lane),
            arrival,
        }
    }
}
