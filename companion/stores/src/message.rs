//! Messages to the task of a store.

use std::sync::Arc;
use std::time::Duration;

use penstock_control::Kept;
use penstock_engine::input::{BudgetUsage, PastUsage};
use tokio::sync::oneshot;

use super::write_buffer::WriteBuffer;

/// Messages that wait for a task.
pub(super) const INBOX: usize = 256;

#[derive(Debug)]
pub(super) enum Message {
    /// A variant's model was learned.
    Model {
        pool: String,
        variant: String,
        model: Kept,
    },
    /// A write buffer is no longer empty.
    UsageAdded,
    /// A budget was changed by hand: what the write buffers contain is written at once.
    BudgetChanged,
    Attach(Box<Attach>),
    /// The named pool is no longer kept in this store.
    Detach(String),
    Close,
}

/// Keeps a pool in this store from now on, or changes how.
#[derive(Debug)]
pub(super) struct Attach {
    pub(super) pool: Arc<str>,
    pub(super) windowed: Option<Windowed>,
    /// Receives the pool's stored models.
    pub(super) models: oneshot::Sender<Vec<(String, Kept)>>,
    /// Receives the pool's stored usage, if its windows begin now.
    pub(super) past_usage: Option<oneshot::Sender<Vec<PastUsage>>>,
    /// Receives what was used of the pool's budgets, if they begin now.
    pub(super) past_budgets: Option<oneshot::Sender<Vec<BudgetUsage>>>,
}

/// The usage of a pool that a store keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Windows {
    /// The window of the discipline `usage`; `None`: the pool has another one.
    pub(super) usage: Option<Duration>,
    /// The pool's flows have budgets.
    pub(super) has_budgets: bool,
}

impl Windows {
    /// `None`: there is nothing to keep.
    pub(super) fn kept(self) -> Option<Self> {
        (self.usage.is_some() || self.has_budgets).then_some(self)
    }
}

/// A pool with usage windows or budgets.
#[derive(Clone, Debug)]
pub(super) struct Windowed {
    pub(super) windows: Windows,
    pub(super) buffer: Arc<WriteBuffer>,
}
