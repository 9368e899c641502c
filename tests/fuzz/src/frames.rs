//! Random frames of filter and companion: usually plausible ones, always valid ones.

use penstock_wire as wire;
use wire::command::Kind;
use wire::filter_frame::Event;

use super::choices::Choices;

/// Addresses, of endpoints and unknown ones.
pub const ADDRESSES: [&str; 7] =
    ["127.0.0.1:8001", "127.0.0.1:8002", "127.0.0.1:8003", "[::1]:8003", "10.0.0.1:80", "penstock", ""];
/// Pools, existing and unknown ones.
pub const POOLS: [&str; 4] = ["chat", "rest", "other", ""];
/// Models, of the pools and unknown ones.
pub const MODELS: [&str; 5] = ["m", "m-large", "bulk-1", "other", ""];
const NAMES: [&str; 6] = ["", "acme", "beta", "a-short", "a-long", "anyone"];
const PRIORITIES: [&str; 6] = ["", "critical", "Default", "sheddable", " HIGH ", "gold"];
const OUTCOMES: [&str; 4] = ["dispatched", "bypassed", "rejected_invalid", ""];
const CODES: [&str; 4] = ["queue_timeout", "gateway_unavailable", "internal", ""];

/// An event of a filter.
pub fn event(choices: &mut Choices<'_>) -> Event {
    match choices.below(16) {
        0..=5 => Event::Register(register(choices)),
        6 | 7 => Event::Cancel(wire::Cancel { sequence: choices.number() }),
        8 | 9 => Event::Started(wire::Started {
            sequence: choices.number(),
            endpoint: choices.name(&ADDRESSES),
            status: choices.small_number(),
            attempts: choices.small_number(),
            after_us: choices.number(),
            first_token: choices.one_in(2),
        }),
        10 | 11 => Event::Completed(completed(choices)),
        12 => Event::Refused(wire::Refused {
            sequence: choices.number(),
            code: choices.name(&CODES),
            outcome: choices.name(&OUTCOMES),
            status: choices.small_number(),
            model: choices.name(&MODELS),
            request_id: choices.name(&NAMES),
            registered: choices.one_in(2),
            requeued_from: choices.one_in(4).then(|| request_key(choices)),
            requeues: choices.small_number(),
        }),
        13 => Event::Hello(hello(choices)),
        14 => Event::Heartbeat(wire::Heartbeat { alive: list(choices) }),
        _ => Event::Bye(wire::Bye {}),
    }
}

/// Reports of requests that a filter admitted by credit: usually none.
pub fn reports(choices: &mut Choices<'_>) -> Vec<wire::Admitted> {
    let count = choices.below(8).saturating_sub(5);
    (0..count)
        .map(|_| wire::Admitted {
            running: (!choices.one_in(8)).then(|| {
                let register = register(choices);
                running(choices, register)
            }),
            credit: choices.number(),
            completed: choices.one_in(2).then(|| completed(choices)),
        })
        .collect()
}

/// A part of a `Hello`.
pub fn hello(choices: &mut Choices<'_>) -> wire::Hello {
    let mut hello = wire::Hello {
        epoch_hi: 1,
        epoch_lo: u64::from(choices.below(3)),
        stream: u32::from(choices.below(6)),
        version_min: 1,
        version_max: wire::limits::VERSION_MAX,
        policy_digest: choices.name(&NAMES),
        node: choices.name(&NAMES),
        part: 0,
        last: true,
        envoy: u64::from(choices.below(3)),
        ..wire::Hello::default()
    };
    if choices.one_in(8) {
        hello.version_min = choices.small_number();
        hello.version_max = choices.small_number();
        hello.part = choices.small_number();
        hello.last = choices.one_in(2);
    }
    for _ in 0..choices.below(6) {
        let register = register(choices);
        if choices.one_in(2) {
            hello.waiting.push(register);
        } else {
            hello.running.push(running(choices, register));
        }
    }
    hello
}

fn running(choices: &mut Choices<'_>, register: wire::Register) -> wire::Running {
    wire::Running {
        register: (!choices.one_in(16)).then_some(register),
        pool: choices.name(&POOLS),
        endpoint: choices.name(&ADDRESSES),
        age_us: choices.number(),
        started: choices.one_in(2),
        first_token: choices.one_in(2),
        prefill_endpoint: choices.name(&ADDRESSES),
    }
}

/// A `Register` message.
pub fn register(choices: &mut Choices<'_>) -> wire::Register {
    let mut register = wire::Register {
        sequence: choices.number(),
        model: choices.name(&MODELS),
        fairness_id: choices.name(&NAMES),
        priority: choices.name(&PRIORITIES),
        prompt_bytes: choices.number(),
        body_bytes: choices.number(),
        ..wire::Register::default()
    };
    if choices.one_in(2) {
        return register;
    }
    register.age_us = choices.number();
    register.request_id = choices.name(&NAMES);
    register.api = i32::from(choices.below(7));
    register.max_tokens = choices.maybe();
    register.stream = choices.one_in(2);
    register.fairness_id_private = choices.one_in(2);
    register.user = choices.name(&NAMES);
    register.class = choices.name(&NAMES);
    register.strict = choices.maybe().map(|_| choices.small_number());
    register.jump_s = choices.maybe().map(|_| choices.small_number());
    register.client = choices.name(&["10.0.0.1", "::1", ""]);
    register.subset = list(choices);
    register.pin = choices.name(&ADDRESSES);
    register.tolerations = list(choices);
    register.deadline_ms = choices.maybe();
    register.slo_ttft_ms = choices.maybe();
    register.requeues = choices.small_number();
    register.untrusted = choices.one_in(2);
    register.requeued_from = choices.one_in(2).then(|| request_key(choices));
    register.bad_deadline = choices.one_in(2);
    register.bad_slo_ttft = choices.one_in(2);
    register.tenant_verified = choices.one_in(2);
    register
}

fn request_key(choices: &mut Choices<'_>) -> wire::RequestKey {
    wire::RequestKey { epoch_hi: 1, epoch_lo: u64::from(choices.below(3)), sequence: choices.number() }
}

fn completed(choices: &mut Choices<'_>) -> wire::Completed {
    wire::Completed {
        sequence: choices.number(),
        endpoint: choices.name(&ADDRESSES),
        status: choices.small_number(),
        attempts: choices.small_number(),
        end: i32::from(choices.below(11)),
        first_token_us: choices.maybe(),
        last_byte_us: choices.maybe(),
        prompt_tokens: choices.maybe(),
        cached_tokens: choices.maybe(),
        output_tokens: choices.maybe(),
        output_chunks: choices.number(),
        text_bytes: choices.maybe(),
        body_bytes: choices.number(),
        ended_us: choices.number(),
    }
}

fn list(choices: &mut Choices<'_>) -> Vec<String> {
    (0..choices.below(4)).map(|_| choices.name(&ADDRESSES)).collect()
}

fn rate_limit(choices: &mut Choices<'_>) -> wire::RateLimit {
    wire::RateLimit {
        unit: i32::from(choices.byte() % 4),
        limit: choices.number(),
        remaining: choices.number(),
        reset_ms: choices.number(),
    }
}

/// A command of a companion; `policies` are the ones that a policy command chooses from.
pub fn command(choices: &mut Choices<'_>, policies: &[wire::Policy]) -> Kind {
    match choices.below(16) {
        0..=6 => Kind::Grant(wire::Grant {
            sequence: choices.number(),
            pool: choices.name(&POOLS),
            endpoints: list(choices),
            outcome: choices.name(&OUTCOMES),
            queue_us: choices.number(),
            saturation_milli: choices.small_number(),
            target_model: choices.name(&MODELS),
            requeue: choices.one_in(2),
            rate_limit: choices.one_in(4).then(|| rate_limit(choices)),
            final_status: choices.one_in(4),
            retry_not_found: choices.one_in(4),
            prefill_endpoint: choices.name(&ADDRESSES),
        }),
        7..=9 => Kind::Reject(wire::Reject {
            sequence: choices.number(),
            status: 400 + u32::from(choices.byte()),
            code: choices.name(&CODES),
            outcome: choices.name(&OUTCOMES),
            message: choices.name(&NAMES),
            retry_after_ms: choices.maybe(),
            r#final: choices.one_in(2),
            queue_us: choices.number(),
            saturation_milli: choices.small_number(),
            rate_limit: choices.one_in(4).then(|| rate_limit(choices)),
        }),
        10 | 11 => Kind::Endpoints(wire::Endpoints {
            keep_ready: choices.one_in(4),
            pool: choices.name(&POOLS),
            ready: list(choices),
            fallback_bound: choices.maybe(),
        }),
        12 => Kind::Policy(policies[usize::from(choices.byte()) % policies.len()].clone()),
        13 | 14 => Kind::HelloAck(wire::HelloAck {
            version: if choices.one_in(8) { choices.small_number() } else { 1 },
            term: choices.number(),
        }),
        _ => Kind::Bye(wire::Bye {}),
    }
}
