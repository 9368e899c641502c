//! Requests whose clients have left before the end of the answer. A server may compute on, so their load stays in the stock of
//! their endpoint until the server's own count shows that they have ended.
//!
//! A server that notices the client's end at once loses a place until its next report, and no server gets more than its bound
//! from clients that leave early. Some servers report an old number while they are idle. So an endpoint without any other
//! request takes one again after a while.

use alloc::collections::VecDeque;
use core::time::Duration;

use super::Endpoint;
use crate::limits::{ABANDONED_ALONE_S, ABANDONED_KEPT_S, ABANDONED_MAX, ABANDONED_STILL_S};
use crate::load::Load;
use crate::time::Instant;

/// The abandoned requests of an endpoint, in the order in which their clients left.
#[derive(Debug, Default)]
pub(crate) struct Abandoned {
    requests: VecDeque<(Instant, Load)>,
    /// The sequences of all.
    sequences: u64,
    /// Since when no other request runs at the endpoint, by its reports, and the server has generated this many tokens.
    alone: Option<(Instant, Option<u64>)>,
}

impl Abandoned {
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Sequences of all abandoned requests.
    pub(crate) const fn sequences(&self) -> u64 {
        self.sequences
    }

    /// Since when the oldest one is abandoned.
    pub(crate) fn since(&self) -> Option<Instant> {
        self.requests.front().map(|(since, _)| *since)
    }

    /// The load of each.
    pub(crate) fn loads(&self) -> impl Iterator<Item = Load> {
        self.requests.iter().map(|(_, load)| *load)
    }
}

/// For how long an abandoned request counts at most.
pub(crate) fn abandoned_kept(release_after: Option<Duration>) -> Duration {
    release_after.unwrap_or(Duration::from_secs(ABANDONED_KEPT_S))
}

impl Endpoint {
    /// The client of a request with this load has left. `served`: the server processed the request.
    pub(crate) fn abandon(
        &mut self,
        now: Instant,
        load: Load,
        served: bool,
        release_after: Option<Duration>,
    ) {
        self.note_end(now, served);
        if !self.listed || !(self.is_reported || release_after.is_some()) {
            return self.remove(load);
        }
        if self.abandoned.len() >= ABANDONED_MAX {
            self.release_oldest();
        }
        self.abandoned.requests.push_back((now, load));
        self.abandoned.sequences += load.sequences;
    }

    /// Ends the abandoned requests that count since `until` or longer.
    pub(crate) fn release_abandoned_until(&mut self, until: Instant) {
        while self.abandoned.since().is_some_and(|since| since <= until) {
            self.release_oldest();
        }
    }

    /// The server reports so many running sequences. What it runs beyond those of clients that are still there, and beyond the
    /// foreign ones of the last report, is abandoned work. What waits in the server's own queue will run. A report
    /// releases no request whose client left after the report was requested: the server may not have counted that request yet.
    pub(super) fn follow_report(&mut self, now: Instant, running: u64) {
        let waiting = self.stats.waiting.unwrap_or(0);
        let ours = self.sequences().saturating_sub(self.abandoned.sequences);
        let others = ours.saturating_add(self.foreign);
        let until = now.before(self.stats.asked_ago);
        self.release_abandoned(running.saturating_add(waiting).saturating_sub(others), until);
        if ours > 0 || self.abandoned.sequences == 0 {
            self.abandoned.alone = None;
            return;
        }
        let generated = self.stats.generated;
        let since = match self.abandoned.alone {
            Some((since, before)) if before == generated => since,
            Some(_) | None => now,
        };
        self.abandoned.alone = Some((since, generated));
        let seconds = if generated.is_some() { ABANDONED_STILL_S } else { ABANDONED_ALONE_S };
        if now.since(since) >= Duration::from_secs(seconds) {
            self.release_abandoned(0, now);
        }
    }

    /// The endpoint is no longer listed.
    pub(super) fn forget_abandoned(&mut self) {
        self.release_abandoned(0, Instant::MAX);
        self.abandoned.alone = None;
    }

    /// Ends the oldest abandoned requests until at most so many sequences of them are left. A request whose client left
    /// after `until` stays.
    pub(super) fn release_abandoned(&mut self, sequences: u64, until: Instant) {
        while let Some(excess) = self.abandoned.sequences.checked_sub(sequences).filter(|excess| *excess > 0)
            && self.abandoned.since().is_some_and(|since| since <= until)
        {
            match self.abandoned.requests.front_mut() {
                // Some of its sequences have ended.
                Some((_, load)) if load.sequences > excess => {
                    load.sequences -= excess;
                    self.abandoned.sequences -= excess;
                    self.running.sequences -= excess;
                    if load.extra.is_used() {
                        load.extra.sequences -= excess;
                        self.running.extra.sequences -= excess;
                    }
                }
                Some(_) => self.release_oldest(),
                None => return,
            }
        }
    }

    fn release_oldest(&mut self) {
        if let Some((_, load)) = self.abandoned.requests.pop_front() {
            self.abandoned.sequences -= load.sequences;
            self.remove(load);
        }
    }
}
