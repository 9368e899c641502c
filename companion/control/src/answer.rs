//! What a client is told when its request doesn't go: the contract's table of statuses and codes.
//!
//! Every message says what happened and names what to change.

use core::time::Duration;

use penstock_engine::{Outcome, Policy};
use penstock_wire::names::code;

use crate::limits::{REQUESTS_IN_ALL_MAX, REQUESTS_MAX};

/// An answer of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) code: &'static str,
    pub(crate) message: String,
    /// The client's library shouldn't try again by itself.
    pub(crate) last_word: bool,
}

/// The answer to a request that left with this outcome; `None` for outcomes that go or have nobody to answer.
pub(crate) fn to(outcome: Outcome, pool: &str, policy: &Policy, capacity_status: u16) -> Option<Answer> {
    let queue = &policy.queue;
    let (status, code, message) = match outcome {
        Outcome::Bypassed | Outcome::Leased | Outcome::Dispatched | Outcome::Cancelled => return None,
        Outcome::RejectedTooManyFlows => (
            capacity_status,
            code::TOO_MANY_FLOWS,
            format!(
                "The queue of pool `{pool}` is full ({} waiting). Try again after retry-after, add servers, or raise queue.total_capacity.",
                queue.total_capacity
            ),
        ),
        Outcome::RejectedQueueFull => (
            capacity_status,
            code::QUEUE_FULL,
            format!(
                "The queue of pool `{pool}` is full ({} waiting, some of them yours). Send less at a time, or raise queue.total_capacity.",
                queue.total_capacity
            ),
        ),
        Outcome::RejectedFlowCapacity => (
            capacity_status,
            code::FLOW_CAPACITY,
            format!(
                "As many of your requests wait in pool `{pool}` as one flow may have ({} unless configured for it). Send less at a time, or raise queue.flow_capacity.",
                queue.flow_capacity
            ),
        ),
        Outcome::RejectedClassCapacity => (
            capacity_status,
            code::CLASS_CAPACITY,
            format!("The queue limit of this request's class in pool `{pool}` is reached. Try again after retry-after, or raise the class's limit."),
        ),
        Outcome::Displaced => (
            capacity_status,
            code::DISPLACED,
            format!("The queue of pool `{pool}` was full and a more critical request took this one's place. Try again after retry-after, raise queue.total_capacity, or send it with a higher priority."),
        ),
        Outcome::RejectedPolicy => (
            capacity_status,
            code::NOT_QUEUED,
            if queue.enabled && queue.total_capacity > 0 {
                format!("The servers of pool `{pool}` are busy and only critical requests may wait (queue.admit: critical_only). Try again after retry-after.")
            } else {
                format!("The servers of pool `{pool}` are busy and nothing may wait (queue.enabled, queue.total_capacity). Try again after retry-after.")
            },
        ),
        Outcome::ExpiredTtl => (
            capacity_status,
            code::QUEUE_TIMEOUT,
            format!("Request timed out after {} in queue", written(queue.ttl)),
        ),
        Outcome::RejectedUnmeetable => (
            429,
            code::DEADLINE_UNMEETABLE,
            "The deadline of this request can't be met. Try again later, or give it a later deadline.".to_owned(),
        ),
        Outcome::DeadlineExceeded => (
            504,
            code::DEADLINE_EXCEEDED,
            "The deadline of this request passed while it waited. Give it a later deadline (x-penstock-deadline-ms) or a higher priority.".to_owned(),
        ),
        Outcome::NoEndpoints => (
            503,
            code::NO_ENDPOINTS,
            format!("No server of pool `{pool}` is ready for this request. Check the servers' health and pools[].endpoints."),
        ),
        Outcome::ShuttingDown => (
            503,
            code::SHUTTING_DOWN,
            "The gateway is shutting down. Try again after retry-after.".to_owned(),
        ),
        Outcome::GatewayUnavailable => (
            503,
            code::GATEWAY_UNAVAILABLE,
            "The gateway's companion is away. Check that `penstock serve` is running.".to_owned(),
        ),
        Outcome::RejectedInvalid => (
            404,
            code::MODEL_NOT_FOUND,
            format!("Pool `{pool}` doesn't serve this model any more: the configuration was changed while this request waited. Check the request's `model` against pools[].models."),
        ),
        Outcome::Internal => (
            500,
            code::INTERNAL,
            "The gateway could not decide on this request. Its log says why.".to_owned(),
        ),
    };
    let last_word = matches!(outcome, Outcome::RejectedUnmeetable | Outcome::DeadlineExceeded);
    Some(Answer {
        status,
        code,
        message,
        last_word,
    })
}

/// The code of `to`, for who has nobody to answer.
#[must_use]
pub fn code_of(outcome: Outcome) -> Option<&'static str> {
    to(outcome, "", &Policy::default(), 503).map(|answer| answer.code)
}

/// No pool has this model.
pub(crate) fn unknown_model(model: &str) -> Answer {
    Answer {
        status: 404,
        code: code::MODEL_NOT_FOUND,
        message: format!("No pool serves the model `{model}`. Check its name, or add it to pools[].models."),
        last_word: false,
    }
}

/// The companion keeps as many requests as it may: `of_one` worker of an Envoy, or of all.
pub(crate) fn too_many(status: u16, of_one: bool) -> Answer {
    let message = if of_one {
        format!(
            "One worker of this Envoy holds {REQUESTS_MAX} requests, waiting and running, and may not hold more. Send \
             less at a time, or give Envoy more workers (--concurrency)."
        )
    } else {
        format!(
            "The gateway holds {REQUESTS_IN_ALL_MAX} requests, waiting and running, and may not hold more. Send less at \
             a time."
        )
    };
    Answer {
        status,
        code: code::QUEUE_FULL,
        message,
        last_word: false,
    }
}

/// Its filter says more of it than the protocol lets it.
pub(crate) fn too_long() -> Answer {
    Answer {
        status: 400,
        code: code::INVALID_REQUEST,
        message:
            "A name that this request gives is longer than the gateway takes. Shorten its identity headers."
                .to_owned(),
        last_word: true,
    }
}

/// Nobody is there to be answered: the stream that this request came by, before it entered again, is over.
pub(crate) fn gone() -> Answer {
    Answer {
        status: 499,
        code: code::CANCELLED,
        message: "The client of this request has gone.".to_owned(),
        last_word: true,
    }
}

/// A duration as the configuration writes it.
pub(crate) fn written(of: Duration) -> String {
    if of.subsec_millis() == 0 {
        format!("{}s", of.as_secs())
    } else {
        format!("{}ms", of.as_millis())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_one_too_many_is_told_of_whom() {
        for (of_one, limit, advice) in [(true, "65536", "--concurrency"), (false, "1048576", "less")] {
            let Answer { code, message, .. } = too_many(503, of_one);
            assert_eq!(code, code::QUEUE_FULL);
            assert!(message.contains(limit) && message.contains(advice), "{message}");
            assert!(
                !message.contains("total_capacity"),
                "that wouldn't help: {message}"
            );
        }
    }

    #[test]
    fn durations_read_as_they_are_configured() {
        assert_eq!(written(Duration::from_secs(30)), "30s");
        assert_eq!(written(Duration::from_millis(250)), "250ms");
        assert_eq!(written(Duration::from_secs(90)), "90s");
    }
}
