//! The error codes of answers that filters give by themselves.

use penstock_wire::names::code;

/// The error codes with which a filter may reject a request by itself.
pub(super) const CODES: [&str; 18] = [
    code::TOO_MANY_FLOWS,
    code::QUEUE_FULL,
    code::FLOW_CAPACITY,
    code::NOT_QUEUED,
    code::QUEUE_TIMEOUT,
    code::DEADLINE_EXCEEDED,
    code::CANCELLED,
    code::NO_ENDPOINTS,
    code::MODEL_NOT_FOUND,
    code::INVALID_REQUEST,
    code::INVALID_API_KEY,
    code::REQUEST_TOO_LARGE,
    code::UPSTREAM_UNAVAILABLE,
    code::UPSTREAM_RESET,
    code::SHUTTING_DOWN,
    code::GATEWAY_UNAVAILABLE,
    code::FILTER_MISCONFIGURED,
    code::INTERNAL,
];

/// Codes with which a filter rejects requests that were admitted, or that waited for a companion until their time was over.
pub(super) const LATER: [&str; 5] = [
    code::QUEUE_TIMEOUT,
    code::DEADLINE_EXCEEDED,
    code::CANCELLED,
    code::UPSTREAM_UNAVAILABLE,
    code::UPSTREAM_RESET,
];
