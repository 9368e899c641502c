//! Whether the lease store answers. The log has one line when it fails and one when it works again.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

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
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// An operation has succeeded at least once.
    used: bool,
    failing: BTreeSet<Operation>,
}

impl Health {
    pub(super) fn new(place: String) -> Self {
        Self { place, state: Mutex::default(), changed: Notify::new() }
    }

    pub(super) fn succeeded(&self, operation: Operation) {
        self.change(|state| {
            state.used = true;
            if state.failing.remove(&operation) && state.failing.is_empty() {
                tracing::info!("replicas.lease: {} works again", self.place);
            }
        });
    }

    pub(super) fn failed(&self, operation: Operation, why: &StoreError) {
        self.change(|state| {
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
        });
    }

    /// The last operations succeeded.
    pub(super) fn is_up(&self) -> bool {
        self.lock().is_up()
    }

    /// Returns when [`Health::is_up`] has changed since the last call.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        let was_up = state.is_up();
        change(&mut state);
        if state.is_up() != was_up {
            self.changed.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_up(&self) -> bool {
        self.used && self.failing.is_empty()
    }
}
