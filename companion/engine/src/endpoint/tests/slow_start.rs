//! An endpoint that is new or back takes more requests step by step.

use super::*;

#[test]
fn a_slow_start_doubles_up_to_the_bound() {
    let gate = gate(StockUnit::Requests, 11);
    let mut endpoint = new(gate);
    let load = Load::default();
    let took = [(); 6].map(|()| boundful(&mut endpoint, gate, load));
    assert_eq!(took, [1, 2, 4, 8, 11, 11]);
    assert_eq!((endpoint.limits().ramp, endpoint.bound), (None, 11));
}

#[test]
fn only_served_requests_double_a_slow_start() {
    let gate = gate(StockUnit::Requests, 8);
    let mut endpoint = new(gate);
    for _ in 0..10 {
        endpoint.start(Load::default());
        endpoint.end(Instant::ZERO, Load::default(), false);
        follow(&mut endpoint, gate);
    }
    assert_eq!(endpoint.bound, 1);
}

#[test]
fn under_a_bound_in_tokens_a_slow_start_limits_requests() {
    let gate = gate(StockUnit::Tokens, 1_000);
    let mut endpoint = new(gate);
    let load = Load { tokens: 300, prefill: 100, ..Load::default() };
    assert_eq!(endpoint.bound, 1_000, "the bound is in tokens");
    let took = [(); 5].map(|()| boundful(&mut endpoint, gate, load));
    // 300, 600, 900 are below 1,000: the fourth goes.
    assert_eq!(took, [1, 2, 4, 4, 4]);
}

#[test]
fn an_endpoint_that_becomes_ready_again_starts_slowly() {
    let gate = gate(StockUnit::Requests, 4);
    let mut endpoint = Endpoint::new(EndpointId(1), Gate::Open);
    endpoint.list(Instant::ZERO, state(false), true);
    endpoint.list(Instant::ZERO, state(true), false);
    follow(&mut endpoint, gate);
    assert_eq!(endpoint.bound, 4, "listed while the pool started, and never unready since");
    endpoint.list(Instant::ZERO, state(true), false);
    follow(&mut endpoint, gate);
    assert_eq!(endpoint.bound, 4, "nothing has changed");
    endpoint.list(Instant::ZERO, state(false), false);
    follow(&mut endpoint, gate);
    endpoint.list(Instant::ZERO, state(true), false);
    follow(&mut endpoint, gate);
    assert_eq!(endpoint.bound, 1);
    boundful(&mut endpoint, gate, Load::default());
    assert_eq!(endpoint.bound, 2);
    endpoint.list(Instant::ZERO, state(false), false);
    follow(&mut endpoint, gate);
    assert_eq!(endpoint.limits().ramp, None);
    endpoint.list(Instant::ZERO, state(true), false);
    follow(&mut endpoint, gate);
    assert_eq!(endpoint.bound, 1, "the slow start begins anew");
    endpoint.list(Instant::ZERO, state(false), false);
    endpoint.list(Instant::ZERO, state(true), true);
    follow(&mut endpoint, gate);
    assert_eq!(endpoint.bound, 4, "nothing starts slowly in a starting pool");
}

#[test]
fn without_bounds_nothing_starts_slowly() {
    for gate in [Gate::Open, Gate::Manual] {
        let mut endpoint = new(gate);
        for _ in 0..100 {
            assert!(endpoint.has_room());
            endpoint.start(Load::default());
            follow(&mut endpoint, gate);
        }
    }
}
