//! The task of one store: what it is told to keep, it writes a second later, all at once; what it can't write it keeps
//! until it can, within a limit.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use penstock_control::Kept;
use penstock_engine::input::PastUsage;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::file::File;
use super::health::{Health, Side};
use super::ledger::{Batch, Ledger};
use super::redis::Redis;
use super::{BACKLOG_MAX, LINGER, Models, RETRY_FIRST, RETRY_MAX};

/// What waits for a clerk.
pub(super) const INBOX: usize = 256;
/// Entries of one batch.
const BATCH_MAX: usize = 2_048;

/// What a clerk is told.
#[derive(Debug)]
pub(super) enum Message {
    Learned {
        pool: String,
        variant: String,
        kept: Kept,
    },
    /// A ledger isn't empty any more.
    Used,
    Follow(Box<Follow>),
    /// A pool isn't kept here any more.
    Leave(String),
    Close,
}

/// A pool is kept here from now on, or in another way.
#[derive(Debug)]
pub(super) struct Follow {
    pub(super) pool: Arc<str>,
    pub(super) windowed: Option<Windowed>,
    /// Where to say what is known of its models.
    pub(super) models: oneshot::Sender<Vec<(String, Kept)>>,
    /// Where to say what was used there, if its windows begin now.
    pub(super) past: Option<oneshot::Sender<Vec<PastUsage>>>,
}

/// A pool whose flows have windows.
#[derive(Clone, Debug)]
pub(super) struct Windowed {
    pub(super) window: Duration,
    pub(super) ledger: Arc<Ledger>,
}

/// Where it is written.
#[derive(Debug)]
pub(super) enum Store {
    File(File),
    Redis(Box<Redis>),
}

pub(super) struct Clerk {
    store: Store,
    inbox: mpsc::Receiver<Message>,
    health: Arc<Health>,
    pools: BTreeMap<Arc<str>, Windowed>,
    learned: Models,
    backlog: VecDeque<Batch>,
    batches: u64,
    due: Option<Instant>,
    retry: Duration,
    losing: bool,
}

impl Clerk {
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
            losing: false,
        }
    }

    /// Until it is told to close, or nobody is left who could tell it anything. What it was told is written then.
    pub(super) async fn run(mut self) {
        loop {
            let due = async {
                match self.due {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                message = self.inbox.recv() => match message {
                    None | Some(Message::Close) => break,
                    Some(message) => self.take(message).await,
                },
                () = due => self.write().await,
            }
        }
        self.write().await;
    }

    async fn take(&mut self, message: Message) {
        match message {
            Message::Learned { pool, variant, kept } => {
                self.learned.insert((pool, variant), kept);
            }
            Message::Used | Message::Close => {}
            Message::Follow(follow) => {
                // What was noted under another window is of that one, and what is asked for may not be written yet.
                self.write().await;
                self.follow(*follow).await;
            }
            Message::Leave(pool) => {
                self.write().await;
                self.health.leave(&pool);
                self.pools.remove(&*pool);
                match &mut self.store {
                    Store::File(file) => file.leave(&pool),
                    Store::Redis(redis) => redis.leave(&pool).await,
                }
            }
        }
        self.due.get_or_insert_with(|| Instant::now() + LINGER);
    }

    async fn follow(&mut self, follow: Follow) {
        let Follow {
            pool,
            windowed,
            models,
            past,
        } = follow;
        let window = windowed.as_ref().map(|it| it.window);
        match windowed {
            Some(windowed) => drop(self.pools.insert(pool.clone(), windowed)),
            None => drop(self.pools.remove(&pool)),
        }
        self.health.follow(&pool);
        // Who asked may have given up waiting for either.
        match &mut self.store {
            Store::File(file) => {
                let found = file.follow(pool, window, past.is_some()).await;
                if let Some(past) = past {
                    let _ = past.send(found.past);
                }
                let _ = models.send(found.models);
                self.health.works(Side::Writing);
            }
            Store::Redis(redis) => {
                redis.follow(pool.clone(), window, past).await;
                match redis.models(&pool).await {
                    Ok(found) => {
                        self.health.works(Side::Writing);
                        let _ = models.send(found);
                    }
                    Err(why) => self.health.fails(Side::Writing, &why),
                }
            }
        }
    }

    /// Takes what the ledgers say.
    fn note(&mut self) {
        for (pool, Windowed { window, ledger }) in &self.pools {
            let (used, lost) = ledger.take();
            if lost > 0 {
                tracing::warn!(pool = &**pool, lost, "more flows are served than a store keeps");
            }
            for used in used.chunks(BATCH_MAX) {
                self.batches += 1;
                self.backlog.push_back(Batch {
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
        self.note();
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
                self.losing = false;
                self.health.works(Side::Writing);
                self.health.wrote(pools.iter().map(String::as_str));
            }
            Err(why) => {
                self.health.fails(Side::Writing, &why);
                self.shorten();
                self.due = Some(Instant::now() + self.retry);
                self.retry = (self.retry * 2).min(RETRY_MAX);
            }
        }
    }

    /// Drops the oldest of what there is too much of.
    fn shorten(&mut self) {
        let mut entries: usize = self.backlog.iter().map(|it| it.used.len()).sum();
        while entries > BACKLOG_MAX
            && let Some(oldest) = self.backlog.pop_front()
        {
            entries -= oldest.used.len();
            if !std::mem::replace(&mut self.losing, true) {
                tracing::warn!(
                    "usage.store: {}: more is used than can be kept until it is back: the oldest is dropped",
                    self.health.place()
                );
            }
        }
    }
}
