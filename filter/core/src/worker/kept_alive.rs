//! Streams that wait for long: `queue.keep_alive` of a pool.
//!
//! A filter can't begin a response and go on later. So Envoy sends a stream that has waited for so long to a companion, which begins the
//! response, writes comments into it, and sends the request back to this Envoy, to the filter at the requeue listener. There it waits on in its
//! place, under another key, and is granted, requeued and counted as any other. Its first exchange only passes the response on.

use core::time::Duration;
use std::collections::BTreeSet;

use penstock_wire::{Api, names};

use super::Worker;
use crate::effect::{Effect, StreamAction};
use crate::exchange::{Exchange, Phase};
use crate::header_sanitizer::{self, HeaderEdit};
use crate::limits::KEEP_ALIVE_RETRY;
use crate::time::Instant;

/// The streams that wait silently, in the order in which that ends.
#[derive(Debug, Default)]
pub(super) struct KeptAlive {
    due: BTreeSet<(Instant, u64)>,
}

impl KeptAlive {
    /// When the next stream is due.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// A request begins to wait.
    pub(super) fn start(&mut self, sequence: u64, exchange: &Exchange) {
        if let Some(silent) = silent_for(exchange) {
            self.due.insert((exchange.arrived.after(silent), sequence));
        }
    }

    /// A request has ended.
    pub(super) fn end(&mut self, sequence: u64, exchange: &Exchange) {
        if let Some(silent) = silent_for(exchange) {
            self.due.remove(&(exchange.arrived.after(silent), sequence));
        }
    }
}

/// How long the request waits silently; `None`: for ever. Only a stream of events can have comments.
fn silent_for(exchange: &Exchange) -> Option<Duration> {
    let is_stream = exchange.register.stream
        && matches!(
            exchange.register.api(),
            Api::ChatCompletions | Api::Completions | Api::Responses | Api::Messages
        );
    exchange.pool.as_ref().and_then(|pool| pool.keep_alive).filter(|_| is_stream)
}

impl Worker {
    /// Sends the streams that have waited silently for long enough to a companion.
    pub(super) fn keep_alive(&mut self, now: Instant) {
        while let Some((due, sequence)) = self.kept_alive.due.first().copied() {
            if due > now {
                return;
            }
            self.kept_alive.due.pop_first();
            let (Some(key), Some(exchange)) = (&self.key, self.exchanges.get_mut(&sequence)) else {
                continue;
            };
            let Phase::Waiting { registered, .. } = exchange.phase else {
                continue;
            };
            let Some(every) = silent_for(exchange) else {
                continue;
            };
            let session = self.sessions.of(exchange.pool_name());
            if !(registered && session.established_hello().is_some()) {
                // No companion is in charge, or it hasn't read the Hello that lists the request: only then is the request known there.
                self.kept_alive.due.insert((now.after(KEEP_ALIVE_RETRY), sequence));
                continue;
            }
            let token = exchange.waiting_token(self.grant_headers.epoch);
            let mut edits = vec![
                HeaderEdit::Set(names::KEEP_ALIVE_HEADER, every.as_millis().to_string()),
                HeaderEdit::Set(names::REQUEUE_HEADER, token.sign(key)),
            ];
            if exchange.is_body_edited {
                let length = usize::try_from(exchange.register.body_bytes).unwrap_or(usize::MAX);
                edits.extend(header_sanitizer::rewritten(length, exchange.has_length));
            }
            exchange.phase = Phase::KeptAlive;
            let action = StreamAction::Resume { edits, rewrite: None };
            self.effects.push_back(Effect::Stream { context: exchange.context, action });
        }
    }
}
