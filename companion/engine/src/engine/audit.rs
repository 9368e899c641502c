//! The invariants of the engine, recomputed from all of its state.

use alloc::vec::Vec;

use super::Engine;
use crate::audit::{AuditError, check, check_equal};
use crate::band::TreeBand;
use crate::ids::JobId;
use crate::policy::Over;
use crate::tree::Queued;

impl Engine {
    /// Checks every invariant, in time proportional to the state.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn audit(&self) -> Result<(), AuditError> {
        let mut waiting = Vec::new();
        let mut running = Vec::new();
        let mut loads = Vec::new();
        for (id, job) in self.jobs.iter() {
            check("a request's id leads to its job", self.jobs.find(job.id) == Some(id))?;
            match self.jobs.running(id) {
                None => waiting.push((id, job.queued)),
                Some(job_running) => {
                    let endpoint = self.endpoints.id(job_running.endpoint);
                    running.push((job.queued.flow, endpoint));
                    loads.push((endpoint, job_running.load));
                    let prefill = job_running
                        .prefill
                        .map(|prefill| (self.endpoints.id(prefill.endpoint), prefill.load()));
                    loads.extend(prefill);
                }
            }
        }
        check_equal("requests by id", self.jobs.requests() as u64, self.jobs.len() as u64)?;
        check_equal("waiting", self.tree.waiting_in_all().requests, waiting.len() as u64)?;
        let left = self.counters.outcomes_total();
        check_equal("arrivals", self.counters.arrivals, left + waiting.len() as u64)?;
        self.audit_expiry(&waiting)?;
        self.audit_evictions()?;
        self.audit_pauses()?;
        self.audit_budgets()?;
        check("nothing waits while draining", !self.draining || waiting.is_empty())?;
        loads.sort_unstable_by_key(|&(id, _)| id);
        self.endpoints.audit(self.now, &loads)?;
        self.tree.audit(&waiting, &running, &self.endpoints)?;
        let next = self.tree.pick().filter(|_| self.is_open() && self.rate_limiter.has_token(self.now));
        let dispatchable =
            next.is_some_and(|job| !self.fits_each() || !self.choose_endpoints(job, false).is_empty());
        check("no waiting request could be dispatched", !dispatchable)?;
        let above = self.may_grant_above() && self.rate_limiter.has_token(self.now);
        check("no request could be granted above a bound", !above || self.next_above().is_none())
    }

    fn audit_budgets(&self) -> Result<(), AuditError> {
        let Some((table, now)) = self.budgets.read() else {
            return Ok(());
        };
        let budgets = &self.policy.flows.budgets;
        let mut running = Vec::new();
        for (id, job) in self.jobs.iter() {
            let identity = self.tree.identity_of(job.queued.flow);
            check(
                "an identity has the first budget that matches",
                identity.budget == self.policy.flows.budget_of(&identity.name),
            )?;
            let Some(index) = identity.budget else {
                continue;
            };
            match self.jobs.running(id) {
                Some(running_job) if running_job.settled.is_none() && job.band != TreeBand::Demoted => {
                    running.push((id, &*identity.name));
                }
                Some(_) => {}
                None => {
                    let holds = budgets[index].over == Over::Hold && !budgets[index].shadow;
                    // The reverse is found out at the request's turn.
                    let may_be_held = holds && !table.would_have_room(&identity.name, &now);
                    check("a flow is held only while its budget has no room", may_be_held || !identity.held)?;
                    check(
                        "a request is demoted only by a budget",
                        job.band != TreeBand::Demoted || budgets[index].over == Over::Demote,
                    )?;
                }
            }
        }
        table.audit(&running)
    }

    fn audit_pauses(&self) -> Result<(), AuditError> {
        let (mut paused, mut refused) = (0, 0);
        for (id, job) in self.jobs.iter() {
            let until = job.retry.as_ref().and_then(|retry| retry.until());
            check(
                "only waiting requests pause, each by one timer",
                until.is_none_or(|until| job.is_waiting() && self.pauses.contains(&(until, id))),
            )?;
            check(
                "a waiting request is suspended as its owner and its pause say",
                !job.is_waiting() || job.queued.suspended == job.is_suspended(),
            )?;
            paused += u64::from(until.is_some());
            for &endpoint in job.retry.iter().flat_map(|retry| retry.refused()) {
                refused += 1;
                check(
                    "a request avoids the endpoints that refused it",
                    self.refused.contains(&(endpoint, id)) && job.avoided().contains(&endpoint),
                )?;
            }
        }
        check_equal("pauses", self.pauses.len() as u64, paused)?;
        check_equal("refusals", self.refused.len() as u64, refused)
    }

    fn audit_expiry(&self, waiting: &[(JobId, Queued)]) -> Result<(), AuditError> {
        let mut timed = self.expiry.jobs();
        timed.sort_unstable();
        check("exactly the waiting requests have a ttl", timed.iter().eq(waiting.iter().map(|(id, _)| id)))?;
        let with_deadline = waiting.iter().filter(|&&(id, _)| self.jobs[id].deadline().is_some()).count();
        check_equal("deadlines", self.expiry.jobs_with_deadline().count() as u64, with_deadline as u64)?;
        for job in self.expiry.jobs_with_deadline() {
            check("only waiting requests have a deadline", self.jobs[job].is_waiting())?;
        }
        let next = self.expiry.next(self.ttls());
        let overdue = next.is_some_and(|(end, _, _)| end <= self.now);
        check("nothing is overdue", !overdue || self.is_manual())
    }
}
