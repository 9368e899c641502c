//! Refusals of an endpoint bound it until it has served enough requests.

use alloc::vec::Vec;

use super::*;

/// An endpoint that runs `running` requests and was then refused one more.
fn pushed_back(gate: Gate, running: u64) -> Endpoint {
    let mut endpoint = Endpoint::new(EndpointId(1), Gate::Open);
    endpoint.list(Instant::ZERO, state(true), true);
    for _ in 0..=running {
        endpoint.start(Load::default());
    }
    endpoint.push_back(RequestId(1), Some(1));
    endpoint.end(Instant::ZERO, Load::default(), false);
    follow(&mut endpoint, gate);
    endpoint
}

fn serve(endpoint: &mut Endpoint, gate: Gate) {
    endpoint.end(Instant::ZERO, Load::default(), true);
    follow(endpoint, gate);
}

#[test]
fn pushback_bounds_at_what_was_in_flight_and_each_served_request_raises_it() {
    let gate = gate(StockUnit::Requests, 6);
    let mut endpoint = pushed_back(gate, 3);
    assert_eq!((endpoint.bound, endpoint.has_room()), (3, false));
    let mut bounds = Vec::new();
    for _ in 0..3 {
        serve(&mut endpoint, gate);
        bounds.push(endpoint.bound);
    }
    assert_eq!(bounds, [4, 5, 6]);
    assert_eq!(endpoint.pushback.limit(), None, "the configured bound holds again");
    endpoint.start(Load::default());
    serve(&mut endpoint, gate);
    assert_eq!(endpoint.bound, 6);
}

#[test]
fn pushback_of_an_idle_endpoint_leaves_room_for_one() {
    let gate = gate(StockUnit::Requests, 4);
    let mut endpoint = pushed_back(gate, 0);
    assert_eq!((endpoint.bound, endpoint.has_room()), (1, true));
    endpoint.push_back(RequestId(2), None);
    follow(&mut endpoint, gate);
    assert_eq!(endpoint.bound, 1);
}

#[test]
fn further_refusals_only_lower_the_bound_and_requests_that_are_not_served_do_not_raise_it() {
    let gate = gate(StockUnit::Requests, 8);
    let mut endpoint = pushed_back(gate, 2);
    for _ in 0..3 {
        endpoint.start(Load::default());
    }
    endpoint.push_back(RequestId(2), Some(1));
    follow(&mut endpoint, gate);
    assert_eq!(endpoint.bound, 2, "5 are in flight, and 2 were too many before");
    endpoint.end(Instant::ZERO, Load::default(), false);
    follow(&mut endpoint, gate);
    assert_eq!(endpoint.bound, 2);
}

#[test]
fn pushback_ends_when_the_endpoint_is_no_longer_ready() {
    let gate = gate(StockUnit::Requests, 4);
    let mut endpoint = pushed_back(gate, 2);
    endpoint.list(Instant::ZERO, state(false), true);
    follow(&mut endpoint, gate);
    endpoint.list(Instant::ZERO, state(true), true);
    follow(&mut endpoint, gate);
    assert_eq!((endpoint.pushback.limit(), endpoint.bound), (None, 4));
}

#[test]
fn pushback_limits_requests_under_every_gate_that_dispatches_by_itself() {
    let tokens = gate(StockUnit::Tokens, 1_000);
    let endpoint = pushed_back(tokens, 2);
    assert_eq!((endpoint.bound, endpoint.has_room()), (1_000, false), "the bound is in tokens");
    let mut endpoint = pushed_back(Gate::Open, 2);
    assert_eq!((endpoint.bound, endpoint.has_room()), (2, false));
    serve(&mut endpoint, Gate::Open);
    assert_eq!((endpoint.bound, endpoint.has_room()), (3, true));
    assert_eq!(pushed_back(Gate::Manual, 2).bound, u64::MAX);
}
