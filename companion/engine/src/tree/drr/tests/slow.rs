//! The lazy node beside a ring that advances one child at a time: the same pick and the same deficits after every step.

use alloc::vec::Vec;

use proptest::prelude::*;

use super::super::super::node::{Node, Receipt, Unit};
use super::super::{Drr, FRACTION, Quantum};
use super::{charge, head};
use crate::ids::ChildId;

/// Amounts of the slow ring are quarters.
const QUARTERS: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Waits {
    Nothing,
    Blocked,
    Runnable(u64),
}

#[derive(Clone, Debug)]
struct Class {
    quantum: u64,
    deficit: u64,
    open: bool,
    waits: Waits,
    /// How often the class became empty.
    period: u32,
}

#[derive(Clone, Debug, Default)]
struct Slow {
    joining: bool,
    classes: Vec<Class>,
    ring: Vec<usize>,
    cursor: usize,
}

impl Slow {
    fn add(&mut self, quantum: u64) {
        if !self.joining {
            self.ring.push(self.classes.len());
        }
        self.classes.push(Class { quantum, deficit: 0, open: false, waits: Waits::Nothing, period: 0 });
    }

    fn set(&mut self, class: usize, waits: Waits) {
        let old = core::mem::replace(&mut self.classes[class].waits, waits);
        if self.joining && old == Waits::Nothing && waits != Waits::Nothing {
            self.ring.insert(self.cursor, class);
            self.cursor = (self.cursor + 1) % self.ring.len();
        }
        if waits != Waits::Nothing || old == Waits::Nothing {
            return;
        }
        let emptied = &mut self.classes[class];
        emptied.deficit = 0;
        emptied.open = false;
        emptied.period += 1;
        let place = self.ring.iter().position(|&other| other == class);
        let place = place.expect("a backlogged class is in the ring");
        if self.joining {
            self.ring.remove(place);
            self.cursor -= usize::from(place < self.cursor);
        } else if place == self.cursor {
            self.cursor += 1;
        }
        if self.cursor == self.ring.len() {
            self.cursor = 0;
        }
    }

    fn serve(&mut self) -> Option<usize> {
        let runnable = |class: &Class| matches!(class.waits, Waits::Runnable(_));
        if !self.classes.iter().any(runnable) {
            return None;
        }
        loop {
            let class_at_cursor = self.ring[self.cursor];
            let class = &mut self.classes[class_at_cursor];
            if let Waits::Runnable(cost) = class.waits {
                if !class.open {
                    class.open = true;
                    class.deficit += class.quantum;
                }
                if cost <= class.deficit {
                    class.deficit -= cost;
                    return Some(class_at_cursor);
                }
                class.open = false;
            }
            self.cursor = (self.cursor + 1) % self.ring.len();
        }
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Set(usize, Waits),
    /// The state of the served class afterwards.
    Dispatch(Waits),
    Charge(usize, u64),
    Settle(usize, bool),
    Quantum(usize, u64),
    /// Removes a class, and adds another in its place.
    Replace(usize, u64),
}

fn waits() -> impl Strategy<Value = Waits> {
    let cost = prop_oneof![4 => 1..40_u64, 1 => 1..1_500_u64];
    prop_oneof![
        6 => cost.prop_map(Waits::Runnable),
        2 => Just(Waits::Blocked),
        2 => Just(Waits::Nothing),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    let quantum = prop_oneof![1..400_u64, (1..100_u64).prop_map(|whole| whole * QUARTERS)];
    prop_oneof![
        4 => (0..12_usize, waits()).prop_map(|(class, waits)| Operation::Set(class, waits)),
        6 => waits().prop_map(Operation::Dispatch),
        1 => (0..12_usize, 1..100_u64).prop_map(|(class, cost)| Operation::Charge(class, cost)),
        1 => (0..8_usize, any::<bool>()).prop_map(|(back, real)| Operation::Settle(back, real)),
        1 => (0..12_usize, quantum.clone()).prop_map(|(class, quantum)| Operation::Quantum(class, quantum)),
        1 => (0..12_usize, quantum).prop_map(|(class, quantum)| Operation::Replace(class, quantum)),
    ]
}

/// Both rings, and the charges that can be settled: class, period, quarters taken, and receipt.
struct World {
    slow: Slow,
    node: Drr<u32>,
    children: Vec<ChildId>,
    charged: Vec<(usize, u32, u64, Receipt)>,
}

fn quarters(quantum: u64) -> Quantum {
    Quantum::new(quantum as f64 / QUARTERS as f64)
}

impl World {
    fn new(joining: bool, quanta: &[u64]) -> Self {
        let node = match joining {
            true => Drr::joining(Unit::Class),
            false => Drr::fixed(Unit::Class),
        };
        let mut world = Self {
            slow: Slow { joining, ..Slow::default() },
            node,
            children: Vec::new(),
            charged: Vec::new(),
        };
        for &quantum in quanta {
            world.slow.add(quantum);
            world.children.push(world.node.add(0, quarters(quantum)));
        }
        world
    }

    fn set(&mut self, class: usize, waits: Waits) {
        let child = self.children[class];
        match waits {
            Waits::Nothing => self.node.remove(child),
            Waits::Blocked => self.node.block(child),
            Waits::Runnable(cost) => self.node.enqueue(child, &head(cost)),
        }
        let waits = match waits {
            Waits::Runnable(cost) => Waits::Runnable(cost * QUARTERS),
            waits => waits,
        };
        self.slow.set(class, waits);
    }

    fn dispatch(&mut self, next: Waits) {
        let Some(class) = self.slow.serve() else {
            return self.node.pick_missed();
        };
        let child = self.children[class];
        let Waits::Runnable(cost) = self.slow.classes[class].waits else {
            panic!("only runnable classes are served");
        };
        let receipt = self.node.serve(child, &charge(cost / QUARTERS));
        let period = self.slow.classes[class].period;
        self.charged.push((class, period, cost, receipt));
        self.set(class, next);
    }

    fn step(&mut self, operation: Operation) {
        let classes = self.children.len();
        match operation {
            Operation::Set(class, waits) => self.set(class % classes, waits),
            Operation::Dispatch(next) => self.dispatch(next),
            Operation::Charge(class, cost) => {
                let class = class % classes;
                let receipt = self.node.charge(self.children[class], &charge(cost));
                let slow = &mut self.slow.classes[class];
                let taken = slow.deficit.min(cost * QUARTERS);
                slow.deficit -= taken;
                self.charged.push((class, slow.period, taken, receipt));
            }
            Operation::Settle(back, real) => {
                let Some(index) = self.charged.len().checked_sub(back + 1) else {
                    return;
                };
                let (class, period, taken, receipt) = self.charged.remove(index);
                let real = real.then_some(7);
                self.node.settle(self.children[class], &charge(1), receipt, real);
                let slow = &mut self.slow.classes[class];
                if real.is_none() && slow.period == period {
                    slow.deficit += taken;
                }
            }
            Operation::Quantum(class, quantum) => {
                let class = class % classes;
                let slow = &mut self.slow.classes[class];
                let old = core::mem::replace(&mut slow.quantum, quantum);
                if slow.open {
                    slow.deficit = slow.deficit.saturating_sub(old.saturating_sub(quantum));
                }
                self.node.set_quantum(self.children[class], quarters(quantum));
            }
            Operation::Replace(class, quantum) => {
                let class = class % classes;
                self.set(class, Waits::Nothing);
                if self.slow.joining {
                    self.node.forget(self.children[class]);
                    self.slow.classes[class].quantum = quantum;
                    self.charged.retain(|charged| charged.0 != class);
                    self.children[class] = self.node.add(0, quarters(quantum));
                }
            }
        }
    }

    fn compare(&self) -> Result<(), TestCaseError> {
        if let Err(error) = self.node.audit() {
            return Err(TestCaseError::fail(alloc::format!("{error}")));
        }
        let picked = self.slow.clone().serve().map(|class| self.children[class]);
        prop_assert_eq!(self.node.pick(), picked);
        for (slow, &child) in self.slow.classes.iter().zip(&self.children) {
            let (deficit, _, _) = self.node.progress(child);
            prop_assert_eq!(deficit, (slow.deficit << FRACTION) / QUARTERS);
            prop_assert_eq!(self.node.deficit(child), slow.deficit / QUARTERS);
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn the_lazy_node_equals_the_slow_ring(
        joining in any::<bool>(),
        quanta in prop::collection::vec(1..200_u64, 1..12),
        operations in prop::collection::vec(operation(), 1..300),
    ) {
        let mut world = World::new(joining, &quanta);
        for operation in operations {
            world.step(operation);
            world.compare()?;
        }
    }
}
