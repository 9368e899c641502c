//! Several workers of one Envoy without a companion: the bound is never exceeded, and room is never left unused.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use crate::worker::fail_open;
use crate::worker::harness::{Rig, Shared};

const WORKERS: usize = 3;
const EXPIRES: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A request arrives at a worker.
    Arrive(usize),
    /// One of a worker's running requests ends.
    End(usize, usize),
    /// A worker dies with its running requests, and a new one replaces it.
    Die(usize),
    /// Time passes, and all workers tick.
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..WORKERS).prop_map(Step::Arrive),
        4 => (0..WORKERS, 0_usize..8).prop_map(|(worker, index)| Step::End(worker, index)),
        1 => (0..WORKERS).prop_map(Step::Die),
        3 => (1_u64..1_000).prop_map(Step::Pass),
    ]
}

struct World {
    shared: Shared,
    bound: u64,
    epochs: u64,
    workers: Vec<(Rig, BTreeSet<u64>)>,
    /// Time since the last death of a worker with running requests.
    calm: Duration,
}

impl World {
    fn new(bound: u64) -> Self {
        let mut world =
            Self { shared: Shared::default(), bound, epochs: 0, workers: Vec::new(), calm: EXPIRES };
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
            // The companion went down at the same time as for the other workers.
            rig.now = other.now;
        }
        (rig, BTreeSet::new())
    }

    fn running(&self) -> u64 {
        self.workers.iter().map(|(_, running)| running.len() as u64).sum()
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Arrive(worker) => {
                let before = self.running();
                let (rig, running) = &mut self.workers[worker];
                let went = fail_open::admitted(rig);
                running.extend(went);
                prop_assert!(went.is_none() || before < self.bound, "over the bound");
                if self.calm >= EXPIRES {
                    prop_assert_eq!(went.is_some(), before < self.bound, "a place is left empty");
                }
            }
            Step::End(worker, index) => {
                let (rig, running) = &mut self.workers[worker];
                if let Some(sequence) = running.iter().nth(index % running.len().max(1)).copied() {
                    running.remove(&sequence);
                    rig.log(sequence);
                }
            }
            Step::Die(worker) => {
                if !self.workers[worker].1.is_empty() {
                    self.calm = Duration::ZERO;
                }
                self.workers[worker] = self.worker();
            }
            Step::Pass(millis) => {
                let passed = Duration::from_millis(millis);
                self.calm += passed;
                for (rig, _) in &mut self.workers {
                    rig.advance(passed);
                    rig.tick();
                    rig.open_failed();
                }
            }
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn room_is_neither_used_twice_nor_left_unused(bound in 1_u64..5, steps in vec(step(), 0..120)) {
        let mut world = World::new(bound);
        for step in steps {
            world.step(step)?;
        }
        // Once all requests have ended, all room is free.
        for worker in 0..WORKERS {
            for _ in 0..=bound {
                world.step(Step::End(worker, 0))?;
            }
        }
        prop_assert_eq!(world.running(), 0);
    }
}
