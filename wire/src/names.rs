//! Names that filter and companion both say to the outside: headers, and the codes and outcomes of errors.

/// Request header with the endpoints to try, in order; only the filter sets it.
pub const ENDPOINT_HEADER: &str = "x-gateway-destination-endpoint";
/// Request header for Envoy's own eyes: the same endpoints, then the listener where a request enters again that none
/// of them took; only the filter sets it, and only then.
pub const ROUTE_HEADER: &str = "x-penstock-route";
/// Request header that chooses the pool's cluster; only the filter sets it.
pub const POOL_HEADER: &str = "x-penstock-pool";
/// Request header: an allow-list of endpoints, `ip:port,...`.
pub const SUBSET_HEADER: &str = "x-gateway-destination-endpoint-subset";
/// Request header: the only endpoint to use, `ip:port`.
pub const PIN_HEADER: &str = "x-penstock-endpoint";
/// Request header: taints of endpoints that don't matter to this request.
pub const TOLERATE_HEADER: &str = "x-penstock-tolerate";
/// Request header: milliseconds until the first token must have come.
pub const DEADLINE_HEADER: &str = "x-penstock-deadline-ms";
/// Request header: the TTFT target of a request, in milliseconds.
pub const SLO_TTFT_HEADER: &str = "x-slo-ttft-ms";
/// Request header that proves a re-queued request; only the gateway sets it.
pub const REQUEUE_HEADER: &str = "x-penstock-requeue";

/// Response header: how the request left the queue.
pub const OUTCOME_HEADER: &str = "x-penstock-outcome";
/// Response header: how long it waited, in whole milliseconds.
pub const QUEUE_MS_HEADER: &str = "x-penstock-queue-ms";
/// Response header: how full the pool is, 1.00 is full.
pub const SATURATION_HEADER: &str = "x-penstock-saturation";
/// Response header: the endpoint that answered.
pub const SERVED_HEADER: &str = "x-gateway-destination-endpoint-served";
/// Response header inside Envoy, from the listener where requests enter again to the one where they came first: the
/// endpoint that answered.
pub const SERVED_AGAIN_HEADER: &str = "x-penstock-served-again";

/// Codes of the answers that are Penstock's own.
pub mod code {
    /// Total capacity reached, the flow had nothing waiting.
    pub const TOO_MANY_FLOWS: &str = "too_many_flows";
    /// Total capacity reached, the flow was waiting.
    pub const QUEUE_FULL: &str = "queue_full";
    /// Flow capacity reached.
    pub const FLOW_CAPACITY: &str = "flow_capacity";
    /// A class's queue limit reached.
    pub const CLASS_CAPACITY: &str = "class_capacity";
    /// A more critical request took the place.
    pub const DISPLACED: &str = "displaced";
    /// Nothing of its kind may wait.
    pub const NOT_QUEUED: &str = "not_queued";
    /// Waited longer than ttl.
    pub const QUEUE_TIMEOUT: &str = "queue_timeout";
    /// Predicted to miss its deadline.
    pub const DEADLINE_UNMEETABLE: &str = "deadline_unmeetable";
    /// The client's deadline passed.
    pub const DEADLINE_EXCEEDED: &str = "deadline_exceeded";
    /// A deadline that is no time: ignored and counted, never answered.
    pub const BAD_DEADLINE: &str = "bad_deadline";
    /// The client left.
    pub const CANCELLED: &str = "cancelled";
    /// No endpoint ready, or none fits.
    pub const NO_ENDPOINTS: &str = "no_endpoints";
    /// No pool for this model.
    pub const MODEL_NOT_FOUND: &str = "model_not_found";
    /// Malformed.
    pub const INVALID_REQUEST: &str = "invalid_request";
    /// Over the body limit.
    pub const REQUEST_TOO_LARGE: &str = "request_too_large";
    /// Every endpoint refused.
    pub const UPSTREAM_UNAVAILABLE: &str = "upstream_unavailable";
    /// The server cut the connection before a byte of its answer.
    pub const UPSTREAM_RESET: &str = "upstream_reset";
    /// The companion shuts down.
    pub const SHUTTING_DOWN: &str = "shutting_down";
    /// The companion is away.
    pub const GATEWAY_UNAVAILABLE: &str = "gateway_unavailable";
    /// Anything else.
    pub const INTERNAL: &str = "internal";
}

/// Outcomes that the filter decides by itself.
pub mod outcome {
    /// Let go without the companion, which is away.
    pub const DISPATCHED: &str = "dispatched";
    /// Malformed, too large, or for no pool.
    pub const REJECTED_INVALID: &str = "rejected_invalid";
    /// The companion is away.
    pub const GATEWAY_UNAVAILABLE: &str = "gateway_unavailable";
    /// Waited longer than ttl while the companion was away.
    pub const EXPIRED_TTL: &str = "expired_ttl";
    /// None of the endpoints that the request allows is known to be ready, and the companion is away.
    pub const NO_ENDPOINTS: &str = "no_endpoints";
    /// The client's deadline passed while the companion was away.
    pub const DEADLINE_EXCEEDED: &str = "deadline_exceeded";
    /// Something failed that can't.
    pub const INTERNAL: &str = "internal";
}
