//! Deficit round robin by visits, exactly, in O(log n) a change and O(1) a pick.
//!
//! A visit starts when the cursor reaches a runnable child without an open visit. It grants one quantum, once, whatever
//! deficit is left over. During the visit heads are served while the deficit covers them. The visit ends at a pick where
//! the head costs more, or when the child becomes empty, which clears its deficit. A child that is blocked during its
//! visit keeps both, and continues without a new quantum when the cursor comes back. Blocked children earn nothing.
//!
//! The ring is never walked. Deficit, quantum and head give the turn in which a child will be served if nothing changes.
//! The least turn is the pick, and the cursor jumps there. The grants to other children on the way are computed when one
//! of them is next read, from how often the cursor has passed it. So order and deficits equal those of a ring that
//! advances one child at a time, however small a quantum is beside a cost.
//!
//! Amounts are in units of 1/2^20, which represent quanta of weights such as 0.25 exactly. The idea is Shreedhar and
//! Varghese, "Efficient fair queueing using deficit round robin" (1995). Visits are Penstock's addition, for heads that
//! change before and during them.

use alloc::vec::Vec;

use super::node::{Head, Node, Receipt, Unit};
use super::ring::{Ring, Turn};
use crate::audit::{AuditError, check};
use crate::cost::{COST_MAX, Charge};
use crate::ids::ChildId;
use crate::indexed_heap::IndexedHeap;
use crate::slab::Slab;

/// Binary digits after the point.
const FRACTION: u32 = 20;
/// Larger than any deficit without refunds.
const DEFICIT_MAX: u64 = 1 << 62;
/// At this lap, laps are counted from 0 again. Tests reach it.
const LAPS: u64 = if cfg!(test) { 1 << 5 } else { 1 << 62 };

/// The grant of a visit, in the unit of the costs; not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quantum(u64);

impl Quantum {
    /// Rounded to 1/2^20, and at least that.
    pub(crate) fn new(amount: f64) -> Self {
        let scaled = libm::rint(amount * f64::from(1_u32 << FRACTION));
        Self((scaled as u64).clamp(1, COST_MAX << FRACTION))
    }

    /// At least 1.
    pub(crate) fn whole(amount: u64) -> Self {
        Self(amount.clamp(1, COST_MAX) << FRACTION)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not backlogged.
    Empty,
    Blocked,
    Runnable,
    /// Just served. The caller's next call sets another state.
    Served,
}

#[derive(Debug)]
struct Child<O> {
    owner: O,
    quantum: Quantum,
    deficit: u64,
    /// In a visit.
    open: bool,
    state: State,
    /// While runnable: the deficit includes all grants before the cursor passes the child in this lap.
    from: u64,
    /// Numbers the backlogged periods of all children; the present one of this child.
    period: u32,
    /// Valid while runnable.
    head: Head,
}

/// A deficit round robin. `O` is the level above's name for a child.
#[derive(Debug)]
pub(crate) struct Drr<O> {
    unit: Unit,
    /// A child that becomes empty leaves the ring, and joins it again behind the cursor.
    joining: bool,
    children: Slab<ChildId, Child<O>>,
    ring: Ring,
    turns: IndexedHeap<ChildId, Turn>,
    periods: u32,
}

impl<O: Copy> Drr<O> {
    /// Children keep their places in the ring, in the order in which they are added, backlogged or not.
    pub(crate) fn fixed(unit: Unit) -> Self {
        Self::new(unit, false)
    }

    /// Children join the ring when they become backlogged, behind all others.
    pub(crate) fn joining(unit: Unit) -> Self {
        Self::new(unit, true)
    }

    fn new(unit: Unit, joining: bool) -> Self {
        Self {
            unit,
            joining,
            children: Slab::default(),
            ring: Ring::default(),
            turns: IndexedHeap::default(),
            periods: 0,
        }
    }

    /// Adds an empty child.
    pub(crate) fn add(&mut self, owner: O, quantum: Quantum) -> ChildId {
        let child = self.children.insert(Child {
            owner,
            quantum,
            deficit: 0,
            open: false,
            state: State::Empty,
            from: 0,
            period: 0,
            head: Head::NONE,
        });
        if !self.joining {
            self.ring.append(child);
        }
        child
    }

    /// Removes `child`, which is empty, and of which no receipt will be settled.
    pub(crate) fn forget(&mut self, child: ChildId) {
        let removed = self.children.remove(child);
        debug_assert_eq!(removed.state, State::Empty, "invariant: only an empty child is forgotten");
        if !self.joining {
            self.ring.leave(child);
        }
    }

    pub(crate) fn owner(&self, child: ChildId) -> O {
        self.children[child].owner
    }

    /// Changes the quantum. A greater one counts from the next visit on. A smaller one also counts in a present visit: its grant
    /// would be a long run of requests.
    pub(crate) fn set_quantum(&mut self, child: ChildId, quantum: Quantum) {
        self.catch_up(child);
        let node = &mut self.children[child];
        let old = core::mem::replace(&mut node.quantum, quantum);
        if node.open {
            node.deficit = node.deficit.saturating_sub(old.0.saturating_sub(quantum.0));
        }
        self.reschedule(child);
    }

    /// The deficit in whole units, rounded down.
    pub(crate) fn deficit(&self, child: ChildId) -> u64 {
        let (deficit, _, _) = self.progress(child);
        deficit >> FRACTION
    }

    /// The head that is dispatched next.
    pub(crate) fn next_head(&self) -> Option<Head> {
        self.pick().map(|child| self.children[child].head)
    }

    fn scaled(cost: u64) -> u64 {
        cost.clamp(1, COST_MAX) << FRACTION
    }

    /// The present deficit, whether the visit is open, and the lap in which the cursor next passes.
    fn progress(&self, child: ChildId) -> (u64, bool, u64) {
        let node = &self.children[child];
        if node.state != State::Runnable {
            return (node.deficit, node.open, node.from);
        }
        let next = self.ring.next_lap(child);
        // The cursor passed without serving the child. The first pass ended an open visit; every other one started a
        // visit that didn't suffice, and ended it.
        let passes = next - node.from;
        if passes == 0 {
            return (node.deficit, node.open, node.from);
        }
        let grants = passes - u64::from(node.open);
        (node.deficit + grants * node.quantum.0, false, next)
    }

    fn catch_up(&mut self, child: ChildId) {
        let (deficit, open, from) = self.progress(child);
        let node = &mut self.children[child];
        node.deficit = deficit;
        node.open = open;
        node.from = from;
    }

    /// When `child`, which is runnable and caught up, will be served if nothing changes.
    fn turn(&self, child: ChildId) -> Turn {
        let node = &self.children[child];
        let missing = Self::scaled(self.unit.of(&node.head)).saturating_sub(node.deficit);
        let grants =
            if missing <= node.quantum.0 { u64::from(missing > 0) } else { missing.div_ceil(node.quantum.0) };
        let passes = if node.open { grants } else { grants.max(1) - 1 };
        Turn { lap: node.from + passes, label: self.ring.label(child) }
    }

    fn reschedule(&mut self, child: ChildId) {
        if self.children[child].state == State::Runnable {
            self.turns.set(child, self.turn(child));
        }
    }

    /// `child` becomes backlogged.
    fn begin_period(&mut self, child: ChildId) {
        self.periods = self.periods.wrapping_add(1);
        self.children[child].period = self.periods;
        if self.joining && self.ring.join(child) {
            let ring = &self.ring;
            self.turns.map_keys(|child, turn| Turn { label: ring.label(child), ..turn });
        }
    }

    /// Counts laps from 0, long before they overflow.
    fn rebase(&mut self) {
        let base = self.ring.lap();
        let runnable: Vec<ChildId> = self.turns.ids().collect();
        for child in runnable {
            self.catch_up(child);
            self.children[child].from -= base;
        }
        self.ring.rebase();
        self.turns.map_keys(|_, turn| Turn { lap: turn.lap - base, ..turn });
    }

    /// Checks every invariant, in time proportional to the children.
    pub(crate) fn audit(&self) -> Result<(), AuditError> {
        self.ring.audit()?;
        self.turns.audit()?;
        let mut runnable = 0;
        for (child, node) in self.children.iter() {
            check("a served child was enqueued, blocked or removed", node.state != State::Served)?;
            check(
                "an empty child has neither a deficit nor a visit",
                node.state != State::Empty || (node.deficit == 0 && !node.open),
            )?;
            if node.state != State::Runnable {
                continue;
            }
            runnable += 1;
            let turn = self.turns.key(child);
            check("a turn follows from deficit, quantum and head", turn == Some(self.turn(child)))?;
            check(
                "the cursor has passed no turn",
                turn.is_some_and(|turn| turn.lap >= self.ring.next_lap(child)),
            )?;
        }
        check("exactly the runnable children have a turn", runnable == self.turns.len())
    }
}

impl<O: Copy> Node for Drr<O> {
    fn enqueue(&mut self, child: ChildId, head: &Head) {
        match self.children[child].state {
            State::Runnable => {
                let node = &mut self.children[child];
                let same = self.unit.of(&node.head) == self.unit.of(head);
                node.head = *head;
                // The turn follows from the cost alone. Most heads that change keep it, and need no step of the heap.
                if same {
                    return;
                }
                self.catch_up(child);
            }
            State::Served => {}
            state @ (State::Blocked | State::Empty) => {
                if state == State::Empty {
                    self.begin_period(child);
                }
                self.children[child].from = self.ring.next_lap(child);
            }
        }
        let node = &mut self.children[child];
        node.state = State::Runnable;
        node.head = *head;
        self.turns.set(child, self.turn(child));
    }

    fn block(&mut self, child: ChildId) {
        match self.children[child].state {
            State::Blocked => return,
            State::Empty => self.begin_period(child),
            State::Runnable => self.catch_up(child),
            State::Served => {}
        }
        self.children[child].state = State::Blocked;
        self.turns.remove(child);
    }

    fn remove(&mut self, child: ChildId) {
        let node = &mut self.children[child];
        if node.state == State::Empty {
            return;
        }
        node.state = State::Empty;
        node.deficit = 0;
        node.open = false;
        self.turns.remove(child);
        // A cursor that stayed would begin a visit as soon as the child comes back: leaving and coming back would be a turn of its own.
        if self.joining {
            self.ring.leave(child);
        } else if self.ring.is_at(child) {
            self.ring.advance();
        }
    }

    fn pick(&self) -> Option<ChildId> {
        self.turns.least().map(|(child, _)| child)
    }

    fn serve(&mut self, child: ChildId, _charge: &Charge) -> Receipt {
        let (picked, turn) = self.turns.least().expect("invariant: the served child was picked");
        debug_assert_eq!(picked, child, "invariant: the served child was picked");
        if turn.lap >= LAPS {
            self.rebase();
        }
        // Rebasing has changed the laps.
        let lap = self.turns.least().map_or(0, |(_, turn)| turn.lap);
        let node = &mut self.children[child];
        // Without an open visit the cursor's arrival started one. An open visit whose deficit didn't suffice was ended
        // by the first pass.
        let grants = (lap - node.from) + u64::from(!node.open);
        let cost = Self::scaled(self.unit.of(&node.head));
        node.deficit = node.deficit + grants * node.quantum.0 - cost;
        node.open = true;
        node.from = lap;
        node.state = State::Served;
        let period = node.period;
        self.ring.go_to(child, lap);
        Receipt { period, taken: cost }
    }

    fn charge(&mut self, child: ChildId, charge: &Charge) -> Receipt {
        if self.children[child].state == State::Empty {
            return Receipt::default();
        }
        self.catch_up(child);
        let node = &mut self.children[child];
        let taken = Self::scaled(self.unit.charged(charge)).min(node.deficit);
        node.deficit -= taken;
        let period = node.period;
        self.reschedule(child);
        Receipt { period, taken }
    }

    fn settle(&mut self, child: ChildId, _charge: &Charge, receipt: Receipt, real: Option<u64>) {
        let node = &self.children[child];
        let same_period = node.state != State::Empty && node.period == receipt.period;
        // A child that becomes empty loses its deficit. A refund in a later period would be credit that it saved while it asked for nothing.
        if real.is_some() || !same_period {
            return;
        }
        self.catch_up(child);
        let node = &mut self.children[child];
        node.deficit = node.deficit.saturating_add(receipt.taken).min(DEFICIT_MAX);
        self.reschedule(child);
    }
}

#[cfg(test)]
mod tests;
