//! The whole engine: a cycle registers one request, completes another one, and grants the next waiting one.
//!
//! The engine does the work it does in a companion: costs are estimated, charged and settled, deadlines are set,
//! flows come and go. Requests are created before the clock runs.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant as Wall};

use penstock_engine::effect::Grant;
use penstock_engine::input::{ClassKey, EndpointState, Prompt, Service, Usage};
use penstock_engine::policy::{Class, ClassSet, Gate, Queue};
use penstock_engine::units::{Decimal, Tokens};
use penstock_engine::{Effect, EndpointId, Engine, Input, Instant, Policy, Request, RequestId};

use crate::cpu_clock::CpuClock;
use crate::lcg::Lcg;
use crate::memory;

const ENDPOINTS: u32 = 8;
const IN_FLIGHT: u64 = 64;
/// Requests created at a time.
const BATCH: u64 = 1_024;
/// Cycles before the measurement.
const WARM_UP: u64 = 20 * BATCH;

/// A load to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) flows: u64,
    pub(crate) classes: u64,
    pub(crate) waiting: u64,
}

impl Case {
    pub(crate) const fn new(flows: u64, classes: u64, waiting: u64) -> Self {
        Self { flows, classes, waiting }
    }

    /// All cases.
    pub(crate) const ALL: [Self; 8] = [
        Self::new(10, 1, 1_000),
        Self::new(1_000, 1, 1_000),
        Self::new(1_000, 1, 100_000),
        Self::new(100_000, 1, 100_000),
        Self::new(1_000, 1, 10_000),
        Self::new(1_000, 8, 10_000),
        Self::new(1_000, 64, 10_000),
        Self::new(1_000, 1_024, 10_000),
    ];
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { flows, classes, waiting } = self;
        write!(f, "{flows:>6} flows {classes:>4} classes {waiting:>6} waiting")
    }
}

/// Result of one measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) cycles_per_s: f64,
    /// Time from a completion to the grant of the next request.
    pub(crate) decision_p50_ns: f64,
    pub(crate) decision_p99_ns: f64,
    /// Time from a registration to its place in the queue.
    pub(crate) register_p50_ns: f64,
    pub(crate) register_p99_ns: f64,
    pub(crate) bytes_per_waiting: f64,
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>9.0} cycles/s, decision p50 {:>5.0} ns p99 {:>6.0} ns, {:>4.0} B each",
            self.cycles_per_s, self.decision_p50_ns, self.decision_p99_ns, self.bytes_per_waiting
        )
    }
}

fn policy(classes: u64) -> Policy {
    let bound = Decimal::whole(IN_FLIGHT / u64::from(ENDPOINTS));
    let set = ClassSet {
        classes: (0..classes)
            .map(|class| Class::new(&format!("class-{class}"), 512 + class % 7 * 256))
            .collect(),
        ..ClassSet::default()
    };
    Policy {
        queue: Queue {
            total_capacity: u64::MAX,
            total_bytes: u64::MAX,
            flow_capacity: u64::MAX,
            ttl: Duration::from_secs(3_600),
            ..Queue::default()
        },
        gate: Gate::requests(bound),
        classes: if classes > 1 { vec![set] } else { Vec::new() },
        ..Policy::default()
    }
}

/// An engine with busy endpoints and a queue of constant length.
struct World {
    engine: Engine,
    names: Vec<Arc<str>>,
    classes: Vec<Box<str>>,
    rng: Lcg,
    next: u64,
    running: VecDeque<u64>,
}

impl World {
    fn new(case: Case) -> Self {
        let mut engine = Engine::new(policy(case.classes), 1, Instant::ZERO);
        for id in 1..=ENDPOINTS {
            let input = Input::Endpoint { id: EndpointId(id), state: EndpointState::default() };
            engine.handle(Instant::ZERO, input);
        }
        engine.handle(Instant::ZERO, Input::Ready);
        Self {
            engine,
            names: (0..case.flows).map(|flow| format!("tenant-{flow}").into()).collect(),
            classes: (0..case.classes).map(|class| format!("class-{class}").into()).collect(),
            rng: Lcg::new(1),
            next: 0,
            running: VecDeque::with_capacity(4 * IN_FLIGHT as usize),
        }
    }

    fn request(&mut self) -> Request {
        let id = self.next;
        self.next += 1;
        let flow = self.rng.below(self.names.len() as u64) as usize;
        let class = self.rng.below(self.classes.len() as u64) as usize;
        let class = match self.classes.len() {
            1 => ClassKey::default(),
            _ => ClassKey::Family(self.classes[class].clone()),
        };
        Request {
            flow: self.names[flow].clone(),
            class,
            model: "meta-llama/Llama-3.1-8B-Instruct".into(),
            prompt: Prompt::Bytes(500 + id % 997 * 4),
            max_output: Some(Tokens(512)),
            body_bytes: 2_048,
            ..Request::new(RequestId(id))
        }
    }

    fn now(id: u64) -> Instant {
        Instant::from_nanos(id * 1_000)
    }

    fn register(&mut self, request: Request) {
        let now = Self::now(request.id.0);
        self.engine.handle(now, Input::Register(request));
    }

    fn collect(&mut self) {
        while let Some(effect) = self.engine.poll_effect() {
            if let Effect::Grant(Grant { id, .. }) = effect {
                self.running.push_back(id.0);
            }
        }
    }

    /// Completes the request that has run longest, and grants the next.
    fn complete(&mut self, now: Instant) {
        let id = self.running.pop_front().expect("a request always runs");
        let usage = Usage { prompt: Some(Tokens(300)), cached: None, output: Some(Tokens(id % 400)) };
        let input = Input::Completed { id: RequestId(id), service: Service::Served(usage) };
        self.engine.handle(now, input);
        self.collect();
    }

    fn fill(&mut self, count: u64) {
        for _ in 0..count {
            let request = self.request();
            self.register(request);
            self.collect();
        }
    }

    /// Runs `count` cycles and returns their duration.
    fn cycles(&mut self, count: u64) -> Duration {
        let mut duration = Duration::ZERO;
        let mut done = 0;
        while done < count {
            let batch: Vec<_> = (0..BATCH).map(|_| self.request()).collect();
            let start = CpuClock::now();
            for request in batch {
                let now = Self::now(request.id.0);
                self.register(request);
                self.complete(now);
            }
            duration += start.elapsed();
            done += BATCH;
        }
        duration
    }

    /// Runs `count` cycles and times each step: registrations and decisions, in nanoseconds, sorted.
    fn steps(&mut self, count: u64) -> [Vec<u64>; 2] {
        let mut durations = [Vec::new(), Vec::new()];
        for _ in 0..count {
            let request = self.request();
            let now = Self::now(request.id.0);
            let start = Wall::now();
            self.register(request);
            let registered = Wall::now();
            self.complete(now);
            let decided = Wall::now();
            for (steps, step) in durations.iter_mut().zip([registered - start, decided - registered]) {
                steps.push(u64::try_from(step.as_nanos()).unwrap_or(u64::MAX));
            }
        }
        for steps in &mut durations {
            steps.sort_unstable();
        }
        durations
    }
}

fn quantile(sorted: &[u64], permille: usize) -> f64 {
    sorted[(sorted.len() - 1) * permille / 1_000] as f64
}

/// Measures one case: the throughput of `cycles`, then each step of a third as many.
pub(crate) fn measure(case: Case, cycles: u64) -> Sample {
    let mut world = World::new(case);
    world.fill(IN_FLIGHT);
    let bytes = memory::growth(|| world.fill(case.waiting));
    world.cycles(WARM_UP);
    let count = cycles.div_ceil(BATCH) * BATCH;
    let duration = world.cycles(count);
    let [register, decision] = world.steps(cycles.div_ceil(3));
    assert_eq!(
        (world.engine.waiting(), world.engine.stock()),
        (case.waiting, IN_FLIGHT),
        "the queue keeps its length"
    );
    Sample {
        cycles_per_s: count as f64 / duration.as_secs_f64(),
        decision_p50_ns: quantile(&decision, 500),
        decision_p99_ns: quantile(&decision, 990),
        register_p50_ns: quantile(&register, 500),
        register_p99_ns: quantile(&register, 990),
        bytes_per_waiting: bytes as f64 / case.waiting as f64,
    }
}
