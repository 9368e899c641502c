//! Pools that spread over companions: a preferred companion takes a free lease first, and asks for a pool that another one leads.

use std::time::Duration;

use penstock_election::{Holder, Input, Output, Pickers, Record, Report, Request, prefers};

use crate::harness::*;

/// As the limit of the crate.
const CLAIM_WAIT: Duration = Duration::from_secs(10);
/// As the limit of the crate.
const YIELD_WAIT: Duration = Duration::from_secs(60);

/// A pool that prefers `one` to `other`.
fn pool_of(one: &str, other: &str) -> String {
    let names = (0..).map(|number| format!("pool-{number}"));
    let mut preferring = names.filter(|pool| prefers(pool, one, other));
    preferring.next().expect("half of them")
}

fn led_by_other(term: u64) -> Record {
    others_record(term)
}

fn claims(bench: &mut Bench) -> usize {
    let claim = |output: &Output| matches!(output, Output::Claim { leader } if leader == OTHER);
    bench.outputs().iter().filter(|output| claim(output)).count()
}

/// Passes time in which the store answers every renewal of the leader.
fn renew_for(bench: &mut Bench, time: Duration) {
    let end = bench.now().after(time);
    while bench.now() < end {
        bench.pass(DURATION / 3);
        if !bench.outputs().is_empty() {
            bench.done();
            bench.outputs();
        }
    }
}

#[test]
fn a_free_lease_is_left_to_preferred_companions_for_a_moment() {
    // Among many pools there are some that this companion is preferred for less than half.
    let pool = pool_of(OTHER, OWN);
    let mut bench = Bench::of_pool(&pool);
    bench.observe(Holder::None, None);
    let requests = bench.outputs();
    bench.pass(DURATION / 30);
    let later = bench.outputs();
    let acquisitions = |outputs: &[Output]| {
        let acquires = |output: &&Output| matches!(output, Output::Request(Request::Acquire { .. }));
        outputs.iter().filter(acquires).count()
    };
    assert_eq!((acquisitions(&requests), acquisitions(&later)), (0, 1), "{requests:?}, {later:?}");
    // Taken by another one in the meantime.
    let mut bench = Bench::of_pool(&pool);
    bench.observe(Holder::None, None);
    bench.observe(Holder::Other, Some(led_by_other(5)));
    bench.outputs();
    bench.pass(DURATION);
    assert_eq!(acquisitions(&bench.outputs()), 0);
}

#[test]
fn a_standby_asks_for_a_pool_that_prefers_it_and_asks_again() {
    let mut bench = Bench::of_pool(&pool_of(OWN, OTHER));
    bench.observe(Holder::Other, Some(led_by_other(5)));
    bench.pass(CLAIM_WAIT - Duration::from_millis(1));
    assert_eq!(claims(&mut bench), 0);
    bench.pass(DURATION / 30 + Duration::from_millis(1));
    assert_eq!(claims(&mut bench), 1);
    let mut waits = Vec::new();
    let mut last = bench.now();
    while waits.len() < 6 {
        bench.pass(Duration::from_secs(1));
        if claims(&mut bench) == 1 {
            waits.push(bench.now().since(last).as_secs() / CLAIM_WAIT.as_secs());
            last = bench.now();
        }
    }
    assert_eq!(waits, [2, 4, 8, 16, 32, 32], "times the first wait");
    // During a takeover the standby asks for nothing.
    let taking_over = Record { taking_over_from: Some("10.0.0.9:9190".into()), ..led_by_other(6) };
    bench.observe(Holder::Other, Some(taking_over));
    bench.pass(64 * CLAIM_WAIT);
    assert_eq!(claims(&mut bench), 0);
    bench.observe(Holder::Other, Some(led_by_other(6)));
    bench.handle(Input::Resign);
    bench.pass(64 * CLAIM_WAIT);
    assert_eq!(claims(&mut bench), 0, "it ends");
}

#[test]
fn a_standby_asks_for_no_pool_that_prefers_the_leader() {
    for mut bench in [Bench::of_pool(&pool_of(OTHER, OWN)), Bench::new()] {
        bench.observe(Holder::Other, Some(led_by_other(5)));
        bench.pass(5 * CLAIM_WAIT);
        assert_eq!(claims(&mut bench), 0);
    }
}

#[test]
fn a_leader_leaves_a_pool_to_a_preferred_companion_and_takes_it_back_when_that_is_gone() {
    let (mut bench, term) = Bench::leader_of_pool(&pool_of(OTHER, OWN));
    let yields = |bench: &Bench, to: &str| bench.candidate().yields_to(bench.now(), to);
    assert!(!yields(&bench, OTHER), "its takeover isn't complete");
    bench.handle(Report::Known { term, envoys: envoys(&[1]), pickers: Pickers::default() });
    bench.outputs();
    bench.done();
    assert!(yields(&bench, OTHER));
    assert!(!yields(&bench, OWN));

    bench.handle(Input::Yield { to: OTHER.into() });
    let outputs = bench.outputs();
    assert_eq!(outputs[0], Output::Role(stand_by(None, term)), "before it releases");
    let Output::Request(Request::Release { record, .. }) = &outputs[1] else { panic!("{outputs:?}") };
    assert!(record.released && record.leader.is_empty());
    assert_eq!(record.envoys, envoys(&[1]), "whose requests the next leader counts");
    bench.done();
    bench.pass(DURATION - Duration::from_millis(1));
    assert_eq!(bench.outputs(), [], "the time of the other companion");
    bench.pass(Duration::from_millis(1) + DURATION / 30);
    let record = bench.acquisition();
    bench.done();
    bench.handle(Report::Known { term: record.term, envoys: Vec::new(), pickers: Pickers::default() });
    bench.outputs();
    bench.done();
    renew_for(&mut bench, YIELD_WAIT - 2 * DURATION);
    assert!(!yields(&bench, OTHER), "it yielded a short time ago");
    renew_for(&mut bench, 3 * DURATION);
    assert!(yields(&bench, OTHER));
    bench.pass(DURATION / 3 + DURATION / 4);
    assert!(!yields(&bench, OTHER), "the store doesn't answer");
}

#[test]
fn a_leader_of_all_pools_or_of_a_pool_that_prefers_it_stays() {
    let (mut of_all, _) = Bench::leader_of(&[1]);
    of_all.handle(Input::Yield { to: OTHER.into() });
    assert_eq!(of_all.outputs(), []);
    let (mut preferred, term) = Bench::leader_of_pool(&pool_of(OWN, OTHER));
    preferred.handle(Report::Known { term, envoys: envoys(&[1]), pickers: Pickers::default() });
    preferred.outputs();
    preferred.done();
    preferred.handle(Input::Yield { to: OTHER.into() });
    assert_eq!(preferred.outputs(), []);
}
