//! The answer to a rejected request: status, code and message by outcome.
//!
//! Every message gives the cause and names the setting to change.

use core::time::Duration;

use penstock_engine::{Outcome, Policy};
use penstock_wire::Code;
use penstock_wire::names::PIN_HEADER;

use crate::limits::{REQUESTS_IN_ALL_MAX, REQUESTS_MAX};

/// An answer of the gateway itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GatewayAnswer {
    pub(crate) status: u16,
    pub(crate) code: Code,
    pub(crate) message: String,
    /// The client's library should not retry.
    pub(crate) is_final: bool,
}

/// The answer to a request with this outcome; `None` if the request was granted or its client has left.
pub(crate) fn for_outcome(
    outcome: Outcome,
    pool: &str,
    policy: &Policy,
    capacity_status: u16,
) -> Option<GatewayAnswer> {
    let (status, code) = match outcome {
        Outcome::Bypassed | Outcome::Leased | Outcome::Dispatched | Outcome::Cancelled => return None,
        Outcome::RejectedTooManyFlows => (capacity_status, Code::TooManyFlows),
        Outcome::RejectedQueueFull => (capacity_status, Code::QueueFull),
        Outcome::RejectedFlowCapacity => (capacity_status, Code::FlowCapacity),
        Outcome::RejectedClassCapacity => (capacity_status, Code::ClassCapacity),
        Outcome::Displaced => (capacity_status, Code::Displaced),
        Outcome::RejectedPolicy => (capacity_status, Code::NotQueued),
        Outcome::ExpiredTtl => (capacity_status, Code::QueueTimeout),
        Outcome::Evicted => (429, Code::Evicted),
        Outcome::RejectedUnmeetable => (429, Code::DeadlineUnmeetable),
        Outcome::RejectedBudget => (429, Code::BudgetExceeded),
        Outcome::DeadlineExceeded => (504, Code::DeadlineExceeded),
        Outcome::NoEndpoints => (503, Code::NoEndpoints),
        Outcome::ShuttingDown => (503, Code::ShuttingDown),
        Outcome::GatewayUnavailable => (503, Code::GatewayUnavailable),
        Outcome::RejectedInvalid => (404, Code::ModelNotFound),
        Outcome::Internal => (500, Code::Internal),
    };
    let is_final = matches!(outcome, Outcome::RejectedUnmeetable | Outcome::DeadlineExceeded);
    Some(GatewayAnswer {
        status,
        code,
        message: capacity_message(outcome, pool, policy).unwrap_or_else(|| other_message(outcome, pool)),
        is_final,
    })
}

/// The answer to a request whose connections servers have cut.
pub(crate) fn upstream_reset() -> GatewayAnswer {
    GatewayAnswer {
        status: 502,
        code: Code::UpstreamReset,
        message: "The model servers closed the connection before they answered (queue.resets). Check their logs: this request may be what ends them.".to_owned(),
        is_final: false,
    }
}

/// The answer to a request to which servers sent no byte in time.
pub(crate) fn upstream_timeout() -> GatewayAnswer {
    GatewayAnswer {
        status: 504,
        code: Code::UpstreamTimeout,
        message: "The model servers sent no byte of an answer in time (timeouts.first_byte). Check their logs: they may hang.".to_owned(),
        is_final: false,
    }
}

/// The message for outcomes that the limits of the queue cause.
fn capacity_message(outcome: Outcome, pool: &str, policy: &Policy) -> Option<String> {
    let queue = &policy.queue;
    let message = match outcome {
        Outcome::RejectedTooManyFlows => format!(
            "The queue of pool `{pool}` is full ({} waiting). Try again after retry-after, add servers, or raise queue.total_capacity.",
            queue.total_capacity
        ),
        Outcome::RejectedQueueFull => format!(
            "The queue of pool `{pool}` is full ({} waiting, some of them yours). Send less at a time, or raise queue.total_capacity.",
            queue.total_capacity
        ),
        Outcome::RejectedFlowCapacity => format!(
            "As many of your requests wait in pool `{pool}` as one flow may have ({} unless configured for it). Send less at a time, or raise queue.flow_capacity.",
            queue.flow_capacity
        ),
        Outcome::RejectedClassCapacity => format!(
            "The queue limit of this request's class in pool `{pool}` is reached. Try again after retry-after, or raise the class's limit."
        ),
        Outcome::Displaced => format!(
            "The queue of pool `{pool}` was full and a more critical request took this one's place. Try again after retry-after, raise queue.total_capacity, or send it with a higher priority."
        ),
        Outcome::RejectedPolicy => {
            if queue.enabled && queue.total_capacity > 0 {
                format!(
                    "The servers of pool `{pool}` are busy and only critical requests may wait (queue.admit: critical_only). Try again after retry-after."
                )
            } else {
                format!(
                    "The servers of pool `{pool}` are busy and nothing may wait (queue.enabled, queue.total_capacity). Try again after retry-after."
                )
            }
        }
        Outcome::ExpiredTtl => format!("Request timed out after {} in queue", duration_text(queue.ttl)),
        _ => return None,
    };
    Some(message)
}

/// The message for all other outcomes; empty for those without an answer.
fn other_message(outcome: Outcome, pool: &str) -> String {
    match outcome {
        Outcome::RejectedUnmeetable => "The deadline of this request can't be met. Try again later, or give it a later deadline.".to_owned(),
        Outcome::RejectedBudget => format!("Your budget in pool `{pool}` is used up. Try again after retry-after, when it has room again, or raise arbitration.flows.budgets."),
        Outcome::Evicted => format!("A critical request waited for the place of this one in pool `{pool}`, and no answer had begun (eviction). Try again after retry-after, add servers, or send it with a higher priority."),
        Outcome::DeadlineExceeded => "The deadline of this request passed while it waited. Give it a later deadline (x-penstock-deadline-ms) or a higher priority.".to_owned(),
        Outcome::NoEndpoints => format!("No server of pool `{pool}` is ready for this request. Check the servers' health and pools[].endpoints."),
        Outcome::ShuttingDown => "The gateway is shutting down. Try again after retry-after.".to_owned(),
        Outcome::GatewayUnavailable => "The gateway's companion is away. Check that `penstock serve` is running.".to_owned(),
        Outcome::RejectedInvalid => model_removed(pool).message,
        Outcome::Internal => "The gateway could not decide on this request. The log of `penstock serve` names the cause.".to_owned(),
        Outcome::Bypassed
        | Outcome::Leased
        | Outcome::Dispatched
        | Outcome::Cancelled
        | Outcome::RejectedTooManyFlows
        | Outcome::RejectedQueueFull
        | Outcome::RejectedFlowCapacity
        | Outcome::RejectedClassCapacity
        | Outcome::Displaced
        | Outcome::RejectedPolicy
        | Outcome::ExpiredTtl => String::new(),
    }
}

/// The code in the answer to a request with this outcome; `None` if such a request gets no answer.
#[must_use]
pub fn code_of(outcome: Outcome) -> Option<Code> {
    for_outcome(outcome, "", &Policy::default(), 503).map(|answer| answer.code)
}

/// The pool of a request no longer serves its model.
pub(crate) fn model_removed(pool: &str) -> GatewayAnswer {
    GatewayAnswer {
        status: 404,
        code: Code::ModelNotFound,
        message: format!(
            "Pool `{pool}` doesn't serve this model any more: the configuration was changed while this request waited. Check the request's `model` against pools[].models."
        ),
        is_final: false,
    }
}

/// No pool serves this model.
pub(crate) fn unknown_model(model: &str) -> GatewayAnswer {
    GatewayAnswer {
        status: 404,
        code: Code::ModelNotFound,
        message: format!("No pool serves the model `{model}`. Check its name, or add it to pools[].models."),
        is_final: false,
    }
}

/// The companion holds as many requests as it may: of one root context, or of all together.
pub(crate) fn too_many(status: u16, is_context_full: bool) -> GatewayAnswer {
    let message = if is_context_full {
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
    GatewayAnswer { status, code: Code::QueueFull, message, is_final: false }
}

/// The registration exceeds a limit of the protocol.
pub(crate) fn too_long() -> GatewayAnswer {
    GatewayAnswer {
        status: 400,
        code: Code::InvalidRequest,
        message:
            "A name that this request gives is longer than the gateway takes. Shorten its identity headers."
                .to_owned(),
        is_final: true,
    }
}

/// The client's pin names a data-parallel rank of a model server.
pub(crate) fn pinned_rank(pin: &str, address: &str) -> GatewayAnswer {
    GatewayAnswer {
        status: 400,
        code: Code::InvalidRequest,
        message: format!(
            "The header {PIN_HEADER} is `{pin}`, but a data-parallel rank can't be chosen. Send `{address}`, or give each rank \
             a port of its own and list these ports in pools[].endpoints."
        ),
        is_final: true,
    }
}

/// The client of a requeued request has left: the HTTP stream of its first exchange has ended.
pub(crate) fn client_left() -> GatewayAnswer {
    GatewayAnswer {
        status: 499,
        code: Code::Cancelled,
        message: "The client of this request has gone.".to_owned(),
        is_final: true,
    }
}

/// The request was taken out of the queue while it was moved to another key.
pub(crate) fn lost_while_moved() -> GatewayAnswer {
    GatewayAnswer {
        status: 503,
        code: Code::GatewayUnavailable,
        message: "The gateway lost the request while it waited: send it again.".to_owned(),
        is_final: false,
    }
}

/// A duration in the format of the configuration.
pub(crate) fn duration_text(duration: Duration) -> String {
    if duration.subsec_millis() == 0 {
        format!("{}s", duration.as_secs())
    } else {
        format!("{}ms", duration.as_millis())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_above_a_limit_is_told_which_limit() {
        for (is_context_full, limit, advice) in [(true, "65536", "--concurrency"), (false, "1048576", "less")]
        {
            let GatewayAnswer { code, message, .. } = too_many(503, is_context_full);
            assert_eq!(code, Code::QueueFull);
            assert!(message.contains(limit) && message.contains(advice), "{message}");
            assert!(!message.contains("total_capacity"), "raising it wouldn't help: {message}");
        }
    }

    #[test]
    fn a_request_over_its_budget_may_try_again_later() {
        let answer =
            for_outcome(Outcome::RejectedBudget, "chat", &Policy::default(), 503).expect("an answer");
        assert_eq!((answer.status, answer.code), (429, Code::BudgetExceeded));
        assert!(!answer.is_final && answer.message.contains("arbitration.flows.budgets"));
    }

    #[test]
    fn durations_are_written_as_in_the_configuration() {
        assert_eq!(duration_text(Duration::from_secs(30)), "30s");
        assert_eq!(duration_text(Duration::from_millis(250)), "250ms");
        assert_eq!(duration_text(Duration::from_secs(90)), "90s");
    }
}
