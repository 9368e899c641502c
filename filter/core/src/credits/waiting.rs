//! Counts the waiting requests of a pool. A request is counted for as long as its place exists, so no change of its state can
//! leave the count wrong.

use core::cell::Cell;
use std::rc::Rc;

/// How many requests wait.
#[derive(Debug, Default)]
pub(super) struct WaitingCount(Rc<Cell<u64>>);

/// A waiting request.
#[derive(Debug)]
pub(crate) struct WaitingPlace(Rc<Cell<u64>>);

impl WaitingCount {
    /// A request begins to wait, until the place is dropped.
    pub(super) fn enter(&self) -> WaitingPlace {
        self.0.set(self.0.get().saturating_add(1));
        WaitingPlace(Rc::clone(&self.0))
    }

    /// Whether a request waits.
    pub(super) fn is_any(&self) -> bool {
        self.0.get() > 0
    }
}

impl Drop for WaitingPlace {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}
