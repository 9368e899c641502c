//! Several workers of one Envoy without a companion: never more in flight than the bound, and never less than may be.

use std::{collections::BTreeSet, time::Duration};

use proptest::{collection::vec, prelude::*};

use crate::{
    fail_open,
    harness::{Rig, Shared},
};

const WORKERS: usize = 3;
const EXPIRES: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A request comes to a worker.
    Arrive(usize),
    /// One of those that run at a worker ends.
    End(usize, usize),
    /// A worker dies with all that runs there, and another takes its place.
    Die(usize),
    /// Time passes, and all workers tick.
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..WORKERS).prop_map(Step::Arrive),
        4 => (0..WORKERS, 0_usize..8).prop_map(|(at, which)| Step::End(at, which)),
        1 => (0..WORKERS).prop_map(Step::Die),
        3 => (1_u64..1_000).prop_map(Step::Pass),
    ]
}

struct World {
    shared: Shared,
    bound: u64,
    epochs: u64,
    workers: Vec<(Rig, BTreeSet<u64>)>,
    /// Since the last death of a worker where something ran.
    calm: Duration,
}

impl World {
    fn new(bound: u64) -> Self {
        let mut world = Self {
            shared: Shared::default(),
            bound,
            epochs: 0,
            workers: Vec::new(),
            calm: EXPIRES,
        };
        for _ in 0..WORKERS {
            let worker = world.worker();
            world.workers.push(worker);
        }
        world
    }

    fn worker(&mut self) -> (Rig, BTreeSet<u64>) {
        self.epochs += 1;
        let mut rig = fail_open::open(self.epochs, &self.shared, Some(self.bound));
        if let Some((other, _)) = self.workers.first() {
            // Lost when the others were, however long ago.
            rig.now = other.now;
        }
        (rig, BTreeSet::new())
    }

    fn running(&self) -> u64 {
        self.workers.iter().map(|(_, running)| running.len() as u64).sum()
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Arrive(at) => {
                let before = self.running();
                let (rig, running) = &mut self.workers[at];
                let went = fail_open::goes(rig);
                running.extend(went);
                prop_assert!(went.is_none() || before < self.bound, "over the bound");
                if self.calm >= EXPIRES {
                    prop_assert_eq!(went.is_some(), before < self.bound, "a place is left empty");
                }
            }
            Step::End(at, which) => {
                let (rig, running) = &mut self.workers[at];
                if let Some(sequence) = running.iter().nth(which % running.len().max(1)).copied() {
                    running.remove(&sequence);
                    rig.log(sequence);
                }
            }
            Step::Die(at) => {
                if !self.workers[at].1.is_empty() {
                    self.calm = Duration::ZERO;
                }
                self.workers[at] = self.worker();
            }
            Step::Pass(millis) => {
                let passed = Duration::from_millis(millis);
                self.calm += passed;
                for (rig, _) in &mut self.workers {
                    rig.advance(passed);
                    rig.tick();
                    rig.worker.handle_open_failed(rig.now);
                }
            }
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn places_are_neither_taken_twice_nor_left_empty(bound in 1_u64..5, steps in vec(step(), 0..120)) {
        let mut world = World::new(bound);
        for it in steps {
            world.step(it)?;
        }
        // When all is over every place is free.
        for at in 0..WORKERS {
            for _ in 0..=bound {
                world.step(Step::End(at, 0))?;
            }
        }
        prop_assert_eq!(world.running(), 0);
    }
}
