//! Notices an Envoy that pauses requests for ever, because its plugin configuration lacks `allow_on_headers_stop_iteration`.
//!
//! Without it Envoy takes a pause after the headers for a pause of everything: it receives the body, and never passes it to the
//! filter. So if no request's body has ever come, and Envoy has received a part of one, the request is refused. A client that
//! is slow to send its body isn't refused.

use core::time::Duration;

use penstock_wire::Code;
use penstock_wire::names::outcome;

use super::Worker;
use crate::effect::{Effect, StreamAction};
use crate::exchange::{Exchange, Phase};
use crate::limits::{BODY_CALLBACK_CHECK_INTERVAL, BODY_CALLBACK_WAIT, BODY_CHECKS_MAX, TICK_MIN};
use crate::local_reply::{Failure, LocalReply};
use crate::time::Instant;

/// Between two lines in Envoy's log.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// What is known about the body callbacks of this worker.
#[derive(Debug, Default)]
pub(super) struct BodyCallbacks {
    /// Envoy has passed a body, or its end.
    have_come: bool,
    checked_at: Option<Instant>,
    /// The next request to look at, so that all have their turn.
    next: u64,
    /// Requests refused since the last line in the log.
    refused: u64,
    logged_at: Option<Instant>,
}

impl BodyCallbacks {
    /// A body callback has come, so more will.
    pub(super) fn record(&mut self) {
        self.have_come = true;
    }

    /// No body callback has come yet.
    pub(super) const fn are_missing(&self) -> bool {
        !self.have_come
    }

    /// A request was refused. Returns the line to log, if it is time for one.
    fn refuse(&mut self, now: Instant) -> Option<String> {
        self.refused = self.refused.saturating_add(1);
        if self.logged_at.is_some_and(|logged| logged.after(LOG_INTERVAL) > now) {
            return None;
        }
        self.logged_at = Some(now);
        let refused = core::mem::take(&mut self.refused);
        Some(format!(
            "this Envoy doesn't pass request bodies to the filter: set `allow_on_headers_stop_iteration: true` in the filter's plugin \
             configuration (PluginConfig); requests answered 503 {} since the last such line: {refused}",
            Code::FilterMisconfigured.as_str()
        ))
    }
}

impl Worker {
    /// Has the host count what requests have received whose bodies are overdue.
    pub(super) fn check_body_callbacks(&mut self, now: Instant) {
        let callbacks = &mut self.body_callbacks;
        let interval = BODY_CALLBACK_CHECK_INTERVAL.saturating_sub(TICK_MIN);
        let is_early = (callbacks.checked_at).is_some_and(|checked| checked.after(interval) > now);
        if !callbacks.are_missing() || is_early {
            return;
        }
        callbacks.checked_at = Some(now);
        let is_overdue = |exchange: &Exchange| match &exchange.phase {
            Phase::ReadingBody(reading) => reading.since.after(BODY_CALLBACK_WAIT) <= now,
            Phase::Waiting { .. } | Phase::KeptAlive | Phase::Granted(_) | Phase::Answered => false,
        };
        let first = callbacks.next;
        let in_turn = self.exchanges.range(first..).chain(self.exchanges.range(..first));
        let overdue = in_turn.filter(|(_, exchange)| is_overdue(exchange));
        for (sequence, exchange) in overdue.take(BODY_CHECKS_MAX) {
            callbacks.next = sequence.saturating_add(1);
            let action = StreamAction::CountReceived { sequence: *sequence };
            self.effects.push_back(Effect::Stream { context: exchange.context, action });
        }
    }

    /// Envoy has received so many bytes of the body of a paused request. Returns the reply to send, if the filter never gets them.
    pub fn handle_received(&mut self, now: Instant, sequence: u64, bytes: u64) -> Option<LocalReply> {
        let exchange = self.exchanges.get(&sequence)?;
        let is_reading = matches!(exchange.phase, Phase::ReadingBody(_));
        if bytes == 0 || !is_reading || !self.body_callbacks.are_missing() {
            return None;
        }
        if let Some(line) = self.body_callbacks.refuse(now) {
            self.effects.push_back(Effect::LogError(line));
        }
        let message = "This Envoy doesn't pass request bodies to Penstock's filter. Its operator must set \
                       allow_on_headers_stop_iteration to true in the filter's plugin configuration.";
        let failure = Failure::new(503, Code::FilterMisconfigured, message);
        Some(self.refuse(now, sequence, &failure, outcome::GATEWAY_UNAVAILABLE))
    }
}
