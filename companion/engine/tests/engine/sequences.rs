//! Requests of several sequences: their cost, and bounds that count sequences.

use Band::Default;
use ShortEffect::{Bypassed, Dispatched, Settled};
use penstock_engine::input::{Band, Service, Usage};
use penstock_engine::policy::{CostUnit, Flows, Gate, StockUnit};
use penstock_engine::units::{Decimal, Tokens};
use penstock_engine::{EndpointId, Input, Policy, Request, RequestId};

use crate::support::*;

fn bounded(bound: u64) -> Policy {
    let gate = Gate::Bounded {
        unit: StockUnit::Sequences,
        lower: Decimal::whole(bound),
        upper: Decimal::whole(bound),
        watermark: Decimal::whole(bound),
    };
    Policy { gate, ..policy() }
}

fn of(id: u64, sequences: u64) -> Request {
    Request { sequences, ..request(id, "f", Default) }
}

fn register(harness: &mut Harness, request: Request) -> Vec<ShortEffect> {
    harness.handle(Input::Register(request))
}

#[test]
fn a_request_takes_as_many_places_as_it_has_sequences() {
    let mut harness = Harness::new(bounded(8), 1);
    assert_eq!(register(&mut harness, of(1, 5)), [Bypassed(1, 1)]);
    assert_eq!(harness.engine.stock(), 5);
    assert_eq!(register(&mut harness, of(2, 4)), [], "nine would run");
    assert_eq!(register(&mut harness, of(3, 1)), [], "it doesn't overtake");
    assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(2, 1), Dispatched(3, 1)]);
    assert_eq!(harness.engine.stock(), 5);
}

#[test]
fn a_request_of_more_sequences_than_the_bound_runs_alone_and_leaves_other_endpoints_their_room() {
    let mut harness = Harness::new(bounded(8), 2);
    assert_eq!(register(&mut harness, restricted(of(1, 1), &[1])), [Bypassed(1, 1)]);
    assert_eq!(register(&mut harness, restricted(of(2, 64), &[1])), []);
    // The endpoint drains for it, and the other one goes on.
    assert_eq!(register(&mut harness, of(3, 8)), [Bypassed(3, 2)]);
    assert_eq!(harness.complete(1), [Settled(1, 1), Dispatched(2, 1)]);
    assert_eq!(harness.complete(3), [Settled(3, 1)]);
    assert_eq!(harness.engine.stock(), 64);
    assert_eq!(
        register(&mut harness, of(4, 8)),
        [Bypassed(4, 2)],
        "56 too many at one take no room elsewhere"
    );
    assert_eq!(register(&mut harness, of(5, 1)), []);
    assert_eq!(harness.complete(2), [Settled(2, 1), Dispatched(5, 1)]);
}

#[test]
fn the_output_of_every_sequence_is_charged_and_the_prompt_once() {
    let flows = Flows { cost: CostUnit::Tokens, ..Flows::default() };
    let mut harness = Harness::new(Policy { flows, ..policy() }, 1);
    let cost = |harness: &mut Harness, request: Request| {
        let id = request.id;
        register(harness, request);
        harness.complete(id.0)
    };
    // An output token costs 2. What the server doesn't count stays as estimated.
    assert_eq!(cost(&mut harness, of(1, 1)), [Settled(1, 100 + 50 * 2)]);
    assert_eq!(cost(&mut harness, of(2, 4)), [Settled(2, 100 + 4 * 50 * 2)]);
    let limited = Request { max_output: Some(Tokens(10)), ..of(3, 4) };
    assert_eq!(cost(&mut harness, limited), [Settled(3, 100 + 4 * 10 * 2)]);
    assert_eq!(cost(&mut harness, of(4, 0)), [Settled(4, 100 + 50 * 2)]);
    assert_eq!(cost(&mut harness, of(5, u64::MAX)), [Settled(5, 100 + 16_384 * 50 * 2)]);
}

#[test]
fn expected_outputs_are_learned_for_one_sequence() {
    let mut harness = Harness::new(policy(), 1);
    let without = |id, sequences| Request { expected_output: None, ..of(id, sequences) };
    register(&mut harness, without(1, 4));
    let usage = Usage { output: Some(Tokens(80)), ..Usage::default() };
    harness.handle(Input::Completed { id: RequestId(1), service: Service::Served(usage) });
    register(&mut harness, without(2, 1));
    assert_eq!(harness.engine.expected(RequestId(2)).expect("runs").output, Some(Tokens(20)));
    register(&mut harness, without(3, 3));
    assert_eq!(harness.engine.expected(RequestId(3)).expect("runs").output, Some(Tokens(60)));
}

#[test]
fn sequences_of_own_requests_are_not_foreign() {
    let mut harness = Harness::new(with_gate(gate(8, 8)), 1);
    register(&mut harness, of(1, 6));
    for (running, foreign) in [(6, 0), (4, 0), (9, 3)] {
        harness.handle(Input::Load { id: EndpointId(1), running: Some(running) });
        assert_eq!(harness.engine.snapshot().endpoints[0].foreign, foreign);
    }
}
