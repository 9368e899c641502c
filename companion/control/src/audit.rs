//! Checks of invariants, for tests and the simulated world.

use std::sync::Arc;

use penstock_engine as engine;
use thiserror::Error;

/// A broken invariant. Always a defect of this crate or of the engine, whatever the filters sent.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AuditError {
    /// An invariant of an engine is broken.
    #[error("pool {pool}: {source}")]
    Engine {
        /// The pool's name.
        pool: Arc<str>,
        /// The engine's invariant.
        source: engine::AuditError,
    },
    /// Two counts of the same things differ.
    #[error("{what}: {here} here, {there} there; please report this with the events that led to it")]
    Count {
        /// The things that are counted.
        what: &'static str,
        /// One count.
        here: u64,
        /// The other count.
        there: u64,
    },
    /// A statement about the state is false.
    #[error("it should hold that {what}; please report this with the events that led to it")]
    Broken {
        /// The statement.
        what: &'static str,
    },
}

pub(crate) fn holds(what: &'static str, holds: bool) -> Result<(), AuditError> {
    if holds { Ok(()) } else { Err(AuditError::Broken { what }) }
}

pub(crate) fn same(what: &'static str, here: usize, there: u64) -> Result<(), AuditError> {
    let here = u64::try_from(here).unwrap_or(u64::MAX);
    if here == there { Ok(()) } else { Err(AuditError::Count { what, here, there }) }
}
