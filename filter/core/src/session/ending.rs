//! Ends streams that the companion would go on with.

use penstock_wire::Bye;
use penstock_wire::filter_frame::Event;

use super::{Link, Session, SessionEffect};
use crate::time::Instant;

impl Session {
    /// The session carries more requests than its Hello has listed: opens another stream, whose Hello lists all.
    pub(crate) fn relist(&mut self, now: Instant) {
        if self.is_linked() {
            self.down_since.get_or_insert(now);
            self.link = Link::Broken { retry_at: now };
        }
    }

    /// Ends the session because the host shuts down.
    pub(crate) fn shut_down(&mut self) {
        if self.is_linked() || matches!(self.link, Link::Probing { .. }) {
            self.send(Event::Bye(Bye {}));
        }
    }

    /// Ends the session because no request needs it any more. Call it from a tick.
    pub(crate) fn end(&mut self) {
        self.shut_down();
        self.effects.push_back(SessionEffect::ResetStream);
    }
}
