//! A granted exchange: the upstream's response, and the messages that report it to the companion.

use core::time::Duration;

use penstock_wire::{Admitted, Api, Completed, EndReason, Grant, Register, Running, Started};

use crate::credits::{Origin, Place};
use crate::end_reason::{UpstreamFailure, unfinished};
use crate::in_flight::Load;
use crate::local_reply::QueueReport;
use crate::properties::{Properties, attempt_count, response_code_details, upstream_address};
use crate::rate_limit::RateLimit;
use crate::requeue_on::RequeueOn;
use crate::response::{ResponseScanner, ResponseStats};
use crate::time::Instant;

/// An exchange that was granted and hasn't ended.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) granted_at: Instant,
    pub(crate) pool: String,
    /// The first endpoint of the grant; `None`: Envoy chooses.
    pub(crate) endpoint: Option<String>,
    /// The endpoint that computes the prompt; empty: that one does.
    pub(crate) prefill_endpoint: String,
    /// After a 404 Envoy tries the next endpoint.
    pub(crate) retries_not_found: bool,
    /// The failures after which the stream is restarted; `None`: it isn't restarted.
    pub(crate) restart_on: Option<RequeueOn>,
    pub(crate) report: QueueReport,
    /// `None`: the companion granted the request, or is down.
    pub(crate) by_credit: Option<ByCredit>,
    pub(crate) upstream: Upstream,
    /// What the request counts as in its pool.
    pub(crate) load: Load,
}

/// The id of no credit.
const NO_CREDIT: u64 = 0;

/// The admission of a request by credit.
#[derive(Debug)]
pub(crate) struct ByCredit {
    /// The id of the credit.
    pub(crate) credit: u64,
    /// The place that the request holds; `None`: it runs on without one.
    pub(crate) place: Option<Place>,
    /// The companion that received this Hello knows that the request runs: by the Hello itself, or by an event after it.
    pub(crate) known_since: Option<Origin>,
}

/// The state of the response.
#[derive(Debug)]
pub(crate) enum Upstream {
    /// No response yet.
    Pending,
    /// Envoy sent a local reply because no server responded.
    Unanswered { failure: UpstreamFailure, status: u32 },
    /// Envoy sent a local reply for another reason.
    EndedByEnvoy { status: u32 },
    /// The gateway has answered the client, because the companion asked for it.
    Evicted { status: u32 },
    /// The request was requeued. The requeue listener's filter responds and reports the result.
    Requeued { status: u32 },
    /// A server responds.
    Responding(Box<Response>),
}

/// The response of a server.
#[derive(Debug)]
pub(crate) struct Response {
    /// The server's address, as far as it is known.
    pub(crate) endpoint: Option<String>,
    pub(crate) status: u32,
    /// How often Envoy sent the request; 0: not asked for.
    pub(crate) attempts: u32,
    pub(crate) scanner: ResponseScanner,
    /// The event to send when the first token arrives.
    pub(crate) first_token_event: Option<Box<Started>>,
    /// The last byte has passed.
    pub(crate) is_complete: bool,
    /// See [`crate::alive_endpoints::AliveEndpoints::record`].
    pub(crate) alive_in: Option<u32>,
    /// The client hasn't received the headers, which wait until the body shows whether it is an answer.
    pub(crate) held: Option<Held>,
    /// The host keeps the next part of the body until it is resumed, even if it is asked to pass it on.
    ///
    /// Envoy buffers what arrives while its last body callback was answered with a pause, also if it was resumed in the meantime.
    pub(crate) is_kept: bool,
    /// The status that the server's error means, which the client has received in place of the response.
    pub(crate) replaced_by: Option<u32>,
    /// The server's `retry-after`, in milliseconds.
    pub(crate) retry_after_ms: Option<u64>,
    /// How long the server may be silent; `None`: for ever.
    pub(crate) silence: Option<SilenceLimit>,
    /// The server was silent for longer, and the gateway has ended the response.
    pub(crate) is_timed_out: bool,
    /// The host passes nothing of the body to the worker.
    pub(crate) is_unseen: bool,
}

/// How long the server of a response may be silent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SilenceLimit {
    /// When the first byte of the body must have come.
    pub(crate) first_byte_by: Option<Instant>,
    /// The longest pause after a byte.
    pub(crate) idle: Option<Duration>,
    /// The entry of the response among the worker's timers.
    pub(crate) timer: Instant,
}

impl SilenceLimit {
    /// When the present silence has lasted for too long, and when the worker looks at the response again, which may be earlier, because bytes
    /// set no timer. `last_byte`: `None` before the first.
    pub(crate) fn deadline(&self, now: Instant, last_byte: Option<Instant>) -> Deadline {
        let pause = |since: Instant| self.idle.map(|idle| since.after(idle));
        match last_byte {
            Some(last_byte) => Deadline { ends: pause(last_byte), look_at: pause(last_byte) },
            None => {
                let look_at = [self.first_byte_by, pause(now)].into_iter().flatten().min();
                Deadline { ends: self.first_byte_by, look_at }
            }
        }
    }
}

/// When a server's silence has lasted for too long, and when the worker looks at its response again. `None`: never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline {
    pub(crate) ends: Option<Instant>,
    pub(crate) look_at: Option<Instant>,
}

/// A response that waits with its headers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    /// Bytes of the body that wait too, and have been scanned.
    pub(crate) scanned: usize,
}

impl Granted {
    pub(crate) fn new(now: Instant, grant: Grant, load: Load) -> Self {
        Self {
            load,
            granted_at: now,
            pool: grant.pool,
            retries_not_found: grant.retry_not_found,
            restart_on: None,
            endpoint: grant.endpoints.into_iter().next(),
            prefill_endpoint: grant.prefill_endpoint,
            report: QueueReport {
                outcome: grant.outcome,
                queue_us: grant.queue_us,
                saturation_milli: grant.saturation_milli,
                rate_limit: grant.rate_limit.map(RateLimit::from),
            },
            by_credit: None,
            upstream: Upstream::Pending,
        }
    }

    /// The place of a credit that the request holds.
    pub(crate) fn place(&self) -> Option<Place> {
        self.by_credit.as_ref()?.place
    }

    /// A server's response is complete, and only its end was read, which lacks the token counts.
    pub(crate) fn lacks_counts(&mut self) -> bool {
        if let Upstream::Responding(response) = &mut self.upstream {
            response.is_complete && !response.scanner.read_tail()
        } else {
            false
        }
    }

    /// A server's long response is complete, was read whole, and has its token counts at its end.
    pub(crate) fn has_counts_at_end(&self) -> bool {
        matches!(&self.upstream, Upstream::Responding(response)
            if response.is_complete && response.scanner.has_counts_at_end())
    }

    /// The entry of this exchange in a Hello; `None` if it was requeued, and the requeue listener's filter lists it.
    pub(crate) fn running(&self, now: Instant, register: Register) -> Option<Running> {
        let response = match &self.upstream {
            Upstream::Responding(response) => Some(response),
            Upstream::Pending
            | Upstream::Unanswered { .. }
            | Upstream::EndedByEnvoy { .. }
            | Upstream::Evicted { .. } => None,
            Upstream::Requeued { .. } => return None,
        };
        let endpoint = response.map_or(&self.endpoint, |response| &response.endpoint);
        let (pool, endpoint) = (self.pool.clone(), endpoint.clone());
        Some(self.running_at(now, pool, endpoint, register))
    }

    /// The answer of a server whose time was over, so that the request has come in again: it is reported as a request of its own, and what is
    /// left here ends as the requeued request that it is. `None`: no server has answered.
    pub(crate) fn split_late_answer(&mut self) -> Option<Self> {
        let Upstream::Responding(response) = &self.upstream else {
            return None;
        };
        let (status, endpoint) = (response.status, response.endpoint.clone());
        Some(Self {
            granted_at: self.granted_at,
            pool: self.pool.clone(),
            endpoint,
            prefill_endpoint: String::new(),
            retries_not_found: false,
            restart_on: None,
            report: self.report.clone(),
            by_credit: Some(ByCredit { credit: NO_CREDIT, place: None, known_since: None }),
            upstream: core::mem::replace(&mut self.upstream, Upstream::Requeued { status }),
            load: Load::default(),
        })
    }

    /// The report of an admission by the credit with this id. Its endpoint is that of the place.
    pub(crate) fn admitted(&self, now: Instant, credit: u64, register: Register) -> Admitted {
        let (pool, endpoint) = (self.pool.clone(), self.endpoint.clone());
        Admitted { running: Some(self.running_at(now, pool, endpoint, register)), credit, completed: None }
    }

    /// The report of an admission by credit at the end of the exchange.
    pub(crate) fn ended(
        mut self,
        now: Instant,
        credit: u64,
        register: Register,
        host: &impl Properties,
    ) -> Admitted {
        let (sequence, is_background) = (register.sequence, is_background(&register));
        let (pool, endpoint) = (core::mem::take(&mut self.pool), self.endpoint.take());
        Admitted {
            running: Some(self.running_at(now, pool, endpoint, register)),
            credit,
            completed: Some(self.completed(now, (sequence, is_background), host)),
        }
    }

    /// The entry of this exchange in a Hello, at this endpoint.
    pub(crate) fn running_at(
        &self,
        now: Instant,
        pool: String,
        endpoint: Option<String>,
        register: Register,
    ) -> Running {
        let response = match &self.upstream {
            Upstream::Responding(response) => Some(response),
            Upstream::Pending
            | Upstream::Unanswered { .. }
            | Upstream::EndedByEnvoy { .. }
            | Upstream::Evicted { .. }
            | Upstream::Requeued { .. } => None,
        };
        Running {
            register: Some(register),
            pool,
            endpoint: endpoint.unwrap_or_default(),
            age_us: now.micros_since(self.granted_at),
            started: response.is_some(),
            first_token: response.is_some_and(|response| response.scanner.has_token()),
            prefill_endpoint: match response {
                None => self.prefill_endpoint.clone(),
                Some(_) => String::new(),
            },
        }
    }

    /// The event for the headers of a response.
    pub(crate) fn started(&self, now: Instant, sequence: u64, response: &Response) -> Started {
        Started {
            sequence,
            endpoint: response.endpoint.clone().unwrap_or_default(),
            status: response.status,
            attempts: response.attempts,
            after_us: now.micros_since(self.granted_at),
            first_token: false,
        }
    }

    /// The event for the end of the exchange. Asks the host only for facts that the filter hasn't seen. `is_background`: see
    /// [`is_background`].
    pub(crate) fn completed(
        self,
        now: Instant,
        (sequence, is_background): (u64, bool),
        host: &impl Properties,
    ) -> Completed {
        let mut completed = self.completed_answer(now, sequence, host);
        let is_acknowledged = (200..300).contains(&completed.status)
            && matches!(completed.end(), EndReason::Served | EndReason::NoAnswer);
        let has_output =
            completed.output_tokens.is_some_and(|output| output > 0) || completed.output_chunks > 0;
        // Of a stream in the background, too, the answer can be fetched later.
        let has_left = (200..300).contains(&completed.status) && completed.end() == EndReason::ClientLeft;
        if is_background && (is_acknowledged && !has_output || has_left) {
            completed.end = EndReason::RunsOn.into();
        }
        completed
    }

    fn completed_answer(self, now: Instant, sequence: u64, host: &impl Properties) -> Completed {
        let ended_us = now.micros_since(self.granted_at);
        let (status, end) = match self.upstream {
            Upstream::Responding(response) => {
                return Completed { ended_us, ..response.completed(self.granted_at, sequence, host) };
            }
            Upstream::Unanswered { failure, status } => (status, failure.end_reason()),
            Upstream::Evicted { status } => (status, EndReason::Evicted),
            // None of the granted endpoints accepted the request, whatever its requeued exchange came to.
            Upstream::Requeued { status } => (status, EndReason::Unavailable),
            Upstream::EndedByEnvoy { status } => (status, unfinished(&response_code_details(host), false)),
            Upstream::Pending => (0, unfinished(&response_code_details(host), false)),
        };
        Completed {
            sequence,
            endpoint: upstream_address(host).unwrap_or_default(),
            status,
            attempts: attempt_count(host),
            end: end.into(),
            ended_us,
            ..Completed::default()
        }
    }
}

impl Response {
    fn completed(mut self, granted_at: Instant, sequence: u64, host: &impl Properties) -> Completed {
        let stats = self.scanner.stats();
        let is_success = (200..300).contains(&self.status);
        let error_status = (stats.is_failed && !stats.has_token).then(|| self.scanner.error().status());
        let end = match (self.replaced_by.or(error_status.filter(|_| is_success)), self.is_complete) {
            _ if self.is_timed_out && stats.body_bytes == 0 => EndReason::TimedOutBeforeAnswer,
            _ if self.is_timed_out => EndReason::TimedOutInsideAnswer,
            _ if self.is_unseen => EndReason::Served,
            (Some(_), _) => EndReason::ReportedError,
            (None, _) if stats.is_failed && is_success => EndReason::ErrorInsideAnswer,
            (None, true) if is_success && !stats.is_answer => EndReason::NoAnswer,
            (None, true) => EndReason::Served,
            (None, false) => match unfinished(&response_code_details(host), true) {
                // Many clients leave as soon as they have read the last event.
                EndReason::ClientLeft if stats.is_finished && usage_is_final(&stats) => EndReason::Served,
                end => end,
            },
        };
        let status = match end {
            EndReason::ReportedError => self.replaced_by.or(error_status).unwrap_or(self.status),
            _ => self.status,
        };
        let since_grant = |moment: Option<Instant>| moment.map(|moment| moment.micros_since(granted_at));
        let ResponseStats { usage, text_events, text_bytes, body_bytes, first_token, last_byte, .. } = stats;
        Completed {
            sequence,
            endpoint: self.endpoint.unwrap_or_default(),
            status,
            attempts: self.attempts,
            end: end.into(),
            first_token_us: since_grant(first_token),
            last_byte_us: since_grant(last_byte),
            prompt_tokens: usage.prompt,
            cached_tokens: usage.cached,
            output_tokens: usage.output,
            output_chunks: text_events,
            text_bytes,
            body_bytes,
            ended_us: 0,
        }
    }
}

/// The server acknowledges the request, and computes its answer afterwards: its client asks for it later.
pub(crate) fn is_background(register: &Register) -> bool {
    register.background && register.api() == Api::Responses
}

/// The server has counted the output, at least as many tokens as events.
fn usage_is_final(stats: &ResponseStats) -> bool {
    stats.usage.output.is_some_and(|output| output >= stats.text_events.max(1))
}
