//! Errors that the requeue listener answers while an attempt that has run out of time goes on (`silent_servers`).
//!
//! Of two attempts, Envoy takes the first answer with a status that it wouldn't retry, and drops the others while one is left. So an
//! error would wait for the silent server. Therefore the requeue listener sends such an error with the status 599, which no router retries, and
//! with the error's status in a header. The listener that has sent the request there puts the status back.

use penstock_wire::names;

use super::Worker;
use crate::effect::ResponseHeadersAction;
use crate::exchange::{Exchange, Phase, Upstream};
use crate::header_sanitizer::HeaderEdit;
use crate::headers::Headers;
use crate::local_reply::LocalReply;

/// No pool's `requeue_on` can have it, and no server is known to send it.
const CARRIED: u32 = 599;
const STATUS: &str = ":status";

fn number(headers: Headers<'_>, name: &str) -> Option<u32> {
    core::str::from_utf8(headers.get(name)?).ok()?.parse().ok()
}

/// The status of a response; 0: it has none.
pub(super) fn of_response(headers: Headers<'_>) -> u32 {
    number(headers, STATUS).unwrap_or(0)
}

/// The status of a response from the requeue listener, which may be in its own header.
pub(super) fn of_requeued(headers: Headers<'_>) -> u32 {
    number(headers, names::STATUS_HEADER).unwrap_or_else(|| of_response(headers))
}

/// The status of headers after these edits, of which the last one counts.
fn edited_status(edits: &[HeaderEdit], status: u32) -> u32 {
    let set = edits.iter().rev().find_map(|edit| match edit {
        HeaderEdit::Set(STATUS, status) => status.parse().ok(),
        HeaderEdit::SetStatic(STATUS, status) => status.parse().ok(),
        _ => None,
    });
    set.unwrap_or(status)
}

impl Worker {
    /// Where this request came from, an attempt goes on that has run out of time.
    fn carries_status(&self, exchange: &Exchange) -> bool {
        let failed = exchange.register.failed_attempt.as_ref();
        self.is_requeue_listener && !exchange.is_restarted && failed.is_some_and(|attempt| attempt.timed_out)
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
        let carries = self.carries_status(exchange);
        if !carries && !is_carried {
            return action;
        }
        let status = if is_requeued { of_requeued(headers) } else { of_response(headers) };
        let edited = edited_status(&action.edits, status);
        if carries && edited >= 400 {
            action.edits.push(HeaderEdit::Set(names::STATUS_HEADER, edited.to_string()));
            action.edits.push(HeaderEdit::Set(STATUS, CARRIED.to_string()));
            return action;
        }
        if is_requeued {
            action.edits.push(HeaderEdit::Set(STATUS, status.to_string()));
        }
        action.edits.push(HeaderEdit::Remove(names::STATUS_HEADER.into()));
        action
    }

    /// Puts the status of an error into its header where the error takes the place of a response whose headers have come.
    pub(super) fn carry_reply(&self, sequence: u64, mut reply: LocalReply) -> LocalReply {
        if self.exchanges.get(&sequence).is_some_and(|exchange| self.carries_status(exchange)) {
            reply.headers.push((names::STATUS_HEADER, reply.status.to_string()));
            reply.status = CARRIED;
        }
        reply
    }
}
