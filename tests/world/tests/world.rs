//! A million requests through small worlds with faults in filters, network, companions, lease store, servers, clients and
//! clocks.
//!
//! A failing world prints its last events and its seed. `PENSTOCK_WORLD=<seed>` runs only the world of that seed.

use penstock_world::Summary;

const REQUESTS: u64 = 1_000_000;
/// Number of tests that share the requests, so that they run in parallel.
const SHARES: u64 = 4;

fn run_share(share: u64) {
    if let Ok(seed) = std::env::var("PENSTOCK_WORLD") {
        if share == 0 {
            let summary = penstock_world::run(seed.parse().expect("PENSTOCK_WORLD is a seed"));
            println!("{}", summary.unwrap_or_else(|failure| panic!("{failure}")));
        }
        return;
    }
    let mut sum = Summary::default();
    let mut seed = share;
    while sum.requests < REQUESTS / SHARES {
        sum.add(&penstock_world::run(seed).unwrap_or_else(|failure| panic!("{failure}")));
        seed += SHARES;
    }
    println!("{sum}");
    assert!(sum.credit_admissions > 0, "filters admit requests by credit");
    assert!(sum.full_waits > 0, "requests wait for long");
}

#[test]
fn a_million_requests_first_quarter() {
    run_share(0);
}

#[test]
fn a_million_requests_second_quarter() {
    run_share(1);
}

#[test]
fn a_million_requests_third_quarter() {
    run_share(2);
}

#[test]
fn a_million_requests_last_quarter() {
    run_share(3);
}

#[test]
fn same_seed_gives_the_same_result() {
    for seed in 1_000..1_020 {
        let results = [0, 1].map(|_| penstock_world::run(seed).map_err(|failure| failure.violation));
        assert_eq!(results[0], results[1], "world {seed}");
    }
}
