//! The whole state, looked at the slow way: for tests and debug builds.

use alloc::vec::Vec;

use thiserror::Error;

use crate::engine::Engine;
use crate::job::State;

/// What doesn't hold. Always a defect of the engine, never of its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AuditError {
    /// A sum that is kept isn't the sum of what it is kept of.
    #[error(
        "{what}: kept as {kept}, but they are {found}; please report this with the inputs that led to it"
    )]
    Sum {
        /// Of what.
        what: &'static str,
        /// As kept.
        kept: u64,
        /// As counted.
        found: u64,
    },
    /// A statement about the state is false.
    #[error("it should hold that {what}; please report this with the inputs that led to it")]
    Broken {
        /// The statement.
        what: &'static str,
    },
}

pub(crate) fn same(what: &'static str, kept: u64, found: u64) -> Result<(), AuditError> {
    if kept == found {
        Ok(())
    } else {
        Err(AuditError::Sum { what, kept, found })
    }
}

pub(crate) fn holds(what: &'static str, holds: bool) -> Result<(), AuditError> {
    if holds {
        Ok(())
    } else {
        Err(AuditError::Broken { what })
    }
}

impl Engine {
    /// Checks every invariant of the whole state, in time proportional to it.
    ///
    /// # Errors
    /// The first that doesn't hold.
    pub fn audit(&self) -> Result<(), AuditError> {
        let mut waiting = Vec::new();
        let mut running = Vec::new();
        let mut stock = Vec::new();
        for (number, job) in self.jobs.iter() {
            holds(
                "a request is known by its id",
                self.ids.get(&job.id) == Some(&number),
            )?;
            match &job.state {
                State::Waiting => waiting.push((number, job.queued)),
                State::Running(at) => {
                    let endpoint = self.endpoints.id(at.endpoint);
                    running.push((job.queued.flow, endpoint));
                    stock.push((endpoint, at.load));
                }
            }
        }
        same(
            "requests known by id",
            self.ids.len() as u64,
            self.jobs.len() as u64,
        )?;
        same(
            "waiting",
            self.tree.waiting_in_all().requests,
            waiting.len() as u64,
        )?;
        let left = self.counters.outcomes_total();
        same("arrivals", self.counters.arrivals, left + waiting.len() as u64)?;
        let mut timed = self.expiry.members();
        timed.sort_unstable();
        holds(
            "all who wait have a ttl, and only they",
            timed.iter().eq(waiting.iter().map(|(number, _)| number)),
        )?;
        let with_deadline = waiting
            .iter()
            .filter(|&&(number, _)| self.jobs[number].deadline().is_some())
            .count();
        same(
            "deadlines",
            self.expiry.deadlines().count() as u64,
            with_deadline as u64,
        )?;
        for number in self.expiry.deadlines() {
            holds("only who waits has a deadline", self.jobs[number].is_waiting())?;
        }
        let due = self
            .expiry
            .next(self.ttls())
            .is_some_and(|(at, _, _)| at <= self.now);
        holds("nothing is overdue", !due || self.is_manual())?;
        holds(
            "nothing waits while draining",
            !self.draining || waiting.is_empty(),
        )?;
        stock.sort_unstable_by_key(|&(id, _)| id);
        self.endpoints.audit(self.now, &stock)?;
        self.tree.audit(&waiting, &running, &self.endpoints)?;
        let next = self
            .tree
            .pick()
            .filter(|_| self.is_open() && self.rate.has(self.now));
        let could_go =
            next.is_some_and(|number| !self.is_auto() || !self.choose_fitting(number, false).is_empty());
        holds("nothing waits that could go", !could_go)
    }
}
