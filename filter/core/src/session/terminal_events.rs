//! Terminal events, which the session keeps until the companion acknowledges them, and sends again after the next Hello.

use penstock_wire::Admitted;
use penstock_wire::filter_frame::Event;
use penstock_wire::limits::UNACKED_EVENTS_MAX;

use super::Session;
use crate::time::Instant;

/// The last event of a request.
#[expect(
    clippy::large_enum_variant,
    reason = "few are kept at a time, and a box would cost every request an allocation"
)]
#[derive(Debug)]
pub(super) enum TerminalEvent {
    Event(Event),
    /// The report of a request that was admitted by credit, and has ended.
    Admitted(Admitted),
}

/// A terminal event that the companion hasn't acknowledged.
#[derive(Debug)]
pub(super) struct UnackedEvent {
    /// The number of its frame in the current stream; `None`: not sent on this stream yet.
    seq: Option<u64>,
    event: TerminalEvent,
}

impl Session {
    /// Number of terminal events that the companion hasn't acknowledged.
    pub(crate) fn unacknowledged(&self) -> usize {
        self.unacked_events.len().saturating_add(self.held.ended())
    }

    /// Sends a terminal event, and keeps it until the companion acknowledges it.
    pub(crate) fn send_terminal(&mut self, now: Instant, event: Event) {
        if self.is_linked() {
            self.send_unacked(event);
            self.check_window(now);
        } else {
            self.keep_unsent(TerminalEvent::Event(event));
        }
    }

    /// Sends the end of a request that was admitted by credit: without the request if the present companion knows it, which is so
    /// if the present Hello has the number `known_since`. The session keeps the event with the request, because the next
    /// companion may not know it.
    pub(crate) fn send_admitted_end(
        &mut self,
        now: Instant,
        mut admitted: Admitted,
        known_since: Option<u32>,
    ) {
        let is_known = self.is_linked() && known_since == Some(self.hello);
        let Some(completed) = admitted.completed.take_if(|_| is_known) else {
            self.report(now, admitted);
            return;
        };
        if let Some(Event::Completed(completed)) = self.send(Event::Completed(completed)) {
            admitted.completed = Some(completed);
            self.keep_sent(TerminalEvent::Admitted(admitted));
        }
        self.check_window(now);
    }

    /// Makes room for a terminal event.
    fn make_room(&mut self) {
        if self.unacked_events.len() >= UNACKED_EVENTS_MAX {
            // The next Hello doesn't list the event's request, so the companion settles it by its estimate.
            self.unacked_events.pop_front();
        }
    }

    /// Keeps an event of the last frame.
    pub(super) fn keep_sent(&mut self, event: TerminalEvent) {
        self.make_room();
        let seq = Some(self.window.last_sent());
        self.unacked_events.push_back(UnackedEvent { seq, event });
    }

    /// Keeps an event for the next stream.
    pub(super) fn keep_unsent(&mut self, event: TerminalEvent) {
        self.make_room();
        self.unacked_events.push_back(UnackedEvent { seq: None, event });
    }

    fn send_unacked(&mut self, event: Event) {
        if let Some(event) = self.send(event) {
            self.keep_sent(TerminalEvent::Event(event));
        }
    }

    /// Sends all kept events again, after a Hello.
    pub(super) fn repeat_unacked(&mut self, now: Instant) {
        for UnackedEvent { event, .. } in core::mem::take(&mut self.unacked_events) {
            match event {
                TerminalEvent::Event(event) => self.send_unacked(event),
                TerminalEvent::Admitted(report) => self.report(now, report),
            }
        }
        self.send_held(now);
        // The backlog of a new stream doesn't count as a companion that acknowledges nothing.
        self.window.forgive_unacked();
    }

    /// The companion has handled the frames up to this number.
    pub(super) fn remove_acknowledged(&mut self, ack: u64) {
        while self.unacked_events.front().is_some_and(|unacked| unacked.seq.is_some_and(|seq| seq <= ack)) {
            self.unacked_events.pop_front();
        }
    }
}
