//! The ring of a round robin: the order of its children, and how far the cursor has come.
//!
//! Each child in the ring has a label. Labels grow along the ring from the first child to the last. The cursor is at one
//! child, in a lap that starts at the first. A child that joins comes immediately behind the cursor, so the cursor
//! reaches all others before: an endless supply of new children can't prolong the lap of those in the ring, and leaving
//! and joining again gains nothing. Free labels behind the cursor are used up from the left, because the next child that
//! joins comes to the right of the last. When none is left, all labels are spread anew, which keeps their order.

use alloc::vec::Vec;

use crate::audit::{AuditError, check};
use crate::ids::{ChildId, Id};

/// Labels are below this. Tests run out of them sooner.
const LABELS: u64 = if cfg!(test) { 1 << 16 } else { u64::MAX };
/// A child that joins uses one in 2 to this of the free labels.
const SHARE: u32 = if cfg!(test) { 2 } else { 14 };

/// When the cursor is at a child: the lap, and the child's label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    pub(super) lap: u64,
    pub(super) label: u64,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    label: u64,
    previous: ChildId,
    next: ChildId,
}

#[derive(Debug, Default)]
pub(super) struct Ring {
    /// By child; `None`: not in the ring.
    places: Vec<Option<Place>>,
    /// `None`: the ring is empty.
    cursor: Option<ChildId>,
    lap: u64,
    members: u64,
}

impl Ring {
    pub(super) const fn lap(&self) -> u64 {
        self.lap
    }

    pub(super) fn label(&self, child: ChildId) -> u64 {
        self.place(child).label
    }

    /// The cursor is at `child`.
    pub(super) fn is_at(&self, child: ChildId) -> bool {
        self.cursor == Some(child)
    }

    /// The first lap, from now on, in which the cursor is at `child`.
    pub(super) fn next_lap(&self, child: ChildId) -> u64 {
        let ahead = self.label(child) >= self.label(self.cursor());
        self.lap + u64::from(!ahead)
    }

    /// Moves the cursor to `child`, in `lap`.
    pub(super) const fn go_to(&mut self, child: ChildId, lap: u64) {
        self.cursor = Some(child);
        self.lap = lap;
    }

    /// Moves the cursor to the next child.
    pub(super) fn advance(&mut self) {
        let place = *self.place(self.cursor());
        self.lap += u64::from(self.label(place.next) <= place.label);
        self.cursor = Some(place.next);
    }

    /// Adds `child` as the last of the ring.
    pub(super) fn append(&mut self, child: ChildId) {
        let Some(first) = self.first() else {
            return self.insert_alone(child);
        };
        let label = self.label(self.place(first).previous) + 1;
        self.insert_before(first, child, label);
    }

    /// Adds `child` behind the cursor. Returns whether all labels changed.
    pub(super) fn join(&mut self, child: ChildId) -> bool {
        let Some(cursor) = self.cursor else {
            self.insert_alone(child);
            return false;
        };
        let (free, spread) = match self.free_behind(cursor) {
            free @ 2.. => (free, false),
            0 | 1 => {
                self.spread();
                (self.free_behind(cursor), true)
            }
        };
        let previous = self.place(cursor).previous;
        let label = self.label(previous) + (free >> SHARE).max(1);
        self.insert_before(cursor, child, label);
        spread
    }

    /// Removes `child`. A cursor at it moves to the next child.
    pub(super) fn leave(&mut self, child: ChildId) {
        let Place { previous, next, .. } = *self.place(child);
        if next == child {
            self.cursor = None;
        } else {
            if self.is_at(child) {
                self.advance();
            }
            self.place_mut(previous).next = next;
            self.place_mut(next).previous = previous;
        }
        self.places[child.slot()] = None;
        self.members -= 1;
    }

    /// Counts laps from the present one.
    pub(super) const fn rebase(&mut self) {
        self.lap = 0;
    }

    fn cursor(&self) -> ChildId {
        self.cursor.expect("invariant: a ring with a child has a cursor")
    }

    fn place(&self, child: ChildId) -> &Place {
        self.places[child.slot()].as_ref().expect("invariant: the child is in the ring")
    }

    fn place_mut(&mut self, child: ChildId) -> &mut Place {
        self.places[child.slot()].as_mut().expect("invariant: the child is in the ring")
    }

    /// The distance from the label of the child behind the cursor to the next one in use.
    fn free_behind(&self, cursor: ChildId) -> u64 {
        let Place { label, previous, .. } = *self.place(cursor);
        let behind = self.label(previous);
        // Behind the first child is the last, and all labels after that are free.
        let end = if behind < label { label } else { LABELS };
        end - behind
    }

    fn first(&self) -> Option<ChildId> {
        let mut child = self.cursor?;
        loop {
            let Place { label, previous, .. } = *self.place(child);
            if self.label(previous) >= label {
                return Some(child);
            }
            child = previous;
        }
    }

    /// Spreads the labels as far from each other as possible.
    fn spread(&mut self) {
        let Some(mut child) = self.first() else { return };
        let step = LABELS / (self.members + 1);
        let mut label = 0;
        for _ in 0..self.members {
            let place = self.place_mut(child);
            place.label = label;
            label += step;
            child = place.next;
        }
    }

    fn insert(&mut self, child: ChildId, place: Place) {
        if child.slot() >= self.places.len() {
            self.places.resize(child.slot() + 1, None);
        }
        debug_assert!(self.places[child.slot()].is_none(), "invariant: a child joins once");
        self.places[child.slot()] = Some(place);
        self.members += 1;
    }

    fn insert_alone(&mut self, child: ChildId) {
        let place = Place { label: 0, previous: child, next: child };
        self.insert(child, place);
        self.cursor = Some(child);
    }

    fn insert_before(&mut self, next: ChildId, child: ChildId, label: u64) {
        let previous = self.place(next).previous;
        let place = Place { label, previous, next };
        self.insert(child, place);
        self.place_mut(previous).next = child;
        self.place_mut(next).previous = child;
    }

    /// Checks that links lead around, and that labels grow along them.
    pub(super) fn audit(&self) -> Result<(), AuditError> {
        let Some(first) = self.first() else {
            return check("an empty ring has no members", self.members == 0);
        };
        let mut child = first;
        for number in 1..=self.members {
            let Place { label, next, .. } = *self.place(child);
            check("links of a ring go both ways", self.place(next).previous == child)?;
            let last = number == self.members;
            check("labels grow along a ring", (self.label(next) > label) != last)?;
            child = next;
        }
        check("a ring closes", child == first)
    }
}
