//! Classes as the released dynamo-kv-router 1.6.1 orders them, for those who come from there.
//!
//! One class may go on with credit that it has left over. Otherwise, from the cursor on, every able class that
//! can't afford its head with what it has is granted one quantum, until one can; if none could, all of them are
//! granted as many whole rounds as the one that needs fewest, and the first from the cursor on that can afford
//! its head goes. The cursor then stands behind it. Not fair by more than that: credit left over is never taken
//! back while anything of a class waits, who is granted one depends on where the cursor was, and nothing is refunded.
//! What goes past the queue isn't counted, and a pick that finds nobody able ends the going on.
//!
//! A pick is a search in a bit set, unless nobody can go within one quantum: then all able classes are looked at.

use alloc::vec::Vec;

use crate::audit::{AuditError, holds};
use crate::cost::Charge;

use super::node::{ChildId, Head, Node, Receipt, Unit};

#[derive(Debug)]
struct Class {
    quantum: u64,
    deficit: u64,
    /// Of its head.
    cost: u64,
}

impl Class {
    /// Credit that is missing for its head.
    const fn missing(&self) -> u64 {
        self.cost.saturating_sub(self.deficit)
    }

    /// Quanta that are missing for its head.
    const fn rounds(&self) -> u64 {
        self.missing().div_ceil(self.quantum)
    }

    const fn grant(&mut self, rounds: u64) {
        self.deficit = self.deficit.saturating_add(self.quantum.saturating_mul(rounds));
    }
}

/// Classes by number.
#[derive(Debug, Default)]
struct Set {
    words: Vec<u64>,
}

impl Set {
    fn grow(&mut self, length: usize) {
        self.words.resize(length.div_ceil(64), 0);
    }

    fn assign(&mut self, child: ChildId, is_in: bool) {
        let word = &mut self.words[child as usize / 64];
        let bit = 1 << (child % 64);
        if is_in {
            *word |= bit;
        } else {
            *word &= !bit;
        }
    }

    fn contains(&self, child: ChildId) -> bool {
        self.words[child as usize / 64] >> (child % 64) & 1 == 1
    }

    /// All from `from` on that come before `end`.
    fn between(&self, from: ChildId, end: ChildId) -> impl Iterator<Item = ChildId> {
        let words = (0..).zip(&self.words).skip(from as usize / 64);
        words
            .flat_map(move |(at, &word)| {
                let before = if at == from / 64 {
                    (1 << (from % 64)) - 1
                } else {
                    0
                };
                let rest = |&word: &u64| Some(word & (word - 1)).filter(|&word| word != 0);
                let first = Some(word & !before).filter(|&word| word != 0);
                core::iter::successors(first, rest).map(move |word| at * 64 + word.trailing_zeros())
            })
            .take_while(move |&child| child < end)
    }

    /// All, from `from` to the last and then from the first to `from`.
    fn around(&self, from: ChildId) -> impl Iterator<Item = ChildId> {
        self.between(from, ChildId::MAX).chain(self.between(0, from))
    }
}

#[derive(Debug)]
pub(crate) struct Dynamo {
    unit: Unit,
    classes: Vec<Class>,
    /// The place behind the class that went last.
    cursor: ChildId,
    /// It went last, and has credit left over.
    carry: Option<ChildId>,
    able: Set,
    /// Able, and one quantum is enough for the head.
    near: Set,
}

impl Dynamo {
    /// Children keep their places, in the order in which they are added.
    pub(crate) fn new(unit: Unit) -> Self {
        Self {
            unit,
            classes: Vec::new(),
            cursor: 0,
            carry: None,
            able: Set::default(),
            near: Set::default(),
        }
    }

    /// A quantum is at least 1.
    pub(crate) fn add(&mut self, quantum: u64) -> ChildId {
        let child = self.classes.len() as ChildId;
        self.classes.push(Class {
            quantum: quantum.max(1),
            deficit: 0,
            cost: 0,
        });
        self.able.grow(self.classes.len());
        self.near.grow(self.classes.len());
        child
    }

    /// From its next grant on.
    pub(crate) fn set_quantum(&mut self, child: ChildId, quantum: u64) {
        self.classes[child as usize].quantum = quantum.max(1);
        self.look_at(child);
    }

    pub(crate) fn deficit(&self, child: ChildId) -> u64 {
        self.classes[child as usize].deficit
    }

    fn carried(&self) -> Option<ChildId> {
        self.carry
            .filter(|&child| self.able.contains(child) && self.classes[child as usize].missing() == 0)
    }

    /// The first from the cursor on that needs the fewest quanta beyond one, and how many it needs.
    fn nearest(&self) -> Option<(ChildId, u64)> {
        if let Some(near) = self.near.around(self.cursor).next() {
            return Some((near, 1));
        }
        let mut least = None;
        // What is less than this is better; a division only where something is, which is rare.
        let mut rounds = u64::MAX;
        for child in self.able.around(self.cursor) {
            let class = &self.classes[child as usize];
            if class.missing() <= class.quantum.saturating_mul(rounds - 1) {
                rounds = class.rounds();
                least = Some((child, rounds));
            }
        }
        least
    }

    fn is_near(&self, child: ChildId) -> bool {
        let class = &self.classes[child as usize];
        self.able.contains(child) && class.missing() <= class.quantum
    }

    fn look_at(&mut self, child: ChildId) {
        self.near.assign(child, self.is_near(child));
    }

    /// To all that are able, from one place on and before another.
    fn grant(&mut self, from: ChildId, end: ChildId, rounds: u64) {
        for child in self.able.between(from, end) {
            let class = &mut self.classes[child as usize];
            class.grant(rounds);
            if class.missing() <= class.quantum {
                self.near.assign(child, true);
            }
        }
    }

    /// Every invariant, the slow way.
    pub(crate) fn audit(&self) -> Result<(), AuditError> {
        for (child, class) in (0..).zip(&self.classes) {
            let near = self.able.contains(child) && class.rounds() <= 1;
            holds(
                "who can go with one quantum is known",
                self.near.contains(child) == near,
            )?;
        }
        Ok(())
    }
}

impl Node for Dynamo {
    fn enqueue(&mut self, child: ChildId, head: &Head) {
        self.classes[child as usize].cost = self.unit.of(head);
        self.able.assign(child, true);
        self.look_at(child);
    }

    fn block(&mut self, child: ChildId) {
        self.able.assign(child, false);
        self.near.assign(child, false);
    }

    fn remove(&mut self, child: ChildId) {
        self.block(child);
        self.classes[child as usize].deficit = 0;
    }

    fn pick(&self) -> Option<ChildId> {
        self.carried().or_else(|| Some(self.nearest()?.0))
    }

    fn miss(&mut self) {
        self.carry = None;
    }

    fn serve(&mut self, child: ChildId, _charge: &Charge) -> Receipt {
        if self.carried() != Some(child) {
            let (_, rounds) = self.nearest().expect("invariant: who is served was picked");
            if rounds > 1 {
                self.grant(0, ChildId::MAX, rounds);
            } else {
                // Those that were passed over on the way.
                if child < self.cursor {
                    self.grant(self.cursor, ChildId::MAX, 1);
                    self.grant(0, child, 1);
                } else {
                    self.grant(self.cursor, child, 1);
                }
                let class = &mut self.classes[child as usize];
                class.grant(class.rounds());
            }
        }
        self.cursor = (child + 1) % self.classes.len() as ChildId;
        let class = &mut self.classes[child as usize];
        debug_assert!(class.cost <= class.deficit, "invariant: who is served was picked");
        class.deficit = class.deficit.saturating_sub(class.cost);
        self.carry = (class.deficit > 0).then_some(child);
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
        Head {
            class_cost: cost,
            ..Head::NONE
        }
    }

    fn charge(cost: u64) -> Charge {
        Charge {
            cost,
            class_cost: cost,
            weight: 1.0,
            unit: crate::policy::CostUnit::Tokens,
            model: 0,
        }
    }

    #[test]
    fn a_pick_that_finds_nobody_ends_the_going_on() {
        let first_two = |miss: bool| {
            let mut node = Dynamo::new(Unit::Class);
            for _ in 0..2 {
                let child = node.add(10);
                node.enqueue(child, &head(5));
            }
            node.serve(0, &charge(5));
            node.enqueue(0, &head(5));
            if miss {
                node.miss();
            }
            node.audit().expect("audit");
            [node.deficit(0), u64::from(node.pick().expect("both are able"))]
        };
        assert_eq!(first_two(false), [5, 0], "credit is left over");
        assert_eq!(first_two(true), [5, 1], "and stays, but isn't used at once");
    }

    #[test]
    fn sets_of_any_size_are_walked_once_around() {
        for length in [1_u32, 63, 64, 65, 1_024] {
            let mut set = Set::default();
            set.grow(length as usize);
            for child in (0..length).filter(|child| child % 3 == 0) {
                set.assign(child, true);
            }
            for from in 0..length {
                let found: Vec<u32> = set.around(from).collect();
                let expected: Vec<u32> = (from..length)
                    .chain(0..from)
                    .filter(|child| child % 3 == 0)
                    .collect();
                assert_eq!(found, expected, "{length} from {from}");
            }
        }
    }

    #[test]
    fn what_goes_past_the_queue_is_not_counted() {
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
