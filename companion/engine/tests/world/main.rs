//! A million random operations on small worlds of every policy, each audited, and held against a ledger that knows
//! only what may not happen: an outcome twice or none, a grant after the end, stock over its bounds.
//!
//! A world that fails prints its seed; `PENSTOCK_WORLD=<seed>` runs that one alone, step by step.
//! `PENSTOCK_MILLION=<n>` runs the n-th million instead of the first, which is 0.

#[path = "../random/mod.rs"]
mod random;

mod ledger;

use std::fmt::Debug;

use penstock_engine::input::EndpointState;
use penstock_engine::{EndpointId, Engine, Input, Instant, RequestId};

use ledger::Ledger;
use random::{Dice, Worlds, input, later, policy};

const OPERATIONS: u64 = 1_000_000;
const STEPS: u64 = 400;
/// Tests that share the worlds: they run beside each other.
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
    let mut dice = Dice::new(seed);
    let worlds = Worlds::all();
    let first = policy(&mut dice, &worlds);
    let mut engine = Engine::new(first.clone(), seed, START);
    engine.trace(dice.percent(30));
    engine.report_usage(dice.percent(30));
    let mut ledger = Ledger::new(first);
    let mut now = START;
    let mut digest = 0;
    let mut say = |now: Instant, input: Option<Input>, ledger: &mut Ledger| {
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
        ledger.step(now, input, &effects, &engine);
    };
    for id in 1..=dice.below(5) as u32 {
        let (id, state) = (EndpointId(id), EndpointState::default());
        say(now, Some(Input::Endpoint { id, state }), &mut ledger);
    }
    if dice.percent(90) {
        say(now, Some(Input::Ready), &mut ledger);
    }
    let mut fresh = 0;
    for _ in 0..STEPS {
        now = later(&mut dice, now);
        let live: Vec<RequestId> = ledger.live().collect();
        let next = input(&mut dice, now, &worlds, |dice, new| {
            if live.is_empty() || dice.percent(if new { 95 } else { 3 }) {
                fresh += 1;
                RequestId(fresh)
            } else {
                dice.one(&live)
            }
        });
        // Else it may be over, and anew, in one call.
        let again = |id: &RequestId| live.contains(id);
        if matches!(&next, Some(Input::Register(of) | Input::Resume(of) | Input::Adopt { request: of, .. }) if again(&of.id))
        {
            say(now, None, &mut ledger);
        }
        say(now, next, &mut ledger);
    }
    ledger.close(now, &mut say);
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
        let seed = Dice::new(number).roll();
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
