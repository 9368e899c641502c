//! The task that writes one store: it collects new data for a second and writes all of it at once. Data that can't be
//! written waits for the next attempt, within a limit.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::budget_buffer::OwnReset;
use super::file::File;
use super::health::{Health, Operation};
use super::message::{Attach, Message, Windowed, Windows};
use super::redis::Redis;
use super::write_buffer::{Contents, UsageBatch};
use super::{BACKLOG_MAX, LINGER, Models, RETRY_FIRST, RETRY_MAX, RUNNING_REFRESH};

/// Entries of one usage batch.
const BATCH_MAX: usize = 2_048;
/// Resets of budgets in one batch: each deletes fields of every hash.
const RESETS_MAX: usize = 64;

/// The kinds of store.
#[derive(Debug)]
pub(super) enum Store {
    File(File),
    Redis(Box<Redis>),
}

impl Store {
    /// Companions share it, and so read each other's running requests.
    const fn is_shared(&self) -> bool {
        match self {
            Self::File(_) => false,
            Self::Redis(_) => true,
        }
    }

    /// Something in it must still be read before it can be written.
    fn is_behind(&self) -> bool {
        match self {
            Self::File(_) => false,
            Self::Redis(redis) => redis.is_behind(),
        }
    }
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
    /// When each pool's running requests were last taken for a write.
    published: BTreeMap<Arc<str>, Instant>,
    /// When to repeat what runs, for the other companions; `None`: nothing runs, it is not shared, or the store fails.
    refresh: Option<Instant>,
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
            published: BTreeMap::new(),
            refresh: None,
            retry: RETRY_FIRST,
            drop_logged: false,
        }
    }

    /// Runs until [`Message::Close`] or until all senders are dropped, and then writes the rest.
    pub(super) async fn run(mut self) {
        loop {
            let due = async {
                match [self.due, self.refresh].into_iter().flatten().min() {
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
        for (pool, windowed) in std::mem::take(&mut self.pools) {
            self.collect(&pool, &windowed, true);
        }
        self.write().await;
    }

    async fn handle(&mut self, message: Message) {
        match message {
            Message::Model { pool, variant, model } => {
                self.learned.insert((pool, variant), model);
            }
            Message::UsageAdded | Message::Close => {}
            Message::BudgetChanged => self.due = Some(Instant::now()),
            Message::Attach(attach) => {
                // Buffered usage belongs to the previous window, and the requested state may not be written yet.
                self.write().await;
                self.attach(*attach).await;
            }
            Message::Detach(pool) => {
                if let Some((pool, windowed)) = self.pools.remove_entry(&*pool) {
                    self.collect(&pool, &windowed, true);
                }
                self.write().await;
                self.health.remove_pool(&pool);
                match &mut self.store {
                    Store::File(file) => file.detach(&pool),
                    Store::Redis(redis) => redis.detach(&pool).await,
                }
            }
        }
        let wait = if self.store.is_behind() { Duration::ZERO } else { LINGER };
        self.due.get_or_insert_with(|| Instant::now() + wait);
    }

    async fn attach(&mut self, attach: Attach) {
        let Attach { pool, windowed, models, past_usage, past_budgets } = attach;
        let windows = windowed.as_ref().map(|windowed| windowed.windows).unwrap_or_default();
        match windowed {
            Some(windowed) => drop(self.pools.insert(pool.clone(), windowed)),
            None => drop(self.pools.remove(&pool)),
        }
        self.health.add_pool(&pool);
        // Sending fails when the receiver has stopped waiting.
        match &mut self.store {
            Store::File(file) => {
                let restored = Windows {
                    usage: windows.usage.filter(|_| past_usage.is_some()),
                    has_budgets: past_budgets.is_some(),
                };
                let stored = file.attach(pool, windows, restored).await;
                if let Some(past_usage) = past_usage {
                    let _ = past_usage.send(stored.past_usage);
                }
                if let Some(past_budgets) = past_budgets {
                    let _ = past_budgets.send(stored.past_budgets);
                }
                let _ = models.send(stored.models);
                self.health.succeeded(Operation::Write);
            }
            Store::Redis(redis) => {
                redis.attach(pool.clone(), windows, past_usage, past_budgets).await;
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
    fn collect_all(&mut self) {
        let pools: Vec<_> =
            self.pools.iter().map(|(pool, windowed)| (pool.clone(), windowed.clone())).collect();
        for (pool, windowed) in pools {
            self.collect(&pool, &windowed, false);
        }
    }

    /// Moves the contents of a pool's write buffer to the backlog. `ends`: what runs no longer counts for this companion.
    fn collect(&mut self, pool: &Arc<str>, windowed: &Windowed, ends: bool) {
        let taken_at = self.published.get(pool);
        let is_due = taken_at.is_none_or(|instant| instant.elapsed() >= RUNNING_REFRESH);
        let Contents { used, dropped, budget_resets, forgotten, budgets, running } =
            windowed.buffer.take(is_due && windowed.buffer.runs_any());
        if dropped > 0 {
            tracing::warn!(
                pool = &**pool,
                dropped,
                limit = super::BUFFERED_KEYS_MAX,
                "usage entries dropped: too many flows are served between two writes of the store"
            );
        }
        for batch in self.backlog.iter_mut().filter(|batch| batch.pool == *pool) {
            batch.retain_budgets(|usage| !forgotten.contains_key(&usage.flow));
            // A later reset of the same flow has all of its effect.
            batch.retain_resets(|flow| !budget_resets.iter().any(|reset| *reset.flow == *flow));
        }
        if let Store::Redis(redis) = &mut self.store {
            // What is in the backlog from here on was used after these resets.
            redis.know_resets(pool, forgotten);
        }
        let mut running = if ends {
            self.published.remove(pool).map(|_| Arc::default())
        } else {
            running.filter(|_| self.store.is_shared()).map(Arc::from)
        };
        if running.is_some() {
            for batch in self.backlog.iter_mut().filter(|batch| batch.pool == *pool) {
                batch.running = None;
            }
            if !ends {
                self.published.insert(pool.clone(), Instant::now());
            }
        }
        let (mut used, mut budgets) = (used.chunks(BATCH_MAX), budgets.chunks(BATCH_MAX));
        let mut resets: VecDeque<Arc<[OwnReset]>> = budget_resets.chunks(RESETS_MAX).map(Arc::from).collect();
        loop {
            let budget_resets = resets.pop_front().unwrap_or_default(); // Usage comes after all resets.
            let (used, budgets, running) = match resets.is_empty() {
                true => (used.next(), budgets.next(), running.take()),
                false => (None, None, None),
            };
            if used.is_none() && budgets.is_none() && running.is_none() && budget_resets.is_empty() {
                return;
            }
            self.batches += 1;
            self.backlog.push_back(UsageBatch {
                number: self.batches,
                pool: pool.clone(),
                window: windowed.windows.usage,
                taken: Instant::now(),
                used: used.unwrap_or_default().into(),
                budget_resets,
                reset_numbers: Vec::new(),
                budgets: budgets.unwrap_or_default().into(),
                running,
            });
        }
    }

    async fn write(&mut self) {
        self.due = None;
        self.collect_all();
        self.refresh = None;
        self.backlog.retain(UsageBatch::is_needed);
        if self.learned.is_empty() && self.backlog.is_empty() && !self.store.is_behind() {
            self.refresh = self.next_refresh();
            return;
        }
        let mut pools: Vec<String> = self.learned.keys().map(|(pool, _)| pool.clone()).collect();
        pools.extend(self.backlog.iter().map(|batch| batch.pool.to_string()));
        let written = match &mut self.store {
            Store::File(file) => {
                file.write(&mut self.learned, &mut self.backlog).await.map_err(|why| why.to_string())
            }
            Store::Redis(redis) => {
                redis.write(&mut self.learned, &mut self.backlog).await.map_err(|why| why.to_string())
            }
        };
        match written {
            Ok(()) => {
                self.retry = RETRY_FIRST;
                self.drop_logged = false;
                self.health.succeeded(Operation::Write);
                self.health.count_writes(pools.iter().map(String::as_str));
                self.refresh = self.next_refresh();
                // One chunk is read with each write, and messages are handled in between.
                self.due = self.store.is_behind().then(Instant::now);
            }
            Err(why) => {
                self.health.failed(Operation::Write, &why);
                self.trim_backlog();
                self.due = Some(Instant::now() + self.retry);
                self.retry = (self.retry * 2).min(RETRY_MAX);
            }
        }
    }

    /// When to repeat what runs.
    fn next_refresh(&self) -> Option<Instant> {
        let runs = |pool: &Arc<str>| {
            let windowed = self.pools.get(pool);
            windowed.is_some_and(|windowed| windowed.buffer.runs_any())
        };
        let published = self.published.iter().filter(|(pool, _)| runs(pool));
        published.map(|(_, instant)| *instant + RUNNING_REFRESH).min()
    }

    /// Drops the oldest usage beyond the limit. Resets stay: the other companions must hear of them.
    fn trim_backlog(&mut self) {
        let mut entries: usize = self.backlog.iter().map(UsageBatch::len).sum();
        for batch in &mut self.backlog {
            if entries <= BACKLOG_MAX {
                break;
            }
            let dropped = batch.drop_usage();
            entries -= dropped;
            if dropped == 0 {
                continue;
            }
            if !std::mem::replace(&mut self.drop_logged, true) {
                tracing::warn!(
                    "usage.store: {}: oldest usage dropped: more than {BACKLOG_MAX} entries wait until the store can be \
                     written",
                    self.health.place()
                );
            }
        }
        self.backlog.retain(UsageBatch::is_needed);
    }
}
