//! Eviction: a running sheddable request whose answer hasn't begun is asked to end, because a critical request has waited for its place for
//! longer than [`crate::Policy::eviction`].
//!
//! Every event looks at the critical requests that have waited for too long, the first ones of many. For each of them one request at a time
//! is asked to end, the one that was granted last, and only if its place would be of use: it counts until its server has ended with it, and
//! so does the promise. Then the place goes to a critical request, even if the stock of the pool is between the bounds.

use alloc::vec::Vec;
use core::time::Duration;

use super::Engine;
use crate::audit::{AuditError, check, check_equal};
use crate::band::TreeBand;
use crate::effect::{Effect, Evict};
use crate::gate::is_over_ceiling;
use crate::ids::{EndpointIndex, JobId};
use crate::input::{Band, RequestId};
use crate::job::Job;
use crate::limits::{OVERDUE_SEEN, SILENT_SEEN};
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

    /// Asks requests to end for the critical ones that have waited for too long.
    #[inline]
    pub(super) fn evict(&mut self) {
        if let Some(after) = self.evicts_after()
            && self.evictions.may_be_due(self.now, after)
        {
            self.evict_for_overdue(after);
        }
    }

    #[inline(never)]
    fn evict_for_overdue(&mut self, after: Duration) {
        let mut promised = self.endpoints.evicting(OVERDUE_SEEN);
        let overdue: Vec<JobId> = self.evictions.overdue(self.now, after).take(OVERDUE_SEEN).collect();
        for id in overdue {
            if self.takes_promised(id, &mut promised) || !self.waits_for_room(id) {
                continue;
            }
            if let Some(victim) = self.victim_for(id) {
                self.ask_to_end(victim, id);
            }
        }
    }

    /// Takes one of the places that were asked back, if `id` may use it.
    fn takes_promised(&self, id: JobId, promised: &mut [(EndpointIndex, u64)]) -> bool {
        let queued = &self.jobs[id].queued;
        let place = promised.iter_mut().find(|(index, places)| {
            let endpoint = self.endpoints.at_index(*index);
            *places > 0 && endpoint.ready && self.tree.may_use(queued, endpoint)
        });
        place.map(|(_, places)| *places -= 1).is_some()
    }

    /// Nothing but the bounds keeps `id`, which is critical, from being granted.
    fn waits_for_room(&self, id: JobId) -> bool {
        let queued = &self.jobs[id].queued;
        if queued.suspended
            || self.tree.is_at_limit(queued.flow)
            || !self.rate_limiter.has_token(self.now)
            || !self.is_critical_next()
        {
            return false;
        }
        !self.is_open() || self.choose_endpoints(id, false).is_empty()
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

    /// The request that is asked to end for `id`: the last one to start of those whose place `id` can use.
    fn victim_for(&self, id: JobId) -> Option<JobId> {
        let job = &self.jobs[id];
        self.evictions.silent().take(SILENT_SEEN).find(|&victim| self.makes_room(victim, job))
    }

    /// Without `victim`, its endpoint takes `job`.
    fn makes_room(&self, victim: JobId, job: &Job) -> bool {
        let Some(running) = self.jobs.running(victim) else {
            return false;
        };
        let endpoint = self.endpoints.at_index(running.endpoint);
        if !self.tree.may_use(&job.queued, endpoint) || !self.pool_takes_in_place(job.band, &running.load) {
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
        self.endpoints.set_evicted(endpoint, true);
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

    /// Grants the places of evicted requests to critical ones while the stock of the pool is between its bounds: an eviction leaves no more
    /// stock than there was, so one is enough for a request. Below the lower bound, every request may go.
    #[inline]
    pub(super) fn hand_over(&mut self) {
        let places = self.endpoints.take_vacated();
        if places > 0 {
            self.hand_over_places(places);
        }
    }

    #[inline(never)]
    fn hand_over_places(&mut self, mut places: u64) {
        let upper = self.endpoints.bounds().upper;
        while places > 0 && self.ready && !self.is_manual() && !self.is_open() && self.is_below(upper) {
            self.apply_ceilings(upper);
            let next = self.tree.pick().filter(|&id| self.jobs[id].band == TreeBand::Critical);
            let Some(id) = next.filter(|_| self.rate_limiter.has_token(self.now)) else {
                return;
            };
            if !self.admits_next(id) {
                continue;
            }
            let endpoints = self.choose_endpoints(id, false);
            if endpoints.is_empty() {
                return;
            }
            self.counters.dequeue_attempts += 1;
            self.counters.dequeue_successes += 1;
            self.rate_limiter.take(self.now);
            self.grant_waiting(id, endpoints);
            places -= 1;
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
