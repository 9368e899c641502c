//! Replaces the redis store in a binary without the feature `redis`, which rejects such a configuration.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use penstock_config::RedisUrl;
use penstock_control::Kept;
use penstock_engine::input::PastUsage;
use tokio::sync::{mpsc, oneshot};

use super::health::Health;
use super::write_buffer::{SharedUsage, UsageBatch};
use super::{Error, Models};

/// Never constructed: opening a store fails.
#[derive(Debug)]
pub(super) enum Redis {}

impl Redis {
    /// Always fails.
    pub(super) fn new(
        _url: &RedisUrl,
        _health: Arc<Health>,
        _shared_usage: mpsc::Sender<SharedUsage>,
    ) -> Result<Self, Error> {
        Err(Error::Absent("redis"))
    }

    pub(super) async fn attach(
        &mut self,
        _pool: Arc<str>,
        _window: Option<Duration>,
        _past_usage: Option<oneshot::Sender<Vec<PastUsage>>>,
    ) {
        match *self {}
    }

    pub(super) async fn detach(&mut self, _pool: &str) {
        match *self {}
    }

    pub(super) async fn models(&mut self, _pool: &str) -> Result<Vec<(String, Kept)>, Infallible> {
        match *self {}
    }

    pub(super) async fn write(
        &mut self,
        _learned: &mut Models,
        _backlog: &mut VecDeque<UsageBatch>,
    ) -> Result<(), Infallible> {
        match *self {}
    }
}
