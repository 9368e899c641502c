//! What the engine's tests have in common: short ways to say things, and a check after every step.
#![expect(
    dead_code,
    unreachable_pub,
    reason = "each test binary includes it and uses a part of it"
)]

pub mod budgets;

use std::time::Duration;

use penstock_engine::input::{Band, EndpointState, Prompt, Service, Usage};
use penstock_engine::policy::{CostUnit, Flows, Gate, StockUnit};
use penstock_engine::units::{Decimal, Tokens};
use penstock_engine::{Effect, EndpointId, Engine, Input, Instant, Outcome, Policy, Request, RequestId};

pub const SECOND: u64 = 1_000_000_000;

pub fn at(seconds: f64) -> Instant {
    Instant::from_nanos((seconds * 1e9) as u64)
}

/// The contract's defaults, but costs by request: what a test doesn't say shouldn't matter to it.
pub fn policy() -> Policy {
    Policy {
        gate: gate(2, 2),
        flows: Flows {
            cost: CostUnit::Requests,
            ..Flows::default()
        },
        ..Policy::default()
    }
}

/// Whole requests per endpoint.
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

pub fn only(mut request: Request, endpoints: &[u32]) -> Request {
    request.eligible = Some(endpoints.iter().copied().map(EndpointId).collect());
    request
}

/// What an effect says, short: `e` is the first endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    Bypassed(u64, u32),
    Dispatched(u64, u32),
    Rejected(u64, Outcome),
    Cancelled(u64),
    Settled(u64, u64),
}

pub fn short(effect: &Effect) -> Said {
    match effect {
        Effect::Grant {
            id,
            endpoints,
            outcome: Outcome::Bypassed,
            waited,
            ..
        } => {
            assert_eq!(*waited, Duration::ZERO);
            Said::Bypassed(id.0, endpoints[0].0)
        }
        Effect::Grant {
            id,
            endpoints,
            outcome,
            ..
        } => {
            assert_eq!(*outcome, Outcome::Dispatched);
            Said::Dispatched(id.0, endpoints[0].0)
        }
        Effect::Reject {
            id,
            outcome,
            retry_after,
            ..
        } => {
            let retry_after = retry_after.expect("every refusal of a queue says when to try again");
            assert!((1..=120).contains(&retry_after.as_secs()), "{retry_after:?}");
            Said::Rejected(id.0, *outcome)
        }
        Effect::Cancelled { id, .. } => Said::Cancelled(id.0),
        Effect::Traced { .. } | Effect::UsageSettled { .. } => unreachable!("nobody asked for it"),
        Effect::Settled { id, cost, .. } => Said::Settled(id.0, cost.0),
    }
}

/// An engine that is audited after every step.
pub struct Bench {
    pub engine: Engine,
    pub now: Instant,
}

impl Bench {
    /// With endpoints 1 to `endpoints`, ready at time 0.
    pub fn new(policy: Policy, endpoints: u32) -> Self {
        let mut bench = Self {
            engine: Engine::new(policy, 7, Instant::ZERO),
            now: Instant::ZERO,
        };
        for id in 1..=endpoints {
            bench.endpoint(id, true);
        }
        assert_eq!(bench.say(Input::Ready), []);
        bench
    }

    pub fn at(&mut self, seconds: f64) -> &mut Self {
        self.now = at(seconds);
        self
    }

    /// Every effect of `input`, in full.
    pub fn effects(&mut self, input: Input) -> Vec<Effect> {
        self.engine.handle(self.now, input);
        self.drained()
    }

    pub fn say(&mut self, input: Input) -> Vec<Said> {
        self.effects(input).iter().map(short).collect()
    }

    pub fn wait(&mut self) -> Vec<Said> {
        self.engine.handle_timeout(self.now);
        self.drained().iter().map(short).collect()
    }

    pub fn register(&mut self, id: u64, flow: &str, band: Band) -> Vec<Said> {
        self.say(Input::Register(request(id, flow, band)))
    }

    pub fn complete(&mut self, id: u64) -> Vec<Said> {
        self.say(Input::Completed {
            id: RequestId(id),
            service: Service::Served(Usage::default()),
        })
    }

    pub fn endpoint(&mut self, id: u32, ready: bool) -> Vec<Said> {
        let state = EndpointState {
            ready,
            ..EndpointState::default()
        };
        self.say(Input::Endpoint {
            id: EndpointId(id),
            state,
        })
    }

    fn drained(&mut self) -> Vec<Effect> {
        self.engine.audit().expect("all invariants hold");
        std::iter::from_fn(|| self.engine.poll_effect()).collect()
    }
}

pub fn with_gate(gate: Gate) -> Policy {
    Policy { gate, ..policy() }
}

/// One endpoint that takes one at a time; request 1 of flow `x` runs there.
pub fn busy() -> Bench {
    let mut policy = policy();
    policy.gate = gate(1, 1);
    let mut bench = Bench::new(policy, 1);
    assert_eq!(bench.register(1, "x", Band::Critical), [Said::Bypassed(1, 1)]);
    bench
}
