//! The codes of Penstock's error responses.

/// Defines the codes and their texts in one list, which [`Code::ALL`] has in the same order.
macro_rules! codes {
    ($($(#[$doc:meta])* $code:ident = $text:literal,)*) => {
        /// Why Penstock answers a request by itself, as clients, metrics and the protocol name it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code {
            $($(#[$doc])* $code,)*
        }

        impl Code {
            /// All codes.
            pub const ALL: &[Self] = &[$(Self::$code,)*];

            /// The code as text.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$code => $text,)*
                }
            }
        }
    };
}

codes! {
    /// The total capacity is reached, and the flow has no waiting request.
    TooManyFlows = "too_many_flows",
    /// The total capacity is reached, and the flow has waiting requests.
    QueueFull = "queue_full",
    /// The flow's capacity is reached.
    FlowCapacity = "flow_capacity",
    /// The class's queue limit is reached.
    ClassCapacity = "class_capacity",
    /// A more critical request displaced this one.
    Displaced = "displaced",
    /// A critical request waited for the place of this one, whose answer hadn't begun.
    Evicted = "evicted",
    /// The policy allows no waiting for such requests.
    NotQueued = "not_queued",
    /// The request waited longer than the TTL.
    QueueTimeout = "queue_timeout",
    /// The request is predicted to miss its deadline.
    DeadlineUnmeetable = "deadline_unmeetable",
    /// The budget of the request's flow is used up.
    BudgetExceeded = "budget_exceeded",
    /// The client's deadline passed.
    DeadlineExceeded = "deadline_exceeded",
    /// The deadline header is malformed. Counted only: the header is ignored.
    BadDeadline = "bad_deadline",
    /// The client disconnected.
    Cancelled = "cancelled",
    /// No endpoint is ready, or none is allowed for the request.
    NoEndpoints = "no_endpoints",
    /// No pool serves the model.
    ModelNotFound = "model_not_found",
    /// The request is malformed.
    InvalidRequest = "invalid_request",
    /// No list of paths names the request's path.
    PathNotFound = "path_not_found",
    /// The request's path controls a server.
    PathRefused = "path_refused",
    /// The request has no API key, or one that no tenant has.
    InvalidApiKey = "invalid_api_key",
    /// The body exceeds the limit.
    RequestTooLarge = "request_too_large",
    /// No endpoint accepted the request.
    UpstreamUnavailable = "upstream_unavailable",
    /// The server reset the connection before the first byte of its response.
    UpstreamReset = "upstream_reset",
    /// The server sent no byte in time.
    UpstreamTimeout = "upstream_timeout",
    /// The companion shuts down.
    ShuttingDown = "shutting_down",
    /// The companion is down.
    GatewayUnavailable = "gateway_unavailable",
    /// Envoy doesn't pass bodies to the filter while it pauses a request.
    FilterMisconfigured = "filter_misconfigured",
    /// An internal error.
    Internal = "internal",
}

impl Code {
    /// The code with this text; `None`: there is none, or one of a later version of the protocol.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_has_a_text_of_its_own() {
        for code in Code::ALL {
            assert_eq!(Code::parse(code.as_str()), Some(*code));
        }
        assert_eq!(Code::parse("teapot"), None);
    }
}
