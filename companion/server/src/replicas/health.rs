//! Whether the lease store answers. The log has one line when it fails and one when it works again.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use super::store::StoreError;

/// Operations that fail independently of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    Request,
    Watch,
}

#[derive(Debug)]
pub(super) struct Health {
    place: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// An operation has succeeded at least once.
    used: bool,
    failing: BTreeSet<Operation>,
}

impl Health {
    pub(super) fn new(place: String) -> Self {
        Self {
            place,
            state: Mutex::default(),
        }
    }

    pub(super) fn succeeded(&self, operation: Operation) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.used = true;
        if state.failing.remove(&operation) && state.failing.is_empty() {
            tracing::info!("replicas.lease: {} works again", self.place);
        }
    }

    pub(super) fn failed(&self, operation: Operation, why: &StoreError) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.failing.is_empty() {
            tracing::warn!(
                "replicas.lease: {} failed: {why}; a leader goes on while the filters stay connected to it, and no \
                 standby can take over until the store works again",
                self.place
            );
        } else {
            tracing::debug!("replicas.lease: {}: {why}", self.place);
        }
        state.failing.insert(operation);
    }

    /// The last operations succeeded.
    pub(super) fn is_up(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.used && state.failing.is_empty()
    }
}
