//! Replaces the lease in etcd in a binary without the feature `etcd`, which rejects such a configuration.

use std::time::Duration;

use penstock_election::{Request, View};
use tokio::sync::mpsc;

use super::Error;
use super::store::{LeaseStore, Outcome, StoreError};

/// Never constructed: opening the store fails.
#[derive(Debug)]
pub(super) enum Etcd {}

impl Etcd {
    /// Always fails.
    pub(super) fn new(
        _endpoints: &[String],
        _prefix: &str,
        _identity: String,
        _duration: Duration,
    ) -> Result<Self, Error> {
        Err(Error::Absent("etcd"))
    }
}

impl LeaseStore for Etcd {
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
