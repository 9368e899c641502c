//! Parses the filter's messages into this crate's types.

use core::time::Duration;

use penstock_autopilot::Served;
use penstock_engine::input::{AnswerResult, Fault, Service, Usage};
use penstock_engine::units::Tokens;
use penstock_wire as wire;
use penstock_wire::limits::{JUMP_S_MAX, LIST_MAX, NAME_BYTES_MAX, PREFIX_HASHES_MAX, STRICT_MAX};

use crate::completion::Completion;
use crate::filter_answer::FilterAnswer;
use crate::ids::{Epoch, RequestKey};
use crate::pushback::{AttemptEnd, Pushback};
use crate::registration::{Registration, Running};

/// A registration by the root context with this epoch.
pub(crate) fn registration(epoch: Epoch, message: &wire::Register) -> Registration<'_> {
    let key = RequestKey { epoch, sequence: message.sequence };
    Registration {
        key,
        api: message.api,
        age: Duration::from_micros(message.age_us),
        request_id: &message.request_id,
        traceparent: &message.traceparent,
        model: &message.model,
        rewritten_to: non_empty(&message.target_model),
        tenant: message.fairness_id.as_str().into(),
        is_tenant_private: message.fairness_id_private,
        is_tenant_verified: message.tenant_verified,
        user: message.user.as_str().into(),
        priority: &message.priority,
        class: &message.class,
        client: &message.client,
        is_untrusted: message.untrusted,
        prompt_bytes: message.prompt_bytes,
        output_tokens_max: message.max_tokens,
        body_bytes: message.body_bytes,
        strict: in_range(message.strict, STRICT_MAX)
            .and_then(|tier| u8::try_from(tier).ok())
            .unwrap_or_default(),
        head_start: in_range(message.jump_s, JUMP_S_MAX)
            .map(|seconds| Duration::from_secs(seconds.into()))
            .unwrap_or_default(),
        deadline: message.deadline_ms.map(Duration::from_millis),
        is_deadline_invalid: message.bad_deadline,
        ttft_target: message.slo_ttft_ms.map(Duration::from_millis),
        is_ttft_target_invalid: message.bad_slo_ttft,
        subset: &message.subset,
        pin: non_empty(&message.pin),
        tolerations: &message.tolerations,
        prefix_hashes: &message.prefix_hashes,
        requeues: message.requeues,
        previous_key: message.requeued_from.as_ref().map(request_key).filter(|previous| *previous != key),
        credit_endpoint: non_empty(&message.credit_endpoint),
        failed_attempt: message.failed_attempt.as_ref().and_then(pushback),
        is_within_limits: is_within_limits(message),
    }
}

/// Where a request of a Hello runs.
pub(crate) fn running(message: &wire::Running) -> Running<'_> {
    Running {
        endpoint: &message.endpoint,
        age: Duration::from_micros(message.age_us),
        has_first_byte: message.first_byte,
    }
}

/// The key that an origin names.
pub(crate) fn request_key(origin: &wire::RequestKey) -> RequestKey {
    RequestKey { epoch: Epoch::new(origin.epoch_hi, origin.epoch_lo), sequence: origin.sequence }
}

/// How often Envoy tried to send a request.
pub(crate) fn attempts(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// Why an attempt failed; `None` if the status is none of an error, which no filter sends.
pub(crate) fn pushback(message: &wire::PushedBack) -> Option<Pushback<'_>> {
    let end = match u16::try_from(message.status).ok()? {
        0 if message.cut => AttemptEnd::Cut { is_reused: message.reused },
        0 => AttemptEnd::Unsent,
        status @ 400..=599 => AttemptEnd::Status(status),
        _ => return None,
    };
    Some(Pushback {
        endpoint: &message.endpoint,
        end,
        retry_after: message.retry_after_ms.map(Duration::from_millis),
    })
}

/// The answer of a filter to a request.
pub(crate) fn filter_answer(node: Box<str>, message: &wire::Refused) -> FilterAnswer<'_> {
    // Another program could make up codes, and each is a metric's label.
    let code = wire::Code::parse(&message.code).unwrap_or(wire::Code::Internal);
    FilterAnswer { node, outcome: &message.outcome, code, requeues: message.requeues }
}

/// `None` for an empty text.
pub(crate) fn non_empty(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// The end of a granted request.
pub(crate) fn completion(message: &wire::Completed) -> Completion<'_> {
    Completion {
        endpoint: non_empty(&message.endpoint),
        attempts: attempts(message.attempts),
        is_unanswered: matches!(
            message.end(),
            wire::EndReason::Unavailable | wire::EndReason::ResetBeforeAnswer
        ),
        is_served: message.end() == wire::EndReason::Served,
        service: service(message),
        answer: answered(message),
        served: served(message),
        status: u16::try_from(message.status).unwrap_or(0),
        first_byte: message.first_byte_us.map(Duration::from_micros),
        last_byte: message.last_byte_us.map(Duration::from_micros),
        prompt_tokens: message.prompt_tokens,
        output_tokens: output_tokens(message),
    }
}

/// What the server did with the request; `None`: it didn't come to that, or it isn't known.
fn answered(message: &wire::Completed) -> Option<AnswerResult> {
    let of_status = |status: u32| match u16::try_from(status).unwrap_or(0) {
        0 => None,
        100..300 => Some(AnswerResult::Served),
        status @ 300..500 => Some(AnswerResult::Rejected(status)),
        status => Some(AnswerResult::Failed(Fault::Status(status))),
    };
    match message.end {
        ERROR_INSIDE_ANSWER => Some(AnswerResult::Failed(Fault::InsideAnswer)),
        NO_ANSWER => Some(AnswerResult::Failed(Fault::NoAnswer)),
        REPORTED_ERROR => match message.status {
            status @ (429 | 503) => Some(AnswerResult::Refused(if status == 429 { 429 } else { 503 })),
            status => of_status(status),
        },
        _ => match message.end() {
            wire::EndReason::Served if message.status < 300 && message.first_byte_us.is_none() => {
                // A success without a body.
                let has_counts = message.output_tokens.or(message.prompt_tokens).is_some();
                Some(if has_counts { AnswerResult::Served } else { AnswerResult::Failed(Fault::NoAnswer) })
            }
            wire::EndReason::Unspecified | wire::EndReason::Served => of_status(message.status),
            wire::EndReason::ResetInsideAnswer => Some(AnswerResult::Failed(Fault::Cut)),
            wire::EndReason::ClientLeft => Some(AnswerResult::Left),
            wire::EndReason::Unavailable | wire::EndReason::ResetBeforeAnswer => None,
        },
    }
}

/// The numbers of end reasons that an answer has besides those below: see `EndReason` in the protocol.
const ERROR_INSIDE_ANSWER: i32 = 6;
const NO_ANSWER: i32 = 7;
const REPORTED_ERROR: i32 = 8;

fn is_within_limits(message: &wire::Register) -> bool {
    let names = [
        &message.request_id,
        &message.model,
        &message.fairness_id,
        &message.user,
        &message.priority,
        &message.class,
        &message.client,
        &message.pin,
        &message.traceparent,
        &message.target_model,
        &message.credit_endpoint,
    ];
    let listed = message.subset.iter().chain(&message.tolerations);
    names.into_iter().chain(listed).all(|name| name.len() <= NAME_BYTES_MAX)
        && message.subset.len().max(message.tolerations.len()) <= LIST_MAX
        && message.prefix_hashes.len() <= PREFIX_HASHES_MAX
}

fn in_range(value: Option<u32>, most: u32) -> Option<u32> {
    value.filter(|value| *value <= most)
}

/// The service that the request got, by the way it ended.
fn service(message: &wire::Completed) -> Service {
    let usage = Usage {
        prompt: message.prompt_tokens.map(Tokens),
        cached: cached_tokens(message).map(Tokens),
        output: output_tokens(message).map(Tokens),
    };
    match message.end() {
        wire::EndReason::Unavailable | wire::EndReason::ResetBeforeAnswer => Service::Nothing,
        // An error page of the model server is no service, unless the server counted tokens.
        wire::EndReason::Served if message.status >= 400 && message.prompt_tokens.is_none() => {
            Service::Nothing
        }
        // The client left before Envoy chose an endpoint.
        wire::EndReason::ClientLeft if message.endpoint.is_empty() => Service::Nothing,
        wire::EndReason::Unspecified | wire::EndReason::Served => Service::Served(usage),
        wire::EndReason::ClientLeft | wire::EndReason::ResetInsideAnswer => {
            Service::Served(Usage { output: Some(usage.output.unwrap_or_default()), ..usage })
        }
    }
}

/// `None` if the response wasn't complete and successful.
fn served(message: &wire::Completed) -> Option<Served> {
    let is_complete = match message.end() {
        wire::EndReason::Unspecified | wire::EndReason::Served => message.status < 400,
        wire::EndReason::Unavailable
        | wire::EndReason::ResetBeforeAnswer
        | wire::EndReason::ClientLeft
        | wire::EndReason::ResetInsideAnswer => false,
    };
    is_complete.then(|| Served {
        first: message.first_byte_us.map(Duration::from_micros),
        last: message.last_byte_us.map(Duration::from_micros),
        streamed: message.output_chunks > 1,
        prompt: message.prompt_tokens,
        cached: cached_tokens(message),
        output: output_tokens(message),
    })
}

/// `None` if the model server counts no tokens. One that counts the prompt and reports no cached tokens has computed all of it.
fn cached_tokens(message: &wire::Completed) -> Option<u64> {
    message.cached_tokens.or(message.prompt_tokens.map(|_| 0))
}

/// `None` if neither the model server nor the stream's events count them.
fn output_tokens(message: &wire::Completed) -> Option<u64> {
    message.output_tokens.or((message.output_chunks > 0).then_some(message.output_chunks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_code_of_a_filter_is_internal() {
        let code = |text: &str| {
            let refused = wire::Refused { code: text.into(), ..wire::Refused::default() };
            filter_answer("edge".into(), &refused).code
        };
        assert_eq!(
            [code("queue_timeout"), code("made_up")],
            [wire::Code::QueueTimeout, wire::Code::Internal]
        );
    }

    #[test]
    fn an_error_page_is_refunded_and_an_interrupted_response_is_not() {
        let ended = |end: wire::EndReason, status, output_chunks| wire::Completed {
            end: end.into(),
            status,
            output_chunks,
            endpoint: "127.0.0.1:1".into(),
            ..Default::default()
        };
        assert_eq!(service(&ended(wire::EndReason::Served, 500, 0)), Service::Nothing);
        assert_eq!(service(&ended(wire::EndReason::Unavailable, 503, 0)), Service::Nothing);
        let output = |tokens| Service::Served(Usage { output: Some(Tokens(tokens)), ..Usage::default() });
        assert_eq!(service(&ended(wire::EndReason::ResetInsideAnswer, 200, 7)), output(7));
        assert_eq!(service(&ended(wire::EndReason::ClientLeft, 0, 0)), output(0));
        assert_eq!(service(&ended(wire::EndReason::Served, 200, 0)), Service::Served(Usage::default()));
    }
}
