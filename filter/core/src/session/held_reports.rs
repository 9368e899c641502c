//! Reports of requests that were admitted by credit, which wait for the next frame.
//!
//! Nothing at the companion waits for such a report: until it arrives, the companion counts the credit's place instead of the
//! request. A message of its own for each report would cost Envoy and the companion as much as asking does. So reports wait
//! for the next event, for [`REPORTS_MAX`] of them, or for [`REPORT_HOLD`], and share one frame.

use penstock_wire::Admitted;
use penstock_wire::filter_frame::Event;

use super::terminal_events::TerminalEvent;
use super::{Session, SessionEffect};
use crate::limits::{REPORT_HOLD, REPORTS_MAX};
use crate::time::Instant;

/// Reports that aren't sent yet, in order.
#[derive(Debug, Default)]
pub(super) struct HeldReports {
    reports: Vec<Admitted>,
    /// When the first one must be sent; `None`: there is none.
    due_at: Option<Instant>,
}

impl HeldReports {
    fn push(&mut self, now: Instant, report: Admitted) {
        self.due_at.get_or_insert_with(|| now.after(REPORT_HOLD));
        self.reports.push(report);
    }

    pub(super) const fn due_at(&self) -> Option<Instant> {
        self.due_at
    }

    /// Number of reports of requests that have ended.
    pub(super) fn ended(&self) -> usize {
        let ended = |report: &&Admitted| report.completed.is_some();
        self.reports.iter().filter(ended).count()
    }

    pub(super) fn take(&mut self) -> Vec<Admitted> {
        self.due_at = None;
        core::mem::take(&mut self.reports)
    }

    /// Gives the memory of an empty list back.
    pub(super) fn reuse(&mut self, list: Vec<Admitted>) {
        if self.reports.is_empty() {
            self.reports = list;
        }
    }
}

impl Session {
    /// Reports a request that was admitted by credit, with one of the next frames. If the request has ended, the session keeps
    /// the report until the companion acknowledges it. Otherwise the report is of no use without a stream, because the next
    /// Hello lists the request.
    pub(crate) fn report(&mut self, now: Instant, report: Admitted) {
        if self.is_linked() {
            self.held.push(now, report);
            if self.held.reports.len() >= REPORTS_MAX {
                self.send_held(now);
            }
        } else if report.completed.is_some() {
            self.keep_unsent(TerminalEvent::Admitted(report));
        }
    }

    /// Sends the reports that are held, without an event.
    pub(super) fn send_held(&mut self, now: Instant) {
        if self.held.due_at.is_some() {
            self.send_frame(None);
            self.check_window(now);
        }
    }

    /// Sends the held reports and an event, and gives the event back.
    pub(super) fn send_frame(&mut self, event: Option<Event>) -> Option<Event> {
        let (message, frame) = self.window.encode(event, self.held.take());
        self.effects.push_back(SessionEffect::Send(message));
        let mut reports = frame.admitted;
        for report in reports.drain(..) {
            if report.completed.is_some() {
                self.keep_sent(TerminalEvent::Admitted(report));
            }
        }
        self.held.reuse(reports);
        frame.event
    }

    /// The stream of the held reports has ended: keeps those of ended requests for the next stream.
    pub(super) fn keep_held(&mut self) {
        for report in self.held.take() {
            if report.completed.is_some() {
                self.keep_unsent(TerminalEvent::Admitted(report));
            }
        }
    }
}
