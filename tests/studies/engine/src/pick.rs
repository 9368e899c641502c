//! Deficit round robin over classes: the cost of a pick while all classes are backlogged.
//!
//! Every subject gets the same requests: each class draws costs from a separate stream, and each picked request is
//! replaced by the next one of its class, so that no class runs empty. Enqueues and picks are timed in separate
//! batches.

mod alone;
mod engine;
mod released;

use std::fmt;
use std::time::Duration;

pub(crate) use self::alone::Alone;
pub(crate) use self::engine::Whole;
pub(crate) use self::released::Released;
use crate::cpu_clock::CpuClock;
use crate::lcg::Lcg;

/// Numbers of classes.
pub(crate) const CLASSES: [usize; 4] = [1, 8, 64, 1_024];
/// Waiting requests in total.
const WAITING: usize = 16_384;
/// Requests in one batch; fewer than wait in one class if there are few classes.
const BATCH: usize = 256;

/// Cost of a request: smallest value and exclusive end.
const COST: [u64; 2] = [256, 2_048];
/// Quantum of a class: `QUANTUM + class % 5 * QUANTUM_STEP`.
const QUANTUM: u64 = 1_024;
const QUANTUM_STEP: u64 = 256;

/// The quantum of a class.
pub(crate) const fn quantum(class: usize) -> u64 {
    QUANTUM + class as u64 % 5 * QUANTUM_STEP
}

/// A request with its id, class and cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(crate) id: u64,
    pub(crate) class: usize,
    pub(crate) cost: u64,
}

/// A queue of classes that share by deficit round robin.
pub(crate) trait Subject {
    /// The subject's form of a request.
    type Request;

    /// Name in the results.
    const NAME: &'static str;

    fn new(classes: usize) -> Self;
    /// Converts a request; not timed.
    fn prepare(&self, item: Item) -> Self::Request;
    fn enqueue(&mut self, request: Self::Request);
    /// Removes the next request and returns its id.
    fn pick(&mut self) -> u64;
    /// Ends the picked request `id`; not timed.
    fn end(&mut self, id: u64);
}

/// Result of one measurement, per request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) enqueue_ns: f64,
    pub(crate) pick_ns: f64,
}

/// Generates requests.
struct Source {
    costs: Vec<Lcg>,
    classes: Vec<usize>,
}

impl Source {
    fn new(classes: usize) -> Self {
        Self { costs: (0..classes as u64).map(Lcg::new).collect(), classes: Vec::new() }
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
    for number in 0..WAITING {
        let request = subject.prepare(source.item(number % classes));
        subject.enqueue(request);
    }
    let mut durations = [Duration::ZERO; 2];
    let warm_up = batches / 10 + 1;
    for batch in 0..warm_up + batches {
        if batch == warm_up {
            durations = [Duration::ZERO; 2];
        }
        let mut picked = Vec::with_capacity(BATCH);
        let start = CpuClock::now();
        for _ in 0..BATCH {
            picked.push(subject.pick());
        }
        durations[0] += start.elapsed();
        let mut next = Vec::with_capacity(BATCH);
        for id in picked {
            subject.end(id);
            let class = source.classes[id as usize];
            next.push(subject.prepare(source.item(class)));
        }
        let start = CpuClock::now();
        for request in next {
            subject.enqueue(request);
        }
        durations[1] += start.elapsed();
    }
    let each = |duration: Duration| duration.as_nanos() as f64 / (batches * BATCH) as f64;
    Sample { pick_ns: each(durations[0]), enqueue_ns: each(durations[1]) }
}

/// All subjects at one number of classes.
pub(crate) struct Row {
    pub(crate) classes: usize,
    /// Samples by subject, in the order of [`Row::NAMES`]; one a round.
    pub(crate) samples: [Vec<Sample>; 3],
}

impl Row {
    pub(crate) const NAMES: [&'static str; 3] = [Released::NAME, Alone::NAME, Whole::NAME];

    pub(crate) fn new(classes: usize) -> Self {
        Self { classes, samples: Default::default() }
    }

    /// One round.
    pub(crate) fn measure(&mut self, round: usize, batches: usize) {
        for subject in crate::rotated(round, Self::NAMES.len()) {
            let sample = match subject {
                0 => measure::<Released>(self.classes, batches),
                1 => measure::<Alone>(self.classes, batches),
                _ => measure::<Whole>(self.classes, batches),
            };
            self.samples[subject].push(sample);
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
