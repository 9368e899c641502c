//! The one place that knows both the wire's requests and the engine's.

use core::time::Duration;
use std::borrow::Cow;

use penstock_engine::input::{Band, ClassKey, EndpointId, Prompt, Request, Service, Usage};
use penstock_engine::policy::Order;
use penstock_engine::units::Tokens;
use penstock_engine::{Instant, RequestId};
use penstock_wire as wire;
use penstock_wire::limits::{JUMP_S_MAX, LIST_MAX, NAME_BYTES_MAX, PREFIX_HASHES_MAX, STRICT_MAX};

use crate::autopilot::{Granted, Served};
use crate::event::Labels;
use crate::pool::Pool;
use crate::settings::FlowKey;
use crate::status::ANONYMOUS;

/// The engine's view of a registration. Its arrival lies as long ago as the filter says.
///
/// `x-slo-ttft-ms` is a deadline, and orders, where the pool orders by it; elsewhere it says nothing.
pub(crate) fn request(
    id: RequestId,
    now: Instant,
    from: &wire::Register,
    pool: &Pool,
    labels: &Labels,
) -> Request {
    let arrived = now.before(Duration::from_micros(from.age_us));
    let ttft_ms = from.slo_ttft_ms.filter(|_| has_targets(pool));
    let deadline_ms = from.deadline_ms.into_iter().chain(ttft_ms).min();
    Request {
        id,
        arrived,
        flow: labels.flow.clone(),
        band: labels.band,
        class: ClassKey::Family(from.class.as_str().into()),
        class_set: pool.class_set(&from.model),
        requested_model: if labels.target_model == labels.model {
            Box::default()
        } else {
            labels.model.clone()
        },
        model: labels.target_model.clone(),
        prompt: Prompt::Bytes(from.prompt_bytes),
        cached: Tokens(0),
        expected_output: None,
        max_output: from.max_tokens.map(Tokens),
        body_bytes: from.body_bytes,
        strict: in_range(from.strict, STRICT_MAX)
            .and_then(|tier| u8::try_from(tier).ok())
            .unwrap_or_default(),
        head_start: in_range(from.jump_s, JUMP_S_MAX)
            .map(|seconds| Duration::from_secs(seconds.into()))
            .unwrap_or_default(),
        ttft_target: ttft_ms.map(Duration::from_millis),
        deadline: deadline_ms.map(|after| arrived.after(Duration::from_millis(after))),
        eligible: None,
        prefix: from.prefix_hashes.as_slice().into(),
    }
}

/// No name and no list is longer than the protocol says.
pub(crate) fn is_bounded(from: &wire::Register) -> bool {
    let names = [
        &from.request_id,
        &from.model,
        &from.fairness_id,
        &from.user,
        &from.priority,
        &from.class,
        &from.client,
        &from.pin,
        &from.traceparent,
        &from.target_model,
    ];
    let listed = from.subset.iter().chain(&from.tolerations);
    names
        .into_iter()
        .chain(listed)
        .all(|name| name.len() <= NAME_BYTES_MAX)
        && from.subset.len().max(from.tolerations.len()) <= LIST_MAX
        && from.prefix_hashes.len() <= PREFIX_HASHES_MAX
}

/// Of what a client says of its time, something that counts here is no time.
pub(crate) fn bad_deadline(from: &wire::Register, pool: &Pool) -> bool {
    from.bad_deadline || from.bad_slo_ttft && has_targets(pool)
}

/// The pool orders by a target for the first token.
const fn has_targets(pool: &Pool) -> bool {
    match pool.policy.order {
        Order::SloDeadline { .. } => true,
        Order::Fcfs | Order::Wspt | Order::Edf => false,
    }
}

fn in_range(value: Option<u32>, most: u32) -> Option<u32> {
    value.filter(|value| *value <= most)
}

/// The flow of a request, and whether it must not be shown. Of several keys the parts are joined with `/`; a part that
/// says nothing is `anonymous`, unless none of them says anything. `target`: the model that its server is asked for.
pub(crate) fn flow<'a>(keys: &[FlowKey], from: &'a wire::Register, target: &'a str) -> (Cow<'a, str>, bool) {
    let part = |key: &FlowKey| match key {
        FlowKey::FairnessId => (from.fairness_id.as_str(), from.fairness_id_private),
        FlowKey::User => (from.user.as_str(), true),
        FlowKey::Model => (from.model.as_str(), false),
        FlowKey::TargetModel => (target, false),
    };
    if let [key] = keys {
        let (name, private) = part(key);
        return (name.into(), private);
    }
    let parts: Vec<_> = keys.iter().map(part).collect();
    let private = parts.iter().any(|(_, private)| *private);
    if parts.iter().all(|(name, _)| name.is_empty()) {
        return ("".into(), private);
    }
    let named = |(name, _): &(&'a str, bool)| if name.is_empty() { ANONYMOUS } else { *name };
    let joined: Vec<&str> = parts.iter().map(named).collect();
    (joined.join("/").into(), private)
}

/// The band a client claims: one of the names, or an objective; anything else is default.
pub(crate) fn band(claim: &str, objectives: &[(String, Band)]) -> Band {
    let claim = claim.trim();
    let is = |names: [&str; 2]| names.iter().any(|name| claim.eq_ignore_ascii_case(name));
    if is(["critical", "high"]) {
        Band::Critical
    } else if is(["default", "normal"]) {
        Band::Default
    } else if is(["sheddable", "low"]) {
        Band::Sheddable
    } else {
        objectives
            .iter()
            .find(|(name, _)| name == claim)
            .map_or(Band::Default, |(_, band)| *band)
    }
}

/// What was served, by how it ended.
pub(crate) fn service(from: &wire::Completed) -> Service {
    let counted = Usage {
        prompt: from.prompt_tokens.map(Tokens),
        cached: from.cached_tokens.map(Tokens),
        output: output_tokens(from).map(Tokens),
    };
    match from.end() {
        wire::EndReason::Unavailable | wire::EndReason::ResetBeforeAnswer => Service::Nothing,
        // An error page of the server is no service, unless it counted tokens.
        wire::EndReason::Served if from.status >= 400 && from.prompt_tokens.is_none() => Service::Nothing,
        // Left before it was sent anywhere.
        wire::EndReason::ClientLeft if from.endpoint.is_empty() => Service::Nothing,
        wire::EndReason::Unspecified | wire::EndReason::Served => Service::Served(counted),
        wire::EndReason::ClientLeft | wire::EndReason::ResetInsideAnswer => Service::Served(Usage {
            output: Some(counted.output.unwrap_or_default()),
            ..counted
        }),
    }
}

/// What was granted where, as it is expected to be.
pub(crate) fn granted(endpoint: EndpointId, expected: &Usage) -> Granted {
    let tokens = |of: Option<Tokens>| of.unwrap_or_default().0;
    Granted {
        endpoint,
        prompt: tokens(expected.prompt),
        cached: tokens(expected.cached),
        output: tokens(expected.output),
    }
}

/// What an end says of how the request was served; `None`: it says nothing that could be learnt from.
pub(crate) fn served(from: &wire::Completed) -> Option<Served> {
    let whole = match from.end() {
        wire::EndReason::Unspecified | wire::EndReason::Served => from.status < 400,
        wire::EndReason::Unavailable
        | wire::EndReason::ResetBeforeAnswer
        | wire::EndReason::ClientLeft
        | wire::EndReason::ResetInsideAnswer => false,
    };
    whole.then(|| Served {
        first: from.first_byte_us.map(Duration::from_micros),
        last: from.last_byte_us.map(Duration::from_micros),
        streamed: from.output_chunks > 1,
        prompt: from.prompt_tokens,
        cached: from.cached_tokens,
        output: output_tokens(from),
    })
}

/// As the server counted, else the stream's events; `None`: nobody counted.
pub(crate) fn output_tokens(from: &wire::Completed) -> Option<u64> {
    from.output_tokens
        .or((from.output_chunks > 0).then_some(from.output_chunks))
}

#[cfg(test)]
mod tests {
    use penstock_engine::Policy;

    use super::*;
    use crate::settings::PoolSettings;

    fn pool(order: Order) -> Pool {
        let settings = PoolSettings {
            name: "chat".into(),
            models: Vec::new(),
            endpoints: Vec::new(),
            policy: Policy {
                order,
                ..Policy::default()
            },
            flow_key: Vec::new(),
            class_globs: vec!["qwen*".into(), "*".into()],
            capacity_status: 503,
            requeues: 3,
            slo: penstock_model::slo::Policy::default(),
            reported: false,
            kept: Vec::new(),
            rewrite: Vec::new(),
        };
        Pool::new(&settings, 1, Instant::ZERO)
    }

    fn asked(pool: &Pool, from: &wire::Register) -> Request {
        let now = Instant::ZERO.after(Duration::from_secs(10));
        let labels = Labels {
            pool: "chat".into(),
            model: from.model.as_str().into(),
            target_model: from.model.as_str().into(),
            flow: "f".into(),
            private: false,
            band: Band::Default,
            class: Box::default(),
            request_id: Box::default(),
            traceparent: Box::default(),
        };
        request(RequestId(1), now, from, pool, &labels)
    }

    #[test]
    fn claims_reach_the_engine_and_those_out_of_range_do_not() {
        let pool = pool(Order::Fcfs);
        let said = |strict, jump_s| wire::Register {
            class: "batch".into(),
            model: "qwen-7b".into(),
            strict: Some(strict),
            jump_s: Some(jump_s),
            ..Default::default()
        };
        let request = asked(&pool, &said(15, 3_600));
        assert_eq!(request.class, ClassKey::Family("batch".into()));
        assert_eq!(
            (request.class_set, request.strict, request.head_start),
            (1, 15, Duration::from_secs(3_600))
        );
        let request = asked(&pool, &said(16, 3_601));
        assert_eq!((request.strict, request.head_start), (0, Duration::ZERO));
        let other = wire::Register {
            model: "llama".into(),
            ..Default::default()
        };
        assert_eq!(asked(&pool, &other).class_set, 2);
    }

    #[test]
    fn a_target_is_a_deadline_where_the_pool_orders_by_it() {
        let said = |deadline_ms, slo_ttft_ms| wire::Register {
            age_us: 1_000_000,
            deadline_ms,
            slo_ttft_ms,
            ..Default::default()
        };
        let after = |pool: &Pool, deadline, target| {
            let request = asked(pool, &said(deadline, target));
            let deadline = request.deadline.map(|at| at.since(request.arrived).as_millis());
            (deadline, request.ttft_target.map(|it| it.as_millis()))
        };
        let elsewhere = pool(Order::Edf);
        assert_eq!(after(&elsewhere, None, Some(500)), (None, None));
        assert_eq!(after(&elsewhere, Some(900), Some(500)), (Some(900), None));
        let here = pool(Order::SloDeadline { target: None });
        assert_eq!(after(&here, None, Some(500)), (Some(500), Some(500)));
        assert_eq!(after(&here, Some(900), Some(500)), (Some(500), Some(500)));
        assert_eq!(after(&here, Some(400), Some(500)), (Some(400), Some(500)));
        assert_eq!(after(&here, Some(400), None), (Some(400), None));
        let bad = wire::Register {
            bad_slo_ttft: true,
            ..Default::default()
        };
        assert!(bad_deadline(&bad, &here) && !bad_deadline(&bad, &elsewhere));
    }

    #[test]
    fn several_keys_are_joined() {
        use FlowKey::{FairnessId, Model, TargetModel, User};
        let said = |fairness_id: &str, user: &str| wire::Register {
            fairness_id: fairness_id.into(),
            user: user.into(),
            model: "m".into(),
            ..Default::default()
        };
        let flow_of = |keys: &[FlowKey], said: &wire::Register| {
            let (name, private) = flow(keys, said, "t");
            (name.into_owned(), private)
        };
        assert_eq!(flow_of(&[], &said("a", "u")), (String::new(), false));
        assert_eq!(flow_of(&[FairnessId], &said("", "u")), (String::new(), false));
        assert_eq!(
            flow_of(&[FairnessId, Model], &said("a", "u")),
            ("a/m".into(), false)
        );
        assert_eq!(
            flow_of(&[TargetModel, User], &said("a", "u")),
            ("t/u".into(), true)
        );
        assert_eq!(
            flow_of(&[FairnessId, Model], &said("", "u")),
            ("anonymous/m".into(), false)
        );
        assert_eq!(flow_of(&[FairnessId, User], &said("", "")), (String::new(), true));
    }

    #[test]
    fn claims_become_bands() {
        let objectives = [("chat-gold".to_owned(), Band::Critical)];
        let cases = [
            (" HIGH ", Band::Critical),
            ("critical", Band::Critical),
            ("Normal", Band::Default),
            ("low", Band::Sheddable),
            ("chat-gold", Band::Critical),
            ("urgent!", Band::Default),
            ("", Band::Default),
        ];
        for (claim, band_expected) in cases {
            assert_eq!(band(claim, &objectives), band_expected, "{claim}");
        }
    }

    #[test]
    fn an_error_page_is_refunded_and_a_cut_answer_is_not() {
        let ended = |end: wire::EndReason, status, output_chunks| wire::Completed {
            end: end.into(),
            status,
            output_chunks,
            endpoint: "127.0.0.1:1".into(),
            ..Default::default()
        };
        assert_eq!(service(&ended(wire::EndReason::Served, 500, 0)), Service::Nothing);
        assert_eq!(
            service(&ended(wire::EndReason::Unavailable, 503, 0)),
            Service::Nothing
        );
        let seen = |tokens| {
            Service::Served(Usage {
                output: Some(Tokens(tokens)),
                ..Usage::default()
            })
        };
        assert_eq!(
            service(&ended(wire::EndReason::ResetInsideAnswer, 200, 7)),
            seen(7)
        );
        assert_eq!(service(&ended(wire::EndReason::ClientLeft, 0, 0)), seen(0));
        assert_eq!(
            service(&ended(wire::EndReason::Served, 200, 0)),
            Service::Served(Usage::default())
        );
    }
}
