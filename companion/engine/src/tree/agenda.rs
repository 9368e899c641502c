//! Who has a turn when: a heap that knows where everybody stands in it, so that a turn can be changed in place.
//!
//! Turns here move by a little and often, and the least is read far more often than anything moves: an array of
//! four children a node is one or two cache lines a level, and a change that alters no order moves nothing.

use alloc::vec::Vec;

use crate::audit::{AuditError, holds};

use super::node::ChildId;
use super::ring::Turn;

const ABSENT: u32 = u32::MAX;
const BRANCHES: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Entry {
    turn: Turn,
    child: ChildId,
}

#[derive(Debug, Default)]
pub(super) struct Agenda {
    heap: Vec<Entry>,
    /// By child; [`ABSENT`] if it has no turn.
    at: Vec<u32>,
}

impl Agenda {
    /// Whose turn is next. No two have the same.
    pub(super) fn least(&self) -> Option<(ChildId, Turn)> {
        self.heap.first().map(|entry| (entry.child, entry.turn))
    }

    pub(super) fn turn(&self, child: ChildId) -> Option<Turn> {
        let at = *self.at.get(child as usize)?;
        self.heap.get(at as usize).map(|entry| entry.turn)
    }

    pub(super) const fn len(&self) -> usize {
        self.heap.len()
    }

    /// `child` has this turn, whether it had one or not.
    pub(super) fn set(&mut self, child: ChildId, turn: Turn) {
        let index = child as usize;
        if index >= self.at.len() {
            self.at.resize(index + 1, ABSENT);
        }
        let at = match self.at[index] {
            ABSENT => {
                self.heap.push(Entry { turn, child });
                self.heap.len() - 1
            }
            at => {
                let at = at as usize;
                if self.heap[at].turn == turn {
                    return;
                }
                self.heap[at].turn = turn;
                at
            }
        };
        let at = self.rise(at);
        self.sink(at);
    }

    /// `child` has no turn any more; nothing, if it had none.
    pub(super) fn remove(&mut self, child: ChildId) {
        let Some(&at) = self.at.get(child as usize) else {
            return;
        };
        if at == ABSENT {
            return;
        }
        self.at[child as usize] = ABSENT;
        let at = at as usize;
        self.heap.swap_remove(at);
        if at < self.heap.len() {
            let at = self.rise(at);
            self.sink(at);
        }
    }

    /// Every turn anew, by a rule that keeps their order.
    pub(super) fn map(&mut self, rule: impl Fn(ChildId, Turn) -> Turn) {
        for entry in &mut self.heap {
            entry.turn = rule(entry.child, entry.turn);
        }
    }

    fn put(&mut self, at: usize, entry: Entry) {
        self.heap[at] = entry;
        self.at[entry.child as usize] = at as u32;
    }

    fn rise(&mut self, mut at: usize) -> usize {
        let entry = self.heap[at];
        while at > 0 {
            let parent = (at - 1) / BRANCHES;
            if self.heap[parent].turn < entry.turn {
                break;
            }
            self.put(at, self.heap[parent]);
            at = parent;
        }
        self.put(at, entry);
        at
    }

    fn sink(&mut self, mut at: usize) {
        let entry = self.heap[at];
        loop {
            let first = at * BRANCHES + 1;
            let end = (first + BRANCHES).min(self.heap.len());
            let Some(least) = (first..end).min_by_key(|&child| self.heap[child].turn) else {
                break;
            };
            if entry.turn < self.heap[least].turn {
                break;
            }
            self.put(at, self.heap[least]);
            at = least;
        }
        self.put(at, entry);
    }

    /// Everybody stands where the heap says, and none before whom it waits for.
    pub(super) fn audit(&self) -> Result<(), AuditError> {
        for (at, entry) in self.heap.iter().enumerate() {
            holds(
                "who has a turn knows where",
                self.at[entry.child as usize] as usize == at,
            )?;
            let parent = &self.heap[at.saturating_sub(1) / BRANCHES];
            holds(
                "no turn comes before those above it",
                at == 0 || parent.turn < entry.turn,
            )?;
        }
        let standing = self.at.iter().filter(|&&at| at != ABSENT).count();
        holds("who has no turn stands nowhere", standing == self.heap.len())
    }
}
