//! What one endpoint takes, by its bound and its load.

mod pushback;
mod slow_start;

use super::*;
use crate::load::Extra;
use crate::policy::StockUnit;

/// A request of one sequence and no token.
const ONE: Load = Load {
    tokens: 0,
    output: 0,
    prefill: 0,
    in_prefill: 0,
    sequences: 1,
    extra: Extra { requests: 0, sequences: 0, tokens: 0 },
    evicted: 0,
};

fn follow(endpoint: &mut Endpoint, gate: Gate) {
    endpoint.update_bound(gate);
    endpoint.update_stock(gate);
}

fn gate(unit: StockUnit, upper: u64) -> Gate {
    Gate::Bounded {
        unit,
        lower: Decimal::whole(upper),
        upper: Decimal::whole(upper),
        watermark: Decimal::whole(upper),
    }
}

fn state(ready: bool) -> EndpointState {
    EndpointState { ready, ..EndpointState::default() }
}

/// An endpoint listed long after the pool started.
fn new(gate: Gate) -> Endpoint {
    let mut endpoint = Endpoint::new(EndpointId(1), Gate::Open);
    endpoint.list(Instant::ZERO, state(true), false);
    follow(&mut endpoint, gate);
    endpoint
}

/// Fills the endpoint, then serves all of it. Returns how many requests it took.
fn boundful(endpoint: &mut Endpoint, gate: Gate, load: Load) -> u64 {
    let mut taken = 0;
    while endpoint.has_room() {
        endpoint.start(load);
        follow(endpoint, gate);
        taken += 1;
    }
    for _ in 0..taken {
        endpoint.end(Instant::ZERO, load, true);
        follow(endpoint, gate);
    }
    taken
}

#[test]
fn a_state_is_shown_since_the_endpoint_was_listed_or_checked() {
    let mut endpoint = Endpoint::new(EndpointId(1), Gate::Open);
    let mut shown = |nanos, ready| {
        endpoint.list(Instant::from_nanos(nanos), state(ready), true);
        let (state, _, since) = endpoint.shown_health();
        (state, since.as_nanos())
    };
    assert_eq!(shown(7, true), (HealthState::Healthy, 7));
    assert_eq!(shown(8, true), (HealthState::Healthy, 7));
    assert_eq!(shown(9, false), (HealthState::Down, 9));
    assert_eq!(shown(11, true), (HealthState::Healthy, 11));
}

#[test]
fn foreign_load_is_the_excess_of_the_report_over_our_requests() {
    let gate = gate(StockUnit::Requests, 4);
    let mut endpoint = Endpoint::new(EndpointId(1), Gate::Open);
    endpoint.list(Instant::ZERO, state(true), true);
    endpoint.start(ONE);
    endpoint.observe(Instant::ZERO, Some(3), None);
    follow(&mut endpoint, gate);
    assert_eq!(endpoint.bound, 2);
    endpoint.end(Instant::ZERO, ONE, true);
    follow(&mut endpoint, gate);
    assert_eq!(endpoint.bound, 2, "the end of a request doesn't raise the bound");
    endpoint.observe(Instant::ZERO, Some(100), None);
    follow(&mut endpoint, gate);
    assert_eq!((endpoint.bound, endpoint.has_room()), (1, true));
    endpoint.observe(Instant::ZERO, Some(0), None);
    follow(&mut endpoint, gate);
    assert_eq!(endpoint.bound, 4);
    endpoint.observe(Instant::ZERO, Some(2), None);
    endpoint.observe(Instant::ZERO, None, None);
    follow(&mut endpoint, gate);
    assert_eq!(endpoint.bound, 4, "without a report no request counts as foreign");
}

#[test]
fn a_threshold_blocks_above_its_value() {
    let mut endpoint = Endpoint::new(EndpointId(1), Gate::Open);
    let tokens = |tokens| Threshold { tokens: Some(tokens), fraction: None };
    let fraction = |fraction| Threshold { tokens: None, fraction: Some(fraction) };
    let load = Load { tokens: 500, prefill: 400, in_prefill: 400, ..ONE };
    assert!(!endpoint.is_above(tokens(0)), "0 lets one prompt in");
    endpoint.start(load);
    assert!(!endpoint.is_above(Threshold::default()));
    assert!(endpoint.is_above(tokens(399)) && !endpoint.is_above(tokens(400)));
    assert!(!endpoint.is_above(fraction(0.0)), "ineffective while batched_tokens_max is unknown");
    endpoint.batched_tokens_max = Some(1_000);
    assert!(endpoint.is_above(fraction(0.39)) && !endpoint.is_above(fraction(0.4)));
    let both = Threshold { tokens: Some(1_000), fraction: Some(0.3) };
    assert!(endpoint.is_above(both), "either one blocks");
    endpoint.end_prefill(load);
    assert!(!endpoint.is_above(both) && !endpoint.is_above(tokens(0)));
    assert_eq!(endpoint.running.prefill, 400);
    endpoint.end(Instant::ZERO, load.prefilled(), true);
    assert_eq!(endpoint.running, Load::default());
}
