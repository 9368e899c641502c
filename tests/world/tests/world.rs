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
    for (what, count) in [
        ("filters admit requests by credit", sum.credit_admissions),
        ("tenants with nothing running go above the bounds", sum.extra_grants),
        ("requests are evicted", sum.evictions),
        ("requests wait for long", sum.full_waits),
        ("requests of one flow wait in several sessions of a host over takeovers", sum.orders_on_hosts),
        ("reloads change weights", sum.reweightings),
        ("named tenants have accounts of their own", sum.named_requests),
        ("budgets are charged", sum.budget_charges),
        ("requests are demoted", sum.budget_demotions),
        ("demotions are judged", sum.demotions_judged),
        ("budgets refuse requests", sum.budget_refusals),
        ("budgets are compared", sum.budget_comparisons),
        ("requests leave the queue a second time", sum.second_outcomes),
        ("servers push back", sum.pushbacks),
        ("filters admit requests without a companion", sum.fallback_admissions),
        ("leaders are taken over", sum.takeovers.values().sum()),
    ] {
        assert!(count > 0, "never: {what}");
    }
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
