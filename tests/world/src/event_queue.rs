//! Scheduled events in order of time; events of the same time come in the order in which they were scheduled.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::event::SimEvent;
use super::time::Nanos;

#[derive(Debug)]
struct Entry {
    time: Nanos,
    number: u64,
    event: SimEvent,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// Reversed, because [`BinaryHeap`] returns its greatest entry first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.time, other.number).cmp(&(self.time, self.number))
    }
}

/// The queue of scheduled events.
#[derive(Debug, Default)]
pub(super) struct EventQueue {
    heap: BinaryHeap<Entry>,
    scheduled: u64,
}

impl EventQueue {
    pub(super) fn schedule(&mut self, time: Nanos, event: SimEvent) {
        self.scheduled += 1;
        self.heap.push(Entry { time, number: self.scheduled, event });
    }

    pub(super) fn pop(&mut self) -> Option<(Nanos, SimEvent)> {
        self.heap.pop().map(|entry| (entry.time, entry.event))
    }
}
