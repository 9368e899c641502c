//! Finds the companion that leads.

use core::num::NonZeroU64;

use penstock_wire::Role;
use penstock_wire::limits::{HEARTBEAT_INTERVAL, LEADER_WAIT, PROBE_WAIT, TAKEOVER_WAIT};

use super::{Link, OLDER_COMPANION, Session, SessionEffect};
use crate::time::Instant;

impl Session {
    /// A companion reports which one leads.
    pub(super) fn handle_role(&mut self, now: Instant, role: Role) {
        if role.here {
            if self.is_outdated(role.term) {
                self.abort(now, OLDER_COMPANION);
            } else {
                // Until the Hello, nothing may be sent that the companion would take for a part of it.
                self.link = Link::Probing { until: now.after(PROBE_WAIT) };
                self.must_greet = true;
            }
            return;
        }
        self.down_since.get_or_insert(now);
        // The companion of an outdated leader learns of the present one later.
        if role.leader.is_empty() || role.term < self.term {
            let has_lease = role.leader.is_empty() && role.term != 0 && role.term >= self.term;
            let wait = if has_lease {
                TAKEOVER_WAIT
            } else {
                // The leader that the filter couldn't reach may have been away for a moment: the filter tries it again.
                self.redirected = None;
                // A picker has no other companion to ask.
                if self.settings.is_picker { HEARTBEAT_INTERVAL } else { LEADER_WAIT }
            };
            self.link = Link::Probing { until: now.after(wait) };
            return;
        }
        let text = format!("{}: the leader is {}", self.title(), role.leader);
        self.effects.push_back(SessionEffect::LogInfo(text));
        // Without delay, unless a redirect to this leader or a later one has led to no session: companions may disagree for
        // a while.
        let term = NonZeroU64::new(role.term);
        let is_first = self.redirected.is_none_or(|last| Some(last) < term);
        self.redirected = self.redirected.max(term.or(Some(NonZeroU64::MIN)));
        let retry_at = self.mark_down(now);
        self.leader = Some(role.leader);
        let retry_at = if is_first { now } else { retry_at };
        self.link = Link::Broken { retry_at };
    }

    /// Gives up a stream without a leader, because another companion may know one.
    pub(super) fn try_another_companion(&mut self, now: Instant) {
        let retry_at = self.mark_down(now);
        self.effects.push_back(SessionEffect::ResetStream);
        self.link = Link::Closed { retry_at };
    }
}
