//! Engines whose gate a model of the servers sets.

use penstock_engine::input::{Band, Prompt};
use penstock_engine::policy::Gate;
use penstock_engine::units::{Decimal, Tokens};
use penstock_engine::{Budget, EndpointId, Input, Policy, Request};

use super::*;

pub fn auto(initial: u64) -> Policy {
    let initial = Decimal::whole(initial);
    Policy {
        gate: Gate::Auto { initial },
        ..policy()
    }
}

/// 10 ms and 1 ms per token processed: a request of 100 and 50 tokens adds 3 ms. Residents cost nothing.
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

pub fn allow(bench: &mut Bench, id: u32, budget: Option<Budget>) -> Vec<Said> {
    bench.say(Input::Budget {
        id: EndpointId(id),
        budget,
    })
}

/// Endpoints from 1 on with these budgets, and a gate of 8 for those without.
pub fn bench(budgets: &[Budget]) -> Bench {
    bench_of(auto(8), budgets)
}

pub fn bench_of(policy: Policy, budgets: &[Budget]) -> Bench {
    let mut bench = Bench::new(policy, budgets.len() as u32);
    for (id, budget) in (1..).zip(budgets) {
        assert_eq!(allow(&mut bench, id, Some(*budget)), []);
    }
    bench
}

pub fn sized(id: u64, prompt: u64, output: u64) -> Request {
    Request {
        prompt: Prompt::Tokens(Tokens(prompt)),
        expected_output: Some(Tokens(output)),
        ..request(id, "f", Band::Default)
    }
}

pub fn send(bench: &mut Bench, request: Request) -> Vec<Said> {
    bench.say(Input::Register(request))
}
