//! Helpers for the `auto` gate, which bounds each endpoint by an allowance.

use penstock_engine::input::{Band, Prompt};
use penstock_engine::policy::Gate;
use penstock_engine::units::{Decimal, Tokens};
use penstock_engine::{Allowance, EndpointId, Input, Policy, Request};

use super::*;

pub fn auto(initial: u64) -> Policy {
    let initial = Decimal::whole(initial);
    Policy { gate: Gate::Auto { initial }, ..policy() }
}

/// An allowance of 10 ms an iteration and 1 ms per processed token, so that a request of 100 and 50 tokens adds 3 ms.
/// Resident tokens cost nothing.
pub fn allowance(iteration_ms_max: f64) -> Allowance {
    Allowance {
        alpha_ms: 10.0,
        beta_ms: 1.0,
        gamma_ms: 0.0,
        iteration_ms_max,
        first_token_ms_max: f64::INFINITY,
        ttft_bias: 1.0,
        kv_tokens_max: None,
        requests_max: None,
        sequences_max: None,
        typical: 5,
        rate: None,
    }
}

pub fn set_allowance(harness: &mut Harness, id: u32, allowance: Option<Allowance>) -> Vec<ShortEffect> {
    harness.handle(Input::Allowance { id: EndpointId(id), allowance })
}

/// An engine with these allowances at endpoints 1 and up, and a gate of 8 requests for endpoints without one.
pub fn harness(allowances: &[Allowance]) -> Harness {
    harness_with_policy(auto(8), allowances)
}

pub fn harness_with_policy(policy: Policy, allowances: &[Allowance]) -> Harness {
    let mut harness = Harness::new(policy, allowances.len() as u32);
    for (id, allowance) in (1..).zip(allowances) {
        assert_eq!(set_allowance(&mut harness, id, Some(*allowance)), []);
    }
    harness
}

pub fn sized(id: u64, prompt: u64, output: u64) -> Request {
    Request {
        prompt: Prompt::Tokens(Tokens(prompt)),
        expected_output: Some(Tokens(output)),
        ..request(id, "f", Band::Default)
    }
}

pub fn send(harness: &mut Harness, request: Request) -> Vec<ShortEffect> {
    harness.handle(Input::Register(request))
}
