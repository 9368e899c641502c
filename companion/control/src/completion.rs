//! How a granted request ended, as its filter reports it: a `Completed` message, parsed.

use core::time::Duration;

use penstock_autopilot::Served;
use penstock_engine::input::{AnswerResult, Input, RequestId, Service};
use penstock_wire::EndReason;

use crate::counting::{Counted, ReportedAnswer};

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
    /// What [`crate::counting`] counts.
    pub(crate) answer: ReportedAnswer,
    /// What the server did with the request, for the health of its endpoint; `None`: not known.
    pub(crate) result: Option<AnswerResult>,
    /// From the grant to the first token of the response.
    pub(crate) first_token: Option<Duration>,
    /// From the grant to the last byte.
    pub(crate) last_byte: Option<Duration>,
}

impl Completion<'_> {
    /// The HTTP status that the client got; 0 if it got none.
    pub(crate) const fn status(&self) -> u16 {
        self.answer.status
    }

    /// The gateway has answered the client, because a critical request waits for the place.
    pub(crate) const fn is_evicted(&self) -> bool {
        matches!(self.answer.end, EndReason::Evicted)
    }

    /// The endpoint may compute on: the client left or was answered before the end of the answer, or the request runs in the background.
    const fn may_run_on(&self) -> bool {
        match self.answer.end {
            EndReason::ClientLeft | EndReason::Evicted => self.answer.was_sent,
            EndReason::RunsOn => true,
            _ => false,
        }
    }

    /// The end of the request in the engine, with this service.
    pub(crate) const fn input(&self, id: RequestId, service: Service) -> Input {
        if self.may_run_on() { Input::Left { id, service } } else { Input::Completed { id, service } }
    }

    /// The answer is complete and successful.
    const fn is_success(&self) -> bool {
        matches!(self.answer.end, EndReason::Served | EndReason::Unspecified) && self.answer.status < 300
    }

    /// From the grant to the first token of a complete stream. Of a whole document the first token isn't seen.
    pub(crate) fn time_to_first_token(&self) -> Option<Duration> {
        self.first_token.filter(|_| self.is_success() && self.answer.events > 0)
    }

    /// What the autopilot learns from the request; `None` if the request ended early or with an error.
    pub(crate) fn served(&self, counted: &Counted) -> Option<Served> {
        self.is_success().then_some(Served {
            first: self.first_token,
            last: self.last_byte,
            streamed: self.answer.events > 1,
            prompt: counted.prompt,
            cached: counted.cached,
            output: counted.output,
        })
    }

    /// Mean time between the tokens of one of so many sequences; `None` with fewer than two tokens, or if they weren't counted.
    pub(crate) fn inter_token_latency(&self, counted: &Counted, sequences: u32) -> Option<Duration> {
        let (first, last) = (self.first_token?, self.last_byte?);
        let tokens = counted.output? / u64::from(sequences.max(1));
        let intervals = tokens.checked_sub(1).filter(|count| *count > 0)?;
        let span_us = u64::try_from(last.checked_sub(first)?.as_micros()).unwrap_or(u64::MAX);
        (span_us > 0).then(|| Duration::from_micros(span_us / intervals))
    }
}
