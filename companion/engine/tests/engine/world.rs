//! A million random operations on small worlds with every policy. Each step is audited and compared with an
//! independent checker of invariants: exactly one outcome for each request, no grant after its end, stock within its
//! bounds.
//!
//! A failing world prints its seed; `PENSTOCK_WORLD=<seed>` runs that world alone and prints each step.
//! `PENSTOCK_MILLION=<n>` runs the n-th million instead of the first, which is 0.

mod invariants;

use std::fmt::Debug;
use std::time::Duration;

use penstock_engine::input::EndpointState;
use penstock_engine::{EndpointId, Engine, Input, Instant, RequestId};

use self::invariants::InvariantChecker;
use crate::random::{PolicyChoices, Rng, input, next_time, policy, with_roles};

const OPERATIONS: u64 = 1_000_000;
const STEPS: u64 = 400;
/// Number of tests that divide the worlds, so that they run in parallel.
const SHARES: u64 = 4;
const START: Instant = Instant::from_nanos(1_000_000_000_000);

/// Prints the seed of the world if a test panics in it.
struct World(u64);

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("run it again with PENSTOCK_WORLD={}", self.0);
        }
    }
}

fn run(seed: u64, verbose: bool) -> u64 {
    let _world = World(seed);
    let mut rng = Rng::new(seed);
    let choices = PolicyChoices::all();
    let mut first = policy(&mut rng, &choices);
    let separates = rng.percent(40);
    if separates {
        first.min_uncached_tokens = Some(rng.choose(&[0, 50]));
    }
    let mut engine = Engine::new(first.clone(), seed, START);
    engine.trace(rng.percent(30));
    engine.report_usage(rng.percent(30));
    engine.report_running_usage(rng.percent(30));
    engine.report_budgets(rng.percent(30));
    let mut checker = InvariantChecker::new(first);
    let mut now = START;
    let mut digest = 0;
    let mut handle = |now: Instant, input: Option<Input>, checker: &mut InvariantChecker| {
        if verbose {
            println!("{:>8} ms: {input:?}", now.since(START).as_millis());
        }
        match input.clone() {
            Some(input) => engine.handle(now, input),
            None => engine.handle_timeout(now),
        }
        let effects: Vec<_> = std::iter::from_fn(|| engine.poll_effect()).collect();
        if verbose {
            effects.iter().for_each(|effect| println!("             -> {effect:?}"));
        }
        engine.audit().expect("all invariants hold");
        digest = mixed(digest, &effects);
        checker.step(now, input, &effects, &engine);
    };
    for id in 1..=rng.below(5) as u32 {
        let (id, state) = (EndpointId(id), EndpointState::default());
        let listed = with_roles(&mut rng, Some(Input::Endpoint { id, state }), separates);
        handle(now, listed, &mut checker);
    }
    if rng.percent(90) {
        handle(now, Some(Input::Ready), &mut checker);
    }
    let mut fresh = 0;
    for _ in 0..STEPS {
        now = next_time(&mut rng, now);
        let live: Vec<RequestId> = checker.live().collect();
        let next = input(&mut rng, now, &choices, |rng, new| {
            if live.is_empty() || rng.percent(if new { 95 } else { 3 }) {
                fresh += 1;
                RequestId(fresh)
            } else {
                rng.choose(&live)
            }
        });
        let next = match next {
            Some(Input::Requeue(id)) if rng.percent(60) => Some(if rng.percent(50) {
                Input::Retry(id)
            } else {
                Input::Refused { id, retry_after: Duration::from_millis(rng.choose(&[0, 300, 5_000])) }
            }),
            next => next,
        };
        let next = with_roles(&mut rng, next, separates);
        // First let requests expire, so that an id doesn't end and arrive anew within one step.
        let is_live = |id: &RequestId| live.contains(id);
        if let Some(
            Input::Register(request)
            | Input::Resume(request)
            | Input::Adopt { request, .. }
            | Input::AdmittedByCredit { request, .. },
        ) = &next
            && is_live(&request.id)
        {
            handle(now, None, &mut checker);
        }
        handle(now, next, &mut checker);
    }
    checker.close(now, &mut handle);
    digest
}

/// Adds the effects, in order, to the digest.
fn mixed(digest: u64, effects: &impl Debug) -> u64 {
    format!("{effects:?}")
        .bytes()
        .fold(digest, |digest, byte| (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Runs one of the [`SHARES`] parts of the worlds.
fn run_share(part: u64) {
    if let Ok(seed) = std::env::var("PENSTOCK_WORLD") {
        if part == 0 {
            run(seed.parse().expect("PENSTOCK_WORLD is a seed"), true);
        }
        return;
    }
    let million: u64 = std::env::var("PENSTOCK_MILLION").map_or(0, |n| n.parse().expect("a number"));
    let first = million * (OPERATIONS / STEPS);
    for number in (first + part..first + OPERATIONS / STEPS).step_by(SHARES as usize) {
        let seed = Rng::new(number).next_u64();
        let digest = run(seed, false);
        if number % 50 == part {
            assert_eq!(digest, run(seed, false), "world {seed} had other effects the second time");
        }
    }
}

#[test]
fn a_million_operations_first_quarter() {
    run_share(0);
}

#[test]
fn a_million_operations_second_quarter() {
    run_share(1);
}

#[test]
fn a_million_operations_third_quarter() {
    run_share(2);
}

#[test]
fn a_million_operations_last_quarter() {
    run_share(3);
}
