//! Helpers for the `auto` gate, which bounds each endpoint by a budget.

use penstock_engine::input::{Band, Prompt};
use penstock_engine::policy::Gate;
use penstock_engine::units::{Decimal, Tokens};
use penstock_engine::{Budget, EndpointId, Input, Policy, Request};

use super::*;

pub fn auto(initial: u64) -> Policy {
    let initial = Decimal::whole(initial);
    Policy { gate: Gate::Auto { initial }, ..policy() }
}

/// A budget of 10 ms an iteration and 1 ms per processed token, so that a request of 100 and 50 tokens adds 3 ms.
/// Resident tokens cost nothing.
pub fn budget(iteration_ms_max: f64) -> Budget {
    Budget {
        alpha_ms: 10.0,
        beta_ms: 1.0,
        gamma_ms: 0.0,
        iteration_ms_max,
        first_token_ms_max: f64::INFINITY,
        ttft_bias: 1.0,
        kv_tokens_max: None,
        requests_max: None,
        typical: 5,
        rate: None,
    }
}

pub fn set_budget(harness: &mut Harness, id: u32, budget: Option<Budget>) -> Vec<ShortEffect> {
    harness.handle(Input::Budget { id: EndpointId(id), budget })
}

/// An engine with these budgets at endpoints 1 and up, and a gate of 8 requests for endpoints without one.
pub fn harness(budgets: &[Budget]) -> Harness {
    harness_with_policy(auto(8), budgets)
}

pub fn harness_with_policy(policy: Policy, budgets: &[Budget]) -> Harness {
    let mut harness = Harness::new(policy, budgets.len() as u32);
    for (id, budget) in (1..).zip(budgets) {
        assert_eq!(set_budget(&mut harness, id, Some(*budget)), []);
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
