//! Maps Envoy's response code details to the reason for which a request ended.
//!
//! The details are the constants of Envoy's documentation ("Response code details"). They are recognized by their prefix,
//! and by the text in the braces of `upstream_reset_before_response_started{...}`.

use penstock_wire::Code;
use penstock_wire::EndReason;

use crate::local_reply::Failure;

/// A failure of the upstream before the first byte of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamFailure {
    /// No server accepted the request.
    Unavailable,
    /// A server accepted the request and then reset the connection.
    Reset,
    /// A server accepted the request and sent no byte in time.
    Timeout,
}

impl UpstreamFailure {
    /// The failure that these details describe; `None`: they describe something else.
    pub(crate) fn from_details(details: &str) -> Option<Self> {
        const RESETS: [&str; 4] =
            ["connection_termination", "remote_reset", "protocol_error", "http2.remote_reset"];
        const UNAVAILABLE: [&str; 3] = ["no_healthy_upstream", "cluster_not_found", "maintenance_mode"];
        if details.starts_with("upstream_per_try_timeout") {
            return Some(Self::Timeout);
        }
        if let Some(cause) = details.strip_prefix("upstream_reset_before_response_started") {
            let cause = cause.trim_start_matches('{');
            let is_reset = RESETS.iter().any(|reset| cause.starts_with(reset));
            return Some(if is_reset { Self::Reset } else { Self::Unavailable });
        }
        UNAVAILABLE.iter().any(|prefix| details.starts_with(prefix)).then_some(Self::Unavailable)
    }

    /// The error for the client. `retry_after_ms`: the advice if no server accepted the request.
    pub(crate) fn failure(self, retry_after_ms: u64) -> Failure {
        match self {
            Self::Unavailable => Failure::new(
                503,
                Code::UpstreamUnavailable,
                "No model server accepted the request. Try again later, or check that the pool's endpoints are up.",
            )
            .retry_after_ms(retry_after_ms),
            Self::Reset => Failure::new(
                502,
                Code::UpstreamReset,
                "The model server closed the connection before it answered. Check that server's log.",
            ),
            Self::Timeout => Failure::new(
                504,
                Code::UpstreamTimeout,
                "The model server sent no byte of an answer in time (timeouts). Check that server's log: it may hang.",
            )
            .retry_after_ms(retry_after_ms),
        }
    }

    /// The reason that the companion receives.
    pub(crate) fn end_reason(self) -> EndReason {
        match self {
            Self::Unavailable => EndReason::Unavailable,
            Self::Reset => EndReason::ResetBeforeAnswer,
            Self::Timeout => EndReason::TimedOutBeforeAnswer,
        }
    }
}

/// The reason for which a request ended before the last byte of its response. `has_response`: a server had begun to respond.
pub(crate) fn unfinished(details: &str, has_response: bool) -> EndReason {
    match (UpstreamFailure::from_details(details), has_response) {
        (Some(failure), false) => failure.end_reason(),
        (Some(_), true) => EndReason::ResetInsideAnswer,
        (None, true) if details.starts_with("upstream") => EndReason::ResetInsideAnswer,
        (None, false) if details.starts_with("upstream") => EndReason::ResetBeforeAnswer,
        // Envoy ended the response by one of its timeouts.
        (None, true) if details.contains("timeout") => EndReason::ResetInsideAnswer,
        (None, _) => EndReason::ClientLeft,
    }
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[test]
    fn upstream_failures_are_recognized_by_their_details() {
        let before = |cause: &str| {
            UpstreamFailure::from_details(&format!("upstream_reset_before_response_started{{{cause}}}"))
        };
        for cause in ["connection_termination", "remote_reset", "protocol_error"] {
            assert_eq!(before(cause), Some(UpstreamFailure::Reset), "{cause}");
        }
        for cause in
            ["remote_connection_failure", "connection_timeout", "overflow", "remote_refused_stream_reset"]
        {
            assert_eq!(before(cause), Some(UpstreamFailure::Unavailable), "{cause}");
        }
        assert_eq!(UpstreamFailure::from_details("no_healthy_upstream"), Some(UpstreamFailure::Unavailable));
        assert_eq!(UpstreamFailure::from_details("cluster_not_found"), Some(UpstreamFailure::Unavailable));
        assert_eq!(UpstreamFailure::from_details("upstream_per_try_timeout"), Some(UpstreamFailure::Timeout));
        assert_eq!(UpstreamFailure::from_details("via_upstream"), None);
        assert_eq!(UpstreamFailure::from_details("stream_idle_timeout"), None);
    }

    #[test]
    fn unfinished_requests_have_an_end_reason() {
        assert_eq!(unfinished("downstream_remote_disconnect", false), EndReason::ClientLeft);
        assert_eq!(unfinished("downstream_remote_disconnect", true), EndReason::ClientLeft);
        assert_eq!(unfinished("http2.remote_reset", true), EndReason::ClientLeft);
        assert_eq!(unfinished("", false), EndReason::ClientLeft);
        assert_eq!(
            unfinished("upstream_reset_after_response_started{remote_reset}", true),
            EndReason::ResetInsideAnswer
        );
        assert_eq!(unfinished("stream_idle_timeout", true), EndReason::ResetInsideAnswer);
        assert_eq!(unfinished("upstream_response_timeout", false), EndReason::ResetBeforeAnswer);
        assert_eq!(
            unfinished("upstream_reset_before_response_started{connection_timeout}", false),
            EndReason::Unavailable
        );
    }
}
