//! The invariants of a window.

use super::Window;
use crate::audit::{AuditError, check};

impl Window {
    pub(crate) fn audit(&self) -> Result<(), AuditError> {
        let counted: u64 = self.steps.iter().map(super::Step::counted).sum();
        check("a window is filled by its steps", counted == self.filled)?;
        check("a window in debt is full", self.debt == 0 || self.filled >= self.limit)?;
        check("a window in debt has no top-up left", self.debt == 0 || self.top_ups.left() == 0)?;
        let numbers = || self.steps.iter().map(|step| step.number);
        check("steps are in order", numbers().is_sorted_by(|a, b| a < b))?;
        check(
            "every step is in the window",
            numbers().all(|number| number <= self.now && !self.has_left(number)),
        )
    }
}
