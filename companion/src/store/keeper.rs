//! Stores at work: one thread a file writes what was learned, so that nobody waits for a disk.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use penstock_control::Kept;

use super::{Error, Store};
use crate::config::Config;

/// What waits for its thread; what comes when it is full is dropped, for the same is learned better later.
const INBOX: usize = 256;

/// What a thread is told.
enum Message {
    Learned {
        pool: String,
        variant: String,
        kept: Kept,
    },
    /// What is kept of a pool that writes here from now on.
    Of(String, SyncSender<Vec<(String, Kept)>>),
    Close,
}

/// All stores of a configuration, open.
#[derive(Debug, Default)]
pub struct Keeper {
    threads: BTreeMap<PathBuf, (SyncSender<Message>, JoinHandle<()>)>,
    /// By pool.
    files: BTreeMap<String, PathBuf>,
    writers: Writers,
}

/// Takes what is learned, and keeps nobody waiting. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Writers(HashMap<String, SyncSender<Message>>);

/// The file of each pool that has one.
fn files(config: &Config) -> BTreeMap<String, PathBuf> {
    let stores = config.pools.iter().filter_map(|pool| {
        let path = pool.store.as_deref()?;
        Some((pool.name.clone(), one_spelling(path)))
    });
    stores.collect()
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
    /// Opens the stores that the pools name, as far as they aren't open; what earlier lives learned of the pools that are
    /// kept there from now on, by variant. Those that no pool names stay open until [`Keeper::let_go`]. Blocks.
    ///
    /// # Errors
    /// When one is in use by another process, or can't be opened. Nothing has changed then.
    pub fn open(&mut self, config: &Config) -> Result<HashMap<String, Vec<(String, Kept)>>, Error> {
        let files = files(config);
        let mut opened: BTreeMap<PathBuf, Store> = BTreeMap::new();
        for pool in &config.pools {
            let (Some(path), Some(file)) = (&pool.store, files.get(&pool.name)) else {
                continue;
            };
            if !self.threads.contains_key(file) && !opened.contains_key(file) {
                opened.insert(file.clone(), Store::open(path)?);
            }
        }
        for (file, store) in opened {
            let (sender, inbox) = sync_channel(INBOX);
            let thread = std::thread::spawn(move || run(store, &inbox));
            self.threads.insert(file, (sender, thread));
        }
        let mut kept = HashMap::new();
        let mut writers = HashMap::new();
        for (pool, file) in &files {
            let Some((sender, _)) = self.threads.get(file) else {
                continue;
            };
            if self.files.get(pool) != Some(file) {
                let (reply, answer) = sync_channel(1);
                // Either fails if the thread has ended, which has been said.
                let _ = sender.send(Message::Of(pool.clone(), reply));
                kept.insert(pool.clone(), answer.recv().unwrap_or_default());
            }
            writers.insert(pool.clone(), sender.clone());
        }
        self.files = files;
        self.writers = Writers(writers);
        Ok(kept)
    }

    /// Whether the pools of this configuration are those that are kept, where they are kept.
    #[must_use]
    pub fn is_of(&self, config: &Config) -> bool {
        self.files == files(config)
    }

    /// Closes the files that no pool names any more. What was said to them before is written first, by threads that
    /// needn't be waited for.
    pub fn let_go(&mut self) -> Vec<JoinHandle<()>> {
        let files = &self.files;
        let left = self
            .threads
            .extract_if(.., |file, _| !files.values().any(|it| it == file));
        let ends = left.map(|(_, (sender, thread))| {
            // Where there is no room for it, the thread ends with the last one who writes to it.
            let _ = sender.try_send(Message::Close);
            thread
        });
        ends.collect()
    }

    /// Where to say what is learned.
    #[must_use]
    pub fn writers(&self) -> Writers {
        self.writers.clone()
    }

    /// Writes what was said so far, and closes all files; gives up waiting for a slow disk after `most`, which loses
    /// nothing that was written before.
    pub async fn close(self, most: Duration) {
        let closing = tokio::task::spawn_blocking(move || {
            for (sender, thread) in self.threads.into_values() {
                // Either fails if the thread has ended.
                let _ = sender.send(Message::Close);
                let _ = thread.join();
            }
        });
        if tokio::time::timeout(most, closing).await.is_err() {
            tracing::warn!("usage.store: its disk is slow; not waiting for it");
        }
    }
}

impl Writers {
    /// Keeps this, if its pool has a store.
    pub fn learned(&self, pool: &str, variant: String, kept: Kept) {
        if let Some(sender) = self.0.get(pool) {
            let pool = pool.to_owned();
            // A full inbox, or a thread that has ended, has been said in the log.
            let _ = sender.try_send(Message::Learned { pool, variant, kept });
        }
    }
}

fn run(mut store: Store, inbox: &Receiver<Message>) {
    let mut failing = false;
    let mut closing = false;
    while !closing {
        let Ok(first) = inbox.recv() else { return };
        let mut learned = BTreeMap::new();
        for message in std::iter::once(first).chain(inbox.try_iter()) {
            match message {
                Message::Learned { pool, variant, kept } => {
                    learned.insert((pool, variant), kept);
                }
                // Who asked may have given up.
                Message::Of(pool, reply) => drop(reply.try_send(store.of(&pool))),
                Message::Close => closing = true,
            }
        }
        if learned.is_empty() {
            continue;
        }
        match store.keep(learned) {
            Ok(()) if failing => {
                tracing::info!("usage.store: {} is written again", store.path.display());
                failing = false;
            }
            Ok(()) => {}
            Err(error) if !failing => {
                tracing::warn!("{error}: what is learned isn't kept until that is mended");
                failing = true;
            }
            Err(_) => {}
        }
    }
}
