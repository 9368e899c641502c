//! What the included sources of the engine check themselves with.

pub(crate) use penstock_engine::AuditError;

pub(crate) fn holds(what: &'static str, holds: bool) -> Result<(), AuditError> {
    if holds {
        Ok(())
    } else {
        Err(AuditError::Broken { what })
    }
}
