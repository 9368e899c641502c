//! Where the children of a round robin stand, and how far the cursor has come.
//!
//! A ring of those that take part, each with a label that grows along it from the first to the last; the cursor
//! stands on one of them, in a lap that begins at the first. Whoever joins stands immediately behind the cursor,
//! so that all others are reached before: ever new ones can't prolong a lap for those that are in it, and leaving
//! and joining again gains nothing. Room between two labels is used up from the left, as the next to join there
//! stands right of the last; when there is none all labels are spread anew, which keeps their order.

use alloc::vec::Vec;

use crate::audit::{AuditError, holds};

use super::node::ChildId;

const NONE: u32 = u32::MAX;
/// Labels lie below this. Tests run out of them sooner.
const LABELS: u64 = if cfg!(test) { 1 << 16 } else { u64::MAX };
/// Of the room that is there, one in 2 to this is used when one joins.
const SHARE: u32 = if cfg!(test) { 2 } else { 14 };

/// When the cursor is at a place: the lap, and the place's label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    pub(super) lap: u64,
    pub(super) label: u64,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    label: u64,
    prev: u32,
    /// [`NONE`]: outside.
    next: u32,
}

const OUTSIDE: Place = Place {
    label: 0,
    prev: NONE,
    next: NONE,
};

#[derive(Debug)]
pub(super) struct Ring {
    places: Vec<Place>,
    /// [`NONE`]: nobody is in.
    cursor: u32,
    lap: u64,
    members: u64,
}

impl Default for Ring {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            cursor: NONE,
            lap: 0,
            members: 0,
        }
    }
}

impl Ring {
    pub(super) const fn lap(&self) -> u64 {
        self.lap
    }

    pub(super) fn label(&self, child: ChildId) -> u64 {
        self.places[child as usize].label
    }

    /// The cursor is on `child`.
    pub(super) const fn is_on(&self, child: ChildId) -> bool {
        self.cursor == child
    }

    /// The first lap in which the cursor reaches `child` from where it is, or is on it.
    pub(super) fn next_lap(&self, child: ChildId) -> u64 {
        let ahead = self.label(child) >= self.label(self.cursor);
        self.lap + u64::from(!ahead)
    }

    /// The cursor goes to `child`, in `lap`.
    pub(super) const fn go_to(&mut self, child: ChildId, lap: u64) {
        self.cursor = child;
        self.lap = lap;
    }

    /// The cursor goes one further.
    pub(super) fn advance(&mut self) {
        let next = self.places[self.cursor as usize].next;
        self.lap += u64::from(self.label(next) <= self.label(self.cursor));
        self.cursor = next;
    }

    /// `child`, which is outside, is the last from now on, wherever the cursor is.
    pub(super) fn append(&mut self, child: ChildId) {
        let Some(first) = self.first() else {
            return self.insert_alone(child);
        };
        let label = self.label(self.places[first as usize].prev) + 1;
        self.insert_before(first, child, label);
    }

    /// `child`, which is outside, stands behind the cursor. True if all labels changed.
    pub(super) fn join(&mut self, child: ChildId) -> bool {
        if self.cursor == NONE {
            self.insert_alone(child);
            return false;
        }
        let (room, spread) = match self.room_behind_cursor() {
            room @ 2.. => (room, false),
            0 | 1 => {
                self.spread();
                (self.room_behind_cursor(), true)
            }
        };
        let prev = self.places[self.cursor as usize].prev;
        let label = self.label(prev) + (room >> SHARE).max(1);
        self.insert_before(self.cursor, child, label);
        spread
    }

    /// `child`, which is in, is outside from now on; if the cursor is on it, it goes one further.
    pub(super) fn leave(&mut self, child: ChildId) {
        let Place { prev, next, .. } = self.places[child as usize];
        if next == child {
            self.cursor = NONE;
        } else {
            if self.cursor == child {
                self.advance();
            }
            self.places[prev as usize].next = next;
            self.places[next as usize].prev = prev;
        }
        self.places[child as usize] = OUTSIDE;
        self.members -= 1;
    }

    /// Laps count from this one.
    pub(super) const fn rebase(&mut self) {
        self.lap = 0;
    }

    /// The distance from the label behind the cursor to the next that is taken.
    fn room_behind_cursor(&self) -> u64 {
        let on = self.label(self.cursor);
        let behind = self.label(self.places[self.cursor as usize].prev);
        // What stands behind the first is the last, and after it all labels are free.
        let end = if behind < on { on } else { LABELS };
        end - behind
    }

    fn first(&self) -> Option<u32> {
        let mut at = self.cursor;
        if at == NONE {
            return None;
        }
        loop {
            let prev = self.places[at as usize].prev;
            if self.label(prev) >= self.label(at) {
                return Some(at);
            }
            at = prev;
        }
    }

    /// Labels as far from each other as they can be.
    fn spread(&mut self) {
        let Some(mut at) = self.first() else { return };
        let step = LABELS / (self.members + 1);
        let mut label = 0;
        for _ in 0..self.members {
            let place = &mut self.places[at as usize];
            place.label = label;
            label += step;
            at = place.next;
        }
    }

    fn place(&mut self, child: ChildId, place: Place) {
        let index = child as usize;
        if index >= self.places.len() {
            self.places.resize(index + 1, OUTSIDE);
        }
        debug_assert_eq!(
            self.places[index].next, NONE,
            "invariant: only who is outside joins"
        );
        self.places[index] = place;
        self.members += 1;
    }

    fn insert_alone(&mut self, child: ChildId) {
        let place = Place {
            label: 0,
            prev: child,
            next: child,
        };
        self.place(child, place);
        self.cursor = child;
    }

    fn insert_before(&mut self, next: u32, child: ChildId, label: u64) {
        let prev = self.places[next as usize].prev;
        self.place(child, Place { label, prev, next });
        self.places[prev as usize].next = child;
        self.places[next as usize].prev = child;
    }

    /// Links lead round, and labels grow along them.
    pub(super) fn audit(&self) -> Result<(), AuditError> {
        let Some(first) = self.first() else {
            return holds("an empty ring has no members", self.members == 0);
        };
        let mut at = first;
        for number in 1..=self.members {
            let Place { label, next, .. } = self.places[at as usize];
            holds(
                "who follows in a ring knows whom",
                self.places[next as usize].prev == at,
            )?;
            let last = number == self.members;
            holds("labels grow along a ring", (self.label(next) > label) != last)?;
            at = next;
        }
        holds("a ring closes", at == first)
    }
}
