//! What is going to happen, by time; of the same time, what was put down first comes first.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::faults::Fault;
use super::network::{Down, Up};

/// Nanoseconds of the world's own time, which nobody in it can read.
pub(super) type Nanos = u64;

pub(super) const MICRO: Nanos = 1_000;
pub(super) const MILLI: Nanos = 1_000_000;
pub(super) const SECOND: Nanos = 1_000_000_000;

/// Something that happens.
#[derive(Debug)]
pub(super) enum Due {
    /// The next client sends its request.
    Arrive,
    /// The rest of a request's body comes.
    Body(u64),
    /// A client leaves, wherever its request is.
    Leave(u64),
    /// A local reply of the filter goes out on this HTTP stream.
    Reply(u64),
    /// Envoy tries the next host of a resumed HTTP stream's list.
    Attempt(u64),
    /// An attempt came to nothing.
    Failed(u64, Why),
    /// A job of a server is a step further.
    Job(u64),
    /// Envoy gives an idle HTTP stream up.
    Idle(u64),
    /// A root context's timer; the number tells a timer that was set anew.
    Tick(u64, u64),
    /// Something of a filter reaches the companion's end.
    Up(u64, Up),
    /// Something of the companion reaches a filter's end.
    Down(u64, Down),
    /// The companion looks into its inbox; in which life.
    Inbox(u64),
    /// The companion's timer; in which life, and which.
    Timer(u64, u64),
    /// A companion starts.
    Boot,
    /// A companion told to drain ends, if it is that life.
    Quit(u64),
    /// The companion thaws, if it is that life.
    Thaw(u64),
    /// A worker's VM is there again.
    Revive(u64, usize),
    /// A killed Envoy starts again.
    Relight(u64),
    /// A plugin configuration's listener has drained long enough.
    Retire(u64),
    /// The next fault.
    Fault,
    /// What a fault did is over.
    Heal(Fault),
}

/// Why an attempt came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// The host didn't take the connection.
    Refused,
    /// It took the request and cut the connection before an answer.
    Reset,
}

#[derive(Debug)]
struct Entry {
    at: Nanos,
    number: u64,
    due: Due,
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
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// The agenda.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    heap: BinaryHeap<Entry>,
    numbers: u64,
}

impl Agenda {
    pub(super) fn put(&mut self, at: Nanos, due: Due) {
        self.numbers += 1;
        self.heap.push(Entry {
            at,
            number: self.numbers,
            due,
        });
    }

    pub(super) fn next(&mut self) -> Option<(Nanos, Due)> {
        self.heap.pop().map(|entry| (entry.at, entry.due))
    }
}
