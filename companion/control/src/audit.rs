//! The whole state, looked at the slow way: for tests and simulations.

use std::sync::Arc;

use penstock_engine as engine;

use crate::control::Control;
use crate::register::Stage;
use crate::session::{Epoch, Stage as SessionStage};

/// What doesn't hold. Always a defect of the control or of an engine, never of what it was told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuditError {
    /// In a pool's engine.
    #[error("pool {pool}: {source}")]
    Engine {
        /// Its name.
        pool: Arc<str>,
        /// What its engine found.
        source: engine::AuditError,
    },
    /// Between sessions, requests and engines.
    #[error("it should hold that {what}; please report this with the events that led to it")]
    Broken {
        /// The statement.
        what: &'static str,
    },
}

fn holds(what: &'static str, holds: bool) -> Result<(), AuditError> {
    if holds {
        Ok(())
    } else {
        Err(AuditError::Broken { what })
    }
}

impl Control {
    /// Checks every invariant of the whole state, in time proportional to it.
    ///
    /// # Errors
    /// The first that doesn't hold.
    pub fn audit(&self) -> Result<(), AuditError> {
        for (number, pool) in self.pools.iter().enumerate() {
            pool.engine.audit().map_err(|source| AuditError::Engine {
                pool: pool.name.clone(),
                source,
            })?;
            let here = || self.requests.iter().filter(|(_, entry)| entry.pool == number);
            let waiting = here()
                .filter(|(_, entry)| matches!(entry.stage, Stage::Waiting))
                .count();
            holds(
                "who waits here waits in an engine, and the other way round",
                waiting as u64 == pool.engine.waiting(),
            )?;
            let flows = pool.engine.snapshot().flows;
            let in_flight: u64 = flows.iter().map(|flow| flow.in_flight).sum();
            holds(
                "who is granted here runs in an engine, and the other way round",
                (here().count() - waiting) as u64 == in_flight,
            )?;
        }
        for (id, entry) in self.requests.iter() {
            let context = self.requests.contexts.get(&entry.epoch);
            holds(
                "a request's root context knows it",
                context.is_some_and(|it| it.requests.get(&entry.sequence) == Some(id)),
            )?;
        }
        let known: usize = self.requests.contexts.values().map(|it| it.requests.len()).sum();
        holds(
            "a root context knows only what there is",
            known == self.requests.len(),
        )?;
        for (epoch, context) in &self.requests.contexts {
            let spoken_for = context.conn.is_some_and(|conn| {
                self.sessions
                    .get(&conn)
                    .is_some_and(|it| matches!(it.stage, SessionStage::Established(of) if of == *epoch))
            });
            holds(
                "a root context is spoken for by an established stream, or is orphaned",
                spoken_for != context.orphaned.is_some(),
            )?;
        }
        Ok(())
    }

    /// Whether this request of the root context with this epoch is granted here; `None`: it isn't known.
    #[must_use]
    pub fn is_granted(&self, epoch: u128, sequence: u64) -> Option<bool> {
        let id = self.requests.find(Epoch(epoch), sequence)?;
        Some(match self.requests.get(id)?.stage {
            Stage::Waiting => false,
            Stage::Granted { .. } => true,
        })
    }
}
