//! Names that clients, servers and metrics see and that filter and companion share: headers, outcomes.

/// Request header: the endpoints to try, in order. Only the filter sets it.
pub const ENDPOINT_HEADER: &str = "x-gateway-destination-endpoint";
/// Request header for Envoy's routing: the same endpoints, followed by the requeue listener. Only the filter sets it, for
/// requests that may be requeued.
pub const ROUTE_HEADER: &str = "x-penstock-route";
/// Metadata of the filter's gRPC stream: the companion to connect to, `ip:port`. Envoy takes any other if its cluster doesn't
/// have that one.
pub const COMPANION_HEADER: &str = "x-penstock-companion";
/// Request header: the pool, which selects Envoy's cluster. Only the filter sets it.
pub const POOL_HEADER: &str = "x-penstock-pool";
/// Request header: the endpoint that computes the prompt, `ip:port`, for the sidecar of the one that answers. Only the gateway sets it: a
/// client's value would have the sidecar send the request wherever the client likes. llm-d's name.
pub const PREFILL_HEADER: &str = "x-prefiller-host-port";
/// Request header: endpoints that encode images, `ip:port,...`, for the same sidecar. Never sent on.
pub const ENCODER_HEADER: &str = "x-encoder-hosts-ports";
/// Request header: the process of a data-parallel server, `ip:port`, for the same sidecar. Never sent on.
pub const DATA_PARALLEL_HEADER: &str = "x-data-parallel-host-port";
/// Request header: the allowed endpoints, `ip:port,...`.
pub const SUBSET_HEADER: &str = "x-gateway-destination-endpoint-subset";
/// Request header: the only endpoint to use, `ip:port`.
pub const PIN_HEADER: &str = "x-penstock-endpoint";
/// Request header: taints of endpoints that the request tolerates.
pub const TOLERATE_HEADER: &str = "x-penstock-tolerate";
/// Request header: time limit for the first token, in milliseconds.
pub const DEADLINE_HEADER: &str = "x-penstock-deadline-ms";
/// Request headers: the TTFT target of a request, in milliseconds. The first that is present counts.
pub const SLO_TTFT_HEADERS: [&str; 2] = ["x-slo-ttft-ms", "x-llm-d-slo-ttft-ms"];
/// Request header: the token that authenticates a requeued request. Only the gateway sets it.
pub const REQUEUE_HEADER: &str = "x-penstock-requeue";
/// Property of a stream inside Envoy: the same token, where Envoy's configuration reads it from there. It isn't a header, so no
/// server can receive it.
pub const REQUEUE_PROPERTY: &str = "penstock.requeue";
/// How the value of that property begins, so that a route can tell cheaply whether a stream has it. The token follows.
pub const REQUEUE_PROPERTY_PREFIX: &str = "token=";
/// Request header inside Envoy, to the requeue listener: how the attempt before ended, by Envoy's details of a response code. A server that
/// is tried after another one receives it too.
pub const REFUSED_HEADER: &str = "x-penstock-refused";
/// That header's value if the last server refused the request by a response.
pub const REFUSED_BY_RESPONSE: &str = "via_upstream";

/// Request header inside Envoy, to a companion and back: a companion sends the client comments, one in so many milliseconds, while the request
/// waits on.
pub const KEEP_ALIVE_HEADER: &str = "x-penstock-keep-alive";

/// Response header inside Envoy, from the requeue listener: the status of an error, whose own header has another one meanwhile.
pub const STATUS_HEADER: &str = "x-penstock-status";

/// Response header: the outcome, which is how the request left the queue.
pub const OUTCOME_HEADER: &str = "x-penstock-outcome";
/// Response header: the time in the queue, in whole milliseconds.
pub const QUEUE_MS_HEADER: &str = "x-penstock-queue-ms";
/// Response header: the saturation of the pool; 1.00 is full.
pub const SATURATION_HEADER: &str = "x-penstock-saturation";
/// Response header: the tokens that the tenant's budget allows in its window.
pub const LIMIT_TOKENS_HEADER: &str = "x-ratelimit-limit-tokens";
/// Response header: the tokens that are left.
pub const REMAINING_TOKENS_HEADER: &str = "x-ratelimit-remaining-tokens";
/// Response header: the time until all tokens are left again, as in `6m0s` or `120ms`.
pub const RESET_TOKENS_HEADER: &str = "x-ratelimit-reset-tokens";
/// Response header: the requests that the tenant's budget allows in its window.
pub const LIMIT_REQUESTS_HEADER: &str = "x-ratelimit-limit-requests";
/// Response header: the requests that are left.
pub const REMAINING_REQUESTS_HEADER: &str = "x-ratelimit-remaining-requests";
/// Response header: the time until all requests are left again.
pub const RESET_REQUESTS_HEADER: &str = "x-ratelimit-reset-requests";
/// Response header: the endpoint that responded.
pub const SERVED_HEADER: &str = "x-gateway-destination-endpoint-served";
/// Response header inside Envoy, from the requeue listener to the first listener: the endpoint that responded.
pub const SERVED_AGAIN_HEADER: &str = "x-penstock-served-again";

/// Outcomes that the filter decides by itself.
pub mod outcome {
    /// Admitted by the filter while the companion is down.
    pub const DISPATCHED: &str = "dispatched";
    /// Admitted by the filter with a credit of the companion.
    pub const LEASED: &str = "leased";
    /// Malformed, too large, without a valid API key, or for a model that no pool serves.
    pub const REJECTED_INVALID: &str = "rejected_invalid";
    /// Refused because the companion is down.
    pub const GATEWAY_UNAVAILABLE: &str = "gateway_unavailable";
    /// Waited longer than the TTL while the companion was down.
    pub const EXPIRED_TTL: &str = "expired_ttl";
    /// None of the endpoints that the request allows is ready, and the companion is down.
    pub const NO_ENDPOINTS: &str = "no_endpoints";
    /// The client's deadline passed while the companion was down.
    pub const DEADLINE_EXCEEDED: &str = "deadline_exceeded";
    /// An internal error.
    pub const INTERNAL: &str = "internal";
}
