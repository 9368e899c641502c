//! Eviction: a running sheddable request whose answer hasn't begun is asked to end, because a critical request has waited for its place for
//! longer than [`crate::Policy::eviction`].
//!
//! A critical request that has waited for so long may first take what is free between the bounds of the pool, where waiting requests don't go
//! otherwise. Only if there is nothing, a request is asked to end. One at a time in a pool, because limits, turns and budgets are judged by
//! what is granted: the next one is asked once the place of the last one is free, which it is when its server has ended with it, or after
//! [`EVICTION_WAIT`].
//!
//! It is the one that was granted last of those whose place would be of use. Tenants take turns, because a client that tries again is the last
//! one to be granted each time. An endpoint that hasn't answered since a request was asked to end there is spared while the others answer: its
//! server may hang, and would swallow one critical request after the other.

use alloc::vec::Vec;
use core::time::Duration;

use super::Engine;
use crate::audit::{AuditError, check, check_equal};
use crate::band::TreeBand;
use crate::effect::{Effect, Evict};
use crate::gate::is_over_ceiling;
use crate::ids::JobId;
use crate::input::{Band, RequestId};
use crate::job::Job;
use crate::limits::{EVICTION_WAIT, OVERDUE_SEEN, OVERDUE_TRIED, SILENT_SEEN};
use crate::load::Load;
use crate::policy::BandMode;
use crate::time::Instant;

impl Engine {
    /// When another critical request will have waited for too long.
    pub(super) fn next_eviction(&self) -> Option<Instant> {
        self.evictions.next_due(self.now, self.evicts_after()?)
    }

    fn evicts_after(&self) -> Option<Duration> {
        self.policy.eviction.filter(|_| self.ready && !self.is_manual())
    }

    /// Helps the critical requests that have waited for too long.
    #[inline]
    pub(super) fn evict(&mut self) {
        if let Some(after) = self.evicts_after()
            && self.evictions.is_overdue(self.now, after)
        {
            self.help_overdue(after);
        }
    }

    #[inline(never)]
    fn help_overdue(&mut self, after: Duration) {
        if self.grant_between_bounds(after) {
            // The next request may be one that goes above a bound.
            self.dispatch();
        }
        if !self.evictions.any_silent() || self.is_evicting() {
            return;
        }
        let overdue = self.evictions.overdue(self.now, after).take(OVERDUE_SEEN);
        let free = overdue.filter(|&id| !self.is_held_by_own_limits(id));
        let first: Vec<JobId> = free.take(OVERDUE_TRIED).collect();
        let chosen = first.into_iter().find_map(|id| {
            let victim = self.waits_for_room(id).then(|| self.victim_for(id)).flatten()?;
            Some((victim, id))
        });
        if let Some((victim, id)) = chosen {
            self.ask_to_end(victim, id);
        }
    }

    /// A request was asked to end, and its place isn't free yet.
    fn is_evicting(&self) -> bool {
        self.endpoints.any_evicting() && self.evictions.blocked_until().is_some_and(|until| self.now < until)
    }

    /// Grants critical requests what is free between the bounds of the pool, while one of them has waited for `after`. Below the lower bound,
    /// every request may go. Returns whether something has changed.
    fn grant_between_bounds(&mut self, after: Duration) -> bool {
        let mut has_changed = false;
        let upper = self.endpoints.bounds().upper;
        while self.evictions.is_overdue(self.now, after) && !self.is_open() && self.is_below(upper) {
            self.apply_ceilings(upper);
            let next = self.tree.pick().filter(|&id| self.jobs[id].band == TreeBand::Critical);
            let Some(id) = next.filter(|_| self.rate_limiter.has_token(self.now)) else {
                break;
            };
            if !self.admits_next(id) {
                has_changed = true;
                continue;
            }
            let endpoints = self.choose_endpoints(id, false);
            if endpoints.is_empty() {
                break;
            }
            self.counters.dequeue_attempts += 1;
            self.counters.dequeue_successes += 1;
            self.rate_limiter.take(self.now);
            self.grant_waiting(id, endpoints);
            has_changed = true;
        }
        has_changed
    }

    /// Its owner, its flow's limit or its flow's budget keeps `id` waiting.
    fn is_held_by_own_limits(&self, id: JobId) -> bool {
        let queued = &self.jobs[id].queued;
        queued.suspended || self.tree.is_at_limit(queued.flow) || self.would_exceed_budget(id)
    }

    /// Nothing but the bounds keeps `id`, which is critical, from being granted.
    fn waits_for_room(&self, id: JobId) -> bool {
        if !self.rate_limiter.has_token(self.now) || !self.is_critical_next() {
            return false;
        }
        !self.is_below(self.endpoints.bounds().upper) || self.choose_endpoints(id, false).is_empty()
    }

    /// A critical request gets the next place.
    fn is_critical_next(&self) -> bool {
        match self.policy.bands.mode {
            BandMode::Strict => true,
            BandMode::Weighted(_) => {
                self.tree.pick().is_none_or(|next| self.jobs[next].band == TreeBand::Critical)
            }
        }
    }

    /// The request that is asked to end for `id`: of those whose place `id` can use, one of the tenant whose turn is the longest ago, and the last
    /// one of it to start.
    fn victim_for(&self, id: JobId) -> Option<JobId> {
        let job = &self.jobs[id];
        let mut best: Option<(usize, JobId)> = None;
        for victim in self.evictions.silent().take(SILENT_SEEN) {
            let turn = self.evictions.turn(self.flow_hash(victim));
            if best.is_none_or(|(least, _)| turn < least) && self.makes_room(victim, job) {
                best = Some((turn, victim));
                if turn == 0 {
                    break;
                }
            }
        }
        best.map(|(_, victim)| victim)
    }

    fn flow_hash(&self, id: JobId) -> u64 {
        self.tree.identity_of(self.jobs[id].queued.flow).hashed_name().hash
    }

    /// Without `victim`, its endpoint takes `job`. An endpoint that isn't healthy answers nothing, or is probed by this very request: what
    /// happens to it there must be seen.
    fn makes_room(&self, victim: JobId, job: &Job) -> bool {
        let Some(running) = self.jobs.running(victim) else {
            return false;
        };
        let endpoint = self.endpoints.at_index(running.endpoint);
        let is_sound = !endpoint.reserved
            && endpoint.health.is_healthy()
            && endpoint.pushback.limit().is_none()
            && !self.endpoints.misses_answers(running.endpoint, self.jobs.running_len() as u64);
        let may_use = self.tree.may_use(&job.queued, endpoint);
        if !is_sound || !may_use || !self.pool_takes_in_place(job.band, &running.load) {
            return false;
        }
        endpoint.takes_in_place(&self.load_at(job, endpoint), &running.load, self.policy.gate)
    }

    /// The bounds of the pool let a request of `band` go once one with the load `less` has ended.
    fn pool_takes_in_place(&self, band: TreeBand, less: &Load) -> bool {
        let upper = self.endpoints.bounds().upper;
        let filled = self.endpoints.filled().saturating_sub(less.in_unit(self.policy.gate.unit()));
        let ceiling = self.policy.bands.ceilings[band.shown() as usize];
        let is_over = ceiling.is_some_and(|ceiling| is_over_ceiling(filled, upper, ceiling));
        !is_over && (filled < upper || filled == 0 || self.is_auto())
    }

    /// Asks `victim` to end, for `id`.
    fn ask_to_end(&mut self, victim: JobId, id: JobId) {
        let Some(running) = self.jobs.running_mut(victim) else {
            return;
        };
        running.load.evicted = 1;
        let (endpoint, start) = (running.endpoint, running.start);
        self.evictions.remove_silent(victim, start);
        self.endpoints.note_eviction(endpoint);
        self.evictions.took_turn(self.flow_hash(victim));
        self.evictions.block_until(self.now.after(EVICTION_WAIT));
        let ahead = self.tree.before_next(&self.jobs[victim].queued).requests;
        let expected = self.expected_rate();
        let retry_after = self.drain_rate.retry_after(ahead, expected, &mut self.rng);
        let waited = self.now.since(self.jobs[id].queued.arrival.at);
        self.push(Effect::Evict(Evict { id: self.jobs[victim].id, waited, retry_after }));
    }

    /// The server of a granted request has begun to respond.
    pub(super) fn begun(&mut self, id: RequestId) {
        if let Some(id) = self.jobs.find(id) {
            self.note_begun(id);
        }
    }

    /// The answer of `id` has begun, if it runs: it isn't asked to end any more.
    pub(super) fn note_begun(&mut self, id: JobId) {
        let Some(running) = self.jobs.running_mut(id) else {
            return;
        };
        if core::mem::replace(&mut running.has_begun, true) {
            return;
        }
        let is_evicted = core::mem::replace(&mut running.load.evicted, 0) > 0;
        let (endpoint, start) = (running.endpoint, running.start);
        self.evictions.remove_silent(id, start);
        if is_evicted {
            self.endpoints.set_evicted(endpoint, false);
        }
    }

    /// The number of the start of `id`, if it may be asked to end.
    fn silent_start(&self, id: JobId) -> Option<u64> {
        let running = self.jobs.running(id)?;
        // One above the bound leaves no place that a critical request could use.
        let is_within = !running.load.extra.is_used() && running.load.evicted == 0;
        let is_sheddable = self.jobs[id].band.shown() == Band::Sheddable;
        (is_sheddable && is_within && !running.has_begun).then_some(running.start)
    }

    /// `id`, which runs, may be asked to end if it is sheddable.
    pub(super) fn list_silent(&mut self, id: JobId) {
        if self.evictions.is_on()
            && let Some(start) = self.silent_start(id)
        {
            self.evictions.insert_silent(id, start);
        }
    }

    /// `id` waits.
    pub(super) fn list_waiting(&mut self, id: JobId) {
        let job = &self.jobs[id];
        if job.band == TreeBand::Critical {
            self.evictions.insert_waiting(id, job.queued.arrival);
        }
    }

    /// Lists all requests again, after a change of policy.
    pub(super) fn list_evictions_again(&mut self) {
        self.evictions.restart(self.policy.eviction.is_some());
        if !self.evictions.is_on() {
            return;
        }
        let jobs: Vec<JobId> = self.jobs.ids().collect();
        for id in jobs {
            if self.jobs[id].is_waiting() {
                self.list_waiting(id);
            } else {
                self.list_silent(id);
            }
        }
    }

    /// Exactly the requests are listed that are a side of evictions.
    pub(super) fn audit_evictions(&self) -> Result<(), AuditError> {
        let is_on = self.policy.eviction.is_some();
        check("evictions are on as the policy says", self.evictions.is_on() == is_on)?;
        let (mut waiting, mut silent) = (0, 0);
        for (id, job) in self.jobs.iter().filter(|_| is_on) {
            if job.is_waiting() && job.band == TreeBand::Critical {
                waiting += 1;
                let is_listed = self.evictions.has_waiting(id, job.queued.arrival);
                check("a critical request that waits is listed for evictions", is_listed)?;
            }
            if let Some(start) = self.silent_start(id) {
                silent += 1;
                check("a request that may be asked to end is listed", self.evictions.has_silent(id, start))?;
            }
        }
        let (listed_waiting, listed_silent) = self.evictions.lengths();
        check_equal("critical requests that wait", listed_waiting as u64, waiting)?;
        check_equal("requests that may be asked to end", listed_silent as u64, silent)
    }
}
