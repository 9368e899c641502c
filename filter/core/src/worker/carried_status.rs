//! Errors that the requeue listener answers while an attempt that has run out of time goes on (`silent_servers`).
//!
//! Of two attempts, Envoy takes the first answer with a status that it wouldn't retry, and drops the others while one is left. So an
//! error would wait for a server that is silent. Such an error comes from the requeue listener under a status that nobody retries, and
//! with its own status in a header. The listener before puts it back.

use penstock_wire::names;

use super::Worker;
use crate::effect::ResponseHeadersAction;
use crate::exchange::{Exchange, Phase, Upstream};
use crate::header_sanitizer::HeaderEdit;
use crate::headers::Headers;
use crate::local_reply::LocalReply;

/// No pool's `requeue_on` can have it, and no server is known to send it.
const CARRIED: &str = "599";
const CARRIED_STATUS: u32 = 599;
const STATUS: &str = ":status";

/// The status of a response. If it comes from the requeue listener, that of the error that it carries.
pub(super) fn status(headers: Headers<'_>) -> u32 {
    let number = |name| headers.text(name, 3).and_then(|status| status.parse().ok());
    match number(STATUS) {
        Some(CARRIED_STATUS) => number(names::STATUS_HEADER).unwrap_or(CARRIED_STATUS),
        status => status.unwrap_or(0),
    }
}

/// The status of the edited headers.
fn edited_status(edits: &[HeaderEdit], headers: Headers<'_>) -> u32 {
    let set = edits.iter().rev().find_map(|edit| match edit {
        HeaderEdit::Set(STATUS, status) => status.parse().ok(),
        HeaderEdit::SetStatic(STATUS, status) => status.parse().ok(),
        _ => None,
    });
    set.unwrap_or_else(|| status(headers))
}

impl Worker {
    /// The answer to this request goes to a listener with an attempt that goes on.
    fn carries_status(&self, exchange: &Exchange) -> bool {
        let failed = exchange.register.failed_attempt.as_ref();
        self.is_requeue_listener && failed.is_some_and(|attempt| attempt.timed_out)
    }

    /// Puts the status of an error back, or into its header. `action`: what happens to the headers otherwise.
    pub(super) fn carry_status(
        &self,
        sequence: u64,
        headers: Headers<'_>,
        mut action: ResponseHeadersAction,
    ) -> ResponseHeadersAction {
        let Some(exchange) = self.exchanges.get(&sequence) else {
            return action;
        };
        let is_carried = headers.get(names::STATUS_HEADER).is_some();
        let is_requeued = matches!(&exchange.phase, Phase::Granted(granted)
            if matches!(granted.upstream, Upstream::Requeued { .. }));
        if self.carries_status(exchange) {
            let status = edited_status(&action.edits, headers);
            if status >= 400 {
                action.edits.push(HeaderEdit::Set(names::STATUS_HEADER, status.to_string()));
                action.edits.push(HeaderEdit::SetStatic(STATUS, CARRIED));
                return action;
            }
        } else if is_carried && is_requeued {
            action.edits.push(HeaderEdit::Set(STATUS, status(headers).to_string()));
        }
        if is_carried {
            action.edits.push(HeaderEdit::Remove(names::STATUS_HEADER.into()));
        }
        action
    }

    /// The same for an error that takes the place of a response whose headers have come.
    pub(super) fn carry_reply(&self, sequence: u64, mut reply: LocalReply) -> LocalReply {
        if self.exchanges.get(&sequence).is_some_and(|exchange| self.carries_status(exchange)) {
            reply.headers.push((names::STATUS_HEADER, reply.status.to_string()));
            reply.status = CARRIED_STATUS;
        }
        reply
    }
}
