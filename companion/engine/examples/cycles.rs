//! How fast the engine decides: register + grant + complete on one core, and the memory of what waits.
//!
//!     cargo run --release -p penstock-engine --example cycles [FLOWS WAITING CYCLES]

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant as Wall};

use penstock_engine::input::{EndpointState, Prompt, Service, Usage};
use penstock_engine::policy::{Gate, Queue, StockUnit};
use penstock_engine::units::{Decimal, Tokens};
use penstock_engine::{Effect, EndpointId, Engine, Input, Instant, Policy, Request, RequestId};

struct Counted;

static BYTES: AtomicUsize = AtomicUsize::new(0);
/// Off while time is taken: a counter that all threads may share costs a tenth of a cycle.
static COUNTING: AtomicBool = AtomicBool::new(false);

// SAFETY: hands everything to the system's allocator as it came, and counts beside it.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTING.load(Ordering::Relaxed) {
            BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if COUNTING.load(Ordering::Relaxed) {
            BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        }
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

const IN_FLIGHT: u64 = 64;

fn policy() -> Policy {
    let bound = Decimal::whole(IN_FLIGHT / 8);
    Policy {
        queue: Queue {
            total_capacity: u64::MAX,
            total_bytes: u64::MAX,
            flow_capacity: u64::MAX,
            ttl: Duration::from_secs(3_600),
            ..Queue::default()
        },
        gate: Gate::Bounded {
            unit: StockUnit::Requests,
            lower: bound,
            upper: bound,
            watermark: bound,
        },
        ..Policy::default()
    }
}

fn request(id: u64, flow: Box<str>) -> Request {
    Request {
        flow,
        model: "meta-llama/Llama-3.1-8B-Instruct".into(),
        prompt: Prompt::Bytes(500 + id % 997 * 4),
        max_output: Some(Tokens(512)),
        body_bytes: 2_048,
        ..Request::new(RequestId(id))
    }
}

fn measure(flows: u64, waiting: u64, cycles: u64) {
    let mut engine = Engine::new(policy(), 1, Instant::ZERO);
    for id in 1..=8 {
        let state = EndpointState::default();
        engine.handle(
            Instant::ZERO,
            Input::Endpoint {
                id: EndpointId(id),
                state,
            },
        );
    }
    engine.handle(Instant::ZERO, Input::Ready);
    let names: Vec<Box<str>> = (0..flows).map(|flow| format!("tenant-{flow}").into()).collect();
    let mut lot = 1_u64;
    let mut name = || {
        lot = lot.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        names[((lot >> 33) % flows) as usize].clone()
    };
    let mut running = VecDeque::with_capacity(IN_FLIGHT as usize + 1);
    let before = BYTES.load(Ordering::Relaxed);
    COUNTING.store(true, Ordering::Relaxed);
    for id in 0..IN_FLIGHT + waiting {
        engine.handle(Instant::from_nanos(id), Input::Register(request(id, name())));
        running.extend(engine.poll_effect().map(|_| id));
    }
    COUNTING.store(false, Ordering::Relaxed);
    let bytes = BYTES.load(Ordering::Relaxed).wrapping_sub(before) as u64 / (IN_FLIGHT + waiting);
    let mut worst = Duration::ZERO;
    let begin = Wall::now();
    for id in IN_FLIGHT + waiting..IN_FLIGHT + waiting + cycles {
        let now = Instant::from_nanos(id * 1_000);
        let start = (id % 64 == 0).then(Wall::now);
        engine.handle(now, Input::Register(request(id, name())));
        let ended = running.pop_front().expect("something always runs");
        let usage = Usage {
            prompt: Some(Tokens(300)),
            cached: None,
            output: Some(Tokens(ended % 400)),
        };
        let service = Service::Served(usage);
        engine.handle(
            now,
            Input::Completed {
                id: RequestId(ended),
                service,
            },
        );
        while let Some(effect) = engine.poll_effect() {
            if let Effect::Grant { id, .. } = effect {
                running.push_back(id.0);
            }
        }
        worst = worst.max(start.map_or(Duration::ZERO, |start| start.elapsed()));
    }
    let rate = cycles as f64 / begin.elapsed().as_secs_f64();
    assert_eq!((engine.waiting(), engine.stock()), (waiting, IN_FLIGHT));
    println!(
        "{flows:>7} flows  {waiting:>7} waiting  {rate:>10.0} cycles/s  worst seen {worst:>10.1?}  {bytes:>5} B each"
    );
}

fn main() {
    let given: Vec<u64> = std::env::args()
        .skip(1)
        .filter_map(|arg| arg.parse().ok())
        .collect();
    if let [flows, waiting, cycles] = given[..] {
        return measure(flows, waiting, cycles);
    }
    for (flows, waiting) in [
        (10, 1_000),
        (1_000, 0),
        (1_000, 1_000),
        (1_000, 10_000),
        (1_000, 100_000),
        (100_000, 100_000),
    ] {
        measure(flows, waiting, 1_000_000);
    }
}
