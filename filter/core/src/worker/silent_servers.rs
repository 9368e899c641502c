//! Limits on the silence of servers: `timeouts.first_byte` and `timeouts.idle` of a pool.
//!
//! Until a server's headers, Envoy has the time, by a header of the request. An attempt that runs out of it while the request can come in
//! again goes on beside the next one, because Envoy would end the next one, which waits in the queue, after the same time. The first that
//! answers ends the other. From the headers on, the worker has the time. A byte of a body sets no timer: when one is due, the response is
//! looked at, and it is set again.

use core::time::Duration;
use std::collections::BTreeSet;

use penstock_wire::{AttemptFailed, Grant};

use super::Worker;
use crate::compiled_policy::PoolPolicy;
use crate::effect::{Effect, StreamAction};
use crate::end_reason::UpstreamFailure;
use crate::exchange::{Exchange, Granted, Phase, SilenceLimit, Upstream};
use crate::failed_attempts::FailedAttempts;
use crate::local_reply::LocalReply;
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
        let first_byte_by = pool.first_byte.map(|longest| {
            let since_grant = granted_at.after(longest);
            // An attempt that isn't the first one, or is late, begins to count with its headers.
            if since_grant > now { since_grant } else { now.after(longest) }
        });
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

/// Notes the attempt of a grant with a limited silence, which goes on when its time is over. If its request comes in again after that, and
/// Envoy hasn't logged the end of the attempt, the server was silent.
pub(super) fn watch_attempt(
    attempts: &FailedAttempts,
    now: Instant,
    epoch: Epoch,
    exchange: &Exchange,
    grant: &Grant,
) {
    let (Some(longest), Some(endpoint)) = (exchange.first_byte(), grant.endpoints.first()) else {
        return;
    };
    if !grant.requeue {
        return;
    }
    let (sequence, pool, endpoint) = (grant.sequence, grant.pool.clone(), endpoint.clone());
    let failure = AttemptFailed { sequence, endpoint, pool, timed_out: true, ..AttemptFailed::default() };
    // Envoy's timer begins at the time that its event loop has read last, and so may be early.
    attempts.watch(epoch, now.after(longest.checked_div(2).unwrap_or(longest)), failure);
}

/// How a response ends whose server is silent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SilentEnd {
    /// The client has a part of the response: its stream is reset.
    Reset,
    /// The client has received nothing, and gets this error.
    Reply(LocalReply),
}

impl Worker {
    /// Asks the host to end the responses whose servers have been silent for too long.
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
            if let Some(look_at) = deadline.look_at.filter(|look_at| *look_at > now) {
                limit.timer = look_at;
                self.silence_timers.due.insert((look_at, sequence));
            } else if deadline.ends.is_none() {
                response.silence = None;
            } else if let Some(exchange) = self.exchanges.get(&sequence) {
                let action = StreamAction::EndSilentResponse { sequence };
                self.effects.push_back(Effect::Stream { context: exchange.context, action });
            }
        }
    }

    /// The host is about to end a response whose server is silent. `None`: it isn't any more.
    pub fn end_silent_response(&mut self, now: Instant, sequence: u64) -> Option<SilentEnd> {
        let exchange = self.exchanges.get_mut(&sequence)?;
        let api = exchange.register.api();
        let Phase::Granted(granted) = &mut exchange.phase else {
            return None;
        };
        let Upstream::Responding(response) = &mut granted.upstream else {
            return None;
        };
        let limit = response.silence.as_mut()?;
        let deadline = limit.deadline(now, response.scanner.last_byte());
        if response.is_complete {
            return None;
        }
        if deadline.ends.is_none_or(|ends| ends > now) {
            // A byte has come in the meantime.
            if let Some(look_at) = deadline.look_at {
                limit.timer = look_at;
                self.silence_timers.due.insert((look_at, sequence));
            }
            return None;
        }
        response.is_timed_out = true;
        if response.held.take().is_none() {
            return Some(SilentEnd::Reset);
        }
        let failure = UpstreamFailure::Timeout.failure(retry_after_ms(Duration::ZERO, sequence));
        let mut reply = failure.reply(api, Some(&granted.report));
        response.status = reply.status;
        let served = response.endpoint.clone().unwrap_or_default();
        self.name_server(&mut reply, served);
        Some(SilentEnd::Reply(self.carry_reply(sequence, reply)))
    }
}
