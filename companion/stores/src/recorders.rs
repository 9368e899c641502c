//! Passes learned models and usage from the observer to the tasks of the stores.

use std::collections::HashMap;
use std::sync::Arc;

use penstock_control::Kept;
use penstock_engine::input::{BudgetRunning, BudgetUsage, PastUsage, RunningUsage, UsageKind};
use tokio::sync::mpsc;

use super::message::Message;
use super::write_buffer::WriteBuffer;

/// Pass learned models and usage to the stores without waiting. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Recorders(pub(super) HashMap<String, Recorder>);

/// The recorder of one pool.
#[derive(Clone, Debug)]
pub(super) struct Recorder {
    pub(super) inbox: mpsc::Sender<Message>,
    /// `None`: the pool has neither usage windows nor budgets.
    pub(super) buffer: Option<Arc<WriteBuffer>>,
}

impl Recorder {
    /// A budget was changed by hand.
    fn wake_at_once(&self) {
        // When the inbox is full, the messages in it already cause a write of the buffer.
        let _ = self.inbox.try_send(Message::BudgetChanged);
    }

    /// The write buffer is no longer empty.
    fn wake(&self) {
        // When the inbox is full, the messages in it already cause a write of the buffer.
        let _ = self.inbox.try_send(Message::UsageAdded);
    }
}

impl Recorders {
    /// Stores a variant's model, if the pool has a store.
    pub fn record_model(&self, pool: &str, variant: String, model: Kept) {
        if let Some(recorder) = self.0.get(pool) {
            let pool = pool.to_owned();
            // A model is dropped when the inbox is full: the next one of this variant replaces it anyway.
            let _ = recorder.inbox.try_send(Message::Model { pool, variant, model });
        }
    }

    /// Stores usage of this moment, if the pool has a store and usage windows.
    pub fn record_usage(&self, pool: &str, used: PastUsage) {
        if let Some(recorder) = self.0.get(pool)
            && let Some(buffer) = &recorder.buffer
            && buffer.add(used)
        {
            recorder.wake();
        }
    }

    /// Shares what a flow runs now, if other companions count it.
    pub fn record_running(&self, pool: &str, running: RunningUsage) {
        if let Some(recorder) = self.0.get(pool)
            && let Some(buffer) = &recorder.buffer
            && buffer.set_running(running)
        {
            recorder.wake();
        }
    }

    /// Stores usage of a budget, or a top-up, if the pool has a store.
    pub fn record_budget_used(&self, pool: &str, used: BudgetUsage) {
        if let Some(recorder) = self.0.get(pool)
            && let Some(buffer) = &recorder.buffer
        {
            let is_by_hand = used.kind == UsageKind::ToppedUp;
            let is_first = buffer.add_budget(used);
            if is_by_hand {
                recorder.wake_at_once();
            } else if is_first {
                recorder.wake();
            }
        }
    }

    /// Stores that the flow's budget is reset now, if the pool has a store. What was recorded of it before isn't written any more. `number`: the
    /// engine's of the reset.
    pub fn record_budget_reset(&self, pool: &str, flow: &str, number: u64) {
        if let Some(recorder) = self.0.get(pool)
            && let Some(buffer) = &recorder.buffer
        {
            buffer.reset_budget(flow, number);
            recorder.wake_at_once();
        }
    }

    /// What was recorded of the flow's budget until now isn't written any more, because it was reset at another companion.
    /// `number`: the one of [`penstock_engine::input::BudgetReset::Elsewhere`].
    pub fn forget_budget(&self, pool: &str, flow: &str, number: u64) {
        if let Some(buffer) = self.0.get(pool).and_then(|recorder| recorder.buffer.as_ref()) {
            buffer.forget_budget(flow, number);
        }
    }

    /// Shares what a flow with a budget runs now.
    pub fn record_budget_running(&self, pool: &str, running: BudgetRunning) {
        if let Some(recorder) = self.0.get(pool)
            && let Some(buffer) = &recorder.buffer
            && buffer.set_budget_running(running)
        {
            recorder.wake();
        }
    }
}
