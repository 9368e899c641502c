//! The task that writes one store: it collects new data for a second and writes all of it at once. Data that can't be
//! written waits for the next attempt, within a limit.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::file::File;
use super::health::{Health, Operation};
use super::message::{Attach, Message, Windowed};
use super::redis::Redis;
use super::write_buffer::UsageBatch;
use super::{BACKLOG_MAX, LINGER, Models, RETRY_FIRST, RETRY_MAX};

/// Entries of one usage batch.
const BATCH_MAX: usize = 2_048;

/// The kinds of store.
#[derive(Debug)]
pub(super) enum Store {
    File(File),
    Redis(Box<Redis>),
}

/// The state of the task.
pub(super) struct StoreWriter {
    store: Store,
    inbox: mpsc::Receiver<Message>,
    health: Arc<Health>,
    pools: BTreeMap<Arc<str>, Windowed>,
    learned: Models,
    backlog: VecDeque<UsageBatch>,
    /// The number of the last batch.
    batches: u64,
    /// When to write next; `None`: nothing is to be written.
    due: Option<Instant>,
    retry: Duration,
    /// The log has a line about dropped usage since the last successful write.
    drop_logged: bool,
}

impl StoreWriter {
    pub(super) fn new(store: Store, inbox: mpsc::Receiver<Message>, health: Arc<Health>) -> Self {
        Self {
            store,
            inbox,
            health,
            pools: BTreeMap::new(),
            learned: Models::new(),
            backlog: VecDeque::new(),
            batches: 0,
            due: None,
            retry: RETRY_FIRST,
            drop_logged: false,
        }
    }

    /// Runs until [`Message::Close`] or until all senders are dropped, and then writes the rest.
    pub(super) async fn run(mut self) {
        loop {
            let due = async {
                match self.due {
                    Some(instant) => tokio::time::sleep_until(instant).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                message = self.inbox.recv() => match message {
                    None | Some(Message::Close) => break,
                    Some(message) => self.handle(message).await,
                },
                () = due => self.write().await,
            }
        }
        self.write().await;
    }

    async fn handle(&mut self, message: Message) {
        match message {
            Message::Model { pool, variant, model } => {
                self.learned.insert((pool, variant), model);
            }
            Message::UsageAdded | Message::Close => {}
            Message::Attach(attach) => {
                // Buffered usage belongs to the previous window, and the requested state may not be written yet.
                self.write().await;
                self.attach(*attach).await;
            }
            Message::Detach(pool) => {
                self.write().await;
                self.health.remove_pool(&pool);
                self.pools.remove(&*pool);
                match &mut self.store {
                    Store::File(file) => file.detach(&pool),
                    Store::Redis(redis) => redis.detach(&pool).await,
                }
            }
        }
        self.due.get_or_insert_with(|| Instant::now() + LINGER);
    }

    async fn attach(&mut self, attach: Attach) {
        let Attach {
            pool,
            windowed,
            models,
            past_usage,
        } = attach;
        let window = windowed.as_ref().map(|windowed| windowed.window);
        match windowed {
            Some(windowed) => drop(self.pools.insert(pool.clone(), windowed)),
            None => drop(self.pools.remove(&pool)),
        }
        self.health.add_pool(&pool);
        // Sending fails when the receiver has stopped waiting.
        match &mut self.store {
            Store::File(file) => {
                let stored = file.attach(pool, window, past_usage.is_some()).await;
                if let Some(past_usage) = past_usage {
                    let _ = past_usage.send(stored.past_usage);
                }
                let _ = models.send(stored.models);
                self.health.succeeded(Operation::Write);
            }
            Store::Redis(redis) => {
                redis.attach(pool.clone(), window, past_usage).await;
                match redis.models(&pool).await {
                    Ok(stored) => {
                        self.health.succeeded(Operation::Write);
                        let _ = models.send(stored);
                    }
                    Err(why) => self.health.failed(Operation::Write, &why),
                }
            }
        }
    }

    /// Moves the contents of the write buffers to the backlog.
    fn collect_usage(&mut self) {
        for (pool, Windowed { window, buffer }) in &self.pools {
            let (used, dropped) = buffer.take();
            if dropped > 0 {
                tracing::warn!(
                    pool = &**pool,
                    dropped,
                    limit = super::BUFFERED_KEYS_MAX,
                    "usage entries dropped: too many flows are served between two writes of the store"
                );
            }
            for used in used.chunks(BATCH_MAX) {
                self.batches += 1;
                self.backlog.push_back(UsageBatch {
                    number: self.batches,
                    pool: pool.clone(),
                    window: *window,
                    taken: Instant::now(),
                    used: used.into(),
                });
            }
        }
    }

    async fn write(&mut self) {
        self.due = None;
        self.collect_usage();
        self.backlog.retain(|batch| batch.taken.elapsed() < batch.window);
        if self.learned.is_empty() && self.backlog.is_empty() {
            return;
        }
        let mut pools: Vec<String> = self.learned.keys().map(|(pool, _)| pool.clone()).collect();
        pools.extend(self.backlog.iter().map(|batch| batch.pool.to_string()));
        let written = match &mut self.store {
            Store::File(file) => file
                .write(&mut self.learned, &mut self.backlog)
                .await
                .map_err(|why| why.to_string()),
            Store::Redis(redis) => redis
                .write(&mut self.learned, &mut self.backlog)
                .await
                .map_err(|why| why.to_string()),
        };
        match written {
            Ok(()) => {
                self.retry = RETRY_FIRST;
                self.drop_logged = false;
                self.health.succeeded(Operation::Write);
                self.health.count_writes(pools.iter().map(String::as_str));
            }
            Err(why) => {
                self.health.failed(Operation::Write, &why);
                self.trim_backlog();
                self.due = Some(Instant::now() + self.retry);
                self.retry = (self.retry * 2).min(RETRY_MAX);
            }
        }
    }

    /// Drops the oldest batches beyond the limit.
    fn trim_backlog(&mut self) {
        let mut entries: usize = self.backlog.iter().map(|batch| batch.used.len()).sum();
        while entries > BACKLOG_MAX
            && let Some(oldest) = self.backlog.pop_front()
        {
            entries -= oldest.used.len();
            if !std::mem::replace(&mut self.drop_logged, true) {
                tracing::warn!(
                    "usage.store: {}: oldest usage dropped: more than {BACKLOG_MAX} entries wait until the store can be \
                     written",
                    self.health.place()
                );
            }
        }
    }
}
