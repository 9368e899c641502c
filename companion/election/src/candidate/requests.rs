//! Which request a candidate sends next.

use penstock_engine::Instant;

use super::{Candidate, Outstanding, Phase};
use crate::messages::{Holder, Output, Request, View};
use crate::record::Record;

impl Candidate {
    /// Sends the request that the present state needs, unless one is outstanding.
    pub(super) fn send_next(&mut self, now: Instant) {
        let is_waiting = self.outstanding.is_some() || self.retry_at.is_some_and(|retry| now < retry);
        if is_waiting || self.phase == Phase::Stopped {
            return;
        }
        let Some(view) = &self.view else { return };
        let version = view.version;
        let request = match (&self.leading, view.holder) {
            (Some(leading), Holder::Me) if now >= self.renewal_due(leading) => Request::Renew { version },
            (Some(leading), Holder::Me) if view.record.as_ref() != Some(&leading.record) => {
                Request::Write { version, record: leading.record.clone() }
            }
            (Some(leading), Holder::None) => {
                let record = Record { term: self.next_term(now), ..leading.record.clone() };
                Request::Acquire { version, record }
            }
            (None, Holder::Me) => self.settle_stray_lease(now, view),
            (None, Holder::None)
                if self.can_acquire(now) && !self.hesitates(now) && (self.wanted || self.is_vacant(view)) =>
            {
                let record = self.takeover(now, view);
                Request::Acquire { version, record }
            }
            _ => return,
        };
        if let Request::Acquire { .. } = request {
            self.release = None;
        }
        self.outputs.push_back(Output::Request(request.clone()));
        self.outstanding = Some(Outstanding { request, sent_at: now });
    }

    /// The request of a standby that holds the lease: it just stepped down, or an acquisition succeeded whose answer was lost.
    fn settle_stray_lease(&self, now: Instant, view: &View) -> Request {
        let version = view.version;
        let is_own = |record: &&Record| record.leader == self.settings.address;
        match (&self.release, view.record.as_ref().filter(is_own)) {
            (None, Some(_)) if self.can_acquire(now) => Request::Renew { version },
            (Some(record), _) => Request::Release {
                version,
                record: Record { term: record.term.max(self.highest_term), ..record.clone() },
            },
            (None, record) => Request::Release {
                version,
                record: record.cloned().unwrap_or_default().given_up(self.highest_term),
            },
        }
    }

    pub(super) fn can_acquire(&self, now: Instant) -> bool {
        self.phase == Phase::Running && self.not_before.is_none_or(|not_before| not_before <= now)
    }

    /// No other leader can be in charge. If the record has this companion's own address, its leader was an earlier process here.
    pub(super) fn is_vacant(&self, view: &View) -> bool {
        let is_vacant = |record: &Record| record.is_vacant() || record.leader == self.settings.address;
        view.record.as_ref().is_none_or(is_vacant)
    }

    /// The record with which a standby takes the lease. The Envoys stay those of the last leader until the takeover is
    /// complete.
    fn takeover(&self, now: Instant, view: &View) -> Record {
        let last = view.record.clone().unwrap_or_default();
        let in_charge = if last.is_vacant() {
            None
        } else {
            // A last leader that didn't complete its own takeover may have left the filters with the one before.
            let before = [last.taking_over_from, Some(last.leader)].into_iter().flatten();
            let mut others = before.filter(|leader| !leader.is_empty() && *leader != self.settings.address);
            others.next()
        };
        Record {
            term: self.next_term(now),
            leader: self.settings.address.clone(),
            envoys: last.envoys,
            pickers: last.pickers,
            released: false,
            taking_over_from: in_charge,
        }
    }

    /// A term above all earlier ones. A companion that runs alone, without a store, has the Unix time in ms of its start as
    /// term, and filters refuse lower terms. So a new term is at least the Unix time: neither turning replicas on or off nor deleting the
    /// record lowers it.
    fn next_term(&self, now: Instant) -> u64 {
        let uptime = u64::try_from(now.since(self.started).as_millis()).unwrap_or(u64::MAX);
        let unix_ms = self.started_unix_ms.saturating_add(uptime);
        self.highest_term.saturating_add(1).max(unix_ms)
    }
}
