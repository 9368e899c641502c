//! All stores of a configuration, open: which pool is kept where, and what is known of it there.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use penstock_config::{self as config, Config, Pool, RedisUrl};
use penstock_control::Kept;
use penstock_engine::input::PastUsage;
use penstock_engine::policy::Discipline;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::clerk::{Clerk, Follow, INBOX, Message, Store, Windowed};
use super::file::File;
use super::health::Health;
use super::ledger::{Ledger, Writer, Writers};
use super::redis::Redis;
use super::{Error, RETRY_FIRST};
use crate::driver;
use crate::metrics::Metrics;

/// A redis that hasn't said by then what it knows is gone on without; what it knows is told when it is there.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// What others used that waits to be told.
const NEWS: usize = 64;
/// Uses that are told at a time.
const TOLD_MAX: usize = 16_384;

/// What flows of a pool used.
pub(super) type News = (Arc<str>, Vec<PastUsage>);

/// Where something is kept.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    File(PathBuf),
    Redis(RedisUrl),
}

/// How a pool is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Home {
    place: Place,
    /// `None`: it has none.
    window: Option<Duration>,
}

/// A store at work.
#[derive(Debug)]
struct Running {
    inbox: mpsc::Sender<Message>,
    task: JoinHandle<()>,
}

/// What was known of the pools that are kept from now on.
#[derive(Debug, Default)]
pub struct Found {
    /// What earlier lives learned of their servers, by pool and variant.
    pub models: HashMap<String, Vec<(String, Kept)>>,
    /// What their flows used, of windows that begin now.
    past: Vec<News>,
}

/// All stores of a configuration, open.
#[derive(Debug)]
pub struct Keeper {
    stores: BTreeMap<Place, Running>,
    /// By pool.
    homes: BTreeMap<String, Home>,
    ledgers: BTreeMap<String, Arc<Ledger>>,
    /// Pools that have windows, wherever they are kept.
    windowed: BTreeSet<String>,
    /// Who isn't kept there any more.
    left: Vec<(Place, String)>,
    writers: Writers,
    metrics: Option<Arc<Metrics>>,
    news: mpsc::Sender<News>,
    untold: Option<mpsc::Receiver<News>>,
}

impl Default for Keeper {
    fn default() -> Self {
        let (news, untold) = mpsc::channel(NEWS);
        Self {
            stores: BTreeMap::new(),
            homes: BTreeMap::new(),
            ledgers: BTreeMap::new(),
            windowed: BTreeSet::new(),
            left: Vec::new(),
            writers: Writers::default(),
            metrics: None,
            news,
            untold: Some(untold),
        }
    }
}

/// The home of each pool that has one.
fn homes(config: &Config) -> BTreeMap<String, Home> {
    let homes = config.pools.iter().filter_map(|pool| {
        let place = match pool.store.as_ref()? {
            config::Store::Redb(path) => Place::File(one_spelling(path)),
            config::Store::Redis(url) => Place::Redis(url.clone()),
        };
        let window = has_windows(pool).then_some(pool.policy.usage_window);
        Some((pool.name.clone(), Home { place, window }))
    });
    homes.collect()
}

fn has_windows(pool: &Pool) -> bool {
    pool.policy.flows.discipline == Discipline::Usage
}

fn windowed(config: &Config) -> BTreeSet<String> {
    let pools = config.pools.iter().filter(|pool| has_windows(pool));
    pools.map(|pool| pool.name.clone()).collect()
}

/// The same for every way to write the same path, as far as its folder is there.
fn one_spelling(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.into());
    match (absolute.parent().map(Path::canonicalize), absolute.file_name()) {
        (Some(Ok(folder)), Some(name)) => folder.join(name),
        _ => absolute,
    }
}

impl Keeper {
    /// One that shows there whether its stores are used.
    #[must_use]
    pub fn shown_in(metrics: Arc<Metrics>) -> Self {
        Self {
            metrics: Some(metrics),
            ..Self::default()
        }
    }

    /// Opens the stores that the pools name, as far as they aren't open; what is known of the pools that are kept there
    /// from now on. Those that no pool names stay open until [`Keeper::let_go`].
    ///
    /// # Errors
    /// When a file is in use by another process, or can't be opened. Nothing has changed then.
    pub async fn open(&mut self, config: &Config) -> Result<Found, Error> {
        let homes = homes(config);
        let mut opened: BTreeMap<Place, (Store, Arc<Health>)> = BTreeMap::new();
        for home in homes.values() {
            if self.stores.contains_key(&home.place) || opened.contains_key(&home.place) {
                continue;
            }
            let made = self.make(&home.place, config).await?;
            opened.insert(home.place.clone(), made);
        }
        for (place, (store, health)) in opened {
            let (inbox, messages) = mpsc::channel(INBOX);
            let task = tokio::spawn(Clerk::new(store, messages, health).run());
            self.stores.insert(place, Running { inbox, task });
        }
        let before = std::mem::replace(&mut self.homes, homes);
        let had_windows = std::mem::replace(&mut self.windowed, windowed(config));
        let found = self.follow(&before, &had_windows).await;
        for (pool, home) in before {
            if self.homes.get(&pool).is_none_or(|now| now.place != home.place) {
                self.left.push((home.place, pool));
            }
        }
        Ok(found)
    }

    /// A store that isn't at work yet; a file is named in errors as the configuration has it.
    async fn make(&self, place: &Place, config: &Config) -> Result<(Store, Arc<Health>), Error> {
        let health = |name: String| Health::new(name, self.metrics.clone());
        match place {
            Place::File(file) => {
                let paths = config.pools.iter().filter_map(|pool| match &pool.store {
                    Some(config::Store::Redb(path)) => Some(path),
                    Some(config::Store::Redis(_)) | None => None,
                });
                let mut same = paths.filter(|path| one_spelling(path) == *file);
                let path = same.next().unwrap_or(file).clone();
                let health = health(path.display().to_string());
                Ok((Store::File(File::open(path).await?), health))
            }
            Place::Redis(url) => {
                let health = health(url.to_string());
                let redis = Redis::new(url, health.clone(), self.news.clone())?;
                Ok((Store::Redis(Box::new(redis)), health))
            }
        }
    }

    /// Tells the stores of all pools that are kept there in another way than before, and asks what they know of them.
    async fn follow(&mut self, before: &BTreeMap<String, Home>, had_windows: &BTreeSet<String>) -> Found {
        let deadline = Instant::now() + ANSWER_MAX;
        let mut found = Found::default();
        let mut answers = Vec::new();
        let mut writers = HashMap::new();
        for (pool, home) in &self.homes {
            let Some(Running { inbox, .. }) = self.stores.get(&home.place) else {
                continue;
            };
            let was = before.get(pool);
            if was.is_none_or(|was| was.place != home.place || was.window.is_none()) {
                self.ledgers.insert(pool.clone(), Arc::default());
            }
            let ledger = home.window.and_then(|_| self.ledgers.get(pool)).cloned();
            let writer = Writer {
                inbox: inbox.clone(),
                ledger: ledger.clone(),
            };
            writers.insert(pool.clone(), writer);
            if was == Some(home) {
                continue;
            }
            let (models, models_known) = oneshot::channel();
            let begins = home.window.is_some() && !had_windows.contains(pool);
            let (past, past_known) = begins.then(oneshot::channel).unzip();
            let windowed = home.window.zip(ledger);
            let follow = Message::Follow(Box::new(Follow {
                pool: pool.as_str().into(),
                windowed: windowed.map(|(window, ledger)| Windowed { window, ledger }),
                models,
                past,
            }));
            let is_patient = matches!(home.place, Place::File(_));
            // It fails if its task has ended, which has been said.
            let _ = in_time(is_patient, deadline, inbox.send(follow)).await;
            let asks = was.is_none_or(|was| was.place != home.place);
            answers.push((pool.clone(), is_patient, asks.then_some(models_known), past_known));
        }
        for (pool, is_patient, models, past) in answers {
            if let Some(models) = models {
                let known = in_time(is_patient, deadline, models).await;
                found.models.insert(pool.clone(), known.unwrap_or_default());
            }
            if let Some(past) = past
                && let Some(past) = in_time(is_patient, deadline, past).await
            {
                found.past.push((pool.as_str().into(), past));
            }
        }
        self.ledgers.retain(|pool, _| self.homes.contains_key(pool));
        self.writers = Writers(writers);
        found
    }

    /// Whether the pools of this configuration are those that are kept, where and as they are kept.
    #[must_use]
    pub fn is_of(&self, config: &Config) -> bool {
        self.homes == homes(config) && self.windowed == windowed(config)
    }

    /// Closes what no pool names any more. What was said to it before is written first, by tasks that needn't be waited
    /// for.
    pub fn let_go(&mut self) -> Vec<JoinHandle<()>> {
        for (place, pool) in std::mem::take(&mut self.left) {
            let is_back = self.homes.get(&pool).is_some_and(|home| home.place == place);
            if let Some(running) = self.stores.get(&place).filter(|_| !is_back) {
                // Where there is no room for it, a pool that nothing more is said of is followed for nothing.
                let _ = running.inbox.try_send(Message::Leave(pool.clone()));
            }
            if let Some(metrics) = self.metrics.as_ref().filter(|_| !self.homes.contains_key(&pool)) {
                // It fails where it was never shown.
                let _ = metrics.store_up.remove_label_values(&[&pool]);
            }
        }
        let homes = &self.homes;
        let is_named = |place: &Place| homes.values().any(|home| home.place == *place);
        let left = self.stores.extract_if(.., |place, _| !is_named(place));
        let ends = left.map(|(_, running)| {
            // Where there is no room for it, the task ends with the last one who writes to it.
            let _ = running.inbox.try_send(Message::Close);
            running.task
        });
        ends.collect()
    }

    /// Where to say what is learned and used.
    #[must_use]
    pub fn writers(&self) -> Writers {
        self.writers.clone()
    }

    /// Has the driver told what others use, as it comes. Once.
    pub fn tell(&mut self, driver: &driver::Handle) {
        if let Some(mut untold) = self.untold.take() {
            let driver = driver.clone();
            tokio::spawn(async move {
                while let Some((pool, past)) = untold.recv().await {
                    if driver.used(pool, past).await.is_err() {
                        return;
                    }
                }
            });
        }
    }

    /// Writes what was said so far, and closes all; gives up waiting for what is slow after `most`, which loses nothing
    /// that was written before.
    pub async fn close(self, most: Duration) {
        let closing = async {
            for running in self.stores.values() {
                // It fails if the task has ended.
                let _ = running.inbox.send(Message::Close).await;
            }
            for running in self.stores.into_values() {
                // As above.
                let _ = running.task.await;
            }
        };
        if tokio::time::timeout(most, closing).await.is_err() {
            tracing::warn!("usage.store: it is slow to be written; not waiting for it");
        }
    }
}

impl Found {
    /// Tells the driver what flows used before.
    ///
    /// # Errors
    /// When it has ended.
    pub async fn tell(self, driver: &driver::Handle) -> Result<(), driver::Gone> {
        for (pool, past) in self.past {
            let mut past = past.into_iter().peekable();
            while past.peek().is_some() {
                let some = past.by_ref().take(TOLD_MAX).collect();
                driver.used(pool.clone(), some).await?;
            }
        }
        Ok(())
    }

    /// The same without a driver, by pool.
    #[must_use]
    pub fn into_past(self) -> Vec<(Arc<str>, Vec<PastUsage>)> {
        self.past
    }
}

/// `None`: not in time, or not at all.
async fn in_time<T, E>(
    is_patient: bool,
    deadline: Instant,
    what: impl Future<Output = Result<T, E>>,
) -> Option<T> {
    if is_patient {
        return what.await.ok();
    }
    tokio::time::timeout_at(deadline, what).await.ok()?.ok()
}

const _: () = assert!(RETRY_FIRST.as_nanos() < ANSWER_MAX.as_nanos());
