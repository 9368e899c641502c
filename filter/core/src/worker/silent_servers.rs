//! Limits on the silence of servers: `timeouts.first_byte` and `timeouts.idle` of a pool.
//!
//! Until a server's headers, Envoy has the time, by a header of the request. An attempt that runs out of it while the request can come in
//! again goes on beside the next one, because Envoy would end the next one, which waits in the queue, after the same time. The first that
//! answers ends the other. From the headers on, the worker has the time. A byte of a body sets no timer: when one is due, the response is
//! looked at, and it is set again.

use core::time::Duration;
use std::collections::BTreeSet;

use penstock_wire::{AttemptFailed, Grant, names};

use super::Worker;
use crate::compiled_policy::PoolPolicy;
use crate::effect::Effect;
use crate::end_reason::UpstreamFailure;
use crate::exchange::{Exchange, Granted, Phase, Response, SilenceLimit, Upstream};
use crate::failed_attempts::FailedAttempts;
use crate::retry_advice::retry_after_ms;
use crate::session::Epoch;
use crate::time::Instant;

/// The responses whose silence is limited, in the order in which they are looked at.
#[derive(Debug, Default)]
pub(super) struct SilenceTimers {
    due: BTreeSet<(Instant, u64)>,
}

impl SilenceTimers {
    /// When the next response must be looked at.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// The limit on the silence of a response that begins now, with its timer; `None`: there is none.
    pub(super) fn start(
        &mut self,
        now: Instant,
        sequence: u64,
        pool: Option<&PoolPolicy>,
        granted_at: Instant,
    ) -> Option<SilenceLimit> {
        let pool = pool?;
        let first_byte_by = pool.first_byte.map(|longest| granted_at.after(longest));
        let limit = SilenceLimit { first_byte_by, idle: pool.idle, timer: now };
        let timer = limit.deadline(now, None).look_at?;
        self.due.insert((timer, sequence));
        Some(SilenceLimit { timer, ..limit })
    }

    /// A granted request has ended.
    pub(super) fn end(&mut self, sequence: u64, granted: &Granted) {
        if let Upstream::Responding(response) = &granted.upstream
            && let Some(limit) = response.silence
        {
            self.due.remove(&(limit.timer, sequence));
        }
    }
}

/// Notes the attempt of a grant with a limited silence, which goes on when its time is over. If its request comes in again before Envoy has
/// logged the end of the attempt, that is the reason.
pub(super) fn watch_attempt(attempts: &FailedAttempts, epoch: Epoch, exchange: &Exchange, grant: &Grant) {
    if exchange.first_byte().is_none() || !grant.requeue {
        return;
    }
    let Some(endpoint) = grant.endpoints.first().cloned() else {
        return;
    };
    let (sequence, pool) = (grant.sequence, grant.pool.clone());
    attempts.watch(
        epoch,
        AttemptFailed { sequence, endpoint, pool, timed_out: true, ..AttemptFailed::default() },
    );
}

impl Worker {
    /// Ends the responses whose servers have been silent for too long.
    pub(super) fn end_silent_responses(&mut self, now: Instant) {
        while let Some((due, sequence)) = self.silence_timers.due.first().copied() {
            if due > now {
                return;
            }
            self.silence_timers.due.pop_first();
            let Some(response) = self.response(sequence).filter(|response| !response.is_complete) else {
                continue;
            };
            let Some(limit) = &mut response.silence else {
                continue;
            };
            let deadline = limit.deadline(now, response.scanner.last_byte());
            if deadline.ends.is_some_and(|ends| ends <= now) {
                self.end_silent_response(sequence);
            } else if let Some(look_at) = deadline.look_at {
                limit.timer = look_at;
                self.silence_timers.due.insert((look_at, sequence));
            } else {
                response.silence = None;
            }
        }
    }

    /// Cuts a response, or answers in its place if the client has received nothing of it.
    fn end_silent_response(&mut self, sequence: u64) {
        let serves_again = self.is_requeue_listener && self.routes_report_endpoint;
        let Some(exchange) = self.exchanges.get_mut(&sequence) else {
            return;
        };
        let (context, api) = (exchange.context, exchange.register.api());
        let Phase::Granted(granted) = &mut exchange.phase else {
            return;
        };
        let Upstream::Responding(response) = &mut granted.upstream else {
            return;
        };
        response.is_timed_out = true;
        if response.held.take().is_none() {
            self.effects.push_back(Effect::CutResponse { context, sequence });
            return;
        }
        let mut reply = UpstreamFailure::Timeout
            .failure(retry_after_ms(Duration::ZERO, sequence))
            .reply(api, Some(&granted.report));
        response.status = reply.status;
        let served = response.endpoint.clone().unwrap_or_default();
        if serves_again {
            reply.headers.push((names::SERVED_AGAIN_HEADER, served.clone()));
        }
        reply.headers.push((names::SERVED_HEADER, served));
        let reply = self.carry_reply(sequence, reply);
        self.effects.push_back(Effect::Reply { context, reply });
    }

    /// The host is about to cut a response. Returns `false` if it has ended in the meantime.
    pub fn may_cut_response(&mut self, sequence: u64) -> bool {
        self.response(sequence).is_some_and(|response: &mut Response| !response.is_complete)
    }
}
