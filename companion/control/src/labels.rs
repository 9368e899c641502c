//! The identity of a request in metrics and logs.

use std::sync::Arc;

use penstock_engine::ModelName;
use penstock_engine::input::Band;

/// The flow of requests without a fairness identity.
pub(crate) const ANONYMOUS: &str = "anonymous";

/// A flow by the name that its engine uses.
pub(crate) const fn flow_name(flow: &str) -> &str {
    if flow.is_empty() { ANONYMOUS } else { flow }
}

/// The labels of a request's metrics and log lines. All observations of one request share them.
#[derive(Debug, PartialEq, Eq)]
pub struct Labels {
    /// The pool's name; `none` for a request that no pool serves.
    pub pool: Arc<str>,
    /// The model.
    pub model: ModelName,
    /// The flow; empty for `anonymous`. Requests of a flow that is shown by name share one copy.
    pub flow: Arc<str>,
    /// The flow must not be shown: it comes from a body, or is a user.
    pub private: bool,
    /// The band.
    pub band: Band,
    /// The policy class at registration; empty if the pool has no classes.
    pub class: Box<str>,
    /// The tokens at registration, estimated; `None` for a request that no pool registered.
    pub tokens: Option<EstimatedTokens>,
    /// The client's `x-request-id`.
    pub request_id: Box<str>,
    /// The client's `traceparent`; empty without one, or if tracing is disabled.
    pub traceparent: Box<str>,
}

/// The tokens of a request as they were estimated at its registration. They don't change afterwards.
///
/// Counts end at 2^32 - 1, because every waiting request has these three.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EstimatedTokens {
    /// Tokens of the whole prompt.
    pub prompt: u32,
    /// The part of the prompt that one of the eligible endpoints had in its prefix cache.
    pub cached: u32,
    /// Expected tokens of the output.
    pub expected_output: u32,
}
