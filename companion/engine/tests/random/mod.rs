//! Random policies and inputs from a seed, for tests that run them: small numbers, so that everything meets.
#![expect(unreachable_pub, reason = "a module of tests")]

mod dice;
mod policies;

use std::time::Duration;

use penstock_engine::input::{
    Amended, Band, ClassKey, EndpointState, PastUsage, Prompt, Relisted, ServerStats, Service, Usage,
};
use penstock_engine::units::{Decimal, Tokens};
use penstock_engine::{Budget, EndpointId, Input, Instant, Request, RequestId};

pub use dice::Dice;
pub use policies::{Worlds, policy};

/// Models and flows that there are.
pub const NAMES: [&str; 6] = ["", "a", "b", "c", "d", "e"];

/// `Some` so often of a hundred.
pub fn maybe<T>(dice: &mut Dice, percent: u64, make: impl FnOnce(&mut Dice) -> T) -> Option<T> {
    dice.percent(percent).then(|| make(dice))
}

pub fn band(dice: &mut Dice) -> Band {
    dice.one(&[
        Band::Critical,
        Band::Default,
        Band::Default,
        Band::Sheddable,
        Band::Sheddable,
    ])
}

/// One that arrives at `now`, or a little before.
pub fn request(dice: &mut Dice, id: RequestId, now: Instant) -> Request {
    let arrived = if dice.percent(80) {
        now
    } else {
        now.before(Duration::from_secs(dice.below(40)))
    };
    let family = dice.one(&["", "chat", "batch", "nobody's"]);
    let class = match dice.below(4) {
        0 => ClassKey::Named(dice.one(&["0.chat.long", "0.batch", "1.chat", "nobody's"]).into()),
        _ => ClassKey::Family(family.into()),
    };
    Request {
        arrived,
        flow: dice.one(&NAMES).into(),
        band: band(dice),
        class,
        class_set: dice.below(3) as u16,
        model: dice.one(&["m", "m", "n"]).into(),
        requested_model: maybe(dice, 20, |dice| dice.one(&["m", "n"]).into()).unwrap_or_default(),
        prompt: Prompt::Tokens(Tokens(1 + dice.below(500))),
        cached: Tokens(dice.below(200)),
        expected_output: Some(Tokens(dice.below(100))),
        max_output: maybe(dice, 50, |dice| Tokens(dice.below(100))),
        body_bytes: dice.below(2_000),
        strict: maybe(dice, 20, |dice| dice.below(3) as u8).unwrap_or(0),
        head_start: Duration::from_secs(maybe(dice, 20, |dice| dice.below(5)).unwrap_or(0)),
        deadline: maybe(dice, 10, |dice| now.after(Duration::from_secs(dice.below(60)))),
        ttft_target: maybe(dice, 20, |dice| Duration::from_secs(dice.below(20))),
        eligible: maybe(dice, 35, endpoints),
        prefix: dice
            .one(&[&[][..], &[], &[], &[1], &[1, 2], &[1, 2, 3], &[4]])
            .into(),
        ..Request::new(id)
    }
}

fn endpoints(dice: &mut Dice) -> Box<[EndpointId]> {
    let count = dice.below(4);
    (0..count).map(|_| endpoint(dice)).collect()
}

pub fn endpoint(dice: &mut Dice) -> EndpointId {
    EndpointId(1 + dice.below(5) as u32)
}

pub fn state(dice: &mut Dice) -> EndpointState {
    EndpointState {
        ready: dice.percent(70),
        weight: Decimal::from_billionths(u128::from(dice.one(&[1_u64, 2, 4, 8])) * Decimal::ONE / 4),
        batched_tokens_max: maybe(dice, 50, |dice| 500 + dice.below(1_000)),
    }
}

/// Of numbers that floats hold exactly, so that whoever adds them up in another order finds the same.
pub fn budget(dice: &mut Dice) -> Budget {
    let often_endless = |dice: &mut Dice, of: &[f64]| {
        if dice.percent(40) {
            f64::INFINITY
        } else {
            dice.one(of)
        }
    };
    Budget {
        alpha_ms: dice.one(&[1.0, 8.0]),
        beta_ms: dice.one(&[0.0, 0.25, 1.0]),
        gamma_ms: dice.one(&[0.0, 0.015625, 0.125]),
        iteration_ms_max: often_endless(dice, &[8.0, 20.0, 64.0, 200.0]),
        first_token_ms_max: often_endless(dice, &[16.0, 64.0, 256.0]),
        ttft_bias: dice.one(&[1.0, 1.5, 8.0]),
        kv_tokens_max: maybe(dice, 40, |dice| dice.one(&[300, 800, 2_000])),
        requests_max: maybe(dice, 40, |dice| 1 + dice.below(6)),
        typical: 1 + dice.below(8),
        rate: maybe(dice, 60, |dice| dice.one(&[0.125, 0.5, 4.0])),
    }
}

pub fn service(dice: &mut Dice) -> Service {
    if dice.percent(25) {
        return Service::Nothing;
    }
    let tokens = |dice: &mut Dice| maybe(dice, 70, |dice| Tokens(dice.below(600)));
    Service::Served(Usage {
        prompt: tokens(dice),
        cached: tokens(dice),
        output: tokens(dice),
    })
}

/// What happens next; `None`: nothing but time. `id` says whom it concerns: a new one (`true`), or any.
pub fn input(
    dice: &mut Dice,
    now: Instant,
    worlds: &Worlds,
    mut id: impl FnMut(&mut Dice, bool) -> RequestId,
) -> Option<Input> {
    Some(match dice.below(280) {
        0..66 => {
            let id = id(dice, true);
            Input::Register(request(dice, id, now))
        }
        66..110 => Input::Completed {
            id: id(dice, false),
            service: service(dice),
        },
        110..118 => Input::Settle {
            id: id(dice, false),
            service: service(dice),
        },
        118..128 => Input::Cancel(id(dice, false)),
        128..131 => Input::ModelRemoved(id(dice, false)),
        131..139 => Input::Requeue(id(dice, false)),
        139..147 => Input::Sent {
            id: id(dice, false),
            endpoint: endpoint(dice),
        },
        147..159 => Input::Endpoint {
            id: endpoint(dice),
            state: state(dice),
        },
        159..162 => Input::EndpointRemoved(endpoint(dice)),
        162..166 => {
            let id = id(dice, true);
            Input::Resume(request(dice, id, now))
        }
        166..170 => {
            let id = id(dice, true);
            Input::Adopt {
                request: request(dice, id, now),
                endpoint: endpoint(dice),
            }
        }
        170..173 => Input::Policy(Box::new(policy(dice, worlds))),
        173 => Input::Drain(dice.percent(50)),
        174..176 => Input::Drain(false),
        176..179 => Input::Ready,
        179..190 => Input::Dispatch {
            blocked: maybe(dice, 50, |dice| {
                dice.one(&["0.chat.long", "0.batch", "1.chat"]).into()
            })
            .into_iter()
            .collect(),
        },
        190..195 => Input::Load {
            id: endpoint(dice),
            running: maybe(dice, 70, |dice| dice.below(6)),
        },
        195..207 => Input::Failed {
            id: id(dice, false),
            endpoint: endpoint(dice),
        },
        207..219 => Input::Suspend(id(dice, false)),
        219..231 => Input::Continue(id(dice, false)),
        231..247 => Input::Budget {
            id: endpoint(dice),
            budget: maybe(dice, 80, budget),
        },
        247..257 => Input::Amend(Amended {
            id: id(dice, false),
            class_set: dice.below(3) as u16,
            eligible: maybe(dice, 60, endpoints),
        }),
        257..265 => Input::ServerStats {
            id: endpoint(dice),
            stats: ServerStats {
                waiting: maybe(dice, 40, |dice| dice.below(4)),
                kv_used: maybe(dice, 40, |dice| dice.below(5) as f64 / 4.0),
                adapters: maybe(dice, 30, |dice| {
                    maybe(dice, 50, |_| "n".into()).into_iter().collect()
                }),
            },
        },
        265..269 => {
            let mut amended = Vec::new();
            for _ in 0..dice.below(4) {
                amended.push(Amended {
                    id: id(dice, false),
                    class_set: dice.below(3) as u16,
                    eligible: maybe(dice, 60, endpoints),
                });
            }
            let listed = endpoints(dice).iter().map(|id| (*id, state(dice))).collect();
            Input::Relist(Box::new(Relisted {
                removed: endpoints(dice).into_vec(),
                listed,
                amended,
            }))
        }
        269..275 => {
            let count = 1 + dice.below(3);
            Input::PastUsage((0..count).map(|_| past_use(dice)).collect())
        }
        _ => return None,
    })
}

fn past_use(dice: &mut Dice) -> PastUsage {
    PastUsage {
        band: band(dice),
        class: dice
            .one(&["", "0.chat.long", "0.batch", "1.chat", "nobody's"])
            .into(),
        flow: dice.one(&NAMES).into(),
        model: dice.one(&["m", "n"]).into(),
        cost: Tokens(dice.below(500)),
        ago: Duration::from_millis(dice.below(2_000) * dice.one(&[0, 1, 20, 2_000])),
    }
}

/// To the next step; clocks may jump, back too.
pub fn later(dice: &mut Dice, now: Instant) -> Instant {
    let millis = match dice.below(24) {
        0 => dice.below(20_000) as i64,
        1 => -(dice.below(5_000) as i64),
        2 => dice.below(400_000) as i64,
        3..10 => 0,
        _ => dice.below(200) as i64,
    };
    Instant::from_nanos(now.as_nanos().saturating_add_signed(millis * 1_000_000))
}
