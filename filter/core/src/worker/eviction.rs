//! Requests that the companion asks to end, because a critical request waits for their place at a server.
//!
//! Only a request ends whose server hasn't begun to respond. The host may hear of a response before it comes to carry out the effect, so it asks
//! again then. Of any other request the companion learns that its server responds, which it may not know yet.

use penstock_wire::{Evict, Started};

use super::Worker;
use crate::effect::{Effect, SessionId, StreamAction};
use crate::exchange::{Phase, Upstream};
use crate::local_reply::{Failure, QueueReport};
use crate::time::Instant;

impl Worker {
    /// The companion asks for the end of a granted request.
    pub(super) fn handle_evict(&mut self, now: Instant, id: SessionId, evict: &Evict) {
        let Some(answer) = evict.answer.as_ref().filter(|answer| self.carries(id, answer.sequence)) else {
            return;
        };
        let sequence = answer.sequence;
        if !self.is_silent(sequence) {
            self.report_response(now, sequence);
            return;
        }
        if let Some(exchange) = self.exchanges.get(&sequence) {
            let report = QueueReport::from(answer);
            let reply = Failure::from(answer).reply(exchange.register.api(), Some(&report));
            let action = StreamAction::Evict { sequence, reply };
            self.effects.push_back(Effect::Stream { context: exchange.context, action });
        }
    }

    /// The host is about to end a request by a reply with this status. `false`: it must not, because the server responds by now, or the
    /// request has ended otherwise.
    pub fn evict(&mut self, now: Instant, sequence: u64, status: u32) -> bool {
        if !self.is_silent(sequence) {
            self.report_response(now, sequence);
            return false;
        }
        if let Some(exchange) = self.exchanges.get_mut(&sequence)
            && let Phase::Granted(granted) = &mut exchange.phase
        {
            granted.upstream = Upstream::Evicted { status };
        }
        true
    }

    /// The request was granted, and no server has begun to respond.
    fn is_silent(&self, sequence: u64) -> bool {
        let exchange = self.exchanges.get(&sequence);
        exchange.is_some_and(|exchange| {
            matches!(&exchange.phase, Phase::Granted(granted) if matches!(granted.upstream, Upstream::Pending))
        })
    }

    /// Reports that the server of a granted request responds, if it does.
    fn report_response(&mut self, now: Instant, sequence: u64) {
        let Some(exchange) = self.exchanges.get(&sequence) else {
            return;
        };
        if let Phase::Granted(granted) = &exchange.phase
            && let Upstream::Responding(response) = &granted.upstream
        {
            let started = granted.started(now, sequence, response);
            let first_token = response.scanner.has_token();
            self.report_start(now, Started { first_token, ..started });
        }
    }
}
