//! Stands in for the store in a file in a binary without the feature `redb`, which refuses such a configuration.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use penstock_control::Kept;
use penstock_engine::input::PastUsage;

use super::ledger::Batch;
use super::{Error, Models};

/// A store that can't be opened, so there is none.
#[derive(Debug)]
pub(super) enum File {}

/// The contents of a store for one pool.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) models: Vec<(String, Kept)>,
    pub(super) past: Vec<PastUsage>,
}

impl File {
    /// Always fails.
    pub(super) async fn open(_path: PathBuf) -> Result<Self, Error> {
        Err(Error::Absent("redb"))
    }

    pub(super) async fn follow(
        &mut self,
        _pool: Arc<str>,
        _window: Option<Duration>,
        _restores: bool,
    ) -> Found {
        match *self {}
    }

    pub(super) fn leave(&mut self, _pool: &str) {
        match *self {}
    }

    pub(super) async fn write(
        &mut self,
        _learned: &mut Models,
        _backlog: &mut VecDeque<Batch>,
    ) -> Result<(), Error> {
        match *self {}
    }
}
