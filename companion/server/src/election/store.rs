//! The interface of a lease store, and what all of them share.

use std::hash::{BuildHasher as _, RandomState};

use penstock_election::{Request, View};
use tokio::sync::mpsc;

/// The result of a request that reached the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The request was carried out. `version`: the number of the new state.
    Done { version: u64 },
    /// The state was not the one that the request needs.
    Refused,
}

/// A request that didn't reach the store, or that the store failed to carry out.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct StoreError(pub(super) String);

impl StoreError {
    /// An error with its cause.
    pub(super) fn new(error: &dyn std::error::Error) -> Self {
        Self(penstock_errors::root_cause(error).to_string())
    }
}

/// A store of the leader's lease and record.
pub(super) trait LeaseStore: Send + Sync + 'static {
    /// The store's name in log lines.
    fn place(&self) -> String;

    /// Carries out a request. The caller drops the future when it takes too long; the request may be carried out all the
    /// same.
    fn execute(&self, request: &Request) -> impl Future<Output = Result<Outcome, StoreError>> + Send;

    /// Reads the present state.
    fn observe(&self) -> impl Future<Output = Result<View, StoreError>> + Send;

    /// Sends the present state and each change of it, until the connection fails.
    fn watch(&self, views: &mpsc::Sender<View>) -> impl Future<Output = StoreError> + Send;
}

/// Names this process in the store: its address and a random number, so that no earlier process at the same address is
/// taken for it.
pub(super) fn identity(address: &str) -> String {
    format!("{address}/{:016x}", RandomState::new().hash_one(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_processes_at_one_address_have_different_identities() {
        assert_ne!(identity("10.0.0.1:9190"), identity("10.0.0.1:9190"));
    }
}
