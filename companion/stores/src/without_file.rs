//! Replaces the file store in a binary without the feature `redb`, which rejects such a configuration.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use penstock_control::Kept;
use penstock_engine::input::{BudgetUsage, PastUsage};

use super::message::Windows;
use super::write_buffer::UsageBatch;
use super::{Error, Models};

/// Never constructed: opening a store fails.
#[derive(Debug)]
pub(super) enum File {}

/// A pool's stored state.
#[derive(Debug, Default)]
pub(super) struct Stored {
    pub(super) models: Vec<(String, Kept)>,
    pub(super) past_usage: Vec<PastUsage>,
    pub(super) past_budgets: Vec<BudgetUsage>,
}

impl File {
    /// Always fails.
    pub(super) async fn open(_path: PathBuf) -> Result<Self, Error> {
        Err(Error::Absent("redb"))
    }

    pub(super) async fn attach(&mut self, _pool: Arc<str>, _windows: Windows, _restored: Windows) -> Stored {
        match *self {}
    }

    pub(super) fn detach(&mut self, _pool: &str) {
        match *self {}
    }

    pub(super) async fn write(
        &mut self,
        _learned: &mut Models,
        _backlog: &mut VecDeque<UsageBatch>,
    ) -> Result<(), Error> {
        match *self {}
    }
}
