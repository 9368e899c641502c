//! Deficit round robin by visits, exactly, in O(log n) a change and O(1) a pick.
//!
//! A visit begins when the cursor reaches an able child that has none open; it grants one quantum, once, whatever
//! is left over. In it heads go while the deficit covers them; it ends at a pick where the head costs more, or
//! when the child runs empty, which leaves no deficit. A child that is blocked inside its visit keeps both, and
//! goes on without a new quantum when the cursor comes back. Blocked children earn nothing.
//!
//! Nobody walks the ring. From deficit, quantum and head follows the turn in which a child will be served if
//! nothing changes; the least turn is the pick, and the cursor jumps there. What the others were granted on the
//! way is worked out when one of them is next looked at: as often as the cursor has come by. So the order and the
//! deficits are those of a ring that goes one step at a time, however small a quantum is beside a cost.
//!
//! Amounts are kept in 1/2^20, so that quanta of weights like 0.25 are what they say; whole ones are exact.
//! Shreedhar and Varghese, "Efficient fair queueing using deficit round robin" (1995), for the idea; visits are
//! ours, against heads that change inside and before them.

use crate::audit::{AuditError, holds};
use crate::cost::{COST_MAX, Charge};
use crate::slab::Slab;

use super::agenda::Agenda;
use super::node::{ChildId, Head, Node, Receipt, Unit};
use super::ring::{Ring, Turn};

/// Binary digits after the point.
const FRACTION: u32 = 20;
/// More than any deficit is without refunds.
const DEFICIT_MAX: u64 = 1 << 62;
/// Laps count from 0 again at this. Tests come there.
const LAPS: u64 = if cfg!(test) { 1 << 5 } else { 1 << 62 };

/// What a visit grants, in the unit of the costs; not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quantum(u64);

impl Quantum {
    /// Rounded to 1/2^20; at least that.
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
    /// Nothing waits.
    Empty,
    /// Something waits, nothing can go.
    Blocked,
    Able,
    /// Able until it was just served; its owner says what it is now.
    Served,
}

#[derive(Debug)]
struct Child {
    owner: u32,
    quantum: Quantum,
    deficit: u64,
    /// In a visit.
    open: bool,
    state: State,
    /// While able: granted is all that the cursor brought before it comes by in this lap.
    from: u64,
    /// Which of all the times in which some child was backlogged, while it is.
    period: u32,
    /// Meaningful while able.
    head: Head,
}

#[derive(Debug)]
pub(crate) struct Drr {
    unit: Unit,
    /// Who runs empty leaves the ring, and stands behind the cursor when it comes back.
    joining: bool,
    children: Slab<Child>,
    ring: Ring,
    agenda: Agenda,
    periods: u32,
}

impl Drr {
    /// Children keep their places, in the order in which they are added, whether anything of them waits or not.
    pub(crate) fn fixed(unit: Unit) -> Self {
        Self::new(unit, false)
    }

    /// Children take their places when they begin to wait: all others come first.
    pub(crate) fn joining(unit: Unit) -> Self {
        Self::new(unit, true)
    }

    fn new(unit: Unit, joining: bool) -> Self {
        Self {
            unit,
            joining,
            children: Slab::default(),
            ring: Ring::default(),
            agenda: Agenda::default(),
            periods: 0,
        }
    }

    /// A child of which nothing waits; `owner` is its name one level up.
    pub(crate) fn add(&mut self, owner: u32, quantum: Quantum) -> ChildId {
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

    /// Nothing of `child` waits, and no receipt of it will be settled.
    pub(crate) fn forget(&mut self, child: ChildId) {
        let gone = self.children.remove(child);
        debug_assert_eq!(
            gone.state,
            State::Empty,
            "invariant: who is forgotten has nothing waiting"
        );
        if !self.joining {
            self.ring.leave(child);
        }
    }

    pub(crate) fn owner(&self, child: ChildId) -> u32 {
        self.children[child].owner
    }

    /// From its next visit on.
    pub(crate) fn set_quantum(&mut self, child: ChildId, quantum: Quantum) {
        self.catch_up(child);
        self.children[child].quantum = quantum;
        self.reschedule(child);
    }

    /// In whole units, rounded down.
    pub(crate) fn deficit(&self, child: ChildId) -> u64 {
        let (deficit, _, _) = self.now(child);
        deficit >> FRACTION
    }

    /// What goes next.
    pub(crate) fn next_head(&self) -> Option<Head> {
        self.pick().map(|child| self.children[child].head)
    }

    fn scaled(cost: u64) -> u64 {
        cost.clamp(1, COST_MAX) << FRACTION
    }

    /// Deficit, whether its visit is open, and the lap in which the cursor next comes by, as of now.
    fn now(&self, child: ChildId) -> (u64, bool, u64) {
        let node = &self.children[child];
        if node.state != State::Able {
            return (node.deficit, node.open, node.from);
        }
        let next = self.ring.next_lap(child);
        // The cursor came by without serving it: the first time an open visit ended, every other time began one
        // that wasn't enough and ended too.
        let passes = next - node.from;
        if passes == 0 {
            return (node.deficit, node.open, node.from);
        }
        let grants = passes - u64::from(node.open);
        (node.deficit + grants * node.quantum.0, false, next)
    }

    fn catch_up(&mut self, child: ChildId) {
        let (deficit, open, from) = self.now(child);
        let node = &mut self.children[child];
        node.deficit = deficit;
        node.open = open;
        node.from = from;
    }

    /// When `child`, which is able and caught up, will be served if nothing changes.
    fn turn(&self, child: ChildId) -> Turn {
        let node = &self.children[child];
        let missing = Self::scaled(self.unit.of(&node.head)).saturating_sub(node.deficit);
        let grants = if missing <= node.quantum.0 {
            u64::from(missing > 0)
        } else {
            missing.div_ceil(node.quantum.0)
        };
        let passes = if node.open { grants } else { grants.max(1) - 1 };
        Turn {
            lap: node.from + passes,
            label: self.ring.label(child),
        }
    }

    fn reschedule(&mut self, child: ChildId) {
        if self.children[child].state == State::Able {
            self.agenda.set(child, self.turn(child));
        }
    }

    /// `child` begins to wait.
    fn begin(&mut self, child: ChildId) {
        self.periods = self.periods.wrapping_add(1);
        self.children[child].period = self.periods;
        if self.joining && self.ring.join(child) {
            let ring = &self.ring;
            self.agenda.map(|child, turn| Turn {
                label: ring.label(child),
                ..turn
            });
        }
    }

    /// Counts laps from 0, long before they run out.
    fn rebase(&mut self) {
        let base = self.ring.lap();
        let able = |(child, node): (u32, &Child)| (node.state == State::Able).then_some(child);
        let able: alloc::vec::Vec<u32> = self.children.iter().filter_map(able).collect();
        for child in able {
            self.catch_up(child);
            self.children[child].from -= base;
        }
        self.ring.rebase();
        self.agenda.map(|_, turn| Turn {
            lap: turn.lap - base,
            ..turn
        });
    }

    /// Every invariant, the slow way.
    pub(crate) fn audit(&self) -> Result<(), AuditError> {
        self.ring.audit()?;
        self.agenda.audit()?;
        let mut able = 0;
        for (child, node) in self.children.iter() {
            holds(
                "the cost of a request that was served is accounted for",
                node.state != State::Served,
            )?;
            holds(
                "who has nothing waiting has no deficit and no visit",
                node.state != State::Empty || (node.deficit == 0 && !node.open),
            )?;
            if node.state != State::Able {
                continue;
            }
            able += 1;
            let turn = self.agenda.turn(child);
            holds(
                "a turn follows from deficit, quantum and head",
                turn == Some(self.turn(child)),
            )?;
            holds(
                "the cursor has passed no turn",
                turn.is_some_and(|turn| turn.lap >= self.ring.next_lap(child)),
            )?;
        }
        holds("who can go has a turn, and only they", able == self.agenda.len())
    }
}

impl Node for Drr {
    fn enqueue(&mut self, child: ChildId, head: &Head) {
        match self.children[child].state {
            State::Able => {
                let node = &mut self.children[child];
                let same = self.unit.of(&node.head) == self.unit.of(head);
                node.head = *head;
                if same {
                    return;
                }
                self.catch_up(child);
            }
            State::Served => {}
            state @ (State::Blocked | State::Empty) => {
                if state == State::Empty {
                    self.begin(child);
                }
                self.children[child].from = self.ring.next_lap(child);
            }
        }
        let node = &mut self.children[child];
        node.state = State::Able;
        node.head = *head;
        self.agenda.set(child, self.turn(child));
    }

    fn block(&mut self, child: ChildId) {
        match self.children[child].state {
            State::Blocked => return,
            State::Empty => self.begin(child),
            State::Able => self.catch_up(child),
            State::Served => {}
        }
        self.children[child].state = State::Blocked;
        self.agenda.remove(child);
    }

    fn remove(&mut self, child: ChildId) {
        let node = &mut self.children[child];
        if node.state == State::Empty {
            return;
        }
        node.state = State::Empty;
        node.deficit = 0;
        node.open = false;
        self.agenda.remove(child);
        if self.joining {
            self.ring.leave(child);
        } else if self.ring.is_on(child) {
            self.ring.advance();
        }
    }

    fn pick(&self) -> Option<ChildId> {
        self.agenda.least().map(|(child, _)| child)
    }

    fn serve(&mut self, child: ChildId, _charge: &Charge) -> Receipt {
        let (picked, turn) = self.agenda.least().expect("invariant: who is served was picked");
        debug_assert_eq!(picked, child, "invariant: who is served was picked");
        if turn.lap >= LAPS {
            self.rebase();
        }
        let lap = self.agenda.least().map_or(0, |(_, turn)| turn.lap);
        let node = &mut self.children[child];
        // If it wasn't in a visit, the cursor's coming began one; if it was and had to earn, the first ended it.
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
        let same = node.state != State::Empty && node.period == receipt.period;
        if real.is_some() || !same {
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
