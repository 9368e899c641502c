//! Random policies and inputs from a seed, with small numbers, so that the inputs interact.
#![expect(unreachable_pub, reason = "a module of tests")]

mod policies;
mod rng;

use std::time::Duration;

use penstock_engine::input::{
    Amended, Band, BudgetReset, BudgetRunning, BudgetUsage, ClassKey, EndpointState, PastUsage, Prompt,
    Relisted, Role, RunningUsage, ServerStats, Service, Usage, UsageKind, UsedAt,
};
use penstock_engine::policy::{BudgetPeriod, CostUnit};
use penstock_engine::units::{Decimal, Tokens};
use penstock_engine::{Allowance, EndpointId, Input, Instant, ModelName, Request, RequestId};

pub use self::policies::{PolicyChoices, policy};
pub use self::rng::Rng;

/// Names of models and flows.
pub const NAMES: [&str; 6] = ["", "a", "b", "c", "d", "e"];

/// `Some` in this percentage of calls.
pub fn maybe<T>(rng: &mut Rng, percent: u64, make: impl FnOnce(&mut Rng) -> T) -> Option<T> {
    rng.percent(percent).then(|| make(rng))
}

pub fn band(rng: &mut Rng) -> Band {
    rng.choose(&[Band::Critical, Band::Default, Band::Default, Band::Sheddable, Band::Sheddable])
}

/// A request that arrives at `now`, or up to 40 s earlier.
pub fn request(rng: &mut Rng, id: RequestId, now: Instant) -> Request {
    let arrived = if rng.percent(80) { now } else { now.before(Duration::from_secs(rng.below(40))) };
    let family = rng.choose(&["", "chat", "batch", "unknown"]);
    let class = match rng.below(4) {
        0 => ClassKey::Named(rng.choose(&["0.chat.long", "0.batch", "1.chat", "unknown"]).into()),
        _ => ClassKey::Family(family.into()),
    };
    Request {
        arrived,
        flow: rng.choose(&NAMES).into(),
        band: band(rng),
        class,
        class_set: rng.below(3) as u16,
        model: {
            let target = rng.choose(&["m", "m", "n"]);
            let requested = maybe(rng, 20, |rng| rng.choose(&["m", "n"]));
            ModelName::new(requested.unwrap_or(target), target)
        },
        prompt: Prompt::Tokens(Tokens(1 + rng.below(500))),
        cached: Tokens(rng.below(200)),
        expected_output: Some(Tokens(rng.below(100))),
        max_output: maybe(rng, 50, |rng| Tokens(rng.below(100))),
        sequences: maybe(rng, 20, |rng| rng.below(7)).unwrap_or(1),
        body_bytes: rng.below(2_000),
        strict: maybe(rng, 20, |rng| rng.below(3) as u8).unwrap_or(0),
        head_start: Duration::from_secs(maybe(rng, 20, |rng| rng.below(5)).unwrap_or(0)),
        deadline: maybe(rng, 10, |rng| now.after(Duration::from_secs(rng.below(60)))),
        ttft_target: maybe(rng, 20, |rng| Duration::from_secs(rng.below(20))),
        eligible: maybe(rng, 35, endpoints),
        prefix: rng.choose(&[&[][..], &[], &[], &[1], &[1, 2], &[1, 2, 3], &[4]]).into(),
        ..Request::new(id)
    }
}

fn endpoints(rng: &mut Rng) -> Box<[EndpointId]> {
    let count = rng.below(4);
    (0..count).map(|_| endpoint(rng)).collect()
}

pub fn endpoint(rng: &mut Rng) -> EndpointId {
    EndpointId(1 + rng.below(5) as u32)
}

pub fn state(rng: &mut Rng) -> EndpointState {
    EndpointState {
        ready: rng.percent(70),
        weight: Decimal::from_billionths(u128::from(rng.choose(&[1_u64, 2, 4, 8])) * Decimal::ONE / 4),
        batched_tokens_max: maybe(rng, 50, |rng| 500 + rng.below(1_000)),
        role: Role::Both,
    }
}

/// `input` in a pool that may separate prefill from decoding. `separates`: its policy does.
pub fn with_roles(rng: &mut Rng, input: Option<Input>, separates: bool) -> Option<Input> {
    if !separates {
        return input;
    }
    match input? {
        Input::Endpoint { id, mut state } => {
            state.role = role(rng);
            Some(Input::Endpoint { id, state })
        }
        Input::Relist(mut relisted) => {
            for (_, state) in &mut relisted.listed {
                state.role = role(rng);
            }
            Some(Input::Relist(relisted))
        }
        Input::Policy(mut policy) => {
            policy.min_uncached_tokens = maybe(rng, 80, |rng| rng.choose(&[0, 1, 50, 200]));
            Some(Input::Policy(policy))
        }
        Input::Continue(id) if rng.percent(50) => Some(Input::Prefills { id, endpoint: endpoint(rng) }),
        other => Some(other),
    }
}

fn role(rng: &mut Rng) -> Role {
    rng.choose(&[Role::Both, Role::Prefill, Role::Prefill, Role::Decode, Role::Decode])
}

/// An allowance of numbers that floats represent exactly, so that their sums don't depend on the order of addition.
pub fn allowance(rng: &mut Rng) -> Allowance {
    let often_infinite = |rng: &mut Rng, values: &[f64]| {
        if rng.percent(40) { f64::INFINITY } else { rng.choose(values) }
    };
    Allowance {
        alpha_ms: rng.choose(&[1.0, 8.0]),
        beta_ms: rng.choose(&[0.0, 0.25, 1.0]),
        gamma_ms: rng.choose(&[0.0, 0.015625, 0.125]),
        iteration_ms_max: often_infinite(rng, &[8.0, 20.0, 64.0, 200.0]),
        first_token_ms_max: often_infinite(rng, &[16.0, 64.0, 256.0]),
        ttft_bias: rng.choose(&[1.0, 1.5, 8.0]),
        kv_tokens_max: maybe(rng, 40, |rng| rng.choose(&[300, 800, 2_000])),
        requests_max: maybe(rng, 40, |rng| 1 + rng.below(6)),
        sequences_max: maybe(rng, 40, |rng| 1 + rng.below(8)),
        typical: 1 + rng.below(8),
        rate: maybe(rng, 60, |rng| rng.choose(&[0.125, 0.5, 4.0])),
    }
}

pub fn service(rng: &mut Rng) -> Service {
    if rng.percent(25) {
        return Service::Nothing;
    }
    let tokens = |rng: &mut Rng| maybe(rng, 70, |rng| Tokens(rng.below(600)));
    Service::Served(Usage { prompt: tokens(rng), cached: tokens(rng), output: tokens(rng) })
}

/// The next input; `None`: only time passes. `id` chooses the request that the input names: a new one (`true`) or
/// any.
pub fn input(
    rng: &mut Rng,
    now: Instant,
    choices: &PolicyChoices,
    mut id: impl FnMut(&mut Rng, bool) -> RequestId,
) -> Option<Input> {
    let roll = rng.below(340);
    request_input(rng, roll, now, &mut id).or_else(|| pool_input(rng, roll, now, choices, &mut id))
}

/// An input that names one request, if `roll` selects one.
fn request_input(
    rng: &mut Rng,
    roll: u64,
    now: Instant,
    id: &mut dyn FnMut(&mut Rng, bool) -> RequestId,
) -> Option<Input> {
    Some(match roll {
        0..66 => {
            let id = id(rng, true);
            Input::Register(request(rng, id, now))
        }
        66..100 => Input::Completed { id: id(rng, false), service: service(rng) },
        100..110 => Input::Left { id: id(rng, false), service: service(rng) },
        110..118 => Input::Settle { id: id(rng, false), service: service(rng) },
        118..128 => Input::Cancel(id(rng, false)),
        128..131 => Input::ModelRemoved(id(rng, false)),
        131..139 => Input::Requeue(id(rng, false)),
        139..147 => Input::Sent { id: id(rng, false), endpoint: endpoint(rng) },
        162..166 => {
            let id = id(rng, true);
            Input::Resume(request(rng, id, now))
        }
        166..170 => {
            let id = id(rng, true);
            Input::Adopt { request: request(rng, id, now), endpoint: endpoint(rng) }
        }
        195..207 => Input::Failed { id: id(rng, false), endpoint: endpoint(rng) },
        207..219 => Input::Suspend(id(rng, false)),
        219..231 => Input::Continue(id(rng, false)),
        275..287 => Input::FirstToken(id(rng, false)),
        287..299 => Input::PushedBack { id: id(rng, false), endpoint: endpoint(rng) },
        247..257 => {
            let id = id(rng, false);
            Input::Amend(amended(rng, id))
        }
        299..302 => {
            let id = id(rng, true);
            let endpoint = endpoint(rng);
            Input::AdmittedByCredit {
                request: request(rng, id, now),
                place: maybe(rng, 70, |rng| if rng.percent(80) { endpoint } else { self::endpoint(rng) }),
                endpoint,
            }
        }
        _ => return None,
    })
}

/// An input about endpoints or the whole pool, if `roll` selects one.
fn pool_input(
    rng: &mut Rng,
    roll: u64,
    now: Instant,
    choices: &PolicyChoices,
    id: &mut dyn FnMut(&mut Rng, bool) -> RequestId,
) -> Option<Input> {
    Some(match roll {
        147..159 => Input::Endpoint { id: endpoint(rng), state: state(rng) },
        159..162 => Input::EndpointRemoved(endpoint(rng)),
        170..173 => Input::Policy(Box::new(policy(rng, choices))),
        173 => Input::Drain(rng.percent(50)),
        174..176 => Input::Drain(false),
        176..178 => Input::Ready,
        178 => maybe(rng, 30, |_| Input::Hold).unwrap_or(Input::Ready),
        179..190 => Input::Dispatch {
            blocked: maybe(rng, 50, |rng| rng.choose(&["0.chat.long", "0.batch", "1.chat"]).into())
                .into_iter()
                .collect(),
        },
        302..312 => Input::GiveCredit { endpoint: endpoint(rng), requests: 1 + rng.below(3) },
        312..320 => Input::TakeBack { endpoint: endpoint(rng), requests: rng.below(6) },
        320..340 => return budget_input(rng, roll, now),
        194 => Input::Restarted(endpoint(rng)),
        190..194 => Input::Load { id: endpoint(rng), running: maybe(rng, 70, |rng| rng.below(6)) },
        231..247 => Input::Allowance { id: endpoint(rng), allowance: maybe(rng, 80, allowance) },
        257..265 => Input::ServerStats {
            id: endpoint(rng),
            stats: ServerStats {
                waiting: maybe(rng, 40, |rng| rng.below(4)),
                kv_used: maybe(rng, 40, |rng| rng.below(5) as f64 / 4.0),
                generated: maybe(rng, 30, |rng| rng.below(2)),
                adapters: maybe(rng, 30, |rng| maybe(rng, 50, |_| "n".into()).into_iter().collect()),
                asked_ago: Duration::from_millis(rng.choose(&[0, 0, 10, 2_000])),
            },
        },
        265..269 => {
            let mut changes = Vec::new();
            for _ in 0..rng.below(4) {
                let id = id(rng, false);
                changes.push(amended(rng, id));
            }
            let listed = endpoints(rng).iter().map(|id| (*id, state(rng))).collect();
            Input::Relist(Box::new(Relisted { removed: endpoints(rng).into_vec(), listed, amended: changes }))
        }
        269..275 => {
            let count = 1 + rng.below(3);
            let settled = (0..count).map(|_| past_usage(rng)).collect();
            if rng.percent(50) {
                Input::PastUsage(settled)
            } else {
                let running = (0..count).map(|_| running_usage(rng)).collect();
                Input::SharedUsage { settled, running }
            }
        }
        _ => return None,
    })
}

/// An input about budgets.
fn budget_input(rng: &mut Rng, roll: u64, now: Instant) -> Option<Input> {
    let flow: Box<str> = rng.choose(&NAMES).into();
    Some(match roll {
        320..324 => Input::TopUp { flow, tokens: Tokens(1 + rng.below(800)) },
        324..326 => Input::ResetBudget(flow),
        326 => Input::BudgetResets(vec![match rng.below(4) {
            0 => BudgetReset::Here { flow, number: rng.below(4) },
            number => BudgetReset::Elsewhere { flow, number },
        }]),
        327..331 => Input::Utc(utc(rng, now)),
        _ => Input::BudgetUsage {
            settled: (0..rng.below(3)).map(|_| budget_usage(rng)).collect(),
            running: (0..rng.below(3)).map(|_| budget_running(rng)).collect(),
        },
    })
}

/// Mostly a clock that runs with the engine's time, near the end of a month.
fn utc(rng: &mut Rng, now: Instant) -> Duration {
    // The worlds start 1,000 s after the engine's origin: on 29 February 2024, at 23:40.
    let right = Duration::from_secs(1_709_249_000) + Duration::from_nanos(now.as_nanos());
    match rng.below(6) {
        0 => right + Duration::from_secs(rng.below(40 * 86_400)),
        1 => right - Duration::from_secs(rng.below(40 * 86_400)),
        2 => right - Duration::from_secs(rng.below(4_000)),
        _ => right,
    }
}

fn budget_usage(rng: &mut Rng) -> BudgetUsage {
    let sliding = |seconds| BudgetPeriod::Sliding(Duration::from_secs(seconds));
    let (period, used_at) = match rng.below(5) {
        0..3 => (sliding(rng.choose(&[1, 10, 90])), UsedAt::Ago(Duration::from_millis(rng.below(12_000)))),
        3 => (BudgetPeriod::Day, UsedAt::Since(1_709_164_800)),
        _ => (BudgetPeriod::Month, UsedAt::Debt),
    };
    BudgetUsage {
        flow: rng.choose(&NAMES).into(),
        unit: rng.choose(&[CostUnit::Tokens, CostUnit::Requests]),
        period,
        kind: rng.choose(&[UsageKind::Used, UsageKind::Used, UsageKind::ToppedUp]),
        used_at,
        amount: rng.below(300),
    }
}

fn budget_running(rng: &mut Rng) -> BudgetRunning {
    let none = rng.percent(40);
    BudgetRunning {
        flow: rng.choose(&NAMES).into(),
        tokens: Tokens(if none { 0 } else { rng.below(2_000) }),
        requests: if none { 0 } else { rng.below(8) },
    }
}

fn amended(rng: &mut Rng, id: RequestId) -> Amended {
    Amended { id, class_set: rng.below(3) as u16, eligible: maybe(rng, 60, endpoints) }
}

fn running_usage(rng: &mut Rng) -> RunningUsage {
    let past = past_usage(rng);
    RunningUsage {
        band: past.band,
        class: past.class,
        flow: past.flow,
        model: past.model,
        running: if rng.percent(40) { Tokens(0) } else { past.cost },
    }
}

fn past_usage(rng: &mut Rng) -> PastUsage {
    PastUsage {
        band: band(rng),
        class: rng.choose(&["", "0.chat.long", "0.batch", "1.chat", "unknown"]).into(),
        flow: rng.choose(&NAMES).into(),
        model: rng.choose(&["m", "n"]).into(),
        cost: Tokens(rng.below(500)),
        ago: Duration::from_millis(rng.below(2_000) * rng.choose(&[0, 1, 20, 2_000])),
    }
}

/// The time of the next step. The clock may jump, also backwards.
pub fn next_time(rng: &mut Rng, now: Instant) -> Instant {
    let millis = match rng.below(24) {
        0 => rng.below(20_000) as i64,
        1 => -(rng.below(5_000) as i64),
        2 => rng.below(400_000) as i64,
        3..10 => 0,
        _ => rng.below(200) as i64,
    };
    Instant::from_nanos(now.as_nanos().saturating_add_signed(millis * 1_000_000))
}
