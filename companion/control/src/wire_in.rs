//! Parses the filter's messages into this crate's types.

use core::time::Duration;

use penstock_engine::input::{AnswerResult, Fault};
use penstock_wire as wire;
use penstock_wire::limits::{
    JUMP_S_MAX, LIST_MAX, NAME_BYTES_MAX, PREFIX_HASHES_MAX, SEQUENCES_MAX, STRICT_MAX,
};

use crate::completion::Completion;
use crate::counting::ReportedAnswer;
use crate::failed_attempt::{AttemptEnd, FailedAttempt};
use crate::filter_answer::FilterAnswer;
use crate::ids::{Epoch, RequestKey};
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
        chosen_pool: non_empty(&message.pool),
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
        // Embeddings have no output tokens.
        output_tokens_max: if generates(message.api()) { message.max_tokens } else { Some(0) },
        sequences: message.sequences.clamp(1, SEQUENCES_MAX),
        body_bytes: message.body_bytes,
        is_generated: generates(message.api()),
        is_streamed: message.stream,
        strict: in_range(message.strict, STRICT_MAX)
            .and_then(|tier| u8::try_from(tier).ok())
            .unwrap_or_default(),
        head_start: in_range(message.jump_s, JUMP_S_MAX)
            .map(|seconds| Duration::from_secs(seconds.into()))
            .unwrap_or_default(),
        deadline: message.deadline_ms.map(Duration::from_millis),
        is_deadline_invalid: message.bad_deadline,
        client_retries: message.client_retries,
        ttft_target: message.slo_ttft_ms.map(Duration::from_millis),
        is_ttft_target_invalid: message.bad_slo_ttft,
        subset: &message.subset,
        is_subset_of_gateway: message.gateway_subset,
        pin: non_empty(&message.pin),
        tolerations: &message.tolerations,
        prefix_hashes: &message.prefix_hashes,
        requeues: message.requeues,
        is_moved: message.moved,
        previous_key: message.requeued_from.as_ref().map(request_key).filter(|previous| *previous != key),
        credit_endpoint: non_empty(&message.credit_endpoint),
        failed_attempt: message.failed_attempt.as_ref().and_then(failed_attempt),
        is_within_limits: is_within_limits(message),
    }
}

/// Where a request of a Hello runs.
pub(crate) fn running(message: &wire::Running) -> Running<'_> {
    Running {
        pool: &message.pool,
        endpoint: &message.endpoint,
        age: Duration::from_micros(message.age_us),
        has_begun: message.started,
        has_first_token: message.first_token,
        prefill_endpoint: non_empty(&message.prefill_endpoint),
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
pub(crate) fn failed_attempt(message: &wire::AttemptFailed) -> Option<FailedAttempt<'_>> {
    let end = match u16::try_from(message.status).ok()? {
        0 if message.timed_out => AttemptEnd::TimedOut,
        0 if message.cut => AttemptEnd::Cut { is_reused: message.reused },
        0 => AttemptEnd::Unsent,
        status @ 400..=599 => AttemptEnd::Status(status),
        _ => return None,
    };
    Some(FailedAttempt {
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
        is_served: matches!(message.end(), wire::EndReason::Served | wire::EndReason::RunsOn),
        answer: ReportedAnswer {
            end: message.end(),
            status: u16::try_from(message.status).unwrap_or(0),
            was_sent: !message.endpoint.is_empty(),
            prompt: message.prompt_tokens,
            cached: message.cached_tokens,
            output: message.output_tokens,
            events: message.output_chunks,
            text_bytes: message.text_bytes,
            body_bytes: message.body_bytes,
            last_byte: message.last_byte_us.map(Duration::from_micros),
            ended: Duration::from_micros(message.ended_us),
        },
        result: result(message),
        first_token: message.first_token_us.map(Duration::from_micros),
        last_byte: message.last_byte_us.map(Duration::from_micros),
    }
}

/// What the server did with the request; `None`: it didn't come to that, or it isn't known.
fn result(message: &wire::Completed) -> Option<AnswerResult> {
    let of_status = |status: u32| match u16::try_from(status).unwrap_or(0) {
        0 => None,
        100..300 => Some(AnswerResult::Served),
        status @ 300..500 => Some(AnswerResult::Rejected(status)),
        status => Some(AnswerResult::Failed(Fault::Status(status))),
    };
    match message.end() {
        wire::EndReason::Unspecified | wire::EndReason::Served | wire::EndReason::RunsOn => {
            of_status(message.status)
        }
        wire::EndReason::NoAnswer => Some(AnswerResult::Failed(Fault::NoAnswer)),
        wire::EndReason::ErrorInsideAnswer => Some(AnswerResult::Failed(Fault::InsideAnswer)),
        wire::EndReason::ResetInsideAnswer => Some(AnswerResult::Failed(Fault::Cut)),
        wire::EndReason::TimedOutBeforeAnswer | wire::EndReason::TimedOutInsideAnswer => {
            Some(AnswerResult::Failed(Fault::Timeout))
        }
        wire::EndReason::ReportedError => match message.status {
            429 => Some(AnswerResult::Refused(429)),
            503 => Some(AnswerResult::Refused(503)),
            status => of_status(status),
        },
        wire::EndReason::ClientLeft | wire::EndReason::Evicted => Some(AnswerResult::Left),
        wire::EndReason::Unavailable | wire::EndReason::ResetBeforeAnswer => None,
    }
}

fn is_within_limits(message: &wire::Register) -> bool {
    let names = [
        &message.request_id,
        &message.model,
        &message.pool,
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

/// Answers of the API have output tokens.
const fn generates(api: wire::Api) -> bool {
    !matches!(api, wire::Api::Embeddings | wire::Api::OtherWithoutOutput)
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
}
