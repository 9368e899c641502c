//! Responses that wait with their headers until the body shows whether it is an answer or an error.
//!
//! A server that has sent the status 200 may still report an error in its first event. While the client has received nothing, the
//! error can be an HTTP error, which every client understands. A response waits for `HEADERS_HELD` at most, so that a server that
//! is slow to begin delays nothing but its own headers.

use std::collections::VecDeque;

use penstock_wire::{Api, names};

use super::Worker;
use crate::effect::{Effect, ResponseBodyAction, StreamAction};
use crate::exchange::{Held, Phase, Response, Upstream};
use crate::limits::{HEADERS_HELD, HELD_BYTES_MAX};
use crate::local_reply::{Failure, LocalReply, QueueReport};
use crate::response::Verdict;
use crate::retry_advice::retry_after_ms;
use crate::time::Instant;

/// The requests with a held response, in the order in which their time is over. Some may no longer be held.
#[derive(Debug, Default)]
pub(super) struct HeldResponses {
    queue: VecDeque<(Instant, u64)>,
}

impl HeldResponses {
    /// When the next response must go on.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.queue.front().map(|(until, _)| *until)
    }
}

/// Whether a response in this state can wait for the body's first event.
pub(super) fn can_hold(api: Api, response: &Response) -> bool {
    // Of a path without a known API, any body may be an answer.
    !matches!(api, Api::Unspecified | Api::Other | Api::OtherWithoutOutput)
        && (200..300).contains(&response.status)
        && !response.is_complete
        && response.scanner.verdict() == Verdict::Open
}

/// What happens to a held response after more of its body. `size`: the bytes that wait.
pub(super) fn decide(response: &mut Response, size: usize, end: bool) -> Decision {
    if response.held.is_none() {
        return Decision::Pass;
    }
    if end {
        response.scanner.end();
    }
    match response.scanner.verdict() {
        Verdict::Error => {
            response.replaced_by = Some(response.scanner.error().status());
            response.held = None;
            Decision::Replace
        }
        Verdict::Open if !end && size <= HELD_BYTES_MAX => {
            response.held = Some(Held { scanned: size });
            Decision::Hold
        }
        Verdict::Open | Verdict::Answer => {
            response.held = None;
            Decision::Pass
        }
    }
}

/// A decision about a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Pass,
    Hold,
    Replace,
}

impl Worker {
    /// Notes that the response to a request is held from now on.
    pub(super) fn hold_response(&mut self, now: Instant, sequence: u64) {
        self.held_responses.queue.push_back((now.after(HEADERS_HELD), sequence));
    }

    /// Carries out the decision about a response.
    pub(super) fn carry_out_decision(&mut self, sequence: u64, decision: Decision) -> ResponseBodyAction {
        match decision {
            Decision::Pass => ResponseBodyAction::Pass,
            Decision::Hold => ResponseBodyAction::Hold,
            Decision::Replace => match self.error_reply(sequence) {
                Some(reply) => ResponseBodyAction::Replace(reply),
                None => ResponseBodyAction::Pass,
            },
        }
    }

    /// Lets responses go on that have waited long enough.
    pub(super) fn release_responses(&mut self, now: Instant) {
        while self.held_responses.next_at().is_some_and(|until| until <= now) {
            let Some((_, sequence)) = self.held_responses.queue.pop_front() else {
                return;
            };
            let is_held = self.response(sequence).is_some_and(|response| response.held.is_some());
            if is_held {
                self.push_resume(sequence);
            }
        }
    }

    fn push_resume(&mut self, sequence: u64) {
        if let Some(exchange) = self.exchanges.get(&sequence) {
            let action = StreamAction::ResumeResponse { sequence };
            self.effects.push_back(Effect::Stream { context: exchange.context, action });
        }
    }

    /// The host is about to resume a response. Returns `false` if the response has gone on by itself.
    pub fn resume_response(&mut self, sequence: u64) -> bool {
        let Some(response) = self.response(sequence) else {
            return false;
        };
        let Some(held) = response.held.take() else {
            return false;
        };
        response.is_kept = held.scanned > 0;
        true
    }

    /// More of a body has arrived that the host keeps. `size`: the bytes that it keeps now.
    pub(super) fn pass_kept(&mut self, sequence: u64, size: usize) -> ResponseBodyAction {
        let Some(response) = self.response(sequence) else {
            return ResponseBodyAction::Pass;
        };
        // With a part that is held, the host passes everything on. Without bytes, it has nothing to keep.
        if response.held.take().is_some() || size == 0 {
            response.is_kept = false;
            return ResponseBodyAction::Pass;
        }
        response.held = Some(Held { scanned: size });
        self.push_resume(sequence);
        ResponseBodyAction::Hold
    }

    /// Drops the first entries of the queue that are no longer held, so that no tick comes for them.
    pub(super) fn forget_passed_responses(&mut self) {
        while let Some((_, sequence)) = self.held_responses.queue.front().copied() {
            if self.response(sequence).is_some_and(|response| response.held.is_some()) {
                return;
            }
            self.held_responses.queue.pop_front();
        }
    }

    /// The HTTP error in place of a response that reports an error.
    fn error_reply(&self, sequence: u64) -> Option<LocalReply> {
        let exchange = self.exchanges.get(&sequence)?;
        let Phase::Granted(granted) = &exchange.phase else {
            return None;
        };
        let Upstream::Responding(response) = &granted.upstream else {
            return None;
        };
        let mut reply = error_reply(response, exchange.register.api(), &granted.report, sequence);
        self.name_server(&mut reply, response.endpoint.clone().unwrap_or_default());
        Some(self.carry_reply(sequence, reply))
    }

    /// Names the server in an error that takes the place of its response.
    pub(super) fn name_server(&self, reply: &mut LocalReply, served: String) {
        if self.is_requeue_listener && self.routes_report_endpoint {
            reply.headers.push((names::SERVED_AGAIN_HEADER, served.clone()));
        }
        reply.headers.push((names::SERVED_HEADER, served));
    }
}

fn error_reply(response: &Response, api: Api, report: &QueueReport, sequence: u64) -> LocalReply {
    let error = response.scanner.error();
    let status = error.status();
    let message =
        if error.message.is_empty() { "The model server reported an error." } else { &error.message };
    let advice =
        response.retry_after_ms.unwrap_or_else(|| retry_after_ms(core::time::Duration::ZERO, sequence));
    let failure = Failure {
        status,
        code: error.code().to_owned(),
        message: message.to_owned(),
        retry_after_ms: matches!(status, 429 | 503).then_some(advice),
        is_final: false,
        param: None,
    };
    failure.reply(api, Some(report))
}
