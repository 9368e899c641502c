//! A million random operations on small choices of every policy, each audited, and held against a checker that knows
//! only what may not happen: an outcome twice or none, a grant after the end, stock over its bounds.
//!
//! A world that fails prints its seed; `PENSTOCK_WORLD=<seed>` runs that one alone, step by step.
//! `PENSTOCK_MILLION=<n>` runs the n-th million instead of the first, which is 0.

#[path = "../random/mod.rs"]
mod random;

mod invariants;

use std::fmt::Debug;

use penstock_engine::input::EndpointState;
use penstock_engine::{EndpointId, Engine, Input, Instant, RequestId};

use invariants::InvariantChecker;
use random::{PolicyChoices, Rng, input, later, policy};

const OPERATIONS: u64 = 1_000_000;
const STEPS: u64 = 400;
/// Tests that share the choices: they run beside each other.
const SHARES: u64 = 4;
const START: Instant = Instant::from_nanos(1_000_000_000_000);

/// Says which world it was when a test panics in it.
struct World(u64);

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("run it again with PENSTOCK_WORLD={}", self.0);
        }
    }
}

fn run(seed: u64, told: bool) -> u64 {
    let _world = World(seed);
    let mut rng = Rng::new(seed);
    let choices = PolicyChoices::all();
    let first = policy(&mut rng, &choices);
    let mut engine = Engine::new(first.clone(), seed, START);
    engine.trace(rng.percent(30));
    engine.report_usage(rng.percent(30));
    let mut checker = InvariantChecker::new(first);
    let mut now = START;
    let mut digest = 0;
    let mut say = |now: Instant, input: Option<Input>, checker: &mut InvariantChecker| {
        if told {
            println!("{:>8} ms: {input:?}", now.since(START).as_millis());
        }
        match input.clone() {
            Some(input) => engine.handle(now, input),
            None => engine.handle_timeout(now),
        }
        let effects: Vec<_> = std::iter::from_fn(|| engine.poll_effect()).collect();
        if told {
            effects
                .iter()
                .for_each(|effect| println!("             -> {effect:?}"));
        }
        engine.audit().expect("all invariants hold");
        digest = mixed(digest, &effects);
        checker.step(now, input, &effects, &engine);
    };
    for id in 1..=rng.below(5) as u32 {
        let (id, state) = (EndpointId(id), EndpointState::default());
        say(now, Some(Input::Endpoint { id, state }), &mut checker);
    }
    if rng.percent(90) {
        say(now, Some(Input::Ready), &mut checker);
    }
    let mut fresh = 0;
    for _ in 0..STEPS {
        now = later(&mut rng, now);
        let live: Vec<RequestId> = checker.live().collect();
        let next = input(&mut rng, now, &choices, |rng, new| {
            if live.is_empty() || rng.percent(if new { 95 } else { 3 }) {
                fresh += 1;
                RequestId(fresh)
            } else {
                rng.choose(&live)
            }
        });
        // Else it may be over, and anew, in one call.
        let again = |id: &RequestId| live.contains(id);
        if matches!(&next, Some(Input::Register(of) | Input::Resume(of) | Input::Adopt { request: of, .. }) if again(&of.id))
        {
            say(now, None, &mut checker);
        }
        say(now, next, &mut checker);
    }
    checker.close(now, &mut say);
    digest
}

/// Of everything that was said, in order.
fn mixed(digest: u64, said: &impl Debug) -> u64 {
    format!("{said:?}").bytes().fold(digest, |digest, byte| {
        (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn share(of: u64) {
    if let Ok(seed) = std::env::var("PENSTOCK_WORLD") {
        if of == 0 {
            run(seed.parse().expect("PENSTOCK_WORLD is a seed"), true);
        }
        return;
    }
    let million: u64 = std::env::var("PENSTOCK_MILLION").map_or(0, |n| n.parse().expect("a number"));
    let first = million * (OPERATIONS / STEPS);
    for number in (first + of..first + OPERATIONS / STEPS).step_by(SHARES as usize) {
        let seed = Rng::new(number).next_u64();
        let digest = run(seed, false);
        if number % 50 == of {
            assert_eq!(
                digest,
                run(seed, false),
                "world {seed} went another way the second time"
            );
        }
    }
}

#[test]
fn a_million_operations_first_quarter() {
    share(0);
}

#[test]
fn a_million_operations_second_quarter() {
    share(1);
}

#[test]
fn a_million_operations_third_quarter() {
    share(2);
}

#[test]
fn a_million_operations_last_quarter() {
    share(3);
}
