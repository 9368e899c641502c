//! Replaces the lease in Kubernetes in a binary without the feature `kubernetes`, which rejects such a configuration.

use std::time::Duration;

use penstock_election::{Request, View};
use tokio::sync::mpsc;

use super::Error;
use super::store::{LeaseStore, Outcome, StoreError};

/// Never constructed: opening the store fails.
#[derive(Debug)]
pub(super) enum Kubernetes {}

impl Kubernetes {
    /// Always fails.
    pub(super) fn new(
        _namespace: &str,
        _name: &str,
        _identity: String,
        _duration: Duration,
    ) -> Result<Self, Error> {
        Err(Error::Absent("kubernetes"))
    }
}

impl LeaseStore for Kubernetes {
    fn place(&self) -> String {
        match *self {}
    }

    async fn execute(&self, _request: &Request) -> Result<Outcome, StoreError> {
        match *self {}
    }

    async fn observe(&self) -> Result<View, StoreError> {
        match *self {}
    }

    async fn watch(&self, _views: &mpsc::Sender<View>) -> StoreError {
        match *self {}
    }
}
