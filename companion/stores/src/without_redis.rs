//! Replaces the redis store in a binary without the feature `redis`, which rejects such a configuration.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;

use penstock_config::RedisUrl;
use penstock_control::Kept;
use penstock_engine::input::{BudgetUsage, PastUsage};
use tokio::sync::{mpsc, oneshot};

use super::health::Health;
use super::message::Windows;
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
        _windows: Windows,
        _past_usage: Option<oneshot::Sender<Vec<PastUsage>>>,
        _past_budgets: Option<oneshot::Sender<Vec<BudgetUsage>>>,
    ) {
        match *self {}
    }

    pub(super) fn know_resets(&mut self, _pool: &str, _resets: HashMap<Box<str>, Option<u64>>) {
        match *self {}
    }

    pub(super) fn is_behind(&self) -> bool {
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
