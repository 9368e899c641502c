//! How a granted request ended, as its filter reports it: a `Completed` message, parsed.

use core::time::Duration;

use penstock_autopilot::Served;
use penstock_engine::input::{AnswerResult, Service};

/// The end of a granted request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Completion<'a> {
    /// The last address that Envoy used; `None` if Envoy never chose one.
    pub(crate) endpoint: Option<&'a str>,
    /// How many addresses Envoy tried.
    pub(crate) attempts: usize,
    /// No endpoint began to answer: every attempt failed.
    pub(crate) is_unanswered: bool,
    /// An endpoint answered to the end.
    pub(crate) is_served: bool,
    /// The cost to settle.
    pub(crate) service: Service,
    /// What the server did with the request, for the health of its endpoint; `None`: not known.
    pub(crate) answer: Option<AnswerResult>,
    /// What the autopilot learns from the request; `None` if the request ended early or with an error.
    pub(crate) served: Option<Served>,
    /// The HTTP status that the client got; 0 if it got none.
    pub(crate) status: u16,
    /// From the grant to the first byte of the response.
    pub(crate) first_byte: Option<Duration>,
    /// From the grant to the last byte.
    pub(crate) last_byte: Option<Duration>,
    /// Prompt tokens, as the model server counted.
    pub(crate) prompt_tokens: Option<u64>,
    /// Output tokens, as the model server counted, otherwise the number of events in the stream.
    pub(crate) output_tokens: Option<u64>,
}

impl Completion<'_> {
    /// Mean time between tokens; `None` with fewer than two tokens, or if they weren't counted.
    pub(crate) fn inter_token_latency(&self) -> Option<Duration> {
        let (first, last) = (self.first_byte?, self.last_byte?);
        let intervals = self.output_tokens?.checked_sub(1).filter(|count| *count > 0)?;
        let span_us = u64::try_from(last.checked_sub(first)?.as_micros()).unwrap_or(u64::MAX);
        (span_us > 0).then(|| Duration::from_micros(span_us / intervals))
    }
}
