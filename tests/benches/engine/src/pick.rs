//! Deficit round robin over classes: who goes next, when all of them are backlogged.
//!
//! Every subject gets the same requests: each class draws its costs from a stream of its own, and whatever class went
//! gets its next request, so that nothing runs empty. Enqueues and picks are timed in batches, apart.

mod alone;
mod engine;
mod released;

use std::fmt;
use std::time::Duration;

use crate::lot::Lot;
use crate::watch::Cpu;

pub(crate) use alone::Alone;
pub(crate) use engine::Whole;
pub(crate) use released::Released;

/// How many classes.
pub(crate) const CLASSES: [usize; 4] = [1, 8, 64, 1_024];
/// Requests that wait in all.
const WAITING: usize = 16_384;
/// Requests of one batch; fewer than ever wait in one class, where there are few.
const BATCH: usize = 256;

/// What a request costs its class, least and end.
const COST: [u64; 2] = [256, 2_048];
/// What a visit grants: `QUANTUM + class % 5 * QUANTUM_STEP`.
const QUANTUM: u64 = 1_024;
const QUANTUM_STEP: u64 = 256;

/// The quantum of a class.
pub(crate) const fn quantum(class: usize) -> u64 {
    QUANTUM + class as u64 % 5 * QUANTUM_STEP
}

/// A request: its number, class and cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(crate) id: u64,
    pub(crate) class: usize,
    pub(crate) cost: u64,
}

/// A queue of classes that share by deficit round robin.
pub(crate) trait Subject {
    /// What it is given for a request.
    type Request;

    /// What it is called in the results.
    const NAME: &'static str;

    fn new(classes: usize) -> Self;
    /// Makes what it is given; not timed.
    fn prepare(&self, item: Item) -> Self::Request;
    fn enqueue(&mut self, request: Self::Request);
    /// The number of the one that goes, taken out.
    fn pick(&mut self) -> u64;
    /// `id`, which was picked, has ended; not timed.
    fn ended(&mut self, id: u64);
}

/// What one measurement came to, per request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) enqueue_ns: f64,
    pub(crate) pick_ns: f64,
}

/// Where requests come from.
struct Source {
    costs: Vec<Lot>,
    classes: Vec<usize>,
}

impl Source {
    fn new(classes: usize) -> Self {
        Self {
            costs: (0..classes as u64).map(Lot::new).collect(),
            classes: Vec::new(),
        }
    }

    fn item(&mut self, class: usize) -> Item {
        let id = self.classes.len() as u64;
        self.classes.push(class);
        let cost = COST[0] + self.costs[class].below(COST[1] - COST[0]);
        Item { id, class, cost }
    }
}

/// Measures one subject.
pub(crate) fn measure<S: Subject>(classes: usize, batches: usize) -> Sample {
    let mut subject = S::new(classes);
    let mut source = Source::new(classes);
    for at in 0..WAITING {
        let request = subject.prepare(source.item(at % classes));
        subject.enqueue(request);
    }
    let mut took = [Duration::ZERO; 2];
    let warm_up = batches / 10 + 1;
    for batch in 0..warm_up + batches {
        if batch == warm_up {
            took = [Duration::ZERO; 2];
        }
        let mut gone = Vec::with_capacity(BATCH);
        let start = Cpu::now();
        for _ in 0..BATCH {
            gone.push(subject.pick());
        }
        took[0] += start.elapsed();
        let mut next = Vec::with_capacity(BATCH);
        for id in gone {
            subject.ended(id);
            let class = source.classes[id as usize];
            next.push(subject.prepare(source.item(class)));
        }
        let start = Cpu::now();
        for request in next {
            subject.enqueue(request);
        }
        took[1] += start.elapsed();
    }
    let each = |took: Duration| took.as_nanos() as f64 / (batches * BATCH) as f64;
    Sample {
        pick_ns: each(took[0]),
        enqueue_ns: each(took[1]),
    }
}

/// All subjects at one number of classes.
pub(crate) struct Row {
    pub(crate) classes: usize,
    /// By subject, in the order of [`Row::NAMES`]; one a round.
    pub(crate) samples: [Vec<Sample>; 3],
}

impl Row {
    pub(crate) const NAMES: [&'static str; 3] = [Released::NAME, Alone::NAME, Whole::NAME];

    pub(crate) fn new(classes: usize) -> Self {
        Self {
            classes,
            samples: Default::default(),
        }
    }

    /// One round.
    pub(crate) fn measure(&mut self, round: usize, batches: usize) {
        for at in crate::turned(round, Self::NAMES.len()) {
            let sample = match at {
                0 => measure::<Released>(self.classes, batches),
                1 => measure::<Alone>(self.classes, batches),
                _ => measure::<Whole>(self.classes, batches),
            };
            self.samples[at].push(sample);
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>4} classes, ns a pick:", self.classes)?;
        for (name, samples) in Self::NAMES.iter().zip(&self.samples) {
            let last = samples.last().map_or(0.0, |s| s.pick_ns);
            write!(f, " {name} {last:.0}")?;
        }
        Ok(())
    }
}
