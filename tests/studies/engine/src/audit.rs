//! The audit helper that the included sources of the engine use.

pub(crate) use penstock_engine::AuditError;

pub(crate) fn check(what: &'static str, holds: bool) -> Result<(), AuditError> {
    if holds { Ok(()) } else { Err(AuditError::Broken { what }) }
}
