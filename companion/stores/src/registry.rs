//! All open stores of a configuration: the store of each pool, and the state restored from it.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use penstock_config::{self as config, Config, Pool, RedisUrl};
use penstock_control::Kept;
use penstock_engine::input::{BudgetUsage, PastUsage};
use penstock_engine::policy::Discipline;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::file::File;
use super::health::Health;
use super::message::{Attach, INBOX, Message, Windowed, Windows};
use super::recorders::{Recorder, Recorders};
use super::redis::Redis;
use super::write_buffer::{SharedUsage, WriteBuffer};
use super::writer::{Store, StoreWriter};
use super::{Error, RETRY_FIRST, StoreMetrics};
use penstock_base::essential;

/// How long the start and a reload wait for a redis server. What it answers later is applied then.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Batches of other companions' usage that wait for the driver.
const SHARED_USAGE_INBOX: usize = 64;

/// A store, by its address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Location {
    File(PathBuf),
    Redis(RedisUrl),
}

/// How a pool is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PoolStorage {
    location: Location,
    windows: Windows,
}

/// What of a pool's usage is counted, with or without a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    usage: bool,
    budgets: bool,
}

/// The task of an open store.
#[derive(Debug)]
struct StoreTask {
    inbox: mpsc::Sender<Message>,
    task: JoinHandle<()>,
}

/// State restored for pools that a store keeps from now on.
#[derive(Debug, Default)]
pub struct Restored {
    /// Models learned by earlier companions, by pool and variant.
    pub models: HashMap<String, Vec<(String, Kept)>>,
    /// Usage within windows, and of budgets, that begin now, by pool.
    past_usage: Vec<SharedUsage>,
}

/// All open stores of a configuration.
#[derive(Debug)]
pub struct Stores {
    open: BTreeMap<Location, StoreTask>,
    /// By pool.
    storage: BTreeMap<String, PoolStorage>,
    /// By pool with usage windows or budgets.
    buffers: BTreeMap<String, Arc<WriteBuffer>>,
    /// By pool.
    counts: BTreeMap<String, Counts>,
    /// Pools that have left a store since the last [`Stores::close_unused`].
    left: Vec<(Location, String)>,
    recorders: Recorders,
    metrics: Option<StoreMetrics>,
    shared_usage: mpsc::Sender<SharedUsage>,
    /// `None` once [`Stores::take_shared_usage`] has returned it.
    shared_usage_inbox: Option<mpsc::Receiver<SharedUsage>>,
}

impl Default for Stores {
    fn default() -> Self {
        let (shared_usage, inbox) = mpsc::channel(SHARED_USAGE_INBOX);
        Self {
            open: BTreeMap::new(),
            storage: BTreeMap::new(),
            buffers: BTreeMap::new(),
            counts: BTreeMap::new(),
            left: Vec::new(),
            recorders: Recorders::default(),
            metrics: None,
            shared_usage,
            shared_usage_inbox: Some(inbox),
        }
    }
}

/// The storage of each pool that has a store.
fn storage(config: &Config) -> BTreeMap<String, PoolStorage> {
    let stored = config.pools.iter().filter_map(|pool| {
        let location = match pool.store.as_ref()? {
            config::Store::Redb(path) => Location::File(normalized(path)),
            config::Store::Redis(url) => Location::Redis(url.clone()),
        };
        let counts = counts_of(pool);
        let windows =
            Windows { usage: counts.usage.then_some(pool.policy.usage_window), has_budgets: counts.budgets };
        Some((pool.name.clone(), PoolStorage { location, windows }))
    });
    stored.collect()
}

fn counts_of(pool: &Pool) -> Counts {
    let flows = &pool.policy.flows;
    Counts { usage: flows.discipline == Discipline::Usage, budgets: !flows.budgets.is_empty() }
}

fn counts(config: &Config) -> BTreeMap<String, Counts> {
    let pools = config.pools.iter();
    pools.map(|pool| (pool.name.clone(), counts_of(pool))).collect()
}

/// An absolute path that is the same for every spelling of `path`, if its folder exists.
fn normalized(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.into());
    match (absolute.parent().map(Path::canonicalize), absolute.file_name()) {
        (Some(Ok(folder)), Some(name)) => folder.join(name),
        _ => absolute,
    }
}

impl Stores {
    /// Stores that report their health and their writes as metrics.
    #[must_use]
    pub fn with_metrics(metrics: StoreMetrics) -> Self {
        Self { metrics: Some(metrics), ..Self::default() }
    }

    /// Opens the stores of the configuration that aren't open, and restores the state of pools that a store keeps from
    /// now on. Stores that no pool uses any more stay open until [`Stores::close_unused`].
    ///
    /// # Errors
    /// When a file is in use by another process, or can't be opened. Nothing has changed then.
    pub async fn open(&mut self, config: &Config) -> Result<Restored, Error> {
        let storage = storage(config);
        let mut opened: BTreeMap<Location, (Store, Arc<Health>)> = BTreeMap::new();
        for PoolStorage { location, .. } in storage.values() {
            if self.open.contains_key(location) || opened.contains_key(location) {
                continue;
            }
            let store = self.open_one(location, config).await?;
            opened.insert(location.clone(), store);
        }
        for (location, (store, health)) in opened {
            let (inbox, messages) = mpsc::channel(INBOX);
            let task =
                essential::spawn("writes to usage.store", StoreWriter::new(store, messages, health).run());
            self.open.insert(location, StoreTask { inbox, task });
        }
        let before = std::mem::replace(&mut self.storage, storage);
        let counted = std::mem::replace(&mut self.counts, counts(config));
        let restored = self.attach(&before, &counted).await;
        for (pool, PoolStorage { location, .. }) in before {
            if self.storage.get(&pool).is_none_or(|now| now.location != location) {
                self.left.push((location, pool));
            }
        }
        Ok(restored)
    }

    /// Opens one store. Error messages name a file as the configuration spells it.
    async fn open_one(&self, location: &Location, config: &Config) -> Result<(Store, Arc<Health>), Error> {
        let health = |name: String| Health::new(name, self.metrics.clone());
        match location {
            Location::File(file) => {
                let paths = config.pools.iter().filter_map(|pool| match &pool.store {
                    Some(config::Store::Redb(path)) => Some(path),
                    Some(config::Store::Redis(_)) | None => None,
                });
                let mut same = paths.filter(|path| normalized(path) == *file);
                let path = same.next().unwrap_or(file).clone();
                let health = health(path.display().to_string());
                Ok((Store::File(File::open(path).await?), health))
            }
            Location::Redis(url) => {
                let health = health(url.to_string());
                let redis = Redis::new(url, health.clone(), self.shared_usage.clone())?;
                Ok((Store::Redis(Box::new(redis)), health))
            }
        }
    }

    /// Attaches every pool that is new or stored differently than before, and waits for its stored state.
    async fn attach(
        &mut self,
        before: &BTreeMap<String, PoolStorage>,
        counted: &BTreeMap<String, Counts>,
    ) -> Restored {
        let deadline = Instant::now() + ANSWER_MAX;
        let mut pending = Vec::new();
        let mut recorders = HashMap::new();
        for (pool, storage) in &self.storage {
            let Some(StoreTask { inbox, .. }) = self.open.get(&storage.location) else {
                continue;
            };
            let previous = before.get(pool);
            let has_moved = previous.is_none_or(|previous| previous.location != storage.location);
            if has_moved || previous.is_none_or(|previous| previous.windows.kept().is_none()) {
                self.buffers.insert(pool.clone(), Arc::default());
            }
            let kept = storage.windows.kept();
            let buffer = kept.and_then(|_| self.buffers.get(pool)).cloned();
            let recorder = Recorder { inbox: inbox.clone(), buffer: buffer.clone() };
            recorders.insert(pool.clone(), recorder);
            if previous == Some(storage) {
                continue;
            }
            let (models, models_answer) = oneshot::channel();
            let counted = counted.get(pool).copied().unwrap_or_default();
            let usage_begins = storage.windows.usage.is_some() && !counted.usage;
            let (past_usage, past_usage_answer) = usage_begins.then(oneshot::channel).unzip();
            let budgets_begin = storage.windows.has_budgets && !counted.budgets;
            let (past_budgets, past_budgets_answer) = budgets_begin.then(oneshot::channel).unzip();
            let attach = Message::Attach(Box::new(Attach {
                pool: pool.as_str().into(),
                windowed: kept.zip(buffer).map(|(windows, buffer)| Windowed { windows, buffer }),
                models,
                past_usage,
                past_budgets,
            }));
            let deadline = match storage.location {
                Location::File(_) => None,
                Location::Redis(_) => Some(deadline),
            };
            // Sending fails only after the task has failed, which the log shows.
            let _ = by_deadline(deadline, inbox.send(attach)).await;
            pending.push(PendingRestore {
                pool: pool.clone(),
                deadline,
                models: has_moved.then_some(models_answer),
                past_usage: past_usage_answer,
                past_budgets: past_budgets_answer,
            });
        }
        self.buffers.retain(|pool, _| self.storage.contains_key(pool));
        self.recorders = Recorders(recorders);
        let mut restored = Restored::default();
        for pool in pending {
            pool.finish(&mut restored).await;
        }
        restored
    }

    /// Whether this configuration stores the same pools in the same way.
    #[must_use]
    pub fn matches(&self, config: &Config) -> bool {
        self.storage == storage(config) && self.counts == counts(config)
    }

    /// Closes the stores that no pool uses any more. Their tasks write the remaining data first; nothing needs to wait
    /// for them.
    pub fn close_unused(&mut self) -> Vec<JoinHandle<()>> {
        for (location, pool) in std::mem::take(&mut self.left) {
            let is_back = self.storage.get(&pool).is_some_and(|storage| storage.location == location);
            if let Some(store) = self.open.get(&location).filter(|_| !is_back) {
                // When the inbox is full, the store keeps the pool attached, which costs nothing.
                let _ = store.inbox.try_send(Message::Detach(pool.clone()));
            }
            if let Some(metrics) = self.metrics.as_ref().filter(|_| !self.storage.contains_key(&pool)) {
                // Removing fails when the pool never had this metric.
                let _ = metrics.up.remove_label_values(&[&pool]);
            }
        }
        let storage = &self.storage;
        let is_used = |location: &Location| storage.values().any(|pool| pool.location == *location);
        let unused = self.open.extract_if(.., |location, _| !is_used(location));
        let tasks = unused.map(|(_, store)| {
            // When the inbox is full, the task ends after the last recorder is dropped.
            let _ = store.inbox.try_send(Message::Close);
            store.task
        });
        tasks.collect()
    }

    /// The recorders of all pools that have a store.
    #[must_use]
    pub fn recorders(&self) -> Recorders {
        self.recorders.clone()
    }

    /// The past and running usage of other companions, by pool, as it arrives. Only the first call returns a receiver.
    pub fn take_shared_usage(&mut self) -> Option<mpsc::Receiver<SharedUsage>> {
        self.shared_usage_inbox.take()
    }

    /// Writes the remaining data and closes all stores, within `timeout`. A slow store loses only data that was not
    /// written before.
    pub async fn close(self, timeout: Duration) {
        let closing = async {
            for store in self.open.values() {
                // Sending and joining fail when the task has ended.
                let _ = store.inbox.send(Message::Close).await;
            }
            for store in self.open.into_values() {
                let _ = store.task.await;
            }
        };
        if tokio::time::timeout(timeout, closing).await.is_err() {
            tracing::warn!(
                "usage.store: closing took longer than {timeout:?}; usage and models of the last seconds may be lost"
            );
        }
    }
}

/// A pool's stored state that has been requested.
struct PendingRestore {
    pool: String,
    /// `None`: wait for the answer however long it takes.
    deadline: Option<Instant>,
    models: Option<oneshot::Receiver<Vec<(String, Kept)>>>,
    past_usage: Option<oneshot::Receiver<Vec<PastUsage>>>,
    past_budgets: Option<oneshot::Receiver<Vec<BudgetUsage>>>,
}

impl PendingRestore {
    async fn finish(self, restored: &mut Restored) {
        if let Some(models) = self.models {
            let models = by_deadline(self.deadline, models).await;
            restored.models.insert(self.pool.clone(), models.unwrap_or_default());
        }
        let mut past = SharedUsage::none(self.pool.into());
        if let Some(usage) = self.past_usage {
            past.settled = by_deadline(self.deadline, usage).await.unwrap_or_default();
        }
        if let Some(budgets) = self.past_budgets {
            let budgets = by_deadline(self.deadline, budgets).await.unwrap_or_default();
            past.past_budgets = budgets;
        }
        if !past.is_empty() {
            restored.past_usage.push(past);
        }
    }
}

impl Restored {
    /// The restored usage by pool.
    #[must_use]
    pub fn into_past_usage(self) -> Vec<SharedUsage> {
        self.past_usage
    }
}

/// `None`: the operation failed, or didn't end by the deadline.
async fn by_deadline<T, E>(
    deadline: Option<Instant>,
    operation: impl Future<Output = Result<T, E>>,
) -> Option<T> {
    match deadline {
        None => operation.await.ok(),
        Some(deadline) => tokio::time::timeout_at(deadline, operation).await.ok()?.ok(),
    }
}

const _: () = assert!(RETRY_FIRST.as_nanos() < ANSWER_MAX.as_nanos());
