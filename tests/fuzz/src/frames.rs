//! Frames of either side out of dice: mostly such as a peer might send, always such as it could.

use penstock_wire as wire;
use wire::command::Kind;
use wire::filter_frame::Event as Said;

use super::dice::Dice;

/// Addresses: of endpoints, and of none.
pub const ADDRESSES: [&str; 7] = [
    "127.0.0.1:8001",
    "127.0.0.1:8002",
    "127.0.0.1:8003",
    "[::1]:8003",
    "10.0.0.1:80",
    "penstock",
    "",
];
/// Pools: that there are, and that there aren't.
pub const POOLS: [&str; 4] = ["chat", "rest", "other", ""];
/// Models of every pool.
pub const MODELS: [&str; 5] = ["m", "m-large", "bulk-1", "other", ""];
const NAMES: [&str; 6] = ["", "acme", "beta", "a-short", "a-long", "anyone"];
const PRIORITIES: [&str; 6] = ["", "critical", "Default", "sheddable", " HIGH ", "gold"];
const OUTCOMES: [&str; 4] = ["dispatched", "bypassed", "rejected_invalid", ""];
const CODES: [&str; 4] = ["queue_timeout", "gateway_unavailable", "internal", ""];

/// What a filter says.
pub fn said(dice: &mut Dice<'_>) -> Said {
    match dice.below(16) {
        0..=5 => Said::Register(register(dice)),
        6 | 7 => Said::Cancel(wire::Cancel {
            sequence: dice.number(),
        }),
        8 | 9 => Said::Started(wire::Started {
            sequence: dice.number(),
            endpoint: dice.name(&ADDRESSES),
            status: dice.small_number(),
            attempts: dice.small_number(),
            after_us: dice.number(),
        }),
        10 | 11 => Said::Completed(completed(dice)),
        12 => Said::Refused(wire::Refused {
            sequence: dice.number(),
            code: dice.name(&CODES),
            outcome: dice.name(&OUTCOMES),
            status: dice.small_number(),
            model: dice.name(&MODELS),
            request_id: dice.name(&NAMES),
            registered: dice.one_in(2),
        }),
        13 => Said::Hello(hello(dice)),
        14 => Said::Heartbeat(wire::Heartbeat {}),
        _ => Said::Bye(wire::Bye {}),
    }
}

/// A part of a Hello.
pub fn hello(dice: &mut Dice<'_>) -> wire::Hello {
    let mut hello = wire::Hello {
        epoch_hi: 1,
        epoch_lo: u64::from(dice.below(3)),
        stream: u32::from(dice.below(6)),
        version_min: 1,
        version_max: wire::limits::VERSION_MAX,
        policy_digest: dice.name(&NAMES),
        node: dice.name(&NAMES),
        part: 0,
        last: true,
        envoy: u64::from(dice.below(3)),
        ..wire::Hello::default()
    };
    if dice.one_in(8) {
        hello.version_min = dice.small_number();
        hello.version_max = dice.small_number();
        hello.part = dice.small_number();
        hello.last = dice.one_in(2);
    }
    for _ in 0..dice.below(6) {
        let register = register(dice);
        if dice.one_in(2) {
            hello.waiting.push(register);
        } else {
            hello.running.push(running(dice, register));
        }
    }
    hello
}

fn running(dice: &mut Dice<'_>, register: wire::Register) -> wire::Running {
    wire::Running {
        register: (!dice.one_in(16)).then_some(register),
        pool: dice.name(&POOLS),
        endpoint: dice.name(&ADDRESSES),
        age_us: dice.number(),
        started: dice.one_in(2),
    }
}

/// A request as its filter describes it.
pub fn register(dice: &mut Dice<'_>) -> wire::Register {
    let mut register = wire::Register {
        sequence: dice.number(),
        model: dice.name(&MODELS),
        fairness_id: dice.name(&NAMES),
        priority: dice.name(&PRIORITIES),
        prompt_bytes: dice.number(),
        body_bytes: dice.number(),
        ..wire::Register::default()
    };
    if dice.one_in(2) {
        return register;
    }
    register.age_us = dice.number();
    register.request_id = dice.name(&NAMES);
    register.api = i32::from(dice.below(7));
    register.max_tokens = dice.maybe();
    register.stream = dice.one_in(2);
    register.fairness_id_private = dice.one_in(2);
    register.user = dice.name(&NAMES);
    register.class = dice.name(&NAMES);
    register.strict = dice.maybe().map(|_| dice.small_number());
    register.jump_s = dice.maybe().map(|_| dice.small_number());
    register.client = dice.name(&["10.0.0.1", "::1", ""]);
    register.subset = list(dice);
    register.pin = dice.name(&ADDRESSES);
    register.tolerations = list(dice);
    register.deadline_ms = dice.maybe();
    register.slo_ttft_ms = dice.maybe();
    register.requeues = dice.small_number();
    register.untrusted = dice.one_in(2);
    register.requeued_from = dice.one_in(2).then(|| wire::RequestKey {
        epoch_hi: 1,
        epoch_lo: u64::from(dice.below(3)),
        sequence: dice.number(),
    });
    register.bad_deadline = dice.one_in(2);
    register.bad_slo_ttft = dice.one_in(2);
    register
}

fn completed(dice: &mut Dice<'_>) -> wire::Completed {
    wire::Completed {
        sequence: dice.number(),
        endpoint: dice.name(&ADDRESSES),
        status: dice.small_number(),
        attempts: dice.small_number(),
        end: i32::from(dice.below(8)),
        first_byte_us: dice.maybe(),
        last_byte_us: dice.maybe(),
        prompt_tokens: dice.maybe(),
        cached_tokens: dice.maybe(),
        output_tokens: dice.maybe(),
        output_chunks: dice.number(),
    }
}

fn list(dice: &mut Dice<'_>) -> Vec<String> {
    (0..dice.below(4)).map(|_| dice.name(&ADDRESSES)).collect()
}

/// A command of a companion; `policy` is the one in force, for one that changes it.
pub fn command(dice: &mut Dice<'_>, policies: &[wire::Policy]) -> Kind {
    match dice.below(16) {
        0..=6 => Kind::Grant(wire::Grant {
            sequence: dice.number(),
            pool: dice.name(&POOLS),
            endpoints: list(dice),
            outcome: dice.name(&OUTCOMES),
            queue_us: dice.number(),
            saturation_milli: dice.small_number(),
            target_model: dice.name(&MODELS),
            requeue: dice.one_in(2),
        }),
        7..=9 => Kind::Reject(wire::Reject {
            sequence: dice.number(),
            status: 400 + u32::from(dice.byte()),
            code: dice.name(&CODES),
            outcome: dice.name(&OUTCOMES),
            message: dice.name(&NAMES),
            retry_after_ms: dice.maybe(),
            r#final: dice.one_in(2),
            queue_us: dice.number(),
            saturation_milli: dice.small_number(),
        }),
        10 | 11 => Kind::Endpoints(wire::Endpoints {
            pool: dice.name(&POOLS),
            ready: list(dice),
            fallback_bound: dice.maybe(),
        }),
        12 => Kind::Policy(policies[usize::from(dice.byte()) % policies.len()].clone()),
        13 | 14 => Kind::HelloAck(wire::HelloAck {
            version: if dice.one_in(8) { dice.small_number() } else { 1 },
            term: dice.number(),
        }),
        _ => Kind::Bye(wire::Bye {}),
    }
}
