//! How an exchange ended, in Envoy's words and in ours.
//!
//! Source of the words: Envoy's response code details. They are told apart by their beginnings, and what stands in the
//! braces of `upstream_reset_before_response_started{...}`.

use penstock_wire::{EndReason, names::code};

use crate::local_reply::Failure;

/// What a server's failure to answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamFailure {
    /// No server took the request.
    Unavailable,
    /// A server took it and cut the connection before a byte of its answer.
    Reset,
}

impl UpstreamFailure {
    /// By Envoy's response code details; none: it is another matter.
    pub(crate) fn of(details: &str) -> Option<Self> {
        const CUT: [&str; 4] = [
            "connection_termination",
            "remote_reset",
            "protocol_error",
            "http2.remote_reset",
        ];
        if let Some(cause) = details.strip_prefix("upstream_reset_before_response_started") {
            return Some(
                if CUT
                    .iter()
                    .any(|cut| cause.trim_start_matches('{').starts_with(cut))
                {
                    Self::Reset
                } else {
                    Self::Unavailable
                },
            );
        }
        let unavailable = [
            "no_healthy_upstream",
            "cluster_not_found",
            "maintenance_mode",
            "upstream_per_try_timeout",
        ];
        unavailable
            .iter()
            .any(|words| details.starts_with(words))
            .then_some(Self::Unavailable)
    }

    /// What the client is told.
    pub(crate) fn failure(self) -> Failure {
        match self {
            Self::Unavailable => Failure::new(
                503,
                code::UPSTREAM_UNAVAILABLE,
                "No model server accepted the request. Try again later, or check that the pool's endpoints are up.",
            )
            .retry_after_ms(crate::limits::RETRY_AFTER_MS),
            Self::Reset => Failure::new(
                502,
                code::UPSTREAM_RESET,
                "The model server closed the connection before it answered. Check that server's log.",
            ),
        }
    }

    /// What the companion is told.
    pub(crate) fn end(self) -> EndReason {
        match self {
            Self::Unavailable => EndReason::Unavailable,
            Self::Reset => EndReason::ResetBeforeAnswer,
        }
    }
}

/// How an exchange ended whose last byte wasn't seen. `answered`: response headers of a server were.
pub(crate) fn unfinished(details: &str, answered: bool) -> EndReason {
    match (UpstreamFailure::of(details), answered) {
        (Some(none), false) => none.end(),
        (Some(_), true) => EndReason::ResetInsideAnswer,
        (None, true) if details.starts_with("upstream") => EndReason::ResetInsideAnswer,
        (None, false) if details.starts_with("upstream") => EndReason::ResetBeforeAnswer,
        // A server's answer that Envoy itself ended, by one of its time limits.
        (None, true) if details.contains("timeout") => EndReason::ResetInsideAnswer,
        (None, _) => EndReason::ClientLeft,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn envoys_words_are_told_apart() {
        let before =
            |cause: &str| UpstreamFailure::of(&format!("upstream_reset_before_response_started{{{cause}}}"));
        for cause in ["connection_termination", "remote_reset", "protocol_error"] {
            assert_eq!(before(cause), Some(UpstreamFailure::Reset), "{cause}");
        }
        for cause in [
            "remote_connection_failure",
            "connection_timeout",
            "overflow",
            "remote_refused_stream_reset",
        ] {
            assert_eq!(before(cause), Some(UpstreamFailure::Unavailable), "{cause}");
        }
        assert_eq!(
            UpstreamFailure::of("no_healthy_upstream"),
            Some(UpstreamFailure::Unavailable)
        );
        assert_eq!(
            UpstreamFailure::of("cluster_not_found"),
            Some(UpstreamFailure::Unavailable)
        );
        assert_eq!(UpstreamFailure::of("via_upstream"), None);
        assert_eq!(UpstreamFailure::of("stream_idle_timeout"), None);
    }

    #[test]
    fn unfinished_exchanges_have_an_end() {
        assert_eq!(
            unfinished("downstream_remote_disconnect", false),
            EndReason::ClientLeft
        );
        assert_eq!(
            unfinished("downstream_remote_disconnect", true),
            EndReason::ClientLeft
        );
        assert_eq!(unfinished("http2.remote_reset", true), EndReason::ClientLeft);
        assert_eq!(unfinished("", false), EndReason::ClientLeft);
        assert_eq!(
            unfinished("upstream_reset_after_response_started{remote_reset}", true),
            EndReason::ResetInsideAnswer
        );
        assert_eq!(
            unfinished("stream_idle_timeout", true),
            EndReason::ResetInsideAnswer
        );
        assert_eq!(
            unfinished("upstream_response_timeout", false),
            EndReason::ResetBeforeAnswer
        );
        assert_eq!(
            unfinished(
                "upstream_reset_before_response_started{connection_timeout}",
                false
            ),
            EndReason::Unavailable
        );
    }
}
