//! Helpers that the engine's tests share: short constructors, and an engine that is audited after every step.
#![expect(unreachable_pub, reason = "a module of tests")]

pub mod allowances;

use std::time::Duration;

use penstock_engine::effect::{Evict, Grant, Reject};
use penstock_engine::input::{Band, EndpointState, Prompt, Service, Usage};
use penstock_engine::policy::{CostUnit, Flows, Gate, StockUnit};
use penstock_engine::units::{Decimal, Tokens};
use penstock_engine::{Effect, EndpointId, Engine, Input, Instant, Outcome, Policy, Request, RequestId};

pub const SECOND: u64 = 1_000_000_000;

pub fn time(seconds: f64) -> Instant {
    Instant::from_nanos((seconds * 1e9) as u64)
}

/// The default policy, except that costs count requests and the gate has two requests per endpoint.
pub fn policy() -> Policy {
    Policy {
        gate: gate(2, 2),
        flows: Flows { cost: CostUnit::Requests, ..Flows::default() },
        ..Policy::default()
    }
}

/// A gate with these bounds in requests per endpoint.
pub fn gate(lower: u64, upper: u64) -> Gate {
    Gate::Bounded {
        unit: StockUnit::Requests,
        lower: Decimal::whole(lower),
        upper: Decimal::whole(upper),
        watermark: Decimal::whole(upper),
    }
}

pub fn request(id: u64, flow: &str, band: Band) -> Request {
    Request {
        flow: flow.into(),
        band,
        model: "m".into(),
        prompt: Prompt::Tokens(Tokens(100)),
        expected_output: Some(Tokens(50)),
        body_bytes: 1_000,
        ..Request::new(RequestId(id))
    }
}

/// Lists an endpoint, or changes its health.
pub fn endpoint_input(id: u32, ready: bool) -> Input {
    Input::Endpoint { id: EndpointId(id), state: EndpointState { ready, ..EndpointState::default() } }
}

/// `request`, eligible at these endpoints only.
pub fn restricted(mut request: Request, endpoints: &[u32]) -> Request {
    request.eligible = Some(endpoints.iter().copied().map(EndpointId).collect());
    request
}

/// An effect in short form, with its request and the first granted endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShortEffect {
    Bypassed(u64, u32),
    Dispatched(u64, u32),
    Rejected(u64, Outcome),
    Cancelled(u64),
    Settled(u64, u64),
    Evicted(u64),
}

pub fn shorten(effect: &Effect) -> ShortEffect {
    match effect {
        Effect::Grant(Grant { id, endpoints, outcome: Outcome::Bypassed, waited, .. }) => {
            assert_eq!(*waited, Duration::ZERO);
            ShortEffect::Bypassed(id.0, endpoints[0].0)
        }
        Effect::Grant(Grant { id, endpoints, outcome, .. }) => {
            assert_eq!(*outcome, Outcome::Dispatched);
            ShortEffect::Dispatched(id.0, endpoints[0].0)
        }
        Effect::Reject(Reject { id, outcome, retry_after, .. }) => {
            let retry_after = retry_after.expect("a rejection has a retry-after");
            // A budget's is exact.
            let is_capped = *outcome != Outcome::RejectedBudget;
            assert!(!is_capped || (1..=120).contains(&retry_after.as_secs()), "{retry_after:?}");
            ShortEffect::Rejected(id.0, *outcome)
        }
        Effect::Cancelled { id, .. } => ShortEffect::Cancelled(id.0),
        Effect::Traced(_) | Effect::UsageSettled(_) | Effect::UsageRunning(_) | Effect::Budget(_) => {
            unreachable!("tracing and usage reports are off")
        }
        Effect::Settled { id, cost, .. } => ShortEffect::Settled(id.0, cost.0),
        Effect::Evict(Evict { id, retry_after, .. }) => {
            assert!((1..=120).contains(&retry_after.as_secs()), "{retry_after:?}");
            ShortEffect::Evicted(id.0)
        }
    }
}

/// An engine that is audited after every step.
pub struct Harness {
    pub engine: Engine,
    pub now: Instant,
}

impl Harness {
    /// An engine with endpoints 1 to `endpoints`, ready at time 0.
    pub fn new(policy: Policy, endpoints: u32) -> Self {
        let mut harness = Self { engine: Engine::new(policy, 7, Instant::ZERO), now: Instant::ZERO };
        for id in 1..=endpoints {
            harness.endpoint(id, true);
        }
        assert_eq!(harness.handle(Input::Ready), []);
        harness
    }

    pub fn advance_to(&mut self, seconds: f64) -> &mut Self {
        self.now = time(seconds);
        self
    }

    /// All effects of `input`, in full.
    pub fn effects(&mut self, input: Input) -> Vec<Effect> {
        self.engine.handle(self.now, input);
        self.audited_effects()
    }

    pub fn handle(&mut self, input: Input) -> Vec<ShortEffect> {
        self.effects(input).iter().map(shorten).collect()
    }

    pub fn handle_timeout(&mut self) -> Vec<ShortEffect> {
        self.engine.handle_timeout(self.now);
        self.audited_effects().iter().map(shorten).collect()
    }

    pub fn register(&mut self, id: u64, flow: &str, band: Band) -> Vec<ShortEffect> {
        self.handle(Input::Register(request(id, flow, band)))
    }

    pub fn complete(&mut self, id: u64) -> Vec<ShortEffect> {
        self.handle(Input::Completed { id: RequestId(id), service: Service::Served(Usage::default()) })
    }

    pub fn endpoint(&mut self, id: u32, ready: bool) -> Vec<ShortEffect> {
        self.handle(endpoint_input(id, ready))
    }

    fn audited_effects(&mut self) -> Vec<Effect> {
        self.engine.audit().expect("all invariants hold");
        std::iter::from_fn(|| self.engine.poll_effect()).collect()
    }
}

pub fn with_gate(gate: Gate) -> Policy {
    Policy { gate, ..policy() }
}

/// An engine with a changed policy and one endpoint that takes one request at a time; request 1 of flow `other` runs
/// there.
pub fn busy_with(change: impl FnOnce(&mut Policy)) -> Harness {
    let mut policy = policy();
    policy.gate = gate(1, 1);
    change(&mut policy);
    let mut harness = Harness::new(policy, 1);
    assert_eq!(harness.register(1, "other", Band::Default), [ShortEffect::Bypassed(1, 1)]);
    harness
}

/// The bound of each endpoint.
pub fn bounds(harness: &Harness) -> Vec<u64> {
    let endpoints = harness.engine.snapshot().endpoints;
    endpoints.iter().map(|endpoint| endpoint.bound).collect()
}

/// The stock of each endpoint.
pub fn stocks(harness: &Harness) -> Vec<u64> {
    let endpoints = harness.engine.snapshot().endpoints;
    endpoints.iter().map(|endpoint| endpoint.stock).collect()
}
/// An engine with one endpoint that takes one request at a time; request 1 of flow `x` runs there.
pub fn busy() -> Harness {
    let mut policy = policy();
    policy.gate = gate(1, 1);
    let mut harness = Harness::new(policy, 1);
    assert_eq!(harness.register(1, "x", Band::Critical), [ShortEffect::Bypassed(1, 1)]);
    harness
}
