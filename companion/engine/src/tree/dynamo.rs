//! Classes in the order of the released dynamo-kv-router 1.6.1, for pools that migrate from it.
//!
//! A class with credit left over from its last dispatch may continue. Otherwise, from the cursor on, every runnable class
//! that can't afford its head is granted one quantum, until one class can. If none could, all of them are granted as many
//! whole rounds as the class that needs the fewest, and the first class from the cursor on that can afford its head is
//! served. The cursor then stands behind it.
//!
//! This is no fairer than that: leftover credit is never taken back while a request of the class waits, the position of
//! the cursor decides which classes are granted a quantum, and nothing is refunded. Requests that bypass the queue aren't
//! counted. A pick that finds no runnable class ends the continuation.
//!
//! A pick is a search in a bit set. If no class can be served within one quantum, it visits all runnable classes.

use alloc::vec::Vec;

use super::node::{Head, Node, Receipt, Unit};
use crate::audit::{AuditError, check};
use crate::cost::Charge;
use crate::ids::{ChildId, Id};

#[derive(Debug)]
struct Class {
    quantum: u64,
    deficit: u64,
    /// The cost of its head.
    cost: u64,
}

impl Class {
    /// Credit missing for its head.
    const fn missing(&self) -> u64 {
        self.cost.saturating_sub(self.deficit)
    }

    /// Quanta missing for its head.
    const fn rounds(&self) -> u64 {
        self.missing().div_ceil(self.quantum)
    }

    const fn grant(&mut self, rounds: u64) {
        self.deficit = self.deficit.saturating_add(self.quantum.saturating_mul(rounds));
    }
}

/// A set of classes, by their positions.
#[derive(Debug, Default)]
struct Set {
    words: Vec<u64>,
}

impl Set {
    fn grow(&mut self, length: usize) {
        self.words.resize(length.div_ceil(64), 0);
    }

    fn assign(&mut self, class: usize, contained: bool) {
        let word = &mut self.words[class / 64];
        let bit = 1 << (class % 64);
        if contained {
            *word |= bit;
        } else {
            *word &= !bit;
        }
    }

    fn contains(&self, class: usize) -> bool {
        self.words[class / 64] >> (class % 64) & 1 == 1
    }

    /// The members from `from` on and before `end`.
    fn between(&self, from: usize, end: usize) -> impl Iterator<Item = usize> {
        let words = (0..).zip(&self.words).skip(from / 64);
        words
            .flat_map(move |(index, &word)| {
                let before = if index == from / 64 { (1 << (from % 64)) - 1 } else { 0 };
                let rest = |&word: &u64| Some(word & (word - 1)).filter(|&word| word != 0);
                let first = Some(word & !before).filter(|&word| word != 0);
                core::iter::successors(first, rest)
                    .map(move |word| index * 64 + word.trailing_zeros() as usize)
            })
            .take_while(move |&class| class < end)
    }

    /// The members from `from` to the last, then from the first to `from`.
    fn around(&self, from: usize) -> impl Iterator<Item = usize> {
        self.between(from, usize::MAX).chain(self.between(0, from))
    }
}

#[derive(Debug)]
pub(crate) struct Dynamo {
    unit: Unit,
    classes: Vec<Class>,
    /// The position after the class that was served last.
    cursor: usize,
    /// The class that was served last, if it has credit left over.
    carry: Option<usize>,
    runnable: Set,
    /// Runnable, and missing at most one quantum.
    near: Set,
}

impl Dynamo {
    /// Children keep the order in which they are added.
    pub(crate) fn new(unit: Unit) -> Self {
        Self {
            unit,
            classes: Vec::new(),
            cursor: 0,
            carry: None,
            runnable: Set::default(),
            near: Set::default(),
        }
    }

    /// Adds a class; its quantum is at least 1.
    pub(crate) fn add(&mut self, quantum: u64) -> ChildId {
        let child = ChildId::from_index(self.classes.len());
        self.classes.push(Class { quantum: quantum.max(1), deficit: 0, cost: 0 });
        self.runnable.grow(self.classes.len());
        self.near.grow(self.classes.len());
        child
    }

    /// Changes the quantum, from the next grant on.
    pub(crate) fn set_quantum(&mut self, child: ChildId, quantum: u64) {
        self.classes[child.index()].quantum = quantum.max(1);
        self.update_near(child.index());
    }

    pub(crate) fn deficit(&self, child: ChildId) -> u64 {
        self.classes[child.index()].deficit
    }

    fn carried(&self) -> Option<usize> {
        self.carry.filter(|&class| self.runnable.contains(class) && self.classes[class].missing() == 0)
    }

    /// The first class from the cursor on that needs the fewest quanta beyond one, and how many it needs.
    fn nearest(&self) -> Option<(usize, u64)> {
        if let Some(near) = self.near.around(self.cursor).next() {
            return Some((near, 1));
        }
        let mut nearest = None;
        let mut fewest = u64::MAX;
        for position in self.runnable.around(self.cursor) {
            let class = &self.classes[position];
            // Fewer rounds suffice. Divides only then, which is rare.
            if class.missing() <= class.quantum.saturating_mul(fewest - 1) {
                fewest = class.rounds();
                nearest = Some((position, fewest));
            }
        }
        nearest
    }

    fn update_near(&mut self, position: usize) {
        let class = &self.classes[position];
        let near = self.runnable.contains(position) && class.missing() <= class.quantum;
        self.near.assign(position, near);
    }

    /// Grants `rounds` quanta to every runnable class from `from` on and before `end`.
    fn grant(&mut self, from: usize, end: usize, rounds: u64) {
        for position in self.runnable.between(from, end) {
            let class = &mut self.classes[position];
            class.grant(rounds);
            if class.missing() <= class.quantum {
                self.near.assign(position, true);
            }
        }
    }

    /// Checks every invariant, in time proportional to the classes.
    pub(crate) fn audit(&self) -> Result<(), AuditError> {
        for (position, class) in self.classes.iter().enumerate() {
            let near = self.runnable.contains(position) && class.rounds() <= 1;
            check(
                "the near set holds the runnable classes that miss at most one quantum",
                self.near.contains(position) == near,
            )?;
        }
        Ok(())
    }
}

impl Node for Dynamo {
    fn enqueue(&mut self, child: ChildId, head: &Head) {
        let position = child.index();
        self.classes[position].cost = self.unit.of(head);
        self.runnable.assign(position, true);
        self.update_near(position);
    }

    fn block(&mut self, child: ChildId) {
        self.runnable.assign(child.index(), false);
        self.near.assign(child.index(), false);
    }

    fn remove(&mut self, child: ChildId) {
        self.block(child);
        self.classes[child.index()].deficit = 0;
    }

    fn pick(&self) -> Option<ChildId> {
        let position = self.carried().or_else(|| Some(self.nearest()?.0))?;
        Some(ChildId::from_index(position))
    }

    fn pick_missed(&mut self) {
        self.carry = None;
    }

    fn serve(&mut self, child: ChildId, _charge: &Charge) -> Receipt {
        let position = child.index();
        if self.carried() != Some(position) {
            let (_, rounds) = self.nearest().expect("invariant: the served class was picked");
            if rounds > 1 {
                self.grant(0, usize::MAX, rounds);
            } else {
                // The classes that the cursor passes on the way.
                if position < self.cursor {
                    self.grant(self.cursor, usize::MAX, 1);
                    self.grant(0, position, 1);
                } else {
                    self.grant(self.cursor, position, 1);
                }
                let class = &mut self.classes[position];
                class.grant(class.rounds());
            }
        }
        self.cursor = (position + 1) % self.classes.len();
        let class = &mut self.classes[position];
        debug_assert!(class.cost <= class.deficit, "invariant: the served class was picked");
        class.deficit = class.deficit.saturating_sub(class.cost);
        self.carry = (class.deficit > 0).then_some(position);
        Receipt::default()
    }

    fn charge(&mut self, _child: ChildId, _charge: &Charge) -> Receipt {
        Receipt::default()
    }

    fn settle(&mut self, _child: ChildId, _charge: &Charge, _receipt: Receipt, _real: Option<u64>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(cost: u64) -> Head {
        Head { class_cost: cost, ..Head::NONE }
    }

    fn charge(cost: u64) -> Charge {
        Charge {
            cost,
            class_cost: cost,
            weight: 1.0,
            unit: crate::policy::CostUnit::Tokens,
            model: crate::ids::ModelId::FIRST,
        }
    }

    #[test]
    fn a_missed_pick_ends_the_continuation() {
        let after_first = |missed: bool| {
            let mut node = Dynamo::new(Unit::Class);
            for _ in 0..2 {
                let child = node.add(10);
                node.enqueue(child, &head(5));
            }
            let first = ChildId::from_index(0);
            node.serve(first, &charge(5));
            node.enqueue(first, &head(5));
            if missed {
                node.pick_missed();
            }
            node.audit().expect("audit");
            (node.deficit(first), node.pick().map(ChildId::index))
        };
        assert_eq!(after_first(false), (5, Some(0)), "credit is left over");
        assert_eq!(after_first(true), (5, Some(1)), "the credit stays, unused for now");
    }

    #[test]
    fn sets_of_any_size_are_visited_once_around() {
        for length in [1_usize, 63, 64, 65, 1_024] {
            let mut set = Set::default();
            set.grow(length);
            for child in (0..length).filter(|child| child % 3 == 0) {
                set.assign(child, true);
            }
            for from in 0..length {
                let found: Vec<usize> = set.around(from).collect();
                let expected: Vec<usize> =
                    (from..length).chain(0..from).filter(|child| child % 3 == 0).collect();
                assert_eq!(found, expected, "{length} from {from}");
            }
        }
    }

    #[test]
    fn requests_that_bypass_the_queue_are_not_counted() {
        let mut node = Dynamo::new(Unit::Class);
        let child = node.add(1);
        node.set_quantum(child, 10);
        node.enqueue(child, &head(25));
        let receipt = node.charge(child, &charge(25));
        node.settle(child, &charge(25), receipt, None);
        assert_eq!(node.deficit(child), 0);
        assert_eq!(node.pick(), Some(child));
        node.serve(child, &charge(25));
        node.block(child);
        assert_eq!((node.pick(), node.deficit(child)), (None, 5));
        node.remove(child);
        assert_eq!(node.deficit(child), 0);
    }
}
