//! The result of an audit: a broken invariant of the engine. Used by tests and debug builds.

use thiserror::Error;

/// A broken invariant. Always a defect of the engine, never of its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AuditError {
    /// A counter differs from a recount of the state.
    #[error(
        "{what}: counted as {kept}, recounted as {found}; please report this with the inputs that led to it"
    )]
    Sum {
        /// The counted quantity.
        what: &'static str,
        /// The value of the counter.
        kept: u64,
        /// The value of the recount.
        found: u64,
    },
    /// A statement about the state is false.
    #[error("broken invariant: {what}; please report this with the inputs that led to it")]
    Broken {
        /// The statement.
        what: &'static str,
    },
}

pub(crate) fn check_equal(what: &'static str, kept: u64, found: u64) -> Result<(), AuditError> {
    if kept == found { Ok(()) } else { Err(AuditError::Sum { what, kept, found }) }
}

pub(crate) fn check(what: &'static str, holds: bool) -> Result<(), AuditError> {
    if holds { Ok(()) } else { Err(AuditError::Broken { what }) }
}
