//! What is restored of a pool's budgets, chunk by chunk, beside what the companion writes and reads meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;

use ::redis::RedisError;
use penstock_engine::input::{BudgetReset, BudgetUsage};
use tokio::sync::oneshot;

use super::Redis;
use super::reader::Command;
use super::restore::Restore;
use crate::millis;
use crate::write_buffer::UsageBatch;

/// Whether what was used of the pool's budgets has been read.
#[derive(Debug)]
pub(super) enum Restoring {
    /// It has been, or there are none.
    Done,
    /// Not yet.
    Waits(Box<Waiting>),
}

/// What is being restored.
#[derive(Debug)]
pub(super) struct Waiting {
    /// The start, which waits for it for a while.
    receiver: Option<oneshot::Sender<Vec<BudgetUsage>>>,
    /// `None`: it hasn't begun.
    restore: Option<Restore>,
}

pub(super) fn waiting(receiver: Option<oneshot::Sender<Vec<BudgetUsage>>>) -> Restoring {
    Restoring::Waits(Box::new(Waiting { receiver, restore: None }))
}

impl Redis {
    /// Begins to restore what was used of the pool's budgets, unless it is restored. It must begin before this companion writes any usage of
    /// its own, and counts usage of others from then on.
    pub(super) async fn begin_restore(&mut self, pool: &Arc<str>) -> Result<(), RedisError> {
        let waits = self.waiting(pool).is_some_and(|waiting| waiting.restore.is_none());
        if !waits {
            return Ok(());
        }
        let now = self.server_time().await?;
        let connection = self.connected().await?;
        let begun = Restore::begin(connection, pool, now).await;
        let (begun, resets) = self.check(begun)?;
        let from = Command::BudgetsFrom { pool: pool.clone(), position: begun.position() };
        let mut is_awaited = false;
        if let Some(waiting) = self.waiting(pool) {
            waiting.restore = Some(begun);
            is_awaited = waiting.receiver.as_ref().is_some_and(|receiver| !receiver.is_closed());
        }
        // Where the engine waits for what was used, it has used nothing itself.
        let opened = (!is_awaited).then(|| now.saturating_sub(millis(self.opened.elapsed())));
        let attached = self.pools.get_mut(pool);
        let unknown = attached.map(|attached| attached.known_resets.begin(resets, opened));
        // The reader runs as long as this sender.
        let _ = self.reader.send(from).await;
        self.deliver_resets(pool, unknown.unwrap_or_default()).await;
        Ok(())
    }

    /// Has the engine hear of resets by other companions.
    pub(super) async fn deliver_resets(&self, pool: &Arc<str>, resets: Vec<BudgetReset>) {
        if !resets.is_empty() {
            let resets = Command::Resets { pool: pool.clone(), resets };
            // The reader runs as long as this sender.
            let _ = self.reader.send(resets).await;
        }
    }

    /// Restores the next chunk of what was used of the pool's budgets. Resets in the `backlog` are later than what the server has.
    pub(super) async fn restore_chunk(
        &mut self,
        pool: &Arc<str>,
        backlog: &VecDeque<UsageBatch>,
    ) -> Result<(), RedisError> {
        let Some(mut restore) = self.waiting(pool).and_then(|waiting| waiting.restore.take()) else {
            return Ok(());
        };
        if restore.is_too_old() {
            tracing::warn!(
                pool = &**pool,
                "usage.store: restoring budgets takes long, and reads the hashes anew"
            );
            restore.restart();
        }
        let read = match self.connected().await {
            Ok(connection) => restore.next_chunk(connection, pool).await,
            Err(why) => Err(why),
        };
        let now = match read {
            Ok(true) => self.server_time().await.map(Some),
            Ok(false) => Ok(None),
            Err(why) => Err(why),
        };
        match self.check(now) {
            Ok(Some(now)) => {
                let past = restore.finish(pool, now);
                self.deliver(pool, past, backlog).await;
                Ok(())
            }
            other => {
                if other.is_err() {
                    restore.failed();
                }
                if let Some(waiting) = self.waiting(pool) {
                    waiting.restore = Some(restore);
                }
                other.map(|_| ())
            }
        }
    }

    async fn deliver(&mut self, pool: &Arc<str>, mut past: Vec<BudgetUsage>, backlog: &VecDeque<UsageBatch>) {
        for batch in backlog.iter().filter(|batch| batch.pool == *pool) {
            let is_reset = |flow: &str| batch.budget_resets.iter().any(|reset| *reset.flow == *flow);
            past.retain(|usage| !is_reset(&usage.flow));
        }
        let receiver = self.waiting(pool).and_then(|waiting| waiting.receiver.take());
        if let Some(attached) = self.pools.get_mut(pool) {
            attached.restoring = Restoring::Done;
        }
        // The reader knows which flows were reset meanwhile, and runs as long as this sender.
        let _ = self.reader.send(Command::PastBudgets { pool: pool.clone(), past, receiver }).await;
    }

    /// What is being restored of the pool.
    fn waiting(&mut self, pool: &str) -> Option<&mut Waiting> {
        match &mut self.pools.get_mut(pool)?.restoring {
            Restoring::Waits(waiting) => Some(waiting),
            Restoring::Done => None,
        }
    }
}
