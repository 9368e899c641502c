//! A million requests through small worlds in which everything goes wrong that can: filters, network, companion,
//! servers, clients and clocks.
//!
//! A world that fails prints its last events and its seed; `PENSTOCK_WORLD=<seed>` runs that one alone.

use penstock_sim::world::{self, Tally};

const REQUESTS: u64 = 1_000_000;
/// Tests that share the worlds: they run beside each other.
const SHARES: u64 = 4;

fn share(of: u64) {
    if let Ok(seed) = std::env::var("PENSTOCK_WORLD") {
        if of == 0 {
            let tally = world::run(seed.parse().expect("PENSTOCK_WORLD is a seed"));
            println!("{}", tally.unwrap_or_else(|failure| panic!("{failure}")));
        }
        return;
    }
    let mut sum = Tally::default();
    let mut seed = of;
    while sum.requests < REQUESTS / SHARES {
        sum.add(&world::run(seed).unwrap_or_else(|failure| panic!("{failure}")));
        seed += SHARES;
    }
    println!("{sum}");
}

#[test]
fn a_million_requests_first_quarter() {
    share(0);
}

#[test]
fn a_million_requests_second_quarter() {
    share(1);
}

#[test]
fn a_million_requests_third_quarter() {
    share(2);
}

#[test]
fn a_million_requests_last_quarter() {
    share(3);
}

#[test]
fn a_seed_goes_the_same_way_twice() {
    for seed in 1_000..1_020 {
        let twice = [0, 1].map(|_| world::run(seed).map_err(|failure| failure.what));
        assert_eq!(twice[0], twice[1], "world {seed}");
    }
}
